// Block-sparse attention: norms and rotation, pooled keys, block scores, exact selection, softmax
// over the selected cells only. Cells are read where they lie, block by block; nothing is masked.
// A "group" is up to 8 rows that share scratch; `first` is its first row.

template <class Cell> STRATA_INLINE Cell *cells_at(void *base, const Qsa &a, int64_t kv_head) {
    return (Cell *)base + kv_head * a.capacity * a.head_dim;
}

// Half-split pairs: values i and i + pairs of the head turn by the angle of pair i.
STRATA_INLINE void rotate(const Qsa &a, int64_t position, float *x) {
    const int64_t pairs = a.rope_dim / 2, at = (position - a.table_start) * pairs;
    const float *cos = a.cos + at, *sin = a.sin + at;
    STRATA_EACH(i, pairs) {
        const int64_t n = pairs - i;
        const vf c = load_n(cos + i, n), s = load_n(sin + i, n);
        const vf x0 = load_n(x + i, n), x1 = load_n(x + pairs + i, n);
        store_n(x + i, x0 * c - x1 * s, n);
        store_n(x + pairs + i, x1 * c + x0 * s, n);
    }
}

// Writes one head's row of a cell. The float row is made in pieces on the stack for halves.
STRATA_INLINE void write_cell(const Qsa &a, void *cells, int64_t kv_head, int64_t position,
                              const float *x) {
    const int64_t n = a.head_dim, at = position * n;
    if (a.is_half) {
        half_bits *out = cells_at<half_bits>(cells, a, kv_head) + at;
        for (int64_t i = 0; i < n; i++) store_cell(out + i, x[i]);
    } else {
        float *out = cells_at<float>(cells, a, kv_head) + at;
        for (int64_t i = 0; i < n; i++) store_cell(out + i, x[i]);
    }
}

static void qsa_head(const Qsa &a, int64_t row, int64_t head, float *scratch) {
    const int64_t position = a.position + row, n = a.head_dim;
    if (head < a.heads) {
        float *q = a.q + (row * a.heads + head) * n;
        rms_norm(a.q_gate + (row * a.heads + head) * 2 * n, a.q_gamma, a.eps, q, n);
        rotate(a, position, q);
        const vf scale = set1(1.0f / __builtin_sqrtf(float(n)));
        STRATA_EACH(i, n) store_n(q + i, load_n(q + i, n - i) * scale, n - i);
        return;
    }
    head -= a.heads;
    if (head < a.kv_heads) {
        rms_norm(a.k_in + (row * a.kv_heads + head) * n, a.k_gamma, a.eps, scratch, n);
        rotate(a, position, scratch);
        return write_cell(a, a.k_cells, head, position, scratch);
    }
    head -= a.kv_heads;
    if (head < a.kv_heads)
        return write_cell(a, a.v_cells, head, position, a.v_in + (row * a.kv_heads + head) * n);
    head -= a.kv_heads;
    const int64_t di = a.index_dim;
    if (head < a.index_heads) {
        float *q = a.index_q + (row * a.index_heads + head) * di;
        rms_norm(a.index_q_in + (row * a.index_heads + head) * di, a.index_q_gamma, a.eps, q, di);
        return rotate(a, position, q);
    }
    float *key = a.raw_keys + (position % a.raw_capacity) * di;
    for (int64_t i = 0; i < di; i++) key[i] = a.index_k_in[row * di + i];
}

static void qsa_pool(const Qsa &a, int64_t index, float *scratch) {
    const int64_t di = a.index_dim, first_cell = index * a.block;
    float *mean = scratch, *key = scratch + di;
    const vf divisor = set1(float(a.block));
    STRATA_EACH(i, di) {
        vf total = load_n(a.raw_keys + (first_cell % a.raw_capacity) * di + i, di - i);
        for (int64_t c = first_cell + 1; c < first_cell + a.block; c++)
            total = total + load_n(a.raw_keys + (c % a.raw_capacity) * di + i, di - i);
        store_n(mean + i, total / divisor, di - i);
    }
    rms_norm(mean, a.index_k_gamma, a.eps, key, di);
    rotate(a, first_cell, key);
    float *out = a.pooled + index / INDEX_GROUP * di * INDEX_GROUP + index % INDEX_GROUP;
    for (int64_t i = 0; i < di; i++) out[i * INDEX_GROUP] = key[i];
}

// Lanes are blocks; every head's product adds up over ascending dimensions.
STRATA_INLINE vf relu(vf x) { return select_less(set1(0.0f), x, x, set1(0.0f)); }

