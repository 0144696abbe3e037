"""What the engine tests share: a byte-level toy tokenizer, a tiny random policy, and requests that tell what became of them."""

from __future__ import annotations

import queue
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from gyre.errors import EngineError
from gyre.rollout.engines.protocol import Engine, GenerateRequest, Generation, SamplingParams
from gyre.rollout.engines.sequence import LiveSequence, Sampled, draw_key

VOCAB_SIZE = 264


def toy_tokenizer() -> Tokenizer:
    """One token per byte, and the two tokens of a turn."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={symbol: i for i, symbol in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|im_start|>"), AddedToken("<|im_end|>")])
    return tokenizer


def encode(text: str) -> list[int]:
    return toy_tokenizer().encode(text).ids


def write_model(folder: Path, *, seed: int = 0, is_tied: bool = True, **overrides: Any) -> Any:
    """Save a tiny random Qwen3 policy with its tokenizer; the transformers model, for comparison."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        intermediate_size=48,
        tie_word_embeddings=is_tied,
        max_position_embeddings=256,
        eos_token_id=257,
        initializer_range=0.15,
        **overrides,
    )
    model = Qwen3ForCausalLM(config).eval()
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.data.uniform_(0.5, 1.5)
    model.save_pretrained(folder)
    toy_tokenizer().save(str(folder / "tokenizer.json"))
    return model


def params(max_new_tokens: int = 8, **fields: Any) -> SamplingParams:
    return SamplingParams(max_new_tokens=max_new_tokens, **{"ignore_eos": True, **fields})


class Call:
    """A request to an engine in this process, and its updates."""

    def __init__(self, engine: Engine, rid: str, input_ids: list[int], sampling: SamplingParams, *, streamed: bool = False):
        self._updates: queue.Queue[Generation | EngineError] = queue.Queue()
        self.seen: list[Generation] = []
        request = GenerateRequest(rid=rid, input_ids=input_ids, sampling=sampling, is_streamed=streamed)
        engine.submit(request, self._updates.put)

    def next(self) -> Generation:
        update = self._updates.get(timeout=60)
        if isinstance(update, EngineError):
            raise update
        self.seen.append(update)
        return update

    def end(self) -> Generation:
        while (update := self.next()).finish_reason is None:
            pass
        return update

    @property
    def num_unread(self) -> int:
        return self._updates.qsize()


def ask(engine: Engine, input_ids: list[int], sampling: SamplingParams, rid: str = "ask") -> Generation:
    return Call(engine, rid, input_ids, sampling).end()


def sequence_of(input_ids: list[int], output_ids: list[int], sampling: SamplingParams) -> LiveSequence:
    """A request in the middle of its answer."""
    request = GenerateRequest(rid="r", input_ids=input_ids, sampling=sampling)
    sequence = LiveSequence(
        request=request,
        on_update=lambda update: None,
        token_ids=list(input_ids),
        num_input=len(input_ids),
        draw_key=draw_key(0, request),
    )
    for token in output_ids:
        sequence.append(Sampled(token, -1.0), 0)
    return sequence
