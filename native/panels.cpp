#include "panels.h"

#include <string.h>

#include "bytes.h"
#include "grids.h"

namespace strata {

Grid grids[NUM_GRIDS];

int64_t panel_bytes(int format, int64_t inner) {
    const FormatShape shape = format_shape(format);
    return inner / shape.block_size * shape.block_bytes * PANEL_ROWS;
}

namespace {

constexpr uint32_t LOW = 0x0f0f0f0f, TWO = 0x03030303, ONE = 0x01010101;

inline void put16(uint8_t *field, int row, uint16_t v) { memcpy(field + 2 * row, &v, 2); }
inline void put32(uint8_t *field, int row, uint32_t v) { memcpy(field + 4 * row, &v, 4); }
inline void put4(uint8_t *field, int row, int v) { field[row % 8] |= v << (row < 8 ? 0 : 4); }
// Four bits of a mask field.
inline void put_mask(uint8_t *field, int row, uint32_t v) { field[row / 2] |= v << 4 * (row % 2); }
inline void put_row_mask(uint8_t *field, int row, uint32_t v) { field[row / 8] |= v << row % 8; }
// Seven signs of eight weights.
inline void put_signs7(uint8_t *field, int row, uint32_t signs) {
    put_mask(field, row, signs & 15);
    const int bit = 3 * row;
    const uint32_t v = (signs >> 4 & 7) << bit % 8;
    field[8 + bit / 8] |= v;
    if (bit % 8 > 5) field[9 + bit / 8] |= v >> 8;
}
// The lowest bit of each of four bytes, as four bits.
inline uint32_t gather_bits(uint32_t v) { return (v & ONE) * 0x10204080u >> 28; }

// Eight dwords of four-bit codes become four nibble fields.
inline void put_nibbles(uint8_t *field, int row, const uint32_t codes[8]) {
    for (int p = 0; p < 4; p++) put32(field + 64 * p, row, codes[p] | codes[p + 4] << 4);
}
// Eight dwords of two-bit codes become two fields of two bits.
inline void put_two_bits(uint8_t *field, int row, const uint32_t codes[8]) {
    for (int q = 0; q < 2; q++)
        put32(field + 64 * q, row,
              codes[4 * q] | codes[4 * q + 1] << 2 | codes[4 * q + 2] << 4 | codes[4 * q + 3] << 6);
}
inline void copy32(uint8_t *field, int row, const uint8_t *src, int n) {
    for (int p = 0; p < n; p++) put32(field + 64 * p, row, read32(src + 4 * p));
}
inline void put_fifth_bits(uint8_t *field, int row, uint32_t bits) {
    for (int k = 0; k < 8; k++) put_mask(field + 8 * k, row, bits >> 4 * k & 15);
}

// Codes of 32-block b of Q4_K and Q5_K: 32 bytes hold two blocks, one in each nibble.
inline void k_nibbles(const uint8_t *qs, int b, uint32_t codes[8]) {
    for (int j = 0; j < 8; j++) codes[j] = read32(qs + 32 * (b / 2) + 4 * j) >> 4 * (b % 2) & LOW;
}

void pack_q2_0(const uint8_t *s, uint8_t *u, int row) {
    put16(u, row, read16(s));
    for (int p = 0; p < 4; p++) {
        // Byte s of the source has four consecutive weights; byte i of a field weight i of four.
        uint32_t out = 0;
        for (int i = 0; i < 4; i++)
            for (int t = 0; t < 4; t++) out |= (uint32_t)(s[2 + 4 * p + t] >> 2 * i & 3) << (8 * i + 2 * t);
        put32(u + 32 + 64 * p, row, out);
    }
}

void pack_q2_k(const uint8_t *s, uint8_t *u, int row) {
    put16(u, row, read16(s + 80));
    put16(u + 32, row, read16(s + 82));
    for (int i = 0; i < 16; i++) u[64 + 16 * i + row] = s[i];
    for (int b = 0; b < 8; b++) {
        uint32_t codes[8];
        for (int j = 0; j < 8; j++) codes[j] = read32(s + 16 + 32 * (b / 4) + 4 * j) >> 2 * (b % 4) & TWO;
        put_two_bits(u + 320 + 128 * b, row, codes);
    }
}

void pack_q3_k(const uint8_t *s, uint8_t *u, int row) {
    put16(u, row, read16(s + 108));
    copy32(u + 32, row, s + 96, 3);
    for (int b = 0; b < 8; b++) {
        uint32_t codes[8];
        for (int j = 0; j < 8; j++) {
            codes[j] = read32(s + 32 + 32 * (b / 4) + 4 * j) >> 2 * (b % 4) & TWO;
            put_mask(u + 224 + 64 * b + 8 * j, row, gather_bits(read32(s + 4 * j) >> b));
        }
        put_two_bits(u + 736 + 128 * b, row, codes);
    }
}

void pack_q4_k(const uint8_t *s, uint8_t *u, int row) {
    put16(u, row, read16(s));
    put16(u + 32, row, read16(s + 2));
    copy32(u + 64, row, s + 4, 3);
    for (int b = 0; b < 8; b++) {
        uint32_t codes[8];
        k_nibbles(s + 16, b, codes);
        put_nibbles(u + 256 + 256 * b, row, codes);
    }
}

void pack_q5_k(const uint8_t *s, uint8_t *u, int row) {
    put16(u, row, read16(s));
    put16(u + 32, row, read16(s + 2));
    copy32(u + 64, row, s + 4, 3);
    for (int b = 0; b < 8; b++) {
        uint32_t codes[8];
        k_nibbles(s + 48, b, codes);
        put_nibbles(u + 768 + 256 * b, row, codes);
        for (int j = 0; j < 8; j++)
            put_mask(u + 256 + 64 * b + 8 * j, row, gather_bits(read32(s + 16 + 4 * j) >> b));
    }
}

void pack_q6_k(const uint8_t *s, uint8_t *u, int row) {
    put16(u, row, read16(s + 208));
    for (int i = 0; i < 16; i++) u[32 + 16 * i + row] = s[192 + i];
    for (int b = 0; b < 8; b++) {
        const int half = b / 4, part = b % 4;
        uint32_t low[8], high[8];
        for (int j = 0; j < 8; j++) {
            low[j] = read32(s + 64 * half + 32 * (part % 2) + 4 * j) >> 4 * (part / 2) & LOW;
            high[j] = read32(s + 128 + 32 * half + 4 * j) >> 2 * part & TWO;
        }
        put_two_bits(u + 288 + 128 * b, row, high);
        put_nibbles(u + 1312 + 256 * b, row, low);
    }
}

void pack_iq4_xs(const uint8_t *s, uint8_t *u, int row) {
    put16(u, row, read16(s));
    put16(u + 32, row, read16(s + 2));
    put32(u + 64, row, read32(s + 4));
    for (int b = 0; b < 8; b++) copy32(u + 128 + 256 * b, row, s + 8 + 16 * b, 4);
}

void pack_iq2_xxs(const uint8_t *s, uint8_t *u, int row) {
    put16(u, row, read16(s));
    for (int b = 0; b < 8; b++) {
        uint8_t *f = u + 32 + 128 * b;
        const uint8_t *q = s + 2 + 8 * b;
        const uint32_t rest = read32(q + 4);
        put32(f, row, read32(q));
        for (int i = 0; i < 4; i++) put_signs7(f + 64 + 14 * i, row, rest >> 7 * i & 127);
        put4(f + 120, row, rest >> 28);
    }
}

void pack_iq2_xs(const uint8_t *s, uint8_t *u, int row) {
    put16(u, row, read16(s));
    for (int b = 0; b < 8; b++) {
        uint8_t *f = u + 32 + 144 * b;
        uint32_t index = 0, ninth = 0;
        for (int i = 0; i < 4; i++) {
            const uint32_t q = read16(s + 2 + 8 * b + 2 * i);
            index |= (q & 255) << 8 * i;
            ninth |= (q >> 8 & 1) << i;
            put_signs7(f + 72 + 14 * i, row, q >> 9);
        }
        put32(f, row, index);
        put_mask(f + 64, row, ninth);
        f[128 + row] = s[66 + b];
    }
}

void pack_iq2_s(const uint8_t *s, uint8_t *u, int row) {
    put16(u, row, read16(s));
    for (int b = 0; b < 8; b++) {
        uint8_t *f = u + 32 + 160 * b;
        put32(f, row, read32(s + 2 + 4 * b));
        const uint32_t high = s[66 + b];
        uint32_t bit[2] = {0, 0};
        for (int i = 0; i < 4; i++)
            for (int n = 0; n < 2; n++) bit[n] |= (high >> (2 * i + n) & 1) << i;
        for (int n = 0; n < 2; n++) put_mask(f + 64 + 8 * n, row, bit[n]);
        put_fifth_bits(f + 80, row, read32(s + 34 + 4 * b));
        f[144 + row] = s[74 + b];
    }
}

void pack_iq3_xxs(const uint8_t *s, uint8_t *u, int row) {
    put16(u, row, read16(s));
    for (int b = 0; b < 8; b++) {
        uint8_t *f = u + 32 + 192 * b;
        copy32(f, row, s + 2 + 8 * b, 2);
        const uint32_t rest = read32(s + 66 + 4 * b);
        for (int i = 0; i < 4; i++) put_signs7(f + 128 + 14 * i, row, rest >> 7 * i & 127);
        put4(f + 184, row, rest >> 28);
    }
}

void pack_iq3_s(const uint8_t *s, uint8_t *u, int row) {
    put16(u, row, read16(s));
    for (int b = 0; b < 8; b++) {
        uint8_t *f = u + 32 + 216 * b;
        copy32(f, row, s + 2 + 8 * b, 2);
        for (int n = 0; n < 2; n++) put_mask(f + 128 + 8 * n, row, s[66 + b] >> 4 * n & 15);
        put_fifth_bits(f + 144, row, read32(s + 74 + 4 * b));
        put4(f + 208, row, s[106 + b / 2] >> 4 * (b % 2) & 15);
    }
}

void pack_iq1_s(const uint8_t *s, uint8_t *u, int row) {
    put16(u, row, read16(s));
    for (int b = 0; b < 8; b++) {
        uint8_t *f = u + 32 + 96 * b;
        put32(f, row, read32(s + 2 + 4 * b));
        const uint32_t qh = read16(s + 34 + 2 * b);
        for (int n = 0; n < 3; n++) {
            uint32_t bits = 0;
            for (int i = 0; i < 4; i++) bits |= (qh >> (3 * i + n) & 1) << i;
            put_mask(f + 64 + 8 * n, row, bits);
        }
        put4(f + 88, row, qh >> 12);
    }
}

void pack_iq1_m(const uint8_t *s, uint8_t *u, int row) {
    const uint8_t *scales = s + 48;
    uint16_t d = 0;
    for (int i = 0; i < 4; i++) d |= (read16(scales + 2 * i) >> 12) << 4 * i;
    put16(u, row, d);
    for (int b = 0; b < 8; b++) {
        uint8_t *f = u + 32 + 108 * b;
        put32(f, row, read32(s + 4 * b));
        uint32_t high[3] = {0, 0, 0};
        for (int i = 0; i < 4; i++) {
            const uint32_t four = s[32 + 2 * b + i / 2] >> 4 * (i % 2) & 15;
            for (int n = 0; n < 3; n++) high[n] |= (four >> n & 1) << i;
            put_row_mask(f + 88 + 2 * i, row, four >> 3);
        }
        for (int n = 0; n < 3; n++) put_mask(f + 64 + 8 * n, row, high[n]);
        for (int half = 0; half < 2; half++) {
            const uint32_t scale = read16(scales + 2 * (b / 2)) >> (6 * (b % 2) + 3 * half) & 7;
            for (int n = 0; n < 3; n++) put_row_mask(f + 96 + 6 * half + 2 * n, row, scale >> n & 1);
        }
    }
}

// One block of one row into its place in a unit; the unit was zeroed.
void pack_block(int format, const uint8_t *s, uint8_t *u, int row) {
    switch (format) {
    case F32: put32(u, row, read32(s)); break;
    case F16:
    case BF16: put16(u, row, read16(s)); break;
    case Q8_0:
        put16(u, row, read16(s));
        for (int k = 0; k < 8; k++) put32(u + 32 + 64 * k, row, read32(s + 2 + 4 * k) ^ 0x80808080u);
        break;
    case Q4_0:
    case IQ4_NL:
        put16(u, row, read16(s));
        copy32(u + 32, row, s + 2, 4);
        break;
    case Q4_1:
        put16(u, row, read16(s));
        put16(u + 32, row, read16(s + 2));
        copy32(u + 64, row, s + 4, 4);
        break;
    case Q5_0:
        put16(u, row, read16(s));
        put_fifth_bits(u + 32, row, read32(s + 2));
        copy32(u + 96, row, s + 6, 4);
        break;
    case Q5_1:
        put16(u, row, read16(s));
        put16(u + 32, row, read16(s + 2));
        put_fifth_bits(u + 64, row, read32(s + 4));
        copy32(u + 128, row, s + 8, 4);
        break;
    case MXFP4:
        u[row] = s[0];
        copy32(u + 16, row, s + 1, 4);
        break;
    case NVFP4:
        for (int i = 0; i < 4; i++) u[16 * i + row] = s[i];
        copy32(u + 64, row, s + 4, 8);
        break;
    case Q2_0: pack_q2_0(s, u, row); break;
    case Q2_K: pack_q2_k(s, u, row); break;
    case Q3_K: pack_q3_k(s, u, row); break;
    case Q4_K: pack_q4_k(s, u, row); break;
    case Q5_K: pack_q5_k(s, u, row); break;
    case Q6_K: pack_q6_k(s, u, row); break;
    case IQ4_XS: pack_iq4_xs(s, u, row); break;
    case IQ2_XXS: pack_iq2_xxs(s, u, row); break;
    case IQ2_XS: pack_iq2_xs(s, u, row); break;
    case IQ2_S: pack_iq2_s(s, u, row); break;
    case IQ3_XXS: pack_iq3_xxs(s, u, row); break;
    case IQ3_S: pack_iq3_s(s, u, row); break;
    case IQ1_S: pack_iq1_s(s, u, row); break;
    case IQ1_M: pack_iq1_m(s, u, row); break;
    }
}

} // namespace

void pack_panel(int format, const uint8_t *src, int64_t row_bytes, int64_t first_row, int64_t num_rows,
                int64_t inner, uint8_t *dst) {
    const FormatShape shape = format_shape(format);
    const int64_t units = inner / shape.block_size, unit_bytes = PANEL_ROWS * shape.block_bytes;
    const int rows = (int)(num_rows - first_row < PANEL_ROWS ? num_rows - first_row : PANEL_ROWS);
    memset(dst, 0, units * unit_bytes);
    for (int64_t unit = 0; unit < units; unit++)
        for (int row = 0; row < rows; row++)
            pack_block(format, src + (first_row + row) * row_bytes + unit * shape.block_bytes,
                       dst + unit * unit_bytes, row);
}

} // namespace strata
