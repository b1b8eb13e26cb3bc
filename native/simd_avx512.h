// Vector primitives for AVX-512 (F, BW, DQ, VL, VNNI, VBMI): sixteen rows, one 32-bit lane each.
// simd_avx2.h and simd_scalar.h define the same names for eight rows and for one; panels.h tells
// what the fields are. `part` says which ROWS of a panel's sixteen are meant.
#pragma once

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "grids.h"
#include "panels.h"

namespace strata {
namespace STRATA_ISA_NAMESPACE {

constexpr int ROWS = 16;
using Bytes = __m512i;      // four codes of each row
using Ints = __m512i;       // one int32 of each row
using Floats = __m512;      // one float of each row
using Mask = __mmask64;     // one bit for each code of a Bytes
using RowMask = __mmask16;  // one bit for each row

// Fields of a panel: sixteen values side by side.
inline Bytes load_codes(const uint8_t *field, int part) { return _mm512_loadu_si512(field + 64 * part); }
inline Ints load_u32(const uint8_t *field, int part) { return _mm512_loadu_si512(field + 64 * part); }
inline Ints load_u16(const uint8_t *field, int part) {
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(field + 32 * part)));
}
inline Ints load_u8(const uint8_t *field, int part) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(field + 16 * part)));
}
inline Ints load_s8(const uint8_t *field, int part) {
    return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(field + 16 * part)));
}
inline Ints load_u4(const uint8_t *field, int) {
    const __m128i v = _mm_loadl_epi64((const __m128i *)field);
    const __m128i both = _mm_unpacklo_epi64(v, _mm_srli_epi64(v, 4));
    return _mm512_cvtepu8_epi32(_mm_and_si128(both, _mm_set1_epi8(15)));
}
inline Floats load_half(const uint8_t *field, int part) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(field + 32 * part)));
}
inline Floats load_bf16(const uint8_t *field, int part) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(load_u16(field, part), 16));
}
inline Floats load_float(const uint8_t *field, int part) { return _mm512_loadu_ps(field + 64 * part); }
inline Mask load_mask(const uint8_t *field, int) {
    uint64_t m;
    memcpy(&m, field, 8);
    return m;
}
inline RowMask load_row_mask(const uint8_t *field, int) {
    uint16_t m;
    memcpy(&m, field, 2);
    return m;
}
// Seven stored signs and their parity (panels.h, "signs of eight").
inline void load_signs7(const uint8_t *field, int, Mask &first, Mask &second) {
    uint64_t a, b;
    memcpy(&a, field, 8);
    memcpy(&b, field + 6, 8);
    b = _pdep_u64(b >> 16, 0x7777777777777777u);
    uint64_t p = a ^ b;
    p ^= p >> 1;
    p ^= p >> 2;
    first = a;
    second = b | (p & 0x1111111111111111u) << 3;
}