static void qsa_score_blocks(const Qsa &a, int64_t first, int64_t count, int64_t index_group) {
    const float *keys = a.pooled + index_group * a.index_dim * INDEX_GROUP;
    for (int64_t row = first; row < first + count; row++) {
        if (a.takes_all(row) || index_group * INDEX_GROUP >= a.complete_blocks(row)) continue;
        const float *q = a.index_q + row * a.index_heads * a.index_dim;
        vf total = set1(0.0f);
        int64_t head = 0;
        for (; head + 4 <= a.index_heads; head += 4, q += 4 * a.index_dim) {
            const float *q1 = q + a.index_dim, *q2 = q1 + a.index_dim, *q3 = q2 + a.index_dim;
            vf s0 = set1(0.0f), s1 = s0, s2 = s0, s3 = s0;
            for (int64_t i = 0; i < a.index_dim; i++) {
                const vf key = load(keys + i * INDEX_GROUP);
                s0 = s0 + key * set1(q[i]);
                s1 = s1 + key * set1(q1[i]);
                s2 = s2 + key * set1(q2[i]);
                s3 = s3 + key * set1(q3[i]);
            }
            total = (((total + relu(s0)) + relu(s1)) + relu(s2)) + relu(s3);
        }
        for (; head < a.index_heads; head++, q += a.index_dim) {
            vf s = set1(0.0f);
            for (int64_t i = 0; i < a.index_dim; i++)
                s = s + load(keys + i * INDEX_GROUP) * set1(q[i]);
            total = total + relu(s);
        }
        store(a.block_scores + (row - first) * a.score_stride + index_group * INDEX_GROUP, total);
    }
}

// Bits of the wanted-th largest of n non-negative floats; `above` of them are larger. A sum of
// relu is never -0, so its bits, read as an integer, order like the number.
STRATA_INLINE uint32_t nth_largest(const uint32_t *bits, int64_t n, int64_t wanted,
                                   int64_t &above) {
    constexpr int NUM_BINS = 2048;
    uint32_t histogram[NUM_BINS];
    uint32_t prefix = 0, known = 0; // the bits found so far, and which they are
    above = 0;
    for (int shift = 21; shift >= 0; shift = shift == 21 ? 10 : shift == 10 ? 0 : -1) {
        const uint32_t bins = shift == 0 ? 1024 : 2048;
        for (uint32_t i = 0; i < bins; i++) histogram[i] = 0;
        for (int64_t i = 0; i < n; i++)
            if ((bits[i] & known) == prefix) histogram[(bits[i] >> shift) & (bins - 1)]++;
        uint32_t bin = bins - 1;
        for (; above + histogram[bin] < wanted; bin--) above += histogram[bin];
        prefix |= bin << shift;
        known |= (bins - 1) << shift;
    }
    return prefix;
}

static void qsa_choose(const Qsa &a, int64_t first, int64_t row) {
    const int64_t n = a.complete_blocks(row), wanted = a.budget_blocks;
    const uint32_t *bits = (const uint32_t *)(a.block_scores + (row - first) * a.score_stride);
    int64_t above;
    const uint32_t threshold = nth_largest(bits, n, wanted, above);
    int64_t equals_left = wanted - above; // the lowest indices win
    int32_t *out = a.chosen + (row - first) * wanted;
    for (int64_t i = 0; i < n; i++) {
        if (bits[i] < threshold) continue;
        if (bits[i] == threshold && equals_left-- <= 0) continue;
        *out++ = int32_t(i);
    }
}

// The selected cells of a row in ascending order: chosen blocks, then the incomplete tail.
struct SelectedCells {
    const int32_t *chosen; // null when every cell is taken
    int64_t block, budget_blocks, tail_start;

    STRATA_INLINE SelectedCells of(const Qsa &a, int64_t first, int64_t row) {
        const bool is_all = a.takes_all(row);
        return {is_all ? nullptr : a.chosen + (row - first) * a.budget_blocks, a.block,
                a.budget_blocks, a.complete_blocks(row) * a.block};
    }
};

// Calls visit(index, cell) for the selected cells [begin, end).
template <class Visit>
STRATA_INLINE void for_cells(const SelectedCells &s, int64_t begin, int64_t end, Visit visit) {
    if (s.chosen == nullptr) {
        for (int64_t i = begin; i < end; i++) visit(i, i);
        return;
    }
    const int64_t tail_index = s.budget_blocks * s.block;
    int64_t i = begin, index = begin / s.block, offset = begin % s.block;
    for (; i < end && i < tail_index; i++) {
        visit(i, s.chosen[index] * s.block + offset);
        if (++offset == s.block) {
            offset = 0;
            index++;
        }
    }
    for (; i < end; i++) visit(i, s.tail_start + (i - tail_index));
}

