"""Launches kept as they were handed to the card, to be handed over again without Python's share.

Binding arguments to a Triton kernel takes the host longer than a short kernel takes the card. A
tape keeps what binding led to: compiled kernel, grid, addresses. Unlike a CUDA graph it costs no
run of its own and no memory of the card, and may have steps between the launches that are done
anew each time. Owns neither memory nor order: whoever records sees to it that everything lies where
it lay, and that nothing but launches and such steps happens meanwhile.
"""

from __future__ import annotations

import inspect
import threading
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
from triton.runtime.interpreter import InterpretedFunction

from strata.gpu.kernels.arith import INTERPRETED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

try:
    from triton.backends.nvidia.driver import CudaLauncher
except ImportError:  # a Triton for other cards
    CudaLauncher = None

# What a launcher is called with; another Triton's may differ, and then nothing is kept.
_LAUNCHER_PARAMETERS = ("self", "gridX", "gridY", "gridZ", "stream", "function", "args")


def can_record() -> bool:
    """Whether launches can be kept with this version of Triton."""
    if INTERPRETED:
        return True
    if CudaLauncher is None:
        return False
    return tuple(inspect.signature(CudaLauncher.__call__).parameters) == _LAUNCHER_PARAMETERS


Args = tuple[Any, ...]
Place = TypeVar("Place")


class LaunchTape(Generic[Place]):
    """Launches in order, and steps between them that are given a ``Place`` each time."""

    def __init__(self) -> None:
        # Of a launch without its stream, or a step.
        self._items: list[tuple[Callable[..., object], tuple[Args, Args] | None]] = []
        self._kept: dict[int, torch.Tensor] = {}  # one of each memory whose addresses are noted
        self._is_open = False

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Notes what this thread launches meanwhile, on one stream, beside doing it."""
        self._is_open = True
        with _noted(self._note):
            yield
        self._is_open = False

    def step(self, run: Callable[[Place], object], place: Place) -> None:
        """Done now, unnoted, and again with another place whenever the tape is played."""
        self._is_open = False
        run(place)
        self._is_open = True
        self._items.append((run, None))

    def play(self, place: Place) -> None:
        """All of it again, on the current stream."""
        stream = 0 if INTERPRETED else torch.cuda.current_stream().cuda_stream
        for run, grid_and_rest in self._items:
            if grid_and_rest is None:
                run(place)
            else:
                grid, rest = grid_and_rest
                run(*grid, stream, *rest)

    def _note(self, launcher: Callable[..., object], args: tuple[Any, ...]) -> None:
        if not self._is_open:
            return
        tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
        self._kept |= {tensor.untyped_storage().data_ptr(): tensor for tensor in tensors}
        # Asking a tensor for its address, and the card for whose it is, takes longer than a launch.
        args = tuple(arg.data_ptr() if isinstance(arg, torch.Tensor) else arg for arg in args)
        self._items.append((launcher, (args[:3], args[4:])))


@contextmanager
def _noted(note: Callable[[Callable[..., object], tuple[Any, ...]], None]) -> Iterator[None]:
    """Every launch of this thread is told, with its arguments from the grid on."""
    thread = threading.get_ident()
    kind, name = (InterpretedFunction, "run") if INTERPRETED else (CudaLauncher, "__call__")
    launch = getattr(kind, name)

    def noting(launched: Any, *args: Any, **options: Any) -> object:
        result = launch(launched, *args, **options)
        if threading.get_ident() == thread:
            if INTERPRETED:
                again = partial(launch, launched, *args, **options)
                note(lambda *_: again(), (0,) * 4)
            else:
                note(launched, args)
        return result

    setattr(kind, name, noting)
    try:
        yield
    finally:
        setattr(kind, name, launch)
