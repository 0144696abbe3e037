"""Asks an engine over SGLang's native HTTP contract, and tolerates what its versions do differently.

The proxy and the cells use it, whether the other side is SGLang or an engine of ours behind `server.serve_engine`. What it takes
care of: three shapes of errors, streams that repeat everything or only the new part, token ids that are only in the
log-probability triples, version spans that an older server lacks, servers that close idle connections after 5 s, and ids outside
the vocabulary (which would kill SGLang). An abort is an answer (finish reason 'abort' with the partial tokens), not an error.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import aiohttp
import numpy as np
import orjson
from numpy.typing import NDArray

from gyre.errors import EngineError
from gyre.rollout.engines.protocol import (
    EngineLoad,
    EngineRefusedError,
    Generation,
    PauseMode,
    SamplingParams,
)
from gyre.rollout.engines.replies import StreamReader, error_of, error_text, parse_generation, version_number

TokenIds = Sequence[int] | NDArray[np.integer[Any]]
KEEPALIVE_S = 3.0
"""Idle connections are dropped after this long: SGLang closes them after 5 s, and a POST on a dying connection is lost."""
CONNECT_TIMEOUT_S = 10.0
"""A loopback or cluster address that takes longer to connect to is as good as dead."""
RETRY_DISCONNECTED = 1
"""A POST whose connection died before any answer is sent again this often; the server aborts what the dead one started."""


def open_session() -> aiohttp.ClientSession:
    """A session fit for engines: unlimited parallel calls, no total time limit, short idle connections."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
    )


