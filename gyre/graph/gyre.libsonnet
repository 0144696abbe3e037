// The vocabulary of a pipeline. Every word is plain data that `+:` can extend; defaults live in the Python signatures, once.
{
  // An empty pipeline: give it resources and ops.
  pipeline(name):: { gyre: 'pipeline.v1', name: name, resources: {}, ops: {} },

  // One operator: 'name' (built in), 'package/name' (installed) or 'module:attr'.
  op(name):: { op: name, from: {}, args: {} },

  // A connection that carries what a later operator tells an earlier one; only such a connection may close a cycle.
  feedback(port):: { feedback: port },

  // The folder of a file, for paths that stay right when another pipeline imports it: gyre.folder(std.thisFile) + 'models/tiny'.
  folder(file):: local parts = std.split(file, '/'); std.join('/', parts[0:std.length(parts) - 1] + ['']),

  // Resources: a kind with its settings beside it.
  cells(args={}):: args,
  engine(kind, args={}):: { kind: kind } + args,
  learner(kind, args={}):: { kind: kind } + args,
  transfer(kind, args={}):: { kind: kind } + args,
  store(kind, args={}):: { kind: kind } + args,

  // What executions and steps cost, for `gyre simulate` and `gyre tune`; a live run ignores it.
  workload(args={}):: args,
}
