"""A Qwen3-architecture decoder in plain torch with preallocated KV: one forward for prompts, one for a batch of single tokens.

Agrees with transformers to 1e-5 in log-probabilities (float32). What makes it fast on one thread is few, wide operations: fused
q-k-v and gate-up weights, rotary embedding as one complex product (for which the rows of q and k are stored as pairs), grouped
query heads laid out as the query length of one attention call per layer.

Shape letters: T tokens of one prompt chunk, B rows of a decode batch, H query heads, K key-value heads, G = H / K, D head width,
C hidden width, L cached positions attended to, S slots, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from gyre.model_shape import ModelShape
from gyre.rollout.engines.weights import check_weights

MASKED = -math.inf


@dataclass(slots=True, kw_only=True)
class _Layer:
    """Fused weights of one decoder layer; matrices are [inputs, outputs]."""

    norm_in: Tensor
    qkv: Tensor
    """[C, (H + 2K)·D]: query heads, key heads (columns of both in rotary pairs), value heads."""
    qk_norm: Tensor
    """[H + K, D], in rotary pairs."""
    out: Tensor
    norm_mlp: Tensor
    gate_up: Tensor
    """[C, 2·F]: gate, then up."""
    down: Tensor


class Qwen3Model:
    """The policy's weights and the KV of `num_slots` sequences of up to `max_tokens` tokens.

    Args:
        config: shape of the model.
        weights: tensors or arrays by Hugging Face name.
        num_slots: sequences decoded at once, at most.
        max_tokens: tokens a slot holds; one more position is kept for rows that are not decoded.
    """

    def __init__(self, config: ModelShape, weights: Mapping[str, object], *, num_slots: int, max_tokens: int) -> None:
        self.config = config
        self.num_slots = num_slots
        self.max_tokens = max_tokens
        pairs = torch.arange(config.head_dim).view(2, -1).t().reshape(-1)
        self._pairs = pairs
        """Row order that puts dimension i and i + D/2, which rotate together, side by side."""
        self._unpairs = torch.argsort(pairs)
        self._mean_C = torch.full((config.hidden_size,), 1.0 / config.hidden_size)
        self._mean_D = torch.full((config.head_dim,), 1.0 / config.head_dim)
        self._eps = torch.tensor(config.norm_eps)
        self._rotation = _rotation_table(config, max_tokens + 1)
        self.allocate_kv()
        self.load(weights)

    # Weights

    def load(self, weights: Mapping[str, object]) -> None:
        """Copy these weights in; raises `EngineError` before anything is changed if they do not fit."""
        named = check_weights(self.config, weights)
        with torch.inference_mode():
            self._embed = named["model.embed_tokens.weight"].float().clone()
            self._norm_out = named["model.norm.weight"].float().clone()
            self._head = self._embed if self.config.is_tied else named["lm_head.weight"].float().clone()
            self._layers = [self._fuse(named, f"model.layers.{i}.") for i in range(self.config.num_layers)]

    def free_weights(self) -> None:
        """Let go of the weights; nothing can be computed until others are loaded."""
        self._layers = []
        self._embed = self._norm_out = self._head = torch.empty(0)

    def _fuse(self, named: Mapping[str, Tensor], layer: str) -> _Layer:
        config = self.config
        query, key, value = (named[f"{layer}self_attn.{part}_proj.weight"].float() for part in "qkv")
        q_norm, k_norm = (named[f"{layer}self_attn.{part}_norm.weight"].float()[self._pairs] for part in "qk")
        return _Layer(
            norm_in=named[layer + "input_layernorm.weight"].float().clone(),
            qkv=torch.cat([self._reorder(query, self._pairs), self._reorder(key, self._pairs), value]).t(),
            qk_norm=torch.cat([q_norm.expand(config.num_heads, -1), k_norm.expand(config.num_kv_heads, -1)]),
            out=named[layer + "self_attn.o_proj.weight"].float().clone().t(),
            norm_mlp=named[layer + "post_attention_layernorm.weight"].float().clone(),
            gate_up=torch.cat([named[f"{layer}mlp.{part}_proj.weight"].float() for part in ("gate", "up")]).t(),
            down=named[layer + "mlp.down_proj.weight"].float().clone().t(),
        )

    def _reorder(self, rows: Tensor, order: Tensor) -> Tensor:
        """Permute the rows of every head."""
        return rows.view(-1, self.config.head_dim, rows.shape[-1])[:, order].reshape(rows.shape)

    def export(self) -> dict[str, Tensor]:
        """The weights it computes with, under their Hugging Face names (float32)."""
        config = self.config
        num_q, num_k = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        named = {"model.embed_tokens.weight": self._embed}
        for i, layer in enumerate(self._layers):
            query, key, value = layer.qkv.t().split([num_q, num_k, num_k])
            gate, up = layer.gate_up.t().chunk(2)
            parts = {
                "self_attn.q_proj": self._reorder(query, self._unpairs),
                "self_attn.k_proj": self._reorder(key, self._unpairs),
                "self_attn.v_proj": value,
                "self_attn.o_proj": layer.out.t(),
                "self_attn.q_norm": layer.qk_norm[0][self._unpairs],
                "self_attn.k_norm": layer.qk_norm[-1][self._unpairs],
                "mlp.gate_proj": gate,
                "mlp.up_proj": up,
                "mlp.down_proj": layer.down.t(),
                "input_layernorm": layer.norm_in,
                "post_attention_layernorm": layer.norm_mlp,
            }
            named |= {f"model.layers.{i}.{name}.weight": tensor for name, tensor in parts.items()}
        named["model.norm.weight"] = self._norm_out
        if not config.is_tied:
            named["lm_head.weight"] = self._head
        return named

    # KV slots

    def allocate_kv(self) -> None:
        """Take the memory of all slots; pages are only touched as tokens are written."""
        config = self.config
        shape = (config.num_layers, 2, self.num_slots, config.num_kv_heads, self.max_tokens + 1, config.head_dim)
        self._kv = torch.zeros(shape)
        heads = torch.arange(self.num_slots * config.num_kv_heads).view(self.num_slots, -1)
        self._row_starts_SK = heads * (self.max_tokens + 1)
        self._flat_kv = self._kv.view(config.num_layers * 2, -1, config.head_dim).unbind()

    def free_kv(self) -> None:
        """Give the memory of all slots back."""
        self._kv = torch.empty(0)
        self._flat_kv = ()

    def read_kv(self, slot: int, start: int, stop: int) -> Tensor:
        """A copy of a slot's KV of tokens `start … stop`, [layers, 2, K, stop - start, D]."""
        return self._kv[:, :, slot, :, start:stop].clone()

    def write_kv(self, slot: int, kv: Tensor, num_tokens: int) -> None:
        """Put the first `num_tokens` of a copy into a slot."""
        self._kv[:, :, slot, :, :num_tokens] = kv[:, :, :, :num_tokens]

    def move_kv(self, source: int, target: int, num_tokens: int) -> None:
        """Copy a slot's first `num_tokens` tokens into another slot."""
        self._kv[:, :, target, :, :num_tokens] = self._kv[:, :, source, :, :num_tokens]

    # Forward

    @torch.inference_mode()
    def prefill(self, token_ids: Sequence[int], slot: int, start: int, *, wants_logits: bool = True) -> Tensor | None:
        """Append a prompt chunk to a slot that holds `start` tokens; logits [1, V] after its last token, if wanted."""
        x_TC = self._forward_chunk(token_ids, slot, start)
        return self._logits(x_TC[-1:]) if wants_logits else None

    @torch.inference_mode()
    def score(self, token_ids: Sequence[int]) -> Tensor:
        """Log-probabilities [T - 1] at temperature 1 of each token after the first; overwrites slot 0."""
        logits_TV = self._logits(self._forward_chunk(token_ids, 0, 0))
        next_ids = torch.tensor(token_ids[1:])
        return torch.log_softmax(logits_TV[:-1], -1).gather(1, next_ids[:, None])[:, 0]

    def _forward_chunk(self, token_ids: Sequence[int], slot: int, start: int) -> Tensor:
        config = self.config
        num_new, length = len(token_ids), start + len(token_ids)
        rotation = self._rotation[start:length]
        mask_TL = None
        if start and num_new > 1:
            mask_TL = torch.ones(num_new, length, dtype=torch.bool).tril(start)
        x_TC = self._embed[torch.tensor(token_ids)]
        cached = self._kv[:, :, slot, :, :length].flatten(0, 1).unbind()
        for index, layer in enumerate(self._layers):
            q_THD, k_TKD, v_TKD = self._project(layer, x_TC, rotation)
            keys, values = cached[2 * index : 2 * index + 2]
            keys[:, start:] = k_TKD.transpose(0, 1)
            values[:, start:] = v_TKD.transpose(0, 1)
            y_HTD = F.scaled_dot_product_attention(
                q_THD.transpose(0, 1)[None],
                keys[None],
                values[None],
                attn_mask=mask_TL,
                is_causal=not start,
                enable_gqa=config.num_heads != config.num_kv_heads,
            )[0]
            x_TC = self._finish_layer(layer, x_TC, y_HTD.transpose(0, 1).reshape(num_new, -1))
        return x_TC

    @torch.inference_mode()
    def decode(self, token_ids: Sequence[int], positions: Sequence[int]) -> Tensor:
        """Append one token to each of the slots 0 … B-1, at these positions; logits [B, V].

        A row whose position is `max_tokens` is idle: it computes on the spare position and its logits mean nothing.
        """
        config = self.config
        num_rows = len(token_ids)
        groups = config.num_heads // config.num_kv_heads
        live = [position for position in positions if position < self.max_tokens]
        length = max(live) + 1
        position_B = torch.tensor(positions)
        write_BK = (self._row_starts_SK[:num_rows] + position_B[:, None]).view(-1)
        rotation = self._rotation[position_B]
        mask = None
        if min(positions) + 1 < length:
            seen_BL = torch.arange(length)[None, :] <= position_B[:, None]
            mask = torch.zeros(num_rows, 1, 1, length).masked_fill_(~seen_BL[:, None, None, :], MASKED)
        x_BC = self._embed[torch.tensor(token_ids)]
        cached = self._kv[:, :, :num_rows, :, :length].flatten(0, 1).unbind()
        for index, layer in enumerate(self._layers):
            q_BHD, k_BKD, v_BKD = self._project(layer, x_BC, rotation)
            self._flat_kv[2 * index].index_copy_(0, write_BK, k_BKD.reshape(-1, config.head_dim))
            self._flat_kv[2 * index + 1].index_copy_(0, write_BK, v_BKD.reshape(-1, config.head_dim))
            y_BKGD = F.scaled_dot_product_attention(
                q_BHD.reshape(num_rows, config.num_kv_heads, groups, config.head_dim),
                cached[2 * index],
                cached[2 * index + 1],
                attn_mask=mask,
            )
            x_BC = self._finish_layer(layer, x_BC, y_BKGD.reshape(num_rows, -1))
        return self._logits(x_BC)

    def _project(self, layer: _Layer, x_NC: Tensor, rotation_ND: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Normed and rotated queries and keys, and values, of N tokens."""
        config = self.config
        qkv = torch.mm(self._norm(x_NC, layer.norm_in), layer.qkv).view(x_NC.shape[0], -1, config.head_dim)
        qk, v_NKD = qkv.split([config.num_heads + config.num_kv_heads, config.num_kv_heads], 1)
        squares = torch.mul(qk, qk).view(-1, config.head_dim)
        scale = torch.addmv(self._eps, squares, self._mean_D).rsqrt_().view(*qk.shape[:2], 1)
        normed = torch.mul(qk, scale).mul_(layer.qk_norm)
        paired = torch.view_as_complex(normed.unflatten(-1, (-1, 2)))
        rotated = torch.view_as_real(paired.mul_(rotation_ND)).flatten(-2)
        q_NHD, k_NKD = rotated.split([config.num_heads, config.num_kv_heads], 1)
        return q_NHD, k_NKD, v_NKD

    def _finish_layer(self, layer: _Layer, x_NC: Tensor, attended_NC: Tensor) -> Tensor:
        x_NC = torch.addmm(x_NC, attended_NC, layer.out)
        gate, up = torch.mm(self._norm(x_NC, layer.norm_mlp), layer.gate_up).chunk(2, -1)
        return torch.addmm(x_NC, F.silu(gate).mul_(up), layer.down)

    def _norm(self, x_NC: Tensor, weight_C: Tensor) -> Tensor:
        """RMS norm; the mean square as one matrix-vector product is half the time of `F.rms_norm` for a few rows."""
        scale_N = torch.addmv(self._eps, torch.mul(x_NC, x_NC), self._mean_C).rsqrt_()
        return torch.mul(x_NC, scale_N[:, None]).mul_(weight_C)

    def _logits(self, x_NC: Tensor) -> Tensor:
        return F.linear(self._norm(x_NC, self._norm_out), self._head)


def _rotation_table(config: ModelShape, num_positions: int) -> Tensor:
    """e^(i·position·frequency) for every position and pair, [positions, 1, D/2], complex."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    frequencies = 1.0 / (config.rope_theta**exponents)
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float32), frequencies)
    return torch.polar(torch.ones_like(angles), angles)[:, None, :]
