// Python entry points of the two token mixers. A layer object holds the layer's geometry and small
// weights, so that a call passes only what changes.
#include "bind_arrays.h"

using namespace strata;

namespace {

constexpr int64_t ROW_GROUP = 8;    // rows that share attention scratch: one decode window
constexpr int64_t CELL_TILE = 256;  // selected cells scored by one thread at a time
constexpr int64_t VALUE_TILE = 64;  // output values of a head read by one thread at a time

struct GdnLayer {
    GdnLayer(int64_t key_heads, int64_t value_heads, float eps, bool is_silu_gate,
             ConstFloats conv_weight_, ConstFloats ssm_a_, ConstFloats dt_, ConstFloats gamma_)
        : conv_weight(conv_weight_), ssm_a(ssm_a_), dt(dt_), gamma(gamma_) {
        check(conv_weight.ndim() == 2, "conv_weight must be [kernel, channels]");
        g.kernel = conv_weight.shape(0);
        g.key_heads = key_heads, g.value_heads = value_heads;
        check(key_heads >= 1 && value_heads % key_heads == 0, "value heads must share key heads");
        g.value_dim = gamma.size();
        const int64_t key_channels = int64_t(conv_weight.shape(1)) - value_heads * g.value_dim;
        g.key_dim = key_channels / (2 * key_heads);
        check(g.key_dim >= 1 && g.channels() == int64_t(conv_weight.shape(1)), "odd channel count");
        g.eps = eps, g.is_silu_gate = is_silu_gate;
        g.conv_weight = conv_weight.data();
        g.ssm_a = data_of(ssm_a, value_heads, "ssm_a");
        g.dt = data_of(dt, value_heads, "dt");
        g.gamma = gamma.data();
    }
    int64_t state_size() const {
        return g.value_heads * g.column_blocks() * STATE_COLUMNS * g.key_dim;
    }

