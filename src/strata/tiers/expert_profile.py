"""Which experts are worth a slot: a ranking of (layer, expert) pairs, and its file ``STRP``.

Owns the ranking and the file format (docs/expert-cache.md). What is done with a ranking is
``tiers.slots``.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from strata.errors import CheckpointError
from strata.result_files import write_whole

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    Keys = NDArray[np.int64]

MAGIC = b"STRP"
VERSION = 1
_HEAD = struct.Struct("<4s5I")  # magic, version, L, E, slots, pairs
# Our addition, behind what other readers expect: the model's name and a checksum of all before.
_TAIL_MAGIC = b"STRN"
_TAIL = struct.Struct("<4sI")
_SUM = struct.Struct("<I")
_MAX_NAME_BYTES = 1 << 12
_WITHOUT = "start without --expert-profile"
_ANOTHER = f"the profile of this model, or {_WITHOUT}"


@dataclass(frozen=True, slots=True, eq=False)
class ExpertProfile:
    """Pairs of layer and expert, the one most worth a slot first.

    Attributes:
        num_layers: L.
        num_experts: E.
        num_slots: slots of the cache it was learned with; 0 where there was none.
        keys: [N] int64, distinct, each ``layer * E + expert``; N at most L * E.
        model_name: as the model's file names itself; empty where nobody knows.
    """

    num_layers: int
    num_experts: int
    num_slots: int
    keys: Keys
    model_name: str = ""


def rank_by_uses(uses: NDArray[np.int64], *, model_name: str = "") -> ExpertProfile:
    """A profile of every pair: by uses [L, E], most first, then the lower layer and expert.

    Pairs that were never used come last, expert 0 of every layer first: a cache with room for them
    then gives each layer its share.
    """
    num_layers, num_experts = uses.shape
    flat = uses.reshape(-1)
    order = np.argsort(-flat, kind="stable")
    used = order[flat[order] > 0]
    unused = np.arange(flat.size).reshape(num_layers, num_experts).T.reshape(-1)
    unused = unused[flat[unused] == 0]
    keys = np.concatenate([used, unused])
    return ExpertProfile(num_layers, num_experts, 0, keys, model_name)


def learned_profile(prior: ExpertProfile, heat: NDArray[np.int64], resident: Keys) -> ExpertProfile:
    """What a run leaves for the next: residents first, by heat and then by the rank before.

    Args:
        prior: the profile the run began with.
        heat: [L, E], how much each pair is worth now.
        resident: keys that are in slots.
    """
    flat = heat.reshape(-1)
    last = flat.size
    rank = np.full(flat.size, last, np.int64)
    rank[prior.keys] = np.arange(len(prior.keys))
    is_resident = np.zeros(flat.size, bool)
    is_resident[resident] = True
    order = np.lexsort((np.arange(flat.size), rank, -flat, ~is_resident))
    known = is_resident | (flat > 0) | (rank < last)
    return ExpertProfile(
        prior.num_layers,
        prior.num_experts,
        len(resident),
        order[known[order]],
        prior.model_name,
    )


def write_profile(path: Path, profile: ExpertProfile) -> None:
    """Writes the file beside its place and moves it there when it is whole.

    Raises:
        OSError: it cannot be written.
    """
    num_pairs = profile.num_layers * profile.num_experts
    ranks = np.full(num_pairs, -1, "<i4")
    ranks[profile.keys] = np.arange(len(profile.keys))
    pairs = np.stack(np.divmod(profile.keys, profile.num_experts), axis=1).astype("<u2")
    name = profile.model_name.encode("utf-8")
    body = b"".join(
        [
            _HEAD.pack(
                MAGIC, VERSION, profile.num_layers, profile.num_experts, profile.num_slots,
                len(profile.keys),
            ),
            pairs.tobytes(),
            ranks.tobytes(),
            _TAIL.pack(_TAIL_MAGIC, len(name)),
            name,
        ]
    )  # fmt: skip
    write_whole(path, body + _SUM.pack(zlib.crc32(body)))


def read_profile(
    path: Path, num_layers: int, num_experts: int, model_name: str = ""
) -> ExpertProfile:
    """The profile of a file, every number of it checked, for a model of this geometry.

    Args:
        path: the file; one without our tail (name and checksum) is taken as well.
        num_layers: L of the model.
        num_experts: E of the model.
        model_name: the model's own name; compared where both sides have one.

    Raises:
        CheckpointError: it is no profile, of another version or model, or damaged.
        OSError: it cannot be read.
    """
    found = _parsed(path.read_bytes())
    wrong, todo = found if isinstance(found, str) else None, _WITHOUT
    if isinstance(found, ExpertProfile):
        wrong, todo = _other_model(found, num_layers, num_experts, model_name), _ANOTHER
    if isinstance(found, str) or wrong:
        raise CheckpointError(
            f"the expert profile cannot be used: {wrong}.\n  file: {path}\n  Try: {todo}."
        )
    return found


def _other_model(
    profile: ExpertProfile, num_layers: int, num_experts: int, model_name: str
) -> str | None:
    """How a profile shows that it is of another model, or None."""
    if (profile.num_layers, profile.num_experts) != (num_layers, num_experts):
        return (
            f"it ranks {profile.num_layers} layers of {profile.num_experts} experts, the model "
            f"has {num_layers} of {num_experts}"
        )
    if profile.model_name and model_name and profile.model_name != model_name:
        return f"it was learned on {profile.model_name!r}, the model is {model_name!r}"
    return None


def _parsed(data: bytes) -> ExpertProfile | str:
    """The profile in ``data``, or what is wrong with it."""
    if data[:4] != MAGIC:
        return f"it begins with {data[:4]!r}, expected {MAGIC!r}"
    if len(data) < _HEAD.size:
        return f"it has {len(data)} bytes, and its head alone needs {_HEAD.size}"
    _, version, layers, experts, num_slots, num_ranked = _HEAD.unpack_from(data)
    if version != VERSION:
        return f"version {version}, expected {VERSION}"
    if num_ranked > layers * experts:
        return f"{num_ranked} ranked pairs, expected at most {layers * experts}"
    at = _HEAD.size + 4 * num_ranked
    end = at + 4 * layers * experts
    if len(data) < end:
        return f"it has {len(data)} bytes, expected at least {end}"
    pairs = np.frombuffer(data, "<u2", 2 * num_ranked, _HEAD.size).reshape(-1, 2).astype(np.int64)
    ranks = np.frombuffer(data, "<i4", layers * experts, at)
    wrong, name = _read_tail(data, end)
    wrong = wrong or _wrong_pairs(pairs, ranks, layers, experts)
    keys = pairs[:, 0] * experts + pairs[:, 1]
    return wrong or ExpertProfile(layers, experts, num_slots, keys, name)


def _wrong_pairs(pairs: Keys, ranks: NDArray[np.int32], layers: int, experts: int) -> str | None:
    """What is wrong with the ranked pairs or with the table of ranks, or None."""
    outside = np.flatnonzero((pairs[:, 0] >= layers) | (pairs[:, 1] >= experts))
    if len(outside):
        layer, expert = pairs[outside[0]]
        return (
            f"pair {outside[0]} is layer {layer}, expert {expert}, out of range ({layers} layers "
            f"of {experts} experts)"
        )
    keys = pairs[:, 0] * experts + pairs[:, 1]
    order = np.argsort(keys, kind="stable")
    again = np.flatnonzero(np.diff(keys[order]) == 0)
    if len(again):
        first, second = order[again[0]], order[again[0] + 1]
        layer, expert = pairs[first]
        return f"layer {layer}, expert {expert} is ranked twice, as pair {first} and {second}"
    expected = np.full(layers * experts, -1, np.int32)
    expected[keys] = np.arange(len(keys))
    different = np.flatnonzero(expected != ranks)
    if len(different):
        layer, expert = divmod(int(different[0]), experts)
        return (
            f"its table gives layer {layer}, expert {expert} rank {ranks[different[0]]}, its list "
            f"{expected[different[0]]}"
        )
    return None


def _read_tail(data: bytes, at: int) -> tuple[str | None, str]:
    """What is wrong with the bytes behind the table or None, and the model's name if they tell."""
    if len(data) == at:
        return None, ""
    if len(data) < at + _TAIL.size + _SUM.size or data[at : at + 4] != _TAIL_MAGIC:
        return f"{len(data) - at} bytes of no known kind follow its table", ""
    _, name_bytes = _TAIL.unpack_from(data, at)
    end = at + _TAIL.size + name_bytes
    if name_bytes > _MAX_NAME_BYTES or len(data) != end + _SUM.size:
        return f"it has {len(data)} bytes, expected {end + _SUM.size}", ""
    (expected,) = _SUM.unpack_from(data, end)
    if zlib.crc32(data[:end]) != expected:
        return f"checksum {zlib.crc32(data[:end]):08x}, expected {expected:08x}", ""
    try:
        return None, data[at + _TAIL.size : end].decode("utf-8")
    except UnicodeDecodeError:
        return "the model's name is not UTF-8", ""
