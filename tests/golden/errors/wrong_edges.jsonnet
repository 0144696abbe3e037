// Edges that carry the wrong records, a cycle without feedback, an open port.
local gyre = import 'gyre.libsonnet';

(import '../../../pipelines/quickstart.jsonnet')() {
  ops+: {
    dispatch+: { from+: { versions: 'train.versions' } },
    pack+: { from: { trajectories: 'score' } },
    extra: gyre.op('tree_select'),
  },
}
