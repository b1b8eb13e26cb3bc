// What happens to rows of activations around the products: quantising, gating, combining. Plain
// loops that the compiler vectorises; every value is its own sequence of IEEE operations.

#include "isa.h"
#include "ops.h"
#include "products.h"

#include <string.h>

namespace strata {
namespace STRATA_ISA_NAMESPACE {

bool quantize_rows(const Activations &a, int64_t begin, int64_t end) {
    const int64_t blocks = a.inner / 32;
    uint32_t worst = 0;
    for (int64_t r = begin; r < end; r++) {
        for (int64_t b = 0; b < blocks; b++) {
            const float *x = a.x + r * a.inner + 32 * b;
            int8_t *codes = a.codes + r * a.inner + 32 * b;
            // The bits of |x| order like |x|, and NaN and infinity come last.
            uint32_t bits[32], amax_bits = 0;
            memcpy(bits, x, sizeof bits);
            for (int k = 0; k < 32; k++) {
                const uint32_t v = bits[k] & 0x7fffffffu;
                amax_bits = v > amax_bits ? v : amax_bits;
            }
            worst = amax_bits > worst ? amax_bits : worst;
            float amax;
            memcpy(&amax, &amax_bits, 4);
            const float scale = amax / 127.0f;
            const float divisor = scale == 0.0f ? __builtin_inff() : scale;
            int32_t q[32], sums[2] = {0, 0};
            for (int k = 0; k < 32; k++) {
                // Adding and taking away 1.5 * 2^23 rounds half to even. A subnormal scale is so
                // coarse that the quotient can pass 127.
                const float v = x[k] / divisor;
                const float rounded = (v + 12582912.0f) - 12582912.0f;
                const int32_t i = (int32_t)rounded;
                q[k] = i > 127 ? 127 : i < -127 ? -127 : i;
            }
            for (int k = 0; k < 16; k++) {
                sums[0] += q[k];
                sums[1] += q[16 + k];
            }
            for (int k = 0; k < 32; k++) codes[k] = (int8_t)q[k];
            a.scales[r * blocks + b] = scale;
            memcpy(a.sums + 2 * (r * blocks + b), sums, sizeof sums);
        }
    }
    return worst < 0x7f800000u;
}

void gate_up(float *gate, const float *up, int64_t n) {
    ops_table.silu_rows(gate, gate, n);
    for (int64_t i = 0; i < n; i++) gate[i] = gate[i] * up[i];
}

void combine(const float *const *y, const float *w, int k, const float *shared, float shared_weight, float *out,
             int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        float total = w[0] * y[0][i];
        for (int j = 1; j < k; j++) total = total + w[j] * y[j][i];
        out[i] = shared ? total + shared_weight * shared[i] : total;
    }
}

} // namespace STRATA_ISA_NAMESPACE
} // namespace strata
