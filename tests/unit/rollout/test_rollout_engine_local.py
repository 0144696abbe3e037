"""The embedded engine: what it records is what it sampled from, whatever was cached, batched or loaded meanwhile."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from rollout_engine_support import VOCAB_SIZE, Call, ask, params, write_model  # noqa: E402

from gyre.rollout.engines.local import LocalEngine  # noqa: E402
from gyre.rollout.engines.weights import read_weights  # noqa: E402

PROMPT = [(5 * i * i + i) % 250 for i in range(40)]


@pytest.fixture(scope="module")
def policies(tmp_path_factory):
    folders = [tmp_path_factory.mktemp("policy") for _ in range(2)]
    return [(folder, write_model(folder, seed=seed)) for seed, folder in enumerate(folders)]


@pytest.fixture
def engine(policies):
    opened = LocalEngine(policies[0][0], concurrency=4, num_threads=1)
    yield opened
    opened.close()


def rescore(model, input_ids, output_ids, temperature=1.0):
    """Log-probabilities of an output under a transformers model."""
    ids = torch.tensor([input_ids + output_ids])
    with torch.no_grad():
        logp = torch.log_softmax(model(ids).logits[0] / temperature, -1)
    start = len(input_ids) - 1
    return logp[start : start + len(output_ids)].gather(1, ids[0, len(input_ids) :, None])[:, 0]


def largest_difference(logprobs, reference) -> float:
    return (torch.tensor(logprobs) - reference).abs().max().item()


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_recorded_log_probabilities_are_of_the_distribution_sampled_from(engine, policies, temperature):
    answer = ask(engine, PROMPT, params(30, temperature=temperature))
    assert largest_difference(answer.output_logprobs, rescore(policies[0][1], PROMPT, answer.output_ids, temperature)) < 1e-4


def test_greedy_takes_the_likeliest_token_and_reports_temperature_1(engine, policies):
    answer = ask(engine, PROMPT, params(8, temperature=0.0))
    ids = torch.tensor([PROMPT + answer.output_ids])
    with torch.no_grad():
        likeliest = policies[0][1](ids).logits[0, len(PROMPT) - 1 : -1].argmax(-1)
    assert answer.output_ids == likeliest.tolist()
    assert largest_difference(answer.output_logprobs, rescore(policies[0][1], PROMPT, answer.output_ids)) < 1e-4


def test_the_models_end_token_ends_unless_ignored(engine):
    seeds = range(400)
    ended = next(a for s in seeds if (a := ask(engine, PROMPT, params(9, ignore_eos=False, sampling_seed=s))).matched)
    assert (ended.finish_reason, ended.matched, ended.output_ids[-1]) == ("stop", 257, 257)


def test_a_growing_session_prefills_only_what_is_new(engine, policies):
    first = ask(engine, PROMPT, params(20), "a")
    longer = [*PROMPT, *first.output_ids, 9, 8, 7]
    second = ask(engine, longer, params(10), "b")
    assert first.cached_tokens == 0
    assert second.cached_tokens == len(longer) - 4  # the newest sampled token's KV was never computed
    assert largest_difference(second.output_logprobs, rescore(policies[0][1], longer, second.output_ids)) < 1e-4
    again = ask(engine, longer, params(1), "c")
    assert again.cached_tokens == len(longer) - 1
    assert engine.flush_cache()
    assert ask(engine, longer, params(1), "d").cached_tokens == 0


def test_company_and_cache_change_no_draw(engine):
    alone = ask(engine, PROMPT, params(40, sampling_seed=11), "alone")
    calls = [Call(engine, f"r{i}", PROMPT[: 10 + 9 * i], params(12 + 20 * (i % 2))) for i in range(3)]
    company = ask(engine, PROMPT, params(40, sampling_seed=11), "company")
    for call in calls:
        call.end()
    assert company.output_ids == alone.output_ids
    assert largest_difference(company.output_logprobs, torch.tensor(alone.output_logprobs)) < 1e-4


def test_a_continued_request_draws_what_it_would_have_drawn(engine):
    whole = ask(engine, PROMPT, params(30, sampling_seed=12), "whole")
    begun = ask(engine, PROMPT, params(11, sampling_seed=12), "begun")
    rest = ask(engine, PROMPT + begun.output_ids, params(19, sampling_seed=12), "rest")
    assert begun.output_ids + rest.output_ids == whole.output_ids


def test_equal_engines_answer_alike_and_seeds_differ(policies):
    answers = []
    for seed in (1, 1, 2):
        engine = LocalEngine(policies[0][0], concurrency=1, num_threads=1, seed=seed)
        answers.append(ask(engine, PROMPT, params(30), "same").output_ids)
        engine.close()
    assert answers[0] == answers[1] != answers[2]


def test_each_span_is_of_its_own_version_over_the_whole_context(engine, policies):
    call = Call(engine, "cut", PROMPT, params(100), streamed=True)
    call.next()
    engine.load_weights(read_weights(policies[1][0]), 5)
    answer = call.end()
    assert [span.version for span in answer.weight_versions] == [0, 5]
    cut = answer.weight_versions[1].start
    before, after = answer.output_ids[:cut], answer.output_ids[cut:]
    assert largest_difference(answer.output_logprobs[:cut], rescore(policies[0][1], PROMPT, before)) < 1e-4
    assert largest_difference(answer.output_logprobs[cut:], rescore(policies[1][1], PROMPT + before, after)) < 1e-4
    assert answer.num_retractions == 1


def test_no_prefix_outlives_its_weights(engine, policies):
    first = ask(engine, PROMPT, params(10), "a")
    engine.load_weights(read_weights(policies[1][0]), 1)
    assert ask(engine, PROMPT + first.output_ids, params(1), "b").cached_tokens == 0


def test_loaded_tensors_may_be_changed_afterwards(engine, policies):
    weights = {name: tensor.clone() for name, tensor in read_weights(policies[1][0]).items()}
    engine.load_weights(weights, 1)
    for tensor in weights.values():
        tensor.zero_()
    answer = ask(engine, PROMPT, params(10))
    assert largest_difference(answer.output_logprobs, rescore(policies[1][1], PROMPT, answer.output_ids)) < 1e-4


def test_a_prompt_longer_than_the_budget_of_a_turn(engine, policies, monkeypatch):
    monkeypatch.setattr("gyre.rollout.engines.batch.PREFILL_BUDGET_TOKENS", 16)
    running = Call(engine, "running", PROMPT[:5], params(60))
    prompt = [i % VOCAB_SIZE for i in range(200)]
    answer = ask(engine, prompt, params(5), "long")
    running.end()
    assert largest_difference(answer.output_logprobs, rescore(policies[0][1], prompt, answer.output_ids)) < 1e-4
