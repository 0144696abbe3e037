"""Tiny models for the training tests: made on the spot by transformers, random, far enough from zero to matter."""

from __future__ import annotations

from pathlib import Path

VOCAB = 61


def make_model(folder: Path, kind: str) -> Path:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

    common = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
    }
    makers = {
        "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**common, head_dim=16, tie_word_embeddings=True)),
        "qwen3-untied": lambda: Qwen3ForCausalLM(Qwen3Config(**common, head_dim=16, tie_word_embeddings=False)),
        "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**common)),
        "llama": lambda: LlamaForCausalLM(LlamaConfig(**common, tie_word_embeddings=False)),
    }
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model = makers[kind]()
        with torch.no_grad():
            for param in model.parameters():
                param.add_(torch.randn_like(param) * 0.1)
    model.save_pretrained(folder)
    return folder
