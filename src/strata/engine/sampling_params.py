"""How the next token is picked, as a request says it: names, defaults, ranges.

Owns the checks of every option. Does not see logits.
"""

from __future__ import annotations

import dataclasses
import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from strata.errors import SettingsError

MAX_CANDIDATES: Final = 64
"""Most tokens a draw chooses from; ``top_k`` of 0 or above means this many."""

MAX_PENALTY_TOKENS: Final = 4096
MAX_LOGPROBS: Final = 20
MAX_SEED: Final = (1 << 64) - 1
_MAX_STOPS: Final = 16
_NO_LIMIT: Final = 1 << 62
_MAX_BIASES: Final = 1024
_MAX_BIAS: Final = 100.0

# name: lowest and highest allowed value. Penalties may be strong enough to forbid repeats.
_REALS: Final = {
    "temperature": (0.0, 100.0),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "repeat_penalty": (0.01, 100.0),
    "frequency_penalty": (-1000.0, 1000.0),
    "presence_penalty": (-1000.0, 1000.0),
}
_INTEGERS: Final = {
    "top_k": (0, _NO_LIMIT),
    "penalty_last_n": (0, MAX_PENALTY_TOKENS),
    "seed": (0, MAX_SEED),
    "max_tokens": (1, _NO_LIMIT),
    "logprobs": (0, MAX_LOGPROBS),
}
_OPTIONAL: Final = frozenset({"seed", "max_tokens", "logprobs"})


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """One request's options. Checked when made; wrong values raise SettingsError.

    The order is mask, bias, penalties, top_k, top_p, min_p, temperature, draw.
    """

    temperature: float = 1.0
    """Divides the logits before the draw; 0 picks the most likely token."""
    top_k: int = 20
    """Most candidates kept; 0 or above 64 means 64."""
    top_p: float = 0.95
    """Keeps the fewest candidates whose probabilities reach this sum; at least one."""
    min_p: float = 0.0
    """Keeps candidates at least this fraction as likely as the best."""
    repeat_penalty: float = 1.0
    """Divides positive and multiplies negative logits of recent tokens."""
    frequency_penalty: float = 0.0
    """Taken off a recent token's logit once per occurrence."""
    presence_penalty: float = 0.0
    """Taken off a recent token's logit once."""
    penalty_last_n: int = 64
    """How many tokens of prompt and answer are recent."""
    seed: int | None = None
    """Fixes every draw; ``None`` until ``with_seed`` chooses one."""
    max_tokens: int | None = None
    """Longest answer; ``None`` is as long as the context."""
    stop: tuple[str, ...] = ()
    """Texts that end the answer; they are not part of it."""
    logprobs: int | None = None
    """Log-probabilities wanted beside the picked token's; ``None`` reports none at all."""
    ignore_eos: bool = False
    """Go on past end tokens."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token id, what is added to its logit before the penalties)."""

    def __post_init__(self) -> None:
        for name, (low, high) in _REALS.items():
            _check_real(name, getattr(self, name), low, high)
        for name, bounds in _INTEGERS.items():
            value = getattr(self, name)
            if not (value is None and name in _OPTIONAL):
                _check_integer(name, value, *bounds)
        _check_stops(self.stop)
        if not isinstance(self.ignore_eos, bool):
            raise _wrong("ignore_eos", self.ignore_eos, "true or false", "false")
        _check_bias(self.logit_bias)

    @classmethod
    def from_options(cls, options: Mapping[str, object]) -> SamplingParams:
        """Parameters from names and values, as a request or a command line gives them.

        ``stop`` may be one text or a list, ``logit_bias`` a mapping.

        Raises:
            SettingsError: an unknown name, with the nearest known one, or a wrong value.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        for name in options:
            if name not in known:
                nearest = get_close_matches(str(name), known, n=1, cutoff=0.0)[0]
                raise SettingsError(
                    f"there is no sampling option {name!r}.\n  Try: {nearest!r}; all options: "
                    + ", ".join(known)
                    + "."
                )
        values = dict(options)
        stop = values.get("stop")
        if isinstance(stop, str):
            values["stop"] = (stop,)
        elif isinstance(stop, list):
            values["stop"] = tuple(stop)
        bias = values.get("logit_bias")
        if isinstance(bias, Mapping):
            values["logit_bias"] = tuple(bias.items())
        return cls(**values)  # type: ignore[arg-type]  # __post_init__ checks every value

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is always picked."""
        return self.temperature == 0

    @property
    def num_candidates(self) -> int:
        """Most tokens a draw may choose from."""
        return self.top_k if 1 <= self.top_k <= MAX_CANDIDATES else MAX_CANDIDATES

    @property
    def has_penalties(self) -> bool:
        """Whether recent tokens change any logit."""
        is_neutral = (
            self.repeat_penalty == 1 and self.frequency_penalty == 0 and self.presence_penalty == 0
        )
        return not is_neutral and self.penalty_last_n > 0

    def with_seed(self) -> SamplingParams:
        """These parameters with a seed: their own, or a new one if they have none."""
        if self.seed is not None:
            return self
        return dataclasses.replace(self, seed=secrets.randbits(64))


