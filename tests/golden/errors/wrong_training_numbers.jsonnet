// Numbers with which a run would train on nothing, divide by zero, wait for ever or fail at its first checkpoint.
local gyre = import 'gyre.libsonnet';

(import '../../../pipelines/quickstart.jsonnet')() {
  resources+: {
    learner+: { lr: -1e-4, betas: [0.9, 1.0], clip_norm: -1 },
    weights+: { timeout_s: 0 },
    store+: { keep_checkpoints: 0 },
  },
  ops+: {
    rollout+: { args+: { temperature: 0 } },
    score+: { args+: { workers: 0 } },
    select+: { args+: { role_order: ['main', 'sub_agent'] } },
    train+: { args+: { clip_low: 1.1, clip_high: 0.9, token_weight_cap: 0 } },
  },
}
