"""The shape of a decoder, read from a Hugging Face folder, and the weights that follow from it.

Trainer and local engine read a model by this one file, so that they compute the same model or refuse it in the same words.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gyre.errors import UserError

MODEL_TYPES = ("qwen3", "qwen2", "llama")
"""Architectures that gyre knows."""


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
    """Key and value heads; divides `num_heads`."""
    head_dim: int
    """Width of a head."""
    ffn_size: int
    """Inner width of the gated feed-forward."""
    norm_eps: float
    """Added to the mean square in every RMS norm."""
    rope_theta: float
    """Base of the rotary embedding."""
    max_positions: int
    """Longest sequence the model was made for, in tokens."""
    is_tied: bool
    """True where the output weights are the embedding's."""
    has_qk_norm: bool
    """True where query and key heads are normalised (Qwen3)."""
    has_qkv_bias: bool
    """True where query, key and value projections have a bias (Qwen2)."""


def read_shape(model_dir: Path) -> ModelShape:
    """Read the shape of the model in a Hugging Face folder.

    Raises:
        UserError: there is no config.json, or it describes something that gyre would compute wrongly; names all of it.
    """
    path = model_dir / "config.json"
    if not path.is_file():
        raise UserError(
            f"{model_dir} holds no config.json, so it is no Hugging Face model folder",
            hint="give the folder that holds config.json and model.safetensors",
        )
    config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    _refuse_unknown(path, config)
    num_heads = int(config["num_attention_heads"])
    return ModelShape(
        vocab_size=int(config["vocab_size"]),
        hidden_size=int(config["hidden_size"]),
        num_layers=int(config["num_hidden_layers"]),
        num_heads=num_heads,
        num_kv_heads=int(config.get("num_key_value_heads") or num_heads),
        head_dim=int(config.get("head_dim") or config["hidden_size"] // num_heads),
        ffn_size=int(config["intermediate_size"]),
        norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        rope_theta=float(_rope_of(config).get("rope_theta") or config.get("rope_theta") or 10_000.0),
        max_positions=int(config.get("max_position_embeddings", 32_768)),
        is_tied=bool(config.get("tie_word_embeddings", False)),
        has_qk_norm=config["model_type"] == "qwen3",
        has_qkv_bias=config["model_type"] == "qwen2",
    )


def _rope_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    # transformers 5 writes rope_parameters; older folders have rope_theta beside an optional rope_scaling.
    return config.get("rope_parameters") or config.get("rope_scaling") or {}


def _refuse_unknown(path: Path, config: Mapping[str, Any]) -> None:
    rope = _rope_of(config)
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    refusals = {
        f"model_type is {config.get('model_type')!r}": config.get("model_type") not in MODEL_TYPES,
        "attention_bias is on": bool(config.get("attention_bias")),
        "mlp_bias is on": bool(config.get("mlp_bias")),
        "sliding-window attention is on": bool(config.get("use_sliding_window")),
        f"hidden_act is {config.get('hidden_act')!r}": config.get("hidden_act", "silu") != "silu",
        f"the rotary embedding is scaled ({rope_type})": rope_type != "default",
    }
    found = [text for text, applies in refusals.items() if applies]
    if found:
        raise UserError(
            f"{path}: gyre does not compute this model: {'; '.join(found)}",
            hint=f"use a model of type {', '.join(MODEL_TYPES)} with hidden_act 'silu', plain rotary embeddings and none of the rest",
        )


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
