"""Make the quickstart's policy from nothing: `pipelines/models/tiny`, a Hugging Face folder.

    OMP_NUM_THREADS=1 python scripts/warm_start.py            # or `make warm-start`; about ten minutes on one core

1. draws demonstrations of the mini harness at work (`demonstrations.py`), right and wrong on purpose;
2. trains the tokenizer on them (`policy_format.py`);
3. trains a Qwen3-architecture model of 0.85 M parameters on the demonstrations: loss 1 on what the assistant says, a little on
   the rest, most steps without the system prompt (positions shifted by its length), the last ones with it;
4. writes config, weights in bfloat16, tokenizer and chat template.

The same seed and thread count give the same model. `--steps 0` writes untrained weights.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from demonstrations import Demonstrator, Renderer, draw_demonstrations, load_mini
from policy_format import CONTEXT_TOKENS, END_OF_TEXT, TURN_END, VOCAB_SIZE, save_tokenizer, train_tokenizer
from tokenizers import Tokenizer
from transformers import Qwen3Config, Qwen3ForCausalLM

ROOT = Path(__file__).resolve().parent.parent
TOKENIZER_DEMONSTRATIONS = 1500
CONTEXTS_PER_BATCH = 32
OTHER_TOKEN_WEIGHT = 0.05
"""Loss weight of tokens the assistant does not say: they teach the words of instructions and test reports."""
WARM_UP_STEPS = 40
CONSTANT_SHARE = 0.4
"""Share of the steps before the learning rate starts to fall."""
WITH_PROMPT_SHARE = 0.25
"""Share of the steps, at the end, that see the system prompt too."""


class Batch(NamedTuple):
    """Padded contexts; shapes [context, token]."""

    ids: torch.Tensor
    weights: torch.Tensor
    positions: torch.Tensor


def make_model(tokenizer: Tokenizer, seed: int) -> Qwen3ForCausalLM:
    """An untrained model of the quickstart's size."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        intermediate_size=384,
        max_position_embeddings=CONTEXT_TOKENS,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.token_to_id(TURN_END),
        pad_token_id=tokenizer.token_to_id(END_OF_TEXT),
    )
    return Qwen3ForCausalLM(config)


def make_batch(contexts: list[tuple[list[int], list[bool]]], skip_tokens: int) -> Batch:
    """Pad contexts to one length, less the first `skip_tokens` of each; their positions stay what they were."""
    length = max(len(ids) for ids, _ in contexts) - skip_tokens
    ids = np.zeros((len(contexts), length), dtype=np.int64)
    weights = np.zeros((len(contexts), length), dtype=np.float32)
    for row, (context_ids, said) in enumerate(contexts):
        size = len(context_ids) - skip_tokens
        ids[row, :size] = context_ids[skip_tokens:]
        weights[row, :size] = np.where(said[skip_tokens:], 1.0, OTHER_TOKEN_WEIGHT)
    positions = np.broadcast_to(np.arange(skip_tokens, skip_tokens + length), ids.shape)
    return Batch(torch.from_numpy(ids), torch.from_numpy(weights), torch.from_numpy(positions.copy()))


def learning_rate(step: int, steps: int, peak: float) -> float:
    """Warm-up, constant, then linear decay to a tenth."""
    if step < WARM_UP_STEPS:
        return peak * (step + 1) / WARM_UP_STEPS
    falling = max(0.0, (step / steps - CONSTANT_SHARE) / (1 - CONSTANT_SHARE))
    return peak * (1 - 0.95 * falling)


def batch_loss(model: Qwen3ForCausalLM, batch: Batch) -> torch.Tensor:
    """Weighted mean cross-entropy of the next token."""
    logits = model(input_ids=batch.ids, position_ids=batch.positions, use_cache=False).logits[:, :-1]
    losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.ids[:, 1:].flatten(), reduction="none")
    weights = batch.weights[:, 1:].flatten()
    return (losses * weights).sum() / weights.sum()


def train(
    model: Qwen3ForCausalLM,
    contexts: list[tuple[list[int], list[bool]]],
    *,
    steps: int,
    peak_lr: float,
    prompt_tokens: int,
    rng: random.Random,
) -> None:
    """Supervised steps on contexts drawn by similar length, so that little is padded."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak_lr, betas=(0.9, 0.95), weight_decay=0.01)
    by_length = sorted(contexts, key=lambda context: len(context[0]))
    groups = [by_length[i : i + CONTEXTS_PER_BATCH] for i in range(0, len(by_length), CONTEXTS_PER_BATCH)]
    order: list[int] = []
    started_s, recent = time.monotonic(), 0.0
    for step in range(steps):
        if not order:
            order = rng.sample(range(len(groups)), len(groups))
        with_prompt = step >= steps * (1 - WITH_PROMPT_SHARE)
        batch = make_batch(groups[order.pop()], 0 if with_prompt else prompt_tokens)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps, peak_lr)
        loss = batch_loss(model, batch)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        recent = loss.item() if not recent or not math.isfinite(recent) else 0.95 * recent + 0.05 * loss.item()
        if step % 50 == 49:
            print(f"step {step + 1}/{steps}: loss {recent:.4f}, {time.monotonic() - started_s:.0f} s", flush=True)


def save_policy(model: Qwen3ForCausalLM, tokenizer: Tokenizer, out: Path) -> None:
    """Write the folder: bfloat16 weights, plain config, tokenizer with chat template."""
    out.mkdir(parents=True, exist_ok=True)
    model.bfloat16().save_pretrained(out, safe_serialization=True)
    (out / "model.safetensors").chmod(0o644)
    save_tokenizer(tokenizer, out)
    path = out / "generation_config.json"
    generation = {"eos_token_id": model.config.eos_token_id, "pad_token_id": model.config.pad_token_id}
    path.write_text(json.dumps(generation, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "pipelines/models/tiny")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--demonstrations", type=int, default=12000)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    mini = load_mini(ROOT / "pipelines/harness/mini/mini.py")
    tools = [mini.WRITE, mini.RUN, mini.FINISH]
    rng = random.Random(args.seed)
    untokenized = Renderer(None, tools)
    texts = draw_demonstrations(TOKENIZER_DEMONSTRATIONS, mini, untokenized, Demonstrator(), rng)
    tokenizer = train_tokenizer(untokenized.text(messages) for messages in texts)
    renderer = Renderer(tokenizer, tools)
    model = make_model(tokenizer, args.seed)
    if args.steps:
        conversations = draw_demonstrations(args.demonstrations, mini, renderer, Demonstrator(), rng)
        contexts = [renderer.encode_context(messages) for messages in conversations]
        prompt_tokens = len(renderer.encode(renderer.text(conversations[0][:1])))
        print(f"{len(contexts)} contexts, {sum(len(ids) for ids, _ in contexts)} tokens, prompt {prompt_tokens}")
        train(model, contexts, steps=args.steps, peak_lr=args.lr, prompt_tokens=prompt_tokens, rng=rng)
    save_policy(model, tokenizer, args.out)
    print(f"written to {args.out}")


if __name__ == "__main__":
    main()
