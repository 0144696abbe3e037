"""The Megatron replica against transformers: logits, gradients, weights both ways, one Adam step."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from training_models import make_model
from training_rows import make_paths, pack

from gyre.errors import RunError, UserError
from gyre.training.learner import MegatronLearner
from gyre.training.objective import GspoSettings
from gyre.training.replica import AdamSettings, Layout

pytestmark = pytest.mark.torch

OPEN_CLIP = GspoSettings(clip_low=1e-9, clip_high=1e9)


def reference(model_dir: Path):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32, attn_implementation="eager")


def reference_logprobs(model: torch.nn.Module, ids: np.ndarray, temperature: float) -> torch.Tensor:
    """Log-probability of each token after the first."""
    tokens = torch.tensor(ids)[None]
    logits = model(tokens).logits[0, :-1] / temperature
    return torch.log_softmax(logits, -1).gather(1, tokens[0, 1:, None])[:, 0]


@pytest.mark.parametrize("kind", ["qwen3", "qwen3-untied", "qwen2", "llama"])
def test_log_probabilities_of_packed_rows_match_transformers(tmp_path: Path, kind: str):
    model_dir = make_model(tmp_path / kind, kind)
    learner = MegatronLearner(model_dir, temperature=0.7, role="satellite")
    rng = np.random.default_rng(0)
    lengths = [9, 1, 23, 14]
    ids = rng.integers(0, 61, sum(lengths))
    bounds = np.cumsum([0, *lengths])
    got = learner.logprobs(ids, bounds)
    model = reference(model_dir)
    for start, end in pairwise(bounds):
        assert got[start] == 0
        with torch.no_grad():
            expected = reference_logprobs(model, ids[start:end], 0.7).numpy() if end - start > 1 else np.zeros(0)
        np.testing.assert_allclose(got[start + 1 : end], expected, atol=1e-5)


@pytest.mark.parametrize("kind", ["qwen3", "qwen3-untied", "qwen2", "llama"])
def test_weights_round_trip_bit_for_bit(tmp_path: Path, kind: str):
    from safetensors.torch import load_file

    model_dir = make_model(tmp_path / kind, kind)
    (model_dir / "tokenizer_config.json").write_text("{}")
    learner = MegatronLearner(model_dir, role="satellite")
    learner.save_hf(tmp_path / "saved")
    before = load_file(model_dir / "model.safetensors")
    after = load_file(tmp_path / "saved" / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert (tmp_path / "saved" / "tokenizer_config.json").is_file()
    assert reference(tmp_path / "saved").config.model_type in kind

    flat = torch.empty(learner.num_weights)
    learner.write_flat(flat)
    layout = learner.hf_layout()
    assert [slot.name for slot in layout] == sorted(before)
    for slot in layout:
        piece = flat[slot.offset : slot.offset + before[slot.name].numel()]
        assert torch.equal(piece, before[slot.name].flatten())
    other = MegatronLearner(model_dir, role="satellite", load_weights=False, seed=5)
    other.load_flat(flat)
    copied = torch.empty_like(flat)
    other.write_flat(copied)
    assert torch.equal(copied, flat)


def test_gradient_and_adam_step_match_a_reference(tiny_model: Path):
    """A whole batch through transformers and torch's Adam gives the same norm and, after it, the same weights."""
    adam = AdamSettings(lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0, clip_norm=0.05)
    learner = MegatronLearner(tiny_model, adam=adam, objective=OPEN_CLIP)
    paths = make_paths(learner, num_executions=3, seed=1)
    for row in pack(paths, [[i] for i in range(len(paths))]):
        masks = {p.execution_id: 1 for p in paths}
        learner.train_microstep(row, masks)

    model = reference(tiny_model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    loss = torch.zeros(())
    for path in paths:
        mask = torch.tensor(path.target_mask[1:])
        logp = reference_logprobs(model, path.input_ids, 1.0)[mask]
        weight = (logp.detach() - torch.tensor(path.behavior[1:])[mask]).exp().clamp(max=5.0)
        loss = loss - path.advantage / path.execution_targets * (weight * logp).sum()
    (loss / 3).backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
    optimizer.step()

    update = learner.apply(None, num_executions=3, num_microsteps=len(paths))
    assert update.updated
    assert update.grad_norm == pytest.approx(float(norm), rel=1e-4)
    assert update.grad_norm > 0.05
    flat = torch.empty(learner.num_weights)
    learner.write_flat(flat)
    state = model.state_dict()
    for slot in learner.hf_layout():
        piece = flat[slot.offset : slot.offset + state[slot.name].numel()].view(slot.shape)
        # Adam's first step is a sign step: where a gradient is rounding noise its sign may differ.
        assert float((piece - state[slot.name]).abs().mean()) < 2e-5
    assert float(learner.gradients().abs().max()) == 0.0


def test_weight_decay_spares_norms_and_biases(tmp_path: Path):
    """A zero gradient leaves the decay alone to move the weights: matrices shrink, vectors stay, also after a resumption."""
    adam = AdamSettings(lr=0.1, weight_decay=0.5)
    learner = MegatronLearner(make_model(tmp_path / "qwen2", "qwen2"), adam=adam)
    learner.save_checkpoint(tmp_path / "checkpoint")
    resumed = MegatronLearner(tmp_path / "checkpoint" / "model", adam=adam)
    resumed.load_checkpoint(tmp_path / "checkpoint")
    for core in (learner, resumed):
        before, after = torch.empty(core.num_weights), torch.empty(core.num_weights)
        core.write_flat(before)
        core.apply(torch.zeros_like(core.gradients()), num_executions=1, num_microsteps=1)
        core.write_flat(after)
        for slot in core.hf_layout():
            place = slice(slot.offset, slot.offset + math.prod(slot.shape))
            torch.testing.assert_close(after[place], before[place] * (0.95 if len(slot.shape) > 1 else 1.0))


def test_a_batch_without_gradient_microsteps_makes_no_update(tiny_model: Path):
    learner = MegatronLearner(tiny_model, adam=AdamSettings(lr=0.1, weight_decay=0.1))
    before, after = torch.empty(learner.num_weights), torch.empty(learner.num_weights)
    learner.write_flat(before)
    assert learner.apply(None, num_executions=4, num_microsteps=0) == (0.0, False)
    learner.write_flat(after)
    assert torch.equal(before, after)


def test_two_updates_in_a_row_do_not_mix_gradients(tiny_model: Path):
    learner = MegatronLearner(tiny_model, adam=AdamSettings(lr=0.0, weight_decay=0.0), objective=OPEN_CLIP)
    [row] = pack(make_paths(learner, num_executions=1, seed=2)[:1], [[0]])
    row["segments"][0]["whole"] = False
    norms = []
    for _ in range(3):
        learner.train_microstep(row, {"e0": 1})
        norms.append(learner.apply(learner.gradients().clone(), num_executions=2, num_microsteps=1).grad_norm)
    assert norms[1] == pytest.approx(norms[0], rel=1e-6)
    assert norms[2] == pytest.approx(norms[0], rel=1e-6)


def test_a_row_without_live_execution_adds_nothing(tiny_model: Path):
    learner = MegatronLearner(tiny_model, role="satellite")
    paths = make_paths(learner, num_executions=1, seed=2)[:1]
    paths[0].execution_targets = int(paths[0].target_mask.sum())
    paths[0].advantage = 0.0
    result = learner.train_microstep(pack(paths, [[0]])[0], {})
    assert result.loss_sum == 0
    assert result.target_tokens == paths[0].execution_targets
    assert float(learner.gradients().abs().max()) == 0.0


def test_a_satellite_holds_no_optimizer(tiny_model: Path, tmp_path: Path):
    learner = MegatronLearner(tiny_model, role="satellite")
    with pytest.raises(RunError, match="only the core holds the optimizer"):
        learner.apply(None, num_executions=1, num_microsteps=1)
    with pytest.raises(RunError, match="only the core holds the optimizer"):
        learner.save_checkpoint(tmp_path)


def test_a_non_finite_gradient_makes_no_update(tiny_model: Path):
    learner = MegatronLearner(tiny_model)
    broken = torch.full_like(learner.gradients(), float("nan"))
    with pytest.raises(RunError, match="gradient norm is nan"):
        learner.apply(broken, num_executions=1, num_microsteps=1)


def test_training_goes_on_from_a_checkpoint_exactly(tiny_model: Path, tmp_path: Path):
    adam = AdamSettings(lr=1e-2)
    straight = MegatronLearner(tiny_model, adam=adam, objective=OPEN_CLIP)
    paths = make_paths(straight, num_executions=2, seed=4)
    rows = pack(paths, [list(range(len(paths)))])

    def step(learner: MegatronLearner) -> None:
        learner.train_microstep(rows[0], {})
        learner.apply(None, num_executions=2, num_microsteps=1)

    step(straight)
    straight.save_checkpoint(tmp_path)
    step(straight)
    resumed = MegatronLearner(tiny_model, adam=adam, objective=OPEN_CLIP, load_weights=False, seed=9)
    resumed.load_checkpoint(tmp_path)
    step(resumed)
    expected, got = torch.empty(straight.num_weights), torch.empty(straight.num_weights)
    straight.write_flat(expected)
    resumed.write_flat(got)
    assert torch.equal(got, expected)


def test_a_learner_outlives_the_folder_that_it_started_from(tmp_path: Path):
    """A checkpoint is the starting point of a run and of every resumption, and is deleted once newer ones are there."""
    source = make_model(tmp_path / "source", "qwen3")
    (source / "tokenizer_config.json").write_text("{}")
    learner = MegatronLearner(source, role="satellite")
    shutil.rmtree(source)
    learner.save_hf(tmp_path / "saved")
    assert (tmp_path / "saved" / "tokenizer_config.json").read_text() == "{}"
    again = MegatronLearner(tmp_path / "saved", role="satellite")
    assert again.shape == learner.shape


def test_release_and_restore(tiny_model: Path):
    core, satellite = MegatronLearner(tiny_model), MegatronLearner(tiny_model, role="satellite")
    flat = torch.empty(core.num_weights)
    core.write_flat(flat)
    for learner in (core, satellite):
        learner.release()
        assert learner.gradients().untyped_storage().nbytes() == 0
        learner.restore()
    satellite.load_flat(flat)
    [row] = pack(make_paths(core, num_executions=1, seed=2)[:1], [[0]])
    row["segments"][0]["whole"] = False
    for learner in (core, satellite):
        learner.train_microstep(row, {"e0": 1})
    assert torch.equal(core.gradients(), satellite.gradients())
    assert float(core.gradients().norm()) > 0


def test_what_cannot_be_trained_is_refused(tmp_path: Path, tiny_model: Path):
    with pytest.raises(UserError, match=r"tp=2 asks for more than one rank per cell"):
        MegatronLearner(tiny_model, layout=Layout(tp=2))
    with pytest.raises(UserError, match=r"no config\.json"):
        MegatronLearner(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(UserError, match="model_type is 'gpt2'"):
        MegatronLearner(tmp_path)
    shaped = json.loads((tiny_model / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(shaped | {"attention_bias": True}))
    with pytest.raises(UserError, match="attention_bias is on"):
        MegatronLearner(tmp_path)
    (tmp_path / "config.json").write_bytes((tiny_model / "config.json").read_bytes())
    with pytest.raises(UserError, match=r"no \*\.safetensors file"):
        MegatronLearner(tmp_path)


def test_a_process_that_imports_nothing_else_trains(tiny_model: Path):
    """Neither transformers nor torch's compiler has been imported before: what a cell's process looks like."""
    code = f"""
from pathlib import Path
from gyre.training.learner import MegatronLearner
learner = MegatronLearner(Path({str(tiny_model)!r}))
assert learner.apply(learner.gradients() + 1, num_executions=1, num_microsteps=1).updated
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_target_without_context_is_refused(tiny_model: Path):
    learner = MegatronLearner(tiny_model, role="satellite")
    [row] = pack(make_paths(learner, num_executions=1, seed=2)[:1], [[0]])
    row["target_mask"][0] = True
    with pytest.raises(ValueError, match="micro-step m0: a trajectory's first token is a target"):
        learner.train_microstep(row, {"e0": 1})
