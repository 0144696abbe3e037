"""`elastic`: moves cells between rollout and training by waterlevel (paper sections 4.1 to 4.3).

The decisions are the scheduler's (`gyre.scheduler`, the same objects in a run and in the simulator); this operator names the policy
and is its clock, for rules that depend on time (the supply check's hold time).
"""

from __future__ import annotations

import asyncio
from typing import Literal

from gyre.records import Control, op

TICK_S = 0.25
"""How often the policy looks at the clock, in seconds: well below any hold time that makes sense."""


@op("elastic")
class Elastic:
    """Say which policy moves the cells."""

    def __init__(
        self,
        *,
        policy: Literal["elastic", "async", "colocate"] = "elastic",
        rho_min: float = 0.25,
        hold_s: float = 0.0,
        streaming: bool = True,
        train_cells: int = 1,
        control: Control,
    ) -> None:
        """Take the settings of the policy.

        Args:
            policy: 'elastic' by waterlevel, or a baseline: 'async' (fixed split) or 'colocate' (the whole pool alternates).
            rho_min: share of B groups that must be ready before a cell leaves rollout.
            hold_s: how long they must have been ready, in seconds.
            streaming: train on groups as they become ready, instead of waiting for B of them.
            train_cells: cells in training under 'async'.
            control: the scheduler's doors.
        """
        self.control = control

    async def run(self) -> None:
        """Let the policy look at the clock until the run is over."""
        while not await self.control.over():
            await self.control.tick()
            await asyncio.sleep(TICK_S)