inline Ints iset(int32_t v) { return _mm512_set1_epi32(v); }
inline Ints iand(Ints a, Ints b) { return _mm512_and_si512(a, b); }
inline Ints ior(Ints a, Ints b) { return _mm512_or_si512(a, b); }
inline Ints iadd(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
inline Ints isub(Ints a, Ints b) { return _mm512_sub_epi32(a, b); }
inline Ints imul(Ints a, Ints b) { return _mm512_mullo_epi32(a, b); }
inline Ints ishr(Ints a, int n) { return _mm512_srl_epi32(a, _mm_cvtsi32_si128(n)); }
inline Ints ishl(Ints a, int n) { return _mm512_sll_epi32(a, _mm_cvtsi32_si128(n)); }
inline Ints select_one(RowMask m, int32_t v) { return _mm512_maskz_set1_epi32(m, v); }

inline Floats fset(float v) { return _mm512_set1_ps(v); }
inline Floats fmul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
inline Floats fadd(Floats a, Floats b) { return _mm512_add_ps(a, b); }
inline Floats to_float(Ints a) { return _mm512_cvtepi32_ps(a); }
inline Floats as_float(Ints a) { return _mm512_castsi512_ps(a); }
inline void store_rows(float *out, Floats v, int part, int num_rows) {
    const int left = num_rows - 16 * part;
    _mm512_mask_storeu_ps(out + 16 * part, left >= 16 ? 0xffff : left <= 0 ? 0 : (1u << left) - 1, v);
}

inline Bytes bset(uint8_t v) { return _mm512_set1_epi8((char)v); }
inline Bytes badd(Bytes a, Bytes b) { return _mm512_add_epi8(a, b); }
inline Bytes low_nibbles(Bytes v) { return _mm512_and_si512(v, bset(15)); }
inline Bytes high_nibbles(Bytes v) { return _mm512_and_si512(_mm512_srli_epi32(v, 4), bset(15)); }
template <int SHIFT> inline Bytes two_bits(Bytes v) {
    return _mm512_and_si512(_mm512_srli_epi32(v, SHIFT), bset(3));
}
template <int N> inline Bytes shift_left(Bytes v) { return _mm512_slli_epi32(v, N); } // bits cross bytes
template <int N> inline Bytes shift_right(Bytes v) { return _mm512_srli_epi32(v, N); }
// Bits 0..3 of each byte of low, 4..7 of high, as far as `keep` has them.
inline Bytes low_four_of(Bytes low, Bytes high, uint8_t keep) {
    return _mm512_and_si512(_mm512_ternarylogic_epi32(bset(15), low, high, 0xca), bset(keep));
}
// Codes plus `value` where the mask has a bit; `twice_bias` minus codes where it has one.
inline Bytes add_where(Bytes v, Mask m, uint8_t value) { return _mm512_mask_add_epi8(v, m, v, bset(value)); }
inline Bytes negate_where(Bytes v, Mask m, uint8_t twice_bias) {
    return _mm512_mask_sub_epi8(v, m, bset(twice_bias), v);
}
// Sixteen-entry tables are stored four times over, so that two stray index bits do not matter.
inline Bytes lookup16_low(Bytes v, const uint8_t *table64) {
    return _mm512_permutexvar_epi8(v, _mm512_load_si512(table64));
}
inline Bytes lookup16_high(Bytes v, const uint8_t *table64) {
    return _mm512_permutexvar_epi8(_mm512_srli_epi32(v, 4), _mm512_load_si512(table64));
}

// acc + sum of four products of unsigned codes and the four activations at q.
inline Ints dot4(Ints acc, Bytes codes, const int8_t *q) {
    int32_t a;
    memcpy(&a, q, 4);
    return _mm512_dpbusd_epi32(acc, codes, _mm512_set1_epi32(a));
}
inline Ints dot4_wide(Ints acc, Bytes codes, const int8_t *q) { return dot4(acc, codes, q); }

template <int N> inline Bytes lookup(const uint8_t *table, Bytes index, Mask bit7, const Mask *high) {
    if constexpr (N == 256) {
        const Bytes a = _mm512_permutex2var_epi8(_mm512_load_si512(table), index,
                                                 _mm512_load_si512(table + 64));
        const Bytes b = _mm512_permutex2var_epi8(_mm512_load_si512(table + 128), index,
                                                 _mm512_load_si512(table + 192));
        return _mm512_mask_blend_epi8(bit7, a, b);
    } else {
        constexpr int LEVEL = N == 512 ? 0 : N == 1024 ? 1 : 2;
        return _mm512_mask_blend_epi8(high[LEVEL], lookup<N / 2>(table, index, bit7, high),
                                      lookup<N / 2>(table + N / 2, index, bit7, high));
    }
}

// Four lookups of every row in a grid of four-value entries: out[i] holds lookup i.
template <int N> inline void grid4(Bytes index, const Mask *high, const Grid &grid, Bytes out[4]) {
    const Mask bit7 = _mm512_movepi8_mask(index);
    const Bytes a = lookup<N>(grid.first, index, bit7, high);
    const Bytes b = lookup<N>(grid.second, index, bit7, high);
    const Bytes lane = _mm512_set_epi32(60, 56, 52, 48, 44, 40, 36, 32, 28, 24, 20, 16, 12, 8, 4, 0);
    const Bytes spread = _mm512_mullo_epi32(lane, _mm512_set1_epi32(0x01010101));
    // Bytes a[0] b[0] a[1] b[1] of each row, then a[2] b[2] a[3] b[3].
    const Bytes pair01 = _mm512_permutex2var_epi8(a, _mm512_or_si512(spread, _mm512_set1_epi32(0x41014000)), b);
    const Bytes pair23 = _mm512_permutex2var_epi8(a, _mm512_or_si512(spread, _mm512_set1_epi32(0x43034202)), b);
    const Bytes even = _mm512_set1_epi64(0x2c2824200c080400);
    const Bytes odd = _mm512_set1_epi64(0x3c3834301c181410);
    const Bytes values = _mm512_load_si512(grid.values);
    out[0] = _mm512_permutexvar_epi8(_mm512_multishift_epi64_epi8(even, pair01), values);
    out[1] = _mm512_permutexvar_epi8(_mm512_multishift_epi64_epi8(odd, pair01), values);
    out[2] = _mm512_permutexvar_epi8(_mm512_multishift_epi64_epi8(even, pair23), values);
    out[3] = _mm512_permutexvar_epi8(_mm512_multishift_epi64_epi8(odd, pair23), values);
}

// Four lookups of every row in a grid of eight-value entries: out[2i], out[2i+1] hold lookup i.
template <int N> inline void grid8(Bytes index, const Mask *high, const Grid &grid, Bytes out[8]) {
    const Mask bit7 = _mm512_movepi8_mask(index);
    const Bytes a = lookup<N>(grid.first, index, bit7, high);
    const Bytes b = lookup<N>(grid.second, index, bit7, high);
    const Bytes values = _mm512_load_si512(grid.values);
    Bytes shift = _mm512_set1_epi64(0x2624222006040200);
    for (int i = 0; i < 4; i++) {
        out[2 * i] = _mm512_permutexvar_epi8(_mm512_multishift_epi64_epi8(shift, a), values);
        out[2 * i + 1] = _mm512_permutexvar_epi8(_mm512_multishift_epi64_epi8(shift, b), values);
        shift = _mm512_add_epi8(shift, bset(8));
    }
}

inline void prefetch(const void *p) { _mm_prefetch((const char *)p, _MM_HINT_T0); }

} // namespace STRATA_ISA_NAMESPACE
} // namespace strata
