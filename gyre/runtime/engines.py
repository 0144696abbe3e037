"""Opens the engine of a cell by the kind that the pipeline names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gyre.errors import RunError

if TYPE_CHECKING:
    from gyre.runtime.cells import CellSpec


def open_engine(spec: CellSpec) -> tuple[Any, Any]:
    """Make the engine of a cell and serve it: (engine, running server)."""
    from gyre.rollout.engines.server import serve_engine

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
            spec.engine["script"], model_dir=spec.model_dir, concurrency=spec.concurrency, version=spec.published_version
        )
    else:
        raise RunError(f"a cell of this version runs the engines 'local' and 'scripted', not '{spec.engine_kind}'")
    return engine, serve_engine(engine, spec.host)
