"""Pack: how full the rows of a training batch are.

Row lengths drawn from a log-normal distribution are packed under a token cap, once per seed. Figures (the worst of the seeds, unless
said otherwise):

- `bins_over_bound`: bins over the bound, which is ceil(total / cap) plus 1 % (rounded up), of the rows that fit under the cap;
- `over_cap`: bins over the cap that are not one oversized row alone, of all seeds;
- `fill`: tokens over room, of the bins without an oversized row, over all seeds;
- `empty_bins`, `rows_lost`: bins without a row, rows that are not in exactly one bin, of all seeds;
- `pack_ms`: median time of packing one batch.

Settings: `rows` (512), `cap` (262144), `seeds` (20), `median` (40000) and `sigma` (1.0) of the lengths.

Input: JSON Lines, one batch per line: a list of row lengths, [1200, 53000, ...], or {"lengths": [...], "cap": 262144}. A file with one
number per line is one batch. Without a cap of its own a batch gets the setting `cap`.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gyre.bench._measuring import Limit, Line, outcome, read_lines, read_options
from gyre.errors import UserError
from gyre.trajectory.packing import pack_lengths

LIMITS: Mapping[str, Limit] = {
    "bins_over_bound": Limit(at_most=1.0),
    "over_cap": Limit(at_most=0),
    "empty_bins": Limit(at_most=0),
    "rows_lost": Limit(at_most=0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Settings."""

    rows: int = 512
    """Rows of a batch."""
    cap: int = 262_144
    """Most tokens of a bin."""
    seeds: int = 20
    """Batches."""
    median: int = 40_000
    """Median length of a row."""
    sigma: float = 1.0
    """Of the log-normal lengths."""
    input: Path | None = None
    """Batches from outside."""


class Batch(NamedTuple):
    """What is packed at once."""

    lengths: list[int]
    """Tokens of each row."""
    cap: int
    """Most tokens of a bin."""


def run(settings: Mapping[str, str]) -> dict[str, Any]:
    """Pack every batch and look at the bins."""
    options = read_options(Options, settings, name="pack")
    batches = list(_read_batches(options.input, options.cap) if options.input else _draw_batches(options))
    if not any(batch.lengths for batch in batches):
        raise UserError("there is no row to pack", hint="give at least one row and one seed, or lengths in the input file")
    packed = [_pack(batch) for batch in batches if batch.lengths]
    room = sum(item.room for item in packed)
    figures = {
        "bins_over_bound": max(item.bins_over_bound for item in packed),
        "over_cap": sum(item.over_cap for item in packed),
        "fill": sum(item.tokens for item in packed) / room if room else 1.0,
        "empty_bins": sum(item.empty_bins for item in packed),
        "rows_lost": sum(item.rows_lost for item in packed),
        "pack_ms": 1000 * statistics.median(item.duration_s for item in packed),
    }
    return outcome("pack", figures, LIMITS)


class _Packed(NamedTuple):
    bins_over_bound: float
    over_cap: int
    empty_bins: int
    rows_lost: int
    tokens: int
    room: int
    duration_s: float


def _pack(batch: Batch) -> _Packed:
    begun = time.perf_counter()
    bins = pack_lengths(batch.lengths, batch.cap)
    duration_s = time.perf_counter() - begun
    fitting = [length for length in batch.lengths if length <= batch.cap]
    sums = [sum(batch.lengths[row] for row in listed) for listed in bins]
    # An oversized row has a bin of its own, which says nothing about packing.
    shared = [total for total, listed in zip(sums, bins, strict=True) if all(batch.lengths[row] <= batch.cap for row in listed)]
    least = math.ceil(sum(fitting) / batch.cap)
    return _Packed(
        bins_over_bound=len(shared) / (least + math.ceil(0.01 * least)) if fitting else 1.0,
        over_cap=sum(total > batch.cap and len(listed) > 1 for total, listed in zip(sums, bins, strict=True)),
        empty_bins=sum(not listed for listed in bins),
        rows_lost=_num_lost(bins, len(batch.lengths)),
        tokens=sum(fitting),
        room=len(shared) * batch.cap,
        duration_s=duration_s,
    )


def _num_lost(bins: Sequence[Sequence[int]], num_rows: int) -> int:
    counts = [0] * num_rows
    for row in (row for listed in bins for row in listed):
        counts[row] += 1
    return sum(count != 1 for count in counts)


def _draw_batches(options: Options) -> Iterator[Batch]:
    for seed in range(options.seeds):
        rng = np.random.default_rng(seed)
        drawn = rng.lognormal(math.log(options.median), options.sigma, size=options.rows)
        yield Batch([max(1, round(length)) for length in drawn.tolist()], options.cap)


def _read_batches(path: Path, cap: int) -> Iterator[Batch]:
    alone: list[int] = []
    for line in read_lines(path):
        match line.value:
            case int():
                alone.append(_checked(line, [line.value], cap).lengths[0])
            case list():
                yield _checked(line, line.value, cap)
            case {"lengths": list(lengths), **more}:
                yield _checked(line, lengths, more.get("cap", cap))
            case _:
                raise _not_a_batch(line)
    if alone:
        yield Batch(alone, cap)


def _checked(line: Line, lengths: Sequence[Any], cap: Any) -> Batch:
    if not all(isinstance(number, int) and number >= 1 for number in [*lengths, cap]):
        raise _not_a_batch(line)
    return Batch(list(lengths), cap)


def _not_a_batch(line: Line) -> UserError:
    shown = str(line.value)[:60]
    return UserError(f"{line.place}: {shown} is no batch of lengths of at least 1", hint='write [1200, 53000] or {"lengths": [...]}')
