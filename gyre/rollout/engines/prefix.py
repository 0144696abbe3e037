"""Keeps the KV of sequences that left the batch, so that the next request of the same session prefills only what is new.

Entries belong to one weight version: `clear` comes with every change of weights. A lookup gives the longest common prefix with any
entry, token for token, so a system prompt shared by all sessions is found in whichever entry is left. An entry that a new one
extends is replaced by it; the least recently used go first when the token budget is spent.

Shape of a KV copy: [layers, 2, K heads, tokens, D], as `model.Qwen3Model.read_kv` makes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(slots=True, eq=False)
class _Entry:
    token_ids: np.ndarray
    kv: Tensor
    last_use: int


class PrefixCache:
    """KV of recently served token sequences, of at most `max_tokens` tokens in all."""

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._entries: list[_Entry] = []
        self._uses = 0

    @property
    def num_tokens(self) -> int:
        """Tokens held."""
        return sum(len(entry.token_ids) for entry in self._entries)

    def take(self, token_ids: Sequence[int]) -> tuple[Tensor | None, int]:
        """KV and length of the longest stored prefix of `token_ids`; (None, 0) if there is none."""
        wanted = np.asarray(token_ids, dtype=np.int32)
        best, best_length = None, 0
        for entry in self._entries:
            length = common_prefix(entry.token_ids, wanted)
            if length > best_length:
                best, best_length = entry, length
        if best is None:
            return None, 0
        self._uses += 1
        best.last_use = self._uses
        return best.kv, best_length

    def put(self, token_ids: Sequence[int], kv: Tensor) -> None:
        """Store the KV of all these tokens."""
        added = np.asarray(token_ids, dtype=np.int32)
        self._entries = [e for e in self._entries if common_prefix(e.token_ids, added) < len(e.token_ids)]
        self._uses += 1
        self._entries.append(_Entry(added, kv, self._uses))
        excess = self.num_tokens - self._max_tokens
        for entry in sorted(self._entries, key=lambda e: e.last_use):
            if excess <= 0:
                break
            self._entries.remove(entry)
            excess -= len(entry.token_ids)

    def clear(self) -> None:
        """Forget everything."""
        self._entries = []


def common_prefix(first: np.ndarray, second: np.ndarray) -> int:
    """Number of tokens that both begin with."""
    length = min(len(first), len(second))
    differs = first[:length] != second[:length]
    at = int(differs.argmax()) if length else 0
    return at if length and differs[at] else length