    Gdn g{};
    ConstFloats conv_weight, ssm_a, dt, gamma;
};

struct GdnRows {
    GdnRows(Floats q_, Floats k_, Floats v_, Floats decay_, Floats rate_)
        : q(q_), k(k_), v(v_), decay(decay_), rate(rate_) {}
    Floats q, k, v, decay, rate;
};

void run_gdn(GdnLayer &layer, Context &ctx, int64_t rows, const ConstFloats &conv_in,
             const ConstFloats &alpha, const ConstFloats &beta, const ConstFloats &z,
             const GdnRows &computed, const GdnRows &pending, int64_t num_pending,
             const Floats &state, bool is_window, const Floats &out) {
    Gdn g = layer.g;
    check(rows >= 0 && num_pending >= 0, "row counts cannot be negative");
    const int64_t keys = g.key_heads * g.key_dim, values = g.value_heads * g.value_dim;
    g.rows = rows, g.pending = num_pending, g.is_window = is_window;
    g.conv_in = data_of(conv_in, (g.kernel - 1 + rows) * g.channels(), "conv_in");
    g.alpha = data_of(alpha, rows * g.value_heads, "alpha");
    g.beta = data_of(beta, rows * g.value_heads, "beta");
    g.z = data_of(z, rows * values, "z");
    g.q = data_of(computed.q, rows * keys, "q");
    g.k = data_of(computed.k, rows * keys, "k");
    g.v = data_of(computed.v, rows * values, "v");
    g.decay = data_of(computed.decay, rows * g.value_heads, "decay");
    g.rate = data_of(computed.rate, rows * g.value_heads, "rate");
    g.pending_k = data_of(pending.k, num_pending * keys, "pending k");
    g.pending_v = data_of(pending.v, num_pending * values, "pending v");
    g.pending_decay = data_of(pending.decay, num_pending * g.value_heads, "pending decay");
    g.pending_rate = data_of(pending.rate, num_pending * g.value_heads, "pending rate");
    g.state = data_of(state, layer.state_size(), "state");
    g.out = data_of(out, rows * values, "out");
    const ThreadScratch scratch(ctx.pool.num_threads(), g.key_dim * STATE_COLUMNS);
    const int64_t heads = 2 * g.key_heads + g.value_heads, blocks = g.column_blocks();
    nb::gil_scoped_release released;
    ctx.pool.run([&](int thread, int n) {
        share(rows * heads, thread, n,
              [&](int64_t i, int) { ctx.ops.gdn_head(g, i / heads, i % heads); });
        share(rows, thread, n, [&](int64_t row, int) { ctx.ops.gdn_rates(g, row); });
        ctx.pool.barrier();
        share(g.value_heads * blocks, thread, n, [&](int64_t i, int) {
            ctx.ops.gdn_columns(g, i / blocks, i % blocks, scratch.of(thread));
        });
        ctx.pool.barrier();
        share(rows * g.value_heads, thread, n, [&](int64_t i, int) {
            ctx.ops.gdn_gate(g, i / g.value_heads, i % g.value_heads);
        });
    });
}

struct QsaLayer {
    QsaLayer(int64_t heads, int64_t kv_heads, int64_t index_heads, int64_t block,
             int64_t budget_blocks, int64_t rope_dim, float eps, ConstFloats q_gamma_,
             ConstFloats k_gamma_, ConstFloats index_q_gamma_, ConstFloats index_k_gamma_)
        : q_gamma(q_gamma_), k_gamma(k_gamma_), index_q_gamma(index_q_gamma_),
          index_k_gamma(index_k_gamma_) {
        a.heads = heads, a.kv_heads = kv_heads, a.index_heads = index_heads;
        a.block = block, a.budget_blocks = budget_blocks, a.rope_dim = rope_dim, a.eps = eps;
        a.head_dim = q_gamma.size(), a.index_dim = index_q_gamma.size();
        check(kv_heads >= 1 && heads % kv_heads == 0, "query heads must share kv heads");
        check(block >= 1 && budget_blocks >= 1, "the index budget must hold a block");
        check(rope_dim % 2 == 0 && rope_dim <= a.head_dim && rope_dim <= a.index_dim,
              "more values are to be rotated than a head has");
        a.q_gamma = q_gamma.data();
        a.k_gamma = data_of(k_gamma, a.head_dim, "k_gamma");
        a.index_q_gamma = index_q_gamma.data();
        a.index_k_gamma = data_of(index_k_gamma, a.index_dim, "index_k_gamma");
    }

