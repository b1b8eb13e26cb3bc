"""All tensors of a model, whichever shards they lie in, and its metadata.

Owns the agreement of the shards with each other. Reads no weights until asked; what the tensors
mean to the model is decided above. Callers: everything that loads weights.
"""

import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType

import numpy as np
import numpy.typing as npt

from strata.errors import CheckpointError
from strata.formats.block_decode import dequantize
from strata.formats.gguf import GgufFile, MetadataValue, TensorEntry, read_gguf
from strata.formats.shards import find_model_files, parse_shard_name

__all__ = ["TensorEntry", "TensorIndex", "open_model"]


class TensorIndex(Mapping[str, TensorEntry]):
    """Tensor name to entry, in file order, over one or more mapped files.

    Attributes:
        metadata: of the first shard, plus keys that only later shards have.
        paths: the files, in shard order.
    """

    def __init__(self, files: tuple[GgufFile, ...]) -> None:
        self.paths = tuple(file.path for file in files)
        merged: dict[str, MetadataValue] = {}
        for file in reversed(files):
            merged.update(file.metadata)
        self.metadata: Mapping[str, MetadataValue] = MappingProxyType(merged)
        self._entries: dict[str, TensorEntry] = {}
        for file in files:
            for entry in file.tensors:
                other = self._entries.setdefault(entry.name, entry)
                if other is not entry:
                    raise CheckpointError(
                        f"tensor {entry.name} is in two shards.\n"
                        f"  files: {other.path}, {entry.path}\n"
                        "  Try: download both again; one is a copy under another's name."
                    )
        self._maps = {file.path: file.data for file in files}

    def __getitem__(self, name: str) -> TensorEntry:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def raw(self, name: str) -> npt.NDArray[np.uint8]:
        """Stored bytes of a tensor, ``shape[:-1] + (row_bytes,)``; a read-only view of the file.

        Raises:
            CheckpointError: no such tensor (the nearest name is given), or the index is closed.
        """
        entry = self._find(name)
        data = self._maps.get(entry.path)
        if data is None:
            raise CheckpointError(f"cannot read {name}: the model file is closed.")
        flat = data[entry.offset : entry.offset + entry.num_bytes]
        return flat.reshape(*entry.shape[:-1], entry.row_bytes)

    def array(self, name: str) -> npt.NDArray[np.float32]:
        """The tensor decoded, new float32 array of its shape.

        Raises:
            CheckpointError: no such tensor.
            UnsupportedError: the tensor holds integers.
        """
        return dequantize(self._find(name).format, self.raw(name))

    def close(self) -> None:
        """Let go of the files; views handed out stay valid and keep their own file mapped."""
        self._maps = {}

    def __enter__(self) -> "TensorIndex":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _find(self, name: str) -> TensorEntry:
        entry = self._entries.get(name)
        if entry is None:
            near = difflib.get_close_matches(name, self._entries, n=1)
            hint = f"; the nearest name is {near[0]}" if near else ""
            raise CheckpointError(
                f"there is no tensor {name}{hint}.\n  file: {self.paths[0]}\n"
                "  Try: a complete file of this model."
            )
        return entry


def open_model(path: Path | str) -> TensorIndex:
    """The tensors of the model at ``path``: a file, any of its shards, or a folder with one model.

    Raises:
        CheckpointError: a file is damaged, missing or renamed, or shards do not belong together.
        UnsupportedError: unknown GGUF version or tensor type.
    """
    paths = find_model_files(Path(path))
    files = tuple(read_gguf(file_path) for file_path in paths)
    for number, file in enumerate(files, start=1):
        _check_shard(file, number, len(files))
    index = TensorIndex(files)
    declared = files[0].metadata.get("split.tensors.count", len(index))
    if declared != len(index):
        raise CheckpointError(
            f"the shards hold {len(index)} tensors; split.tensors.count says {declared}.\n"
            f"  file: {files[0].path}\n  Try: download all shards again, from one place."
        )
    return index


def _check_shard(file: GgufFile, number: int, count: int) -> None:
    """Refuse a file whose own account of its place differs from where it was found."""
    told_count = file.metadata.get("split.count", 1)
    told_number = file.metadata.get("split.no", 0)
    if told_count in (0, 1) and count == 1:
        return
    is_integer = isinstance(told_count, int) and isinstance(told_number, int)
    if is_integer and (told_count, told_number) == (count, number - 1):
        return
    says = (
        f"its metadata says shard {told_number + 1} of {told_count}"
        if is_integer
        else "its split.no and split.count are not integers"
    )
    place = (
        f"is found as shard {number} of {count}"
        if parse_shard_name(file.path.name) or count > 1
        else "is not named as a shard"
    )
    raise CheckpointError(
        f"{file.path.name} {place}, but {says}.\n  file: {file.path}\n"
        "  Try: give every shard the name it was published under "
        "(NAME-00001-of-0000N.gguf), or download this one again."
    )
