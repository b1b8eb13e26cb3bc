"""Where a new model is written: one file or shards, after a look at the free space.

Owns the split into shards, for the converter and for synthetic models. Bytes are gguf_writer's.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from strata.errors import CheckpointError
from strata.formats.gguf_writer import GgufWriter, ShardedGgufWriter, TensorPlan
from strata.formats.naming import Role
from strata.formats.shards import parse_shard_name
from strata.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


Progress = Callable[[int, int, str], None]
"""Called with bytes done, bytes in all, and the tensor at work."""


@dataclass(frozen=True, slots=True)
class ConvertReport:
    """What was written, and one sentence for each thing a user may want to know."""

    paths: tuple[Path, ...]
    num_tensors: int
    num_bytes: int
    notices: tuple[str, ...]


def open_writer(
    out: Path,
    metadata: Mapping[str, object],
    plans: Sequence[TensorPlan],
    *,
    shard_bytes: int | None = None,
    has_ngram_shard: bool = False,
) -> GgufWriter | ShardedGgufWriter:
    """A writer for the planned tensors; as a context manager it leaves whole files or none.

    Args:
        out: the file; with shards its stem, ``model.gguf`` -> ``model-00001-of-0000N.gguf``.
        metadata: keys of the (first) file.
        plans: tensors in file order.
        shard_bytes: tensor bytes after which a new shard begins; None for one file.
        has_ngram_shard: the n-gram table lies alone in the last shard.

    Raises:
        CheckpointError: the folder does not exist or lacks the space.
    """
    _check_space(out, sum(plan.num_bytes for plan in plans))
    alone = [plan for plan in plans if has_ngram_shard and plan.name == Role.NGRAM_TABLE.value]
    if shard_bytes is None and not alone:
        return GgufWriter(out, metadata, plans)
    shards: list[list[TensorPlan]] = [[]]
    filled = 0
    for plan in plans:
        if plan in alone:
            continue
        if shards[-1] and shard_bytes and filled + plan.num_bytes > shard_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(plan)
        filled += plan.num_bytes
    if alone:
        shards.append(alone)
    named = parse_shard_name(out.name)
    stem = named.stem if named else out.name.removesuffix(".gguf")
    return ShardedGgufWriter(out.parent, stem, metadata, shards)


def written_paths(writer: GgufWriter | ShardedGgufWriter) -> tuple[Path, ...]:
    """The files of a writer, in shard order."""
    return writer.paths if isinstance(writer, ShardedGgufWriter) else (writer.path,)


def _check_space(out: Path, total: int) -> None:
    if not out.parent.is_dir():
        raise CheckpointError(
            f"cannot write {out}: its folder does not exist.\n  Try: mkdir -p {out.parent}"
        )
    free = shutil.disk_usage(out.parent).free
    if total > free:
        raise CheckpointError(
            f"cannot write {out}: it needs {format_bytes(total)}, but {format_bytes(free)} is "
            f"free in {out.parent}.\n  Try: another disk, or a smaller type."
        )
