"""`gyre simulate`: what a pipeline would do, in virtual time, under its own policy or beside the baselines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from gyre.console import print_json, print_table
from gyre.graph.plan import plan_pipeline
from gyre.graph.spec import Spec
from gyre.graph.typed import build_graph
from gyre.sim.outcome import Outcome
from gyre.sim.report import TABLE_COLUMNS, describe_outcome, describe_workload, draw_roles, table_rows
from gyre.sim.setting import place_all, read_setting, simulate
from gyre.sim.simulation import SimSetting


def simulate_pipeline(spec: Spec, *, compare: bool, from_run: Path | None, plot: Path | None, as_json: bool) -> int:
    """Simulate a pipeline and print what came out.

    Args:
        spec: the pipeline.
        compare: simulate the three policies at the pipeline's mean staleness.
        from_run: a finished run whose store the workload is fitted to; None: the pipeline's own workload.
        plot: picture to write; None: none.
        as_json: print one JSON document.

    Returns:
        The exit code.
    """
    setting, notes = load_setting(spec, from_run=from_run)
    settings = {setting.config.policy: setting}
    if compare and setting.config.train:
        settings = place_all(setting, train_cells=_given_split(spec))
    outcomes = {name: simulate(own) for name, own in settings.items()}
    if plot is not None:
        from gyre.sim.plot import plot_outcomes

        plot_outcomes(plot, title=spec.name, settings=settings, outcomes=outcomes)
    if as_json:
        _print_document(spec, settings, outcomes, notes)
    else:
        _print_tables(spec, settings, outcomes, notes)
    return 0


def load_setting(spec: Spec, *, from_run: Path | None) -> tuple[SimSetting, list[str]]:
    """The setting of a pipeline, its workload fitted to a run if one is given; and what there is to say about that."""
    graph = build_graph(spec)
    workload = graph.resources.workload
    notes: list[str] = []
    if from_run is not None:
        from gyre.sim.fit import fit_workload

        workload, notes = fit_workload(from_run, workload)
    elif "workload" not in spec.resources:
        notes = ["the pipeline says nothing of its workload, so a small one is assumed: add resources.workload, or give --from RUN"]
    return read_setting(plan_pipeline(graph), workload), notes


def _given_split(spec: Spec) -> int | None:
    """Cells in training that the pipeline's author chose for the Async baseline; None: nobody did."""
    elastic = next((op for op in spec.ops.values() if op.operator == "elastic"), None)
    return None if elastic is None else elastic.args.get("train_cells")


def _print_document(spec: Spec, settings: dict[str, SimSetting], outcomes: dict[str, Outcome], notes: list[str]) -> None:
    first = next(iter(settings.values()))
    print_json(
        {
            "pipeline": spec.name,
            "policies": {name: describe_outcome(settings[name], outcome) for name, outcome in outcomes.items()},
            "speedups": _speedups(outcomes),
            "workload": describe_workload(first.workload),
            "notes": notes,
        }
    )


def _speedups(outcomes: dict[str, Outcome]) -> dict[str, float]:
    """How many times longer each baseline takes than the elastic policy."""
    if "elastic" not in outcomes:
        return {}
    elastic_s = outcomes["elastic"].duration_s
    return {name: outcome.duration_s / elastic_s for name, outcome in outcomes.items() if name != "elastic"}


def _print_tables(spec: Spec, settings: dict[str, SimSetting], outcomes: dict[str, Outcome], notes: list[str]) -> None:
    for note in notes:
        click.echo(f"note: {note}", err=True)
    config = next(iter(settings.values())).config
    horizon = "first" if config.steps is None else "all"
    click.echo(f"{spec.name}: {horizon} {len(next(iter(outcomes.values())).steps)} steps in virtual time")
    print_table(TABLE_COLUMNS, table_rows(settings, outcomes))
    for name, speedup in _speedups(outcomes).items():
        click.echo(f"elastic is {speedup:.2f} times as fast as {name}")
    for name, outcome in outcomes.items():
        if outcome.steps:
            click.echo(f"{name}: '·' rollout, '#' training, '|' switching")
            click.echo("\n".join(draw_roles(outcome)))


def with_seed(setting: SimSetting, seed: int) -> SimSetting:
    """The same with other draws."""
    return replace(setting, seed=seed)
