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
        num_slots: places for them on the card; None for as many as there are experts.
    """

    names: tuple[str, str, str]
    formats: tuple[str, str, str]
    hidden_size: int
    expert_size: int
    num: int
    num_slots: int | None = None

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
        slots = self.num if self.num_slots is None else self.num_slots
        return {
            "blobs": Shape((slots, self.blob_bytes), "uint8"),
            "scales": Shape((slots, 3)),
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
class DraftLayout:
    """The draft layer.

    Attributes:
        layer: its number in the file.
        embedding, head: None where the model's head serves.
        embed_norm, hidden_norm: gammas of the norms of embedding and streams.
        fusion: of an embedding beside one stream.
        hc_attn: read before the attention.
        projections: q and gate, k, v.
        small: float tensors of the attention by role.
        out: the attention's last product.
        hc_ffn: read before the experts.
        routers: router, shared router.
        experts, shared: the routed ones; the shared one, a stack of one.
        final: read before the head.
    """

    layer: int
    embedding: Bundle | None
    head: Bundle | None
    embed_norm: str
    hidden_norm: str
    fusion: Bundle
    hc_attn: HcLayout
    projections: Bundle
    small: Mapping[Role, str]
    out: Bundle
    hc_ffn: HcLayout
    routers: Bundle
    experts: ExpertsLayout
    shared: ExpertsLayout
    final: HcLayout

    @property
    def bundles(self) -> Iterator[Bundle]:
        """All bundles of its own."""
        for hc in (self.hc_attn, self.hc_ffn, self.final):
            yield from (hc.down_inject, hc.up)
        yield from (self.fusion, self.projections, self.out, self.routers)
        yield from (part for part in (self.embedding, self.head) if part is not None)

    @property
    def floats(self) -> Iterator[str]:
        """Names of all float tensors."""
        yield from (self.embed_norm, self.hidden_norm)
        yield from (hc.norm for hc in (self.hc_attn, self.hc_ffn, self.final))
        yield from self.small.values()


@dataclass(frozen=True, slots=True)
class ModelLayout:
    """The layers, the read before the head, the head; the draft layer if it is wanted."""

    layers: tuple[LayerLayout, ...]
    final: HcLayout
    head: Bundle
    draft: DraftLayout | None = None

    @property
    def bundles(self) -> Iterator[Bundle]:
        """All bundles but those of the draft layer."""
        for layer in self.layers:
            yield from layer.bundles
        yield from (self.final.down_inject, self.final.up, self.head)

    @property
    def floats(self) -> Iterator[str]:
        """Names of all float tensors but those of the draft layer."""
        for layer in self.layers:
            yield from layer.floats
        yield self.final.norm


_GDN = (Role.GDN_QKV, Role.GDN_GATE, Role.GDN_ALPHA, Role.GDN_BETA)
_QSA = (Role.ATTN_Q, Role.ATTN_K, Role.ATTN_V, Role.INDEX_Q, Role.INDEX_K)
_GDN_SMALL = (Role.GDN_CONV, Role.GDN_DT, Role.GDN_A, Role.GDN_NORM)
_QSA_SMALL = (Role.ATTN_Q_NORM, Role.ATTN_K_NORM, Role.INDEX_Q_NORM, Role.INDEX_K_NORM)
_PLE_SMALL = (Role.PLE_NORM_KEY, Role.PLE_NORM_QUERY, Role.PLE_NORM_CONV, Role.PLE_CONV)


def model_layout(entries: Entries, spec: ModelSpec, *, has_draft: bool = False) -> ModelLayout:
    """The parts of a model whose file has these tensors; ``has_draft``: the draft layer too.

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
        _draft(entries, spec) if has_draft else None,
    )
    _refuse_scales(layout, entries)
    return layout


