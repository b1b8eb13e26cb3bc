"""Which block format each tensor of a written file gets.

Owns the classes of tensors, the presets and the fall-backs. Encoding is in quantize.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import TYPE_CHECKING

from strata.errors import SettingsError
from strata.formats.block_formats import FORMATS, BlockFormat
from strata.formats.naming import INDEX_ROLES, Role, tensor_name

if TYPE_CHECKING:
    from collections.abc import Mapping


class TensorClass(Enum):
    """Tensors that get one format together; the value is the word of settings and flags."""

    EXPERTS_GATE_UP = "experts_gate_up"
    EXPERTS_DOWN = "experts_down"
    DENSE = "dense"
    EMBEDDING = "embedding"
    HEAD = "head"
    NGRAM = "ngram"
    HYPER = "hyper"
    ROUTER = "router"
    SMALL = "small"


_ROUTERS = (Role.ROUTER, Role.SHARED_ROUTER)
_INJECTS = (Role.HC_ATTN_INJECT, Role.HC_FFN_INJECT)
_EXPERTS_IN = (Role.EXPERTS_GATE, Role.EXPERTS_UP, Role.EXPERTS_GATE_UP)
# Read value by value, never by a matrix product: quantising them gains nothing and costs text.
_ALWAYS_F32 = (Role.GDN_CONV, Role.GDN_DT, Role.GDN_A, Role.PLE_CONV)


def class_of(role: Role) -> TensorClass | None:
    """The class of a role; None for what is always stored as F32 (norms, decay, convolutions)."""
    special = {
        Role.EXPERTS_DOWN: TensorClass.EXPERTS_DOWN,
        Role.EMBEDDING: TensorClass.EMBEDDING,
        Role.DRAFT_EMBEDDING: TensorClass.EMBEDDING,
        Role.HEAD: TensorClass.HEAD,
        Role.DRAFT_HEAD: TensorClass.HEAD,
        Role.NGRAM_TABLE: TensorClass.NGRAM,
    }
    if role in _ALWAYS_F32 or "norm" in role.value:
        return None
    if role in special:
        return special[role]
    if role in _EXPERTS_IN:
        return TensorClass.EXPERTS_GATE_UP
    if role in _ROUTERS:
        return TensorClass.ROUTER
    if role in (Role.GDN_ALPHA, Role.GDN_BETA, *INDEX_ROLES):
        return TensorClass.SMALL
    if "hc_" in role.value:
        return TensorClass.HYPER
    return TensorClass.DENSE


# Taken where a row does not fill whole blocks: about the same size, blocks of 32, then F16.
_FALLBACKS: Mapping[str, str] = MappingProxyType(
    {
        "Q2_K": "IQ4_NL", "Q3_K": "IQ4_NL", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0",
        "IQ1_S": "IQ4_NL", "IQ1_M": "IQ4_NL", "IQ2_XXS": "IQ4_NL", "IQ2_XS": "IQ4_NL",
        "IQ2_S": "IQ4_NL", "IQ3_XXS": "IQ4_NL", "IQ3_S": "IQ4_NL", "IQ4_XS": "IQ4_NL",
        "Q2_0": "IQ4_NL", "NVFP4": "IQ4_NL",
    }
)  # fmt: skip

# Below this many bits the injection weights lose the prompt (formats of public files).
_LEAST_INJECT_BITS = 8

_C = TensorClass


def _preset(experts: str, *, rest: str, ngram: str, exact: str) -> dict[TensorClass, str]:
    return {
        _C.EXPERTS_GATE_UP: experts, _C.EXPERTS_DOWN: experts, _C.DENSE: rest,
        _C.EMBEDDING: rest, _C.HEAD: rest, _C.NGRAM: ngram, _C.HYPER: rest,
        _C.ROUTER: "F32", _C.SMALL: exact,
    }  # fmt: skip


PRESETS: Mapping[str, Mapping[TensorClass, str]] = MappingProxyType(
    {
        "f32": _preset("F32", rest="F32", ngram="F32", exact="F32"),
        "bf16": _preset("BF16", rest="BF16", ngram="BF16", exact="BF16"),
        "q8_0": _preset("Q8_0", rest="Q8_0", ngram="Q8_0", exact="BF16"),
        "q6_k": _preset("Q6_K", rest="Q8_0", ngram="Q8_0", exact="BF16"),
        "q5_0": _preset("Q5_0", rest="Q8_0", ngram="IQ4_NL", exact="BF16"),
        "q4_k": _preset("Q4_K", rest="Q8_0", ngram="IQ4_NL", exact="BF16"),
        "q4_0": _preset("Q4_0", rest="Q8_0", ngram="IQ4_NL", exact="BF16"),
        "iq4_nl": _preset("IQ4_NL", rest="Q8_0", ngram="IQ4_NL", exact="BF16"),
        "mxfp4": _preset("MXFP4", rest="Q8_0", ngram="IQ4_NL", exact="BF16"),
        "q2_0": _preset("Q2_0", rest="Q8_0", ngram="IQ4_NL", exact="BF16"),
    }
)
"""Format of each class under each name that ``--type`` takes."""


@dataclass(frozen=True, slots=True)
class TypePlan:
    """Format by class of tensor; ``by_name`` patterns (``blk.2.ffn_*_exps.weight``) go first."""

    by_class: Mapping[TensorClass, str]
    by_role: Mapping[Role, str] = field(default_factory=dict)
    by_name: tuple[tuple[str, str], ...] = ()

    @classmethod
    def preset(
        cls,
        name: str,
        overrides: Mapping[TensorClass, str] | None = None,
        *,
        by_name: tuple[tuple[str, str], ...] = (),
    ) -> TypePlan:
        """The plan of ``--type name``, with single classes replaced.

        Raises:
            SettingsError: an unknown preset or format.
        """
        if name.lower() not in PRESETS:
            raise SettingsError(
                f"there is no type {name!r}; known are {', '.join(PRESETS)}.\n  Try: --type q4_k."
            )
        chosen = {**PRESETS[name.lower()], **(overrides or {})}
        for wanted in (*chosen.values(), *(pair[1] for pair in by_name)):
            named_format(wanted)
        return cls(
            by_class=MappingProxyType({key: value.upper() for key, value in chosen.items()}),
            by_name=tuple((pattern, value.upper()) for pattern, value in by_name),
        )

    def format_for(
        self, role: Role, layer: int | None, shape: tuple[int, ...]
    ) -> tuple[BlockFormat, str | None]:
        """Format of one tensor, and the format it replaces where a row does not fill blocks."""
        wanted = self._wanted(role, layer)
        if role in _INJECTS and named_format(wanted).bits_per_weight < _LEAST_INJECT_BITS:
            wanted = "Q8_0"
        if len(shape) < 2 and wanted not in ("F32", "F16", "BF16"):
            wanted = "F32"
        chosen = wanted
        while shape[-1] % FORMATS[chosen].block_size:
            chosen = _FALLBACKS.get(chosen, "F16")
        return FORMATS[chosen], (wanted if chosen != wanted else None)

    def _wanted(self, role: Role, layer: int | None) -> str:
        kind = class_of(role)
        if kind is None:
            return "F32"
        name = tensor_name(role, layer)
        for pattern, value in self.by_name:
            if fnmatchcase(name, pattern):
                return value
        return self.by_role.get(role, self.by_class[kind])


def named_format(name: str) -> BlockFormat:
    """The weight format of this name, whatever its case.

    Raises:
        SettingsError: there is none.
    """
    found = FORMATS.get(name.upper())
    if found is None or not found.is_weights:
        known = ", ".join(fmt.name for fmt in FORMATS.values() if fmt.is_weights)
        raise SettingsError(f"there is no format {name!r}.\n  Try: one of {known}.")
    return found
