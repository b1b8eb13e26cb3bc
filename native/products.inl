// Products of packed weights, for the instruction set whose simd_*.h was included before.
//
// A few rows of activations (a decode window): each block is unpacked into registers and used at
// once. Many rows (a prompt): a panel is unpacked into scratch once and used for all of them. Both
// do the same arithmetic in the same order, so their bits agree.

#include "isa.h"
#include "products.h"

namespace strata {
namespace STRATA_ISA_NAMESPACE {

#include "formats.inl"

#ifdef STRATA_AMX
} // namespace STRATA_ISA_NAMESPACE
namespace isa_avx512 {
#endif
// rows.inl
bool quantize_rows(const Activations &a, int64_t begin, int64_t end);
void gate_up(float *gate, const float *up, int64_t n);
void combine(const float *const *y, const float *w, int k, const float *shared, float shared_weight, float *out,
             int64_t n);
#ifdef STRATA_AMX
} // namespace isa_avx512
namespace STRATA_ISA_NAMESPACE {
using isa_avx512::combine;
using isa_avx512::gate_up;
using isa_avx512::quantize_rows;
#endif

constexpr int PARTS = PANEL_ROWS / ROWS;
constexpr int GROUP_BLOCKS = 8; // blocks summed into one partial sum before it joins the total
constexpr int STAGED_TOKENS = 4;
// How far ahead of its use a panel is asked for; hardware follows a stream only after missing.
constexpr int64_t PREFETCH_BYTES = 4096;

// What the arithmetic of a block needs to know of its format.
template <bool WIDE_, int NW_, int NS_, int NM_> struct Kind {
    static constexpr bool WIDE = WIDE_;
    static constexpr int NW = NW_, NS = NS_, NM = NM_;
};
template <class F> using KindOf = Kind<F::WIDE, F::NW, F::NS, F::NM>;

// An unpacked block in scratch, only what its kind uses.
template <class K> struct Staged {
    Bytes codes[8];
    Floats w[K::NW];
    Ints s[K::NS ? K::NS : 1];
    Floats m[K::NM ? K::NM : 1];
};

// One row of activations at one block.
struct Token {
    const int8_t *codes;
    const int32_t *correction; // [2]: minus bias times the sums of the halves
    const int32_t *sums;       // [2]
    float scale;
};

template <class K> inline Ints half_dot(const Bytes *codes, const int8_t *q, int32_t start) {
    Ints acc = iset(start);
    for (int k = 0; k < 4; k++)
        acc = K::WIDE ? dot4_wide(acc, codes[k], q + 4 * k) : dot4(acc, codes[k], q + 4 * k);
    return acc;
}

// g + the terms of one block, products first, then minima (docs/numerics.md). first, second: integer
// dots of the two halves, corrected for the bias; only their sum matters unless halves have scales.
template <class K, class B> inline Floats add_terms(Floats g, const B &block, Ints first, Ints second, const Token &t) {
    if constexpr (K::NW == 2) {
        g = fadd(g, fmul(to_float(first), fmul(block.w[0], fset(t.scale))));
        g = fadd(g, fmul(to_float(second), fmul(block.w[1], fset(t.scale))));
    } else {
        Ints sum;
        if constexpr (K::NS == 2)
            sum = iadd(imul(block.s[0], first), imul(block.s[1], second));
        else
            sum = iadd(first, second);
        g = fadd(g, fmul(to_float(sum), fmul(block.w[0], fset(t.scale))));
    }
    if constexpr (K::NM == 1)
        g = fadd(g, fmul(block.m[0], fset(t.scale * (float)(t.sums[0] + t.sums[1]))));
    if constexpr (K::NM == 2)
        for (int half = 0; half < 2; half++)
            g = fadd(g, fmul(block.m[half], fset(t.scale * (float)t.sums[half])));
    return g;
}
template <class K, class B> inline Floats add_block(Floats g, const B &block, const Token &t) {
    const Ints first = half_dot<K>(block.codes, t.codes, t.correction[0]);
    const Ints second = half_dot<K>(block.codes + 4, t.codes + 16, t.correction[1]);
    return add_terms<K>(g, block, first, second, t);
}

// The activation rows one call works on.
struct Tile {
    const Activations *a;
    const int32_t *rows;     // null: row i is first + i
    int64_t first;
    int64_t num;
    const int32_t *corrections; // [num, inner / 16]

