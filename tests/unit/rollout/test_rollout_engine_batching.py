"""The batching loop under random company, pauses, aborts and weight loads: every request ends once, whole. No torch."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rollout_engine_support import Call, ask, encode, params, sequence_of, toy_tokenizer

from gyre.errors import EngineError, UserError
from gyre.rollout.engines.protocol import EngineRefusedError, SamplingParams
from gyre.rollout.engines.scripted import ScriptedEngine, read_script
from gyre.rollout.engines.sequence import Sampled, find_finish

PROMPT = encode("<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n")
ANSWER = "abcdefghijklmnopqrstuvwxyz" * 4
ANSWER_IDS = encode(ANSWER)


def open_engine(answer: str = ANSWER, **fields) -> ScriptedEngine:
    return ScriptedEngine(lambda prompt: answer, tokenizer=toy_tokenizer(), context_length=512, **fields)


events = st.one_of(
    st.tuples(st.just("submit"), st.integers(1, 90)),
    st.tuples(st.just("abort"), st.integers(0, 20)),
    st.tuples(st.sampled_from(["pause_retract", "pause_in_place", "pause_abort", "resume", "load"]), st.just(0)),
)


@settings(max_examples=40, deadline=None)
@given(script=st.lists(events, max_size=20), concurrency=st.integers(1, 3))
def test_every_request_ends_once_and_whole(script, concurrency):
    engine = open_engine(concurrency=concurrency)
    calls, version = [], 0
    try:
        for kind, value in script:
            if kind == "submit":
                calls.append((value, Call(engine, f"{len(calls):03}", PROMPT, params(value))))
            elif kind == "abort":
                engine.abort(f"{value:03}")
            elif kind == "resume":
                engine.resume()
            elif kind == "load":
                version += 1
                engine.load_weights({}, version)
            else:
                engine.pause(kind.removeprefix("pause_"))
        engine.resume()
        for size, call in calls:
            answer = call.end()
            assert answer.output_ids == ANSWER_IDS[: len(answer.output_ids)]
            assert answer.finish_reason == "abort" or len(answer.output_ids) == size
            versions = [v for v, start, end in answer.weight_versions for _ in range(start, end)]
            assert len(versions) == len(answer.output_ids) == len(answer.output_logprobs)
            assert versions == sorted(versions)
        assert engine.load()[:3] == (0, 0, 0)
    finally:
        engine.close()
    assert all(call.num_unread == 0 for _, call in calls)


def test_the_longest_waiting_request_gets_the_free_slot():
    engine = open_engine(concurrency=1)
    order: list[str] = []
    engine.pause("in_place")
    calls = []
    for name in ("a", "b", "c"):
        call = Call(engine, name, PROMPT, params(3))
        calls.append((name, call))
    engine.resume()
    for name, call in calls:
        call.end()
        order.append(name)
        assert all(later.num_unread == 0 or name < later_name for later_name, later in calls)
    engine.close()
    assert order == ["a", "b", "c"]


def test_a_failing_decoder_fails_every_call_with_its_reason():
    def no_sleep(seconds: float) -> None:
        raise MemoryError("out of blocks")

    engine = open_engine(token_delay_s=1.0, sleep=no_sleep)
    call = Call(engine, "a", PROMPT, params(9))
    with pytest.raises(EngineError, match=r"the engine has failed.*out of blocks"):
        call.end()
    with pytest.raises(EngineError, match=r"the engine has failed|the engine is closed"):
        Call(engine, "b", PROMPT, params(9))
    assert not engine.is_ready()
    engine.close()


def test_an_answer_cut_anywhere_goes_on_at_another_engine():
    first, second = open_engine(), open_engine()
    for cut in (1, 13, 50):
        begun = ask(first, PROMPT, params(cut))
        rest = ask(second, PROMPT + begun.output_ids, params(200, ignore_eos=False))
        assert begun.output_ids + rest.output_ids == [*ANSWER_IDS, toy_tokenizer().token_to_id("<|im_end|>")]
        assert rest.finish_reason == "stop"
    first.close()
    second.close()


def test_rules_of_a_file_answer_by_what_the_prompt_holds(tmp_path):
    path = tmp_path / "script.json"
    path.write_text('[{"contains": ["hello", "user"], "answer": "hi"}, {"contains": "bye", "answer": "so long"}]')
    (tmp_path / "tokenizer.json").write_text(toy_tokenizer().to_str())
    engine = ScriptedEngine(path, model_dir=tmp_path)
    answer = ask(engine, PROMPT, params(9, ignore_eos=False))
    assert engine.decode(answer.output_ids) == "hi"
    with pytest.raises(EngineRefusedError, match=r"no rule of .*script\.json answers the prompt that ends in 'what'"):
        ask(engine, encode("what"), params())
    assert engine.decode(ask(engine, encode("bye"), params(9, ignore_eos=False)).output_ids) == "so long"
    engine.close()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("[", "cannot be read"), ('[{"answer": 3}]', "rule 0 is not"), ('[{"answer": "a", "when": "b"}]', "rule 0 is not")],
)
def test_a_script_that_is_none_is_the_users_mistake(tmp_path, text, sentence):
    path = tmp_path / "script.json"
    path.write_text(text)
    with pytest.raises(UserError, match=sentence):
        read_script(path)


def test_missing_tokenizers_and_tokens_are_named(tmp_path):
    with pytest.raises(UserError, match=r"tokenizer\.json does not exist"):
        ScriptedEngine(lambda prompt: "", model_dir=tmp_path)
    with pytest.raises(UserError, match="no token '<end>'"):
        ScriptedEngine(lambda prompt: "", tokenizer=toy_tokenizer(), end_token="<end>")


@settings(max_examples=50, deadline=None)
@given(text=st.text("abé☃", min_size=1, max_size=12), stop=st.text("abé☃", min_size=1, max_size=3))
def test_a_stop_string_is_found_exactly_when_the_text_first_holds_it(text, stop):
    tokenizer = toy_tokenizer()
    sampling = SamplingParams(max_new_tokens=100, stop=(stop,))
    sequence = sequence_of([1, 2], [], sampling)
    for token in encode(text):
        sequence.append(Sampled(token, 0.0), 0)
        finish = find_finish(sequence, (), lambda ids: tokenizer.decode(list(ids)))
        output = tokenizer.decode(sequence.token_ids[2:])
        assert (finish is not None) == (stop in output)
        if finish is not None:
            assert finish.matched == stop
            break


def test_draws_depend_on_seed_and_position_only():
    seeded = SamplingParams(max_new_tokens=9, sampling_seed=4)
    begun, whole = sequence_of([1, 2, 3], [], seeded), sequence_of([1, 2], [3], seeded)
    assert begun.draw_uniform() == whole.draw_uniform()
    draws = [sequence_of([1] * n, [], seeded).draw_uniform() for n in range(1, 400)]
    assert len(set(draws)) == len(draws)
    assert all(0 <= draw < 1 for draw in draws)
    assert abs(sum(draws) / len(draws) - 0.5) < 0.05
