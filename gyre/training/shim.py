"""Answers to Megatron-core's CUDA calls on a machine without an accelerator.

Megatron-core asks `torch.cuda` for the current device and builds scratch tensors on "cuda" without asking whether there is one.
`install_cpu_shim` answers those calls with the CPU for the life of the process; `cpu_factories` is a context in which tensor
factories that name "cuda" build on the CPU. The context costs a Python call per torch function, so only construction and the
optimizer step run inside it; forward and backward need no redirection.

With an accelerator neither does anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


def _cpu_device() -> torch.device:
    return torch.device("cpu")


def _nothing() -> Callable[..., None]:
    # A function of its own for each name: torch's compiler files them by identity and refuses one that answers to two names.
    def nothing(*_args: Any, **_kwargs: Any) -> None:
        return None

    return nothing


def _cpu_rng_state(*_args: Any, **_kwargs: Any) -> torch.Tensor:
    return torch.get_rng_state()


def _set_cpu_rng_state(new_state: torch.Tensor, *_args: Any, **_kwargs: Any) -> None:
    torch.set_rng_state(new_state)


_ANSWERS: Mapping[str, Any] = {
    "current_device": _cpu_device,
    "synchronize": _nothing(),
    "empty_cache": _nothing(),
    "manual_seed": _nothing(),
    "get_rng_state": _cpu_rng_state,
    "set_rng_state": _set_cpu_rng_state,
}


def install_cpu_shim() -> None:
    """Let `torch.cuda` answer with the CPU where there is no accelerator. Calling it again changes nothing."""
    if torch.cuda.is_available():
        return
    for name, answer in _ANSWERS.items():
        setattr(torch.cuda, name, answer)


@contextmanager
def without_compilation() -> Iterator[None]:
    """Leave functions decorated with `torch.compile` as they are, where there is no accelerator.

    Megatron decorates its fused kernels at import, which loads the whole compiler (a quarter of its import time) for functions that
    run on accelerators only.
    """
    if torch.cuda.is_available():
        yield
        return
    compile_function = torch.compile
    torch.compile = lambda function: function  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield
    finally:
        torch.compile = compile_function


class _CpuFactories(TorchFunctionMode):
    """Sends every factory call that names a CUDA device to the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = dict(kwargs or {})
        device = kwargs.get("device")
        if device is not None and torch.device(device).type == "cuda":
            kwargs["device"] = _cpu_device()
        if func is torch.Tensor.cuda:
            return args[0]
        return func(*args, **kwargs)


@contextmanager
def cpu_factories() -> Iterator[None]:
    """Build on the CPU what is asked for on "cuda", where there is no accelerator."""
    if torch.cuda.is_available():
        yield
        return
    with _CpuFactories():
        yield
