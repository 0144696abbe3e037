"""Draws one token per row and says how probable it was.

The log-probability is that of the temperature-scaled distribution over the whole vocabulary (as SGLang's is); top-k, top-p and
min-p narrow the draw only. A run samples with none of them, so what is recorded is what was sampled from. A draw is the inverse of
the cumulative distribution (float64) at the sequence's own uniform number: it does not depend on which rows share the batch.

Shape letters: B rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gyre.rollout.engines.protocol import SamplingParams
from gyre.rollout.engines.sequence import LiveSequence, Sampled


def sample_tokens(logits_BV: Tensor, sequences: Sequence[LiveSequence]) -> list[Sampled]:
    """Sample the next token of each sequence from its row."""
    params = [sequence.request.sampling for sequence in sequences]
    temperatures = [p.temperature or 1.0 for p in params]
    if any(temperature != 1.0 for temperature in temperatures):
        logits_BV = logits_BV / torch.tensor(temperatures)[:, None]
    logp_BV = torch.log_softmax(logits_BV, -1)
    if all(p.temperature == 0 for p in params):
        token_B = logp_BV.argmax(-1)
    else:
        token_B = _draw(logp_BV, sequences)
        greedy = [row for row, p in enumerate(params) if p.temperature == 0]
        if greedy:
            token_B[greedy] = logp_BV[greedy].argmax(-1)
    logprob_B = logp_BV.gather(1, token_B[:, None])[:, 0]
    return [Sampled(token, logprob) for token, logprob in zip(token_B.tolist(), logprob_B.tolist(), strict=True)]


def _draw(logp_BV: Tensor, sequences: Sequence[LiveSequence]) -> Tensor:
    prob_BV = logp_BV.double().exp_()
    for row, sequence in enumerate(sequences):
        sampling = sequence.request.sampling
        if sampling.top_k > 0 or sampling.top_p < 1.0 or sampling.min_p > 0.0:
            prob_BV[row] = narrow(prob_BV[row], sampling)
    cumulative_BV = prob_BV.cumsum_(-1)
    uniform_B = torch.tensor([sequence.draw_uniform() for sequence in sequences], dtype=torch.float64)
    threshold_B = uniform_B * cumulative_BV[:, -1]
    # right=True passes over tokens of probability 0; rounding can only reach the total itself, hence the clamp.
    token_B = torch.searchsorted(cumulative_BV, threshold_B[:, None], right=True)[:, 0]
    return token_B.clamp_max_(logp_BV.shape[-1] - 1)


def narrow(prob_V: Tensor, sampling: SamplingParams) -> Tensor:
    """Probabilities with everything outside top-k, top-p and min-p set to 0; the most probable token always stays."""
    ordered_V, order_V = prob_V.sort(descending=True, stable=True)
    keep_V = torch.ones_like(ordered_V, dtype=torch.bool)
    if sampling.top_k > 0:
        keep_V[sampling.top_k :] = False
    if sampling.top_p < 1.0:
        keep_V &= ordered_V.cumsum(-1) - ordered_V < sampling.top_p * ordered_V.sum()
    if sampling.min_p > 0.0:
        keep_V &= ordered_V >= sampling.min_p * ordered_V[0]
    keep_V[0] = True
    return torch.zeros_like(prob_V).scatter_(0, order_V, ordered_V * keep_V)
