"""The driver's own decisions, without Ray."""

from __future__ import annotations

import os
import signal

import pytest

from gyre.runtime.run import _interrupts_ignored, _terminated_like_interrupted


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopping_is_finished_whatever_signal_comes_again(number: signal.Signals) -> None:
    with _terminated_like_interrupted():
        with _interrupts_ignored():
            os.kill(os.getpid(), number)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
