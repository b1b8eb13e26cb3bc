"""Two engines on one file, in turns: rounds A B A B, each engine in its own process.

Owns the order of rounds and the choice of the rival's fastest build and setting.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from strata.engine.agreement import Agreement
from strata.engine.bench_worker import LLAMA_CPP, STRATA, Worker
from strata.engine.rival import STEP_TOKENS, XLLAMACPP
from strata.engine.rival_source import ALL_LAYERS, CARD_STEP_TOKENS, LLAMA_CPP_PYTHON
from strata.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from strata.engine.bench import Measurement
    from strata.engine.session import OnProgress
    from strata.settings import Settings

# Enough to tell which of two settings is faster; a slow rival takes minutes for a whole round.
SHORT_PROMPT = 128
SHORT_DECODE = 16
_ROUNDS_OF_A_TRIAL = 2
# Some builds compute wrong results from 32 rows on; this prompt shows it.
CHECK_PROMPT = 64


@dataclass(frozen=True, slots=True)
class RivalBuild:
    """One llama.cpp: the package that holds it, and the interpreter if it is not this one."""

    library: str
    python: str | None = None


def rival_builds(python: str | None = None) -> list[RivalBuild]:
    """Every llama.cpp that can be measured here, and that of another interpreter if named.

    Raises:
        DeviceError: there is none.
    """
    builds = [RivalBuild(name) for name in (XLLAMACPP, LLAMA_CPP_PYTHON) if find_spec(name)]
    if python is not None:
        builds.append(RivalBuild(LLAMA_CPP_PYTHON, python))
    if not builds:
        raise DeviceError(
            "llama.cpp is not installed, so there is nothing to compare with.\n"
            "  Try: pip install xllamacpp"
        )
    return builds


@dataclass(frozen=True, slots=True)
class Comparison:
    """Rounds of both engines in the order they ran; round i of one follows round i of the other."""

    ours: Sequence[Measurement]
    theirs: Sequence[Measurement]
    our_peak_bytes: int
    rival_peak_bytes: int
    rival_build: str
    has_flash_attention: bool
    # KL of the next-token distributions after a short prompt; None if llama.cpp gave none.
    kl: float | None

    @property
    def prompt_ratios(self) -> list[float]:
        """Ours over theirs, prompt speed, by round."""
        pairs = zip(self.ours, self.theirs, strict=True)
        return [own.prompt_tokens_per_s / rival.prompt_tokens_per_s for own, rival in pairs]

    @property
    def decode_ratios(self) -> list[float]:
        """Ours over theirs, decode speed, by round."""
        pairs = zip(self.ours, self.theirs, strict=True)
        return [own.decode_tokens_per_s / rival.decode_tokens_per_s for own, rival in pairs]


def compare(
    path: Path,
    settings: Settings,
    *,
    threads: int,
    vocab_size: int,
    builds: Sequence[RivalBuild],
    prompt: list[int],
    num_decode: int,
    num_rounds: int,
    on_progress: OnProgress | None = None,
) -> Comparison:
    """Both engines measured in turns on the same file, prompt and number of threads.

    Every build of the rival is tried with flash attention off and on, in short rounds, and the
    one that answers sooner is kept. Both engines stay loaded; the one that waits uses no processor.

    Args:
        builds: of the rival, at least one.
        prompt: token ids.
        on_progress: called with (rounds done, rounds in all), warm-up included.

    Raises:
        DeviceError: a card is asked for and no build can use one; a process died.
    """
    is_card = settings.device == "cuda"
    if is_card:
        builds = _card_builds(builds)
    context_len = len(prompt) + num_decode + 8
    setup: dict[str, Any] = {
        "model": str(path), "vocab_size": vocab_size, "threads": threads,
        "context_len": context_len, "kv_format": settings.kv_format,
        "gpu_layers": ALL_LAYERS if is_card else 0,
        "step_tokens": CARD_STEP_TOKENS if is_card else STEP_TOKENS,
    }  # fmt: skip
    choices = [_Choice(build, has_flash) for build in builds for has_flash in (False, True)]
    num_steps = 2 * num_rounds + 2 + _ROUNDS_OF_A_TRIAL * len(choices)
    rounds = _Rounds(prompt, num_decode, num_steps, on_progress)
    best = min(choices, key=lambda choice: _trial_s(choice, setup, rounds))
    own_settings = {name: value for name, value in asdict(settings).items() if value is not None}
    own_settings |= {"model": str(path), "threads": threads, "context_len": context_len}
    with best.open(setup) as rival, Worker(STRATA, settings=own_settings) as own:
        rounds.whole(rival)
        rounds.whole(own)
        ours, theirs = [], []
        for _ in range(num_rounds):
            ours.append(rounds.whole(own))
            theirs.append(rounds.whole(rival))
        kl = _divergence(rival, own, prompt[:CHECK_PROMPT])
    return Comparison(
        ours=[item for item, _peak in ours],
        theirs=[item for item, _peak in theirs],
        our_peak_bytes=ours[-1][1],
        rival_peak_bytes=theirs[-1][1],
        rival_build=rival.description,
        has_flash_attention=best.has_flash_attention,
        kl=kl,
    )


@dataclass(frozen=True, slots=True)
class _Choice:
    """A build of the rival, with or without flash attention."""

    build: RivalBuild
    has_flash_attention: bool

    def open(self, setup: dict[str, Any]) -> Worker:
        return Worker(
            LLAMA_CPP,
            python=self.build.python,
            library=self.build.library,
            has_flash_attention=self.has_flash_attention,
            **setup,
        )


class _Rounds:
    """Rounds of either engine, and how many are done."""

    def __init__(
        self, prompt: list[int], num_decode: int, num_steps: int, on_progress: OnProgress | None
    ) -> None:
        self._prompt, self._num_decode, self._num_steps = prompt, num_decode, num_steps
        self._on_progress, self._done = on_progress, 0

    def whole(self, worker: Worker) -> tuple[Measurement, int]:
        """One round, and the most memory the process has held."""
        return self._measured(worker, self._prompt, self._num_decode)

    def short(self, worker: Worker) -> Measurement:
        """One that is enough to tell builds apart."""
        num_decode = min(self._num_decode, SHORT_DECODE)
        return self._measured(worker, self._prompt[:SHORT_PROMPT], num_decode)[0]

    def _measured(
        self, worker: Worker, prompt: list[int], num_decode: int
    ) -> tuple[Measurement, int]:
        result = worker.measure(prompt, num_decode)
        self._done += 1
        if self._on_progress is not None:
            self._on_progress(self._done, self._num_steps)
        return result


def _card_builds(builds: Sequence[RivalBuild]) -> list[RivalBuild]:
    """Those that can use a card."""
    found = [build for build in builds if build.library == LLAMA_CPP_PYTHON]
    if not found:
        raise DeviceError(
            "no llama.cpp here can use a card.\n"
            "  Try: --rival-python, a Python whose llama-cpp-python is built with CUDA."
        )
    return found


def _trial_s(choice: _Choice, setup: dict[str, Any], rounds: _Rounds) -> float:
    """Seconds of a short round; one before it pays for page faults."""
    with choice.open(setup) as candidate:
        rounds.short(candidate)
        warm = rounds.short(candidate)
    return warm.prompt_s + warm.decode_s


def _divergence(rival: Worker, own: Worker, prompt: list[int]) -> float | None:
    try:
        theirs = rival.next_logits(prompt)
    except DeviceError:
        # The server of one build drops tokens that are not whole characters.
        return None
    return Agreement.of(theirs[None], own.next_logits(prompt)[None]).mean_kl
