"""The pages say what the code does: examples are checked and run, commands parse, everything is named, the reference is current.

Conventions of the pages: a ```jsonnet block has a title, the file it stands in; `….jsonnet` is a complete pipeline and is checked,
`harness/….libsonnet` is a harness profile. A ```python block runs; with a title it is also a file that later blocks import. Blocks
of a page share a folder that holds what is in `pipelines/`, and a small run at `runs/first`.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import click
import pytest
import yaml
from support.tiny_run import make_tiny_run

from gyre.cli import cli
from gyre.graph.jsonnet import evaluate_file
from gyre.graph.plan import plan_pipeline
from gyre.graph.registry import list_operators
from gyre.graph.render import render_mermaid
from gyre.graph.spec import load_spec
from gyre.graph.typed import build_graph
from gyre.records import schemas_dir
from gyre.rollout.profile import find_profile_problems

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
WRITTEN = sorted(path for path in DOCS.glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *WRITTEN]
_BLOCK = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_TITLE = re.compile(r'title="([^"]+)"')


class Block(NamedTuple):
    """One fenced block of a page."""

    language: str
    title: str
    text: str
    place: str


def blocks(page: Path) -> Iterator[Block]:
    source = page.read_text(encoding="utf-8")
    for found in _BLOCK.finditer(source):
        title = _TITLE.search(found[2])
        line = source[: found.start()].count("\n") + 1
        yield Block(found[1], title[1] if title else "", found[3], f"{page.name}:{line}")


def page_name(page: Path) -> str:
    return page.name


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the shipped pipelines and a small run; modules that its blocks bring are forgotten afterwards."""
    pipelines = ROOT / "pipelines"
    shutil.copytree(pipelines / "harness", tmp_path / "harness")
    shutil.copy(pipelines / "quickstart.jsonnet", tmp_path)
    for name in ("tasks", "models"):
        (tmp_path / name).symlink_to(pipelines / name)
    make_tiny_run(tmp_path / "runs" / "first")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.parametrize("page", WRITTEN, ids=page_name)
def test_the_examples_of_a_page_work(page: Path, place: Path) -> None:
    for block in blocks(page):
        if block.title:
            path = place / block.title
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
        if block.language == "jsonnet":
            assert block.title.endswith((".jsonnet", ".libsonnet")), f"{block.place}: say in a title which file this is"
            check_jsonnet(place / block.title, block.place)
        elif block.language == "python":
            exec(compile(block.text, block.place, "exec"), {"__name__": "docs"})


def check_jsonnet(path: Path, place: str) -> None:
    if path.suffix == ".jsonnet":
        plan_pipeline(build_graph(load_spec(path)))
        return
    profile, problems = evaluate_file(path, {})
    assert [*problems, *find_profile_problems(profile, base_dir=path.parent)] == [], place


def command_lines(page: Path) -> Iterator[tuple[str, str]]:
    for block in blocks(page):
        if block.language == "console":
            yield from ((block.place, line[2:]) for line in block.text.splitlines() if line.startswith("$ "))


@pytest.mark.parametrize("page", [*PAGES, DOCS / "reference" / "commands.md"], ids=page_name)
def test_the_commands_of_a_page_parse(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for place, line in command_lines(page):
        words = [word for word in shlex.split(line) if not re.match(r"[A-Z_]+=", word)]
        if words[0] == "make":
            assert set(words[1:]) <= targets, f"{place}: {line}"
        elif words[0] == "gyre":
            try:
                cli.commands[words[1]].make_context(words[1], words[2:])
            except (KeyError, click.UsageError) as error:
                pytest.fail(f"{place}: {line}: {error}")
        else:
            assert any((ROOT / word).exists() for word in words if word.endswith(".py")), f"{place}: {line}"


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", _BLOCK.sub("", page.read_text(encoding="utf-8"))):
        if "://" not in target and not target.startswith("#"):
            assert (page.parent / target.partition("#")[0]).exists(), f"{page.name} links {target}"


def test_every_operator_and_schema_is_named() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in DOCS.rglob("*.md"))
    names = [*list_operators(), *(path.stem for path in schemas_dir().glob("*.json"))]
    assert [name for name in names if name not in text] == []
    concepts = (DOCS / "concepts.md").read_text(encoding="utf-8")
    assert [name for name in list_operators() if "/" not in name and f"`{name}`" not in concepts] == []


def test_the_navigation_has_every_page() -> None:
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    assert sorted(leaves(nav)) == sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))


def leaves(entry: object) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    for child in entry.values() if isinstance(entry, dict) else entry if isinstance(entry, list) else ():
        yield from leaves(child)


def test_the_reference_is_current() -> None:
    pages = load_script("make_reference").render_pages()
    kept = {path.name: path.read_text(encoding="utf-8") for path in (DOCS / "reference").glob("*.md")}
    stale = [name for name in pages.keys() | kept.keys() if pages.get(name) != kept.get(name)]
    assert stale == [], "run python scripts/make_reference.py"


def load_script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_readme_draws_the_graph_of_the_quickstart() -> None:
    drawn = next(block.text for block in blocks(ROOT / "README.md") if block.language == "mermaid")
    assert drawn == render_mermaid(plan_pipeline(build_graph(load_spec(ROOT / "pipelines" / "quickstart.jsonnet"))))


def test_the_problems_shown_are_those_of_the_golden_file() -> None:
    golden = (ROOT / "tests" / "golden" / "errors" / "five_mistakes.txt").read_text(encoding="utf-8")
    assert golden in [block.text for block in blocks(DOCS / "write-a-pipeline.md")]


def test_the_settings_of_the_quickstart_in_the_pages_are_its_own() -> None:
    source = (ROOT / "pipelines" / "quickstart.jsonnet").read_text(encoding="utf-8")
    lines = [line for page in PAGES for _, line in command_lines(page) if "quickstart.jsonnet" in line]
    wanted = {name for line in lines for name in re.findall(r"--set (\w+)=", line)}
    assert [name for name in wanted if not re.search(rf"^  {name}=", source, re.MULTILINE)] == []
