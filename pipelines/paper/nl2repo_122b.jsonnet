// NL2RepoBench with Qwen 3.6 122B on 32 nodes: the base configuration (E0), or any row of the paper's Table 1, e.g. --set row=A1.
// Every number of a row can be overridden: gyre simulate pipelines/paper/nl2repo_122b.jsonnet --set mu=2 --compare
local paper = import 'paper.libsonnet';
local rows = import 'rows.libsonnet';
local workloads = import 'workloads.libsonnet';

function(
  row='E0',
  steps=48,
  horizon='open',
  seed=0,
  groups_per_step=32,
  group_size=16,
  concurrency_per_node=36,  // 144 in a cell of four nodes
  phi=rows[row].phi,
  mu=rows[row].mu,
  policy=rows[row].policy,
  cells=rows[row].cells,
  standalone=rows[row].standalone,
  nodes_per_cell=rows[row].nodes_per_cell,
  train_cells=rows[row].train_cells,
  streaming=rows[row].streaming,
  rho_min=0.25,
  launch_order='fifo',
  deadline_h=workloads.nl2repo_122b.deadline_h,
  workload={},
)
  paper.pipeline(
    'nl2repo_122b',
    {
      cells: cells,
      standalone: standalone,
      nodes_per_cell: nodes_per_cell,
      concurrency: concurrency_per_node * nodes_per_cell,
      policy: policy,
      rho_min: rho_min,
      streaming: streaming,
      train_cells: train_cells,
    },
    {
      phi: phi,
      mu: mu,
      groups_per_step: groups_per_step,
      group_size: group_size,
      steps: steps,
      horizon: horizon,
      seed: seed,
      launch_order: launch_order,
    },
    workloads.nl2repo_122b { deadline_h:: deadline_h } + workload,
  )
