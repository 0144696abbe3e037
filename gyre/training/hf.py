"""Hugging Face folders as gyre reads and writes them: the model's shape, and the names of its weights.

`read_shape` turns a folder's config.json into a `ModelShape`, or into a sentence about what gyre cannot train. `flat_layout` is the
one order in which weights travel: sorted by Hugging Face name, one float32 after another. Trainer, engines and checkpoints share it,
so a flat buffer means the same thing everywhere.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from gyre.errors import UserError

TRAINABLE_MODEL_TYPES = ("qwen3", "qwen2", "llama")
"""Architectures whose weights have a place in Megatron's model."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """What of a config.json decides the weights and the forward pass."""

    vocab_size: int
    """Rows of the embedding."""
    hidden_size: int
    """Width of the residual stream."""
    num_layers: int
    """Decoder layers."""
    num_heads: int
    """Query heads."""
    num_kv_heads: int
    """Key-value heads."""
    head_dim: int
    """Size of a head."""
    ffn_size: int
    """Inner width of the feed-forward part."""
    rms_eps: float
    """Epsilon of the RMS norms."""
    rope_theta: float
    """Base of the rotary embedding."""
    max_positions: int
    """Longest sequence the model was made for, in tokens."""
    is_tied: bool
    """Output weights are the embedding's."""
    has_qk_norm: bool
    """Query and key heads are normalised (Qwen3)."""
    has_qkv_bias: bool
    """Query, key and value projections have a bias (Qwen2)."""


class WeightSlot(NamedTuple):
    """Place of one tensor in a flat buffer."""

    name: str
    """Hugging Face name."""
    shape: tuple[int, ...]
    """Shape of the tensor."""
    offset: int
    """First element in the flat buffer, counted in elements."""


def read_shape(model_dir: Path) -> ModelShape:
    """Read the shape of the model in a Hugging Face folder.

    Raises:
        UserError: there is no config.json, or it describes something that cannot be trained here.
    """
    path = model_dir / "config.json"
    if not path.is_file():
        raise UserError(
            f"{model_dir}: no config.json, so this is no Hugging Face model folder",
            hint="give the folder that holds config.json and model.safetensors",
        )
    config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    _refuse_untrainable(path, config)
    num_heads = int(config["num_attention_heads"])
    return ModelShape(
        vocab_size=int(config["vocab_size"]),
        hidden_size=int(config["hidden_size"]),
        num_layers=int(config["num_hidden_layers"]),
        num_heads=num_heads,
        num_kv_heads=int(config.get("num_key_value_heads") or num_heads),
        head_dim=int(config.get("head_dim") or config["hidden_size"] // num_heads),
        ffn_size=int(config["intermediate_size"]),
        rms_eps=float(config.get("rms_norm_eps", 1e-6)),
        rope_theta=_rope_theta(config),
        max_positions=int(config.get("max_position_embeddings", 32768)),
        is_tied=bool(config.get("tie_word_embeddings", False)),
        has_qk_norm=config["model_type"] == "qwen3",
        has_qkv_bias=config["model_type"] == "qwen2",
    )


def read_companions(model_dir: Path) -> dict[str, bytes]:
    """The files that travel beside the weights, config.json among them, by name."""
    paths = (model_dir / name for name in ("config.json", *TOKENIZER_FILES))
    return {path.name: path.read_bytes() for path in paths if path.is_file()}


def _rope_parameters(config: Mapping[str, Any]) -> Mapping[str, Any]:
    # transformers 5 writes rope_parameters; older folders have rope_theta beside an optional rope_scaling.
    return config.get("rope_parameters") or config.get("rope_scaling") or {}


def _rope_theta(config: Mapping[str, Any]) -> float:
    return float(_rope_parameters(config).get("rope_theta") or config.get("rope_theta") or 10000.0)


def _refuse_untrainable(path: Path, config: Mapping[str, Any]) -> None:
    model_type = config.get("model_type")
    if model_type not in TRAINABLE_MODEL_TYPES:
        raise UserError(
            f"{path}: model_type {model_type!r} cannot be trained",
            hint=f"use a model of type {', '.join(TRAINABLE_MODEL_TYPES)}",
        )
    rope = _rope_parameters(config)
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    if rope_type != "default":
        raise UserError(
            f"{path}: rotary scaling of type {rope_type!r} cannot be trained",
            hint="use a model with plain rotary embeddings",
        )
    if config.get("hidden_act", "silu") != "silu":
        raise UserError(f"{path}: hidden_act {config['hidden_act']!r} cannot be trained", hint="use a model with hidden_act 'silu'")
    for name in ("attention_bias", "mlp_bias"):
        if config.get(name):
            raise UserError(f"{path}: {name} is on, and such a model cannot be trained", hint="use a model without these biases")
    if config.get("use_sliding_window"):
        raise UserError(f"{path}: sliding-window attention cannot be trained", hint="set use_sliding_window to false")


def weight_shapes(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    """Every weight of the model by Hugging Face name."""
    hidden, query, kv = shape.hidden_size, shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (shape.vocab_size, hidden)}
    for layer in range(shape.num_layers):
        prefix = f"model.layers.{layer}."
        shapes[prefix + "input_layernorm.weight"] = (hidden,)
        shapes[prefix + "post_attention_layernorm.weight"] = (hidden,)
        for letter, width in (("q", query), ("k", kv), ("v", kv)):
            shapes[f"{prefix}self_attn.{letter}_proj.weight"] = (width, hidden)
            if shape.has_qkv_bias:
                shapes[f"{prefix}self_attn.{letter}_proj.bias"] = (width,)
        if shape.has_qk_norm:
            shapes[prefix + "self_attn.q_norm.weight"] = (shape.head_dim,)
            shapes[prefix + "self_attn.k_norm.weight"] = (shape.head_dim,)
        shapes[prefix + "self_attn.o_proj.weight"] = (hidden, query)
        shapes[prefix + "mlp.gate_proj.weight"] = (shape.ffn_size, hidden)
        shapes[prefix + "mlp.up_proj.weight"] = (shape.ffn_size, hidden)
        shapes[prefix + "mlp.down_proj.weight"] = (hidden, shape.ffn_size)
    shapes["model.norm.weight"] = (hidden,)
    if not shape.is_tied:
        shapes["lm_head.weight"] = (shape.vocab_size, hidden)
    return shapes


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
