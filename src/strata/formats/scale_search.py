"""Best scales for a run of weights: small exact searches in numpy, used by the quantisers.

Owns the choice of scale (and minimum) that leaves the least squared error; packing is quantize's
and quantize_k's. All arrays are [n, groups]: one column per group that shares a scale, so that
sums over a group run along contiguous memory.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


def columns(x: Floats, group: int) -> Floats:
    """[group, x.size / group]: each run of ``group`` weights as one column."""
    return np.ascontiguousarray(x.reshape(-1, group).T)


def ratio(numerator: Floats | float, denominator: Floats) -> Floats:
    """Quotient, and zero where the denominator is zero (or so small that it overflows)."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        quotient = np.divide(numerator, denominator, dtype=np.float32)
    quotient[~np.isfinite(quotient)] = 0
    return quotient


def signed_peak(x: Floats) -> Floats:
    """[groups]: the weight of largest magnitude, with its sign."""
    top, bottom = x.max(axis=0), x.min(axis=0)
    peak: Floats = np.where(top >= -bottom, top, bottom)
    return peak


def rounded(low: int, high: int) -> Callable[[Floats], Floats]:
    """A quantiser to the integers low..high."""

    def to_levels(y: Floats) -> Floats:
        np.rint(y, out=y)
        np.maximum(y, np.float32(low), out=y)
        return np.minimum(y, np.float32(high), out=y)

    return to_levels


def fit_scale(
    x: Floats, to_levels: Callable[[Floats], Floats], peak_levels: Sequence[float]
) -> Floats:
    """[groups]: scale d with the least sum (x - d * level)^2 among those tried.

    Each try maps the group's peak to one of ``peak_levels``, quantises, and takes the d that is
    best for those levels: sum(x * level) / sum(level^2), which explains (sum x * level)^2 /
    sum(level^2) of the group's energy.

    Args:
        x: [n, groups] float32; not modified.
        to_levels: nearest representable level of each value; may overwrite its argument.
        peak_levels: in units of d.
    """
    # Work at magnitude one: squares of very small or large weights leave float32.
    peak = signed_peak(x)
    unit = x * ratio(1.0, peak)
    best = np.zeros(x.shape[1], np.float32)
    best_gain = np.zeros(x.shape[1], np.float32)
    for peak_level in peak_levels:
        levels = to_levels(unit * np.float32(peak_level))
        correlation = np.einsum("ng,ng->g", unit, levels)
        scale = ratio(correlation, np.einsum("ng,ng->g", levels, levels))
        gain = correlation * scale
        better = gain > best_gain
        best[better] = scale[better]
        best_gain[better] = gain[better]
    return best * peak


def fit_scale_and_minimum(
    x: Floats, top: int, spans: Sequence[float], *, can_be_positive: bool
) -> tuple[Floats, Floats]:
    """Scale d >= 0 and minimum m, each [groups], with the least sum (x - d * code - m)^2.

    Each try spreads the group's range over ``span`` codes, clips to 0..top, and solves the two
    normal equations for those codes.

    Args:
        x: [n, groups] float32; not modified.
        top: largest code.
        spans: tried widths of the range in codes.
        can_be_positive: if false, m is at most zero (the K formats store -m unsigned).
    """
    count = np.float32(len(x))
    magnitude = np.abs(x).max(axis=0)
    unit = x * ratio(1.0, magnitude)
    bottom = unit.min(axis=0)
    if not can_be_positive:
        np.minimum(bottom, 0, out=bottom)
    width = unit.max(axis=0) - bottom
    above = unit - bottom
    total, energy = unit.sum(axis=0), np.einsum("ng,ng->g", unit, unit)
    # Without any spread the minimum alone is the answer.
    best_scale, best_minimum = np.zeros_like(bottom), total / count
    if not can_be_positive:
        np.minimum(best_minimum, 0, out=best_minimum)
    best_error = energy - best_minimum * (2 * total - count * best_minimum)
    to_codes = rounded(0, top)
    for span in spans:
        codes = to_codes(above * ratio(span, width))
        code_sum = codes.sum(axis=0)
        code_energy = np.einsum("ng,ng->g", codes, codes)
        correlation = np.einsum("ng,ng->g", unit, codes)
        determinant = count * code_energy - code_sum * code_sum
        scale = ratio(count * correlation - total * code_sum, determinant)
        minimum = ratio(code_energy * total - code_sum * correlation, determinant)
        if not can_be_positive:
            # Equal codes leave the minimum open: zero then, as where it would be positive.
            without = (minimum > 0) | (determinant <= 0)
            minimum[without] = 0
            scale[without] = ratio(correlation, code_energy)[without]
        error = energy - scale * correlation - minimum * total
        better = (error < best_error) & (scale > 0)
        best_scale[better] = scale[better]
        best_minimum[better] = minimum[better]
        best_error[better] = error[better]
    return best_scale * magnitude, best_minimum * magnitude
