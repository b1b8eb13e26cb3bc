"""Sizes and type numbers of the format table, against libgguf and the public description."""

import libgguf
import pytest

from strata.errors import CheckpointError, UnsupportedError
from strata.formats.block_formats import FORMATS, format_by_id


@pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda fmt: fmt.name)
def test_size_and_number_agree_with_libgguf(fmt):
    if fmt.name == "Q2_0":
        assert (fmt.ggml_id, fmt.block_size, fmt.block_bytes) == (42, 64, 18)
        return
    number = libgguf.GGMLQuantizationType[fmt.name]
    assert fmt.ggml_id == number
    assert (fmt.block_size, fmt.block_bytes) == libgguf.GGML_QUANT_SIZES[number]
    assert format_by_id(number) is fmt


def test_expert_blob_size_of_the_published_q2_0_file():
    # gate + up + down of one expert, 2560 x 640: the published blob is 1,382,400 bytes.
    fmt = FORMATS["Q2_0"]
    assert 2 * 640 * fmt.row_bytes(2560) + 2560 * fmt.row_bytes(640) == 1_382_400


def test_bits_per_weight():
    assert FORMATS["Q4_K"].bits_per_weight == 4.5
    assert FORMATS["F32"].is_plain
    assert not FORMATS["Q8_0"].is_plain


@pytest.mark.parametrize("length", [-32, 1, 31, 33])
def test_row_that_does_not_fill_blocks_is_refused(length):
    with pytest.raises(CheckpointError, match=r"Q8_0: expected a multiple of 32"):
        FORMATS["Q8_0"].row_bytes(length)


def test_unknown_number_names_itself_and_the_known_ones():
    with pytest.raises(UnsupportedError, match=r"99 is not known.*42 Q2_0"):
        format_by_id(99)
    with pytest.raises(UnsupportedError, match=r"34 \(TQ1_0\) is not known"):
        format_by_id(34)
