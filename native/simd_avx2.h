// Vector primitives for AVX2 (with F16C and BMI2): eight rows, one 32-bit lane each.
// The names and meanings are those of simd_avx512.h.
#pragma once

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "grids.h"
#include "panels.h"

namespace strata {
namespace STRATA_ISA_NAMESPACE {

constexpr int ROWS = 8;
using Bytes = __m256i;
using Ints = __m256i;
using Floats = __m256;
using Mask = uint32_t;
using RowMask = uint8_t;

inline __m256i load256(const uint8_t *p) { return _mm256_loadu_si256((const __m256i *)p); }

inline Bytes load_codes(const uint8_t *field, int part) { return load256(field + 32 * part); }
inline Ints load_u32(const uint8_t *field, int part) { return load256(field + 32 * part); }
inline Ints load_u16(const uint8_t *field, int part) {
    return _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(field + 16 * part)));
}
inline Ints load_u8(const uint8_t *field, int part) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(field + 8 * part)));
}
inline Ints load_s8(const uint8_t *field, int part) {
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(field + 8 * part)));
}
inline Ints load_u4(const uint8_t *field, int part) {
    const __m128i v = _mm_srl_epi64(_mm_loadl_epi64((const __m128i *)field), _mm_cvtsi32_si128(4 * part));
    return _mm256_cvtepu8_epi32(_mm_and_si128(v, _mm_set1_epi8(15)));
}
inline Floats load_half(const uint8_t *field, int part) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(field + 16 * part)));
}
inline Floats load_bf16(const uint8_t *field, int part) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(load_u16(field, part), 16));
}
inline Floats load_float(const uint8_t *field, int part) {
    return _mm256_loadu_ps((const float *)(field + 32 * part));
}
inline Mask load_mask(const uint8_t *field, int part) {
    uint32_t m;
    memcpy(&m, field + 4 * part, 4);
    return m;
}
inline RowMask load_row_mask(const uint8_t *field, int part) { return field[part]; }
inline void load_signs7(const uint8_t *field, int part, Mask &first, Mask &second) {
    uint64_t b;
    memcpy(&b, field + 6, 8);
    const uint32_t low = load_mask(field, part);
    uint32_t high = (uint32_t)_pdep_u64(b >> (16 + 24 * part), 0x77777777u);
    uint32_t p = low ^ high;
    p ^= p >> 1;
    p ^= p >> 2;
    first = low;
    second = high | (p & 0x11111111u) << 3;
}

inline Ints iset(int32_t v) { return _mm256_set1_epi32(v); }
inline Ints iand(Ints a, Ints b) { return _mm256_and_si256(a, b); }
inline Ints ior(Ints a, Ints b) { return _mm256_or_si256(a, b); }
inline Ints iadd(Ints a, Ints b) { return _mm256_add_epi32(a, b); }
inline Ints isub(Ints a, Ints b) { return _mm256_sub_epi32(a, b); }
inline Ints imul(Ints a, Ints b) { return _mm256_mullo_epi32(a, b); }
inline Ints ishr(Ints a, int n) { return _mm256_srl_epi32(a, _mm_cvtsi32_si128(n)); }
inline Ints ishl(Ints a, int n) { return _mm256_sll_epi32(a, _mm_cvtsi32_si128(n)); }

// All bits of a lane set where the row mask has a bit.
inline Ints expand_rows(RowMask m) {
    const Ints bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    return _mm256_cmpeq_epi32(_mm256_and_si256(iset(m), bit), bit);
}
inline Ints select_one(RowMask m, int32_t v) { return iand(expand_rows(m), iset(v)); }

