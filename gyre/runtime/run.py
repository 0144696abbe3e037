"""`gyre run`: spec -> typed graph -> plan -> Ray actors -> a run directory.

The driver starts Ray, the cells and the pools, then only watches: it shows progress, folds the log into Lance, and stops everything in
order at the end, on Ctrl-C, or when something fails. What fails during a run ends it with exit code 1, resumable from its last commit.
"""

from __future__ import annotations

import contextlib
import json
import platform
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from gyre.errors import GyreError, Problem, RunError, SpecError, UserError
from gyre.graph.plan import Plan, plan_pipeline
from gyre.graph.rundir import SPEC_FILE, check_run_dir, has_begun, spec_document
from gyre.graph.spec import Spec
from gyre.graph.typed import TypedGraph, build_graph
from gyre.runtime.cluster import Cluster
from gyre.runtime.progress import Progress, summary
from gyre.runtime.resume import ResumeState, reconcile
from gyre.store.lock import RunLock
from gyre.store.run_store import RunStore

POLL_S = 0.5
"""How often the driver looks at the run."""
ORPHANS_WAIT_S = 30.0
"""How long `--resume` waits for the processes of a killed driver to end."""
PACKAGES = ("torch", "megatron-core", "ray", "pyarrow", "pylance", "transformers", "tokenizers", "mooncake-transfer-engine-non-cuda")
"""Packages whose versions a run directory keeps."""


def run_pipeline(spec: Spec, *, run_dir: Path, resume: bool = False, stop_after_hours: float | None = None, as_json: bool = False) -> int:
    """Run a pipeline to its end, in a new run directory or, with `resume`, where an interrupted run left off.

    Args:
        spec: the evaluated pipeline.
        run_dir: the run's directory.
        resume: continue the run that is there.
        stop_after_hours: stop after so long, resumable; None runs to the end.
        as_json: print one JSON document at the end instead of showing progress.

    Returns:
        Exit code: 0 done (or stopped by its own limit), 1 failed, 130 interrupted.
    """
    graph = build_graph(spec)
    plan = plan_pipeline(graph)
    if plan.scheduler is None:
        raise UserError(f"pipeline '{plan.pipeline}' has no dispatch operator, so there is nothing to run", hint="add gyre.op('dispatch')")
    document = spec_document(graph, versions=installed_versions())
    run_dir = run_dir.resolve()
    check_run_dir(run_dir, document, resume=resume)
    _check_runnable(graph, plan)
    _check_engines(graph)
    run_dir.mkdir(parents=True, exist_ok=True)
    with RunLock(run_dir) as lock:
        lock.acquire_exclusive(wait_s=ORPHANS_WAIT_S if resume else 0.0)
        store = RunStore(run_dir, writer="driver")
        state = reconcile(run_dir, store, plan.scheduler) if resume and has_begun(run_dir) else None
        if state is None:
            _begin_run_dir(run_dir, document, graph)
        lock.acquire_shared()
        return _drive(graph, plan, run_dir, store, state, stop_after_hours, as_json)


def installed_versions() -> dict[str, str]:
    """Versions of the packages that a run's figures depend on."""
    found = {"python": platform.python_version(), "gyre-rl": _version_of("gyre-rl")}
    return found | {name: _version_of(name) for name in PACKAGES}


