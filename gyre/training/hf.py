"""Hugging Face folders as the trainer reads and writes them: what stands beside the weights, and the order in which weights travel.

`flat_layout` is that order: sorted by Hugging Face name, one float32 after another. Trainer, engines and checkpoints share it, so a
flat buffer means the same thing everywhere.
"""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import NamedTuple

from gyre.model_shape import ModelShape, weight_shapes

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "generation_config.json",
)
"""What travels beside the weights, where the source folder has it."""


class WeightSlot(NamedTuple):
    """Place of one tensor in a flat buffer."""

    name: str
    """Hugging Face name."""
    shape: tuple[int, ...]
    """Shape of the tensor."""
    offset: int
    """First element in the flat buffer, counted in elements."""


def read_companions(model_dir: Path) -> dict[str, bytes]:
    """The files that travel beside the weights, config.json among them, by name."""
    paths = (model_dir / name for name in ("config.json", *TOKENIZER_FILES))
    return {path.name: path.read_bytes() for path in paths if path.is_file()}


def flat_layout(shape: ModelShape) -> list[WeightSlot]:
    """Where each weight lies in a flat buffer: sorted by name, without gaps."""
    slots: list[WeightSlot] = []
    offset = 0
    for name, dims in sorted(weight_shapes(shape).items()):
        slots.append(WeightSlot(name, dims, offset))
        offset += prod(dims)
    return slots


def layout_size(layout: list[WeightSlot]) -> int:
    """Elements of a flat buffer with this layout."""
    return layout[-1].offset + prod(layout[-1].shape)
