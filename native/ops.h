// Model operations other than weight products: one function pointer each, filled per instruction
// set by ops.inl. Each works on one row, head or block of columns; bind_ops*.cpp spread them over
// threads. No output's bits depend on another row, on threads or on the instruction set.
#pragma once

#include <cstdint>

// The linker keeps one copy of a shared function, perhaps one this processor cannot run.
#define STRATA_SHARED_INLINE __attribute__((always_inline)) inline

namespace strata {

constexpr int64_t STATE_COLUMNS = 16; // value columns of one GDN state block: its rows are vectors
constexpr int64_t INDEX_GROUP = 16;   // pooled keys stored side by side, one per lane
constexpr int64_t QUERY_HEADS = 4;    // query heads that read one cell together

// One gated delta net layer over `rows` rows. Channels C = 2 Hk Dk + Hv Dv, in the order q | k | v.
// A state block is [Dk][STATE_COLUMNS]; blocks are ordered [Hv][ceil(Dv / STATE_COLUMNS)].
struct Gdn {
    int64_t rows, kernel, key_heads, value_heads, key_dim, value_dim;
    float eps;
    bool is_silu_gate; // activation on z: sigmoid, or SiLU
    bool is_window;    // outputs only: the state stays as it is after the pending rows
    const float *conv_in;     // [kernel - 1 + rows, C] raw inputs, oldest first
    const float *conv_weight; // [kernel, C], last tap is the current row
    const float *alpha, *beta; // [rows, Hv] projections
    const float *ssm_a, *dt;   // [Hv]
    const float *z, *gamma;    // [rows, Hv, Dv], [Dv]
    float *q, *k, *v;          // [rows, Hk, Dk] twice, [rows, Hv, Dv]: after convolution and norm
    float *decay, *rate;       // [rows, Hv]
    float *out;                // [rows, Hv, Dv]
    float *state;
    // Rows committed but not yet in the state.
    int64_t pending;
    const float *pending_k, *pending_v, *pending_decay, *pending_rate;

    STRATA_SHARED_INLINE int64_t channels() const { return 2 * key_heads * key_dim + value_heads * value_dim; }
    STRATA_SHARED_INLINE int64_t column_blocks() const { return (value_dim + STATE_COLUMNS - 1) / STATE_COLUMNS; }
};

// One sparse attention layer over `rows` rows after `position` committed cells.
struct Qsa {
    int64_t rows, position, heads, kv_heads, head_dim, rope_dim;
    int64_t index_heads, index_dim, block, budget_blocks, capacity;
    float eps;
    bool is_half;              // cells are float16, else float32
    const float *q_gate;       // [rows, H, 2, Dh]
    const float *k_in, *v_in;  // [rows, Hkv, Dh]
    const float *index_q_in;   // [rows, Hi, Di]
    const float *index_k_in;   // [rows, Di]
    const float *q_gamma, *k_gamma, *index_q_gamma, *index_k_gamma;
    const float *cos, *sin;    // [.., rope_dim / 2], row 0 belongs to position table_start
    int64_t table_start;
    void *k_cells, *v_cells;   // [Hkv, capacity, Dh]
    float *raw_keys;           // [raw_capacity, Di] ring: cell c lies at row c % raw_capacity
    int64_t raw_capacity;
    float *pooled;             // [ceil(blocks / INDEX_GROUP), Di, INDEX_GROUP]
    float *q;                  // [rows, H, Dh] normed, rotated, scaled
    float *index_q;            // [rows, Hi, Di] normed, rotated
    // Scratch of one group of rows.
    float *block_scores;       // [group, score_stride]
    int64_t score_stride;
    int32_t *chosen;           // [group, budget_blocks], ascending
    float *weights;            // [group, H, weight_stride]
    int64_t weight_stride;
    float *out;                // [rows, H, Dh], gated

