// Rows of blocks to floats, as formats/block_decode defines them, bit for bit: the few rows of an
// embedding or an n-gram table that a token needs.
#pragma once

#include <cstdint>

#include "panels.h"

namespace strata {

// Whether decode_row knows the format; those with grids are decoded elsewhere.
bool is_row_format(int format);

// `blocks` blocks of a format (one that is_row_format) to floats.
void decode_row(int format, const uint8_t *raw, int64_t blocks, float *out);

} // namespace strata
