"""Resources of a pipeline: cells, engine, learner, weights, store, workload.

Their settings, types and defaults stand here (the workload's in `workload.py`), and only here. `read_resources` checks what the user
wrote and gives settings objects; the runtime builds the real things from them. Which resources a pipeline needs depends on its
operators (`typed.py`). Paths start at the pipeline's file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from gyre.errors import Problem
from gyre.graph.hints import suggest
from gyre.graph.settings import bind_settings, settings_of
from gyre.graph.workload import WorkloadSettings, check_workload


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutSettings:
    """How one training replica is spread over the accelerators of a cell."""

    tp: int = 1
    """Tensor parallel ranks."""
    pp: int = 1
    """Pipeline parallel ranks."""
    cp: int = 1
    """Context parallel ranks."""
    ep: int = 1
    """Expert parallel ranks; they are taken from the data parallel and tensor parallel ones, as Megatron does."""
    dp: int = 1
    """Data parallel ranks inside the cell."""

    @property
    def num_ranks(self) -> int:
        """Accelerators of a cell."""
        return self.tp * self.pp * self.cp * self.dp


@dataclass(frozen=True, slots=True, kw_only=True)
class CellsSettings:
    """The cells, and the engines that only ever serve rollouts."""

    count: int = 1
    """Cells; cell 0 is the core."""
    concurrency: int | list[int] = 8
    """Concurrent executions that a cell's engine serves; a list gives one number per cell."""
    standalone: int = 0
    """Engines that only ever serve rollouts."""
    standalone_concurrency: int | None = None
    """Concurrent executions of a standalone engine; null: as cell 0."""
    layout: LayoutSettings = field(default_factory=LayoutSettings)
    """Parallel layout of the training replica in each cell."""
    device: Literal["cpu", "gpu"] = "cpu"
    """What a rank runs on."""
    cpus_per_rank: float = 1.0
    """CPUs that are reserved per rank."""

    @property
    def concurrencies(self) -> tuple[int, ...]:
        """Concurrency of each cell."""
        return tuple(self.concurrency) if isinstance(self.concurrency, list) else (self.concurrency,) * self.count

    @property
    def standalone_concurrencies(self) -> tuple[int, ...]:
        """Concurrency of each standalone engine."""
        return (self.standalone_concurrency or self.concurrencies[0],) * self.standalone


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalEngineSettings:
    """The embedded torch engine, one per cell."""

    model: Path | None = None
    """Hugging Face folder of the policy; null: the learner's."""
    threads: int = 1
    """Torch threads of one engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangEngineSettings:
    """SGLang servers, started by someone else or by the runtime."""

    url: str | list[str] | None = None
    """Address of a running server; a list gives one per engine, cells first, then standalone ones; null: the runtime starts them."""
    model: Path | None = None
    """Hugging Face folder of the policy; null: the learner's."""
    args: dict[str, str | int | float | bool] = field(default_factory=dict)
    """Further arguments of a server that the runtime starts, by their name without dashes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedEngineSettings:
    """Answers from a script instead of a model; for tests and demonstrations."""

    script: Path
    """JSON file that chooses the answers: a list of rules, or a playbook of agents."""
    model: Path | None = None
    """Hugging Face folder whose tokenizer is used; null: the learner's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronLearnerSettings:
    """Megatron-core with Adam. The defaults are the paper's."""

    model: Path
    """Hugging Face folder that training starts from."""
    lr: float = 1e-6
    """Learning rate, constant."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Adam's decay rates."""
    eps: float = 1e-15
    """Adam's epsilon."""
    weight_decay: float = 0.01
    """Decoupled weight decay."""
    clip_norm: float = 1.0
    """Gradient norm that is clipped to, once, before Adam."""
    threads: int = 1
    """Torch threads of one rank on a CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MooncakeSettings:
    """The Mooncake transfer engine, which moves weights between cells."""

    protocol: Literal["tcp", "rdma"] = "tcp"
    """Transport."""
    device: str = ""
    """Network device for rdma; empty: Mooncake chooses."""
    timeout_s: float = 60.0
    """Longest wait for one transfer or one gradient reduction, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LanceStoreSettings:
    """Lance tables in the run directory."""

    keep_checkpoints: int | None = None
    """Newest checkpoints that are kept; null keeps all."""
    trajectories: Literal["full", "spans"] = "full"
    """How trajectories are stored: every token, or the leaf and its target ranges (for large runs; readers see no difference)."""


