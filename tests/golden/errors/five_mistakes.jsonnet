// The quickstart, broken in five ways at once.
local gyre = import 'gyre.libsonnet';

(import '../../../pipelines/quickstart.jsonnet')() {
  ops+: {
    dispatch+: { args+: { groups_per_steps: 8 } },
    rollout+: { from: { executions: 'dipatch' } },
    score+: { args+: { budget_s: 'sixty' } },
    select+: { op: 'tre_select' },
    elastic+: { agrs: { policy: 'elastic' } },
  },
}
