// TerminalBench with Qwen 3.6 122B on 24 nodes: six cells of four nodes with 192 executions each, 48 groups of 16 per step, 24 steps.
local paper = import 'paper.libsonnet';
local workloads = import 'workloads.libsonnet';

function(
  steps=24,
  horizon='open',
  seed=0,
  groups_per_step=48,
  group_size=16,
  phi=0.5,
  mu=3,
  policy='elastic',
  cells=6,
  standalone=0,
  nodes_per_cell=4,
  concurrency=192,
  train_cells=3,
  streaming=true,
  rho_min=0.25,
  launch_order='fifo',
  deadline_h=workloads.terminalbench_122b.deadline_h,
  workload={},
)
  paper.pipeline(
    'terminalbench_122b',
    {
      cells: cells,
      standalone: standalone,
      nodes_per_cell: nodes_per_cell,
      concurrency: concurrency,
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
    workloads.terminalbench_122b { deadline_h:: deadline_h } + workload,
  )
