"""The BF16 export as the shipped files: experts low, the rest higher, the n-gram table apart.

``python -m training.quantize EXPORT`` writes ``src/strata/demo/``. Owns the formats of the demo and
the limits of its size; the conversion itself is ``strata convert``, whose command line it prints.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from strata.cli.console import Bar, say
from strata.errors import StrataError
from strata.formats.convert import ConvertOptions, convert
from strata.formats.convert_types import TensorClass, TypePlan, class_of
from strata.formats.gguf_writer import TensorPlan
from strata.formats.naming import (
    INDEX_ROLES,
    Role,
    expected_shape,
    required_tensors,
    tensor_name,
)
from strata.units import MiB, format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from strata.model_spec import ModelSpec

DEMO_FOLDER = Path(__file__).resolve().parents[1] / "src" / "strata" / "demo"
STEM = "strata-demo"
PRESET = "q4_k"
# Rows of 96 take blocks of 32 only, so the experts' down matrices cannot have a K format.
BY_CLASS = {
    TensorClass.EXPERTS_GATE_UP: "Q4_K",
    TensorClass.EXPERTS_DOWN: "IQ4_NL",
    TensorClass.DENSE: "Q5_K",
    TensorClass.EMBEDDING: "Q5_K",
    TensorClass.HEAD: "Q6_K",
    TensorClass.NGRAM: "IQ4_NL",
    TensorClass.SMALL: "Q8_0",
}
# What ends a block is added to the streams: a bit more there.
BY_NAME = (("blk.*.ssm_out.weight", "Q6_K"), ("blk.*.attn_output.weight", "Q6_K"))
SHARD_MIB = 12

MAX_SHARD_BYTES = 16 * MiB
MAX_TOTAL_BYTES = 24 * MiB
# The table's rows are padded to a multiple of this (``training.config``).
TABLE_MULTIPLE = 128


def demo_types() -> TypePlan:
    """Formats of the shipped files."""
    return TypePlan.preset(PRESET, BY_CLASS, by_name=BY_NAME)


def command_line(export: str, out: str) -> list[str]:
    """The ``strata convert`` call that writes the same files."""
    words = ["strata", "convert", export, out, "--type", PRESET, "--name", STEM]
    for kind, value in BY_CLASS.items():
        words += ["--class-type", f"{kind.value}={value}"]
    for pattern, value in BY_NAME:
        words += ["--tensor-type", f"{pattern}={value}"]
    return [*words, "--shard-mib", str(SHARD_MIB), "--ngram-shard"]


def planned_tensors(spec: ModelSpec, types: TypePlan) -> list[tuple[Role, TensorPlan]]:
    """Every tensor of a model in these formats; its draft layers have indexers."""
    roles = required_tensors(spec)
    for draft in range(spec.num_layers, spec.num_layers + spec.num_draft_layers):
        roles |= {tensor_name(role, draft): role for role in INDEX_ROLES}
    plans = []
    for name, role in roles.items():
        shape = expected_shape(role, spec)
        if role is Role.NGRAM_TABLE:
            shape = (-(-shape[0] // TABLE_MULTIPLE) * TABLE_MULTIPLE, shape[1])
        layer = int(name.split(".")[1]) if name.startswith("blk.") else None
        plans.append((role, TensorPlan(name, shape, types.format_for(role, layer, shape)[0])))
    return plans


def size_table(spec: ModelSpec, types: TypePlan) -> dict[str, int]:
    """Stored bytes by class of tensor and format."""
    sizes: dict[str, int] = {}
    for role, plan in planned_tensors(spec, types):
        kind = class_of(role)
        label = f"{'norms and scalars' if kind is None else kind.value} {plan.format.name}"
        sizes[label] = sizes.get(label, 0) + plan.num_bytes
    return dict(sorted(sizes.items()))


def write_demo(export: Path, folder: Path) -> list[Path]:
    """Converts, checks the sizes, and only then replaces the files in ``folder``.

    Raises:
        StrataError: the export cannot be converted, or the files are too large.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Beside the target, so that the last step is a rename.
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".demo-") as made:
        options = ConvertOptions(
            types=demo_types(), name=STEM, shard_bytes=SHARD_MIB * MiB, has_ngram_shard=True
        )
        with Bar("converting") as bar:
            report = convert(
                export, Path(made) / f"{STEM}.gguf", options, lambda done, all_, _: bar(done, all_)
            )
        for notice in report.notices:
            say(f"note: {notice}")
        check_sizes({path.name: path.stat().st_size for path in report.paths})
        folder.mkdir(exist_ok=True)
        for old in folder.glob("*.gguf"):
            old.unlink()
        return [Path(shutil.move(path, folder / path.name)) for path in report.paths]


def check_sizes(sizes: dict[str, int]) -> None:
    """Refuses files that are too few or too large to ship.

    Raises:
        StrataError: the limits are not kept; the message has the sizes.
    """
    listed = ", ".join(f"{name} {format_bytes(size)}" for name, size in sizes.items())
    total = sum(sizes.values())
    if len(sizes) < 2 or max(sizes.values()) > MAX_SHARD_BYTES or total > MAX_TOTAL_BYTES:
        raise StrataError(
            f"the files cannot be shipped: {format_bytes(total)} in {len(sizes)} files, expected "
            f"at least 2 of at most {format_bytes(MAX_SHARD_BYTES)}, together at most "
            f"{format_bytes(MAX_TOTAL_BYTES)}.\n  {listed}\n"
            "  Try: fewer bits in training/quantize.py."
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; its exit code."""
    parser = argparse.ArgumentParser(prog="python -m training.quantize", description=__doc__)
    parser.add_argument("export", type=Path, help="folder that training.export wrote")
    parser.add_argument("--out", type=Path, default=DEMO_FOLDER, help="folder of the GGUF shards")
    options = parser.parse_args(arguments)
    print(shlex.join(command_line(str(options.export), str(options.out / f"{STEM}.gguf"))))
    try:
        paths = write_demo(options.export, options.out)
    except StrataError as error:
        say(f"{type(error).__name__}: {error}")
        return 1
    for path in paths:
        print(f"{path.name}  {format_bytes(path.stat().st_size)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
