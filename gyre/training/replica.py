"""One complete Megatron replica: model, gradient buffers, optimizer. The only file that imports megatron.

A cell's default process group holds the ranks of this cell and nothing else; what joins cells lives in `groups.py` beside it, so a
lost cell never poisons Megatron's own groups. Gradients accumulate in Megatron's fp32 gradient buffer and are never reduced by it:
the core adds up cells itself.

`weight_views` gives each Hugging Face weight as a view of the Megatron parameter that holds it (query, key and value are interleaved
per key-value head, gate and up stacked), so loading and saving are copies through views, bit for bit.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import HashStore  # pyright: ignore[reportPrivateImportUsage]

from gyre.errors import UserError
from gyre.model_shape import ModelShape
from gyre.training.attention import PackedAttention
from gyre.training.shim import cpu_factories, install_cpu_shim, without_compilation

with warnings.catch_warnings(), without_compilation():
    # Megatron announces that Apex and Transformer Engine are absent, which is no news on a CPU.
    warnings.simplefilter("ignore")
    from megatron.core import parallel_state
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.packed_seq_params import PackedSeqParams
    from megatron.core.transformer.enums import AttnBackend
    from megatron.core.transformer.transformer_config import TransformerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How one cell's replica is spread over its ranks."""

    tp: int = 1
    """Tensor-parallel size."""
    pp: int = 1
    """Pipeline-parallel size."""
    cp: int = 1
    """Context-parallel size."""
    ep: int = 1
    """Expert-parallel size."""
    dp: int = 1
    """Data-parallel size inside the cell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamSettings:
    """Settings of the core's optimizer; the defaults are the paper's."""

    lr: float = 1e-6
    """Learning rate, constant."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Decay of the first and second moment."""
    eps: float = 1e-15
    """Added to the root of the second moment."""
    weight_decay: float = 0.01
    """Decoupled weight decay; biases and norms have none."""
    clip_norm: float = 1.0
    """Largest global gradient norm; 0 turns clipping off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """What a cell trains with."""

    model: GPTModel
    """The bare model, for its parameters."""
    ddp: DistributedDataParallel
    """The model behind gradient buffers: what forward and backward go through."""
    optimizer: Any
    """Megatron's optimizer on the core; None on a satellite."""
    grad_buffer: Tensor
    """All gradients, flat, float32, in Megatron's order; `param.main_grad` are views of it."""

    def step(self) -> None:
        """Take one optimizer step with the gradient that is in the buffer."""
        with cpu_factories():
            self.optimizer.step()
        # The optimizer leaves `param.grad` pointing into the buffer; the next backward would add to both.
        self.optimizer.zero_grad(set_to_none=True)

    def release(self, *, drop_weights: bool) -> None:
        """Free the gradient buffer, and the weights where another cell holds them; views stay valid objects."""
        for storage in self._storages(drop_weights):
            storage.resize_(0)

    def restore(self) -> None:
        """Allocate again what `release` freed; gradients are zero, dropped weights undefined."""
        for param in self.model.parameters():
            param.untyped_storage().resize_(param.numel() * param.element_size())
        self.grad_buffer.untyped_storage().resize_(self.grad_buffer.numel() * self.grad_buffer.element_size())
        self.ddp.zero_grad_buffer()

    def _storages(self, drop_weights: bool) -> list[Any]:
        weights = [p.untyped_storage() for p in self.model.parameters()] if drop_weights else []
        return [self.grad_buffer.untyped_storage(), *weights]


def require_single_rank(layout: Layout) -> None:
    """Refuse a layout that needs more than one rank per cell.

    Raises:
        UserError: some size is not 1.
    """
    wide = [f"{name}={getattr(layout, name)}" for name in ("tp", "pp", "cp", "ep", "dp") if getattr(layout, name) != 1]
    if wide:
        raise UserError(
            f"resources.cells.layout: {', '.join(wide)} asks for more than one rank per cell, and a cell here has one",
            hint="set every size of the layout to 1",
        )


