// The lookup grids of the i-quant formats, in the forms the kernels read. The values themselves
// live once, in formats/grids.py, and are handed over when the extension is set up.
#pragma once

#include <stdint.h>

namespace strata {

struct alignas(64) Grid {
    // Entry e as indices into `values`: four-value grids hold two indices of four bits in first[e]
    // and two in second[e]; eight-value grids four indices of two bits in each.
    uint8_t first[2048];
    uint8_t second[2048];
    // Index to biased value; sixteen or four entries, repeated so that stray high bits do not matter.
    uint8_t values[64];
    // Entry e as biased values, the first four and (eight-value grids) the last four.
    uint32_t low[2048];
    uint32_t high[2048];
};

enum GridId { GRID_IQ2_XXS, GRID_IQ2_XS, GRID_IQ2_S, GRID_IQ3_XXS, GRID_IQ3_S, GRID_IQ1, NUM_GRIDS };

// What is added to a grid value (for IQ1, to eight times the value) to make it unsigned.
constexpr int GRID_BIAS = 64;

extern Grid grids[NUM_GRIDS];

} // namespace strata