def _check_real(name: str, value: object, low: float, high: float) -> None:
    expected = f"a number from {low:g} to {high:g}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(name, value, expected, None)
    if math.isnan(value):
        raise _wrong(name, value, expected, None)
    if not low <= value <= high:
        raise _wrong(name, value, expected, f"{min(max(value, low), high):g}")


def _check_integer(name: str, value: object, low: int, high: int) -> None:
    top = "upwards" if high == _NO_LIMIT else f"to {high}"
    expected = f"an integer from {low} {top}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong(name, value, expected, None)
    if not low <= value <= high:
        raise _wrong(name, value, expected, str(min(max(value, low), high)))


def _check_stops(stops: object) -> None:
    expected = f"a list of at most {_MAX_STOPS} texts"
    if not isinstance(stops, tuple) or not all(isinstance(stop, str) for stop in stops):
        raise _wrong("stop", stops, expected, None)
    if len(stops) > _MAX_STOPS:
        raise SettingsError(
            f"stop holds {len(stops)} texts; expected {expected}.\n"
            f"  Try: keep the {_MAX_STOPS} that matter."
        )
    if "" in stops:
        raise SettingsError("stop holds an empty text.\n  Try: leave it out.")
    for stop in stops:
        # A lone surrogate stands for bytes that were not UTF-8; no answer can ever hold it.
        if any("\ud800" <= letter <= "\udfff" for letter in stop):
            raise SettingsError(f"stop {stop!r} is not valid UTF-8.\n  Try: send it as UTF-8.")


def _check_bias(bias: object) -> None:
    expected = f"at most {_MAX_BIASES} token ids, each with a number within +-{_MAX_BIAS:g}"
    if not isinstance(bias, tuple) or len(bias) > _MAX_BIASES:
        raise _wrong("logit_bias", bias, expected, None)
    for item in bias:
        is_pair = isinstance(item, tuple) and len(item) == 2
        if not is_pair or any(isinstance(part, bool) for part in item):
            raise _wrong("logit_bias", bias, expected, None)
        token_id, added = item
        if not isinstance(token_id, int) or token_id < 0:
            raise _wrong("logit_bias", bias, expected, None)
        if not isinstance(added, int | float) or not -_MAX_BIAS <= added <= _MAX_BIAS:
            raise SettingsError(
                f"logit_bias of token {token_id} is {added!r}; expected {expected}.\n"
                f"  Try: -{_MAX_BIAS:g} for a token that must not come."
            )


def _wrong(name: str, value: object, expected: str, nearest: str | None) -> SettingsError:
    shown = repr(value)
    shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
    default = SamplingParams.__dataclass_fields__[name].default
    advice = (
        f"{name}={nearest}" if nearest is not None else f"leave it out; its default is {default!r}"
    )
    return SettingsError(f"{name} is {shown}; expected {expected}.\n  Try: {advice}.")
