"""The command line: arguments in, one call into the room that does the work, its result as text or as one JSON document.

Invariants: every command takes `--json`, then exactly one JSON document is on stdout and nothing else; exit codes are 0 done, 1 a run
failed or a check does not hold, 2 the user's mistake, 130 interrupted; errors of gyre are sentences, never tracebacks. Heavy rooms are
imported inside the command that needs them, so that `gyre --help` and `gyre check` answer at once.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from gyre import __version__
from gyre.console import print_columns, print_json, print_table, report_error, report_usage
from gyre.errors import GyreError, UserError

if TYPE_CHECKING:
    from gyre.graph.plan import Plan
    from gyre.graph.registry import Operator
    from gyre.graph.spec import Spec
    from gyre.graph.typed import TypedGraph

EXIT_DONE, EXIT_FAILED, EXIT_MISTAKE, EXIT_INTERRUPTED = 0, 1, 2, 130


def main() -> NoReturn:
    """Run the command line and leave with its exit code."""
    sys.exit(run_cli(sys.argv[1:]))


def run_cli(arguments: list[str]) -> int:
    """Run one command; every error becomes sentences and an exit code here, and only here."""
    as_json = "--json" in arguments
    try:
        code = cli.main(args=arguments, prog_name="gyre", standalone_mode=False)
        return code if isinstance(code, int) else EXIT_DONE
    except click.exceptions.Exit as error:
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        if as_json:
            print_json({"ok": False, "error": "interrupted", "hint": ""})
        click.echo("interrupted", err=True)
        return EXIT_INTERRUPTED
    except click.UsageError as error:
        report_usage(error, as_json=as_json)
        return EXIT_MISTAKE
    except GyreError as error:
        report_error(error, as_json=as_json)
        return EXIT_MISTAKE if isinstance(error, UserError) else EXIT_FAILED
    except BrokenPipeError:
        # The reader of our output is gone (`gyre query … | head`); nothing is left to tell it.
        sys.stdout = None
        return EXIT_DONE


def _parse_settings(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    """Read `--set k=v`; v stays text, the pipeline reads it as JSON where it is JSON."""
    settings: dict[str, str] = {}
    for text in values:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise click.BadParameter(f"'{text}' is not of the form name=value, e.g. --set steps=3")
        settings[name.strip()] = value
    return settings


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout, nothing else.")
set_option = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_parse_settings,
    help="Give a parameter of the pipeline a value (JSON, else a string); may be repeated.",
)
pipeline_argument = click.argument("pipeline", type=click.Path(path_type=Path))
run_argument = click.argument("run", type=click.Path(path_type=Path))


class FiniteRange(click.FloatRange):
    """A range of numbers; 'nan', which is in every range, and 'inf' are none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read the number."""
        number = super().convert(value, param, ctx)
        return number if math.isfinite(number) else self.fail(f"{value} is not a finite number", param, ctx)


class ExampleCommand(click.Command):
    """A command whose help ends with examples, printed as they stand."""

    examples: tuple[str, ...] = ()

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples unwrapped, so that they can be copied."""
        with formatter.section("Example"):
            for example in self.examples:
                formatter.write(f"  {example}\n")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="gyre")
def cli() -> None:
    """Declarative pipelines for online reinforcement learning of LLM agents at extreme horizons.

    Start with: gyre run pipelines/quickstart.jsonnet
    """


def command(*examples: str, cls: type[ExampleCommand] = ExampleCommand) -> Callable[[Callable[..., int]], ExampleCommand]:
    """Declare a command by its function; its name is the function's, its help the docstring and the examples."""

    def declare(function: Callable[..., int]) -> ExampleCommand:
        declared = click.command(None, cls)(function)
        declared.examples = examples
        cli.add_command(declared)
        return declared

    return declare


def _load(pipeline: Path, settings: Mapping[str, str]) -> tuple[Spec, TypedGraph, Plan]:
    from gyre.graph.plan import plan_pipeline
    from gyre.graph.registry import look_beside
    from gyre.graph.spec import load_spec
    from gyre.graph.typed import build_graph

    spec = load_spec(pipeline, settings)
    look_beside(spec.base_dir)
    graph = build_graph(spec)
    return spec, graph, plan_pipeline(graph)


