// NL2RepoBench with Qwen 3.8 2.4T: four cells of 48 nodes. What its "total inference concurrency limit of 384" counts is not said:
// limit='total' reads it as executions in all, limit='per_cell' as executions of each cell. B, N and (phi, mu) are those of 122B.
local paper = import 'paper.libsonnet';
local workloads = import 'workloads.libsonnet';

function(
  limit='total',
  steps=48,
  horizon='open',
  seed=0,
  groups_per_step=32,
  group_size=16,
  phi=0.5,
  mu=3,
  policy='elastic',
  cells=4,
  standalone=0,
  nodes_per_cell=48,
  train_cells=2,
  streaming=true,
  rho_min=0.25,
  launch_order='fifo',
  deadline_h=workloads.nl2repo_2_4t(limit).deadline_h,
  workload={},
)
  paper.pipeline(
    'nl2repo_2_4t',
    {
      cells: cells,
      standalone: standalone,
      nodes_per_cell: nodes_per_cell,
      concurrency: { total: 96, per_cell: 384 }[limit],
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
    workloads.nl2repo_2_4t(limit) { deadline_h:: deadline_h } + workload,
  )
