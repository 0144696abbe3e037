"""The driver's own decisions, without Ray."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from gyre.runtime.run import _interrupts_ignored, _terminated_like_interrupted


@pytest.fixture
def usual_interrupts() -> Iterator[None]:
    """A process that a shell starts in the background finds Ctrl-C ignored, and pytest may be one."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("usual_interrupts")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopping_is_finished_whatever_signal_comes_again(number: signal.Signals) -> None:
    with _terminated_like_interrupted():
        with _interrupts_ignored():
            os.kill(os.getpid(), number)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
