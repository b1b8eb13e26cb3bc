"""Which matrices of a layer are multiplied together on a card, and what they take there.

Numbers and names only: no torch, nothing is read. Matrices that share an input are a ``Bundle``;
those of one format lie end to end in it and are one launch. ``weights`` loads what is described
here, ``memory_plan`` adds it up.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from strata.gpu.packing_fields import planes_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from strata.formats.tensor_index import TensorEntry

PANEL_ROWS = 8
FLOAT_FORMATS: Mapping[str, int] = MappingProxyType({"F32": 4, "F16": 2, "BF16": 2})
"""Plain formats and bytes of a value."""

MAX_MATRICES = 4
"""Formats of a bundle that ``kernels.bundle_product`` multiplies in one launch."""


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor of a launch: ``num_rows`` rows from panel ``panel`` on."""

    name: str
    num_rows: int
    panel: int


@dataclass(frozen=True, slots=True)
class Launch:
    """Matrices of one format, end to end.

    Attributes:
        format_name: of all parts.
        inner: weights in a row.
        parts: in the order they lie; each begins with a panel.
        column: first output column of the launch in its bundle.
        num_rows: rows in all, those that fill up panels between parts included.
        panel_bytes: bytes of a panel of eight rows.
    """

    format_name: str
    inner: int
    parts: tuple[Part, ...]
    column: int
    num_rows: int
    panel_bytes: int

    @property
    def is_float(self) -> bool:
        """Whether activations are used as they are, not as codes."""
        return self.format_name in FLOAT_FORMATS

    @property
    def num_panels(self) -> int:
        """Panels of eight rows."""
        return -(-self.num_rows // PANEL_ROWS)

    @property
    def num_bytes(self) -> int:
        """Bytes of all panels."""
        return self.num_panels * self.panel_bytes


@dataclass(frozen=True, slots=True)
class Bundle:
    """Matrices that share an input.

    Attributes:
        launches: one for each format.
        columns: (first, end) output columns of each matrix, in the order they were named.
        width: output columns in all, those between matrices included.
    """

    launches: tuple[Launch, ...]
    columns: tuple[tuple[int, int], ...]
    width: int

    @property
    def has_codes(self) -> bool:
        """Whether a launch reads activations as int8 codes."""
        return any(not launch.is_float for launch in self.launches)

    @property
    def num_bytes(self) -> int:
        """Bytes of all panels."""
        return sum(launch.num_bytes for launch in self.launches)


def bundle(index: Mapping[str, TensorEntry], names: Sequence[str]) -> Bundle:
    """The named matrices, which share an input.

    Raises:
        UnsupportedError: a format that has no packed form.
    """
    by_format: dict[str, list[int]] = {}
    for number, name in enumerate(names):
        by_format.setdefault(index[name].format.name, []).append(number)
    launches: list[Launch] = []
    columns = [(0, 0)] * len(names)
    column = 0
    for format_name, numbers in by_format.items():
        inner = index[names[numbers[0]]].shape[-1]
        parts, panel, end = [], 0, 0
        for number in numbers:
            num_rows = _num_rows(index[names[number]])
            parts.append(Part(names[number], num_rows, panel))
            end = panel * PANEL_ROWS + num_rows
            columns[number] = (column + panel * PANEL_ROWS, column + end)
            panel += -(-num_rows // PANEL_ROWS)
        size = panel_bytes(format_name, inner)
        launches.append(Launch(format_name, inner, tuple(parts), column, end, size))
        column += panel * PANEL_ROWS
    return Bundle(tuple(launches), tuple(columns), column)


def panel_bytes(format_name: str, inner: int) -> int:
    """Bytes of a panel of eight rows of ``inner`` weights.

    Raises:
        UnsupportedError: a format that has no packed form.
    """
    if format_name in FLOAT_FORMATS:
        return float_panel_bytes(format_name, inner)
    groups, rest = divmod(inner // 32, 8)
    loads = ((plane, groups * plane.loads + -(-plane.loads * rest // 8))
             for plane in planes_of(format_name))  # fmt: skip
    return sum(total * PANEL_ROWS * plane.load_bytes for plane, total in loads)


def float_panel_bytes(format_name: str, inner: int) -> int:
    """Bytes of a panel of plain values: whole loads of sixteen bytes for each of four sums."""
    load = 64  # sixteen bytes for each of a row's four sums
    return -(-inner * FLOAT_FORMATS[format_name] // load) * load * PANEL_ROWS


def _num_rows(entry: TensorEntry) -> int:
    # A single output is stored as a vector.
    return 1 if len(entry.shape) == 1 else entry.shape[0]
