"""Runs a real client on a task through the real proxy against a scripted engine, and keeps what each of them saw.

`await play('codex', 'colours', folder)` starts the client in a sandbox from which only the proxy can be reached, scores its workspace
and reads its calls back from the store. The checks below hold for every client and every play.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from support.gated_sandbox import GatedSandbox

from gyre.graph.jsonnet import evaluate_file
from gyre.rollout.engines.protocol import GenerateRequest, OnUpdate
from gyre.rollout.engines.scripted import ScriptedEngine
from gyre.rollout.engines.server import serve_engine
from gyre.rollout.generation import SamplingRules
from gyre.rollout.harness import HarnessResult, HarnessRunner
from gyre.rollout.profile import HarnessProfile
from gyre.rollout.proxy import Proxy
from gyre.rollout.sandbox import open_sandbox
from gyre.rollout.tasks import read_task_folder
from gyre.rollout.verifier import Verdict, verify_workspace
from gyre.store.run_store import RunStore
from gyre.trajectory.audit import check_contexts, check_disjoint_targets, check_logprobs, check_provenance, read_trajectories, token_owners
from gyre.trajectory.roles import RoleRules
from gyre.trajectory.sampling import ROLE_ORDER, materialize, select_trajectories
from gyre.trajectory.tree import TrajectoryTree

PIPELINES = Path(__file__).parents[2] / "pipelines"
EXECUTION_ID = "g000000-00"


class RecordingEngine(ScriptedEngine):
    """A scripted engine that keeps the tokens of every request."""

    def __init__(self, script: Path, **options: Any) -> None:
        super().__init__(script, **options)
        self.received: list[list[int]] = []

    def submit(self, request: GenerateRequest, on_update: OnUpdate) -> None:
        """Keep and queue a request."""
        self.received.append([int(token) for token in request.input_ids])
        super().submit(request, on_update)


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """What came of one execution."""

    result: HarnessResult
    """How the client ended."""
    verdict: Verdict
    """What the task's tests say of its workspace."""
    tree: TrajectoryTree
    """Its calls, read from the store."""
    texts: list[str]
    """What was sampled in each call."""
    received: list[list[int]]
    """Tokens of each request to the engine, in the order of arrival."""
    attempts: list[str]
    """Addresses and names that the client tried beside the proxy."""
    out: str
    """The client's standard output."""
    err: str
    """Its standard error."""
    seconds: float
    """How long the client ran."""

    def roles(self) -> list[tuple[str, str]]:
        """(speaker by its own mark, role by the profile's rules) of each call, in their order; an unmarked one is a summary's."""
        marks = [re.match(r"\[([\w-]+) \d+\]", text) for text in self.texts]
        return [(mark[1] if mark else "memory", node.role) for mark, node in zip(marks, self.tree.nodes, strict=True)]


async def play(profile_name: str, task_name: str, folder: Path, *, context_limit: int = 200_000, extend: str = "{}") -> Play:
    """Let a client do a task in `folder`; `extend` is Jsonnet that is added to its profile."""
    source = folder / "profile.jsonnet"
    source.write_text(f"(import '{PIPELINES}/harness/{profile_name}.libsonnet') + {extend}")
    profile = HarnessProfile.from_dict(evaluate_file(source, {}).document, base_dir=folder)
    task = read_task_folder(PIPELINES / "tasks" / "errands" / task_name)[0]
    model_dir = PIPELINES / "models" / "tiny"
    script = PIPELINES / "harness" / "scripts" / f"{profile_name}.json"
    engine = RecordingEngine(script, model_dir=model_dir, context_length=1 << 20)
    server = serve_engine(engine)
    store = RunStore(folder, writer="rollout")
    proxy = Proxy.for_model(
        model_dir,
        tool_parser=profile.tool_parser,
        reasoning_parser=profile.reasoning_parser,
        engines=_OneEngine(server.url),
        sampling=SamplingRules(context_limit=context_limit),
        on_call=lambda row: _append(store, row),
    )
    try:
        url = await proxy.start()
        sandbox = GatedSandbox(url, folder / "gate")
        runner = HarnessRunner(profile, run_dir=folder, sandbox=sandbox)
        rules = RoleRules.from_profile({"role_rules": profile.role_rules, "default_role": profile.default_role})
        key = proxy.open_execution(EXECUTION_ID, attempt=1, role_rules=rules)
        execution = {**task, "execution_id": EXECUTION_ID}
        started_s = time.monotonic()
        result = await runner.run(execution, attempt=1, proxy_url=url, key=key, workspace=folder / "work")
        seconds = time.monotonic() - started_s
        await proxy.close_execution(EXECUTION_ID)
        verdict = await verify_workspace(
            Path(task["task_path"]), folder / "work", deadline_s=30, sandbox=open_sandbox(), logs_dir=folder / "verifier"
        )
    finally:
        await proxy.stop()
        server.stop()
        engine.close()
    calls = store.read("calls")
    tree = TrajectoryTree.from_table(calls) if calls.num_rows else TrajectoryTree(EXECUTION_ID, 1)
    logs = folder / "logs" / EXECUTION_ID
    return Play(
        result=result,
        verdict=verdict,
        tree=tree,
        texts=[engine.decode(node.output_ids.tolist()) or "" for node in tree.nodes],
        received=engine.received,
        attempts=sandbox.attempts(),
        out=(logs / "attempt-1.out").read_text(errors="replace"),
        err=(logs / "attempt-1.err").read_text(errors="replace"),
        seconds=seconds,
    )


class _OneEngine:
    """Routes every execution to one engine."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def route(self, execution_id: str) -> str:
        return self._url


async def _append(store: RunStore, row: Mapping[str, Any]) -> None:
    store.append("calls", [row])


def check_records(played: Play) -> None:
    """Nothing is missing, every context is what the engine received, every sampled token is a target once, only the proxy was reached."""
    tree = played.tree
    contexts = [tree.context(node.node_id)[: -len(node.output_ids)].tolist() for node in tree.nodes]
    assert sorted(contexts) == sorted(played.received)
    rows = materialize(tree, select_trajectories(tree, j_max=None, seed=0, execution_id=EXECUTION_ID), group_id="g000000", advantage=1.0)
    stored = read_trajectories(rows)
    for check in (check_contexts, check_disjoint_targets, check_provenance, check_logprobs):
        assert not check(tree, stored)
    owned: set[tuple[int, int]] = set()
    for row in stored:
        owners = token_owners(tree, row.leaf_node_id)
        for node_id in {int(node) for node in owners[row.target_mask, 0]}:
            start = int(np.flatnonzero((owners[:, 0] == node_id) & (owners[:, 1] == 0))[0])
            assert row.input_ids[:start].tolist() == contexts[node_id], f"target context of call {node_id}"
        owned |= {(int(node), int(offset)) for node, offset in owners[row.target_mask]}
    sampled = {(n.node_id, i) for n in tree.nodes if n.role in ROLE_ORDER for i in range(len(n.output_ids))}
    assert owned == sampled
    assert played.attempts == []


def describe(played: Play) -> str:
    """What happened, for a failing test."""
    lines = [f"{played.result} {played.verdict} {played.seconds:.1f} s", *map(str, played.attempts)]
    for node, text in zip(played.tree.nodes, played.texts, strict=True):
        lines.append(f"{node.node_id} <- {node.parent_node_id} {node.role}: +{node.num_input_tokens} {json.dumps(text)[:150]}")
    return "\n".join([*lines, "--- stdout", played.out[-3000:], "--- stderr", played.err[-3000:]])
