"""Causal attention over packed rows: trajectories lie one after another and never see each other.

Megatron-core's own local attention refuses packed rows; this module takes its place in the layer specification. It runs torch's
fused attention once per trajectory, so a row costs the sum of its trajectories' squares and no mask is ever built.

Shapes: T tokens of the row, H query heads, G key-value heads, D head size.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


class PackedAttention(torch.nn.Module):
    """Drop-in `core_attention` of a Megatron layer that honours `cu_seqlens`."""

    def __init__(self, config: Any, layer_number: int, attn_mask_type: Any, attention_type: str, **_other: Any) -> None:
        super().__init__()
        assert attention_type == "self", "packed rows know self-attention only"
        self.is_grouped = config.num_query_groups != config.num_attention_heads

    def forward(
        self,
        query_THD: Tensor,
        key_TGD: Tensor,
        value_TGD: Tensor,
        _attention_mask: Tensor | None,
        *,
        packed_seq_params: Any,
        **_other: Any,
    ) -> Tensor:
        """Attend within each trajectory of the row; returns [T, H, D]."""
        bounds = packed_seq_params.cu_seqlens_q.tolist()
        lengths = [end - start for start, end in pairwise(bounds)]
        # `split` has one backward for the whole row; slices would each pad their gradient to the row's length.
        by_trajectory = zip(*(part.split(lengths) for part in (query_THD, key_TGD, value_TGD)), strict=True)
        pieces = [
            scaled_dot_product_attention(
                query.transpose(0, 1).unsqueeze(0),
                key.transpose(0, 1).unsqueeze(0),
                value.transpose(0, 1).unsqueeze(0),
                is_causal=True,
                enable_gqa=self.is_grouped,
            )
            for query, key, value in by_trajectory
        ]
        return torch.cat(pieces, dim=2).squeeze(0).transpose(0, 1)
