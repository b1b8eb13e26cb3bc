"""Reads safetensors checkpoints, one file or sharded, a few rows at a time.

Owns the header check and the decoding of stored types to float32. Reads with pread rather than
through a mapping, so that a checkpoint of hundreds of gigabytes never counts as our memory.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard

import numpy as np

from strata.errors import CheckpointError, UnsupportedError
from strata.formats.convert_source import Floats, Shape, as_matrix, plain_name
from strata.units import MiB

if TYPE_CHECKING:
    from numpy.typing import NDArray

# The official checkpoint's headers are below 10 MiB; a longer one is damage.
MAX_HEADER_BYTES = 100 * MiB
INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
# Weights that share one scale in the official FP8 checkpoint, [out, in].
FP8_BLOCK = (128, 128)

_ITEM_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1,
}  # fmt: skip
_PLAIN_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4"}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor lies: ``num_bytes`` from ``offset`` of ``path``."""

    name: str
    dtype: str
    shape: Shape
    path: Path
    offset: int
    num_bytes: int


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Every tensor of one file, by its stored name.

    Raises:
        CheckpointError: the file is truncated, or tensors overlap, leave it or lie about their
            size.
    """
    try:
        with path.open("rb") as stream:
            file_bytes = os.fstat(stream.fileno()).st_size
            header_bytes = int.from_bytes(stream.read(8), "little")
            if not 2 <= header_bytes <= min(MAX_HEADER_BYTES, file_bytes - 8):
                raise _broken(path, f"its header claims {header_bytes} of {file_bytes} bytes")
            raw = stream.read(header_bytes)
    except OSError as error:
        raise CheckpointError(
            f"cannot read {path}: {error.strerror}.\n  Try: check that every shard is present."
        ) from error
    try:
        header = json.loads(raw)
    except (ValueError, RecursionError):
        raise _broken(path, "its header is not JSON") from None
    if not isinstance(header, dict):
        raise _broken(path, "its header is not an object")
    start = 8 + header_bytes
    tensors = {
        name: _tensor(path, name, record, start)
        for name, record in header.items()
        if name != "__metadata__"
    }
    end = start
    for tensor in sorted(tensors.values(), key=lambda t: t.offset):
        if tensor.offset < end:
            raise _broken(path, f"tensor {tensor.name} overlaps another")
        end = tensor.offset + tensor.num_bytes
        if end > file_bytes:
            raise _broken(path, f"tensor {tensor.name} ends at byte {end} of {file_bytes}")
    return tensors


def _broken(path: Path, what: str) -> CheckpointError:
    return CheckpointError(
        f"{path.name} is not a sound safetensors file: {what}.\n  file: {path}\n"
        "  Try: download the shard again."
    )


def _tensor(path: Path, name: str, record: object, start: int) -> StoredTensor:
    if not isinstance(record, dict):
        raise _broken(path, f"tensor {name} has no record")
    dtype, shape, span = (record.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not _are_counts(shape) or not _are_counts(span) or len(span) != 2:
        raise _broken(path, f"tensor {name} has a broken record")
    if dtype not in _ITEM_BYTES:
        raise UnsupportedError(
            f"tensor {name} is stored as {dtype!r}; known are {', '.join(_ITEM_BYTES)}.\n"
            f"  file: {path}\n  Try: the BF16 or FP8 checkpoint."
        )
    first, last = span
    expected = math.prod(shape) * _ITEM_BYTES[dtype]
    if last - first != expected:
        raise _broken(path, f"tensor {name} has {last - first} bytes; its shape needs {expected}")
    return StoredTensor(name, dtype, tuple(shape), path, start + first, expected)


def _are_counts(value: object) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(
        isinstance(item, int) and not isinstance(item, bool) and 0 <= item < 1 << 48
        for item in value
    )


def find_files(folder: Path) -> tuple[Path, ...]:
    """The safetensors files of a checkpoint, by its index or the single file's name.

    Raises:
        CheckpointError: neither exists, the index is broken, or shards are missing (all named).
    """
    index = folder / INDEX_NAME
    if not index.is_file():
        single = folder / SINGLE_NAME
        if single.is_file():
            return (single,)
        raise CheckpointError(
            f"{folder} holds neither {INDEX_NAME} nor {SINGLE_NAME}.\n"
            "  Try: the folder that save_pretrained wrote, or the downloaded checkpoint."
        )
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        names = sorted(set(weight_map.values()))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CheckpointError(
            f"{INDEX_NAME} has no weight_map.\n  file: {index}\n  Try: download it again."
        ) from None
    # A name with a folder in it could leave the checkpoint.
    if not all(isinstance(name, str) and Path(name).name == name for name in names):
        raise CheckpointError(
            f"{INDEX_NAME} names files outside its folder.\n  file: {index}\n"
            "  Try: download it again."
        )
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise CheckpointError(
            f"{len(missing)} of {len(names)} shards are missing: {', '.join(missing[:8])}\n"
            f"  folder: {folder}\n  Try: download them."
        )
    return tuple(folder / name for name in names)


class SafetensorsSource:
    """A checkpoint folder as the converter's TensorSource; closes its files on exit."""

    def __init__(self, folder: Path, *, fp8_block: tuple[int, int] = FP8_BLOCK) -> None:
        """Read every header.

        Raises:
            CheckpointError: as find_files and read_header, or a tensor is in two shards.
        """
        self.has_vision = False
        self._block = fp8_block
        self._tensors: dict[str, StoredTensor] = {}
        self._scales: dict[str, Floats] = {}
        self._handles: dict[Path, int] = {}
        for path in find_files(folder):
            for name, tensor in read_header(path).items():
                plain = plain_name(name)
                if plain is None:
                    self.has_vision = True
                elif plain in self._tensors:
                    raise _broken(path, f"tensor {name} is also in another shard")
                else:
                    self._tensors[plain] = tensor

    def __enter__(self) -> SafetensorsSource:
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles.values():
            os.close(handle)
        self._handles.clear()

    def names(self) -> Iterable[str]:
        """Plain names, scales of FP8 tensors left out."""
        return [name for name in self._tensors if not name.endswith("_scale_inv")]

    def shape(self, name: str) -> Shape:
        """Stored shape."""
        return self._tensors[name].shape

    def rows(self, name: str, start: int, stop: int) -> Floats:
        """Rows ``start`` to ``stop`` as float32; FP8 times its block scales."""
        tensor = self._tensors[name]
        _, width = as_matrix(tensor.shape)
        raw = self._read(tensor, start * width, (stop - start) * width)
        values = decode_values(raw, tensor).reshape(stop - start, width)
        scale_name = f"{name}_scale_inv"
        if tensor.dtype == "F8_E4M3" and scale_name in self._tensors:
            values *= self._row_scales(name, scale_name, start, stop)
        return values

    def integers(self, name: str) -> tuple[int, ...]:
        """All values of an integer tensor."""
        tensor = self._tensors[name]
        if tensor.dtype not in ("I64", "I32"):
            raise _broken(tensor.path, f"tensor {name} is {tensor.dtype}; expected integers")
        raw = self._read(tensor, 0, math.prod(tensor.shape))
        return tuple(int(value) for value in raw.view(_PLAIN_TYPES[tensor.dtype]))

    def _read(self, tensor: StoredTensor, first: int, count: int) -> NDArray[np.uint8]:
        """Bytes of ``count`` values from value ``first`` on."""
        size = _ITEM_BYTES[tensor.dtype]
        buffer = np.empty(count * size, np.uint8)
        if tensor.path not in self._handles:
            self._handles[tensor.path] = os.open(tensor.path, os.O_RDONLY)
        done = 0
        while done < buffer.size:
            at = tensor.offset + first * size + done
            got = os.preadv(self._handles[tensor.path], [buffer.data[done:]], at)
            if got == 0:
                raise _broken(tensor.path, "it became shorter while it was read")
            done += got
        return buffer

    def _row_scales(self, name: str, scale_name: str, start: int, stop: int) -> Floats:
        """[rows, width] factors, or [1, 1] where one scale serves the tensor."""
        if scale_name not in self._scales:
            stored = self._tensors[scale_name]
            raw = self._read(stored, 0, math.prod(stored.shape))
            # Only one tensor is read at a time; older scales are not needed again.
            self._scales = {scale_name: decode_values(raw, stored).reshape(stored.shape)}
        scales = self._scales[scale_name]
        if scales.size == 1:
            return scales.reshape(1, 1)
        rows, width = as_matrix(self._tensors[name].shape)
        high, wide = self._block
        expected = (-(-rows // high), -(-width // wide))
        if as_matrix(scales.shape) != expected:
            raise CheckpointError(
                f"{scale_name} has shape {list(scales.shape)}; blocks of {high} x {wide} need "
                f"{list(expected)}.\n  file: {self._tensors[scale_name].path}\n"
                "  Try: another FP8 checkpoint; scales of this layout are not known."
            )
        table = scales.reshape(expected)
        by_row = table[np.arange(start, stop) // high]
        return np.repeat(by_row, wide, axis=1)[:, :width]


def decode_values(raw: NDArray[np.uint8], tensor: StoredTensor) -> Floats:
    """Stored bytes as float32, one value after another.

    Raises:
        UnsupportedError: the stored type is not one of weights.
    """
    if tensor.dtype in _PLAIN_TYPES:
        return raw.view(_PLAIN_TYPES[tensor.dtype]).astype(np.float32)
    if tensor.dtype == "BF16":
        return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
    if tensor.dtype == "F8_E4M3":
        return _E4M3_VALUES[raw]
    raise UnsupportedError(
        f"tensor {tensor.name} is stored as {tensor.dtype}, which holds no weights.\n"
        f"  file: {tensor.path}\n  Try: the BF16 or FP8 checkpoint."
    )


def _e4m3_values() -> Floats:
    """Value of each byte: sign, 4 exponent bits (bias 7), 3 mantissa bits; no infinity.

    Source: Micikevicius et al. 2022, "FP8 formats for deep learning" (arXiv 2209.05433).
    """
    codes = np.arange(256)
    exponent, mantissa = codes >> 3 & 15, codes & 7
    normal = (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    values = np.where(exponent == 0, mantissa / 8 * 2.0**-6, normal)
    values[(codes & 127) == 127] = np.nan
    return np.where(codes & 128, -values, values).astype(np.float32)


_E4M3_VALUES = _e4m3_values()


def fp8_block_of(config: Mapping[str, object]) -> tuple[int, int]:
    """Weights per scale as config.json's quantization_config states them."""
    stored = config.get("quantization_config")
    block = stored.get("weight_block_size") if isinstance(stored, Mapping) else None
    if _are_counts(block) and len(block) == 2 and min(block) > 0:
        return block[0], block[1]
    return FP8_BLOCK
