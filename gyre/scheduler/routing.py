"""Routes of executions to engines and the places reserved there (paper section 4.3, request rerouting).

An execution has one place, in the engine that serves its model calls; routes are sticky and no engine has more executions than it can
serve. When a cell leaves rollout every execution on it moves to a place reserved before: standalone engines first, then cells from
the highest number down, which are expected to stay longest. Executions of an engine that is lost wait without a route for a place.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from gyre.scheduler.config import SchedulerConfig, cell_engine, standalone_engine
from gyre.scheduler.decisions import Move


@dataclass(slots=True)
class Engine:
    """One rollout engine as routing sees it."""

    name: str
    capacity: int
    """Executions that it can serve at a time."""
    is_open: bool = False
    """True while it accepts executions: in rollout, alive, and on the newest published version."""
    executions: dict[str, None] = field(default_factory=dict[str, None])
    """Executions that have a place here, in order of arrival."""

    @property
    def num_free(self) -> int:
        """Places left; 0 where it does not accept."""
        return self.capacity - len(self.executions) if self.is_open else 0


class RouteTable:
    """Which engine serves which execution.

    >>> table = RouteTable(SchedulerConfig(groups_per_step=1, group_size=1, cells=(2, 2), standalone=(1,)))
    >>> for name, execution_id in [("cell0", "a"), ("standalone0", "b"), ("cell1", "c")]:
    ...     table.open(name)
    ...     table.put(execution_id, table.engines[name])
    >>> table.find_moves(leaving=["cell0"])
    (Move(execution_id='a', engine='cell1'),)
    """

    def __init__(self, config: SchedulerConfig) -> None:
        standalone = [Engine(standalone_engine(i), c) for i, c in enumerate(config.standalone)]
        cells = [Engine(cell_engine(i), c) for i, c in enumerate(config.cells)]
        self.engines = {engine.name: engine for engine in [*standalone, *reversed(cells)]}
        """In order of preference as destinations."""
        self.parked: dict[str, None] = {}
        """Executions whose engine is gone and that have no place yet."""
        self._route_of: dict[str, Engine] = {}

    @property
    def num_open_places(self) -> int:
        """Capacity of the open engines, free or taken."""
        return sum(engine.capacity for engine in self.engines.values() if engine.is_open)

    def find_route(self, execution_id: str) -> str | None:
        """Engine of an execution; None where it has no place."""
        engine = self._route_of.get(execution_id)
        return None if engine is None else engine.name

    def open(self, name: str) -> None:
        """Let an engine accept executions."""
        self.engines[name].is_open = True

    def close(self, name: str) -> None:
        """Stop an engine from accepting; what it serves keeps its place."""
        self.engines[name].is_open = False

    def find_least_loaded(self) -> Engine | None:
        """The open engine with the smallest share of its places taken; None where no place is left."""
        least: Engine | None = None
        least_load = 1.0
        for engine in self.engines.values():
            if engine.is_open and (load := len(engine.executions) / engine.capacity) < least_load:
                least, least_load = engine, load
        return least

    def put(self, execution_id: str, engine: Engine) -> None:
        """Reserve a place for an execution that has none."""
        assert engine.num_free > 0, f"{engine.name} has no place for {execution_id}"
        engine.executions[execution_id] = None
        self._route_of[execution_id] = engine
        self.parked.pop(execution_id, None)

    def release(self, execution_id: str) -> None:
        """Give back the place of an execution that has ended."""
        self.parked.pop(execution_id, None)
        engine = self._route_of.pop(execution_id, None)
        if engine is not None:
            del engine.executions[execution_id]

    def find_moves(self, *, leaving: Collection[str]) -> tuple[Move, ...] | None:
        """A place for every execution on the leaving engines; None where the others have too few."""
        displaced = [execution_id for name in leaving for execution_id in self.engines[name].executions]
        places = (engine.name for engine in self.engines.values() if engine.name not in leaving for _ in range(engine.num_free))
        moves = tuple(Move(execution_id, name) for execution_id, name in zip(displaced, places, strict=False))
        return moves if len(moves) == len(displaced) else None

    def apply_moves(self, moves: Collection[Move]) -> None:
        """Change routes; the places are free because `find_moves` has just counted them."""
        for move in moves:
            del self._route_of[move.execution_id].executions[move.execution_id]
            self.put(move.execution_id, self.engines[move.engine])

    def lose(self, name: str) -> None:
        """Close an engine that is gone; its executions wait for another place."""
        engine = self.engines[name]
        engine.is_open = False
        for execution_id in engine.executions:
            del self._route_of[execution_id]
            self.parked[execution_id] = None
        engine.executions.clear()

    def place_parked(self) -> tuple[Move, ...]:
        """Give places to waiting executions, oldest first, as far as there are any."""
        moves: list[Move] = []
        for execution_id in list(self.parked):
            engine = self.find_least_loaded()
            if engine is None:
                break
            self.put(execution_id, engine)
            moves.append(Move(execution_id, engine.name))
        return tuple(moves)
