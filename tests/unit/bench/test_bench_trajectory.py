"""The benchmarks of the trajectory processor, run tiny: their figures' keys and what must be right at any size; never how fast."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gyre.bench import pack, retention, select, tree
from gyre.bench import proxy as proxy_bench
from gyre.bench._conversations import DriftingSampler, make_calls
from gyre.bench._measuring import Limit, outcome, percentile, shipped_model_dir
from gyre.cli import run_cli
from gyre.errors import SpecError, UserError
from gyre.rollout.renderer import Renderer


def write_lines(path: Path, *values: Any) -> str:
    path.write_text("".join(json.dumps(value) + "\n" for value in values), encoding="utf-8")
    return str(path)


def test_tree_holds_every_unique_token_once() -> None:
    result = tree.run({"rounds": "1", "scale": "0.02"})
    figures = result["figures"]
    assert {"held_over_unique", "insert_p99_ms", "last_over_first"} <= figures.keys()
    assert result["name"] == "tree"
    assert (figures["calls"], figures["held_over_unique"]) == (636, 1.0)
    assert figures["cumulative_tokens"] > 40 * figures["unique_tokens"]


def test_tree_reads_calls_from_outside(tmp_path: Path) -> None:
    system, task = ["sys", [1, 2, 3, 4]], ["task", 5]
    path = write_lines(
        tmp_path / "calls.jsonl",
        {"messages": [system, task], "answer": ["a", 2]},
        {"messages": [system, task, ["a", 2], ["result", 3]], "answer": ["b", 2]},
        {"messages": [system, ["other", 5]], "answer": ["c", [7, 8]], "role": "sub-agent"},
    )
    figures = tree.run({"input": path, "rounds": "1"})["figures"]
    assert (figures["calls"], figures["cumulative_tokens"], figures["unique_tokens"]) == (3, 9 + 14 + 9, 9 + 2 + 3 + 2 + 5 + 2)
    assert figures["held_over_unique"] == 1.0


@pytest.mark.parametrize(
    "line",
    [
        [1, 2],
        {"messages": [["a", -1]], "answer": ["b", 1]},
        {"messages": [["a", True]], "answer": ["b", 1]},
        {"messages": [], "answer": ["b", 1]},
        {"messages": [["a", 1]], "answer": ["b", 1], "role": "king"},
    ],
)
def test_tree_refuses_what_is_no_call(tmp_path: Path, line: Any) -> None:
    with pytest.raises(UserError, match=r"calls\.jsonl"):
        tree.run({"input": write_lines(tmp_path / "calls.jsonl", line)})


def test_pack_loses_nothing_and_keeps_the_cap() -> None:
    figures = pack.run({"rows": "64", "seeds": "3"})["figures"]
    assert {"bins_over_bound", "over_cap", "fill"} <= figures.keys()
    assert (figures["over_cap"], figures["empty_bins"], figures["rows_lost"]) == (0, 0, 0)
    assert 0 < figures["fill"] <= 1


@pytest.mark.parametrize(
    ("lines", "bins_over_bound", "fill"),
    [
        ([[6, 4, 5, 5]], 2 / 3, 1.0),
        ([{"lengths": [6, 4, 5, 5], "cap": 20}], 1 / 2, 1.0),
        ([6, 4, 5, 5], 2 / 3, 1.0),
        # Two bins by their tokens, plus one per cent rounded up; three rows over half the cap need all of them.
        ([[6, 6, 6]], 1.0, 0.6),
        # An oversized row stands alone and counts neither for nor against.
        ([[50, 5, 5]], 0.5, 1.0),
    ],
)
def test_pack_reads_batches_from_outside(tmp_path: Path, lines: list[Any], bins_over_bound: float, fill: float) -> None:
    figures = pack.run({"input": write_lines(tmp_path / "lengths.jsonl", *lines), "cap": "10"})["figures"]
    assert (figures["bins_over_bound"], figures["fill"]) == pytest.approx((bins_over_bound, fill))
    assert figures["over_cap"] == 0


@pytest.mark.parametrize("line", ["x", {"cap": 3}, [0], [1.5], -4])
def test_pack_refuses_what_is_no_batch(tmp_path: Path, line: Any) -> None:
    with pytest.raises(UserError, match=r"lengths\.jsonl:1"):
        pack.run({"input": write_lines(tmp_path / "lengths.jsonl", line)})


def test_select_has_the_published_counts() -> None:
    figures = select.run({"seeds": "2", "scale": "0.02"})["figures"]
    assert figures["expanded_over_unique"] == 1716 / 1347
    assert 0 < figures["drawn_over_expanded_tokens"] < 1 < figures["expanded_over_unique_tokens"]


def test_retention_keeps_everything_where_a_verbatim_match_does_not() -> None:
    result = retention.run({"turns": "14", "sub_agent_turns": "3", "drifts": "[0, 1]", "rewritings": "[0, 1]"})
    figures = result["figures"]
    assert (figures["min_kept"], figures["max_paths_per_lineage"], figures["exact_contexts"]) == (1.0, 1, True)
    assert (figures["verbatim_min_kept"] < 0.9, figures["verbatim_max_paths"] > 1) == (True, True)
    assert result["ok"]


def test_retention_follows_histories_from_outside(tmp_path: Path) -> None:
    model_dir = shipped_model_dir()
    calls = list(make_calls(model_dir, turns=6, sub_agent_turns=1, drift=0.5, rewriting=1.0, seed=3))
    lines = [{"lineage": c.lineage, "body": c.body, "answer": c.answer, "output_tokens": len(c.output_ids)} for c in calls]
    figures = retention.run({"input": write_lines(tmp_path / "same.jsonl", *lines)})["figures"]
    assert (figures["min_kept"], figures["max_paths_per_lineage"]) == (1.0, 1)
    # A harness that edits what it was given has really begun another history.
    edited = json.loads(json.dumps(lines[-1]))
    edited["body"]["messages"][1]["content"] = "another task"
    result = retention.run({"input": write_lines(tmp_path / "edited.jsonl", *lines[:-1], edited)})
    assert (result["figures"]["max_paths_per_lineage"], result["ok"]) == (2, False)
    assert result["figures"]["min_kept"] < 1


def test_retention_names_a_line_that_is_no_call(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "calls.jsonl", {"body": {}, "answer": {"role": "assistant"}})
    with pytest.raises(UserError, match=r"calls\.jsonl:1"):
        retention.run({"input": path})
    path = write_lines(tmp_path / "calls.jsonl", {"body": {}, "answer": {"role": "assistant"}, "output_tokens": 2})
    with pytest.raises(UserError, match="messages must be a list"):
        retention.run({"input": path})


def test_drifted_tokens_have_the_same_text_and_are_not_the_tokenizers() -> None:
    renderer = Renderer(shipped_model_dir())
    text = "read the failing test and change parse_row"
    for drift in (0.0, 1.0):
        ids = DriftingSampler(shipped_model_dir(), np.random.default_rng(0), drift=drift).sample(text)
        assert renderer.answer_text(ids) == text
        assert (ids[:-1] == renderer.encode(text)) == (drift == 0)


def test_proxy_encodes_new_tokens_only() -> None:
    settings = {"context_tokens": "4000", "turn_tokens": "600", "executions": "3", "turns": "2", "points": "2"}
    figures = proxy_bench.run(settings)["figures"]
    assert {"encoded_over_new", "speedup_over_rerender", "p50_ms", "p99_ms", "calls_per_s", "durable_ms"} <= figures.keys()
    assert 1.0 <= figures["encoded_over_new"] < 1.01
    assert figures["context_tokens"] >= 4000


def test_settings_of_a_benchmark_are_checked() -> None:
    with pytest.raises(SpecError, match="no setting 'row'"):
        pack.run({"row": "3"})
    with pytest.raises(SpecError, match="must be a whole number"):
        pack.run({"rows": "many"})


def test_limits_decide_what_is_ok() -> None:
    limits = {"a": Limit(at_most=1.5), "b": Limit(at_least=1)}
    assert outcome("x", {"a": 1.5, "b": True, "free": 9.0}, limits)["ok"]
    assert not outcome("x", {"a": 1.6, "b": True}, limits)["ok"]
    assert not outcome("x", {"a": float("nan"), "b": True}, limits)["ok"]
    assert str(Limit(at_least=1, at_most=2)) == ">= 1, <= 2"
    assert [percentile([3.0, 1.0, 2.0], share) for share in (0.01, 0.5, 0.99)] == [1.0, 2.0, 3.0]


def test_the_command_line_tells_forms_prints_tables_and_exits_by_the_limits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["bench", "--help"], ["bench", "pack", "--help"]):
        assert run_cli(arguments) == 0
        assert "one batch per line" in capsys.readouterr().out
    lengths = write_lines(tmp_path / "lengths.jsonl", [5, 5])
    assert run_cli(["bench", "pack", "--input", lengths, "--set", "cap=10"]) == 0
    assert re.search(r"over_cap +0  limit <= 0\n", capsys.readouterr().out)
    spread = write_lines(tmp_path / "spread.jsonl", [6] * 9)
    assert run_cli(["bench", "pack", "--input", spread, "--set", "cap=10", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["name"], document["ok"]) == ("pack", False)
    assert run_cli(["bench", "select", "--input", lengths]) == 2
    assert run_cli(["bench", "pack", "--input", str(tmp_path / "nowhere")]) == 2
