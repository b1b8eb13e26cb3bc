"""Two engines on one file, in turns: rounds A B A B, each engine in its own process.

Owns the order of rounds and the choice of the rival's faster setting.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from strata.engine.bench_worker import LLAMA_CPP, STRATA, Worker

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from strata.engine.bench import Measurement
    from strata.engine.session import OnProgress
    from strata.settings import Settings

# Enough to tell which of two settings is faster; a slow rival takes minutes for a whole round.
SHORT_PROMPT = 128
SHORT_DECODE = 16


@dataclass(frozen=True, slots=True)
class Comparison:
    """Rounds of both engines in the order they ran; round i of one follows round i of the other."""

    ours: Sequence[Measurement]
    theirs: Sequence[Measurement]
    our_peak_bytes: int
    rival_peak_bytes: int
    rival_build: str
    has_flash_attention: bool

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
    prompt: list[int],
    num_decode: int,
    num_rounds: int,
    on_progress: OnProgress | None = None,
) -> Comparison:
    """Both engines measured in turns on the same file, prompt and number of threads.

    The rival is tried with flash attention off and on, in short rounds, and the setting that
    answers sooner is kept. Both engines stay loaded; the one that waits uses no processor.

    Args:
        prompt: token ids.
        on_progress: called with (rounds done, rounds in all), warm-up included.
    """
    num_steps = 2 * num_rounds + 6
    done = 0

    def one_round(worker: Worker, *, is_short: bool = False) -> tuple[Measurement, int]:
        nonlocal done
        if is_short:
            tokens, decode = prompt[:SHORT_PROMPT], min(num_decode, SHORT_DECODE)
            result = worker.measure(tokens, decode)
        else:
            result = worker.measure(prompt, num_decode)
        done += 1
        if on_progress is not None:
            on_progress(done, num_steps)
        return result

    context_len = len(prompt) + num_decode + 8
    our_settings: dict[str, Any] = {
        name: value for name, value in asdict(settings).items() if value is not None
    }
    our_settings |= {"model": str(path), "threads": threads, "context_len": context_len}

    def open_rival(has_flash: bool) -> Worker:  # noqa: FBT001
        return Worker(
            LLAMA_CPP,
            model=str(path),
            threads=threads,
            context_len=context_len,
            has_flash_attention=has_flash,
            kv_format=settings.kv_format,
        )

    seconds: dict[bool, float] = {}
    for has_flash in (False, True):
        with open_rival(has_flash) as candidate:
            # The first round pays for page faults.
            one_round(candidate, is_short=True)
            warm, _peak = one_round(candidate, is_short=True)
            seconds[has_flash] = warm.prompt_s + warm.decode_s
    has_flash = seconds[True] < seconds[False]
    with open_rival(has_flash) as rival, Worker(STRATA, settings=our_settings) as own:
        one_round(rival)
        one_round(own)
        ours, theirs = [], []
        for _ in range(num_rounds):
            ours.append(one_round(own))
            theirs.append(one_round(rival))
    return Comparison(
        ours=[item for item, _peak in ours],
        theirs=[item for item, _peak in theirs],
        our_peak_bytes=ours[-1][1],
        rival_peak_bytes=theirs[-1][1],
        rival_build=rival.description,
        has_flash_attention=has_flash,
    )
