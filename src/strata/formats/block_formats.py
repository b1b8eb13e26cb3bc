"""The table of block formats: names, GGUF type numbers and sizes.

Owns sizes only. Decoding is in block_decode, encoding in quantize; every layer reads this table.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from strata.errors import CheckpointError, UnsupportedError


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """How a run of weights is stored: ``block_size`` weights share ``block_bytes`` bytes.

    Attributes:
        name: public name, as in ``Q4_K``.
        ggml_id: type number in a GGUF tensor record.
        block_size: weights in one block; 1 for a plain type.
        block_bytes: stored bytes of one block.
        is_weights: whether ``dequantize`` gives float32 from it (false for integers and F64).
    """

    name: str
    ggml_id: int
    block_size: int
    block_bytes: int
    is_weights: bool = True

    @property
    def bits_per_weight(self) -> float:
        """Stored bits per weight, scales included."""
        return 8 * self.block_bytes / self.block_size

    @property
    def is_plain(self) -> bool:
        """Whether every value stands alone, without shared scales."""
        return self.block_size == 1

    def row_bytes(self, num_weights: int) -> int:
        """Stored bytes of a row of ``num_weights`` weights.

        Raises:
            CheckpointError: the row does not fill whole blocks.
        """
        if num_weights < 0 or num_weights % self.block_size:
            raise CheckpointError(
                f"a row of {num_weights} weights cannot be stored as {self.name}: "
                f"expected a multiple of {self.block_size}.\n"
                "  Try: another format for this tensor (block of 32, or F16)."
            )
        return num_weights // self.block_size * self.block_bytes


_TABLE = (
    BlockFormat("F32", 0, 1, 4),
    BlockFormat("F16", 1, 1, 2),
    BlockFormat("Q4_0", 2, 32, 18),
    BlockFormat("Q4_1", 3, 32, 20),
    BlockFormat("Q5_0", 6, 32, 22),
    BlockFormat("Q5_1", 7, 32, 24),
    BlockFormat("Q8_0", 8, 32, 34),
    BlockFormat("Q2_K", 10, 256, 84),
    BlockFormat("Q3_K", 11, 256, 110),
    BlockFormat("Q4_K", 12, 256, 144),
    BlockFormat("Q5_K", 13, 256, 176),
    BlockFormat("Q6_K", 14, 256, 210),
    BlockFormat("IQ2_XXS", 16, 256, 66),
    BlockFormat("IQ2_XS", 17, 256, 74),
    BlockFormat("IQ3_XXS", 18, 256, 98),
    BlockFormat("IQ1_S", 19, 256, 50),
    BlockFormat("IQ4_NL", 20, 32, 18),
    BlockFormat("IQ3_S", 21, 256, 110),
    BlockFormat("IQ2_S", 22, 256, 82),
    BlockFormat("IQ4_XS", 23, 256, 136),
    BlockFormat("I8", 24, 1, 1, is_weights=False),
    BlockFormat("I16", 25, 1, 2, is_weights=False),
    BlockFormat("I32", 26, 1, 4, is_weights=False),
    BlockFormat("I64", 27, 1, 8, is_weights=False),
    BlockFormat("F64", 28, 1, 8, is_weights=False),
    BlockFormat("IQ1_M", 29, 256, 56),
    BlockFormat("BF16", 30, 1, 2),
    BlockFormat("MXFP4", 39, 32, 17),
    BlockFormat("NVFP4", 40, 64, 36),
    BlockFormat("Q2_0", 42, 64, 18),
)

FORMATS: Mapping[str, BlockFormat] = MappingProxyType({fmt.name: fmt for fmt in _TABLE})
"""Every known format by name."""

_BY_ID = {fmt.ggml_id: fmt for fmt in _TABLE}

# Types other programs write and Strata does not read; named so that the error can say which it is.
_FOREIGN_NAMES = {9: "Q8_1", 15: "Q8_K", 34: "TQ1_0", 35: "TQ2_0", 41: "Q1_0"}


def format_by_id(ggml_id: int) -> BlockFormat:
    """The format with this GGUF type number.

    Raises:
        UnsupportedError: no such format; the message holds the number and the known ones.
    """
    try:
        return _BY_ID[ggml_id]
    except KeyError:
        foreign = _FOREIGN_NAMES.get(ggml_id)
        called = f"{ggml_id} ({foreign})" if foreign else str(ggml_id)
        known = ", ".join(f"{fmt.ggml_id} {fmt.name}" for fmt in _TABLE)
        raise UnsupportedError(
            f"block format {called} is not known; known are {known}.\n"
            "  Try: a file quantised to one of these."
        ) from None
