"""A simulation that keeps the rows a live run would have in its tables: a run whose workload is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gyre.scheduler import decisions as d
from gyre.sim import fit
from gyre.sim.simulation import SimSetting, Simulation


class RecordedSimulation(Simulation):
    """Keeps the rows that a live run would have in its tables."""

    def __init__(self, setting: SimSetting) -> None:
        super().__init__(setting)
        self.executions: dict[str, dict[str, Any]] = {}
        self.assessments: dict[str, dict[str, Any]] = {}
        self.events: list[dict[str, Any]] = []
        self.drained_s = 0.0
        self.busy_before_s = 0.0
        score = self.rollout._get_outcome

        def scored(closed: Any) -> None:
            execution_id = closed[0].execution_id
            self.assessments[execution_id] = {"created_at_s": self.clock.now_s, "valid": not closed[0].is_unresolved}
            score(closed)

        self.rollout._get_outcome = scored

    def tell(self, event: Callable[..., tuple[d.Decision, ...]], *args: Any, **kwargs: Any) -> None:
        now_s = self.clock.now_s
        match event.__name__:
            case "admitted":
                for execution_id in args[2]:
                    ids = {"execution_id": execution_id, "group_id": args[0], "query_id": args[0]}
                    self.executions[execution_id] = {**ids, "dispatched_at_s": now_s, "status": "queued"}
            case "finished":
                self.executions[args[0]] |= {"finished_at_s": now_s, "status": args[1]}
            case "drained":
                self.drained_s = now_s
            case "updated":
                busy_s = sum(self.journal.busy_s.values())
                cost = {"busy_s": busy_s - self.busy_before_s, "microsteps": 32, "commit_s": now_s - self.drained_s}
                self.busy_before_s = busy_s
                self.note("updated", 0, {"version": args[0], **cost})
            case "published":
                self.note("published", -1, {"version": args[0]})
        super().tell(event, *args, **kwargs)

    def _perform(self, decisions: tuple[d.Decision, ...]) -> None:
        for decision in decisions:
            if isinstance(decision, d.Launch):
                self.executions[decision.execution_id]["launched_at_s"] = self.clock.now_s
            elif isinstance(decision, d.ToTraining | d.ToRollout):
                self.note("to_training" if isinstance(decision, d.ToTraining) else "to_rollout", decision.cell, {})
        super()._perform(decisions)

    def note(self, kind: str, cell: int, detail: dict[str, Any]) -> None:
        self.events.append({"time_s": self.clock.now_s, "kind": kind, "cell": cell, "detail": detail})

    def tables(self, plan: Any) -> fit.RunTables:
        steps = [
            {"version": step.version, "time_s": step.committed_s, "duration_s": step.committed_s - step.begun_s}
            for step in self.journal.steps
        ]
        executions = list(self.executions.values())
        return fit.RunTables(plan=plan, executions=executions, assessments=self.assessments, steps=steps, events=self.events)
