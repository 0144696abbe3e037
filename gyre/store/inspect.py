"""`gyre inspect`: the executions of a run, or one execution with its trees, targets, reward and the log of its harness.

Reads Lance and log together, so it works while the run runs. What it prints is made here in two steps: plain data (which `--json`
prints as it is), then a picture of it.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gyre.errors import UserError
from gyre.store.checks.data import CallNode, RunData, TrajectoryRow, load_execution
from gyre.store.checks.targets import find_path
from gyre.store.query import query, require_run

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.tree import Tree
    from tokenizers import Tokenizer

LOG_TAIL_LINES = 20
"""Lines shown of each log file: enough for a traceback, short enough for a screen."""
LOG_TAIL_BYTES = 2**16
"""Bytes read from the end of a log file: a harness may write gigabytes."""
TEXT_LIMIT = 160
"""Characters shown of a call's input and output on the terminal; `--json` has the whole text."""

PIPE_WIDTH = 140
"""Columns where the output is no terminal, whose width would be taken for 80."""

LIST_SQL = """
    SELECT e.execution_id, e.query_id, e.status, e.attempts, e.dispatch_version AS v_d, s.step_version AS step,
           coalesce(c.calls, 0) AS calls, coalesce(c.tokens, 0) AS tokens, coalesce(t.targets, 0) AS targets, a.score AS reward,
           e.finished_at_s - e.launched_at_s AS seconds, e.reason
    FROM executions e
    LEFT JOIN (SELECT execution_id, attempt, count(*) AS calls, sum(len(input_ids) + len(output_ids))::BIGINT AS tokens
               FROM calls GROUP BY ALL) c ON c.execution_id = e.execution_id AND c.attempt = e.attempts
    LEFT JOIN (SELECT execution_id, sum(len(list_filter(target_mask, lambda m: m)))::BIGINT AS targets
               FROM trajectories GROUP BY ALL) t ON t.execution_id = e.execution_id
    LEFT JOIN (SELECT execution_id, any_value(score) AS score FROM assessments WHERE designated AND valid GROUP BY ALL) a
           ON a.execution_id = e.execution_id
    LEFT JOIN (SELECT group_id, any_value(step_version) AS step_version FROM consumption GROUP BY ALL) s ON s.group_id = e.group_id
    ORDER BY e.group_index, e.execution_id
"""


def inspect(run: Path | str, execution_id: str | None = None, *, as_json: bool = False) -> None:
    """Print the executions of a run, or one of them.

    Raises:
        UserError: there is no such run or execution.
    """
    run_dir = require_run(run)
    found = list_executions(run_dir) if execution_id is None else describe_execution(run_dir, execution_id)
    if as_json:
        # JSON has no NaN, which a broken run may hold; it becomes null.
        plain = json.loads(json.dumps(found, default=str), parse_constant=lambda _: None)
        print(json.dumps(plain, indent=2))
        return
    from rich.console import Console

    picture = render_executions(found) if isinstance(found, list) else render_execution(found)
    Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else PIPE_WIDTH).print(picture)


def list_executions(run_dir: Path) -> list[dict[str, Any]]:
    """One row per execution, in the order of admission."""
    return query(run_dir, LIST_SQL).to_pylist()


def describe_execution(run_dir: Path, execution_id: str) -> dict[str, Any]:
    """Everything the store has of one execution.

    Raises:
        UserError: the run has no such execution.
    """
    data = load_execution(run_dir, execution_id)
    if execution_id not in data.execution:
        raise UserError(f"{run_dir} has no execution {execution_id!r}", hint=f"`gyre inspect {run_dir}` lists them")
    execution = data.execution[execution_id]
    tokenizer = find_tokenizer(run_dir)
    targets = _targets_by_node(data)
    return {
        "execution": dict(execution),
        "reward": data.rewards[execution_id],
        "step": data.consumed_in.get(execution["group_id"]),
        "assessments": [dict(row) for row in data.assessments],
        "attempts": [
            {"attempt": attempt, "nodes": [_node(node, targets[attempt, node.row["node_id"]], tokenizer) for node in nodes]}
            for (_, attempt), nodes in sorted(data.trees.items())
        ],
        "trajectories": [_trajectory(data, trajectory) for trajectory in data.trajectories],
        "logs": read_logs(run_dir, execution_id),
    }


def find_tokenizer(run_dir: Path) -> Tokenizer | None:
    """The tokenizer of the run's newest checkpoint, to show tokens as text; None where there is none."""
    folders = [path.parent for path in run_dir.glob("checkpoints/*/model/tokenizer.json") if path.parent.parent.name.isdigit()]
    if not folders:
        return None
    from tokenizers import Tokenizer

    newest = max(folders, key=lambda folder: int(folder.parent.name))
    return Tokenizer.from_file(str(newest / "tokenizer.json"))


def read_logs(run_dir: Path, execution_id: str) -> dict[str, str]:
    """The last lines of each log file of an execution, by its path within the run.

    A link is not followed: tested code may write beside its verifier's log, and could have made it.
    """
    paths = sorted(path for path in (run_dir / "logs" / execution_id).rglob("*") if path.is_file() and not path.is_symlink())
    return {str(path.relative_to(run_dir)): _tail(path) for path in paths}


def _tail(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - LOG_TAIL_BYTES, 0))
        lines = file.read().decode("utf-8", errors="replace").splitlines()
    return "\n".join(lines[-LOG_TAIL_LINES:])


