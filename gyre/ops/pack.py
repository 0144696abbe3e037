"""`pack`: trajectories to micro-steps (paper section 4.4, the stream packing buffer).

Rows are filled first-fit-decreasing under a token cap. The full rows of a group leave at once; the emptiest one waits for the next
group of the same training batch, so that the stream stays fine-grained and the rows full.
"""

from __future__ import annotations

import pyarrow as pa

from gyre.records import Batch, MicroStep, Trajectory, op

FULL_ENOUGH = 0.75
"""Share of the token cap above which a row does not wait for more."""


@op("pack")
class Pack:
    """Pack trajectories into rows of at most `max_tokens`; a longer trajectory gets a row of its own.

    State across batches: the trajectories of one unfilled row; a resumed run packs the whole training batch again.
    """

    def __init__(self, *, max_tokens: int = 32768) -> None:
        """Take the settings of packing.

        Args:
            max_tokens: token cap of a row.
        """
        self.max_tokens = max_tokens
        self._waiting = Trajectory.schema().empty_table()
        self._version = -1
        self._batches = 0

    def run(self, trajectories: Batch[Trajectory]) -> Batch[MicroStep]:
        """Emit the rows that are full enough; on the last batch of a step, all that are left."""
        from gyre.trajectory.packing import build_microsteps

        version, last = trajectories.step if trajectories.step else (0, True)
        if version != self._version:
            self._version, self._batches, self._waiting = version, 0, self._waiting.slice(0, 0)
        self._batches += 1
        rows = pa.concat_tables([self._waiting, trajectories.table])
        prefix = f"v{version:06d}/{self._batches:04d}"
        packed = build_microsteps(rows, max_tokens=self.max_tokens, prefix=prefix)
        if last:
            self._waiting = rows.slice(0, 0)
            return Batch(packed)
        ready, held = self._hold_back(packed)
        is_held = [trajectory_id in held for trajectory_id in rows["trajectory_id"].to_pylist()]
        self._waiting = rows.filter(pa.array(is_held, pa.bool_()))
        return Batch(ready)

    def _hold_back(self, packed: pa.Table) -> tuple[pa.Table, set[str]]:
        """Take out the emptiest row, if it has room and no execution that spans rows; returns the rest and its trajectories."""
        if not packed.num_rows:
            return packed, set()
        lengths = [bounds[-1] for bounds in packed["cu_seqlens"].to_pylist()]
        emptiest = min(range(len(lengths)), key=lengths.__getitem__)
        segments = packed["segments"][emptiest].as_py()
        if lengths[emptiest] >= FULL_ENOUGH * self.max_tokens or not all(s["whole"] for s in segments):
            return packed, set()
        keep = [i for i in range(len(lengths)) if i != emptiest]
        return packed.take(pa.array(keep, pa.int64())), {s["trajectory_id"] for s in segments}
