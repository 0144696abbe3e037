"""`harness_proxy`: runs harnesses and serves their model calls (paper sections 4.3 and 5.1).

One process is the proxy and the supervisor of the harnesses. An execution that may launch gets a workspace, a key and a sandbox; its
calls are recorded in its trajectory tree and in `calls`; when its harness ends, its records are frozen, its workspace is kept, and it
leaves as a closed execution. Executions that a resumed run finds finished only pass through.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from gyre.errors import Problem, StoreError
from gyre.ops._background import Background
from gyre.records import Batch, ClosedExecution, Control, Engines, Execution, Pipeline, Store, Stream, op

FINISHED = ("completed", "failed", "timeout", "cancelled")
"""States of an execution whose harness has ended."""
MAX_CLOSED_WAITING = 64
"""Closed executions that may wait for the evaluation before launches are held back."""


def check(settings: Mapping[str, Any], base_dir: Path) -> Iterable[Problem]:
    """Say what is wrong with the harness profile before a run starts."""
    from gyre.rollout.profile import find_profile_problems

    return find_profile_problems(settings.get("harness"), base_dir=base_dir, setting="harness")


@op("harness_proxy", state="store", check=check)
class HarnessProxy:
    """Launch harnesses as the scheduler says, serve and record their model calls, emit executions as they close.

    State across batches: live executions and their trees; a resumed run launches live ones again and reads trees from `calls`.
    """

    def __init__(
        self,
        *,
        harness: dict[str, Any],
        temperature: float = 1.0,
        context_limit: int = 32768,
        max_new_tokens: int = 4096,
        seed: int | None = None,
        sandbox: Literal["auto", "bubblewrap", "process"] = "auto",
        host: str = "127.0.0.1",
        engines: Engines,
        control: Control,
        store: Store,
        pipeline: Pipeline,
    ) -> None:
        """Take the settings of rollout.

        Args:
            harness: the harness's profile: command, environment, wire, deadline, role rules.
            temperature: sampling temperature of the run, whatever a client asks.
            context_limit: most tokens of input and output of one call; a longer context gets the wire's "prompt is too long".
            max_new_tokens: most tokens of one answer; a client may ask for fewer.
            seed: makes draws repeatable per execution and call; None: the engines' own.
            sandbox: where harnesses run; 'auto' takes bubblewrap where it is installed.
            host: address on which the proxy listens.
            engines: where model calls go.
            control: the scheduler's doors.
            store: the run's tables.
            pipeline: the pipeline that runs; paths in the profile are relative to its file.
        """
        from gyre.rollout.generation import SamplingRules
        from gyre.rollout.harness import HarnessRunner
        from gyre.rollout.profile import HarnessProfile
        from gyre.rollout.proxy import Proxy
        from gyre.rollout.sandbox import choose_sandbox
        from gyre.trajectory.roles import RoleRules

        self.profile = HarnessProfile.from_dict(harness, base_dir=pipeline.base_dir)
        self.engines, self.control, self.store = engines, control, store
        self.keeps_trees = pipeline.trains
        self.host = host
        self.runner = HarnessRunner(self.profile, run_dir=store.run_dir, sandbox=choose_sandbox(sandbox).sandbox)
        self.role_rules = RoleRules.from_profile({"role_rules": self.profile.role_rules, "default_role": self.profile.default_role})
        self.proxy = Proxy.for_model(
            engines.model_dir,
            tool_parser=self.profile.tool_parser,
            reasoning_parser=self.profile.reasoning_parser,
            engines=engines,
            sampling=SamplingRules(temperature=temperature, max_new_tokens=max_new_tokens, context_limit=context_limit, seed=seed),
            on_call=self._on_call,
        )
        self._waiting: dict[str, dict[str, Any]] = {}
        self._came = asyncio.Event()
        self._closed: asyncio.Queue[Batch[ClosedExecution] | None] = asyncio.Queue(MAX_CLOSED_WAITING)
        self._live: dict[str, asyncio.Task[None]] = {}
        self._background = Background()
        self._rows: dict[str, dict[str, Any]] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        """Tasks of executions that have ended by themselves and are on their way out."""
        self._cancelled: set[str] = set()
        """Executions that were cancelled while nothing ran: no harness is started for them, however late launch or row come."""

    async def run(self, executions: Stream[Execution]) -> Stream[ClosedExecution]:
        """Emit each execution once, when its harness has ended and its records are frozen."""
        self.url = await self.proxy.start(host=self.host)
        cancelling = self._background.start(self._cancel_all())
        for work in (self._read(executions), self._launch_all(cancelling), self._watch()):
            self._background.start(work)
        try:
            while (batch := await self._background.get(self._closed)) is not None:
                yield batch
        finally:
            await self._background.cancel()
            await self.proxy.stop()

    def held_calls(self, execution_id: str, attempt: int) -> pa.Table | None:
        """The tree of an execution while this process has it."""
        return self.proxy.calls_table(execution_id, attempt)

    def drop_tree(self, execution_id: str) -> None:
        """Forget the tree of an execution whose group has been selected."""
        self.proxy.drop_tree(execution_id)

    async def _watch(self) -> None:
        """End the run, resumable, when a record cannot be kept (disk full): a call without its record must not go on."""
        failure = await self.proxy.wait_failure()
        raise StoreError(f"a model call could not be recorded: {failure}") from failure

    async def _on_call(self, row: Mapping[str, Any]) -> None:
        self.store.append("calls", [row])

    async def _read(self, executions: Stream[Execution]) -> None:
        async for batch in executions:
            for row in batch.rows():
                state = await self.control.execution_state(row["execution_id"]) if row["restored"] else None
                if state is not None and state["status"] in FINISHED:
                    await self._pass_on(row, state)
                elif row["execution_id"] in self._cancelled:
                    await self._close_cancelled(row)
                else:
                    self._waiting[row["execution_id"]] = row
                    self._came.set()

    async def _pass_on(self, row: dict[str, Any], state: Mapping[str, Any]) -> None:
        """Emit an execution whose harness had ended before the run was interrupted."""
        workspace = self.store.run_dir / state["workspace"] if state["workspace"] else None
        closed = await self._closed_row(
            row,
            attempt=max(1, state["attempts"]),
            status=state["status"],
            reason=state["reason"],
            workspace=workspace,
            launched_at_s=state["launched_at_s"],
            finished_at_s=state["finished_at_s"],
        )
        await self._closed.put(Batch.of(ClosedExecution, [closed]))

    async def _launch_all(self, cancelling: asyncio.Task[None]) -> None:
        while (launch := await self.control.next_launch()) is not None:
            execution_id = launch["execution_id"]
            while execution_id not in self._waiting and execution_id not in self._cancelled:
                self._came.clear()
                await self._came.wait()
            if execution_id in self._cancelled:
                continue
            row = self._waiting.pop(execution_id)
            self.engines.assign(execution_id, launch["engine"])
            task = self._background.start(self._run_one(row, launch["attempt"]))
            self._live[execution_id], self._rows[execution_id] = task, row
            task.add_done_callback(lambda done, name=execution_id: self._live.pop(name, None))
        # Complete: nothing is live. Stopped early: what is live ends with the operator and is launched again on resume.
        # What has ended, by itself or cancelled, still leaves: the end of the last one may be what completed the run.
        await asyncio.wait({cancelling, *self._leaving})
        await self._closed.put(None)

    async def _cancel_all(self) -> None:
        while (execution_id := await self.control.next_cancelled()) is not None:
            queued, task = self._waiting.pop(execution_id, None), self._live.get(execution_id)
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            else:
                self._cancelled.add(execution_id)
                self._came.set()
                self.proxy.drop_tree(execution_id)  # of one that has ended before: nobody selects from surplus
            row = queued or self._rows.get(execution_id)
            if row is not None:
                await self._close_cancelled(row)

    async def _close_cancelled(self, row: dict[str, Any]) -> None:
        execution_id = row["execution_id"]
        await self.proxy.close_execution(execution_id)
        self.proxy.drop_tree(execution_id)
        await self.control.finished(execution_id, "cancelled", "surplus: its group has enough valid outcomes")
        self.engines.forget(execution_id)
        state = await self.control.execution_state(execution_id)
        if state is not None and state["status"] == "cancelled":
            await self._pass_on(row, state)

    async def _run_one(self, row: dict[str, Any], attempt: int) -> None:
        execution_id = row["execution_id"]
        workspace = self.store.run_dir / "workspaces" / execution_id / str(attempt)
        launched_at_s = time.time()
        key = self.proxy.open_execution(execution_id, attempt=attempt, role_rules=self.role_rules)
        await self.control.launched(execution_id, str(workspace.relative_to(self.store.run_dir)))
        try:
            result = await self.runner.run(row, attempt=attempt, proxy_url=self.url, key=key, workspace=workspace)
        finally:
            await self.proxy.close_execution(execution_id)
        # It has ended by itself: a cancellation that comes now must not take its end away from whoever is told below.
        self._live.pop(execution_id, None)
        self._rows.pop(execution_id, None)
        task = asyncio.current_task()
        assert task is not None
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)
        if not self.keeps_trees:  # nobody selects from them; `calls` has the records
            self.proxy.drop_tree(execution_id)
        await self.control.finished(execution_id, result.status, result.reason)
        self.engines.forget(execution_id)
        closed = await self._closed_row(
            row,
            attempt=attempt,
            status=result.status,
            reason=result.reason,
            workspace=result.workspace if result.is_assessable else None,
            launched_at_s=launched_at_s,
            finished_at_s=result.finished_at_s,
        )
        await self._closed.put(Batch.of(ClosedExecution, [closed]))

    async def _closed_row(
        self,
        row: Mapping[str, Any],
        *,
        attempt: int,
        status: str,
        reason: str,
        workspace: Path | None,
        launched_at_s: float | None,
        finished_at_s: float,
    ) -> dict[str, Any]:
        from gyre.rollout.harness import artifact_version

        is_assessable = workspace is not None and workspace.is_dir()
        # Beside the event loop: a large workspace takes seconds, in which every model call of the run would stand still.
        version = await asyncio.to_thread(artifact_version, workspace) if workspace and is_assessable else ""
        same = ("execution_id", "group_id", "group_size", "group_surplus", "query_id", "dispatch_version", "task_path", "config")
        return {
            **{name: row[name] for name in same},
            "attempt": attempt,
            "status": status,
            "workspace": str(workspace.relative_to(self.store.run_dir)) if workspace and is_assessable else "",
            "artifact_version": version,
            "assessable": is_assessable,
            "reason": reason,
            "launched_at_s": launched_at_s,
            "finished_at_s": finished_at_s,
        }
