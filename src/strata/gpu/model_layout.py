"""What of a model file goes to a card: every matrix with its bundle, every small tensor.

Names and numbers only: no torch, nothing is read. ``weights`` loads it, ``memory_plan`` adds it up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from strata.errors import UnsupportedError
from strata.formats.naming import Role, tensor_name
from strata.gpu.packing_fields import BLOCK_FORMATS
from strata.gpu.shapes import ALIGNMENT, Shape
from strata.gpu.weight_layout import PANEL_ROWS, Bundle, bundle, panel_bytes
from strata.model_spec import LayerKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from strata.formats.tensor_index import TensorEntry
    from strata.model_spec import ModelSpec

    Entries = Mapping[str, TensorEntry]


@dataclass(frozen=True, slots=True)
class HcLayout:
    """One hyper-connection read: the norm's gamma, down with inject, up."""

    norm: str
    down_inject: Bundle
    up: Bundle


@dataclass(frozen=True, slots=True)
class ExpertsLayout:
    """Gate, up and down of the experts of a layer; a blob of bytes for each expert.

    Attributes:
        names: the tensors of gate, up and down, [num, out, in]; two equal ones are fused.
        formats: their block formats.
        hidden_size: D.
        expert_size: F.
        num: experts.
    """

    names: tuple[str, str, str]
    formats: tuple[str, str, str]
    hidden_size: int
    expert_size: int
    num: int

    @property
    def blob_bytes(self) -> int:
        """Bytes of one expert, as ``expert_slots.BlobLayout`` has them."""
        size, hidden = self.expert_size, self.hidden_size
        shapes = ((size, hidden), (size, hidden), (hidden, size))
        total = sum(
            -(-rows // PANEL_ROWS) * panel_bytes(format_name, inner)
            for format_name, (rows, inner) in zip(self.formats, shapes, strict=True)
        )
        return -(-total // ALIGNMENT) * ALIGNMENT

    @property
    def down_bytes(self) -> int:
        """Bytes of one expert's down, which is the last of it."""
        panels = -(-self.hidden_size // PANEL_ROWS)
        return panels * panel_bytes(self.formats[2], self.expert_size)

    def shapes(self) -> dict[str, Shape]:
        """Tensors on the card; the names are those of ``expert_slots.ExpertSlots``."""
        return {
            "blobs": Shape((self.num, self.blob_bytes), "uint8"),
            "scales": Shape((self.num, 3)),
            "slot_of": Shape((self.num,), "int32"),
        }


@dataclass(frozen=True, slots=True)
class LayerLayout:
    """One decoder layer.

    Attributes:
        index: its number.
        kind: how it mixes tokens.
        hc_attn: read before the mixer.
        projections: GDN: qkv, z, alpha, beta. QSA: q and gate, k, v, index q, index k.
        out: the mixer's last product.
        small: float tensors of the mixer by role.
        hc_ffn: read before the experts.
        routers: router, shared router.
        experts, shared: the routed ones; the shared one, a stack of one.
        ple: key and value of the n-gram memory, or None.
        ple_small: its float tensors by role.
    """

    index: int
    kind: LayerKind
    hc_attn: HcLayout
    projections: Bundle
    out: Bundle
    small: Mapping[Role, str]
    hc_ffn: HcLayout
    routers: Bundle
    experts: ExpertsLayout
    shared: ExpertsLayout
    ple: Bundle | None
    ple_small: Mapping[Role, str]

    @property
    def bundles(self) -> Iterator[Bundle]:
        """All bundles."""
        for hc in (self.hc_attn, self.hc_ffn):
            yield from (hc.down_inject, hc.up)
        yield from (self.projections, self.out, self.routers)
        if self.ple is not None:
            yield self.ple

    @property
    def floats(self) -> Iterator[str]:
        """Names of all float tensors."""
        yield from (self.hc_attn.norm, self.hc_ffn.norm)
        yield from self.small.values()
        yield from self.ple_small.values()


@dataclass(frozen=True, slots=True)
class ModelLayout:
    """The layers, the read before the head, the head."""

    layers: tuple[LayerLayout, ...]
    final: HcLayout
    head: Bundle

    @property
    def bundles(self) -> Iterator[Bundle]:
        """All bundles."""
        for layer in self.layers:
            yield from layer.bundles
        yield from (self.final.down_inject, self.final.up, self.head)

    @property
    def floats(self) -> Iterator[str]:
        """Names of all float tensors."""
        for layer in self.layers:
            yield from layer.floats
        yield self.final.norm


_GDN = (Role.GDN_QKV, Role.GDN_GATE, Role.GDN_ALPHA, Role.GDN_BETA)
_QSA = (Role.ATTN_Q, Role.ATTN_K, Role.ATTN_V, Role.INDEX_Q, Role.INDEX_K)
_GDN_SMALL = (Role.GDN_CONV, Role.GDN_DT, Role.GDN_A, Role.GDN_NORM)
_QSA_SMALL = (Role.ATTN_Q_NORM, Role.ATTN_K_NORM, Role.INDEX_Q_NORM, Role.INDEX_K_NORM)
_PLE_SMALL = (Role.PLE_NORM_KEY, Role.PLE_NORM_QUERY, Role.PLE_NORM_CONV, Role.PLE_CONV)


def model_layout(entries: Entries, spec: ModelSpec) -> ModelLayout:
    """The parts of a model whose file has these tensors.

    Raises:
        UnsupportedError: a block format that has no packed form, or a tensor with a scale beside.
    """
    head = Role.EMBEDDING if spec.is_head_tied else Role.HEAD
    layout = ModelLayout(
        tuple(_layer(entries, spec, layer) for layer in range(spec.num_layers)),
        HcLayout(
            tensor_name(Role.FINAL_HC_NORM),
            bundle(entries, [tensor_name(Role.FINAL_HC_DOWN)]),
            bundle(entries, [tensor_name(Role.FINAL_HC_UP)]),
        ),
        bundle(entries, [tensor_name(head)]),
    )
    _refuse_scales(layout, entries)
    return layout


def _layer(entries: Entries, spec: ModelSpec, layer: int) -> LayerLayout:
    is_gdn = spec.layer_kinds[layer] is LayerKind.GDN
    has_ngram = spec.ngram is not None and spec.ngram.layer == layer

    def named(*roles: Role) -> list[str]:
        return [tensor_name(role, layer) for role in roles]

    def small(roles: tuple[Role, ...]) -> dict[Role, str]:
        return dict(zip(roles, named(*roles), strict=True))

    def hc(norm: Role, down: Role, inject: Role, up: Role) -> HcLayout:
        down_inject = bundle(entries, named(down, inject))
        return HcLayout(tensor_name(norm, layer), down_inject, bundle(entries, named(up)))

    fused = tensor_name(Role.EXPERTS_GATE_UP, layer)
    gate, up = named(Role.EXPERTS_GATE, Role.EXPERTS_UP)
    if fused in entries:
        gate = up = fused
    down = tensor_name(Role.EXPERTS_DOWN, layer)
    shared_gate, shared_up, shared_down = named(Role.SHARED_GATE, Role.SHARED_UP, Role.SHARED_DOWN)
    shared = (shared_gate, shared_up, shared_down)
    ple = named(Role.PLE_KEY, Role.PLE_VALUE)
    return LayerLayout(
        layer,
        spec.layer_kinds[layer],
        hc(Role.HC_ATTN_NORM, Role.HC_ATTN_DOWN, Role.HC_ATTN_INJECT, Role.HC_ATTN_UP),
        bundle(entries, named(*(_GDN if is_gdn else _QSA))),
        bundle(entries, named(Role.GDN_OUT if is_gdn else Role.ATTN_OUT)),
        small(_GDN_SMALL if is_gdn else _QSA_SMALL),
        hc(Role.HC_FFN_NORM, Role.HC_FFN_DOWN, Role.HC_FFN_INJECT, Role.HC_FFN_UP),
        bundle(entries, named(Role.ROUTER, Role.SHARED_ROUTER)),
        _experts(entries, (gate, up, down), spec.hidden_size, spec.expert_size),
        _experts(entries, shared, spec.hidden_size, spec.shared_expert_size),
        bundle(entries, ple) if has_ngram else None,
        small(_PLE_SMALL) if has_ngram else {},
    )


def _experts(
    entries: Entries, names: tuple[str, str, str], hidden_size: int, size: int
) -> ExpertsLayout:
    first = entries[names[0]]
    gate, up, down = (entries[name].format.name for name in names)
    for name in names:
        if entries[name].format.name not in BLOCK_FORMATS:
            raise UnsupportedError(
                f"{name} is {entries[name].format.name}; on a card experts must be quantised.\n"
                "  Try: --device cpu, or a quantised file."
            )
    num = first.shape[0] if len(first.shape) == 3 else 1
    return ExpertsLayout(names, (gate, up, down), hidden_size, size, num)


def _refuse_scales(layout: ModelLayout, entries: Entries) -> None:
    """Experts have a factor for each of their products; other matrices do not."""
    for bundle_ in layout.bundles:
        for part in (part for launch in bundle_.launches for part in launch.parts):
            companion = f"{part.name.removesuffix('.weight')}.scale"
            if companion in entries:
                raise UnsupportedError(
                    f"{companion} scales a matrix outside the experts, which the card's kernels "
                    "do not do.\n  Try: --device cpu, or a file without it."
                )