    Qsa a{};
    ConstFloats q_gamma, k_gamma, index_q_gamma, index_k_gamma;
};

// Buffers of one session, shared by its layers.
struct QsaScratch {
    QsaScratch(Floats q_, Floats index_q_, Floats block_scores_, Array<int32_t> chosen_,
               Floats weights_)
        : q(q_), index_q(index_q_), block_scores(block_scores_), chosen(chosen_),
          weights(weights_) {}
    Floats q, index_q, block_scores;
    Array<int32_t> chosen;
    Floats weights;
};

// One conversation's cells of one layer.
struct QsaCells {
    QsaCells(nb::ndarray<nb::c_contig, nb::device::cpu> k_cells_,
             nb::ndarray<nb::c_contig, nb::device::cpu> v_cells_, Floats raw_keys_, Floats pooled_)
        : k_cells(k_cells_), v_cells(v_cells_), raw_keys(raw_keys_), pooled(pooled_) {
        const bool is_float = k_cells.dtype() == nb::dtype<float>();
        is_half = !is_float;
        check(is_float || k_cells.dtype().bits == 16, "cells must be float16 or float32");
        check(k_cells.dtype() == v_cells.dtype(), "keys and values must be of one type");
        check(k_cells.ndim() == 3 && v_cells.size() == k_cells.size(), "cells: [heads, cells, dim]");
        check(raw_keys.ndim() == 2, "raw_keys must be [cells, index_dim]");
    }
    nb::ndarray<nb::c_contig, nb::device::cpu> k_cells, v_cells;
    Floats raw_keys, pooled;
    bool is_half;
};

// The rotary tables [positions, rope_dim / 2] that hold every position a call asks for.
struct RopeRows {
    RopeRows(ConstFloats cos_, ConstFloats sin_, int64_t start_)
        : cos(cos_), sin(sin_), start(start_) {}
    ConstFloats cos, sin;
    int64_t start;
};

void attend(const Qsa &a, Context &ctx, int64_t first, int64_t count, int thread, int n) {
    const int64_t kv_group = a.heads / a.kv_heads;
    const int64_t head_tiles = (kv_group + QUERY_HEADS - 1) / QUERY_HEADS;
    const int64_t tiles = a.kv_heads * head_tiles;
    const auto for_head_tile = [&](int64_t tile, auto &&visit) {
        const int64_t begin = tile % head_tiles * QUERY_HEADS;
        const int64_t end = begin + QUERY_HEADS < kv_group ? begin + QUERY_HEADS : kv_group;
        visit(tile / head_tiles * kv_group + begin, end - begin);
    };
    const int64_t last = first + count - 1;
    if (!a.takes_all(last)) {
        const int64_t groups = (a.complete_blocks(last) + INDEX_GROUP - 1) / INDEX_GROUP;
        share(groups, thread, n,
              [&](int64_t i, int) { ctx.ops.qsa_score_blocks(a, first, count, i); });
        ctx.pool.barrier();
        share(count, thread, n, [&](int64_t i, int) {
            if (!a.takes_all(first + i)) ctx.ops.qsa_choose(a, first, first + i);
        });
        ctx.pool.barrier();
    }
    const int64_t most_cells = a.takes_all(last) ? a.cells(last) : (a.budget_blocks + 1) * a.block;
    const int64_t cell_tiles = (most_cells + CELL_TILE - 1) / CELL_TILE;
    share(count * tiles * cell_tiles, thread, n, [&](int64_t i, int) {
        const int64_t row = first + i / (tiles * cell_tiles), begin = i % cell_tiles * CELL_TILE;
        const int64_t cells = a.cells(row);
        if (begin >= cells) return;
        const int64_t end = begin + CELL_TILE < cells ? begin + CELL_TILE : cells;
        for_head_tile(i / cell_tiles % tiles, [&](int64_t head, int64_t heads) {
            ctx.ops.qsa_score_cells(a, first, row, head, heads, begin, end);
        });
    });
    ctx.pool.barrier();
    share(count * a.heads, thread, n, [&](int64_t i, int) {
        ctx.ops.qsa_softmax(a, first, first + i / a.heads, i % a.heads);
    });
    ctx.pool.barrier();
    const int64_t value_tiles = (a.head_dim + VALUE_TILE - 1) / VALUE_TILE;
    share(count * tiles * value_tiles, thread, n, [&](int64_t i, int) {
        const int64_t row = first + i / (tiles * value_tiles);
        const int64_t begin = i % value_tiles * VALUE_TILE;
        const int64_t end = begin + VALUE_TILE < a.head_dim ? begin + VALUE_TILE : a.head_dim;
        for_head_tile(i / value_tiles % tiles, [&](int64_t head, int64_t heads) {
            ctx.ops.qsa_read(a, first, row, head, heads, begin, end);
        });
    });
    // The next group of rows uses the same scratch.
    ctx.pool.barrier();
}

void place_scratch(Qsa &a, const QsaScratch &s) {
    const int64_t group = a.rows < ROW_GROUP ? a.rows : ROW_GROUP;
    check(s.block_scores.ndim() == 2 && s.weights.ndim() == 3, "scratch has other dimensions");
    a.q = data_of(s.q, a.rows * a.heads * a.head_dim, "q");
    a.index_q = data_of(s.index_q, a.rows * a.index_heads * a.index_dim, "index_q");
    a.score_stride = s.block_scores.shape(1), a.weight_stride = s.weights.shape(2);
    a.block_scores = data_of(s.block_scores, group * a.score_stride, "block_scores");
    a.chosen = data_of(s.chosen, group * a.budget_blocks, "chosen");
    a.weights = data_of(s.weights, group * a.heads * a.weight_stride, "weights");
    const int64_t last = a.rows - 1;
    if (!a.takes_all(last)) {
        const int64_t groups = (a.complete_blocks(last) + INDEX_GROUP - 1) / INDEX_GROUP;
        check(a.score_stride >= groups * INDEX_GROUP, "block_scores are too short");
        check(a.weight_stride >= (a.budget_blocks + 1) * a.block, "weights are too short");
    }
    check(a.weight_stride >= a.cells(last), "weights are too short");
}

void place_tables(Qsa &a, const RopeRows &rope, int64_t first_position) {
    const int64_t pairs = a.rope_dim / 2, end = a.position + a.rows - rope.start;
    check(rope.start >= 0 && rope.start <= first_position, "the tables begin too late");
    a.table_start = rope.start;
    a.cos = data_of(rope.cos, end * pairs, "cos");
    a.sin = data_of(rope.sin, end * pairs, "sin");
}

void place_kv(Qsa &a, const QsaCells &c) {
    check(int64_t(c.k_cells.shape(0)) == a.kv_heads && int64_t(c.k_cells.shape(2)) == a.head_dim,
          "cells have another shape");
    a.is_half = c.is_half, a.capacity = c.k_cells.shape(1);
    check(a.position >= 0 && a.position + a.rows <= a.capacity, "the cells are full");
    a.k_cells = c.k_cells.data(), a.v_cells = c.v_cells.data();
}

void place_cells(Qsa &a, const QsaCells &c) {
    place_kv(a, c);
    a.raw_capacity = c.raw_keys.shape(0);
    check(a.raw_capacity >= a.rows + a.block, "raw_keys are too few for these rows");
    a.raw_keys = data_of(c.raw_keys, a.raw_capacity * a.index_dim, "raw_keys");
    const int64_t blocks = a.complete_blocks(a.rows - 1);
    const int64_t groups = (blocks + INDEX_GROUP - 1) / INDEX_GROUP;
    a.pooled = data_of(c.pooled, groups * INDEX_GROUP * a.index_dim, "pooled");
}

void run_qsa(QsaLayer &layer, Context &ctx, int64_t rows, int64_t position,
             const ConstFloats &q_gate, const ConstFloats &k, const ConstFloats &v,
             const ConstFloats &index_q, const ConstFloats &index_k, const RopeRows &rope,
             QsaCells &cells, const QsaScratch &scratch, const Floats &out) {
    Qsa a = layer.a;
    check(rows >= 1, "a call needs a row");
    a.rows = rows, a.position = position;
    const int64_t kv = rows * a.kv_heads * a.head_dim;
    a.q_gate = data_of(q_gate, rows * a.heads * 2 * a.head_dim, "q_gate");
    a.k_in = data_of(k, kv, "k");
    a.v_in = data_of(v, kv, "v");
    a.index_q_in = data_of(index_q, rows * a.index_heads * a.index_dim, "index_q");
    a.index_k_in = data_of(index_k, rows * a.index_dim, "index_k");
    const int64_t first_block = position / a.block;
    place_tables(a, rope, first_block * a.block);
    place_cells(a, cells);
    place_scratch(a, scratch);
    a.out = data_of(out, rows * a.heads * a.head_dim, "out");
    const ThreadScratch spare(ctx.pool.num_threads(),
                              a.head_dim > 2 * a.index_dim ? a.head_dim : 2 * a.index_dim);
    const int64_t heads = a.heads + 2 * a.kv_heads + a.index_heads + 1;
    const int64_t new_blocks = a.complete_blocks(rows - 1) - first_block;
    nb::gil_scoped_release released;
    ctx.pool.run([&](int thread, int n) {
        share(rows * heads, thread, n, [&](int64_t i, int) {
            ctx.ops.qsa_head(a, i / heads, i % heads, spare.of(thread));
        });
        ctx.pool.barrier();
        share(new_blocks, thread, n, [&](int64_t i, int) {
            ctx.ops.qsa_pool(a, first_block + i, spare.of(thread));
        });
        ctx.pool.barrier();
        for (int64_t first = 0; first < rows; first += ROW_GROUP) {
            const int64_t count = first + ROW_GROUP < rows ? ROW_GROUP : rows - first;
            attend(a, ctx, first, count, thread, n);
        }
    });
}

// Attention over every cell, without an indexer.
struct DenseLayer {
    DenseLayer(int64_t heads, int64_t kv_heads, int64_t rope_dim, float eps, ConstFloats q_gamma_,
               ConstFloats k_gamma_)
        : q_gamma(q_gamma_), k_gamma(k_gamma_) {
        a.heads = heads, a.kv_heads = kv_heads, a.rope_dim = rope_dim, a.eps = eps;
        a.head_dim = q_gamma.size();
        // Blocks of one cell, and a budget that holds them all.
        a.block = 1, a.budget_blocks = INT64_MAX;
        check(kv_heads >= 1 && heads % kv_heads == 0, "query heads must share kv heads");
        check(rope_dim % 2 == 0 && rope_dim <= a.head_dim,
              "more values are to be rotated than a head has");
        a.q_gamma = q_gamma.data();
        a.k_gamma = data_of(k_gamma, a.head_dim, "k_gamma");
    }

