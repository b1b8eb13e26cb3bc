// Products of packed weights with rows of activations (docs/numerics.md, clause C1).
#pragma once

#include <stdint.h>

#include "panels.h"

namespace strata {

// Rows of one input, as float and (for quantised weights) in int8 blocks of 32.
struct Activations {
    const float *x;  // [rows, inner]
    int64_t rows;
    int64_t inner;
    int8_t *codes;   // [rows, inner]
    float *scales;   // [rows, inner / 32]
    int32_t *sums;   // [rows, inner / 16]: integer sum of the codes of each half block
};

// Rows whose bias corrections are held at once.
constexpr int TOKEN_TILE = 128;
// Columns of float weights whose four sums are joined before the next begin (docs/numerics.md); for a
// prompt they are unpacked at once.
constexpr int64_t SEGMENT_COLUMNS = 320;

// Scratch bytes one thread needs for panels with this many inner values.
int64_t product_scratch_bytes(int64_t inner);

struct Products {
    // Quantises rows [begin, end) of a; false if a value is NaN or infinite.
    bool (*quantize)(const Activations &a, int64_t begin, int64_t end);
    // out[i * out_stride + r] = row r of the panels times activation row rows[i], for panels
    // [begin, end) of a matrix with num_out rows. rows may be null: row i is activation row i.
    void (*panels)(int format, const uint8_t *packed, int64_t num_out, int64_t begin, int64_t end,
                   const Activations &a, const int32_t *rows, int64_t num_rows, float *out, int64_t out_stride,
                   uint8_t *scratch);
    // gate[i] = silu(gate[i]) * up[i], n values.
    void (*gate_up)(float *gate, const float *up, int64_t n);
    // out = w[0] * y[0]; out += w[k] * y[k], k ascending; then out += shared_weight * shared.
    void (*combine)(const float *const *y, const float *w, int k, const float *shared, float shared_weight,
                    float *out, int64_t n);
    // Reads n bytes (a multiple of 64) and returns something that depends on them.
    uint64_t (*read_all)(const uint8_t *p, int64_t n);
};

} // namespace strata
