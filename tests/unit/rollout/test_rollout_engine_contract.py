"""The engine contract over HTTP, the same for every engine of ours: what SGLang's clients may rely on."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator

import aiohttp
import pytest
from rollout_engine_support import VOCAB_SIZE, encode, params, toy_tokenizer, write_model

from gyre.errors import EngineError
from gyre.rollout.engines.batching import BatchedEngine
from gyre.rollout.engines.client import EngineClient
from gyre.rollout.engines.protocol import Engine, EngineRefusedError, Generation, VersionSpan
from gyre.rollout.engines.server import RunningServer, serve_engine

PROMPT = encode("<|im_start|>user\nsay it<|im_end|>\n<|im_start|>assistant\n")
LONG = 100
ANSWER = "The quick brown fox jumps over the lazy dog. " * 4


@pytest.fixture(scope="module")
def model_dirs(tmp_path_factory):
    pytest.importorskip("torch")
    folders = [tmp_path_factory.mktemp("model") for _ in range(2)]
    for seed, folder in enumerate(folders):
        write_model(folder, seed=seed)
    return folders


@pytest.fixture(scope="module", params=[pytest.param("local", marks=pytest.mark.torch), "scripted"])
def served(request) -> Iterator[tuple[BatchedEngine, RunningServer]]:
    if request.param == "local":
        from gyre.rollout.engines.local import LocalEngine

        folder = request.getfixturevalue("model_dirs")[0]
        engine: BatchedEngine = LocalEngine(folder, concurrency=4, num_threads=1)
    else:
        engine = open_scripted(ANSWER)
    slow_down(engine)
    server = serve_engine(engine)
    yield engine, server
    server.stop()
    engine.close()


def slow_down(engine: BatchedEngine) -> None:
    """Make long streams take a second, so that what a test does to them reaches them alive."""
    decode = engine._decoder.decode

    def decode_slowly(rows):
        if any(row is not None and row.request.is_streamed and row.request.sampling.max_new_tokens >= LONG for row in rows):
            time.sleep(0.01)
        return decode(rows)

    engine._decoder.decode = decode_slowly


def open_scripted(answer: str) -> BatchedEngine:
    from gyre.rollout.engines.scripted import ScriptedEngine

    return ScriptedEngine(lambda prompt: answer, tokenizer=toy_tokenizer(), concurrency=4, context_length=256)


@pytest.fixture
def engine(served) -> Iterator[BatchedEngine]:
    yield served[0]
    served[0].abort(None)
    served[0].resume()
    served[0].set_version(0)


@pytest.fixture
async def client(served):
    async with EngineClient(served[1].url, vocab_size=VOCAB_SIZE) as opened:
        yield opened


def check_form(generation: Generation) -> None:
    assert len(generation.output_logprobs) == len(generation.output_ids)
    assert all(logprob <= 1e-6 for logprob in generation.output_logprobs)
    ends = [0, *(span.end for span in generation.weight_versions)]
    assert [span.start for span in generation.weight_versions] == ends[:-1]
    assert ends[-1] == len(generation.output_ids)
    assert generation.has_exact_versions


async def begun(client: EngineClient, engine: Engine, rid: str, **fields):
    """A streamed call that has tokens and is then frozen: (its task, tokens it had)."""
    first: asyncio.Queue[int] = asyncio.Queue()

    fields.setdefault("max_new_tokens", 120)

    async def follow() -> Generation:
        last = Generation()
        async for last in client.generate_stream(PROMPT, params(**fields), rid):
            first.put_nowait(len(last.output_ids))
        return last

    task = asyncio.create_task(follow())
    await first.get()
    await client.pause("in_place")
    return task


async def test_an_answer_of_the_asked_length(engine, client):
    generation = await client.generate(PROMPT, params(12), "rid-length")
    check_form(generation)
    assert (generation.finish_reason, len(generation.output_ids)) == ("length", 12)
    assert generation.prompt_tokens == len(PROMPT)
    assert generation.weight_versions == [VersionSpan(0, 0, 12)]


async def test_a_stream_ends_with_the_whole_answer(engine, client):
    parts = [part async for part in client.generate_stream(PROMPT, params(10, sampling_seed=3), "rid-stream")]
    whole = await client.generate(PROMPT, params(10, sampling_seed=3), "rid-whole")
    assert parts[-1].output_ids == whole.output_ids
    assert [part.finish_reason for part in parts] == [None] * (len(parts) - 1) + ["length"]
    for shorter, longer in itertools.pairwise(parts):
        assert longer.output_ids[: len(shorter.output_ids)] == shorter.output_ids


async def test_a_stop_token_stays_in_the_output(engine, client):
    free = await client.generate(PROMPT, params(20, sampling_seed=4), "rid-free")
    token = free.output_ids[5]
    stopped = await client.generate(PROMPT, params(20, sampling_seed=4, stop_token_ids=(token,)), "rid-stop")
    cut = free.output_ids.index(token) + 1
    assert stopped.output_ids == free.output_ids[:cut]
    assert (stopped.finish_reason, stopped.matched) == ("stop", token)


async def test_a_stop_string_ends_with_the_token_that_completes_it(engine, client):
    free = await client.generate(PROMPT, params(20, sampling_seed=5), "rid-free2")
    text = engine.decode(free.output_ids)
    stop = text[3:5]
    stopped = await client.generate(PROMPT, params(20, sampling_seed=5, stop=(stop,)), "rid-stop2")
    assert (stopped.finish_reason, stopped.matched) == ("stop", stop)
    found = engine.decode(stopped.output_ids)
    assert found.index(stop) == text.index(stop)
    assert stop not in engine.decode(stopped.output_ids[:-1])


async def test_no_new_tokens_is_an_empty_answer(engine, client):
    generation = await client.generate(PROMPT, params(0), "rid-none")
    assert (generation.output_ids, generation.finish_reason) == ([], "length")


async def test_an_abort_gives_the_tokens_so_far_and_spares_longer_ids(engine, client):
    task = await begun(client, engine, "r1")
    other = asyncio.create_task(client.generate(PROMPT, params(3), "r10"))
    await client.abort("r1")
    aborted = await task
    await client.resume()
    check_form(aborted)
    assert aborted.finish_reason == "abort"
    assert 0 < len(aborted.output_ids) < 120
    assert (await other).finish_reason == "length"
    await client.abort("never-heard-of")


async def test_pause_abort_ends_what_runs_and_holds_what_comes(engine, client):
    task = await begun(client, engine, "rid-a")
    await client.pause("abort")
    assert (await task).finish_reason == "abort"
    held = asyncio.create_task(client.generate(PROMPT, params(3), "rid-b"))
    await asyncio.sleep(0.05)
    assert not held.done()
    await client.resume()
    assert (await held).finish_reason == "length"


@pytest.mark.parametrize("mode", ["retract", "in_place"])
async def test_a_pause_changes_no_answer(engine, client, mode):
    undisturbed = await client.generate(PROMPT, params(LONG, sampling_seed=6), "rid-u")
    task = await begun(client, engine, "rid-p", max_new_tokens=LONG, sampling_seed=6)
    await client.pause(mode)
    await client.resume()
    paused = await task
    assert paused.output_ids == undisturbed.output_ids
    assert paused.num_retractions == (mode == "retract")


async def test_a_new_version_in_the_middle_begins_a_new_span(engine, client, model_dirs):
    task = await begun(client, engine, "rid-v", max_new_tokens=LONG)
    had = engine.load()
    await client.load_weights_from_disk(str(model_dirs[1]), 8)
    assert had.num_running == 1
    await client.resume()
    generation = await task
    check_form(generation)
    assert [span.version for span in generation.weight_versions] == [0, 8]
    assert generation.num_retractions == 1
    assert await client.version() == 8
    await client.load_weights_from_disk(str(model_dirs[0]), 0)


async def test_weights_that_cannot_be_read_change_nothing(engine, client, tmp_path, model_dirs):
    await client.load_weights_from_disk(str(model_dirs[0]), 0)
    before = await client.weight_checksums()
    with pytest.raises(EngineError, match="holds no"):
        await client.load_weights_from_disk(str(tmp_path), 9)
    assert await client.version() == 0
    assert await client.weight_checksums() == before
    await client.load_weights_from_disk(str(model_dirs[1]), 1)
    assert await client.weight_checksums() != before
    await client.load_weights_from_disk(str(model_dirs[0]), 0)
    assert await client.weight_checksums() == before


async def test_released_memory_comes_back_with_new_weights(engine, client, model_dirs):
    await client.release_memory()
    assert not await client.is_ready()
    held = asyncio.create_task(client.generate(PROMPT, params(3), "rid-m"))
    await client.resume_memory()
    await asyncio.sleep(0.05)
    assert not held.done()
    assert not await client.is_ready()
    await client.load_weights_from_disk(str(model_dirs[0]), 4)
    assert (await held).weight_versions == [VersionSpan(4, 0, 3)]
    assert await client.is_ready()


async def test_what_an_engine_says_of_itself(engine, client):
    await client.wait_ready(5)
    await client.set_version(6)
    assert await client.version() == 6
    assert (await client.load()).capacity == 4
    assert (await client.server_info())["version"].startswith("gyre-")
    task = await begun(client, engine, "rid-l")
    load = await client.load()
    assert (load.num_running, load.num_waiting) == (1, 0)
    assert load.num_used_tokens >= len(PROMPT)
    assert not await client.flush_cache()
    await client.abort_all()
    await task
    assert await client.flush_cache()


async def test_more_calls_than_slots_all_end(engine, client):
    ends = await asyncio.gather(*(client.generate(PROMPT, params(3 + i), f"rid-{i:03}") for i in range(12)))
    assert [len(end.output_ids) for end in ends] == [3 + i for i in range(12)]
    assert engine.load().num_running == 0


async def test_a_client_that_leaves_frees_its_slot(engine, client):
    task = await begun(client, engine, "rid-gone")
    task.cancel()
    async with asyncio.timeout(10):
        while engine.load().num_running:
            await asyncio.sleep(0.01)


async def test_requests_that_can_never_be_served_are_refused(engine, client, served):
    for ids in ([], [VOCAB_SIZE], [-1]):
        with pytest.raises(EngineRefusedError, match=r"no input token|outside the vocabulary"):
            await client.generate(ids, params(), "rid-bad")
    async with EngineClient(served[1].url) as unchecked:
        with pytest.raises(EngineRefusedError, match="outside the vocabulary"):
            await unchecked.generate([100_000], params(), "rid-bad")
    with pytest.raises(EngineRefusedError, match=r"needs 200 input and 100 new tokens, but the context holds 256"):
        await client.generate([1] * 200, params(100), "rid-long")
    with pytest.raises(EngineRefusedError, match="no field 'temprature'"):
        await client.generate([1], {"temprature": 1}, "rid-typo")
    task = await begun(client, engine, "rid-twice")
    with pytest.raises(EngineError, match="Duplicate request ID") as caught:
        await client.generate(PROMPT, params(), "rid-twice")
    assert not isinstance(caught.value, EngineRefusedError)
    task.cancel()


async def test_a_closed_gate_turns_calls_away_at_once(engine, client, served):
    served[1].set_accepting(False)
    with pytest.raises(EngineError, match=r"HTTP 503.*leaving rollout") as caught:
        await client.generate(PROMPT, params(), "rid-gate")
    served[1].set_accepting(True)
    assert not isinstance(caught.value, EngineRefusedError)


async def test_malformed_bodies_get_the_contracts_errors(engine, served):
    async with aiohttp.ClientSession() as session:
        for body in (b"{", b"[]"):
            async with session.post(served[1].url + "/generate", data=body) as response:
                assert response.status == 400
                assert (await response.json())["error"]["message"]
        async with session.post(served[1].url + "/pause_generation", json={"mode": "nap"}) as response:
            assert response.status == 400


async def test_an_address_without_an_engine_is_named():
    server = serve_engine(engine := open_scripted("x"))
    server.stop()
    engine.close()
    async with EngineClient(server.url) as client:
        assert not await client.is_ready()
        with pytest.raises(EngineError, match=rf"{server.url} cannot be reached"):
            await client.generate([1], params(), "rid")
        with pytest.raises(EngineError, match=rf"{server.url} was not ready within 0.05 s"):
            await client.wait_ready(0.05, poll_s=0.01)


async def test_an_engine_that_closes_gives_back_what_it_has():
    slow_down(engine := open_scripted(ANSWER))
    server = serve_engine(engine)
    async with EngineClient(server.url) as client:
        task = await begun(client, engine, "rid")
        await asyncio.to_thread(engine.close)
        assert (await task).finish_reason == "abort"
        with pytest.raises(EngineError, match="the engine is closed"):
            await client.generate([1], params(), "rid2")
    server.stop()
