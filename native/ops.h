// Model operations other than weight products: one function pointer each, filled per instruction
// set by ops.inl. All are pure functions of their row: no row's bits depend on another row.
#pragma once

#include <cstdint>

namespace strata {

struct Ops {
    // exp, sigmoid, silu of n floats, the project's own sequence of IEEE operations.
    void (*exp_rows)(const float *x, float *out, int64_t n);
    void (*silu_rows)(const float *x, float *out, int64_t n);
    void (*sigmoid_rows)(const float *x, float *out, int64_t n);
};

} // namespace strata