    int64_t row(int64_t i) const { return rows ? rows[first + i] : first + i; }
    // Rows from the i-th on.
    Tile after(int64_t i) const { return {a, rows, first + i, num - i, corrections + i * (a->inner / 16)}; }
    Token token(int64_t i, int64_t block) const {
        const int64_t r = row(i), inner = a->inner;
        return {a->codes + r * inner + 32 * block, corrections + i * (inner / 16) + 2 * block,
                a->sums + r * (inner / 16) + 2 * block, a->scales[r * (inner / 32) + block]};
    }
};

// T rows (T a constant) against one part of one panel, block after block.
template <class F, int T>
void panel_direct(const uint8_t *panel, int part, const Tile &tile, float *out, int64_t out_stride, int num_rows) {
    const int64_t blocks = tile.a->inner / 32;
    constexpr int PER_UNIT = F::UNIT / 32;
    constexpr int64_t UNIT_BYTES = (int64_t)PANEL_ROWS * F::UNIT_BYTES, LINES = (UNIT_BYTES + 63) / 64;
    Floats acc[T], g[T];
    Token at[T];
    int64_t steps[T];
    for (int t = 0; t < T; t++) {
        const int64_t i = t < tile.num ? t : tile.num - 1;
        acc[t] = fset(0.0f);
        at[t] = tile.token(i, 0);
        steps[t] = tile.row(i) * blocks;
    }
    for (int64_t group = 0; group < blocks; group += GROUP_BLOCKS) {
        const int64_t end = group + GROUP_BLOCKS < blocks ? group + GROUP_BLOCKS : blocks;
        for (int t = 0; t < T; t++) g[t] = fset(0.0f);
        for (int64_t b = group; b < end; b += PER_UNIT, panel += UNIT_BYTES) {
            typename F::Head head;
            F::head(panel, part, head);
            for (int j = 0; j < PER_UNIT; j++) {
                // Spread over the blocks: a core can wait for some twenty lines at a time.
                if constexpr (ROWS == PANEL_ROWS)
                    for (int64_t line = j * LINES / PER_UNIT; line < (j + 1) * LINES / PER_UNIT; line++)
                        prefetch(panel + PREFETCH_BYTES + 64 * line);
                Block block;
                F::block(panel, part, head, j, block);
                for (int t = 0; t < T; t++) {
                    const int64_t n = b + j;
                    const Token token = {at[t].codes + 32 * n, at[t].correction + 2 * n, at[t].sums + 2 * n,
                                         tile.a->scales[steps[t] + n]};
                    g[t] = add_block<KindOf<F>>(g[t], block, token);
                }
            }
        }
        for (int t = 0; t < T; t++) acc[t] = fadd(acc[t], g[t]);
    }
    for (int t = 0; t < T && t < tile.num; t++) store_rows(out + t * out_stride, acc[t], part, num_rows);
}

template <class F> void unpack_panel(const uint8_t *panel, int part, int64_t inner, Staged<KindOf<F>> *out) {
    for (int64_t b = 0; b < inner / 32; b += F::UNIT / 32, panel += (int64_t)PANEL_ROWS * F::UNIT_BYTES) {
        typename F::Head head;
        F::head(panel, part, head);
        for (int j = 0; j < F::UNIT / 32; j++) {
            F::block(panel, part, head, j, out[b + j]);
        }
    }
}

// All rows of a tile against an unpacked panel, STAGED_TOKENS at a time.
template <class K>
void panel_staged(const Staged<K> *blocks, int part, const Tile &tile, float *out, int64_t out_stride, int num_rows) {
    constexpr int T = STAGED_TOKENS;
    const int64_t num_blocks = tile.a->inner / 32;
    for (int64_t first = 0; first < tile.num; first += T) {
        Floats acc[T], g[T];
        Token at[T];
        const float *scales[T];
        for (int t = 0; t < T; t++) {
            const int64_t i = first + t < tile.num ? first + t : tile.num - 1;
            acc[t] = fset(0.0f);
            at[t] = tile.token(i, 0);
            scales[t] = tile.a->scales + tile.row(i) * num_blocks;
        }
        for (int64_t group = 0; group < num_blocks; group += GROUP_BLOCKS) {
            const int64_t end = group + GROUP_BLOCKS < num_blocks ? group + GROUP_BLOCKS : num_blocks;
            for (int t = 0; t < T; t++) g[t] = fset(0.0f);
            for (int64_t b = group; b < end; b++)
                for (int t = 0; t < T; t++) {
                    const Token token = {at[t].codes + 32 * b, at[t].correction + 2 * b, at[t].sums + 2 * b,
                                         scales[t][b]};
                    g[t] = add_block<K>(g[t], blocks[b], token);
                }
            for (int t = 0; t < T; t++) acc[t] = fadd(acc[t], g[t]);
        }
        for (int t = 0; t < T && first + t < tile.num; t++)
            store_rows(out + (first + t) * out_stride, acc[t], part, num_rows);
    }
}

#ifdef STRATA_AMX
#include "tiles.inl"
#else
// No tiles here: no row of a tile is done by them.
inline const int8_t *rows_together(const Tile &, int8_t *) { return nullptr; }
template <class K> int64_t panel_tiles(const Staged<K> *, const Tile &, const int8_t *, float *, int64_t, int) { return 0; }
#endif

// Float weights: in each segment of columns four partial sums by k mod 4, ascending, multiplied then
// added; the segments are added up in order. For prompts a segment is unpacked to floats once for all
// rows, and their totals wait in memory.

// total + the sums of one segment, `num` columns from where panel and x point.
template <class LOAD, int T>
inline void add_segment(const uint8_t *panel, int part, int64_t num, const float *const *x, Floats *total) {
    Floats sum[T][4];
    for (int t = 0; t < T; t++)
        for (int j = 0; j < 4; j++) sum[t][j] = fset(0.0f);
    int64_t k = 0;
    for (; k + 4 <= num; k += 4)
        for (int j = 0; j < 4; j++) {
            const Floats w = LOAD::load(panel + (k + j) * PANEL_ROWS * LOAD::BYTES, part);
            for (int t = 0; t < T; t++) sum[t][j] = fadd(sum[t][j], fmul(w, fset(x[t][k + j])));
        }
    for (int j = 0; k < num; k++, j++) {
        const Floats w = LOAD::load(panel + k * PANEL_ROWS * LOAD::BYTES, part);
        for (int t = 0; t < T; t++) sum[t][j] = fadd(sum[t][j], fmul(w, fset(x[t][k])));
    }
    for (int t = 0; t < T; t++)
        total[t] = fadd(total[t], fadd(fadd(sum[t][0], sum[t][1]), fadd(sum[t][2], sum[t][3])));
}

struct LoadF32 {
    static constexpr int BYTES = 4;
    static inline Floats load(const uint8_t *field, int part) { return load_float(field, part); }
};
struct LoadF16 {
    static constexpr int BYTES = 2;
    static inline Floats load(const uint8_t *field, int part) { return load_half(field, part); }
};
struct LoadBF16 {
    static constexpr int BYTES = 2;
    static inline Floats load(const uint8_t *field, int part) { return load_bf16(field, part); }
};

template <class LOAD, int T>
void float_direct(const uint8_t *panel, int part, const Tile &tile, float *out, int64_t out_stride, int num_rows) {
    const int64_t inner = tile.a->inner;
    const float *x[T];
    Floats total[T];
    for (int t = 0; t < T; t++) {
        x[t] = tile.a->x + tile.row(t < tile.num ? t : tile.num - 1) * inner;
        total[t] = fset(0.0f);
    }
    for (int64_t begin = 0; begin < inner; begin += SEGMENT_COLUMNS) {
        const int64_t num = inner - begin < SEGMENT_COLUMNS ? inner - begin : SEGMENT_COLUMNS;
        add_segment<LOAD, T>(panel + begin * PANEL_ROWS * LOAD::BYTES, part, num, x, total);
        for (int t = 0; t < T; t++) x[t] += num;
    }
    for (int t = 0; t < T && t < tile.num; t++) store_rows(out + t * out_stride, total[t], part, num_rows);
}

template <class LOAD>
void float_staged(const uint8_t *panel, int part, const Tile &tile, float *out, int64_t out_stride, int num_rows,
                  uint8_t *scratch) {
    constexpr int T = STAGED_TOKENS;
    const int64_t inner = tile.a->inner;
    float *columns = (float *)scratch; // [SEGMENT_COLUMNS, PANEL_ROWS]; `part` of each is filled
    Floats *totals = (Floats *)(scratch + SEGMENT_COLUMNS * PANEL_ROWS * 4); // [tile.num rounded up to T]
    for (int64_t i = 0; i < tile.num + T; i++) totals[i] = fset(0.0f);
    for (int64_t begin = 0; begin < inner; begin += SEGMENT_COLUMNS) {
        const int64_t num = inner - begin < SEGMENT_COLUMNS ? inner - begin : SEGMENT_COLUMNS;
        for (int64_t k = 0; k < num; k++)
            store_rows(columns + k * PANEL_ROWS, LOAD::load(panel + (begin + k) * PANEL_ROWS * LOAD::BYTES, part), part,
                       PANEL_ROWS);
        for (int64_t first = 0; first < tile.num; first += T) {
            const float *x[T];
            for (int t = 0; t < T; t++)
                x[t] = tile.a->x + tile.row(first + t < tile.num ? first + t : tile.num - 1) * inner + begin;
            add_segment<LoadF32, T>((const uint8_t *)columns, part, num, x, totals + first);
        }
    }
    for (int64_t i = 0; i < tile.num; i++) store_rows(out + i * out_stride, totals[i], part, num_rows);
}

struct Call {
    const uint8_t *packed;
    int64_t num_out, begin, end, panel_bytes;
    float *out;
    int64_t out_stride;
    uint8_t *scratch;
};

template <class F> void run_quantized(const Call &c, Tile tile, int64_t num_rows) {
    const int64_t inner = tile.a->inner;
    int32_t *corrections = (int32_t *)c.scratch;
    auto *staged = (Staged<KindOf<F>> *)(c.scratch + (int64_t)TOKEN_TILE * (inner / 16) * 4);
    tile.corrections = corrections;
    for (tile.first = 0; tile.first < num_rows; tile.first += TOKEN_TILE) {
        tile.num = num_rows - tile.first < TOKEN_TILE ? num_rows - tile.first : TOKEN_TILE;
        for (int64_t i = 0; i < tile.num; i++) {
            const int32_t *sums = tile.a->sums + tile.row(i) * (inner / 16);
            for (int64_t k = 0; k < inner / 16; k++) corrections[i * (inner / 16) + k] = -F::BIAS * sums[k];
        }
        const int8_t *tile_codes = rows_together(tile, (int8_t *)(staged + inner / 32));
        float *out = c.out + tile.first * c.out_stride;
        for (int64_t p = c.begin; p < c.end; p++) {
            const uint8_t *panel = c.packed + p * c.panel_bytes;
            const int rows = (int)(c.num_out - p * PANEL_ROWS < PANEL_ROWS ? c.num_out - p * PANEL_ROWS : PANEL_ROWS);
            float *panel_out = out + p * PANEL_ROWS;
            for (int part = 0; part < PARTS; part++) {
                if (tile.num == 1)
                    panel_direct<F, 1>(panel, part, tile, panel_out, c.out_stride, rows);
                else if (tile.num == 2)
                    panel_direct<F, 2>(panel, part, tile, panel_out, c.out_stride, rows);
                else if (tile.num <= 4)
                    panel_direct<F, 4>(panel, part, tile, panel_out, c.out_stride, rows);
                else {
                    unpack_panel<F>(panel, part, inner, staged);
                    const int64_t done =
                        panel_tiles<KindOf<F>>(staged, tile, tile_codes, panel_out, c.out_stride, rows);
                    panel_staged<KindOf<F>>(staged, part, tile.after(done), panel_out + done * c.out_stride,
                                            c.out_stride, rows);
                }
            }
        }
    }
}

template <class LOAD> void run_float(const Call &c, Tile tile, int64_t num_rows) {
    for (tile.first = 0; tile.first < num_rows; tile.first += TOKEN_TILE) {
        tile.num = num_rows - tile.first < TOKEN_TILE ? num_rows - tile.first : TOKEN_TILE;
        float *out = c.out + tile.first * c.out_stride;
        for (int64_t p = c.begin; p < c.end; p++) {
            const uint8_t *panel = c.packed + p * c.panel_bytes;
            const int rows = (int)(c.num_out - p * PANEL_ROWS < PANEL_ROWS ? c.num_out - p * PANEL_ROWS : PANEL_ROWS);
            float *panel_out = out + p * PANEL_ROWS;
            for (int part = 0; part < PARTS; part++) {
                if (tile.num == 1)
                    float_direct<LOAD, 1>(panel, part, tile, panel_out, c.out_stride, rows);
                else if (tile.num <= 4)
                    float_direct<LOAD, 4>(panel, part, tile, panel_out, c.out_stride, rows);
                else
                    float_staged<LOAD>(panel, part, tile, panel_out, c.out_stride, rows, c.scratch);
            }
        }
    }
}

void run_panels(int format, const uint8_t *packed, int64_t num_out, int64_t begin, int64_t end, const Activations &a,
                const int32_t *rows, int64_t num_rows, float *out, int64_t out_stride, uint8_t *scratch) {
    const Call c = {packed, num_out, begin, end, panel_bytes(format, a.inner), out, out_stride, scratch};
    const Tile tile = {&a, rows, 0, 0, nullptr};
    switch (format) {
    case F32: return run_float<LoadF32>(c, tile, num_rows);
    case F16: return run_float<LoadF16>(c, tile, num_rows);
    case BF16: return run_float<LoadBF16>(c, tile, num_rows);
    case Q4_0: return run_quantized<FormatQ4_0>(c, tile, num_rows);
    case Q4_1: return run_quantized<FormatQ4_1>(c, tile, num_rows);
    case Q5_0: return run_quantized<FormatQ5_0>(c, tile, num_rows);
    case Q5_1: return run_quantized<FormatQ5_1>(c, tile, num_rows);
    case Q8_0: return run_quantized<FormatQ8_0>(c, tile, num_rows);
    case Q2_K: return run_quantized<FormatQ2_K>(c, tile, num_rows);
    case Q3_K: return run_quantized<FormatQ3_K>(c, tile, num_rows);
    case Q4_K: return run_quantized<FormatQ4_K>(c, tile, num_rows);
    case Q5_K: return run_quantized<FormatQ5_K>(c, tile, num_rows);
    case Q6_K: return run_quantized<FormatQ6_K>(c, tile, num_rows);
    case IQ2_XXS: return run_quantized<FormatIQ2_XXS>(c, tile, num_rows);
    case IQ2_XS: return run_quantized<FormatIQ2_XS>(c, tile, num_rows);
    case IQ2_S: return run_quantized<FormatIQ2_S>(c, tile, num_rows);
    case IQ3_XXS: return run_quantized<FormatIQ3_XXS>(c, tile, num_rows);
    case IQ3_S: return run_quantized<FormatIQ3_S>(c, tile, num_rows);
    case IQ1_S: return run_quantized<FormatIQ1_S>(c, tile, num_rows);
    case IQ1_M: return run_quantized<FormatIQ1_M>(c, tile, num_rows);
    case IQ4_NL: return run_quantized<FormatIQ4_NL>(c, tile, num_rows);
    case IQ4_XS: return run_quantized<FormatIQ4_XS>(c, tile, num_rows);
    case MXFP4: return run_quantized<FormatMXFP4>(c, tile, num_rows);
    case NVFP4: return run_quantized<FormatNVFP4>(c, tile, num_rows);
    case Q2_0: return run_quantized<FormatQ2_0>(c, tile, num_rows);
    }
}

uint64_t read_all(const uint8_t *p, int64_t n) {
    Bytes a = bset(0), b = bset(0);
    for (int64_t i = 0; i < n; i += 64) {
        if (i % 512 == 0) prefetch(p + i + PREFETCH_BYTES);
        for (int part = 0; part < PARTS; part += 2) a = badd(a, load_codes(p + i, part));
        for (int part = 1; part < PARTS; part += 2) b = badd(b, load_codes(p + i, part));
    }
    uint64_t v = 0;
    const Bytes both = badd(a, b);
    memcpy(&v, &both, sizeof both < 8 ? sizeof both : 8);
    return v;
}

const Products products_table = {quantize_rows, run_panels, gate_up, combine, read_all};

} // namespace STRATA_ISA_NAMESPACE
} // namespace strata
