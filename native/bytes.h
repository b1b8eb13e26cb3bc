// Words of stored blocks at any address, and floats of their bits.
//
// Internal to each file that includes it: files are compiled for different instruction sets, of which
// the linker must not take one's copy for another. (simd_scalar.h has its own, one of a set.)
#pragma once

#include <stdint.h>
#include <string.h>

namespace strata {

[[maybe_unused]] static inline uint16_t read16(const uint8_t *p) {
    uint16_t v;
    memcpy(&v, p, 2);
    return v;
}
[[maybe_unused]] static inline uint32_t read32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}
[[maybe_unused]] static inline float bits_to_float(uint32_t bits) {
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

} // namespace strata
