"""Model folders as Hugging Face lays them out: what shape the policy has and the tensors it is made of.

Feeds `model` and, in flat form, the transfer of published weights: `unflatten` gives names back to one contiguous buffer. Only
Qwen3's architecture is served; anything else is refused with a sentence, never served approximately.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from gyre.errors import EngineError, UserError
from gyre.model_shape import ModelShape, read_shape, weight_shapes


def read_served_shape(model_dir: Path) -> ModelShape:
    """Shape of a model that the local engine serves.

    Raises:
        UserError: no such folder, or an architecture that the local engine does not compute.
    """
    shape = read_shape(model_dir)
    if not shape.has_qk_norm:
        raise UserError(
            f"{model_dir / 'config.json'}: the local engine serves models of type 'qwen3' only",
            hint="use a plain Qwen3 model, or the sglang engine",
        )
    return shape


def read_end_tokens(model_dir: Path) -> tuple[int, ...]:
    """Tokens that end an answer unless a request ignores them."""
    found: Any = None
    for name in ("config.json", "generation_config.json"):
        if (model_dir / name).is_file():
            found = json.loads((model_dir / name).read_text(encoding="utf-8")).get("eos_token_id", found)
    return tuple(found) if isinstance(found, list) else () if found is None else (int(found),)


def read_weights(model_dir: str | Path) -> dict[str, Tensor]:
    """All tensors of a folder's safetensors files, by name, as they are stored.

    Raises:
        EngineError: the folder holds no safetensors file.
    """
    files = sorted(Path(model_dir).glob("*.safetensors"))
    if not files:
        raise EngineError(f"{model_dir} holds no *.safetensors file; save the model as a Hugging Face folder")
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def check_weights(shape: ModelShape, weights: Mapping[str, Any]) -> dict[str, Tensor]:
    """The model's tensors out of `weights` (tensors or arrays), every one present and of its shape.

    Raises:
        EngineError: one is missing or has another shape; nothing was loaded.
    """
    checked: dict[str, Tensor] = {}
    for name, dims in weight_shapes(shape).items():
        if name not in weights:
            raise EngineError(f"weights lack {name}; they belong to another model, nothing was loaded")
        tensor = torch.as_tensor(weights[name])
        if tuple(tensor.shape) != dims:
            raise EngineError(f"weight {name} has shape {tuple(tensor.shape)}, not {dims}; nothing was loaded")
        checked[name] = tensor
    return checked


def unflatten(flat: Any, layout: Iterable[tuple[str, tuple[int, ...], int]]) -> dict[str, Tensor]:
    """Named views of one flat buffer (tensor or array); `layout` lists name, shape and offset in elements."""
    buffer = torch.as_tensor(flat)
    views: dict[str, Tensor] = {}
    for name, shape, offset in layout:
        size = int(torch.Size(shape).numel())
        if offset < 0 or offset + size > buffer.numel():
            raise EngineError(f"weight {name} ends at element {offset + size} of a buffer of {buffer.numel()}")
        views[name] = buffer[offset : offset + size].view(shape)
    return views