@command("gyre check pipelines/quickstart.jsonnet --set mu=3")
@pipeline_argument
@set_option
@json_option
def check(pipeline: Path, settings: dict[str, str], as_json: bool) -> int:
    """Check a pipeline and name every problem with its place and a hint."""
    from gyre.graph.render import describe_dispatch, dispatch_figures

    _, graph, plan = _load(pipeline, settings)
    if as_json:
        figures = dispatch_figures(plan.scheduler)
        print_json({"ok": True, "problems": [], "pipeline": plan.pipeline, "dispatch": figures})
        return EXIT_DONE
    click.echo(f"{pipeline}: ok ({len(graph.nodes)} operators, {len(graph.edges)} edges, {len(plan.cells)} cells)")
    if plan.scheduler is not None:
        for line in describe_dispatch(plan.scheduler):
            click.echo(line)
    return EXIT_DONE


@command("gyre plan pipelines/quickstart.jsonnet --format mermaid")
@pipeline_argument
@set_option
@click.option("--format", "form", type=click.Choice(["text", "mermaid", "json"]), default="text", show_default=True)
@json_option
def plan(pipeline: Path, settings: dict[str, str], form: str, as_json: bool) -> int:
    """Show how a pipeline is laid out: processes, cells, edges with their capacities, tables."""
    from gyre.graph.render import render_json, render_mermaid, render_text

    _, _, laid_out = _load(pipeline, settings)
    if as_json or form == "json":
        click.echo(render_json(laid_out))
    else:
        click.echo(render_mermaid(laid_out) if form == "mermaid" else render_text(laid_out), nl=False)
    return EXIT_DONE


@command(
    "gyre run pipelines/quickstart.jsonnet --set steps=3 --run-dir runs/first",
    "gyre run pipelines/quickstart.jsonnet --set steps=3 --run-dir runs/first --resume",
)
@pipeline_argument
@set_option
@click.option("--run-dir", type=click.Path(path_type=Path), help="Directory of the run.  [default: runs/PIPELINE/UTC-TIME]")
@click.option("--resume", is_flag=True, help="Continue the interrupted run in --run-dir.")
@click.option("--stop-after-hours", type=FiniteRange(min=0, min_open=True), help="Stop, resumable, after so many hours.")
@json_option
def run(
    pipeline: Path,
    settings: dict[str, str],
    run_dir: Path | None,
    resume: bool,
    stop_after_hours: float | None,
    as_json: bool,
) -> int:
    """Run a pipeline until its steps are done."""
    from datetime import UTC, datetime

    from gyre.graph.rundir import default_run_dir

    if resume and run_dir is None:
        raise UserError("--resume needs to know which run", hint="add --run-dir with the directory of the interrupted run")
    # The whole check comes before the first heavy import and before anything is written.
    spec, _, _ = _load(pipeline, settings)
    run_dir = run_dir or default_run_dir(spec.name, now_utc=datetime.now(UTC))
    click.echo(f"run directory: {run_dir}", err=as_json)
    run_pipeline = _from_room("gyre.runtime.run", "run_pipeline")
    code = run_pipeline(spec, run_dir=run_dir, resume=resume, stop_after_hours=stop_after_hours, as_json=as_json)
    click.echo(f"run directory: {run_dir}", err=as_json)
    return code


@command("gyre simulate pipelines/quickstart.jsonnet --compare --set mu=3")
@pipeline_argument
@set_option
@click.option("--compare", is_flag=True, help="Simulate the baselines beside the pipeline's own policy.")
@click.option("--from", "from_run", type=click.Path(path_type=Path), help="Fit the workload to a run's store.")
@click.option("--plot", type=click.Path(path_type=Path), help="Write a picture of the simulated cells.")
@json_option
def simulate(pipeline: Path, settings: dict[str, str], compare: bool, from_run: Path | None, plot: Path | None, as_json: bool) -> int:
    """Run a pipeline's schedule in virtual time."""
    spec, _, _ = _load(pipeline, settings)
    simulate_pipeline = _from_room("gyre.sim.simulate", "simulate_pipeline")
    return simulate_pipeline(spec, compare=compare, from_run=from_run, plot=plot, as_json=as_json)


@command("gyre tune pipelines/quickstart.jsonnet --staleness 1.5")
@pipeline_argument
@set_option
@click.option("--staleness", type=FiniteRange(min=0), required=True, help="Mean staleness that is allowed.")
@click.option("--from", "from_run", type=click.Path(path_type=Path), help="Fit the workload to a run's store.")
@json_option
def tune(pipeline: Path, settings: dict[str, str], staleness: float, from_run: Path | None, as_json: bool) -> int:
    """Search phi, mu and the layout for the shortest simulated run at a given staleness."""
    spec, _, _ = _load(pipeline, settings)
    tune_pipeline = _from_room("gyre.sim.tune", "tune_pipeline")
    return tune_pipeline(spec, staleness=staleness, from_run=from_run, as_json=as_json)


