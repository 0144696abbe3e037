"""What is drawn, and the prefix cache's bookkeeping."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from rollout_engine_support import params, sequence_of  # noqa: E402

from gyre.rollout.engines.prefix import PrefixCache, common_prefix  # noqa: E402
from gyre.rollout.engines.sampler import narrow, sample_tokens  # noqa: E402

LOGITS = torch.tensor([2.0, 1.0, 0.0, -1.0, -30.0])


def draw_many(count: int, **fields) -> list[tuple[int, float]]:
    """Draws from LOGITS of `count` requests in one batch."""
    sequences = [sequence_of([0], [], params(9, sampling_seed=seed, **fields)) for seed in range(count)]
    return [tuple(sampled) for sampled in sample_tokens(LOGITS.expand(count, -1), sequences)]


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_frequencies_are_the_probabilities(temperature):
    probabilities = torch.softmax(LOGITS / temperature, -1)
    drawn = draw_many(4000, temperature=temperature)
    counts = torch.bincount(torch.tensor([token for token, _ in drawn]), minlength=5) / len(drawn)
    assert (counts - probabilities).abs().max() < 0.03
    assert all(abs(logprob - probabilities[token].log().item()) < 1e-5 for token, logprob in drawn)


def test_greedy_and_sampled_rows_share_a_batch():
    sequences = [sequence_of([0], [], params(9, temperature=t, sampling_seed=8)) for t in (0.0, 1.0, 0.0)]
    drawn = sample_tokens(LOGITS.expand(3, -1), sequences)
    assert drawn[0] == drawn[2]
    assert drawn[0].token_id == 0
    assert drawn[0].logprob == pytest.approx(torch.log_softmax(LOGITS, -1)[0].item())


def test_cuts_narrow_the_draw_and_leave_the_log_probability():
    whole = torch.log_softmax(LOGITS, -1)
    for fields, allowed in (({"top_k": 2}, {0, 1}), ({"top_p": 0.5}, {0}), ({"min_p": 0.3}, {0, 1})):
        drawn = draw_many(300, **fields)
        assert {token for token, _ in drawn} == allowed
        assert all(logprob == pytest.approx(whole[token].item()) for token, logprob in drawn)


@settings(max_examples=50, deadline=None)
@given(
    weights=st.lists(st.floats(0.001, 1), min_size=1, max_size=12),
    top_k=st.integers(-1, 12).filter(bool),
    top_p=st.floats(0.01, 1),
    min_p=st.floats(0, 1),
)
def test_narrowing_keeps_the_likeliest_and_changes_no_kept_probability(weights, top_k, top_p, min_p):
    probabilities = torch.tensor(weights, dtype=torch.float64)
    kept = narrow(probabilities, params(1, top_k=top_k, top_p=top_p, min_p=min_p))
    chosen = kept > 0
    assert chosen[probabilities.argmax()] or probabilities.max() == probabilities[chosen].max()
    assert torch.equal(kept[chosen], probabilities[chosen])
    if not chosen.all():
        assert probabilities[chosen].min() >= probabilities[~chosen].max()
    if top_k > 0:
        assert chosen.sum() <= top_k


sequences = st.lists(st.integers(0, 2), min_size=1, max_size=8)


@settings(max_examples=50, deadline=None)
@given(stored=st.lists(sequences, max_size=12), wanted=sequences, budget=st.integers(8, 30))
def test_a_lookup_gives_the_longest_stored_prefix_within_the_budget(stored, wanted, budget):
    cache, newest = PrefixCache(budget), None
    for number, ids in enumerate(stored):
        cache.put(ids, torch.full((1,), number))
        newest = ids
        assert cache.num_tokens <= budget
    kv, length = cache.take(wanted)
    assert (kv is None) == (length == 0)
    if kv is not None:
        assert stored[int(kv)][:length] == wanted[:length]
    if newest is not None:
        assert length >= common_prefix(np.array(newest), np.array(wanted))
    cache.clear()
    assert cache.take(wanted) == (None, 0)


def test_the_least_recently_used_entry_goes_first():
    cache = PrefixCache(6)
    cache.put([1, 1, 1], torch.tensor(1))
    cache.put([2, 2, 2], torch.tensor(2))
    cache.take([1, 1])
    cache.put([3, 3], torch.tensor(3))
    assert cache.take([2, 2, 2]) == (None, 0)
    assert cache.take([1, 1, 1])[1] == 3


def test_an_extended_sequence_replaces_its_beginning():
    cache = PrefixCache(100)
    cache.put([1, 2], torch.tensor(1))
    cache.put([1, 2, 3, 4], torch.tensor(2))
    assert cache.num_tokens == 4