@dataclass(frozen=True, slots=True)
class _Block:
    """Parts of one block of the file."""

    entries: Entries
    spec: ModelSpec
    layer: int

    def named(self, *roles: Role) -> list[str]:
        return [tensor_name(role, self.layer) for role in roles]

    def small(self, roles: tuple[Role, ...]) -> dict[Role, str]:
        return dict(zip(roles, self.named(*roles), strict=True))

    def bundle(self, *roles: Role) -> Bundle:
        return bundle(self.entries, self.named(*roles))

    def hc(self, norm: Role, up: Role, *down_inject: Role) -> HcLayout:
        name = tensor_name(norm, self.layer)
        return HcLayout(name, self.bundle(*down_inject), self.bundle(up))

    def hc_attn(self) -> HcLayout:
        return self.hc(Role.HC_ATTN_NORM, Role.HC_ATTN_UP, Role.HC_ATTN_DOWN, Role.HC_ATTN_INJECT)

    def hc_ffn(self) -> HcLayout:
        return self.hc(Role.HC_FFN_NORM, Role.HC_FFN_UP, Role.HC_FFN_DOWN, Role.HC_FFN_INJECT)

    def experts(self) -> tuple[ExpertsLayout, ExpertsLayout]:
        """The routed ones, the shared one."""
        spec, entries = self.spec, self.entries
        fused = tensor_name(Role.EXPERTS_GATE_UP, self.layer)
        gate, up, down = self.named(Role.EXPERTS_GATE, Role.EXPERTS_UP, Role.EXPERTS_DOWN)
        if fused in entries:
            gate = up = fused
        shared = self.named(Role.SHARED_GATE, Role.SHARED_UP, Role.SHARED_DOWN)
        return (
            _experts(entries, (gate, up, down), spec.hidden_size, spec.expert_size),
            _experts(
                entries, (shared[0], shared[1], shared[2]), spec.hidden_size,
                spec.shared_expert_size,
            ),
        )  # fmt: skip


def _draft(entries: Entries, spec: ModelSpec) -> DraftLayout:
    block = _Block(entries, spec, spec.num_layers)
    if LayerKind.QSA not in spec.layer_kinds:
        raise UnsupportedError(
            "a draft layer beside a model without attention has no rotary table on the card.\n"
            "  Try: --draft 0, or --device cpu."
        )
    own_embedding, own_head = block.named(Role.DRAFT_EMBEDDING, Role.DRAFT_HEAD)
    embedding = None if spec.is_head_tied else bundle(entries, [tensor_name(Role.EMBEDDING)])
    if own_embedding in entries:
        embedding = bundle(entries, [own_embedding])
    experts, shared = block.experts()
    (embed_norm,), (hidden_norm,) = (
        block.named(role) for role in (Role.DRAFT_EMBED_NORM, Role.DRAFT_HIDDEN_NORM)
    )
    return DraftLayout(
        block.layer,
        embedding,
        bundle(entries, [own_head]) if own_head in entries else None,
        embed_norm,
        hidden_norm,
        block.bundle(Role.DRAFT_IN),
        block.hc_attn(),
        block.bundle(Role.ATTN_Q, Role.ATTN_K, Role.ATTN_V),
        block.small((Role.ATTN_Q_NORM, Role.ATTN_K_NORM)),
        block.bundle(Role.ATTN_OUT),
        block.hc_ffn(),
        block.bundle(Role.ROUTER, Role.SHARED_ROUTER),
        experts,
        shared,
        block.hc(Role.DRAFT_HC_NORM, Role.DRAFT_HC_UP, Role.DRAFT_HC_DOWN),
    )


def _layer(entries: Entries, spec: ModelSpec, layer: int) -> LayerLayout:
    is_gdn = spec.layer_kinds[layer] is LayerKind.GDN
    has_ngram = spec.ngram is not None and spec.ngram.layer == layer
    block = _Block(entries, spec, layer)
    experts, shared = block.experts()
    return LayerLayout(
        layer,
        spec.layer_kinds[layer],
        block.hc_attn(),
        block.bundle(*(_GDN if is_gdn else _QSA)),
        block.bundle(Role.GDN_OUT if is_gdn else Role.ATTN_OUT),
        block.small(_GDN_SMALL if is_gdn else _QSA_SMALL),
        block.hc_ffn(),
        block.bundle(Role.ROUTER, Role.SHARED_ROUTER),
        experts,
        shared,
        block.bundle(Role.PLE_KEY, Role.PLE_VALUE) if has_ngram else None,
        block.small(_PLE_SMALL) if has_ngram else {},
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
    of_draft = () if layout.draft is None else layout.draft.bundles
    for bundle_ in (*layout.bundles, *of_draft):
        for part in (part for launch in bundle_.launches for part in launch.parts):
            companion = f"{part.name.removesuffix('.weight')}.scale"
            if companion in entries:
                raise UnsupportedError(
                    f"{companion} scales a matrix outside the experts, which the card's kernels "
                    "do not do.\n  Try: --device cpu, or a file without it."
                )
