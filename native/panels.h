// How weights lie in memory: panels of sixteen rows.
//
// A row of a GGUF tensor is a run of blocks. Sixteen rows are re-laid together, with exactly the
// file's bits, so that one vector load gives sixteen rows the same thing each: a scale, or four
// consecutive weights. A panel is a run of units; a unit is one block of each of the sixteen rows.
// Rows past the end of a tensor are zero.
//
// Fields of a unit ("codes k" means weights 4k..4k+3 of a block, a byte each, in one 32-bit lane
// per row; fields hold row 0 first):
//   half, u16        16 x 2 bytes
//   u8, s8           16 bytes
//   u32              16 x 4 bytes
//   u4               8 bytes: byte j has row j low, row j+8 high
//   codes            64 bytes: 8-bit codes, a lane a row
//   nibbles          64 bytes: low nibbles are codes p, high nibbles codes p+4 of a 32-block
//   two bits         64 bytes: bits 2s..2s+1 of each byte are codes 4p+s
//   mask             8 bytes: bit 4r+i is weight i of codes k, row r
//   row mask         2 bytes: bit r is row r
//   signs of eight   14 bytes: a mask for weights 0..3, then 3 bits a row for weights 4..6; the sign
//                    of weight 7 is the parity of the others
//
//   F32     (1)    float
//   F16 BF16(1)    u16
//   Q8_0    (32)   half d | codes[8], top bit flipped
//   Q4_0    (32)   half d | nibbles[4]
//   Q4_1    (32)   half d, m | nibbles[4]
//   Q5_0    (32)   half d | mask[8] fifth bits | nibbles[4]
//   Q5_1    (32)   half d, m | mask[8] | nibbles[4]
//   IQ4_NL  (32)   half d | nibbles[4]
//   MXFP4   (32)   u8 exponent | nibbles[4]
//   NVFP4   (64)   u8 scale[4] | nibbles[8]: 2s+q has codes 4s+q low, 4s+2+q high
//   Q2_0    (64)   half d | two bits[4]
//   Q2_K    (256)  half d, dmin | u8 scales[16] | two bits[16]
//   Q3_K    (256)  half d | u32 scales[3] | mask[64] third bits | two bits[16]
//   Q4_K    (256)  half d, dmin | u32 scales[3] | nibbles[32]
//   Q5_K    (256)  half d, dmin | u32 scales[3] | mask[64] fifth bits | nibbles[32]
//   Q6_K    (256)  half d | s8 scales[16] | two bits[16] fifth and sixth bits | nibbles[32]
//   IQ4_XS  (256)  half d | u16 high scales | u32 low scales | nibbles[32]
//   the others (256): half d, then for each of eight 32-blocks
//   IQ2_XXS        u32 index | signs of eight[4] | u4 scale
//   IQ2_XS         u32 index | mask ninth bits | signs of eight[4] | u8 scales
//   IQ2_S          u32 index | mask[2] high bits | mask[8] signs | u8 scales
//   IQ3_XXS        u32 index[2] | signs of eight[4] | u4 scale
//   IQ3_S          u32 index[2] | mask[2] ninth bits | mask[8] signs | u4 scale
//   IQ1_S          u32 index | mask[3] high bits | u4 scale and shift
//   IQ1_M          u32 index | mask[3] high bits | row mask[4] shift | row mask[2][3] scale bits
#pragma once

#include <stdint.h>

namespace strata {

constexpr int PANEL_ROWS = 16;

// GGUF numbers of the block formats.
enum Format {
    F32 = 0,
    F16 = 1,
    Q4_0 = 2,
    Q4_1 = 3,
    Q5_0 = 6,
    Q5_1 = 7,
    Q8_0 = 8,
    Q2_K = 10,
    Q3_K = 11,
    Q4_K = 12,
    Q5_K = 13,
    Q6_K = 14,
    IQ2_XXS = 16,
    IQ2_XS = 17,
    IQ3_XXS = 18,
    IQ1_S = 19,
    IQ4_NL = 20,
    IQ3_S = 21,
    IQ2_S = 22,
    IQ4_XS = 23,
    IQ1_M = 29,
    BF16 = 30,
    MXFP4 = 39,
    NVFP4 = 40,
    Q2_0 = 42,
};

struct FormatShape {
    int block_size;  // weights in a block
    int block_bytes; // bytes of a block
};

// Shape of a format; block_size is 0 for a number that is not a Format.
constexpr FormatShape format_shape(int format) {
    switch (format) {
    case F32: return {1, 4};
    case F16:
    case BF16: return {1, 2};
    case Q4_0:
    case IQ4_NL: return {32, 18};
    case Q4_1: return {32, 20};
    case Q5_0: return {32, 22};
    case Q5_1: return {32, 24};
    case Q8_0: return {32, 34};
    case MXFP4: return {32, 17};
    case NVFP4: return {64, 36};
    case Q2_0: return {64, 18};
    case Q2_K: return {256, 84};
    case Q3_K: return {256, 110};
    case Q4_K: return {256, 144};
    case Q5_K: return {256, 176};
    case Q6_K: return {256, 210};
    case IQ2_XXS: return {256, 66};
    case IQ2_XS: return {256, 74};
    case IQ2_S: return {256, 82};
    case IQ3_XXS: return {256, 98};
    case IQ3_S: return {256, 110};
    case IQ1_S: return {256, 50};
    case IQ1_M: return {256, 56};
    case IQ4_XS: return {256, 136};
    default: return {0, 0};
    }
}

inline bool is_quantized(int format) { return format != F32 && format != F16 && format != BF16; }

// Bytes of one panel (sixteen rows of `inner` weights).
int64_t panel_bytes(int format, int64_t inner);

// Re-lays rows first_row .. first_row+15 of a tensor (those below num_rows) into dst.
// src: [num_rows, row_bytes] blocks as in the file.
void pack_panel(int format, const uint8_t *src, int64_t row_bytes, int64_t first_row, int64_t num_rows,
                int64_t inner, uint8_t *dst);

} // namespace strata
