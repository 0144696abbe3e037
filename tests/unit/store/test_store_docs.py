"""Every block of docs/query.md runs against a small run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.tiny_run import make_tiny_run

from gyre.store.columns import TABLES
from gyre.store.query import query

PAGE = (Path(__file__).parents[3] / "docs" / "query.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs")
    make_tiny_run(folder / "runs" / "first")
    return folder


@pytest.mark.parametrize("code", blocks("python"))
def test_a_python_block_runs(code: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(place)
    exec(compile(code, "docs/query.md", "exec"), {"__name__": "docs"})
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("sql", [*blocks("sql"), *re.findall(r'gyre query runs/first "([^"]+)"', PAGE)])
def test_a_query_finds_something(sql: str, place: Path) -> None:
    assert query(place / "runs" / "first", sql).num_rows > 0


def test_every_table_is_named() -> None:
    assert [name for name in TABLES if f"| `{name}` |" not in PAGE] == []
