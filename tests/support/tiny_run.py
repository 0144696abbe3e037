"""A tiny synthetic run with everything a real one has: `make_tiny_run(path)`.

Three steps of two groups of three executions, burst length 2, three cells. Each execution's tree branches into a sub-agent; among
the executions are a timeout with partial credit, an unresolved one, a placeholder and one that was launched twice. All tables agree
with each other, so `gyre verify` finds nothing; log-probabilities are those of `fake_recompute`, so no model is needed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gyre.store.run_store import RunStore
from gyre.trajectory.advantage import group_advantages
from gyre.trajectory.sampling import materialize, select_trajectories
from gyre.trajectory.tree import TrajectoryTree

STEPS, GROUPS_PER_STEP, GROUP_SIZE, MU, J_MAX, SEED = 3, 2, 3, 2, 2, 7
START_S = 1_760_000_000.0
"""When the run was started."""
STEP_S = 100.0
"""Seconds from one step to the next."""


def fake_logprob(version: int, token: int, position: int) -> np.float32:
    """What the policy of `version` would say of a token: any fixed function will do."""
    return np.float32(-0.1 - ((7 * token + 3 * position + version) % 13) / 10)


def fake_recompute(model_dir: Path, trajectories: Sequence[tuple[np.ndarray, np.ndarray]], temperature: float) -> list[np.ndarray]:
    """Stand in for `gyre.training.recompute.recompute_logprobs`; the version is the name of the checkpoint's folder."""
    version = int(model_dir.parent.name)
    return [np.array([fake_logprob(version, int(ids[t]), int(t)) for t in positions], np.float32) for ids, positions in trajectories]


def dispatch_version(group_index: int) -> int:
    """v_d of a group: q + mu * B = 5 groups at the start, the sixth after the publication of version 2."""
    return 0 if group_index < 5 else 2


def sampled_version(group_index: int) -> int:
    """Version that served a group: published versions are 0, 2 and 3."""
    return 0 if group_index < 4 else 2


def score_of(group_index: int, number: int) -> float | None:
    """Score of an execution; None: no evaluator answer was ever valid."""
    if (group_index, number) == (1, 2):
        return None
    if group_index == 3:
        return 0.5
    return [0.0, 0.25, 1.0][(group_index + number) % 3]


def make_tree(execution_id: str, attempt: int, version: int, *, is_cut: bool = False) -> TrajectoryTree:
    """Two main calls, and a sub-agent's call below the first of them, which `is_cut` by a publication after its first token."""
    tree = TrajectoryTree(execution_id, attempt)
    salt = sum(map(ord, execution_id)) % 50
    main = _call(tree, None, [1, 2, 3, 4 + salt], [10, 11, 12 + salt], version, "main", ["system", "user", "a"], is_cut=is_cut)
    _call(tree, main, [20, 21], [22 + salt, 23], version, "main", ["tool", "b"])
    _call(tree, main, [30], [31, 32 + salt], version, "sub-agent", ["task", "c"])
    return tree


def _call(
    tree: TrajectoryTree,
    parent: int | None,
    input_ids: list[int],
    output_ids: list[int],
    version: int,
    role: str,
    digests: list[str],
    *,
    is_cut: bool = False,
) -> int:
    first = len(tree.context(parent)) + len(input_ids)
    spans = [(0, 0, 1), (version, 1, len(output_ids))] if is_cut else [(version, 0, len(output_ids))]
    versions = [v for v, start, end in spans for _ in range(start, end)]
    logprobs = [fake_logprob(v, token, first + i) for i, (v, token) in enumerate(zip(versions, output_ids, strict=True))]
    began_s = START_S + 10.0 + len(tree)
    return tree.add(
        parent, digests, input_ids, output_ids, logprobs, spans, role=role, finish_reason="stop", started_at_s=began_s,
        finished_at_s=began_s + 0.5, sampling='{"temperature": 1.0}',
    )  # fmt: skip