def _targets_by_node(data: RunData) -> Mapping[tuple[int, int], int]:
    """Count the targets of each node, over all trajectories, by attempt and node."""
    counts: dict[tuple[int, int], int] = defaultdict(int)
    for trajectory in data.trajectories:
        attempt, position = trajectory.row["attempt"], 0
        for node in find_path(data.trees.get((trajectory.row["execution_id"], attempt), ()), trajectory.row["leaf_node_id"]):
            start = position + len(node.input_ids)
            position = start + len(node.output_ids)
            counts[attempt, node.row["node_id"]] += int(trajectory.target_mask[start:position].sum())
    return counts


def _node(node: CallNode, num_targets: int, tokenizer: Tokenizer | None) -> dict[str, Any]:
    names = ("node_id", "parent_node_id", "role", "provenance", "finish_reason", "messages", "trainable", "weight_versions")
    described = {name: node.row[name] for name in names} | {
        "input_tokens": len(node.input_ids),
        "output_tokens": len(node.output_ids),
        "targets": num_targets,
        "logprob_mean": float(node.logprobs.mean()) if len(node.logprobs) else None,
        "seconds": node.row["finished_at_s"] - node.row["started_at_s"],
    }
    if tokenizer is not None:
        described["input_text"] = tokenizer.decode(node.input_ids.tolist(), skip_special_tokens=False)
        described["output_text"] = tokenizer.decode(node.output_ids.tolist(), skip_special_tokens=False)
    return described


def _trajectory(data: RunData, trajectory: TrajectoryRow) -> dict[str, Any]:
    row = trajectory.row
    path = find_path(data.trees.get((row["execution_id"], row["attempt"]), ()), row["leaf_node_id"])
    return {
        "trajectory_id": row["trajectory_id"],
        "role": row["role"],
        "path": [node.row["node_id"] for node in path],
        "tokens": len(trajectory.input_ids),
        "targets": int(np.count_nonzero(trajectory.target_mask)),
        "advantage": row["advantage"],
        "step_version": row["step_version"],
    }


def render_executions(rows: list[dict[str, Any]]) -> RenderableType:
    """Draw the list of executions."""
    from rich.table import Table

    columns = ("execution_id", "query_id", "v_d", "status", "attempts", "calls", "tokens", "targets", "reward", "step", "seconds")
    table = Table(box=None, header_style="bold", pad_edge=False, title=f"{len(rows)} executions", title_justify="left")
    for name in columns:
        table.add_column(name, no_wrap=name in ("execution_id", "status"), overflow="ellipsis" if name == "query_id" else "fold")
    for row in rows:
        table.add_row(*(_cell(row[name]) for name in columns))
    return table


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def render_execution(found: Mapping[str, Any]) -> RenderableType:
    """Draw one execution: its facts, a tree per attempt, what was trained, its logs."""
    from rich.console import Group
    from rich.text import Text

    execution = found["execution"]
    reward = "none" if found["reward"] is None else f"{found['reward']:g}"
    head = Text(f"{execution['execution_id']}  {execution['query_id']}  {execution['status']}", style="bold")
    facts = [f"reward {reward}", f"v_d {execution['dispatch_version']}", f"attempts {execution['attempts']}", execution["reason"]]
    if found["step"] is not None:
        facts.insert(1, f"trained in step {found['step']}")
    parts: list[RenderableType] = [head, Text("  ".join(facts))]
    for row in found["assessments"]:
        mark = "designated" if row["designated"] else "not used"
        parts.append(Text(f"assessment try {row['try']}: {_cell(row['score'])} ({mark}; {row['reason']})"))
    parts += [_draw_tree(attempt) for attempt in found["attempts"]]
    for row in found["trajectories"]:
        path = "-".join(map(str, row["path"]))
        parts.append(
            Text(f"trajectory {row['trajectory_id']}: {row['role']}, nodes {path}, {row['tokens']} tokens, {row['targets']} targets, ")
            + Text(f"advantage {row['advantage']:+.3f}")
        )
    for name, tail in found["logs"].items():
        parts += [Text(f"\n{name}", style="bold"), Text(tail or "(empty)", style="dim")]
    return Group(*parts)


def _draw_tree(attempt: Mapping[str, Any]) -> Tree:
    from rich.text import Text
    from rich.tree import Tree

    root = Tree(Text(f"attempt {attempt['attempt']}: {len(attempt['nodes'])} calls"))
    branches: dict[int | None, Tree] = {None: root}
    for node in attempt["nodes"]:
        versions = ",".join(str(span["version"]) for span in node["weight_versions"]) or "-"
        line = Text(f"{node['node_id']} {node['role']}", style="bold" if node["targets"] else "")
        line += Text(
            f"  +{node['input_tokens']} in, {node['output_tokens']} out, {node['targets']} targets  {node['finish_reason']}  v{versions}"
        )
        for name, style in (("input_text", "dim"), ("output_text", "cyan")):
            if name in node:
                line += Text("\n" + _shortened(node[name]), style=style)
        branches[node["node_id"]] = branches.get(node["parent_node_id"], root).add(line)
    return root


def _shortened(text: str) -> str:
    flat = text.replace("\n", "⏎")
    return flat if len(flat) <= TEXT_LIMIT else "…" + flat[-TEXT_LIMIT:]