    Qsa a{};
    ConstFloats q_gamma, k_gamma;
};

// Writes the cells of all rows from `position` on; the last `queries` of them attend.
void run_dense(DenseLayer &layer, Context &ctx, int64_t rows, int64_t queries, int64_t position,
               const ConstFloats &q_gate, const ConstFloats &k, const ConstFloats &v,
               const RopeRows &rope, QsaCells &cells, const QsaScratch &scratch,
               const Floats &out) {
    Qsa a = layer.a;
    check(rows >= 1 && queries >= 0 && queries <= rows, "a call needs a row for each query");
    a.rows = rows, a.position = position;
    a.k_in = data_of(k, rows * a.kv_heads * a.head_dim, "k");
    a.v_in = data_of(v, rows * a.kv_heads * a.head_dim, "v");
    place_tables(a, rope, position);
    place_kv(a, cells);
    Qsa last = a;
    last.rows = queries, last.position = position + rows - queries;
    last.q_gate = data_of(q_gate, queries * a.heads * 2 * a.head_dim, "q_gate");
    last.q = data_of(scratch.q, queries * a.heads * a.head_dim, "q");
    check(scratch.weights.ndim() == 3, "scratch has other dimensions");
    last.weight_stride = scratch.weights.shape(2);
    check(last.weight_stride >= position + rows, "weights are too short");
    const int64_t group = queries < ROW_GROUP ? queries : ROW_GROUP;
    last.weights = data_of(scratch.weights, group * a.heads * last.weight_stride, "weights");
    last.out = data_of(out, queries * a.heads * a.head_dim, "out");
    const ThreadScratch spare(ctx.pool.num_threads(), a.head_dim);
    const int64_t kv = 2 * a.kv_heads;
    nb::gil_scoped_release released;
    ctx.pool.run([&](int thread, int n) {
        share(rows * kv, thread, n, [&](int64_t i, int) {
            ctx.ops.qsa_head(a, i / kv, a.heads + i % kv, spare.of(thread));
        });
        share(queries * a.heads, thread, n, [&](int64_t i, int) {
            ctx.ops.qsa_head(last, i / a.heads, i % a.heads, spare.of(thread));
        });
        ctx.pool.barrier();
        for (int64_t first = 0; first < queries; first += ROW_GROUP) {
            const int64_t count = first + ROW_GROUP < queries ? ROW_GROUP : queries - first;
            attend(last, ctx, first, count, thread, n);
        }
    });
}

} // namespace

