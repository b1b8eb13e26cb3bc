"""Options that say which made-up model a benchmark takes, the same for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from strata.cpu.build import physical_cores
from strata.formats.synth import GEOMETRIES, MIXES

if TYPE_CHECKING:
    import argparse


def add_model_options(parser: argparse.ArgumentParser, *, num_layers: int) -> None:
    """``--geometry``, ``--mix``, ``--kv`` and ``--layers``; ``num_layers`` when it is not given."""
    parser.add_argument("--geometry", default="coder", choices=sorted(GEOMETRIES))
    parser.add_argument("--mix", default="iq3_s", choices=sorted(MIXES))
    parser.add_argument("--kv", default="f16", choices=("f16", "int8"))
    parser.add_argument("--layers", type=int, default=num_layers)


def add_threads(parser: argparse.ArgumentParser) -> None:
    """``--threads`` of the processor beside the one that launches."""
    parser.add_argument("--threads", type=int, default=max(1, physical_cores() - 1))
