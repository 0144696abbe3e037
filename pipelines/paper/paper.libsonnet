// A pipeline at the paper's scale, for `gyre simulate` and `gyre tune`. Tasks, harness and model are those of the quickstart: they stand
// in for what is not public, and a simulation does not look at them. To run it for real, give your own.
local gyre = import 'gyre.libsonnet';
local here = gyre.folder(std.thisFile);

{
  // GPUs of a node; a cell's ranks are tp * cp * dp, and dp grows with its nodes.
  local gpus_per_node = 8,

  pipeline(name, shape, dispatch, workload):: gyre.pipeline(name) {
    resources: {
      cells: gyre.cells({
        count: shape.cells,
        concurrency: shape.concurrency,
        standalone: shape.standalone,
        layout: { tp: gpus_per_node, dp: shape.nodes_per_cell },
        device: 'gpu',
      }),
      engine: gyre.engine('sglang'),
      learner: gyre.learner('megatron', { model: here + '../models/tiny' }),
      weights: gyre.transfer('mooncake', { protocol: 'rdma' }),
      store: gyre.store('lance', { trajectories: 'spans' }),
      workload: gyre.workload(workload),
    },
    ops: {
      tasks: gyre.op('read_tasks') { args: { path: here + '../tasks/katas' } },
      dispatch: gyre.op('dispatch') { from: { tasks: 'tasks', versions: gyre.feedback('train.versions') }, args: dispatch },
      rollout: gyre.op('harness_proxy') {
        from: { executions: 'dispatch' },
        args: { harness: import '../harness/mini.libsonnet', temperature: 1.0 },
      },
      score: gyre.op('evaluate') { from: { closed: 'rollout' }, args: { scorer: 'task_verifier' } },
      select: gyre.op('tree_select') { from: { scored: 'score' }, args: { j_max: 5 } },
      pack: gyre.op('pack') { from: { trajectories: 'select' } },
      train: gyre.op('train_cell') { from: { microsteps: 'pack' }, args: { objective: 'gspo' } },
      elastic: gyre.op('elastic') {
        args: { policy: shape.policy, rho_min: shape.rho_min, streaming: shape.streaming, train_cells: shape.train_cells },
      },
    },
  },
}
