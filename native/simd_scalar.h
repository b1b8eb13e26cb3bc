// The vector primitives for any processor: one row at a time. The names and meanings are those of
// simd_avx512.h. Slow and plain on purpose: it is what the other two are tested against.
#pragma once

#include <stdint.h>
#include <string.h>

#include "grids.h"
#include "panels.h"

namespace strata {
namespace STRATA_ISA_NAMESPACE {

constexpr int ROWS = 1;
using Bytes = uint32_t; // four codes, the first in the lowest byte
using Ints = int32_t;
using Floats = float;
using Mask = uint8_t; // four bits
using RowMask = uint8_t;

inline uint32_t read_u32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}
inline uint32_t read_u16(const uint8_t *p) {
    uint16_t v;
    memcpy(&v, p, 2);
    return v;
}
inline float bits_to_float(uint32_t bits) {
    float f;
    memcpy(&f, &bits, 4);
    return f;
}
template <class F> inline Bytes each_byte(Bytes v, F f) {
    Bytes out = 0;
    for (int i = 0; i < 4; i++) out |= (uint32_t)(uint8_t)f((uint8_t)(v >> 8 * i), i) << 8 * i;
    return out;
}

inline Bytes load_codes(const uint8_t *field, int part) { return read_u32(field + 4 * part); }
inline Ints load_u32(const uint8_t *field, int part) { return (int32_t)read_u32(field + 4 * part); }
inline Ints load_u16(const uint8_t *field, int part) { return (int32_t)read_u16(field + 2 * part); }
inline Ints load_u8(const uint8_t *field, int part) { return field[part]; }
inline Ints load_s8(const uint8_t *field, int part) { return (int8_t)field[part]; }
inline Ints load_u4(const uint8_t *field, int part) { return (field[part % 8] >> (part < 8 ? 0 : 4)) & 15; }
inline Floats load_half(const uint8_t *field, int part) {
    const uint32_t h = read_u16(field + 2 * part);
    const uint32_t sign = (h & 0x8000) << 16, exponent = (h >> 10) & 31, mantissa = h & 1023;
    if (exponent == 31) return bits_to_float(sign | 0x7f800000 | mantissa << 13);
    if (exponent != 0) return bits_to_float(sign | (exponent + 112) << 23 | mantissa << 13);
    const float tiny = (float)mantissa * 5.9604644775390625e-8f; // 2^-24
    return sign ? -tiny : tiny;
}
inline Floats load_bf16(const uint8_t *field, int part) { return bits_to_float(read_u16(field + 2 * part) << 16); }
inline Floats load_float(const uint8_t *field, int part) { return bits_to_float(read_u32(field + 4 * part)); }
inline Mask load_mask(const uint8_t *field, int part) { return (field[part / 2] >> 4 * (part % 2)) & 15; }
inline RowMask load_row_mask(const uint8_t *field, int part) { return (field[part / 8] >> part % 8) & 1; }
inline void load_signs7(const uint8_t *field, int part, Mask &first, Mask &second) {
    uint64_t b = 0;
    memcpy(&b, field + 8, 6);
    first = load_mask(field, part);
    second = (b >> 3 * part) & 7;
    const int parity = __builtin_popcount(first) + __builtin_popcount(second);
    second |= (parity & 1) << 3;
}

inline Ints iset(int32_t v) { return v; }
inline Ints iand(Ints a, Ints b) { return a & b; }
inline Ints ior(Ints a, Ints b) { return a | b; }
inline Ints iadd(Ints a, Ints b) { return a + b; }
inline Ints isub(Ints a, Ints b) { return a - b; }
inline Ints imul(Ints a, Ints b) { return a * b; }
inline Ints ishr(Ints a, int n) { return (int32_t)((uint32_t)a >> n); }
inline Ints ishl(Ints a, int n) { return (int32_t)((uint32_t)a << n); }
inline Ints select_one(RowMask m, int32_t v) { return m ? v : 0; }

inline Floats fset(float v) { return v; }
inline Floats fmul(Floats a, Floats b) { return a * b; }
inline Floats fadd(Floats a, Floats b) { return a + b; }
inline Floats to_float(Ints a) { return (float)a; }
inline Floats as_float(Ints a) { return bits_to_float((uint32_t)a); }
inline void store_rows(float *out, Floats v, int part, int num_rows) {
    if (part < num_rows) out[part] = v;
}

inline Bytes bset(uint8_t v) { return v * 0x01010101u; }
inline Bytes badd(Bytes a, Bytes b) {
    return each_byte(a, [b](uint8_t c, int i) { return c + (uint8_t)(b >> 8 * i); });
}
inline Bytes low_nibbles(Bytes v) { return v & 0x0f0f0f0fu; }
inline Bytes high_nibbles(Bytes v) { return v >> 4 & 0x0f0f0f0fu; }
template <int SHIFT> inline Bytes two_bits(Bytes v) { return v >> SHIFT & 0x03030303u; }
template <int N> inline Bytes shift_left(Bytes v) { return v << N; } // bits cross bytes
template <int N> inline Bytes shift_right(Bytes v) { return v >> N; }
// Bits 0..3 of each byte of low, 4..7 of high, as far as `keep` has them.
inline Bytes low_four_of(Bytes low, Bytes high, uint8_t keep) {
    return (low_nibbles(low) | (high & 0xf0f0f0f0u)) & bset(keep);
}
inline Bytes add_where(Bytes v, Mask m, uint8_t value) {
    return each_byte(v, [=](uint8_t c, int i) { return m >> i & 1 ? c + value : c; });
}
inline Bytes negate_where(Bytes v, Mask m, uint8_t twice_bias) {
    return each_byte(v, [=](uint8_t c, int i) { return m >> i & 1 ? twice_bias - c : c; });
}
inline Bytes lookup16_low(Bytes v, const uint8_t *table64) {
    return each_byte(low_nibbles(v), [=](uint8_t c, int) { return table64[c]; });
}
inline Bytes lookup16_high(Bytes v, const uint8_t *table64) {
    return each_byte(high_nibbles(v), [=](uint8_t c, int) { return table64[c]; });
}

inline Ints dot4(Ints acc, Bytes codes, const int8_t *q) {
    for (int i = 0; i < 4; i++) acc += (int32_t)(codes >> 8 * i & 255) * q[i];
    return acc;
}
inline Ints dot4_wide(Ints acc, Bytes codes, const int8_t *q) { return dot4(acc, codes, q); }

template <int N> inline int entry(Bytes index, const Mask *high, int i) {
    int e = index >> 8 * i & 255;
    for (int level = 0; (256 << level) < N; level++) e |= (high[level] >> i & 1) << (8 + level);
    return e;
}
template <int N> inline void grid4(Bytes index, const Mask *high, const Grid &grid, Bytes out[4]) {
    for (int i = 0; i < 4; i++) out[i] = grid.low[entry<N>(index, high, i)];
}
template <int N> inline void grid8(Bytes index, const Mask *high, const Grid &grid, Bytes out[8]) {
    for (int i = 0; i < 4; i++) {
        out[2 * i] = grid.low[entry<N>(index, high, i)];
        out[2 * i + 1] = grid.high[entry<N>(index, high, i)];
    }
}

inline void prefetch(const void *) {}

} // namespace STRATA_ISA_NAMESPACE
} // namespace strata