EngineSettings = LocalEngineSettings | SglangEngineSettings | ScriptedEngineSettings
KINDS: Mapping[str, Mapping[str, type]] = {
    "engine": {"local": LocalEngineSettings, "sglang": SglangEngineSettings, "scripted": ScriptedEngineSettings},
    "learner": {"megatron": MegatronLearnerSettings},
    "weights": {"mooncake": MooncakeSettings},
    "store": {"lance": LanceStoreSettings},
}
"""Kinds of each resource that has kinds, with the settings of each."""
POSITIVE: Mapping[str, tuple[str, ...]] = {
    "engine": ("threads",),
    "learner": ("threads",),
    "weights": ("timeout_s",),
    "store": ("keep_checkpoints",),
}
"""Settings of resources that must be above 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """Checked resources; one that the pipeline does not have, or that is wrong, is None or its default."""

    cells: CellsSettings
    """Cells and standalone engines."""
    engine: EngineSettings | None
    """Where model calls go."""
    learner: MegatronLearnerSettings | None
    """How cells train; None: no training."""
    weights: MooncakeSettings | None
    """How weights move."""
    store: LanceStoreSettings
    """Where the run is kept."""
    workload: WorkloadSettings
    """What executions and steps cost, in a simulation."""

    @property
    def model_dir(self) -> Path | None:
        """Folder of the policy that a run starts from; None where the pipeline has no model."""
        model = self.engine.model if self.engine else None
        return model or (self.learner.model if self.learner else None)


def read_resources(given: Mapping[str, Mapping[str, Any]], *, base_dir: Path, problems: list[Problem]) -> Resources:
    """Check the resources of a pipeline; what is wrong is added to `problems`."""
    read = {name: _read_resource(name, given[name], base_dir=base_dir, problems=problems) for name in given}
    resources = Resources(
        cells=read.get("cells") or CellsSettings(),
        engine=read.get("engine"),
        learner=read.get("learner"),
        weights=read.get("weights"),
        store=read.get("store") or LanceStoreSettings(),
        workload=read.get("workload") or WorkloadSettings(),
    )
    if read.get("cells"):
        problems.extend(_check_cells(resources.cells))
    if read.get("workload"):
        problems.extend(check_workload(resources.workload))
    if isinstance(resources.engine, SglangEngineSettings):
        problems.extend(_check_urls(resources.engine, resources.cells))
    for name in POSITIVE:
        problems.extend(_check_positive(f"resources.{name}", read.get(name), POSITIVE[name]))
    if resources.learner is not None:
        problems.extend(_check_adam(resources.learner))
    for name in ("engine", "learner"):
        problems.extend(_check_files(f"resources.{name}", read.get(name)))
    return resources


def _read_resource(name: str, given: Mapping[str, Any], *, base_dir: Path, problems: list[Problem]) -> Any:
    path = f"resources.{name}"
    settings_type: type | None = WorkloadSettings if name == "workload" else CellsSettings
    values = dict(given)
    owner = name
    if name in KINDS:
        kind = values.pop("kind", None)
        settings_type = KINDS[name].get(kind) if isinstance(kind, str) else None
        owner = f"{name} '{kind}'"
        if settings_type is None:
            call = "transfer" if name == "weights" else name
            message = f"there is no {name} '{kind}'" if kind is not None else f"{name} has no kind"
            hint = suggest(str(kind), KINDS[name], what="kinds are") if kind else f"write gyre.{call}('{next(iter(KINDS[name]))}')"
            problems.append(Problem(f"{path}.kind", message, hint))
            return None
    bound = bind_settings(path, values, settings_of(settings_type), base_dir=base_dir, owner=owner)
    problems.extend(bound.problems)
    return None if bound.problems else settings_type(**bound.values)


def _check_cells(cells: CellsSettings) -> Iterator[Problem]:
    path = "resources.cells"
    if cells.count < 1:
        yield Problem(f"{path}.count", f"there must be at least one cell, this is {cells.count}", "give 1 or more")
    elif len(cells.concurrencies) != cells.count:
        message = f"{len(cells.concurrencies)} numbers for {cells.count} cells"
        yield Problem(f"{path}.concurrency", message, "give one number, or one per cell")
    if any(c < 1 for c in cells.concurrencies):
        yield Problem(f"{path}.concurrency", "an engine serves at least one execution", "give 1 or more")
    if cells.standalone < 0:
        yield Problem(f"{path}.standalone", f"this is {cells.standalone}", "give 0 or more")
    if cells.standalone_concurrency is not None and cells.standalone_concurrency < 1:
        yield Problem(f"{path}.standalone_concurrency", "an engine serves at least one execution", "give 1 or more")
    for axis in ("tp", "pp", "cp", "ep", "dp"):
        if getattr(cells.layout, axis) < 1:
            yield Problem(f"{path}.layout.{axis}", f"this is {getattr(cells.layout, axis)}", "give 1 or more")


def _check_positive(path: str, settings: Any, names: tuple[str, ...]) -> Iterator[Problem]:
    for name in names:
        value = getattr(settings, name, None)
        if value is not None and value <= 0:
            yield Problem(
                f"{path}.{name}", f"{value} is out of range", "give 1 or more" if isinstance(value, int) else "give a number above 0"
            )


def _check_adam(learner: MegatronLearnerSettings) -> Iterator[Problem]:
    for name in ("lr", "eps", "weight_decay", "clip_norm"):
        if getattr(learner, name) < 0:
            yield Problem(f"resources.learner.{name}", f"{getattr(learner, name)} is out of range", "give a number that is 0 or more")
    if not all(0 <= beta < 1 for beta in learner.betas):
        message = f"{list(learner.betas)} are no decay rates"
        yield Problem("resources.learner.betas", message, "give two numbers of at least 0 and below 1")


def _check_urls(engine: SglangEngineSettings, cells: CellsSettings) -> Iterator[Problem]:
    urls = [engine.url] if isinstance(engine.url, str) else engine.url or []
    needed = cells.count + cells.standalone
    if isinstance(engine.url, list) and len(urls) != needed:
        message = f"{len(urls)} addresses for {needed} engines"
        yield Problem("resources.engine.url", message, "give one address per cell, then one per standalone engine")
    for url in urls:
        if not url.startswith(("http://", "https://")):
            yield Problem("resources.engine.url", f"'{url}' is no address", "write it like http://127.0.0.1:30000")


def _check_files(path: str, settings: Any) -> Iterator[Problem]:
    model = getattr(settings, "model", None)
    if model is not None and not (model / "config.json").is_file():
        message = f"there is no folder {model}" if not model.is_dir() else f"{model} has no config.json"
        yield Problem(f"{path}.model", message, "give a Hugging Face model folder, relative to the pipeline's file")
    script = getattr(settings, "script", None)
    if script is not None and not script.is_file():
        yield Problem(f"{path}.script", f"there is no file {script}", "give a script, relative to the pipeline's file")
