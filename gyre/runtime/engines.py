"""Opens the engine of a cell by the kind that the pipeline names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gyre.errors import RunError

if TYPE_CHECKING:
    from gyre.runtime.cells import CellSpec


def open_engine(spec: CellSpec, *, host: str) -> tuple[Any, Any]:
    """Make the engine of a cell and serve it: (engine, running server)."""
    from gyre.rollout.engines.remote import RemoteEngine, RemoteServer
    from gyre.rollout.engines.server import serve_engine

    if spec.engine_url is not None:
        remote = RemoteEngine(spec.engine_url)
        if spec.learner is not None:
            remote.load_weights_from_disk(str(spec.model_dir), spec.published_version)
        return remote, RemoteServer(spec.engine_url)
    if spec.engine_kind == "local":
        from gyre.rollout.engines.local import LocalEngine

        engine: Any = LocalEngine(
            spec.model_dir,
            concurrency=spec.concurrency,
            context_length=spec.context_limit,
            version=spec.published_version,
            num_threads=spec.threads,
            seed=spec.seed,
            name=spec.name,
        )
    elif spec.engine_kind == "scripted":
        from gyre.rollout.engines.scripted import ScriptedEngine

        engine = ScriptedEngine(
            spec.engine["script"],
            model_dir=spec.model_dir,
            concurrency=spec.concurrency,
            context_length=spec.context_limit,
            version=spec.published_version,
        )
    else:
        raise RunError(f"{spec.name}: the engine '{spec.engine_kind}' is not started by gyre yet; start it and give its url")
    return engine, serve_engine(engine, host)
