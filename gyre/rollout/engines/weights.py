"""Model folders as Hugging Face lays them out: what shape the policy has and the tensors it is made of.

Feeds `model` and, in flat form, the transfer of published weights: `unflatten` gives names back to one contiguous buffer. Only
Qwen3's architecture is served; anything else is refused with a sentence, never served approximately.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from gyre.errors import EngineError, UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Shape of a Qwen3-architecture decoder."""

    vocab_size: int
    """Rows of the embedding."""
    hidden_size: int
    """Width of the residual stream."""
    num_layers: int
    """Decoder layers."""
    num_heads: int
    """Query heads."""
    num_kv_heads: int
    """Key and value heads; divides `num_heads`."""
    head_dim: int
    """Width of a head."""
    intermediate_size: int
    """Width of the gated feed-forward."""
    norm_eps: float
    """Added to the mean square in every RMS norm."""
    rope_theta: float
    """Base of the rotary embedding."""
    is_tied: bool
    """Whether the output layer is the embedding."""
    context_length: int
    """Most positions the model was made for."""
    eos_token_ids: tuple[int, ...]
    """Tokens that end an answer unless a request ignores them."""


def read_config(model_dir: str | Path) -> ModelConfig:
    """Read `config.json` (and `generation_config.json` where there is one).

    Raises:
        UserError: no such folder, or an architecture that the local engine does not compute.
    """
    folder = Path(model_dir)
    path = folder / "config.json"
    if not path.is_file():
        raise UserError(f"{folder} holds no config.json", hint="name a Hugging Face model folder")
    raw: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    _refuse_unknown(raw, path)
    rope = raw.get("rope_parameters") or {}
    eos = raw.get("eos_token_id")
    generation_path = folder / "generation_config.json"
    if generation_path.is_file():
        eos = json.loads(generation_path.read_text(encoding="utf-8")).get("eos_token_id", eos)
    num_heads = int(raw["num_attention_heads"])
    return ModelConfig(
        vocab_size=int(raw["vocab_size"]),
        hidden_size=int(raw["hidden_size"]),
        num_layers=int(raw["num_hidden_layers"]),
        num_heads=num_heads,
        num_kv_heads=int(raw.get("num_key_value_heads") or num_heads),
        head_dim=int(raw.get("head_dim") or raw["hidden_size"] // num_heads),
        intermediate_size=int(raw["intermediate_size"]),
        norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        rope_theta=float(rope.get("rope_theta") or raw.get("rope_theta") or 10_000.0),
        is_tied=bool(raw.get("tie_word_embeddings", False)),
        context_length=int(raw.get("max_position_embeddings", 32_768)),
        eos_token_ids=tuple(eos) if isinstance(eos, list) else () if eos is None else (int(eos),),
    )


def _refuse_unknown(raw: Mapping[str, Any], path: Path) -> None:
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    refusals = {
        f"model_type is {raw.get('model_type')!r}, not 'qwen3'": raw.get("model_type") != "qwen3",
        "attention_bias is on": bool(raw.get("attention_bias")),
        "sliding-window attention is on": bool(raw.get("use_sliding_window")),
        f"hidden_act is {raw.get('hidden_act')!r}, not 'silu'": raw.get("hidden_act", "silu") != "silu",
        "the rotary embedding is scaled": rope.get("rope_type", rope.get("type", "default")) != "default",
    }
    found = [text for text, applies in refusals.items() if applies]
    if found:
        raise UserError(
            f"{path}: the local engine cannot serve this model: {'; '.join(found)}",
            hint="use a plain Qwen3 model, or the sglang engine",
        )


def read_weights(model_dir: str | Path) -> dict[str, Tensor]:
    """All tensors of a folder's safetensors files, by name, as they are stored.

    Raises:
        EngineError: the folder holds no safetensors file.
    """
    files = sorted(Path(model_dir).glob("*.safetensors"))
    if not files:
        raise EngineError(f"{model_dir} holds no *.safetensors file; save the model as a Hugging Face folder")
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of the model, in Hugging Face's names and order."""
    hidden, head = config.hidden_size, config.head_dim
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, hidden)}
    for i in range(config.num_layers):
        layer = f"model.layers.{i}."
        shapes |= {
            layer + "self_attn.q_proj.weight": (config.num_heads * head, hidden),
            layer + "self_attn.k_proj.weight": (config.num_kv_heads * head, hidden),
            layer + "self_attn.v_proj.weight": (config.num_kv_heads * head, hidden),
            layer + "self_attn.o_proj.weight": (hidden, config.num_heads * head),
            layer + "self_attn.q_norm.weight": (head,),
            layer + "self_attn.k_norm.weight": (head,),
            layer + "mlp.gate_proj.weight": (config.intermediate_size, hidden),
            layer + "mlp.up_proj.weight": (config.intermediate_size, hidden),
            layer + "mlp.down_proj.weight": (hidden, config.intermediate_size),
            layer + "input_layernorm.weight": (hidden,),
            layer + "post_attention_layernorm.weight": (hidden,),
        }
    shapes["model.norm.weight"] = (hidden,)
    if not config.is_tied:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    return shapes


def check_weights(config: ModelConfig, weights: Mapping[str, Any]) -> dict[str, Tensor]:
    """The model's tensors out of `weights` (tensors or arrays), every one present and of its shape.

    Raises:
        EngineError: one is missing or has another shape; nothing was loaded.
    """
    checked: dict[str, Tensor] = {}
    for name, shape in expected_shapes(config).items():
        if name not in weights:
            raise EngineError(f"weights lack {name}; they belong to another model, nothing was loaded")
        tensor = torch.as_tensor(weights[name])
        if tuple(tensor.shape) != shape:
            raise EngineError(f"weight {name} has shape {tuple(tensor.shape)}, not {shape}; nothing was loaded")
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
