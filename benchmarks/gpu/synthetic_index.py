"""A model of any geometry without a file: what ``strata synth`` would write, in memory.

Large tensors repeat one piece of random blocks, so that thirty gigabytes are described in seconds;
on the card every expert still has memory of its own. For speed only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from strata.formats import synth
from strata.formats.block_decode import dequantize
from strata.formats.naming import Role, required_tensors
from strata.formats.tensor_index import TensorEntry

if TYPE_CHECKING:
    from pathlib import Path

PIECE_BYTES = 1 << 23


class SyntheticIndex(Mapping[str, TensorEntry]):
    """Stands in for a ``TensorIndex``; ``folder`` takes the n-gram table, all there is on disk."""

    def __init__(self, geometry: synth.SynthGeometry, mix: str, folder: Path) -> None:
        self.geometry = geometry
        self.paths = (folder / "table.bin",)
        self.spec, self.metadata = synth.spec_of(geometry)
        self._roles = required_tensors(self.spec)
        self._pieces: dict[tuple[str, float], np.ndarray] = {}
        self._entries = {}
        for name, role in self._roles.items():
            plan = synth._plan(name, role, self.spec, synth.MIXES[mix])
            self._entries[name] = TensorEntry(
                name, plan.shape, plan.format, self.paths[0], 0, plan.num_bytes
            )
        table = self._entries.get(Role.NGRAM_TABLE.value)
        if table is not None:
            table.path.write_bytes(self.raw(table.name).tobytes())

    def __getitem__(self, name: str) -> TensorEntry:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def raw(self, name: str) -> np.ndarray:
        """Stored bytes, shape[:-1] + (row_bytes,)."""
        entry, role = self._entries[name], self._roles[name]
        if entry.num_bytes <= PIECE_BYTES:
            plan = synth._plan(name, role, self.spec, _same(entry))
            rng = np.random.Generator(np.random.SFC64(1))
            parts = list(synth._tensor_bytes(plan, role, self.geometry, rng))
            flat = np.concatenate([part.reshape(-1) for part in parts])
        else:
            deviation = synth._deviation(role, entry.shape, self.geometry.branch_gain)
            key = (entry.format.name, deviation)
            if key not in self._pieces:
                rng = np.random.Generator(np.random.SFC64(2))
                count = PIECE_BYTES // entry.format.block_bytes
                self._pieces[key] = synth.random_blocks(entry.format, count, deviation, rng)
            flat = np.resize(self._pieces[key].reshape(-1), entry.num_bytes)
        return flat.view(np.uint8).reshape(*entry.shape[:-1], entry.row_bytes)

    def array(self, name: str) -> np.ndarray:
        """Decoded."""
        return dequantize(self._entries[name].format, self.raw(name))


def _same(entry: TensorEntry) -> synth.TypePlan:
    return replace(synth.uniform_mix("F32"), by_name=((entry.name, entry.format.name),))
