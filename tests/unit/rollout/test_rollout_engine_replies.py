"""What the client makes of answers of SGLang's many versions. Pure."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gyre.errors import EngineError
from gyre.rollout.engines.protocol import EngineRefusedError, Generation, VersionSpan, join_generations
from gyre.rollout.engines.replies import StreamReader, error_of, error_text, parse_generation, version_number
from gyre.rollout.engines.wire import parse_request, parse_sampling, render_reply


def read(reply, initial_version=0) -> Generation:
    return parse_generation(reply, initial_version=initial_version, where="e")


def triples(ids):
    return [[-0.5, token, None] for token in ids]


REPLY_0_5_23 = {
    "text": "#####",
    "output_ids": [9, 9, 8],
    "meta_info": {
        "id": "r1",
        "finish_reason": {"type": "stop", "matched": 8},
        "prompt_tokens": 5,
        "weight_version": "13",
        "num_retractions": 1,
        "output_token_logprobs": triples([9, 9, 8]),
        "completion_tokens": 3,
        "cached_tokens": 4,
        "weight_versions": [{"version": "12", "start": 0, "end": 2}, {"version": "13", "start": 2, "end": 3}],
    },
}


def test_a_newest_answer():
    generation = read(REPLY_0_5_23)
    assert generation.output_ids == [9, 9, 8]
    assert generation.weight_versions == [VersionSpan(12, 0, 2), VersionSpan(13, 2, 3)]
    assert (generation.finish_reason, generation.matched) == ("stop", 8)
    assert (generation.cached_tokens, generation.prompt_tokens, generation.num_retractions) == (4, 5, 1)
    assert generation.has_exact_versions


def test_an_old_answer_without_ids_and_spans():
    meta = {"finish_reason": {"type": "length", "length": 2}, "output_token_logprobs": triples([4, 5]), "total_retractions": 2}
    generation = read({"text": "ab", "meta_info": meta}, initial_version=3)
    assert generation.output_ids == [4, 5]
    assert generation.weight_versions == [VersionSpan(3, 0, 2)]
    assert not generation.has_exact_versions
    assert generation.num_retractions == 2


def test_an_abort_in_the_queue_is_an_empty_answer():
    generation = read({"text": "", "meta_info": {"id": "x", "finish_reason": {"type": "abort", "message": "Aborted"}}})
    assert (generation.finish_reason, generation.output_ids, generation.weight_versions) == ("abort", [], [])


def test_spans_with_a_gap_are_not_believed():
    meta = dict(REPLY_0_5_23["meta_info"], weight_versions=[{"version": "12", "start": 1, "end": 3}])
    generation = read({"output_ids": [9, 9, 8], "meta_info": meta})
    assert generation.weight_versions == [VersionSpan(13, 0, 3)]
    assert not generation.has_exact_versions


@pytest.mark.parametrize(
    ("logprobs", "sentence"),
    [
        (triples([9, 9]), "3 output tokens, but log-probabilities of 2 tokens"),
        (triples([9, 9, 7]), "log-probabilities of 3 other tokens"),
        ([[None, 9, None], *triples([9, 8])], "None is no finite number"),
        ([[float("nan"), 9, None], *triples([9, 8])], "nan is no finite number"),
    ],
)
def test_log_probabilities_that_do_not_fit_are_an_error(logprobs, sentence):
    meta = dict(REPLY_0_5_23["meta_info"], output_token_logprobs=logprobs)
    with pytest.raises(EngineError, match=sentence):
        read({"output_ids": [9, 9, 8], "meta_info": meta})


def test_an_abort_with_a_status_is_that_error():
    finish = {"type": "abort", "message": "too long", "status_code": 400}
    with pytest.raises(EngineRefusedError, match="HTTP 400: too long"):
        read({"output_ids": [], "meta_info": {"finish_reason": finish}})
    with pytest.raises(EngineError, match="unknown finish reason 'odd'"):
        read({"output_ids": [], "meta_info": {"finish_reason": {"type": "odd"}}})


def test_version_names():
    assert [version_number(name, 5, "e") for name in ("default", None, "12", "step-7", 3)] == [5, 5, 12, 7, 3]
    with pytest.raises(EngineError, match="ends in no number"):
        version_number("latest", 0, "e")


def test_three_shapes_of_errors():
    bodies = ['{"error": "a"}', '{"error": {"message": "b"}}', '{"object": "error", "message": "c"}', "<html>", ""]
    assert [error_text(body) for body in bodies] == ["a", "b", "c", "<html>", "no reason given"]


@settings(max_examples=50, deadline=None)
@given(
    ids=st.lists(st.integers(0, 99), min_size=1, max_size=20),
    cuts=st.sets(st.integers(1, 19)),
    is_cumulative=st.booleans(),
)
def test_streams_of_both_kinds_give_the_same_answer(ids, cuts, is_cumulative):
    ends = [*sorted(cut for cut in cuts if cut < len(ids)), len(ids)]
    reader, seen, start = StreamReader(initial_version=0, where="e"), [], 0
    for end in ends:
        part = ids[0 if is_cumulative else start : end]
        meta = {
            "completion_tokens": end,
            "output_token_logprobs": triples(part),
            "finish_reason": {"type": "length"} if end == len(ids) else None,
            "weight_versions": [{"version": "1", "start": 0, "end": end}],
        }
        seen.append(reader.feed(b"data: " + json.dumps({"output_ids": part, "meta_info": meta}).encode() + b"\n"))
        assert reader.feed(b"\n") is None
        start = end
    assert reader.feed(b"data: [DONE]") is None
    assert reader.is_finished
    assert [generation.output_ids for generation in seen] == [ids[:end] for end in ends]
    assert seen[-1].weight_versions == [VersionSpan(1, 0, len(ids))]


def test_lost_tokens_and_errors_in_a_stream_are_errors():
    def chunk(ids, total):
        meta = {"completion_tokens": total, "output_token_logprobs": triples(ids)}
        return b"data: " + json.dumps({"output_ids": ids, "meta_info": meta}).encode()

    reader = StreamReader(initial_version=0, where="e")
    reader.feed(chunk([1], 1))
    with pytest.raises(EngineError, match="a chunk of 1 tokens after 1, but 3 in all; tokens were lost"):
        reader.feed(chunk([2], 3))
    with pytest.raises(EngineRefusedError, match="too long"):
        reader.feed(b'data: {"error": {"message": "too long", "code": 400}}')
    with pytest.raises(EngineError, match="unreadable stream chunk"):
        reader.feed(b"data: {")


def test_an_abort_in_the_queue_keeps_what_the_stream_had():
    meta = {"completion_tokens": 2, "output_token_logprobs": triples([4, 5]), "weight_versions": [{"version": "1", "start": 0, "end": 2}]}
    reader = StreamReader(initial_version=0, where="e")
    reader.feed(b"data: " + json.dumps({"output_ids": [4, 5], "meta_info": meta}).encode())
    # Put back when new weights came, then aborted before it had a slot again.
    ended = {"finish_reason": {"type": "abort", "message": "Aborted"}, "completion_tokens": 0, "weight_version": "2"}
    generation = reader.feed(b"data: " + json.dumps({"text": "", "meta_info": ended}).encode())
    assert generation is not None
    assert (generation.output_ids, generation.finish_reason, reader.is_finished) == ([4, 5], "abort", True)
    assert (generation.weight_versions, generation.has_exact_versions) == ([VersionSpan(1, 0, 2)], True)


@pytest.mark.parametrize(("status", "is_refusal"), [(400, True), (422, True), (500, False), (503, False)])
def test_a_refusal_is_told_from_a_failure(status, is_refusal):
    assert isinstance(error_of(status, "no"), EngineRefusedError) == is_refusal
    # The id of a request whose connection broke is live for a moment: another id is served.
    assert not isinstance(error_of(status, "Duplicate request ID detected: r1"), EngineRefusedError)


spans = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), max_size=4)


def generation_of(parts) -> Generation:
    listed, end = [], 0
    for version, size in parts:
        listed.append(VersionSpan(version, end, end + size))
        end += size
    return Generation(output_ids=list(range(end)), output_logprobs=[-0.1] * end, weight_versions=listed, finish_reason="abort")


@given(first=spans, second=spans)
def test_joined_answers_keep_every_tokens_version(first, second):
    joined = join_generations(generation_of(first), generation_of(second))
    versions = [span.version for span in joined.weight_versions for _ in range(span.start, span.end)]
    assert versions == [version for version, size in [*first, *second] for _ in range(size)]
    assert [span.start for span in joined.weight_versions[1:]] == [span.end for span in joined.weight_versions[:-1]]


@settings(max_examples=30, deadline=None)
@given(parts=spans, finish=st.sampled_from([None, "stop", "length", "abort"]), cached=st.integers(0, 9))
def test_what_the_server_renders_the_client_reads(parts, finish, cached):
    made = generation_of(parts)
    made = Generation(
        output_ids=made.output_ids,
        output_logprobs=made.output_logprobs,
        weight_versions=[VersionSpan(v, s, e) for v, s, e in made.weight_versions],
        finish_reason=finish,
        matched=3 if finish == "stop" else None,
        prompt_tokens=9,
        cached_tokens=cached,
    )
    body = json.loads(json.dumps(render_reply("r", made, 7, return_logprob=True, decode=lambda ids: None)))
    assert read(body) == made


def test_a_request_as_sglang_documents_it():
    body = {
        "input_ids": [5, 6],
        "sampling_params": {"temperature": 0, "max_new_tokens": 5, "ignore_eos": True, "stop": "x", "stop_token_ids": [3]},
        "return_logprob": True,
        "logprob_start_len": -1,
        "stream": False,
        "rid": "r1",
        "a_new_field": 1,
    }
    request = parse_request(body, new_rid=lambda: "made")
    assert (request.rid, request.input_ids, request.is_streamed) == ("r1", [5, 6], False)
    assert request.sampling.stop == ("x",)
    assert request.sampling.temperature == 0.0
    assert parse_sampling(request.sampling.to_wire()) == request.sampling
    assert parse_request({"input_ids": [1]}, new_rid=lambda: "made").sampling.max_new_tokens == 128


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"input_ids": [[1], [2]]}, "one list of integers"),
        ({"input_ids": None}, "one list of integers"),
        ({"stream": "yes"}, "stream is 'yes'"),
        ({"logprob_start_len": 0}, "only log-probabilities of output tokens"),
        ({"sampling_params": {"temprature": 1}}, "no field 'temprature'"),
        ({"sampling_params": {"n": 2}}, "n = 2 is not served"),
        ({"sampling_params": {"json_schema": "{}"}}, "json_schema"),
        ({"sampling_params": {"max_new_tokens": "many"}}, "wrong type"),
    ],
)
def test_requests_that_cannot_be_served_as_asked_are_refused(change, sentence):
    with pytest.raises(EngineRefusedError, match=sentence):
        parse_request({"input_ids": [1], **change}, new_rid=lambda: "made")
