"""Communication between cells: one prebuilt gloo group for each prefix of 2, 3, ... K cells.

A batch is trained by a prefix of the ordered cells, whatever joined, so K-1 groups cover every case without building one on the way.
They stand apart from torch's default process group, which holds the ranks of one cell: when a cell is lost, its groups fail, the
survivors build new ones under the next `generation`, and nothing of Megatron's is touched.

A reduction works on a copy, so a failed one leaves every cell's accumulation as it was.

The rendezvous store is opened once per run with `open_rendezvous`, by a process that outlives every cell.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, TCPStore  # pyright: ignore[reportPrivateImportUsage]

from gyre.errors import RunError

CORE = 0
"""Rank of the core in every prefix group."""


class GroupError(RunError):
    """A collective over cells failed: some cell of the prefix is gone or too slow."""


def open_rendezvous(host: str = "127.0.0.1", port: int = 0) -> tuple[TCPStore, int]:
    """Open the store where cells find each other; returns it and its port. It lives as long as the object does."""
    store = TCPStore(host, port, is_master=True, wait_for_workers=False)
    return store, store.port


class PrefixGroups:
    """The groups that one cell belongs to.

    Cell j of K is in the groups of j+1 ... K cells (at least 2), as rank j. Building them waits for every other cell.
    """

    def __init__(
        self,
        store_host: str,
        store_port: int,
        *,
        cell: int,
        num_cells: int,
        generation: int,
        timeout_s: float,
        host: str = "127.0.0.1",
    ) -> None:
        """Join the groups of one generation.

        Args:
            store_host: of the rendezvous store.
            store_port: of the rendezvous store.
            cell: position of this cell among the living cells, 0 for the core.
            num_cells: living cells.
            generation: raised by whoever rebuilds groups after a loss; the same on every cell.
            timeout_s: longest wait for the other cells, here and in every collective.
            host: address at which other cells reach this one.

        Raises:
            GroupError: another cell did not come within the time limit.
        """
        self.cell = cell
        self.num_cells = num_cells
        self._timeout = timedelta(seconds=timeout_s)
        self._groups: dict[int, Any] = {}
        if num_cells < 2:
            return

        def build() -> None:
            store = TCPStore(store_host, store_port, is_master=False, timeout=self._timeout)
            for size in range(max(2, cell + 1), num_cells + 1):
                scope = PrefixStore(f"generation{generation}/prefix{size}", store)
                self._groups[size] = dist.ProcessGroupGloo(scope, cell, size, self._options(host))

        self._attempt(f"cell {cell} could not join the groups of {num_cells} cells", build)

    def reduce_to_core(self, tensor: Tensor, num_cells: int) -> Tensor | None:
        """Sum a tensor over the first `num_cells` cells; the core gets the sum in a new tensor, the others None.

        Raises:
            GroupError: it failed or took too long; `tensor` is unchanged.
        """
        scratch = tensor.clone()
        if num_cells > 1:
            options = dist.ReduceOptions()
            options.rootRank = CORE
            options.reduceOp = dist.ReduceOp.SUM  # pyright: ignore[reportAttributeAccessIssue]
            group = self._group(num_cells)
            what = f"the sum of gradients over cells 0 to {num_cells - 1} failed on cell {self.cell}"
            self._attempt(what, lambda: group.reduce([scratch], options).wait(self._timeout))
        return scratch if self.cell == CORE else None

    def broadcast(self, tensor: Tensor, num_cells: int) -> None:
        """Overwrite a tensor on the first `num_cells` cells with the core's.

        Raises:
            GroupError: it failed or took too long; a satellite's tensor is then undefined.
        """
        if num_cells < 2:
            return
        options = dist.BroadcastOptions()
        options.rootRank = CORE
        options.rootTensor = 0
        group = self._group(num_cells)
        what = f"the broadcast of weights to cells 1 to {num_cells - 1} failed on cell {self.cell}"
        self._attempt(what, lambda: group.broadcast([tensor], options).wait(self._timeout))

    def close(self) -> None:
        """Leave the groups; a collective in flight fails."""
        self._groups.clear()

    def _group(self, num_cells: int) -> Any:
        if num_cells not in self._groups:
            raise GroupError(f"cell {self.cell} of {self.num_cells} is in no group of {num_cells} cells")
        return self._groups[num_cells]

    def _options(self, host: str) -> Any:
        options = dist.ProcessGroupGloo._Options()  # pyright: ignore[reportAttributeAccessIssue]
        options._timeout = self._timeout
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=host)]
        return options

    @staticmethod
    def _attempt(what: str, action: Callable[[], Any]) -> None:
        # torch raises RuntimeError and its own DistError family for peers that are gone, late or unreachable.
        try:
            action()
        except (RuntimeError, ValueError) as error:
            raise GroupError(f"{what}: {str(error).splitlines()[0]}") from error