class EngineClient:
    """Client of one engine address.

    Args:
        base_url: e.g. `http://127.0.0.1:30000`.
        session: shared session (see `open_session`); without one the client opens its own and `close` ends it.
        vocab_size: ids at or above it are refused before they are sent; None: only negative ids are.
        initial_version: what an engine calls 'default' before its first update.
        api_key: bearer key of servers that were started with one.
    """

    def __init__(
        self,
        base_url: str,
        session: aiohttp.ClientSession | None = None,
        *,
        vocab_size: int | None = None,
        initial_version: int = 0,
        api_key: str | None = None,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self._session = session
        self._owns_session = session is None
        self._vocab_size = vocab_size
        self._initial_version = initial_version
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}

    async def __aenter__(self) -> EngineClient:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the session if it is the client's own."""
        if self._owns_session and self._session is not None:
            await self._session.close()
            self._session = None

    # Generation

    async def generate(self, input_ids: TokenIds, sampling: SamplingParams | Mapping[str, Any], rid: str) -> Generation:
        """Sample a continuation of `input_ids` and wait for its end.

        Returns:
            The whole answer; finish reason 'abort' with the tokens so far if the request was aborted.

        Raises:
            EngineRefusedError: the engine refuses the request (another would, too).
            EngineError: the engine does not answer, or answers outside the contract.
        """
        body = self._generate_body(input_ids, sampling, rid, is_streamed=False)
        reply = await self._post_json("/generate", body)
        generation = parse_generation(reply, initial_version=self._initial_version, where=self.base_url)
        self._check_prompt(generation, len(body["input_ids"]), rid)
        return generation

    async def generate_stream(
        self, input_ids: TokenIds, sampling: SamplingParams | Mapping[str, Any], rid: str
    ) -> AsyncIterator[Generation]:
        """Like `generate`, but yields everything so far whenever tokens arrive; only the last has a finish reason.

        Leaving the iterator early closes the connection, and the engine aborts the request.
        """
        body = self._generate_body(input_ids, sampling, rid, is_streamed=True)
        reader = StreamReader(initial_version=self._initial_version, where=self.base_url)
        response = await self._request("POST", "/generate", body)
        try:
            await self._raise_for_status(response)
            async for line in _lines(response):
                if (generation := reader.feed(line)) is not None:
                    self._check_prompt(generation, len(body["input_ids"]), rid)
                    yield generation
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            raise EngineError(f"engine {self.base_url}: the stream of request {rid} broke off ({error!r})") from error
        finally:
            # A response read to its end gives its connection back by itself; closing an unfinished one is the abort.
            response.close()
        if not reader.is_finished:
            raise EngineError(f"engine {self.base_url}: the stream of request {rid} ended without a finish reason")

    async def abort(self, rid: str) -> None:
        """Ask to end a request; its `generate` then returns what it has. An unknown id is fine."""
        await self._post_text("/abort_request", {"rid": rid, "abort_all": False})

    async def abort_all(self) -> None:
        """Ask to end every request."""
        await self._post_text("/abort_request", {"rid": "", "abort_all": True})

    def _generate_body(
        self, input_ids: TokenIds, sampling: SamplingParams | Mapping[str, Any], rid: str, *, is_streamed: bool
    ) -> dict[str, Any]:
        ids = np.ascontiguousarray(input_ids if isinstance(input_ids, np.ndarray) else np.asarray(input_ids, dtype=np.int64))
        self._check_ids(ids, rid)
        params = sampling.to_wire() if isinstance(sampling, SamplingParams) else dict(sampling)
        return {
            "input_ids": ids,
            "sampling_params": params,
            "return_logprob": True,
            "logprob_start_len": -1,
            "stream": is_streamed,
            "rid": rid,
        }

    def _check_ids(self, ids: NDArray[np.integer[Any]], rid: str) -> None:
        if not len(ids):
            raise EngineRefusedError(f"request {rid} has no input token; send at least one")
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or (self._vocab_size is not None and high >= self._vocab_size):
            bad = low if low < 0 else high
            raise EngineRefusedError(
                f"request {rid} holds token id {bad}, outside the vocabulary of {self._vocab_size or 'the engine'};"
                " the tokenizer and the model belong to different policies"
            )

    def _check_prompt(self, generation: Generation, num_sent: int, rid: str) -> None:
        """Refuse an answer to another context: an engine that decodes and encodes the ids again samples from something else."""
        if generation.prompt_tokens not in (0, num_sent):
            raise EngineRefusedError(
                f"engine {self.base_url} read {generation.prompt_tokens} tokens where request {rid} has {num_sent};"
                " the answer belongs to another context, serve a model that takes token ids as they are"
            )

    # Control

    async def pause(self, mode: PauseMode = "retract") -> None:
        """Stop sampling. A server older than 0.5.6 knows no mode and aborts everything."""
        await self._post_text("/pause_generation", {"mode": mode})

    async def resume(self) -> None:
        """Go on sampling."""
        await self._post_text("/continue_generation", {})

    async def flush_cache(self) -> bool:
        """Forget cached prefixes; False where the engine is busy."""
        response = await self._request("POST", "/flush_cache", {})
        async with response:
            return response.status == 200

    async def release_memory(self, tags: Sequence[str] = ()) -> None:
        """Give back memory of 'weights' and 'kv_cache' (none named: all)."""
        await self._post_text("/release_memory_occupation", {"tags": list(tags) or None})

    async def resume_memory(self, tags: Sequence[str] = ()) -> None:
        """Take it again."""
        await self._post_text("/resume_memory_occupation", {"tags": list(tags) or None})

    async def set_version(self, version: int) -> None:
        """Name the loaded weights, leaving live requests alone (the server's default would abort them)."""
        body = {"new_version": str(version), "abort_all_requests": False}
        self._check_success(await self._post_json("/update_weight_version", body), "update_weight_version")

    async def load_weights_from_disk(self, model_dir: str, version: int) -> None:
        """Make the engine read a Hugging Face folder that it can see, and serve it as `version`."""
        body = {
            "model_path": str(model_dir),
            "weight_version": str(version),
            "flush_cache": True,
            "abort_all_requests": False,
        }
        self._check_success(await self._post_json("/update_weights_from_disk", body), "update_weights_from_disk")

    async def weight_checksums(self) -> dict[str, str]:
        """Digest of every weight tensor of the engine's first rank, by name."""
        reply = await self._post_json("/weights_checker", {"action": "checksum"})
        ranks = reply.get("ranks") or [{}]
        return dict(ranks[0].get("checksums") or {})

    def _check_success(self, reply: Mapping[str, Any], what: str) -> None:
        if not reply.get("success"):
            raise EngineError(f"engine {self.base_url}: {what} failed: {reply.get('message', 'no reason given')}")

    # Questions

    async def is_ready(self) -> bool:
        """Whether the engine would serve a request now; False also where nothing answers."""
        for path in ("/ready", "/health"):
            try:
                response = await self._request("GET", path, None)
            except EngineError:
                return False
            async with response:
                if response.status != 404:
                    return response.status == 200
        return False

    async def wait_ready(self, timeout_s: float, *, poll_s: float = 0.1) -> None:
        """Wait until the engine is ready; raises `EngineError` that names the address after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                while not await self.is_ready():
                    await asyncio.sleep(poll_s)
        except TimeoutError as error:
            raise EngineError(
                f"engine {self.base_url} was not ready within {timeout_s:g} s; check that it runs and the address is right"
            ) from error

    async def model_info(self) -> dict[str, Any]:
        """What the engine says of its model (`weight_version` among it)."""
        return await self._get_first(("/model_info", "/get_model_info"))

    async def server_info(self) -> dict[str, Any]:
        """The server's own settings; `version` first."""
        return await self._get_first(("/server_info", "/get_server_info"))

    async def version(self) -> int:
        """Version of the weights it serves now."""
        info = await self.model_info()
        return version_number(info.get("weight_version"), self._initial_version, self.base_url)

    async def load(self) -> EngineLoad:
        """How busy it is, summed over its data-parallel ranks."""
        reply = await self._get_first(("/v1/loads", "/get_load"))
        ranks = reply.get("loads") if isinstance(reply, dict) else reply
        entries = [rank for rank in ranks or [] if isinstance(rank, dict)]

        def total(*names: str) -> int:
            return sum(int(next((rank[n] for n in names if rank.get(n) is not None), 0)) for rank in entries)

        return EngineLoad(
            num_running=total("num_running_reqs", "num_reqs"),
            num_waiting=total("num_waiting_reqs"),
            num_used_tokens=total("num_used_tokens", "num_tokens"),
            capacity=total("max_running_requests"),
        )

    async def _get_first(self, paths: Sequence[str]) -> Any:
        """Answer of the first path that exists: routes were renamed between versions."""
        for path in paths:
            response = await self._request("GET", path, None)
            async with response:
                if response.status != 404:
                    await self._raise_for_status(response)
                    return await self._read_json(response)
        raise EngineError(f"engine {self.base_url} has none of {', '.join(paths)}; is it an SGLang-compatible server?")

    # Transport

    async def _post_json(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        response = await self._request("POST", path, body)
        async with response:
            await self._raise_for_status(response)
            reply = await self._read_json(response)
        if not isinstance(reply, dict):
            raise EngineError(f"engine {self.base_url}{path} answered {type(reply).__name__}, not an object")
        return reply

    async def _post_text(self, path: str, body: Mapping[str, Any]) -> None:
        response = await self._request("POST", path, body)
        async with response:
            await self._raise_for_status(response)
            await response.read()

    async def _request(self, method: str, path: str, body: Mapping[str, Any] | None) -> aiohttp.ClientResponse:
        if self._session is None:
            self._session = open_session()
        url = self.base_url + path
        # A context of 200k tokens takes orjson 1 ms and the standard library 30 ms, most of what a call costs in the proxy.
        data = None if body is None else orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)
        headers = self._headers if data is None else {**self._headers, "Content-Type": "application/json"}
        for attempts_left in range(RETRY_DISCONNECTED, -1, -1):
            try:
                return await self._session.request(method, url, data=data, headers=headers)
            except aiohttp.ClientConnectorError as error:
                raise EngineError(f"engine {self.base_url} cannot be reached ({error}); check its address") from error
            except (aiohttp.ServerDisconnectedError, ConnectionResetError, aiohttp.ClientOSError) as error:
                if not attempts_left:
                    raise EngineError(f"engine {self.base_url} closed the connection on {path} ({error})") from error
            except (aiohttp.ClientError, TimeoutError) as error:
                raise EngineError(f"engine {self.base_url} did not answer {path} ({error!r})") from error
        raise AssertionError("the last attempt returns or raises")

    async def _raise_for_status(self, response: aiohttp.ClientResponse) -> None:
        if response.status < 400:
            return
        try:
            text = error_text(await response.text())
        except aiohttp.ClientError:
            text = "no reason given"
        raise error_of(response.status, f"engine {self.base_url}{response.url.path}: HTTP {response.status}: {text}")

    async def _read_json(self, response: aiohttp.ClientResponse) -> Any:
        try:
            return json.loads(await response.read())
        except (ValueError, aiohttp.ClientError) as error:
            raise EngineError(f"engine {self.base_url}{response.url.path}: unreadable answer ({error})") from error


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Lines of any length: a cumulative chunk of a long answer is longer than aiohttp's own line reader allows."""
    rest = b""
    async for piece in response.content.iter_any():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line
    if rest:
        yield rest