def ensure_cell_world(device: str) -> None:
    """Make the default process group that holds this cell's one rank, and Megatron's groups in it. Idempotent."""
    if device == "cpu":
        install_cpu_shim()
    if not dist.is_initialized():
        backend = "gloo" if device == "cpu" else "nccl"
        dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    if not parallel_state.model_parallel_is_initialized():
        with cpu_factories():
            parallel_state.initialize_model_parallel()


def build_replica(shape: ModelShape, *, adam: AdamSettings | None, device: str, seed: int) -> Replica:
    """Build a replica with random weights.

    Args:
        shape: of the model.
        adam: the optimizer's settings; None on a satellite, which then holds no optimizer state.
        device: "cpu" or "cuda".
        seed: of the initial weights.
    """
    ensure_cell_world(device)
    with cpu_factories(), torch.random.fork_rng(devices=[]), _quiet():
        torch.manual_seed(seed)
        config = _transformer_config(shape)
        model = GPTModel(
            config=config,
            transformer_layer_spec=_layer_spec(shape),
            vocab_size=shape.vocab_size,
            max_sequence_length=shape.max_positions,
            share_embeddings_and_output_weights=shape.is_tied,
            position_embedding_type="rope",
            rotary_base=shape.rope_theta,  # pyright: ignore[reportArgumentType]
        ).to(device)
        ddp_config = DistributedDataParallelConfig(grad_reduce_in_fp32=True, overlap_grad_reduce=False)
        ddp = DistributedDataParallel(config=config, ddp_config=ddp_config, module=model)
        optimizer = None if adam is None else _optimizer(adam, ddp)
    [buffer] = cast("list[Any]", ddp.buffers)  # one data type, hence one buffer; nn.Module has a method of this name
    return Replica(model=model, ddp=ddp, optimizer=optimizer, grad_buffer=buffer.grad_data)


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _transformer_config(shape: ModelShape) -> TransformerConfig:
    return TransformerConfig(
        num_layers=shape.num_layers,
        hidden_size=shape.hidden_size,
        ffn_hidden_size=shape.ffn_size,
        num_attention_heads=shape.num_heads,
        num_query_groups=shape.num_kv_heads,
        kv_channels=shape.head_dim,
        layernorm_epsilon=shape.norm_eps,
        normalization="RMSNorm",
        qk_layernorm=shape.has_qk_norm,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        add_qkv_bias=shape.has_qkv_bias,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        attention_backend=AttnBackend.local,
        use_cpu_initialization=True,
        params_dtype=torch.float32,
        pipeline_dtype=torch.float32,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
        apply_rope_fusion=False,
        persist_layer_norm=False,
    )


def _layer_spec(shape: ModelShape) -> Any:
    spec: Any = get_gpt_layer_local_spec(qk_layernorm=shape.has_qk_norm, normalization="RMSNorm")
    spec.submodules.self_attention.submodules.core_attention = PackedAttention
    return spec


def _optimizer(adam: AdamSettings, ddp: DistributedDataParallel) -> Any:
    optimizer = get_megatron_optimizer(_optimizer_config(adam), [ddp])
    for group in optimizer.param_groups:
        # Megatron leaves this product to its learning-rate scheduler, which a constant rate has no use for.
        group["weight_decay"] = adam.weight_decay * group["wd_mult"]
    return optimizer


def _optimizer_config(adam: AdamSettings) -> OptimizerConfig:
    return OptimizerConfig(
        optimizer="adam",
        lr=adam.lr,
        min_lr=adam.lr,
        adam_beta1=adam.betas[0],
        adam_beta2=adam.betas[1],
        adam_eps=adam.eps,
        weight_decay=adam.weight_decay,
        # The learner clips on the flat buffer: Megatron's own clip insists on CUDA tensors and would read every gradient again.
        clip_grad=0.0,
        use_distributed_optimizer=False,
    )


