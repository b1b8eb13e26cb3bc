"""The next token from a row of logits.

Owns mask, penalties, candidate selection and the draw. Does not know requests, text or devices;
every row is picked alone, so a drafted row gives the token plain decoding would give.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import numpy as np
import numpy.typing as npt

from strata.engine.philox import uniform
from strata.engine.sampling_params import SamplingParams
from strata.errors import RequestError, SettingsError

__all__ = [
    "Sampled",
    "SamplingParams",
    "allowed_tokens",
    "nothing_allowed",
    "sample",
    "select_top",
]

Logits = npt.NDArray[np.float32]  # [V]
Mask = npt.NDArray[np.bool_] | npt.NDArray[np.integer]
History = Sequence[int] | npt.NDArray[np.integer]

_MASKED: Final = np.float32(-np.inf)
_LARGEST: Final = float(np.finfo(np.float32).max)
# Maxima of this many neighbours bound the best few: 3,880 of them at V = 248,320.
_BLOCK: Final = 64


@dataclass(frozen=True, slots=True)
class Sampled:
    """A picked token. Log-probabilities are of the masked logits, before bias and penalties."""

    id: int
    logprob: float | None  # None unless asked for
    top: tuple[tuple[int, float], ...] = ()  # likeliest first, lower id first on ties


def sample(
    logits: Logits,
    params: SamplingParams,
    history: History,
    position: int,
    mask: Mask | None = None,
) -> Sampled:
    """The token ``params`` picks; depends on nothing but the arguments.

    Args:
        logits: [V] float32. Not modified.
        params: options; with a temperature it needs a seed (``with_seed``).
        history: ids of prompt and answer before this token, newest last, at least the last
            ``penalty_last_n``; for a drafted row, the drafts before it included. Negative
            ids are unused places.
        position: absolute position of the token to pick; the draw depends on it and the seed.
        mask: allowed tokens: [V] bool, or ceil(V / 32) 32-bit words, lowest bit first.

    Raises:
        RequestError: logits are NaN or infinite, or no token is allowed.
        SettingsError: a draw without a seed.
    """
    _check_logits(logits, position)
    if mask is not None:
        logits = np.where(allowed_tokens(mask, len(logits)), logits, _MASKED)
    penalised = _biased(logits, params) if params.logit_bias else logits
    if params.has_penalties:
        penalised = _penalise(penalised, params, history)
    if params.is_greedy:
        picked = int(np.argmax(penalised))
        if penalised[picked] == _MASKED:
            raise nothing_allowed(position)
    else:
        picked = _draw(penalised, params, position)
    if params.logprobs is None:
        return Sampled(picked, None)
    return _with_logprobs(picked, logits, params.logprobs)


def select_top(logits: Logits, num: int) -> npt.NDArray[np.intp]:
    """Ids of the ``num`` largest logits, largest first, the lower id first on ties.

    Masked logits (minus infinity) are never chosen, so there may be fewer.
    """
    num_blocks = len(logits) // _BLOCK
    if num_blocks >= num:
        maxima = logits[: num_blocks * _BLOCK].reshape(num_blocks, _BLOCK).max(axis=1)
        # At least num logits reach the num-th largest maximum.
        floor = np.partition(maxima, num_blocks - num)[num_blocks - num]
        ids = np.flatnonzero((logits >= floor) & (logits > _MASKED))
    else:
        ids = np.flatnonzero(logits > _MASKED)
    values = logits[ids]
    if len(ids) > 4 * num:
        last = np.partition(values, len(ids) - num)[len(ids) - num]
        above = ids[values > last]
        ids = np.concatenate([above, ids[values == last][: num - len(above)]])
        values = logits[ids]
    # lexsort compares -0.0 and 0.0 as equal, as ties must.
    return ids[np.lexsort((ids, -values))][:num]


def _check_logits(logits: Logits, position: int) -> None:
    # One pass: NaN and +inf both survive max; minus infinity is an allowed "never".
    best = logits.max(initial=_MASKED)
    if np.isnan(best) or best == np.inf:
        kind = "not a number" if np.isnan(best) else "infinite"
        where = int(np.argmax(np.isnan(logits) | (logits == np.inf)))
        raise RequestError(
            f"the model's output is {kind} at position {position}, first for token {where}.\n"
            "  Try: `strata inspect` on the model file; its weights may be damaged."
        )


def allowed_tokens(mask: Mask, vocab_size: int) -> npt.NDArray[np.bool_]:
    """A mask as [V] bool."""
    allowed: npt.NDArray[np.bool_]
    if mask.dtype == np.bool_:
        allowed = mask.view(np.bool_)
    elif mask.dtype in (np.int32, np.uint32):
        words = np.ascontiguousarray(mask).astype("<u4", copy=False)
        allowed = np.unpackbits(words.view(np.uint8), bitorder="little").view(np.bool_)
        if mask.shape == (-(-vocab_size // 32),):
            allowed = allowed[:vocab_size]
    else:
        raise TypeError(f"a mask is bool or 32-bit words, not {mask.dtype}")
    if allowed.shape != (vocab_size,):
        raise ValueError(f"the mask of shape {mask.shape} does not fit {vocab_size} logits")
    return allowed


def _biased(logits: Logits, params: SamplingParams) -> Logits:
    """A copy with ``logit_bias`` added; what is masked stays masked.

    Raises:
        RequestError: an id outside the vocabulary.
    """
    biased = logits.copy()
    for token_id, added in params.logit_bias:
        if token_id >= len(logits):
            raise RequestError(
                f"logit_bias names token {token_id}, but the vocabulary has {len(logits)}.\n"
                "  Try: ids of this model's own tokenizer."
            )
        biased[token_id] += np.float32(added)
    return biased


def _penalise(logits: Logits, params: SamplingParams, history: History) -> Logits:
    """A copy with the logits of recent tokens changed; computed in float64, kept in float32."""
    recent = np.asarray(history[-params.penalty_last_n :], dtype=np.int64)
    ids, counts = np.unique(recent[(recent >= 0) & (recent < len(logits))], return_counts=True)
    values = logits[ids].astype(np.float64)
    values = np.where(values > 0, values / params.repeat_penalty, values * params.repeat_penalty)
    values -= counts * params.frequency_penalty + params.presence_penalty
    # A strong penalty on a huge logit must not turn into "never": that is for masks alone.
    values = np.where(logits[ids] == _MASKED, _MASKED, np.clip(values, -_LARGEST, _LARGEST))
    penalised = logits.copy()
    penalised[ids] = values
    return penalised


def _draw(logits: Logits, params: SamplingParams, position: int) -> int:
    if params.seed is None:
        raise SettingsError("a draw needs a seed.\n  Try: SamplingParams.with_seed().")
    ids = select_top(logits, params.num_candidates).tolist()
    if not ids:
        raise nothing_allowed(position)
    values: list[float] = logits[ids].tolist()
    values = values[: _num_kept(values, params)]
    weights = _weights(values, params.temperature)
    sums = list(accumulate(weights))
    threshold = uniform(params.seed, position) * sums[-1]
    picked = next((index for index, total in enumerate(sums) if total > threshold), len(sums) - 1)
    return int(ids[picked])


def _num_kept(values: list[float], params: SamplingParams) -> int:
    """How many candidates, largest first, pass top_p and then min_p; at least one."""
    weights = _weights(values, 1.0)
    num = len(weights)
    if params.top_p < 1:
        sums = list(accumulate(weights))
        needed = params.top_p * sums[-1]
        num = 1 + next(index for index, total in enumerate(sums) if total >= needed)
    return sum(weight >= params.min_p for weight in weights[:num])


def _weights(values: list[float], temperature: float) -> list[float]:
    """exp((value - largest) / temperature): unnormalised probabilities, the first one 1.

    math.exp and plain sums, as numpy's differ in the last bit between instruction sets.
    """
    return [math.exp((value - values[0]) / temperature) for value in values]


def _with_logprobs(picked: int, logits: Logits, num: int) -> Sampled:
    """log softmax in float64 over all allowed tokens, for ``picked`` and the ``num`` likeliest."""
    ids = select_top(logits, max(num, 1)).tolist()
    largest = float(logits[ids[0]])
    terms = np.subtract(logits, largest, dtype=np.float64)
    norm = largest + math.log(float(np.exp(terms, out=terms).sum()))
    top = tuple((int(index), float(logits[index]) - norm) for index in ids[:num])
    return Sampled(picked, float(logits[picked]) - norm, top)


def nothing_allowed(position: int) -> RequestError:
    """The error of a place where no token may come."""
    return RequestError(
        f"no token is allowed at position {position}: the mask or the model rules out all.\n"
        "  Try: loosen the required output format."
    )