    STRATA_SHARED_INLINE int64_t complete_blocks(int64_t row) const { return (position + row + 1) / block; }
    STRATA_SHARED_INLINE bool takes_all(int64_t row) const { return complete_blocks(row) <= budget_blocks; }
    STRATA_SHARED_INLINE int64_t cells(int64_t row) const {
        const int64_t seen = position + row + 1;
        return takes_all(row) ? seen : budget_blocks * block + seen % block;
    }
};

// The n-gram memory of one layer. Rows of `normed` before row 0 are the history, oldest first.
struct Ple {
    int64_t rows, streams, width, kernel, dilation;
    float eps;
    const float *key;   // [rows, S, D] projections
    const float *value; // [rows, D]
    const float *key_gamma, *query_gamma, *conv_gamma; // [S, D]
    const float *conv_weight;                          // [kernel, S * D]
    float *residual;    // [rows, S, D]
    float *gated;       // [rows, S, D]
    float *normed;      // [(kernel - 1) * dilation + rows, S, D]
};

struct Ops {
    void (*exp_rows)(const float *x, float *out, int64_t n);
    void (*silu_rows)(const float *x, float *out, int64_t n);
    void (*sigmoid_rows)(const float *x, float *out, int64_t n);
    void (*softplus_rows)(const float *x, float *out, int64_t n);
    // silu(x / divisor)
    void (*silu_of_quotient)(const float *x, float divisor, float *out, int64_t n);
    // x * (1 / sqrt(mean(x^2) + eps)) * gamma
    void (*rms_norm)(const float *x, const float *gamma, float eps, float *out, int64_t n);

    // Columns [begin, end) of mean over streams of xn * sigmoid(gate); begin is a multiple of 16.
    void (*hc_mix)(const float *xn, const float *gate, int64_t streams, int64_t width,
                   int64_t begin, int64_t end, float *out);
    // stream += out * (2 * sigmoid(inject / streams))
    void (*hc_write)(float *stream, const float *out, float inject, float streams, int64_t n);

    // Convolution, SiLU and norm of one head: heads are q (Hk), k (Hk), then v (Hv).
    void (*gdn_head)(const Gdn &g, int64_t row, int64_t head);
    void (*gdn_rates)(const Gdn &g, int64_t row);
    // Steps one state block through the pending rows, then the rows. scratch: [Dk][STATE_COLUMNS].
    void (*gdn_columns)(const Gdn &g, int64_t head, int64_t column_block, float *scratch);
    void (*gdn_gate)(const Gdn &g, int64_t row, int64_t head);

    // Heads are q (H), k (Hkv), v (Hkv), index q (Hi), index k (one).
    // scratch: [Dh].
    void (*qsa_head)(const Qsa &a, int64_t row, int64_t head, float *scratch);
    // The key of one complete block; scratch: [2, Di].
    void (*qsa_pool)(const Qsa &a, int64_t index, float *scratch);
    // Scores of INDEX_GROUP blocks for the rows [first, first + count) of one group.
    void (*qsa_score_blocks)(const Qsa &a, int64_t first, int64_t count, int64_t index_group);
    void (*qsa_choose)(const Qsa &a, int64_t first, int64_t row);
    // Scores of the selected cells [begin, end) for query heads [head, head + num_heads).
    void (*qsa_score_cells)(const Qsa &a, int64_t first, int64_t row, int64_t head,
                            int64_t num_heads, int64_t begin, int64_t end);
    void (*qsa_softmax)(const Qsa &a, int64_t first, int64_t row, int64_t head);
    // Values [begin, end) of the outputs of query heads [head, head + num_heads).
    void (*qsa_read)(const Qsa &a, int64_t first, int64_t row, int64_t head, int64_t num_heads,
                     int64_t begin, int64_t end);

    // scratch: [2, D].
    void (*ple_gate)(const Ple &p, int64_t row, int64_t stream, float *scratch);
    void (*ple_conv)(const Ple &p, int64_t row, int64_t stream);

    // False when a logit is not a finite number. probs: [E] scratch.
    bool (*route)(const float *logits, int64_t num_experts, int64_t top_k, float scale,
                  float *probs, int32_t *ids, float *weights);
};

} // namespace strata
