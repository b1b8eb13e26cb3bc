// Sixteen float lanes, whatever the instruction set: one zmm, two ymm or four xmm registers.
// Every reduction runs over these 16 lanes and ends in the one tree of sum(), so the bits do not
// depend on the width of the registers. Only IEEE single operations, never contracted.
#pragma once

#include <cstdint>
#if defined(__F16C__)
#include <immintrin.h>
#endif

#define STRATA_INLINE static inline __attribute__((always_inline))

namespace strata {
namespace STRATA_ISA_NAMESPACE {
namespace lanes { // the products of this instruction set have vector words of their own

constexpr int64_t LANES = 16;

#if defined(__AVX512F__)
constexpr int PART_LANES = 16;
#elif defined(__AVX2__)
constexpr int PART_LANES = 8;
#else
constexpr int PART_LANES = 4;
#endif

// A register. The members of vf and vi are spelled out, not an array: arrays stay in memory.
typedef float PartF __attribute__((vector_size(PART_LANES * 4)));
typedef int32_t PartI __attribute__((vector_size(PART_LANES * 4)));

#if defined(__AVX512F__)
struct vf {
    PartF a;
};
struct vi {
    PartI a;
};
#define STRATA_PARTS(EXPR) {EXPR(a)}
#elif defined(__AVX2__)
struct vf {
    PartF a, b;
};
struct vi {
    PartI a, b;
};
#define STRATA_PARTS(EXPR) {EXPR(a), EXPR(b)}
#else
struct vf {
    PartF a, b, c, d;
};
struct vi {
    PartI a, b, c, d;
};
#define STRATA_PARTS(EXPR) {EXPR(a), EXPR(b), EXPR(c), EXPR(d)}
#endif

STRATA_INLINE vf set1(float x) {
    // x + 0 would turn -0 into +0; x - 0 keeps every x as it is.
#define STRATA_PART(p) x - PartF{}
    return vf STRATA_PARTS(STRATA_PART);
#undef STRATA_PART
}

STRATA_INLINE vf load(const float *x) {
    vf v;
    __builtin_memcpy(&v, x, sizeof v);
    return v;
}

STRATA_INLINE void store(float *out, vf v) { __builtin_memcpy(out, &v, sizeof v); }

// The first n of 16 lanes; the others are zero.
STRATA_INLINE vf load_n(const float *x, int64_t n) {
    if (n >= LANES) return load(x);
    float lanes[LANES] = {};
    for (int64_t i = 0; i < n; i++) lanes[i] = x[i];
    return load(lanes);
}

STRATA_INLINE void store_n(float *out, vf v, int64_t n) {
    if (n >= LANES) return store(out, v);
    float lanes[LANES];
    store(lanes, v);
    for (int64_t i = 0; i < n; i++) out[i] = lanes[i];
}

#define STRATA_BINARY(OP)                                                                          \
    STRATA_INLINE vf operator OP(vf x, vf y) { return vf STRATA_PARTS(STRATA_PART); }
#define STRATA_PART(p) x.p + y.p
STRATA_BINARY(+)
#undef STRATA_PART
#define STRATA_PART(p) x.p - y.p
STRATA_BINARY(-)
#undef STRATA_PART
#define STRATA_PART(p) x.p *y.p
STRATA_BINARY(*)
#undef STRATA_PART
#define STRATA_PART(p) x.p / y.p
STRATA_BINARY(/)
#undef STRATA_PART
#undef STRATA_BINARY

// x < y ? a : b, lane by lane; a NaN in x or y gives b.
STRATA_INLINE vf select_less(vf x, vf y, vf a, vf b) {
#define STRATA_PART(p) x.p < y.p ? a.p : b.p
    return vf STRATA_PARTS(STRATA_PART);
#undef STRATA_PART
}

STRATA_INLINE vf max(vf x, vf y) { return select_less(x, y, y, x); }
STRATA_INLINE vf min(vf x, vf y) { return select_less(y, x, y, x); }

STRATA_INLINE vi to_int(vf x) {
#define STRATA_PART(p) __builtin_convertvector(x.p, PartI)
    return vi STRATA_PARTS(STRATA_PART);
#undef STRATA_PART
}

STRATA_INLINE vf to_float(vi x) {
#define STRATA_PART(p) __builtin_convertvector(x.p, PartF)
    return vf STRATA_PARTS(STRATA_PART);
#undef STRATA_PART
}

STRATA_INLINE vi bits_of(vf x) {
    vi y;
    __builtin_memcpy(&y, &x, sizeof y);
    return y;
}

STRATA_INLINE vf from_bits(vi x) {
    vf y;
    __builtin_memcpy(&y, &x, sizeof y);
    return y;
}

#define STRATA_INTEGER(OP)                                                                         \
    STRATA_INLINE vi operator OP(vi x, int32_t y) { return vi STRATA_PARTS(STRATA_PART); }
#define STRATA_PART(p) x.p + y
STRATA_INTEGER(+)
#undef STRATA_PART
#define STRATA_PART(p) x.p &y
STRATA_INTEGER(&)
#undef STRATA_PART
#define STRATA_PART(p) x.p >> y
STRATA_INTEGER(>>)
#undef STRATA_PART
#define STRATA_PART(p) x.p << y
STRATA_INTEGER(<<)
#undef STRATA_PART
#undef STRATA_INTEGER

STRATA_INLINE vi operator-(vi x, vi y) {
#define STRATA_PART(p) x.p - y.p
    return vi STRATA_PARTS(STRATA_PART);
#undef STRATA_PART
}

// Whole number nearest to x, ties to even; |x| < 2^22. A zero result is always +0.
STRATA_INLINE vf round_even(vf x) {
    const vf big = set1(12582912.0f); // 1.5 * 2^23: its last bit is worth one
    return (x + big) - big;
}

// Lane i takes in lane i + 8, then + 4, + 2, + 1: the one order of a sum over lanes.
STRATA_INLINE float sum(vf x) {
#if defined(__AVX512F__)
    typedef int32_t Index __attribute__((vector_size(64)));
    PartF s = x.a;
    s += __builtin_shuffle(s, Index{8, 9, 10, 11, 12, 13, 14, 15, 8, 9, 10, 11, 12, 13, 14, 15});
    s += __builtin_shuffle(s, Index{4, 5, 6, 7, 4, 5, 6, 7, 4, 5, 6, 7, 4, 5, 6, 7});
    s += __builtin_shuffle(s, Index{2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3});
    return s[0] + s[1];
#elif defined(__AVX2__)
    PartF s = x.a + x.b;
    s += __builtin_shuffle(s, PartI{4, 5, 6, 7, 4, 5, 6, 7});
    s += __builtin_shuffle(s, PartI{2, 3, 2, 3, 2, 3, 2, 3});
    return s[0] + s[1];
#else
    PartF s = (x.a + x.c) + (x.b + x.d);
    s += __builtin_shuffle(s, PartI{2, 3, 2, 3});
    return s[0] + s[1];
#endif
}

// Largest lane; the order does not matter to a maximum of numbers.
STRATA_INLINE float max_lane(vf x) {
    float lanes[LANES];
    store(lanes, x);
    float m = lanes[0];
    for (int64_t i = 1; i < LANES; i++) m = m < lanes[i] ? lanes[i] : m;
    return m;
}

// Half precision cells. Widening is exact; narrowing rounds to nearest even.
typedef uint16_t half_bits;

STRATA_INLINE float widen_scalar(half_bits h) {
    const uint32_t sign = uint32_t(h & 0x8000) << 16, exponent = (h >> 10) & 31;
    uint32_t mantissa = h & 0x3ff;
    float x;
    uint32_t u;
    if (exponent == 0) {
        x = float(mantissa) * 0x1p-24f; // exact
        __builtin_memcpy(&u, &x, 4);
        u |= sign;
    } else if (exponent == 31) {
        u = sign | 0x7f800000 | (mantissa << 13);
    } else {
        u = sign | ((exponent + 112) << 23) | (mantissa << 13);
    }
    __builtin_memcpy(&x, &u, 4);
    return x;
}

STRATA_INLINE half_bits narrow_scalar(float x) {
    uint32_t u;
    __builtin_memcpy(&u, &x, 4);
    const uint32_t sign = (u >> 16) & 0x8000;
    u &= 0x7fffffff;
    if (u > 0x7f800000) return half_bits(sign | 0x7e00); // NaN
    if (u >= 0x477ff000) return half_bits(sign | 0x7c00); // rounds past 65504
    if (u < 0x38800000) {
        // Subnormal: adding 0.5 leaves exactly ten bits below it, rounded to nearest even.
        float magnitude;
        __builtin_memcpy(&magnitude, &u, 4);
        magnitude += 0.5f;
        __builtin_memcpy(&u, &magnitude, 4);
        return half_bits(sign | (u - 0x3f000000));
    }
    u += 0xfff + ((u >> 13) & 1); // round to nearest even at bit 13
    return half_bits(sign | ((u - 0x38000000) >> 13));
}

STRATA_INLINE vf load(const half_bits *x) {
#if defined(__AVX512F__)
    // The masked form, because gcc 12 warns of the unmasked one's undefined pass-through.
    return vf{(PartF)_mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256((const __m256i *)x))};
#elif defined(__F16C__)
    return vf{(PartF)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)x)),
              (PartF)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(x + 8)))};
#else
    float lanes[LANES];
    for (int64_t i = 0; i < LANES; i++) lanes[i] = widen_scalar(x[i]);
    return load(lanes);
#endif
}

STRATA_INLINE vf load_n(const half_bits *x, int64_t n) {
    if (n >= LANES) return load(x);
    float lanes[LANES] = {};
    for (int64_t i = 0; i < n; i++) lanes[i] = widen_scalar(x[i]);
    return load(lanes);
}

STRATA_INLINE void store_cell(float *out, float x) { *out = x; }
STRATA_INLINE void store_cell(half_bits *out, float x) { *out = narrow_scalar(x); }

} // namespace lanes
} // namespace STRATA_ISA_NAMESPACE
} // namespace strata
