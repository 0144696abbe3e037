"""The local engine's decoder against transformers, and what it refuses to load."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from rollout_engine_support import VOCAB_SIZE, write_model  # noqa: E402

from gyre.errors import EngineError, UserError  # noqa: E402
from gyre.model_shape import read_shape, weight_shapes  # noqa: E402
from gyre.rollout.engines.model import Qwen3Model  # noqa: E402
from gyre.rollout.engines.weights import read_end_tokens, read_served_shape, read_weights, unflatten  # noqa: E402

IDS = [(7 * i * i + 3 * i) % VOCAB_SIZE for i in range(90)]


def reference_logp(model):
    with torch.no_grad():
        return torch.log_softmax(model(torch.tensor([IDS])).logits[0], -1)


def open_model(folder: Path) -> Qwen3Model:
    return Qwen3Model(read_served_shape(folder), read_weights(folder), num_slots=4, max_tokens=128)


@pytest.mark.parametrize("is_tied", [True, False])
def test_log_probabilities_are_those_of_transformers(tmp_path, is_tied):
    logp = reference_logp(write_model(tmp_path, is_tied=is_tied))
    scored = open_model(tmp_path).score(IDS)
    expected = logp[:-1].gather(1, torch.tensor(IDS[1:])[:, None])[:, 0]
    assert (scored - expected).abs().max() < 1e-5


def test_chunks_and_batched_steps_give_the_logits_of_the_whole(tmp_path):
    logp = reference_logp(write_model(tmp_path))
    model = open_model(tmp_path)
    model.prefill(IDS[:20], 0, 0, wants_logits=False)
    first = model.prefill(IDS[20:50], 0, 20)
    assert (torch.log_softmax(first[0], -1) - logp[49]).abs().max() < 1e-5
    model.prefill(IDS[:30], 1, 0)
    model.prefill(IDS[:1], 3, 0)
    for step in range(3):  # rows of three lengths, and slot 2 idle
        logits = model.decode([IDS[50 + step], IDS[30 + step], 0, IDS[1 + step]], [50 + step, 30 + step, model.max_tokens, 1 + step])
        found = torch.log_softmax(logits[[0, 1, 3]], -1)
        assert (found - logp[[50 + step, 30 + step, 1 + step]]).abs().max() < 1e-5


def test_moved_and_copied_kv_continues_alike(tmp_path):
    logp = reference_logp(write_model(tmp_path))
    model = open_model(tmp_path)
    model.prefill(IDS[:40], 2, 0)
    model.move_kv(2, 1, 40)
    model.write_kv(0, model.read_kv(1, 0, 40), 40)
    logits = model.decode([IDS[40], IDS[40]], [40, 40])
    assert (torch.log_softmax(logits, -1) - logp[40]).abs().max() < 1e-5


def test_export_gives_the_loaded_weights_back_bit_for_bit(tmp_path):
    write_model(tmp_path, is_tied=False)
    stored, exported = read_weights(tmp_path), open_model(tmp_path).export()
    assert set(exported) == set(stored) == set(weight_shapes(read_shape(tmp_path)))
    assert all(torch.equal(exported[name], stored[name].float()) for name in stored)


def test_weights_that_do_not_fit_leave_the_old_ones(tmp_path):
    write_model(tmp_path)
    model, weights = open_model(tmp_path), read_weights(tmp_path)
    before = model.score(IDS)
    missing = {name: tensor + 1 for name, tensor in weights.items() if "layers.1.mlp.up" not in name}
    with pytest.raises(EngineError, match=r"lack model\.layers\.1\.mlp\.up_proj\.weight.*nothing was loaded"):
        model.load(missing)
    with pytest.raises(EngineError, match=r"model\.norm\.weight has shape \(3,\), not \(32,\)"):
        model.load(weights | {"model.norm.weight": torch.ones(3)})
    assert torch.equal(model.score(IDS), before)


def test_flat_buffers_become_named_views():
    flat = torch.arange(10.0)
    views = unflatten(flat, [("a", (2, 3), 0), ("b", (4,), 6)])
    assert views["a"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert views["b"].data_ptr() == flat[6:].data_ptr()
    with pytest.raises(EngineError, match="c ends at element 11 of a buffer of 10"):
        unflatten(flat, [("c", (5,), 6)])


def change_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_another_architecture_is_not_served(tmp_path):
    write_model(tmp_path)
    change_config(tmp_path, model_type="llama")
    assert not read_shape(tmp_path).has_qk_norm
    with pytest.raises(UserError, match="serves models of type 'qwen3' only"):
        read_served_shape(tmp_path)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"model_type": "gpt2"}, "model_type is 'gpt2'"),
        ({"attention_bias": True, "mlp_bias": True}, "attention_bias is on; mlp_bias is on"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"rope_parameters": {"rope_type": "yarn"}}, r"the rotary embedding is scaled \(yarn\)"),
        ({"use_sliding_window": True}, "sliding-window attention is on"),
    ],
)
def test_what_gyre_would_compute_wrongly_is_refused(tmp_path, change, sentence):
    write_model(tmp_path)
    change_config(tmp_path, **change)
    with pytest.raises(UserError, match=sentence):
        read_shape(tmp_path)


def test_the_tokens_that_end_an_answer_are_the_generations_own_where_it_has_any(tmp_path):
    (tmp_path / "config.json").write_text('{"eos_token_id": 3}')
    assert read_end_tokens(tmp_path) == (3,)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [5, 6]}')
    assert read_end_tokens(tmp_path) == (5, 6)
    (tmp_path / "generation_config.json").write_text("{}")
    assert read_end_tokens(tmp_path) == (3,)


def test_a_folder_without_a_model_is_named(tmp_path):
    with pytest.raises(UserError, match=r"holds no config\.json"):
        read_shape(tmp_path)
    with pytest.raises(EngineError, match=r"holds no \*\.safetensors"):
        read_weights(tmp_path)
