// The loop, end to end, on one CPU machine: a small policy learns small coding tasks through a black-box harness.
local gyre = import 'gyre.libsonnet';
local here = gyre.folder(std.thisFile);

function(
  seed=0,
  steps=30,
  train=true,
  phi=0.5,
  mu=2,
  groups_per_step=8,
  group_size=8,
  j_max=5,
  policy='elastic',
  rho_min=0.25,
  cells=3,
  concurrency=8,
  standalone=0,
  lr=5e-4,
  max_tokens=4096,
  tasks=here + 'tasks/katas',
)
  gyre.pipeline('quickstart') {
    resources: {
      cells: gyre.cells({ count: cells, concurrency: concurrency, standalone: standalone, layout: { tp: 1, pp: 1 } }),
      engine: gyre.engine('local', if train then {} else { model: here + 'models/tiny' }),
      store: gyre.store('lance'),
    } + (if !train then {} else {
           learner: gyre.learner('megatron', { model: here + 'models/tiny', lr: lr, eps: 1e-8, weight_decay: 0.0 }),
           weights: gyre.transfer('mooncake', { protocol: 'tcp' }),
         }),

    ops: {
      tasks: gyre.op('read_tasks') { args: { path: tasks } },
      dispatch: gyre.op('dispatch') {
        from: { tasks: 'tasks' } + (if train then { versions: gyre.feedback('train.versions') } else {}),
        args: { phi: phi, mu: mu, groups_per_step: groups_per_step, group_size: group_size, steps: steps, seed: seed },
      },
      rollout: gyre.op('harness_proxy') {
        from: { executions: 'dispatch' },
        args: { harness: import 'harness/mini.libsonnet', temperature: 1.0, context_limit: 2048 },
      },
      score: gyre.op('evaluate') { from: { closed: 'rollout' }, args: { scorer: 'task_verifier', budget_s: 120 } },
    } + (if !train then {} else {
           select: gyre.op('tree_select') { from: { scored: 'score' }, args: { j_max: j_max, normalize_std: false, seed: seed } },
           pack: gyre.op('pack') { from: { trajectories: 'select' }, args: { max_tokens: max_tokens } },
           train: gyre.op('train_cell') { from: { microsteps: 'pack' }, args: { objective: 'gspo' } },
           elastic: gyre.op('elastic') { args: { policy: policy, rho_min: rho_min } },
         }),
  }
