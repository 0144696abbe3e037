"""One model call through whatever engines serve it: cuts and failures become one slow answer.

An engine that leaves rollout aborts its requests: the tokens so far come back, the route now points elsewhere, and the call goes
on there with input plus partial output; the log-probabilities and weight version spans of the parts are joined. An engine that
fails is asked again, at the place the route then names, with growing pauses. Only a request that every engine would refuse, and
a failure that outlasts `give_up_s`, reach the caller.
"""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import aiohttp
import numpy as np
from numpy.typing import NDArray

from gyre.errors import EngineError
from gyre.rollout.engines.client import EngineClient, open_session
from gyre.rollout.engines.protocol import EngineRefusedError, Generation, SamplingParams, join_generations

FIRST_PAUSE_S = 0.02
"""Before the first retry: a route changes within milliseconds of an abort."""
LONGEST_PAUSE_S = 2.0
"""Between later ones: a cell that returns to rollout takes seconds."""


class Routes(Protocol):
    """Where model calls go: the part of `records.Engines` that a call needs."""

    async def route(self, execution_id: str) -> str:
        """Base URL of the engine that serves this execution now; waits while none is routable."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRules:
    """How a run samples, whatever its harness asks for."""

    temperature: float = 1.0
    """Of the behaviour policy; top-p is 1, and there is no top-k, min-p, penalty or grammar."""
    max_new_tokens: int = 4096
    """Most tokens of one answer; a client may ask for fewer."""
    context_limit: int = 32768
    """Most tokens of input and output together."""
    seed: int | None = None
    """Makes draws repeatable per execution and call; None: the engines' own."""

    def seed_of(self, *parts: object) -> int | None:
        """Seed of one request to an engine."""
        if self.seed is None:
            return None
        text = "/".join(str(part) for part in (self.seed, *parts))
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big") >> 1


class EngineCaller:
    """Generates for executions over the routes of a run. Its HTTP session opens with the first call."""

    def __init__(self, engines: Routes, *, vocab_size: int | None, give_up_s: float = 600.0) -> None:
        self._engines = engines
        self._vocab_size = vocab_size
        self._give_up_s = give_up_s
        self._session: aiohttp.ClientSession | None = None
        self._clients: dict[str, EngineClient] = {}
        self._aborts: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Wait for aborts under way and close the connections."""
        if self._aborts:
            await asyncio.wait(self._aborts, timeout=LONGEST_PAUSE_S)
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def generate(
        self,
        execution_id: str,
        input_ids: NDArray[np.int32],
        sampling: SamplingParams,
        *,
        on_progress: Callable[[Generation], None] | None = None,
    ) -> Generation:
        """Sample one answer to its own end ('stop' or 'length'), over as many engines as it takes.

        Args:
            execution_id: whose route is followed.
            input_ids: the whole context.
            sampling: for the whole answer.
            on_progress: gets everything so far whenever tokens arrive; with it the engines are asked for a stream.

        Raises:
            EngineRefusedError: the request can be served by no engine.
            EngineError: nothing answered for `give_up_s`.
        """
        done = Generation()
        pause_s, failing_since_s = FIRST_PAUSE_S, None
        loop = asyncio.get_running_loop()
        for segment in range(1_000_000):
            before = len(done.output_ids)
            client = self._client(await self._engines.route(execution_id))
            try:
                done = await self._ask(client, input_ids, done, _rest(sampling, before, segment), on_progress)
                failure = None
            except EngineRefusedError:
                raise
            except _BrokenOffError as error:
                done, failure = error.partial, error.cause
            if failure is None and done.finish_reason != "abort":
                return done
            if len(done.output_ids) >= sampling.max_new_tokens:
                return replace(done, finish_reason="length")
            if failure is None or len(done.output_ids) > before:
                failing_since_s = None
            elif failing_since_s is None:
                failing_since_s = loop.time()
            elif loop.time() - failing_since_s > self._give_up_s:
                raise failure
            pause_s = FIRST_PAUSE_S if len(done.output_ids) > before else min(2 * pause_s, LONGEST_PAUSE_S)
            await asyncio.sleep(pause_s)
        raise EngineError(f"the call of execution {execution_id} was cut a million times; its engines make no progress")

    async def _ask(
        self,
        client: EngineClient,
        input_ids: NDArray[np.int32],
        done: Generation,
        sampling: SamplingParams,
        on_progress: Callable[[Generation], None] | None,
    ) -> Generation:
        """Ask one engine to go on from `done`; everything so far, its finish reason included."""
        rid = uuid.uuid4().hex  # fixed length: an engine aborts by prefix
        context: Any = input_ids
        if done.output_ids:
            context = np.concatenate([input_ids, np.asarray(done.output_ids, dtype=np.int32)])
        latest = done
        try:
            if on_progress is None:
                return join_generations(done, await client.generate(context, sampling, rid))
            async for part in client.generate_stream(context, sampling, rid):
                latest = join_generations(done, part)
                on_progress(latest)
            return latest
        except EngineRefusedError:
            raise
        except EngineError as error:
            if latest.finish_reason in ("stop", "length"):
                return latest  # the answer had come whole; what broke off is what follows it
            raise _BrokenOffError(latest, error) from error
        except asyncio.CancelledError:
            self._abort_later(client, rid)
            raise

    def _client(self, base_url: str) -> EngineClient:
        if self._session is None:
            self._session = open_session()
        if base_url not in self._clients:
            self._clients[base_url] = EngineClient(base_url, self._session, vocab_size=self._vocab_size)
        return self._clients[base_url]

    def _abort_later(self, client: EngineClient, rid: str) -> None:
        """Free the engine's slot although nobody waits any more."""

        async def abort() -> None:
            try:
                await client.abort(rid)
            except EngineError:
                return  # gone, and the request with it

        task = asyncio.get_running_loop().create_task(abort())
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)


class _BrokenOffError(Exception):
    """An engine failed; what it had sent until then is kept."""

    def __init__(self, partial: Generation, cause: EngineError) -> None:
        super().__init__(str(cause))
        self.partial = replace(partial, finish_reason=None)
        self.cause = cause


def _rest(sampling: SamplingParams, num_done: int, segment: int) -> SamplingParams:
    """Sampling of what is left; a continuation draws from a seed of its own, not from the beginning of the first one's."""
    seed = sampling.sampling_seed
    if seed is not None and segment:
        seed = (seed + segment * 7919) % (1 << 31)
    return replace(sampling, max_new_tokens=sampling.max_new_tokens - num_done, sampling_seed=seed)
