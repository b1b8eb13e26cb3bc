// Matrices in packed panels, and what every product of them needs: quantised input, shared work.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "context.h"
#include "memory.h"
#include "products.h"

namespace strata {

[[noreturn]] inline void refuse(const std::string &what) { throw std::invalid_argument(what); }

inline int64_t num_panels(int64_t rows) { return (rows + PANEL_ROWS - 1) / PANEL_ROWS; }

// Bytes of a packed matrix.
inline int64_t packed_bytes(int format, int64_t rows, int64_t inner) {
    return num_panels(rows) * panel_bytes(format, inner);
}

inline int64_t row_bytes(int format, int64_t inner) {
    const FormatShape shape = format_shape(format);
    return inner / shape.block_size * shape.block_bytes;
}

// Refuses a number that is no format, and rows that are not whole blocks.
void check_inner(int format, int64_t inner);

// Packs `rows` rows of blocks by all threads of the pool.
void pack_rows(Context &ctx, int format, const uint8_t *raw, int64_t rows, int64_t inner, uint8_t *packed);

// A packed matrix. `scale` multiplies every output once more (NVFP4 files keep one beside a tensor).
struct Matrix {
    int format;
    int64_t rows, inner;
    float scale;
    Buffer data;

    int64_t bytes() const { return packed_bytes(format, rows, inner); }
};

// The activations of a call and, when a quantised weight needs it, the memory of their codes.
struct Input {
    Activations a;
    Input(const float *x, int64_t rows, int64_t inner, bool is_quantized_needed);

  private:
    Buffer codes_, scales_, sums_;
};

// Work in pieces that threads take as they come free; which thread does a piece changes no bit.
class Queue {
  public:
    explicit Queue(int64_t total) : total_(total) {}
    // The first `num_threads` pieces belong to the threads by number: they need not ask one after the other.
    Queue(int64_t total, int64_t piece, int num_threads) : next_(piece * num_threads), total_(total) {}
    // Not while it is in use.
    void reset(int64_t total) {
        next_ = 0;
        total_ = total;
    }
    // The piece of a thread that belongs to it; false if there is none.
    bool own(int64_t piece, int thread, Range &range) const {
        range = {piece * thread, std::min(piece * (thread + 1), total_)};
        return range.begin < total_;
    }
    bool take(int64_t piece, Range &range) {
        // Every thread comes once too often: a look costs less than all of them writing once more.
        if (next_.load(std::memory_order_relaxed) >= total_) return false;
        const int64_t begin = next_.fetch_add(piece, std::memory_order_relaxed);
        if (begin >= total_) return false;
        range = {begin, std::min(begin + piece, total_)};
        return true;
    }

  private:
    std::atomic<int64_t> next_{0};
    int64_t total_;
};

// Panels a thread takes at a time: about 64 KiB of weights; for a prompt at least eight panels, so that
// a tile of activations is used several times while the second-level cache holds it.
inline int64_t piece_of(int64_t bytes_per_panel, int64_t num_rows) {
    const int64_t piece = std::max<int64_t>(1, (64 << 10) / bytes_per_panel);
    return num_rows > 8 ? std::max<int64_t>(8, piece) : piece;
}

// Panels [begin, end) of a matrix times rows of `a` (all, or those in `rows`) into out.
struct PanelJob {
    int format;
    const uint8_t *packed;
    int64_t num_out;
    float scale;
    const Activations *a;
    const int32_t *rows;
    int64_t num_rows;
    float *out;
    int64_t out_stride;
};
void run_job(const Context &ctx, const PanelJob &job, int64_t begin, int64_t end);

struct Target {
    const Matrix *matrix;
    float *out; // [rows, matrix.rows]
};

// Every target's product with the same rows. False if a value that had to be quantised is not finite.
bool run_product(Context &ctx, const Target *targets, int64_t num_targets, const float *x, int64_t rows, int64_t inner);

} // namespace strata
