"""The actors of a run on Ray: cells in placement groups, pools beside them. The only file that starts or stops Ray.

Ray is the control plane: it starts processes, places them, carries calls and Arrow tables, and notices when one is gone. With
`RAY_ADDRESS` set the same plan goes to that cluster; else a local Ray of the plan's size is started and stopped again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
import warnings
from collections.abc import Mapping
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from gyre.errors import GyreError, RunError
from gyre.graph.plan import Plan
from gyre.graph.typed import TypedGraph
from gyre.runtime.cells import Cell, CellSpec, LearnerSpec
from gyre.runtime.pools import Pool
from gyre.runtime.resume import ResumeState
from gyre.runtime.wiring import CONTROL_POOL, ControlSpec, Wiring, node_specs

START_TIMEOUT_S = 600.0
"""Longest wait for cells and pools: a cell of a real model loads weights for minutes."""
CLOSE_TIMEOUT_S = 10.0
"""Longest wait for one actor to stop by itself before it is killed."""
OBJECT_STORE_BYTES = 256 * 2**20
"""Object store of a local Ray: edges are bounded, so little is in flight."""


class Cluster:
    """Everything of a run that is not in the driver's process."""

    def __init__(self, *, graph: TypedGraph, plan: Plan, run_dir: Path, resume: ResumeState | None) -> None:
        self._graph = graph
        self._plan = plan
        self._run_dir = run_dir
        self._resume = resume
        self._pools: dict[str, Any] = {}
        self._cells: dict[str, Any] = {}
        self._groups: list[PlacementGroup] = []
        self._running: dict[Any, str] = {}
        self._watched: dict[Any, str] = {}

    # Starting

    def start(self) -> None:
        """Start Ray, cells and pools, wire them, and let them run."""
        self._start_ray()
        self._make_pools()
        urls = self._make_cells()
        self._wire(urls)
        self._running = {pool.run.remote(): name for name, pool in self._pools.items()}
        self._watched = {cell.watch.remote(): name for name, cell in self._cells.items()}
        self._get([self._pools[CONTROL_POOL].control.remote("start")])

    def _start_ray(self) -> None:
        os.environ.update(self._environment())
        warnings.filterwarnings("ignore", message="lance is not fork-safe")  # Ray starts programs, it forks no Python
        options: dict[str, Any] = {"log_to_driver": bool(os.environ.get("GYRE_DEBUG")), "logging_level": logging.ERROR}
        if self._is_remote:
            options |= {"address": os.environ["RAY_ADDRESS"], "namespace": f"gyre-{os.getpid()}"}
        else:
            bundles = [bundle for cell in (*self._plan.cells, *self._plan.standalone) for bundle in cell.bundles]
            options |= {
                "address": "local",
                # Rounded up: a share of a CPU that is missing is a cell that never finds a place.
                "num_cpus": max(1, ceil(sum(bundle.get("CPU", 0.0) for bundle in bundles))),
                "num_gpus": round(sum(bundle.get("GPU", 0.0) for bundle in bundles)) or None,
                "include_dashboard": False,
                "object_store_memory": OBJECT_STORE_BYTES,
            }
        try:
            ray.init(**options)
        except Exception as error:  # Ray raises bare exceptions where it cannot start or finds no cluster
            self._keep_trace(error)
            where = f" at RAY_ADDRESS={os.environ['RAY_ADDRESS']}" if self._is_remote else ""
            raise RunError(f"Ray does not start{where}: {_first_line(error)}") from error

    def _environment(self) -> dict[str, str]:
        """What every process of the run finds in its environment; the pipeline's own modules lie beside its file."""
        threads = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
        paths = [str(self._graph.spec.base_dir.resolve()), *(path for path in sys.path if path)]
        kept = ("GYRE_KILL_POINT", "GYRE_DEBUG")
        return {
            **dict.fromkeys(threads, "1"),
            **{name: os.environ[name] for name in kept if name in os.environ},
            "TOKENIZERS_PARALLELISM": "false",
            "GYRE_DRIVER_PID": str(os.getpid()),
            "RAY_AUTH_MODE": os.environ.get("RAY_AUTH_MODE", "disabled"),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
            "GLOG_minloglevel": "2",
            "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
        }

    @property
    def _actor_options(self) -> dict[str, Any]:
        """A local Ray's processes inherit the driver's environment, which is quicker than a runtime environment of their own."""
        return {"runtime_env": {"env_vars": self._environment()}} if self._is_remote else {}

    @property
    def _is_remote(self) -> bool:
        return "RAY_ADDRESS" in os.environ

    def _make_pools(self) -> None:
        names = [CONTROL_POOL, *(pool.name for pool in self._plan.pools if pool.name != CONTROL_POOL)]
        make = ray.remote(num_cpus=0, max_restarts=0, **self._actor_options)(Pool)
        self._pools = {name: make.remote(name=name, run_dir=str(self._run_dir)) for name in names}

    def _make_cells(self) -> Mapping[str, str]:
        if not self._plan.cells:
            return {}
        cells, standalone = self._plan.cells, self._plan.standalone
        specs = [self._cell_spec(c.engine, c.index, c.concurrency, position=c.index) for c in cells]
        specs += [self._cell_spec(s.engine, -1, s.concurrency, position=len(cells) + i) for i, s in enumerate(standalone)]
        for spec, planned in zip(specs, (*self._plan.cells, *self._plan.standalone), strict=True):
            self._cells[spec.name] = self._make_cell(spec, planned.bundles)
        urls = self._get([cell.start.remote() for cell in self._cells.values()])
        rendezvous = self._get([self._cells[self._plan.cells[0].engine].open_rendezvous.remote()])[0] if self._trains else None
        control = self._pools[CONTROL_POOL]
        self._get([cell.join_groups.remote(control, rendezvous) for cell in self._cells.values()])
        return dict(zip(self._cells, urls, strict=True))

    def _make_cell(self, spec: CellSpec, bundles: tuple[Mapping[str, float], ...]) -> Any:
        group = placement_group([dict(bundle) for bundle in bundles], strategy="STRICT_PACK")
        self._groups.append(group)
        if not group.wait(START_TIMEOUT_S):
            raise RunError(f"Ray has no place for {spec.name}, which needs {[dict(b) for b in bundles]}")
        first = bundles[0]
        make = ray.remote(
            num_cpus=first.get("CPU", 0.0),
            num_gpus=first.get("GPU", 0.0),
            max_restarts=0,
            **self._actor_options,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0),
        )(Cell)
        return make.remote(spec=spec)

    @property
    def _trains(self) -> bool:
        return self._graph.find_node("train_cell") is not None

    def _engine_url(self, position: int) -> str | None:
        """Address of an engine that somebody else runs: one for all, or one per engine, cells first."""
        urls = getattr(self._graph.resources.engine, "url", None)
        return urls[position] if isinstance(urls, list) else urls

    def _cell_spec(self, name: str, index: int, concurrency: int, *, position: int) -> CellSpec:
        graph, resources = self._graph, self._graph.resources
        proxy = graph.find_node("harness_proxy")
        settings = proxy.settings if proxy else {}
        published = self._resume.published_version if self._resume else 0
        engine = self._plan.resources["engine"]
        return CellSpec(
            name=name,
            index=index,
            num_cells=len(self._plan.cells),
            concurrency=concurrency,
            engine_kind=engine["kind"],
            engine={k: getattr(resources.engine, k) for k in engine if k != "kind"},
            engine_url=self._engine_url(position),
            run_dir=self._run_dir,
            model_dir=self._run_dir / "checkpoints" / str(published) / "model",
            published_version=published,
            context_limit=settings.get("context_limit", 32768),
            temperature=settings.get("temperature", 1.0),
            threads=engine.get("threads", 1),
            seed=self._seed + 1000 * (index + 1),
            trains=self._trains,
            is_remote=self._is_remote,
            protocol=resources.weights.protocol if resources.weights else "tcp",
            network_device=resources.weights.device if resources.weights else "",
            learner=self._learner_spec(settings.get("temperature", 1.0)) if index >= 0 and self._trains else None,
        )

    @property
    def _dispatch_settings(self) -> Mapping[str, Any]:
        dispatch = self._graph.find_node("dispatch")
        return dispatch.settings if dispatch else {}

    @property
    def _seed(self) -> int:
        return int(self._dispatch_settings.get("seed", 0))

    @property
    def _checkpoint(self) -> Path:
        """The checkpoint that this life of the run starts from; older ones may be gone."""
        return self._run_dir / "checkpoints" / str(self._resume.version if self._resume else 0)

    def _learner_spec(self, temperature: float) -> LearnerSpec:
        learner, weights = self._graph.resources.learner, self._graph.resources.weights
        train = self._graph.find_node("train_cell")
        assert learner is not None and weights is not None and train is not None
        return LearnerSpec(
            checkpoint=self._checkpoint,
            adam={name: getattr(learner, name) for name in ("lr", "betas", "eps", "weight_decay", "clip_norm")},
            objective={name: train.settings[name] for name in ("token_weight_cap", "clip_low", "clip_high")},
            temperature=temperature,
            layout=dict(self._plan.cells[0].layout),
            device="cuda" if self._graph.resources.cells.device == "gpu" else "cpu",
            timeout_s=weights.timeout_s,
            seed=self._seed,
        )

    def _wire(self, urls: Mapping[str, str]) -> None:
        specs = node_specs(self._graph, self._plan)
        pool_of = {node.name: node.pool for node in self._plan.nodes}
        proxy = self._graph.find_node("harness_proxy")
        for name, pool in self._pools.items():
            wiring = Wiring(
                nodes=tuple(spec for node, spec in specs.items() if pool_of[node] == name),
                run_dir=self._run_dir,
                base_dir=self._graph.spec.base_dir,
                trains=self._trains,
                pools=self._pools,
                proxy=(pool_of[proxy.name], proxy.name) if proxy else None,
                model_dir=self._checkpoint / "model" if self._graph.resources.model_dir else None,
                engine_urls=urls,
                control=self._control_spec() if name == CONTROL_POOL else None,
            )
            self._get([pool.prepare.remote(wiring)])

    def _control_spec(self) -> ControlSpec:
        assert self._plan.scheduler is not None
        train = self._graph.find_node("train_cell")
        is_open = train is not None and self._dispatch_settings.get("horizon") == "open"
        bounds = (train.settings["clip_low"], train.settings["clip_high"]) if train else (0.0, 0.0)
        return ControlSpec(
            scheduler=replace(self._plan.scheduler, steps=None) if is_open else self._plan.scheduler,
            last_step=self._plan.scheduler.steps if is_open else None,
            cells=tuple(self._cells[cell.engine] for cell in self._plan.cells),
            engines=dict(self._cells),
            resume=self._resume,
            clip_bounds=bounds,
            keep_checkpoints=self._graph.resources.store.keep_checkpoints,
        )

    # Watching

    def is_done(self, *, wait_s: float) -> bool:
        """Wait a little; True when every pool has ended. Raises RunError when one failed, or when a process is gone."""
        done, _ = ray.wait([*self._running, *self._watched], timeout=wait_s, num_returns=1)
        for reference in done:
            place = f"pool '{self._running[reference]}'" if reference in self._running else self._watched[reference]
            self._get([reference], place=place)
            self._running.pop(reference, None)
            self._watched.pop(reference, None)
        return not self._running

    def status(self, num_seen: int) -> Mapping[str, Any]:
        """What the control room says of the run; of its steps those after the first `num_seen`."""
        return self._get([self._pools[CONTROL_POOL].control.remote("status", num_seen)])[0]

    def stop(self) -> None:
        """Ask the run to stop before it is complete."""
        self._get([self._pools[CONTROL_POOL].control.remote("stop")])

    # Stopping

    def close(self) -> None:
        """Stop every actor, then Ray. Never raises for what is already gone."""
        if not ray.is_initialized():
            return
        try:
            leaving = [pool.leave.remote() for pool in self._pools.values()] + [cell.close.remote() for cell in self._cells.values()]
            ray.wait(leaving, num_returns=len(leaving), timeout=CLOSE_TIMEOUT_S)
            for group in self._groups:
                remove_placement_group(group)
        except RayError:
            pass
        ray.shutdown()

    def _get(self, references: list[Any], *, place: str = "the run") -> list[Any]:
        """Wait for answers; what went wrong in an actor becomes a RunError that says where."""
        try:
            return ray.get(references, timeout=START_TIMEOUT_S)
        except RayTaskError as error:
            cause = error.cause
            if os.environ.get("GYRE_DEBUG"):
                print(error, file=sys.stderr)
            self._keep_trace(error)
            if isinstance(cause, GyreError):
                raise RunError(f"{place}: {cause}") from error
            raise RunError(f"{place} failed: {type(cause).__name__}: {cause} (see {self._run_dir / 'errors.log'})") from error
        except RayActorError as error:
            self._keep_trace(error)
            raise RunError(f"{place}: a process of the run is gone ({_first_line(error)})") from error
        except RayError as error:
            raise RunError(f"{place}: {_first_line(error)}") from error

    def _keep_trace(self, error: Exception) -> None:
        # A full disk may be why we are here; the sentence on the terminal does not depend on this file.
        with contextlib.suppress(OSError), (self._run_dir / "errors.log").open("a", encoding="utf-8") as log:
            log.write(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}\n{error}\n\n")


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