@command('gyre query runs/first "SELECT status, count(*) FROM executions GROUP BY status"')
@run_argument
@click.argument("sql")
@json_option
def query(run: Path, sql: str, as_json: bool) -> int:
    """Ask the tables of a run, also while it runs (DuckDB's SQL, read-only)."""
    table = _from_room("gyre.store.query", "query")(run, sql)
    if as_json:
        print_json(table.to_pylist())
    else:
        print_table(table.column_names, (row.values() for row in table.to_pylist()))
    return EXIT_DONE


@command(
    "gyre inspect runs/first",
    "gyre inspect runs/first g000003-02",
)
@run_argument
@click.argument("execution", required=False)
@json_option
def inspect(run: Path, execution: str | None, as_json: bool) -> int:
    """List the executions of a run, or show one: its tree with roles, tokens, targets, reward, the harness's log."""
    _from_room("gyre.store.inspect", "inspect")(run, execution, as_json=as_json)
    return EXIT_DONE


@command("gyre verify runs/first", "gyre verify runs/first --most-per-version 50 --json")
@run_argument
@click.option("--no-logprobs", is_flag=True, help="Leave out the comparison with log-probabilities recomputed by the trainer.")
@click.option("--most-per-version", type=click.IntRange(min=1), help="Recompute at most so many trajectories per version.  [default: all]")
@json_option
def verify(run: Path, no_logprobs: bool, most_per_version: int | None, as_json: bool) -> int:
    """Recompute what must hold from the tables of a run; names the rows where it does not."""
    check_run = _from_room("gyre.store.verify", "verify")
    recompute = None if no_logprobs else _from_room("gyre.training.recompute", "recompute_logprobs")
    report = check_run(run, recompute=recompute, most_per_version=most_per_version)
    if as_json:
        print_json(report.to_json())
    else:
        print_columns((name, f"{count} breaches" if count else "holds") for name, count in report.checks.items())
        print_columns((name, f"{value:.6g}" if isinstance(value, float) else str(value)) for name, value in report.figures.items())
        for line in (*report.notes, *(f"{b.table} {b.key}: {b.sentence}" for b in report.breaches)):
            click.echo(line)
        click.echo(f"{run}: {'everything holds' if report.is_ok else f'{len(report.breaches)} breaches'}")
    return EXIT_DONE if report.is_ok else EXIT_FAILED


@command("gyre rescore runs/first --scorer my_scorers/coverage")
@run_argument
@click.option("--scorer", required=True, metavar="NAME", help="Operator from closed executions to assessments.")
@json_option
def rescore(run: Path, scorer: str, as_json: bool) -> int:
    """Score the preserved workspaces of a run with another scorer; the run's rewards stay what they are."""
    return _from_room("gyre.runtime.rescore", "rescore")(run, scorer=scorer, as_json=as_json)


@command("gyre export runs/first exported/first")
@run_argument
@click.argument("out", type=click.Path(path_type=Path))
@json_option
def export(run: Path, out: Path, as_json: bool) -> int:
    """Write the newest checkpoint of a run as a Hugging Face folder."""
    folder = _from_room("gyre.training.export", "export_run")(run, out)
    if as_json:
        print_json({"ok": True, "model": str(folder)})
    else:
        click.echo(f"model written to {folder}")
    return EXIT_DONE


@command(
    "gyre ops",
    "gyre ops tree_select",
)
@click.argument("name", required=False)
@json_option
def ops(name: str | None, as_json: bool) -> int:
    """List operators, built in and installed, or show one: ports, settings with defaults, resources."""
    from gyre.graph.registry import find_operator, list_operators
    from gyre.graph.report import operator_document, render_operator

    if name is not None:
        operator = find_operator(name)
        if as_json:
            print_json(operator_document(operator))
        else:
            click.echo(render_operator(operator), nl=False)
        return EXIT_DONE
    found: list[Operator] = []
    for known in list_operators():
        try:
            found.append(find_operator(known))
        except UserError as error:
            # A package that is broken must not hide the operators of all others.
            click.echo(f"note: '{known}' cannot be used: {error}", err=True)
    if as_json:
        print_json([operator_document(operator) for operator in found])
    else:
        print_columns((operator.name, operator.doc.partition("\n")[0]) for operator in found)
    return EXIT_DONE