def _version_of(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _check_runnable(graph: TypedGraph, plan: Plan) -> None:
    """Name what can be planned and simulated, but not yet run."""
    problems = []
    engine = plan.resources.get("engine", {})
    if engine.get("kind") == "sglang" and not engine.get("url"):
        hint = "start the servers and give their addresses, or use gyre.engine('local')"
        problems.append(Problem("resources.engine.url", "gyre does not start SGLang servers by itself yet", hint))
    if graph.find_node("train_cell") is not None:
        wide = [axis for axis, size in asdict(graph.resources.cells.layout).items() if size != 1]
        for axis in wide:
            hint = "write 1; a cell trains with one rank so far (gyre simulate takes any layout)"
            problems.append(Problem(f"resources.cells.layout.{axis}", "a cell of several ranks cannot train yet", hint))
    if problems:
        raise SpecError(problems)


def _check_engines(graph: TypedGraph) -> None:
    """An engine that the pipeline names by address must answer before anything is written."""
    urls = getattr(graph.resources.engine, "url", None)
    for url in [urls] if isinstance(urls, str) else urls or []:
        import urllib.error
        import urllib.request

        try:
            urllib.request.urlopen(f"{url.rstrip('/')}/get_model_info", timeout=5.0).close()
        except (urllib.error.URLError, OSError, ValueError) as error:
            hint = "start the engine, or correct resources.engine.url"
            raise UserError(f"resources.engine.url: no engine answers at {url} ({error})", hint=hint) from error


def _begin_run_dir(run_dir: Path, document: Mapping[str, Any], graph: TypedGraph) -> None:
    """Write what a run keeps of its pipeline, and the checkpoint of version 0, which is the model that it starts from."""
    from gyre.training.checkpoint import write_checkpoint

    model_dir = graph.resources.model_dir
    if model_dir is not None:
        write_checkpoint(run_dir, 0, save=lambda folder: _copy_model(model_dir, folder / "model"), state={})
    partial = run_dir / f".{SPEC_FILE}"
    partial.write_text(json.dumps(document, indent=2, sort_keys=True, default=str) + "\n", encoding="utf-8")
    partial.rename(run_dir / SPEC_FILE)


def _copy_model(source: Path, target: Path) -> None:
    import shutil

    shutil.copytree(source, target, ignore=shutil.ignore_patterns(".*", "__pycache__"))


def _drive(
    graph: TypedGraph,
    plan: Plan,
    run_dir: Path,
    store: RunStore,
    state: ResumeState | None,
    stop_after_hours: float | None,
    as_json: bool,
) -> int:
    cluster = Cluster(graph=graph, plan=plan, run_dir=run_dir, resume=state)
    stop_at_s = time.monotonic() + stop_after_hours * 3600.0 if stop_after_hours is not None else None
    code, message = 0, ""
    with _terminated_like_interrupted(), Progress(plan, run_dir, quiet=as_json) as progress:
        try:
            if state is not None:
                progress.catch_up(store.read("steps").sort_by("version").to_pylist())
            for notice in _notices(graph):
                progress.say(notice)
            progress.say("starting Ray, cells and operators")
            cluster.start()
            while not cluster.is_done(wait_s=POLL_S):
                progress.show(cluster.status(progress.num_shown))
                if stop_at_s is not None and time.monotonic() > stop_at_s:
                    message = f"stopped after {stop_after_hours:g} h; continue with --resume"
                    cluster.stop()
                    stop_at_s = None
            progress.show(cluster.status(progress.num_shown))
        except KeyboardInterrupt:
            code, message = 130, "interrupted; continue with --resume"
        except (RunError, OSError) as error:
            code, message = 1, f"{error}"
        finally:
            with _interrupts_ignored():
                cluster.close()
                store.close()
    try:
        store.fold(wait_s=10.0)
    except (GyreError, OSError) as error:
        code, message = code or 1, message or f"the log could not be folded into Lance: {error}"
    return _report(run_dir, store, code, message, as_json)


def _notices(graph: TypedGraph) -> list[str]:
    """What a person should know before the run starts, e.g. that a sandbox is missing here."""
    from gyre.rollout.sandbox import choose_sandbox

    kinds = {str(node.settings["sandbox"]) for node in graph.nodes.values() if "sandbox" in node.settings}
    notices = [choose_sandbox(kind).notice for kind in sorted(kinds)]
    return [notice for notice in notices if notice]


def _report(run_dir: Path, store: RunStore, code: int, message: str, as_json: bool) -> int:
    result = summary(store)
    if as_json:
        print(json.dumps({"ok": code == 0, "run_dir": str(run_dir), "message": message, **result.figures}))
        return code
    if message:
        print(message, file=sys.stderr if code else sys.stdout)
    if code == 1:
        print(f"the run can be continued: add --resume --run-dir {run_dir}", file=sys.stderr)
    print(result.sentence)
    return code


@contextlib.contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """Let SIGTERM stop the run the way Ctrl-C does."""

    def interrupt(signum: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Finish stopping also when the user, or whoever sends SIGTERM, is impatient; a kill -9 is still possible, and safe."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
