// The quickstart with an agent whose tools take seconds, as real ones do. Places in engines are then what is scarce, not the processor,
// so that the policies differ on one machine, too. At the same mean staleness:
// --set policy=async --set phi=1 --set mu=1, or --set policy=colocate --set phi=0 --set mu=3.
local quickstart = import 'quickstart.jsonnet';

// One to eight seconds, by the task and by chance; three times as long for one execution in sixteen.
local wait = 'task="${!#}"; s=$(( ${#task} % 4 + RANDOM % 5 + 1 )); (( RANDOM % 16 )) || s=$(( s * 3 )); sleep $s; exec "$@"';

function(seed=0, steps=12, phi=0.5, mu=2, policy='elastic', rho_min=0.25, cells=3, concurrency=8, standalone=0)
  quickstart(
    seed=seed,
    steps=steps,
    phi=phi,
    mu=mu,
    policy=policy,
    rho_min=rho_min,
    cells=cells,
    concurrency=concurrency,
    standalone=standalone,
  ) {
    name: 'slow_tools',
    ops+: { rollout+: { args+: { harness+: { command: ['/bin/bash', '-c', wait, 'slow-tools'] + super.command } } } },
  }
