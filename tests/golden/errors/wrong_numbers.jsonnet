// Numbers out of range, a resource that is misspelt, a scorer that is none.
local gyre = import 'gyre.libsonnet';

(import '../../../pipelines/quickstart.jsonnet')() {
  resources+: {
    cells+: { count: 2, concurrency: [8, 8, 8] },
    learner+: { leraning_rate: 1e-3 },
  },
  ops+: {
    dispatch+: { args+: { phi: -0.5, mu: 0, group_size: 101 } },
    elastic+: { args+: { policy: 'async', rho_min: 0 } },
    score+: { args+: { scorer: 'pack' } },
  },
}
