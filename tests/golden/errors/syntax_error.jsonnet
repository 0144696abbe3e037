local gyre = import 'gyre.libsonnet';

gyre.pipeline('broken') {
  ops: {
    tasks: gyre.op('read_tasks') { args: { path: 'tasks' } }
    dispatch: gyre.op('dispatch'),
  },
}
