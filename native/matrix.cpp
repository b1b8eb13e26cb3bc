#include "matrix.h"

#include <vector>

namespace strata {

int64_t product_scratch_bytes(int64_t inner) {
    // Corrections of a tile, then an unpacked panel: eight vectors of codes and up to five more a block.
    // Behind them, the codes of a tile's rows (tiles.inl).
    const int64_t quantized = TOKEN_TILE * (inner / 16) * 4 + (inner / 32 + 1) * 13 * 64 + 64 + TOKEN_TILE * inner;
    // A segment of float columns, then a sum for each row of a tile (products.inl).
    const int64_t floats = SEGMENT_COLUMNS * PANEL_ROWS * 4 + (TOKEN_TILE + 4) * 64;
    return std::max(quantized, floats);
}

void check_inner(int format, int64_t inner) {
    const FormatShape shape = format_shape(format);
    if (shape.block_size == 0) refuse("no block format has number " + std::to_string(format));
    if (inner < 1 || inner % shape.block_size != 0)
        refuse("a row of " + std::to_string(inner) + " weights is not a whole number of blocks of " +
               std::to_string(shape.block_size));
}

void pack_rows(Context &ctx, int format, const uint8_t *raw, int64_t rows, int64_t inner, uint8_t *packed) {
    const int64_t bytes = panel_bytes(format, inner);
    ctx.pool.run([&](int thread, int n) {
        const Range range = split(num_panels(rows), thread, n);
        for (int64_t p = range.begin; p < range.end; p++)
            pack_panel(format, raw, row_bytes(format, inner), p * PANEL_ROWS, rows, inner, packed + p * bytes);
    });
}

Input::Input(const float *x, int64_t rows, int64_t inner, bool is_quantized_needed) {
    a = {x, rows, inner, nullptr, nullptr, nullptr};
    if (!is_quantized_needed) return;
    codes_ = Buffer(rows * inner);
    scales_ = Buffer(rows * (inner / 32) * 4);
    sums_ = Buffer(rows * (inner / 16) * 4);
    a.codes = (int8_t *)codes_.get();
    a.scales = (float *)scales_.get();
    a.sums = (int32_t *)sums_.get();
}

void run_job(const Context &ctx, const PanelJob &job, int64_t begin, int64_t end) {
    uint8_t *scratch = thread_scratch(product_scratch_bytes(job.a->inner));
    ctx.products.panels(job.format, job.packed, job.num_out, begin, end, *job.a, job.rows, job.num_rows, job.out,
                        job.out_stride, scratch);
    if (job.scale == 1.0f) return;
    const int64_t last = std::min(end * PANEL_ROWS, job.num_out);
    for (int64_t i = 0; i < job.num_rows; i++)
        for (int64_t r = begin * PANEL_ROWS; r < last; r++) job.out[i * job.out_stride + r] *= job.scale;
}

bool run_product(Context &ctx, const Target *targets, int64_t num_targets, const float *x, int64_t rows, int64_t inner) {
    bool is_quantized_needed = false;
    std::vector<int64_t> first(num_targets + 1, 0);
    for (int64_t i = 0; i < num_targets; i++) {
        is_quantized_needed |= is_quantized(targets[i].matrix->format);
        first[i + 1] = first[i] + num_panels(targets[i].matrix->rows);
    }
    Input input(x, rows, inner, is_quantized_needed);
    std::atomic<bool> has_bad_value{false};
    Queue queue(first.back());
    const int64_t piece = piece_of(panel_bytes(targets[0].matrix->format, inner), rows);
    ctx.pool.run([&](int thread, int n) {
        if (is_quantized_needed) {
            const Range range = split(rows, thread, n);
            if (!ctx.products.quantize(input.a, range.begin, range.end)) has_bad_value = true;
            ctx.pool.barrier();
        }
        Range range;
        while (queue.take(piece, range))
            for (int64_t i = 0; i < num_targets; i++) {
                const int64_t begin = std::max(range.begin, first[i]) - first[i];
                const int64_t end = std::min(range.end, first[i + 1]) - first[i];
                const Matrix &m = *targets[i].matrix;
                if (begin < end)
                    run_job(ctx, {m.format, m.data.get(), m.rows, m.scale, &input.a, nullptr, rows, targets[i].out, m.rows},
                            begin, end);
            }
    });
    return !has_bad_value;
}

} // namespace strata
