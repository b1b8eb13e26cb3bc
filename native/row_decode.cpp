#include "row_decode.h"

#include <cmath>
#include <cstring>

#include "bytes.h"

namespace strata {

namespace {

constexpr int8_t IQ4_LEVELS[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr int8_t FP4_DOUBLED[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

inline float half(const uint8_t *p) {
    const uint32_t h = read16(p);
    const uint32_t sign = (h & 0x8000) << 16, exponent = (h >> 10) & 31, mantissa = h & 1023;
    if (exponent == 31) return bits_to_float(sign | 0x7f800000 | mantissa << 13);
    if (exponent != 0) return bits_to_float(sign | (exponent + 112) << 23 | mantissa << 13);
    const float tiny = float(mantissa) * 0x1p-24f;
    return sign ? -tiny : tiny;
}

// Nibble j of 32 that lie as 16 low halves, then their high halves.
inline int nibble(const uint8_t *packed, int j) { return packed[j % 16] >> 4 * (j / 16) & 15; }

inline void f32(const uint8_t *s, float *out) { memcpy(out, s, 4); }
inline void f16(const uint8_t *s, float *out) { *out = half(s); }
inline void bf16(const uint8_t *s, float *out) { *out = bits_to_float(uint32_t(read16(s)) << 16); }

inline void q4_0(const uint8_t *s, float *out) {
    const float d = half(s);
    for (int j = 0; j < 32; j++) out[j] = d * float(nibble(s + 2, j) - 8);
}
inline void q4_1(const uint8_t *s, float *out) {
    const float d = half(s), low = half(s + 2);
    for (int j = 0; j < 32; j++) out[j] = d * float(nibble(s + 4, j)) + low;
}
inline void q5_0(const uint8_t *s, float *out) {
    const float d = half(s);
    const uint32_t high = read32(s + 2);
    for (int j = 0; j < 32; j++) out[j] = d * float((nibble(s + 6, j) | int(high >> j & 1) << 4) - 16);
}
inline void q5_1(const uint8_t *s, float *out) {
    const float d = half(s), low = half(s + 2);
    const uint32_t high = read32(s + 4);
    for (int j = 0; j < 32; j++) out[j] = d * float(nibble(s + 8, j) | int(high >> j & 1) << 4) + low;
}
inline void q8_0(const uint8_t *s, float *out) {
    const float d = half(s);
    for (int j = 0; j < 32; j++) out[j] = d * float(int8_t(s[2 + j]));
}
inline void iq4_nl(const uint8_t *s, float *out) {
    const float d = half(s);
    for (int j = 0; j < 32; j++) out[j] = d * float(IQ4_LEVELS[nibble(s + 2, j)]);
}
inline void mxfp4(const uint8_t *s, float *out) {
    const float d = std::ldexp(1.0f, s[0] - 128);
    for (int j = 0; j < 32; j++) out[j] = d * float(FP4_DOUBLED[nibble(s + 1, j)]);
}
inline void nvfp4(const uint8_t *s, float *out) {
    for (int b = 0; b < 4; b++) {
        // Half of an unsigned float of four bits of exponent and three of mantissa; 0x7f means zero.
        const int exponent = s[b] >> 3 & 15, mantissa = s[b] & 7;
        float d = exponent ? std::ldexp(float(8 + mantissa), exponent - 11) : std::ldexp(float(mantissa), -10);
        if (s[b] == 0x7f) d = 0;
        const uint8_t *q = s + 4 + 8 * b;
        for (int j = 0; j < 16; j++) out[16 * b + j] = d * float(FP4_DOUBLED[q[j % 8] >> 4 * (j / 8) & 15]);
    }
}
inline void q2_0(const uint8_t *s, float *out) {
    const float d = half(s);
    for (int j = 0; j < 64; j++) out[j] = d * float((s[2 + j / 4] >> 2 * (j % 4) & 3) - 1);
}

inline void q2_k(const uint8_t *s, float *out) {
    const float d = half(s + 80), dmin = half(s + 82);
    for (int b = 0; b < 16; b++) {
        const float step = d * float(s[b] & 15), low = dmin * float(s[b] >> 4);
        const uint8_t *q = s + 16 + 32 * (b / 8) + 16 * (b % 2);
        for (int j = 0; j < 16; j++) out[16 * b + j] = step * float(q[j] >> 2 * (b / 2 % 4) & 3) - low;
    }
}
inline void q3_k(const uint8_t *s, float *out) {
    const float d = half(s + 108);
    const uint8_t *packed = s + 96;
    for (int b = 0; b < 16; b++) {
        const int scale = (packed[b % 8] >> 4 * (b / 8) & 15) | (packed[8 + b % 4] >> 2 * (b / 4) & 3) << 4;
        const float step = d * float(scale - 32);
        const uint8_t *q = s + 32 + 32 * (b / 8) + 16 * (b % 2), *high = s + 16 * (b % 2);
        for (int j = 0; j < 16; j++) {
            const int code = (q[j] >> 2 * (b / 2 % 4) & 3) | (high[j] >> b / 2 & 1) << 2;
            out[16 * b + j] = step * float(code - 4);
        }
    }
}

// Scale and minimum of 32-block b of Q4_K and Q5_K, six bits each.
inline void six_bits(const uint8_t *packed, int b, int &scale, int &low) {
    if (b < 4) {
        scale = packed[b] & 63;
        low = packed[4 + b] & 63;
    } else {
        scale = (packed[4 + b] & 15) | packed[b - 4] >> 6 << 4;
        low = packed[4 + b] >> 4 | packed[b] >> 6 << 4;
    }
}
inline void q4_k(const uint8_t *s, float *out) {
    const float d = half(s), dmin = half(s + 2);
    for (int b = 0; b < 8; b++) {
        int scale, minimum;
        six_bits(s + 4, b, scale, minimum);
        const float step = d * float(scale), low = dmin * float(minimum);
        const uint8_t *q = s + 16 + 32 * (b / 2);
        for (int j = 0; j < 32; j++) out[32 * b + j] = step * float(q[j] >> 4 * (b % 2) & 15) - low;
    }
}
inline void q5_k(const uint8_t *s, float *out) {
    const float d = half(s), dmin = half(s + 2);
    for (int b = 0; b < 8; b++) {
        int scale, minimum;
        six_bits(s + 4, b, scale, minimum);
        const float step = d * float(scale), low = dmin * float(minimum);
        const uint8_t *q = s + 48 + 32 * (b / 2), *high = s + 16;
        for (int j = 0; j < 32; j++) {
            const int code = (q[j] >> 4 * (b % 2) & 15) | (high[j] >> b & 1) << 4;
            out[32 * b + j] = step * float(code) - low;
        }
    }
}
inline void q6_k(const uint8_t *s, float *out) {
    const float d = half(s + 208);
    for (int b = 0; b < 16; b++) {
        const float step = d * float(int8_t(s[192 + b]));
        // Two halves of 128 weights: four times 32 that share the bytes of their two high bits.
        const int part = b / 2 % 4, column = 16 * (b % 2);
        const uint8_t *q = s + 64 * (b / 8) + 32 * (part % 2) + column, *high = s + 128 + 32 * (b / 8) + column;
        for (int j = 0; j < 16; j++) {
            const int code = (q[j] >> 4 * (part / 2) & 15) | (high[j] >> 2 * part & 3) << 4;
            out[16 * b + j] = step * float(code - 32);
        }
    }
}
inline void iq4_xs(const uint8_t *s, float *out) {
    const float d = half(s);
    const uint32_t top = read16(s + 2);
    for (int b = 0; b < 8; b++) {
        const int scale = (s[4 + b / 2] >> 4 * (b % 2) & 15) | int(top >> 2 * b & 3) << 4;
        const float step = d * float(scale - 32);
        for (int j = 0; j < 32; j++) out[32 * b + j] = step * float(IQ4_LEVELS[nibble(s + 8 + 16 * b, j)]);
    }
}

using Decode = void (*)(const uint8_t *, int64_t, float *);

template <Format F, void (*block)(const uint8_t *, float *)>
void row(const uint8_t *raw, int64_t blocks, float *out) {
    constexpr FormatShape shape = format_shape(F);
    for (int64_t b = 0; b < blocks; b++) block(raw + b * shape.block_bytes, out + b * shape.block_size);
}

Decode decoder(int format) {
    switch (format) {
    case F32: return row<F32, f32>;
    case F16: return row<F16, f16>;
    case BF16: return row<BF16, bf16>;
    case Q4_0: return row<Q4_0, q4_0>;
    case Q4_1: return row<Q4_1, q4_1>;
    case Q5_0: return row<Q5_0, q5_0>;
    case Q5_1: return row<Q5_1, q5_1>;
    case Q8_0: return row<Q8_0, q8_0>;
    case IQ4_NL: return row<IQ4_NL, iq4_nl>;
    case MXFP4: return row<MXFP4, mxfp4>;
    case NVFP4: return row<NVFP4, nvfp4>;
    case Q2_0: return row<Q2_0, q2_0>;
    case Q2_K: return row<Q2_K, q2_k>;
    case Q3_K: return row<Q3_K, q3_k>;
    case Q4_K: return row<Q4_K, q4_k>;
    case Q5_K: return row<Q5_K, q5_k>;
    case Q6_K: return row<Q6_K, q6_k>;
    case IQ4_XS: return row<IQ4_XS, iq4_xs>;
    default: return nullptr;
    }
}

} // namespace

bool is_row_format(int format) { return decoder(format) != nullptr; }

void decode_row(int format, const uint8_t *raw, int64_t blocks, float *out) { decoder(format)(raw, blocks, out); }

} // namespace strata