inline Floats fset(float v) { return _mm256_set1_ps(v); }
inline Floats fmul(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
inline Floats fadd(Floats a, Floats b) { return _mm256_add_ps(a, b); }
inline Floats to_float(Ints a) { return _mm256_cvtepi32_ps(a); }
inline Floats as_float(Ints a) { return _mm256_castsi256_ps(a); }
inline void store_rows(float *out, Floats v, int part, int num_rows) {
    const int left = num_rows - 8 * part;
    if (left >= 8) {
        _mm256_storeu_ps(out + 8 * part, v);
        return;
    }
    float rows[8];
    _mm256_storeu_ps(rows, v);
    for (int i = 0; i < left; i++) out[8 * part + i] = rows[i];
}

inline Bytes bset(uint8_t v) { return _mm256_set1_epi8((char)v); }
inline Bytes badd(Bytes a, Bytes b) { return _mm256_add_epi8(a, b); }
inline Bytes low_nibbles(Bytes v) { return _mm256_and_si256(v, bset(15)); }
inline Bytes high_nibbles(Bytes v) { return _mm256_and_si256(_mm256_srli_epi32(v, 4), bset(15)); }
template <int SHIFT> inline Bytes two_bits(Bytes v) {
    return _mm256_and_si256(_mm256_srli_epi32(v, SHIFT), bset(3));
}
template <int N> inline Bytes shift_left(Bytes v) { return _mm256_slli_epi32(v, N); } // bits cross bytes
template <int N> inline Bytes shift_right(Bytes v) { return _mm256_srli_epi32(v, N); }
// Bits 0..3 of each byte of low, 4..7 of high, as far as `keep` has them.
inline Bytes low_four_of(Bytes low, Bytes high, uint8_t keep) {
    return _mm256_and_si256(_mm256_or_si256(low_nibbles(low), _mm256_andnot_si256(bset(15), high)), bset(keep));
}
// 0xff in every byte whose bit is set: bit 4r+i belongs to byte i of row r.
inline Bytes expand_mask(Mask m) {
    const Bytes source = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2,
                                          2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
    const Bytes bit = _mm256_set1_epi64x((long long)0x8040201008040201);
    const Bytes v = _mm256_shuffle_epi8(_mm256_set1_epi32((int)m), source);
    return _mm256_cmpeq_epi8(_mm256_and_si256(v, bit), bit);
}
inline Bytes add_where(Bytes v, Mask m, uint8_t value) {
    return badd(v, _mm256_and_si256(expand_mask(m), bset(value)));
}
inline Bytes negate_where(Bytes v, Mask m, uint8_t twice_bias) {
    return _mm256_blendv_epi8(v, _mm256_sub_epi8(bset(twice_bias), v), expand_mask(m));
}
inline Bytes lookup16_low(Bytes v, const uint8_t *table64) {
    const Bytes table = _mm256_broadcastsi128_si256(_mm_load_si128((const __m128i *)table64));
    return _mm256_shuffle_epi8(table, low_nibbles(v));
}
inline Bytes lookup16_high(Bytes v, const uint8_t *table64) {
    const Bytes table = _mm256_broadcastsi128_si256(_mm_load_si128((const __m128i *)table64));
    return _mm256_shuffle_epi8(table, high_nibbles(v));
}

// Pairs of products must fit int16: codes up to 128 do (2 * 128 * 127 = 32512).
inline Ints dot4(Ints acc, Bytes codes, const int8_t *q) {
    int32_t a;
    memcpy(&a, q, 4);
    const Ints pairs = _mm256_maddubs_epi16(codes, iset(a));
    return iadd(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
// Codes up to 255: the top bit is multiplied apart.
inline Ints dot4_wide(Ints acc, Bytes codes, const int8_t *q) {
    int32_t a;
    memcpy(&a, q, 4);
    const Ints act = iset(a);
    const Ints low = _mm256_maddubs_epi16(_mm256_and_si256(codes, bset(127)), act);
    const Bytes top = _mm256_and_si256(_mm256_srli_epi16(codes, 7), bset(1));
    const Ints high = _mm256_maddubs_epi16(top, act);
    acc = iadd(acc, _mm256_madd_epi16(low, _mm256_set1_epi16(1)));
    return iadd(acc, _mm256_madd_epi16(high, _mm256_set1_epi16(128)));
}

// Lane r: entry number of lookup i of row r.
template <int N> inline Ints entry(Bytes index, const Mask *high, int i) {
    Ints e = iand(ishr(index, 8 * i), iset(255));
    const Ints position = iadd(_mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28), iset(i));
    for (int level = 0; (256 << level) < N; level++) {
        const Ints bit = iand(_mm256_srlv_epi32(iset((int)high[level]), position), iset(1));
        e = ior(e, ishl(bit, 8 + level));
    }
    return e;
}
template <int N> inline void grid4(Bytes index, const Mask *high, const Grid &grid, Bytes out[4]) {
    for (int i = 0; i < 4; i++)
        out[i] = _mm256_i32gather_epi32((const int *)grid.low, entry<N>(index, high, i), 4);
}
template <int N> inline void grid8(Bytes index, const Mask *high, const Grid &grid, Bytes out[8]) {
    for (int i = 0; i < 4; i++) {
        const Ints e = entry<N>(index, high, i);
        out[2 * i] = _mm256_i32gather_epi32((const int *)grid.low, e, 4);
        out[2 * i + 1] = _mm256_i32gather_epi32((const int *)grid.high, e, 4);
    }
}

inline void prefetch(const void *p) { _mm_prefetch((const char *)p, _MM_HINT_T0); }

} // namespace STRATA_ISA_NAMESPACE
} // namespace strata