def make_tiny_run(path: Path, *, is_folded: bool = True, trajectories: str = "full") -> Path:
    """Write the run to `path` and return it; with `is_folded` false its rows are still in the log; `trajectories` as in a pipeline."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "spec.json").write_text(json.dumps(_spec(trajectories)), encoding="utf-8")
    for version in range(STEPS + 1):
        (path / "checkpoints" / str(version) / "model").mkdir(parents=True)
    store = RunStore(path, writer="control")
    for group_index in range(STEPS * GROUPS_PER_STEP):
        _write_group(store, group_index)
    _write_steps(store)
    _write_publications(store)
    _write_events(store)
    store.fold() if is_folded else store.close()
    return path


def _spec(trajectories: str) -> dict[str, Any]:
    dispatch = {"phi": 0.5, "mu": MU, "groups_per_step": GROUPS_PER_STEP, "group_size": GROUP_SIZE, "steps": STEPS, "seed": SEED}
    settings = {
        "dispatch": dispatch | {"horizon": "closed", "oversample": 0},
        "rollout": {"temperature": 1.0},
        "select": {"j_max": J_MAX, "role_order": None, "normalize_std": True},
        "train": {},
        "elastic": {"policy": "elastic"},
    }
    names = {
        "dispatch": "dispatch",
        "rollout": "harness_proxy",
        "select": "tree_select",
        "train": "train_cell",
        "elastic": "elastic",
    }
    resources = {"store": {"kind": "lance", "trajectories": trajectories}}
    ops = {node: {"op": name, "from": {}, "args": {}} for node, name in names.items()}
    cells = {"count": 3, "concurrency": 5, "standalone": 0, "standalone_concurrency": None}
    return {
        "pipeline": {"gyre": "pipeline.v1", "name": "tiny", "resources": resources, "ops": ops},
        "resources": {"cells": cells},
        "settings": settings,
        "seed": SEED,
    }


def _write_group(store: RunStore, group_index: int) -> None:
    group_id, step_version = f"g{group_index:06d}", group_index // GROUPS_PER_STEP + 1
    names = [f"{group_id}-{number:02d}" for number in range(GROUP_SIZE)]
    attempts = {name: 2 if name == "g000002-01" else 1 for name in names}
    is_placeholder = {name: name == "g000004-00" for name in names}
    dispatched_at_s = START_S + (0.0 if dispatch_version(group_index) == 0 else 2.5 * STEP_S)
    for number, name in enumerate(names):
        queued = _execution(name, group_index, dispatched_at_s)
        store.append("executions", [queued])
        store.append("executions", [_ended(queued, name, attempts[name], number, is_placeholder[name])])
        score = 0.0 if is_placeholder[name] else score_of(group_index, number)
        store.append("assessments", [_assessment(name, attempts[name], score, dispatched_at_s, is_placeholder[name])])
    rewards = [0.0 if is_placeholder[name] else score_of(group_index, number) for number, name in enumerate(names)]
    for name, reward, advantage in zip(names, rewards, group_advantages(rewards), strict=True):
        for attempt in range(1, attempts[name] + 1):
            if is_placeholder[name]:
                continue
            tree = make_tree(name, attempt, sampled_version(group_index), is_cut=group_index == 4)
            store.append_table("calls", tree.to_table())
            if reward is None or attempt < attempts[name]:
                continue
            drawn = select_trajectories(tree, j_max=J_MAX, seed=SEED, execution_id=name)
            rows = materialize(tree, drawn, group_id=group_id, advantage=advantage).to_pylist()
            dropped = ("execution_targets", "num_trajectories", "weight_versions")
            store.append("trajectories", [{k: v for k, v in r.items() if k not in dropped} | {"step_version": step_version} for r in rows])
    unresolved = sum(reward is None for reward in rewards)
    row = {
        "group_id": group_id, "step_version": step_version, "v_d": dispatch_version(group_index), "v_t": step_version - 1,
        "valid": GROUP_SIZE - unresolved, "unresolved": unresolved,
        "placeholders": sum(is_placeholder.values()), "cancelled": 0,
    }  # fmt: skip
    store.append("consumption", [row])


def _execution(name: str, group_index: int, dispatched_at_s: float) -> dict[str, Any]:
    return {
        "execution_id": name, "group_id": name[:7], "query_id": f"kata-{group_index % 4}",
        "dispatch_version": dispatch_version(group_index), "status": "queued", "dispatched_at_s": dispatched_at_s,
        "launched_at_s": None, "finished_at_s": None, "attempts": 0, "group_index": group_index, "workspace": "", "reason": "",
    }  # fmt: skip


def _ended(queued: dict[str, Any], name: str, attempts: int, number: int, is_placeholder: bool) -> dict[str, Any]:
    if is_placeholder:
        return queued | {"status": "failed", "finished_at_s": queued["dispatched_at_s"] + 5.0, "reason": "the workspace never started"}
    return queued | {
        "status": "timeout" if number == 1 else "completed",
        "launched_at_s": queued["dispatched_at_s"] + 5.0,
        "finished_at_s": queued["dispatched_at_s"] + 20.0 + number,
        "attempts": attempts,
        "workspace": f"workspaces/{name}/{attempts}",
        "reason": "the harness was stopped at its deadline" if number == 1 else "exit code 0",
    }


def _assessment(name: str, attempt: int, score: float | None, dispatched_at_s: float, is_placeholder: bool) -> dict[str, Any]:
    reason = "the evaluator never gave a score" if score is None else "placeholder" if is_placeholder else "reward.txt"
    return {
        "execution_id": name, "attempt": attempt, "designated": True, "valid": score is not None, "score": score, "reason": reason,
        "artifact_version": "1", "artifact_ref": f"workspaces/{name}/{attempt}", "branch": "", "try": 1,
        "created_at_s": dispatched_at_s + 30.0,
    }  # fmt: skip


def _write_steps(store: RunStore) -> None:
    trajectories = store.read("trajectories", columns=["step_version", "target_mask", "advantage"]).to_pylist()
    scores = store.read("assessments", where="designated and valid").to_pylist()
    for version in range(1, STEPS + 1):
        indices = range((version - 1) * GROUPS_PER_STEP, version * GROUPS_PER_STEP)
        group_ids = [f"g{index:06d}" for index in indices]
        rewards = [row["score"] for row in scores if row["execution_id"][:7] in group_ids]
        row = {
            "version": version, "group_ids": group_ids, "executions": len(rewards),
            "target_tokens": sum(sum(t["target_mask"]) for t in trajectories if t["step_version"] == version and t["advantage"]),
            "loss": 0.1 * version, "grad_norm": 1.0, "reward_mean": float(np.mean(rewards)),
            "staleness_mean": float(np.mean([version - 1 - dispatch_version(index) for index in indices])), "duration_s": 40.0,
            "cells": [0, 1] if version == 2 else [0], "clipped": 0, "time_s": START_S + version * STEP_S,
        }  # fmt: skip
        store.append("steps", [row])


def _write_publications(store: RunStore) -> None:
    for version in (2, 3):
        for number in range(3):
            time_s = START_S + version * STEP_S + 10.0 + number
            store.append("publications", [{"version": version, "time_s": time_s, "engine": f"cell{number}", "confirmed": True}])


def _write_events(store: RunStore) -> None:
    listed: list[tuple[float, str, int, dict[str, Any]]] = [
        (0.0, "dispatched", -1, {"num_groups": 5, "first_group_index": 0, "version": 0}),
        (50.0, "to_training", 0, {"reason": "supply 2/2, waterlevel 6 <= 8"}),
        (100.0, "updated", 0, {"version": 1}),
        (150.0, "to_training", 1, {"reason": "waterlevel 3 <= 4"}),
        (160.0, "joined", 1, {"version": 2}),
        (199.0, "window_closed", -1, {"version": 2}),
        (200.0, "updated", 0, {"version": 2}),
        (201.0, "to_rollout", 1, {}),
        (215.0, "published", -1, {"version": 2}),
        (216.0, "dispatched", -1, {"num_groups": 1, "first_group_index": 5, "version": 2}),
        (217.0, "core_retained", 0, {}),
        (300.0, "updated", 0, {"version": 3}),
        (314.0, "published", -1, {"version": 3}),
        (315.0, "to_rollout", 0, {}),
    ]
    rows = [
        {"time_s": START_S + after_s, "kind": kind, "cell": cell, "detail": json.dumps(detail)} for after_s, kind, cell, detail in listed
    ]
    store.append("events", rows)
