"""The execution of Appendix C (gyre.bench has its requests) sent through a toy proxy."""

from __future__ import annotations

import numpy as np
from trajectory_toys import ToyProxy

from gyre.bench._appendix_c import play as requests_of


def play(rng: np.random.Generator) -> ToyProxy:
    """Send every request of the execution through a toy proxy, concurrent lineages interleaved at random."""
    proxy = ToyProxy("g000042-07")
    for request in requests_of(rng):
        proxy.call(request.history, request.answer, role=request.role, num_output=int(rng.integers(1, 40)))
    return proxy
