"""The staleness account (paper section 2.2, appendix A): v_t − v_d of every consumed group, and the identity that it must meet.

A group takes v_d, the version published last, when its admission is ordered, and is v_t − v_d stale when the step after version v_t
consumes it. With boundary dispatch, at every burst boundary and for any latencies:

    sum over consumed of (v_t − v_d)  +  sum over outstanding of (v − v_d)  ==  sum over steps of the groups left outstanding
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple


class Identity(NamedTuple):
    """Both sides of the boundary staleness identity; equal at every burst boundary."""

    aged: int
    """Staleness of consumed groups plus age of outstanding ones."""
    left: int
    """Sum over the steps of the groups still outstanding after the step's own were removed."""


@dataclass(slots=True)
class StalenessAccount:
    """Adds up staleness as groups are admitted and consumed.

    >>> account = StalenessAccount()
    >>> account.admit(version=0, num_groups=3)
    >>> account.commit_step(v_t=0, group_versions=[0])
    >>> account.commit_step(v_t=1, group_versions=[0])
    >>> account.mean, account.get_identity(version=2)
    (0.5, Identity(aged=3, left=3))
    """

    outstanding: Counter[int] = field(default_factory=Counter[int])
    """Groups not yet consumed, by v_d."""
    histogram: Counter[int] = field(default_factory=Counter[int])
    """Consumed groups, by staleness."""
    left: int = 0
    """Right side of the identity."""

    def admit(self, *, version: int, num_groups: int) -> None:
        """Count groups whose admission was ordered under a published version."""
        self.outstanding[version] += num_groups

    def commit_step(self, *, v_t: int, group_versions: list[int]) -> None:
        """Count the groups that the step after `v_t` consumed, by their v_d."""
        for v_d in group_versions:
            self.histogram[v_t - v_d] += 1
            self.outstanding[v_d] -= 1
            assert self.outstanding[v_d] >= 0, f"more groups of version {v_d} were consumed than admitted"
        self.left += self.outstanding.total()

    def restart(self, *, version: int) -> None:
        """Balance the account of a resumed run, whose earlier steps are in the store."""
        self.left = self.get_identity(version=version).aged

    def get_identity(self, *, version: int) -> Identity:
        """Both sides of the identity at the current version."""
        consumed = sum(staleness * count for staleness, count in self.histogram.items())
        age = sum((version - v_d) * count for v_d, count in self.outstanding.items())
        return Identity(consumed + age, self.left)

    @property
    def mean(self) -> float:
        """Mean staleness of the consumed groups; 0 before the first."""
        consumed = self.histogram.total()
        return sum(staleness * count for staleness, count in self.histogram.items()) / consumed if consumed else 0.0
