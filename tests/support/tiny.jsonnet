// The quickstart, small enough for a test: two cells, two groups of two executions per step.
function(seed=0, steps=4, mu=2, phi=0.5, policy='elastic', train=true, cells=2, scorer='scorers:by_name', harness={}, tasks=null, oversample=0, keep=null)
  (import '../../pipelines/quickstart.jsonnet')(
    seed=seed, steps=steps, mu=mu, phi=phi, policy=policy, train=train, cells=cells, concurrency=4, groups_per_step=2, group_size=2
  ) + { ops+: { dispatch+: { args+: { oversample: oversample } }, rollout+: { args+: { harness+: { deadline_s: 20 } + harness } }, score+: { args+: { scorer: scorer } } } }
  + (if tasks == null then {} else { ops+: { tasks+: { args+: { path: tasks } } } })
  + (if keep == null then {} else { resources+: { store+: { keep_checkpoints: keep } } })