void bind_mixers(nb::module_ &m) {
    // What is written takes no conversion: the values would go into a copy.
    m.attr("ROW_GROUP") = ROW_GROUP;
    m.attr("INDEX_GROUP") = INDEX_GROUP;
    nb::class_<GdnRows>(m, "GdnRows")
        .def(nb::init<Floats, Floats, Floats, Floats, Floats>(), nb::arg("q").noconvert(),
             nb::arg("k").noconvert(), nb::arg("v").noconvert(), nb::arg("decay").noconvert(),
             nb::arg("rate").noconvert());
    nb::class_<GdnLayer>(m, "GdnLayer")
        .def(nb::init<int64_t, int64_t, float, bool, ConstFloats, ConstFloats, ConstFloats,
                      ConstFloats>(),
             nb::arg("key_heads"), nb::arg("value_heads"), nb::arg("eps"), nb::arg("is_silu_gate"),
             nb::arg("conv_weight"), nb::arg("ssm_a"), nb::arg("dt"), nb::arg("gamma"))
        .def_prop_ro("state_size", &GdnLayer::state_size)
        .def("run", &run_gdn, nb::arg("ctx"), nb::arg("rows"), nb::arg("conv_in"),
             nb::arg("alpha"), nb::arg("beta"), nb::arg("z"), nb::arg("computed"),
             nb::arg("pending"), nb::arg("num_pending"), nb::arg("state").noconvert(),
             nb::arg("is_window"), nb::arg("out").noconvert());
    nb::class_<QsaScratch>(m, "QsaScratch")
        .def(nb::init<Floats, Floats, Floats, Array<int32_t>, Floats>(), nb::arg("q").noconvert(),
             nb::arg("index_q").noconvert(), nb::arg("block_scores").noconvert(),
             nb::arg("chosen").noconvert(), nb::arg("weights").noconvert());
    nb::class_<QsaCells>(m, "QsaCells")
        .def(nb::init<nb::ndarray<nb::c_contig, nb::device::cpu>,
                      nb::ndarray<nb::c_contig, nb::device::cpu>, Floats, Floats>(),
             nb::arg("k_cells").noconvert(), nb::arg("v_cells").noconvert(),
             nb::arg("raw_keys").noconvert(), nb::arg("pooled").noconvert());
    nb::class_<RopeRows>(m, "RopeRows")
        .def(nb::init<ConstFloats, ConstFloats, int64_t>(), nb::arg("cos"), nb::arg("sin"),
             nb::arg("start"));
    nb::class_<QsaLayer>(m, "QsaLayer")
        .def(nb::init<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, float, ConstFloats,
                      ConstFloats, ConstFloats, ConstFloats>(),
             nb::arg("heads"), nb::arg("kv_heads"), nb::arg("index_heads"), nb::arg("block"),
             nb::arg("budget_blocks"), nb::arg("rope_dim"), nb::arg("eps"), nb::arg("q_gamma"),
             nb::arg("k_gamma"), nb::arg("index_q_gamma"), nb::arg("index_k_gamma"))
        .def("run", &run_qsa, nb::arg("ctx"), nb::arg("rows"), nb::arg("position"),
             nb::arg("q_gate"), nb::arg("k"), nb::arg("v"), nb::arg("index_q"), nb::arg("index_k"),
             nb::arg("rope"), nb::arg("cells"), nb::arg("scratch"), nb::arg("out").noconvert());
    nb::class_<DenseLayer>(m, "DenseLayer")
        .def(nb::init<int64_t, int64_t, int64_t, float, ConstFloats, ConstFloats>(),
             nb::arg("heads"), nb::arg("kv_heads"), nb::arg("rope_dim"), nb::arg("eps"),
             nb::arg("q_gamma"), nb::arg("k_gamma"))
        .def("run", &run_dense, nb::arg("ctx"), nb::arg("rows"), nb::arg("queries"),
             nb::arg("position"), nb::arg("q_gate"), nb::arg("k"), nb::arg("v"), nb::arg("rope"),
             nb::arg("cells"), nb::arg("scratch"), nb::arg("out").noconvert());
}
