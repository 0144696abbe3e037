"""The learner of one cell: accumulates unnormalised gradients over claimed micro-steps; on the core, applies them once per batch.

Fed by a cell actor with rows of `microstep.v1`; the actor reduces `gradients()` over the cells of the batch, and the core divides by
|E|, clips and steps in `apply`. Weights are constant in a batch, so a row's outcome does not depend on which cell computes it or when.

    learner.zero_gradients()
    for row in claimed: learner.train_microstep(row, fixed_masks)
    update = learner.apply(summed_gradient, num_executions=|E|, num_microsteps=n)      # core only

Weights leave and arrive as one flat float32 buffer in the order of `hf_layout()`, or as a Hugging Face folder.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import cross_entropy

from gyre.errors import RunError, UserError
from gyre.model_shape import read_shape, weight_shapes
from gyre.training.hf import WeightSlot, flat_layout, layout_size, read_companions
from gyre.training.objective import GspoSettings, LogRatio, log_ratio_sums, row_objective
from gyre.training.replica import (
    AdamSettings,
    Layout,
    build_replica,
    packed_logits,
    require_single_rank,
    weight_views,
)
from gyre.training.rows import MicroStepRow, PackedRow, TokenIds, long_tensor


class MicroResult(NamedTuple):
    """What one gradient micro-step did."""

    loss_sum: float
    """Unnormalised loss of the row."""
    target_tokens: int
    """Targets of the row."""
    masks: dict[str, int]
    """M_i of every execution of the row."""
    clipped: tuple[str, ...]
    """Executions wholly in this row whose clip binds (spanning ones are counted where their mask was fixed)."""
    log_ratios: dict[str, LogRatio]
    """Sums of log r_t over this row's targets, by execution."""


class UpdateResult(NamedTuple):
    """What an optimizer update did."""

    grad_norm: float
    """Global norm of the normalised gradient before clipping; 0 where nothing was trained."""
    updated: bool
    """False where the batch had no gradient micro-step: weights, moments and step count stay."""