def packed_logits(replica: Replica, input_ids_T: Tensor, cu_seqlens: Tensor, positions_N: Tensor) -> Tensor:
    """Logits [N, V] after the tokens at `positions_N` of a packed row; only these rows meet the output weights."""
    lengths = cu_seqlens[1:] - cu_seqlens[:-1]
    longest = int(lengths.max())
    packed = PackedSeqParams(
        qkv_format="thd",
        cu_seqlens_q=cu_seqlens,
        cu_seqlens_kv=cu_seqlens,
        max_seqlen_q=longest,
        max_seqlen_kv=longest,
    )
    starts_T = torch.repeat_interleave(cu_seqlens[:-1], lengths)
    position_ids_T = torch.arange(input_ids_T.numel(), device=input_ids_T.device) - starts_T

    def keep_targets(_layer: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (inputs[0].index_select(0, positions_N), *inputs[1:])

    hook = replica.model.output_layer.register_forward_pre_hook(keep_targets)
    try:
        logits_1NV = replica.ddp(input_ids_T.unsqueeze(0), position_ids_T.unsqueeze(0), attention_mask=None, packed_seq_params=packed)
    finally:
        hook.remove()
    return logits_1NV.squeeze(0)


def weight_views(model: GPTModel, shape: ModelShape) -> dict[str, Tensor]:
    """Each Hugging Face weight as a view of the Megatron parameter that holds it.

    A view may have more dimensions than the weight; `hf_tensor.view(view.shape)` lines them up.
    """
    params = dict(model.named_parameters())
    views: dict[str, Tensor] = {
        "model.embed_tokens.weight": params["embedding.word_embeddings.weight"],
        "model.norm.weight": params["decoder.final_layernorm.weight"],
    }
    if not shape.is_tied:
        views["lm_head.weight"] = params["output_layer.weight"]
    for layer in range(shape.num_layers):
        views.update(_layer_views(params, shape, layer))
    return {name: view.detach() for name, view in views.items()}


def _layer_views(params: dict[str, Any], shape: ModelShape, layer: int) -> Iterator[tuple[str, Tensor]]:
    ours, theirs = f"decoder.layers.{layer}.", f"model.layers.{layer}."
    yield theirs + "input_layernorm.weight", params[ours + "input_layernorm.weight"]
    yield theirs + "post_attention_layernorm.weight", params[ours + "pre_mlp_layernorm.weight"]
    yield theirs + "self_attn.o_proj.weight", params[ours + "self_attention.linear_proj.weight"]
    yield theirs + "mlp.down_proj.weight", params[ours + "mlp.linear_fc2.weight"]
    gate_and_up = params[ours + "mlp.linear_fc1.weight"].detach().view(2, shape.ffn_size, shape.hidden_size)
    yield theirs + "mlp.gate_proj.weight", gate_and_up[0]
    yield theirs + "mlp.up_proj.weight", gate_and_up[1]
    if shape.has_qk_norm:
        yield theirs + "self_attn.q_norm.weight", params[ours + "self_attention.q_layernorm.weight"]
        yield theirs + "self_attn.k_norm.weight", params[ours + "self_attention.k_layernorm.weight"]
    queries = shape.num_heads // shape.num_kv_heads
    for kind in ("weight", "bias") if shape.has_qkv_bias else ("weight",):
        qkv = params[f"{ours}self_attention.linear_qkv.{kind}"].detach()
        grouped = qkv.view(shape.num_kv_heads, queries + 2, shape.head_dim, *qkv.shape[1:])
        yield f"{theirs}self_attn.q_proj.{kind}", grouped[:, :queries]
        yield f"{theirs}self_attn.k_proj.{kind}", grouped[:, queries]
        yield f"{theirs}self_attn.v_proj.{kind}", grouped[:, queries + 1]