@command(
    "gyre schema",
    "gyre schema calls.v1",
)
@click.argument("name", required=False)
@json_option
def schema(name: str | None, as_json: bool) -> int:
    """List the schemas of records and tables, or show the columns of one."""
    from gyre.graph.hints import suggest
    from gyre.graph.report import render_schema
    from gyre.records import load_columns, schemas_dir

    names = sorted(path.stem for path in schemas_dir().glob("*.json"))
    if name is None:
        if as_json:
            print_json({known: load_columns(known) for known in names})
        else:
            click.echo("\n".join(names))
        return EXIT_DONE
    versions = [known for known in names if known == name or known.partition(".")[0] == name]
    if not versions:
        raise UserError(f"there is no schema '{name}'", hint=suggest(name, names, what="schemas are"))
    if as_json:
        print_json(load_columns(versions[-1]))
    else:
        click.echo(render_schema(versions[-1], load_columns(versions[-1])), nl=False)
    return EXIT_DONE


class BenchCommand(ExampleCommand):
    """`gyre bench`: its help tells of all benchmarks, or, after a name, what that one measures and the form of its input."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Note which benchmark is named: `--help` is answered before arguments are read."""
        ctx.meta["gyre.bench"] = next((arg for arg in args if arg in _bench_names()), None)
        return super().parse_args(ctx, args)

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the docstrings of the benchmarks' files as they stand; nothing is imported for it."""
        super().format_help_text(ctx, formatter)
        named = ctx.meta.get("gyre.bench")
        lines = _bench_doc(named).splitlines() if named else [line for name in _bench_names() for line in _bench_summary(name)]
        formatter.write("\n" + "".join(f"  {line}".rstrip() + "\n" for line in lines))


@command("gyre bench tree", "gyre bench pack --input lengths.jsonl --json", cls=BenchCommand)
@click.argument("name")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_parse_settings,
    help="Give a setting of the benchmark a value (JSON, else a string); may be repeated.",
)
@click.option("--input", type=click.Path(path_type=Path), help="Measure on data from outside; its form is in `gyre bench NAME --help`.")
@json_option
def bench(name: str, settings: dict[str, str], input: Path | None, as_json: bool) -> int:
    """Run one benchmark; `ok` says whether the limits written in its own file hold."""
    from gyre.graph.hints import suggest

    if name not in _bench_names():
        raise UserError(f"there is no benchmark '{name}'", hint=suggest(name, _bench_names(), what="benchmarks are"))
    module = importlib.import_module(f"gyre.bench.{name}")
    result = module.run({**settings, "input": str(input)} if input else settings)
    if as_json:
        print_json(result)
    else:
        limits = getattr(module, "LIMITS", {})
        texts = {key: str(value) if isinstance(value, bool) else f"{value:.6g}" for key, value in result["figures"].items()}
        width = max(map(len, texts.values()))
        print_columns((key, f"{text:>{width}}  {f'limit {limits[key]}' if key in limits else ''}") for key, text in texts.items())
        click.echo("ok" if result["ok"] else "outside its limits")
    return EXIT_DONE if result["ok"] else EXIT_FAILED


def _bench_names() -> list[str]:
    return sorted(path.stem for path in (Path(__file__).parent / "bench").glob("*.py") if not path.stem.startswith("_"))


def _bench_doc(name: str) -> str:
    source = (Path(__file__).parent / "bench" / f"{name}.py").read_text(encoding="utf-8")
    return ast.get_docstring(ast.parse(source)) or ""


def _bench_summary(name: str) -> list[str]:
    """First line of a benchmark's docstring, and what it says of its input."""
    first, *paragraphs = _bench_doc(name).split("\n\n")
    forms = [line for paragraph in paragraphs if paragraph.startswith("Input:") for line in paragraph.splitlines()]
    return [f"{name:<10} {first.partition(': ')[2] or first}", *(f"    {line}" for line in forms)]


def _from_room(module: str, name: str) -> Any:
    """Import one function of a room; an installation that lacks the room says so, any other import error is shown as it is."""
    parent = module.rpartition(".")[0]
    if importlib.util.find_spec(parent) is None or importlib.util.find_spec(module) is None:
        raise UserError(f"this installation has no {module}", hint="install a version of gyre-rl that has it")
    return getattr(importlib.import_module(module), name)


if __name__ == "__main__":
    main()