template <int HEADS, class Cell>
STRATA_INLINE void score_cells(const Qsa &a, int64_t first, int64_t row, int64_t head,
                               int64_t begin, int64_t end) {
    const int64_t n = a.head_dim;
    const float *q = a.q + (row * a.heads + head) * n;
    const Cell *keys = cells_at<Cell>(a.k_cells, a, head / (a.heads / a.kv_heads));
    float *out = a.weights + ((row - first) * a.heads + head) * a.weight_stride;
    for_cells(SelectedCells::of(a, first, row), begin, end, [&](int64_t i, int64_t cell)
                  __attribute__((always_inline)) {
        const Cell *key = keys + cell * n;
        vf s0 = set1(0.0f), s1 = s0, s2 = s0, s3 = s0;
        STRATA_EACH(j, n) {
            const vf k = load_n(key + j, n - j);
            s0 = s0 + k * load_n(q + j, n - j);
            if (HEADS > 1) s1 = s1 + k * load_n(q + n + j, n - j);
            if (HEADS > 2) s2 = s2 + k * load_n(q + 2 * n + j, n - j);
            if (HEADS > 3) s3 = s3 + k * load_n(q + 3 * n + j, n - j);
        }
        out[i] = sum(s0);
        if (HEADS > 1) out[a.weight_stride + i] = sum(s1);
        if (HEADS > 2) out[2 * a.weight_stride + i] = sum(s2);
        if (HEADS > 3) out[3 * a.weight_stride + i] = sum(s3);
    });
}

static void qsa_softmax(const Qsa &a, int64_t first, int64_t row, int64_t head) {
    float *w = a.weights + ((row - first) * a.heads + head) * a.weight_stride;
    const int64_t n = a.cells(row);
    const vf total = set1(exp_and_sum(w, w, n));
    STRATA_EACH(i, n) store_n(w + i, load_n(w + i, n - i) / total, n - i);
}

// Values add up over ascending cells; VECTORS of 16 values of each of HEADS heads at a time.
template <int HEADS, int VECTORS, class Cell>
STRATA_INLINE void read_values(const Qsa &a, int64_t first, int64_t row, int64_t head,
                               int64_t begin, int64_t left) {
    const int64_t n = a.head_dim;
    const Cell *values = cells_at<Cell>(a.v_cells, a, head / (a.heads / a.kv_heads)) + begin;
    const float *w = a.weights + ((row - first) * a.heads + head) * a.weight_stride;
    vf total[HEADS][VECTORS];
#pragma GCC unroll 16
    for (int h = 0; h < HEADS; h++)
#pragma GCC unroll 16
        for (int j = 0; j < VECTORS; j++) total[h][j] = set1(0.0f);
    for_cells(SelectedCells::of(a, first, row), 0, a.cells(row), [&](int64_t i, int64_t cell)
                  __attribute__((always_inline)) {
        const Cell *value = values + cell * n;
#pragma GCC unroll 16
        for (int j = 0; j < VECTORS; j++) {
            const vf v = load_n(value + j * LANES, left - j * LANES);
#pragma GCC unroll 16
            for (int h = 0; h < HEADS; h++)
                total[h][j] = total[h][j] + v * set1(w[h * a.weight_stride + i]);
        }
    });
#pragma GCC unroll 16
    for (int h = 0; h < HEADS; h++)
#pragma GCC unroll 16
        for (int j = 0; j < VECTORS; j++) {
            const int64_t i = begin + j * LANES, rest = left - j * LANES;
            const int64_t at = (row * a.heads + head + h) * n + i;
            const float *gate = a.q_gate + ((row * a.heads + head + h) * 2 + 1) * n + i;
            store_n(a.out + at, total[h][j] * sigmoid(load_n(gate, rest)), rest);
        }
}

template <int HEADS, class Cell>
STRATA_INLINE void read_columns(const Qsa &a, int64_t first, int64_t row, int64_t head,
                                int64_t begin, int64_t end) {
    for (; begin + 4 * LANES <= end; begin += 4 * LANES)
        read_values<HEADS, 4, Cell>(a, first, row, head, begin, 4 * LANES);
    for (; begin < end; begin += LANES)
        read_values<HEADS, 1, Cell>(a, first, row, head, begin, end - begin);
}

#define STRATA_BY_HEADS(F, ...)                                                                    \
    switch (num_heads) {                                                                           \
    case 1: return a.is_half ? F<1, half_bits>(__VA_ARGS__) : F<1, float>(__VA_ARGS__);            \
    case 2: return a.is_half ? F<2, half_bits>(__VA_ARGS__) : F<2, float>(__VA_ARGS__);            \
    case 3: return a.is_half ? F<3, half_bits>(__VA_ARGS__) : F<3, float>(__VA_ARGS__);            \
    default: return a.is_half ? F<4, half_bits>(__VA_ARGS__) : F<4, float>(__VA_ARGS__);           \
    }

static void qsa_score_cells(const Qsa &a, int64_t first, int64_t row, int64_t head,
                            int64_t num_heads, int64_t begin, int64_t end) {
    STRATA_BY_HEADS(score_cells, a, first, row, head, begin, end)
}

static void qsa_read(const Qsa &a, int64_t first, int64_t row, int64_t head, int64_t num_heads,
                     int64_t begin, int64_t end) {
    STRATA_BY_HEADS(read_columns, a, first, row, head, begin, end)
}