class MegatronLearner:
    """Trains one replica of a Hugging Face model with Megatron-core, one rank per cell."""

    def __init__(
        self,
        model_dir: Path,
        *,
        layout: Layout | None = None,
        adam: AdamSettings | None = None,
        objective: GspoSettings | None = None,
        temperature: float = 1.0,
        role: Literal["core", "satellite"] = "core",
        device: str = "cpu",
        seed: int = 0,
        load_weights: bool = True,
    ) -> None:
        """Build the replica and load its weights.

        Args:
            model_dir: Hugging Face folder; tokenizer files in it travel to every folder this learner writes.
            layout: of the cell; every size must be 1.
            adam: optimizer settings; used by the core alone.
            objective: bounds of the objective.
            temperature: sampling temperature of the run; log-probabilities on both sides are at it. Those of a greedy run (0) are at 1.
            role: only the core holds optimizer state.
            device: "cpu" or "cuda".
            seed: of initial weights where none are loaded.
            load_weights: False leaves the weights random, e.g. on a satellite that pulls them.
        """
        require_single_rank(layout or Layout())
        self.shape = read_shape(Path(model_dir))
        # Read now: the folder may be a checkpoint, which is deleted when newer ones are there.
        self._companions = read_companions(Path(model_dir))
        self.role = role
        self.temperature = temperature or 1.0
        self.objective = objective or GspoSettings()
        self._device = device
        self._adam = adam or AdamSettings()
        self._replica = build_replica(self.shape, adam=self._adam if role == "core" else None, device=device, seed=seed)
        self._layout = flat_layout(self.shape)
        self._views = weight_views(self._replica.model, self.shape)
        if load_weights:
            self.load_hf(Path(model_dir))

    # Weights.

    def hf_layout(self) -> list[WeightSlot]:
        """Name, shape and offset (in elements) of each weight in a flat buffer, sorted by name."""
        return list(self._layout)

    @property
    def num_weights(self) -> int:
        """Elements of a flat weight buffer."""
        return layout_size(self._layout)

    @torch.no_grad()
    def write_flat(self, buffer: Tensor) -> None:
        """Copy the weights into a flat float32 buffer."""
        for slot in self._layout:
            view = self._views[slot.name]
            buffer[slot.offset : slot.offset + view.numel()].view(view.shape).copy_(view)

    @torch.no_grad()
    def load_flat(self, buffer: Tensor) -> None:
        """Take the weights from a flat float32 buffer."""
        for slot in self._layout:
            view = self._views[slot.name]
            view.copy_(buffer[slot.offset : slot.offset + view.numel()].view(view.shape))

    @torch.no_grad()
    def load_hf(self, model_dir: Path) -> None:
        """Take the weights from a Hugging Face folder; the optimizer's moments stay as they are.

        Raises:
            UserError: the folder lacks a weight, or one has another shape.
        """
        remaining = dict(weight_shapes(self.shape))
        for path in _weight_files(Path(model_dir)):
            with safe_open(path, framework="pt") as tensors:
                for name in sorted(set(tensors.keys()) & set(remaining)):
                    tensor = tensors.get_tensor(name)
                    if tuple(tensor.shape) != remaining.pop(name):
                        raise UserError(
                            f"{path}: {name} has shape {tuple(tensor.shape)}, config.json says {weight_shapes(self.shape)[name]}",
                            hint="the weights and the configuration belong to different models",
                        )
                    view = self._views[name]
                    view.copy_(tensor.to(torch.float32).view(view.shape))
        if remaining:
            raise UserError(
                f"{model_dir}: {len(remaining)} weights are missing, the first is {min(remaining)}",
                hint="give a complete Hugging Face folder",
            )

    @torch.no_grad()
    def save_hf(self, model_dir: Path) -> None:
        """Write a Hugging Face folder in float32: config, weights, and the tokenizer files of the source folder."""
        model_dir.mkdir(parents=True, exist_ok=True)
        flat = torch.empty(self.num_weights, dtype=torch.float32)
        self.write_flat(flat)
        tensors = {slot.name: flat[slot.offset : slot.offset + self._views[slot.name].numel()].view(slot.shape) for slot in self._layout}
        save_file(tensors, model_dir / "model.safetensors", metadata={"format": "pt"})
        config = json.loads(self._companions["config.json"])
        config["dtype"] = "float32"
        config.pop("torch_dtype", None)
        for name, content in (self._companions | {"config.json": (json.dumps(config, indent=2) + "\n").encode()}).items():
            (model_dir / name).write_bytes(content)

    # Micro-steps.

    def train_microstep(self, row: MicroStepRow, fixed_masks: Mapping[str, int]) -> MicroResult:
        """Run forward and backward of one row and add its unnormalised gradient to the accumulation.

        Args:
            row: a `microstep.v1` row of kind 'gradient'.
            fixed_masks: M_i of executions that span rows.
        """
        packed = PackedRow(row, self._device)
        logp_N = self._target_logprobs(packed)
        result = row_objective(logp_N, packed.behavior_logp_N, packed.segments, fixed_masks=fixed_masks, settings=self.objective)
        is_live = any(result.masks[s.execution_id] and s.advantage and s.num_targets for s in packed.segments)
        if is_live:
            result.loss_sum.backward()
        whole = {s.execution_id for s in packed.segments if s.whole}
        return MicroResult(
            loss_sum=float(result.loss_sum.detach()),
            target_tokens=packed.positions_N.numel(),
            masks=result.masks,
            clipped=tuple(sorted(i for i in whole if not result.masks[i])),
            log_ratios=result.log_ratios,
        )

    @torch.no_grad()
    def ratio_item(self, row: MicroStepRow) -> dict[str, LogRatio]:
        """Sum log r_t by execution over a row's targets, forward only."""
        packed = PackedRow(row, self._device)
        logp_N = self._target_logprobs(packed)
        return log_ratio_sums(logp_N - packed.behavior_logp_N, packed.segments)

    @torch.no_grad()
    def logprobs(self, input_ids: TokenIds, cu_seqlens: TokenIds) -> np.ndarray:
        """Log-probability of every token of a packed row at the sampling temperature; 0 for each trajectory's first."""
        bounds = np.asarray(cu_seqlens, dtype=np.int64)
        positions_N = np.setdiff1d(np.arange(bounds[-1]), bounds[:-1])
        logp_T = np.zeros(int(bounds[-1]), dtype=np.float32)
        logp_T[positions_N] = self.logprobs_at(input_ids, bounds, positions_N)
        return logp_T

    @torch.no_grad()
    def logprobs_at(self, input_ids: TokenIds, cu_seqlens: TokenIds, positions: TokenIds) -> np.ndarray:
        """Log-probabilities of the tokens at some positions of a packed row; none may be a trajectory's first."""
        tensors = (long_tensor(values, self._device) for values in (input_ids, cu_seqlens, positions))
        return self._logprobs_at(*tensors).cpu().numpy()

    def _target_logprobs(self, packed: PackedRow) -> Tensor:
        return self._logprobs_at(packed.ids_T, packed.cu_seqlens, packed.positions_N)

    def _logprobs_at(self, ids_T: Tensor, cu_seqlens: Tensor, positions_N: Tensor) -> Tensor:
        logits_NV = packed_logits(self._replica, ids_T, cu_seqlens.to(torch.int32), positions_N - 1)
        if self.temperature != 1.0:
            logits_NV = logits_NV / self.temperature
        return -cross_entropy(logits_NV, ids_T[positions_N], reduction="none")

    # Gradients and updates.

    def gradients(self) -> Tensor:
        """The accumulated, unnormalised gradient: one flat float32 view, in the same order on every cell."""
        return self._replica.grad_buffer

    def zero_gradients(self) -> None:
        """Forget the accumulation."""
        self._replica.ddp.zero_grad_buffer()

    def apply(self, gradient_sum: Tensor | None, *, num_executions: int, num_microsteps: int) -> UpdateResult:
        """Divide by |E|, clip and take one Adam step; then forget the accumulation. Core only.

        Args:
            gradient_sum: sum over the cells of the batch; None takes this cell's own accumulation.
            num_executions: |E|, over the whole batch.
            num_microsteps: gradient micro-steps of the whole batch; with none there is no update at all.
        """
        if self._replica.optimizer is None:
            raise RunError("a satellite was asked for an optimizer update; only the core holds the optimizer")
        if not num_microsteps:
            self.zero_gradients()
            return UpdateResult(grad_norm=0.0, updated=False)
        own = self._replica.grad_buffer
        if gradient_sum is not None and gradient_sum.data_ptr() != own.data_ptr():
            own.copy_(gradient_sum)
        own.div_(num_executions)
        grad_norm = float(torch.linalg.vector_norm(own.double()))
        if not np.isfinite(grad_norm):
            raise RunError(f"the batch's gradient norm is {grad_norm}; the update was not made, the version stays")
        if 0 < self._adam.clip_norm < grad_norm:
            own.mul_(self._adam.clip_norm / grad_norm)
        self._replica.step()
        self.zero_gradients()
        return UpdateResult(grad_norm=grad_norm, updated=True)

    # Role state and checkpoints.

    def release(self) -> None:
        """Give back the memory of training state for the time the cell serves rollouts."""
        self._replica.release(drop_weights=self.role == "satellite")

    def restore(self) -> None:
        """Take the memory back; gradients are zero, a satellite's weights undefined until it loads them."""
        self._replica.restore()

    def save_checkpoint(self, checkpoint_dir: Path) -> None:
        """Write `model/` (Hugging Face folder) and `optimizer.pt` (moments, step count, random state)."""
        if self._replica.optimizer is None:
            raise RunError("a satellite was asked for a checkpoint; only the core holds the optimizer")
        self.save_hf(checkpoint_dir / "model")
        state = {"optimizer": self._replica.optimizer.state_dict(), "rng": torch.get_rng_state()}
        torch.save(state, checkpoint_dir / "optimizer.pt")

    def load_checkpoint(self, checkpoint_dir: Path) -> None:
        """Take weights, and on the core the optimizer and random state, from a checkpoint."""
        self.load_hf(checkpoint_dir / "model")
        if self._replica.optimizer is not None:
            state = torch.load(checkpoint_dir / "optimizer.pt", weights_only=True)
            self._replica.optimizer.load_state_dict(state["optimizer"])
            torch.set_rng_state(state["rng"])


def _weight_files(model_dir: Path) -> list[Path]:
    files = sorted(model_dir.glob("*.safetensors"))
    if not files:
        raise UserError(
            f"{model_dir}: no *.safetensors file holds the weights",
            hint="save the model with save_pretrained, which writes safetensors",
        )
    return files
