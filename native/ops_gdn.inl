// Gated delta net: causal convolution, norms, the delta rule, and the gated norm of its output.
//   S <- decay S;  S <- S + k (rate (v - S^T k))^T;  o = S^T q        per value head, [Dk, Dv]
// A state block is all key rows of 16 value columns: 8 KiB at Dk = 128, so it stays in the first
// level cache while every row of the chunk steps through it. Columns do not see each other.

static void gdn_head(const Gdn &g, int64_t row, int64_t head) {
    const int64_t key_width = g.key_heads * g.key_dim, channels = g.channels();
    int64_t channel, n;
    float *out;
    if (head < 2 * g.key_heads) {
        const bool is_key = head >= g.key_heads;
        const int64_t h = head - (is_key ? g.key_heads : 0);
        n = g.key_dim;
        channel = (is_key ? key_width : 0) + h * n;
        out = (is_key ? g.k : g.q) + row * key_width + h * n;
    } else {
        const int64_t h = head - 2 * g.key_heads;
        n = g.value_dim;
        channel = 2 * key_width + h * n;
        out = g.v + (row * g.value_heads + h) * n;
    }
    const float *in = g.conv_in + row * channels + channel, *weight = g.conv_weight + channel;
    STRATA_EACH(i, n) {
        vf y = load_n(weight + i, n - i) * load_n(in + i, n - i);
        for (int64_t tap = 1; tap < g.kernel; tap++) {
            const int64_t at = tap * channels + i;
            y = y + load_n(weight + at, n - i) * load_n(in + at, n - i);
        }
        store_n(out + i, silu(y), n - i);
    }
    if (head >= 2 * g.key_heads) return;
    vf inverse = set1(1.0f / __builtin_sqrtf(dot(out, out, n) + L2_EPS));
    const vf scale = set1(head < g.key_heads ? 1.0f / __builtin_sqrtf(float(n)) : 1.0f);
    STRATA_EACH(i, n) store_n(out + i, (load_n(out + i, n - i) * inverse) * scale, n - i);
}

static void gdn_rates(const Gdn &g, int64_t row) {
    const int64_t at = row * g.value_heads;
    STRATA_EACH(i, g.value_heads) {
        const int64_t n = g.value_heads - i;
        const vf step = softplus(load_n(g.alpha + at + i, n) + load_n(g.dt + i, n));
        store_n(g.decay + at + i, exp(load_n(g.ssm_a + i, n) * step), n);
        store_n(g.rate + at + i, sigmoid(load_n(g.beta + at + i, n)), n);
    }
}

// One row through one block. dst may be src. IS_STORED: dst receives the new state; HAS_OUTPUT:
// returns S^T q of the new state.
template <bool IS_STORED, bool HAS_OUTPUT>
STRATA_INLINE vf gdn_step(const float *src, float *dst, int64_t key_dim, const float *k, vf v,
                          float decay, float rate, const float *q) {
    const vf d = set1(decay), zero = set1(0.0f);
    vf p0 = zero, p1 = zero, p2 = zero, p3 = zero;
    int64_t i = 0;
    for (; i + 4 <= key_dim; i += 4) {
        p0 = p0 + load(src + i * LANES) * set1(k[i]);
        p1 = p1 + load(src + (i + 1) * LANES) * set1(k[i + 1]);
        p2 = p2 + load(src + (i + 2) * LANES) * set1(k[i + 2]);
        p3 = p3 + load(src + (i + 3) * LANES) * set1(k[i + 3]);
    }
    for (; i < key_dim; i++) p0 = p0 + load(src + i * LANES) * set1(k[i]);
    const vf delta = set1(rate) * (v - d * ((p0 + p1) + (p2 + p3)));
    p0 = p1 = p2 = p3 = zero;
    for (i = 0; i + 4 <= key_dim; i += 4) {
        const vf s0 = load(src + i * LANES) * d + set1(k[i]) * delta;
        const vf s1 = load(src + (i + 1) * LANES) * d + set1(k[i + 1]) * delta;
        const vf s2 = load(src + (i + 2) * LANES) * d + set1(k[i + 2]) * delta;
        const vf s3 = load(src + (i + 3) * LANES) * d + set1(k[i + 3]) * delta;
        if (IS_STORED) {
            store(dst + i * LANES, s0);
            store(dst + (i + 1) * LANES, s1);
            store(dst + (i + 2) * LANES, s2);
            store(dst + (i + 3) * LANES, s3);
        }
        if (HAS_OUTPUT) {
            p0 = p0 + s0 * set1(q[i]);
            p1 = p1 + s1 * set1(q[i + 1]);
            p2 = p2 + s2 * set1(q[i + 2]);
            p3 = p3 + s3 * set1(q[i + 3]);
        }
    }
    for (; i < key_dim; i++) {
        const vf s = load(src + i * LANES) * d + set1(k[i]) * delta;
        if (IS_STORED) store(dst + i * LANES, s);
        if (HAS_OUTPUT) p0 = p0 + s * set1(q[i]);
    }
    return (p0 + p1) + (p2 + p3);
}

static void gdn_columns(const Gdn &g, int64_t head, int64_t column_block, float *scratch) {
    const int64_t dk = g.key_dim, key_width = g.key_heads * dk;
    const int64_t key_at = (head % g.key_heads) * dk;
    const int64_t first = column_block * STATE_COLUMNS;
    const int64_t n = g.value_dim - first < STATE_COLUMNS ? g.value_dim - first : STATE_COLUMNS;
    float *state = g.state + (head * g.column_blocks() + column_block) * dk * STATE_COLUMNS;
    for (int64_t row = 0; row < g.pending; row++) {
        const int64_t at = row * g.value_heads + head;
        const vf v = load_n(g.pending_v + at * g.value_dim + first, n);
        const float *k = g.pending_k + row * key_width + key_at;
        gdn_step<true, false>(state, state, dk, k, v, g.pending_decay[at], g.pending_rate[at], k);
    }
    const float *src = state;
    float *dst = g.is_window ? scratch : state;
    for (int64_t row = 0; row < g.rows; row++) {
        const int64_t at = row * g.value_heads + head;
        const vf v = load_n(g.v + at * g.value_dim + first, n);
        const float *k = g.k + row * key_width + key_at, *q = g.q + row * key_width + key_at;
        const bool is_dropped = g.is_window && row + 1 == g.rows;
        const vf o =
            is_dropped
                ? gdn_step<false, true>(src, dst, dk, k, v, g.decay[at], g.rate[at], q)
                : gdn_step<true, true>(src, dst, dk, k, v, g.decay[at], g.rate[at], q);
        store_n(g.out + at * g.value_dim + first, o, n);
        src = dst;
    }
}

static void gdn_gate(const Gdn &g, int64_t row, int64_t head) {
    const int64_t n = g.value_dim, at = (row * g.value_heads + head) * n;
    float *out = g.out + at;
    const float *z = g.z + at;
    rms_norm(out, g.gamma, g.eps, out, n);
    STRATA_EACH(i, n) {
        const vf gate = load_n(z + i, n - i);
        const vf activated = g.is_silu_gate ? silu(gate) : sigmoid(gate);
        store_n(out + i, load_n(out + i, n - i) * activated, n - i);
    }
}
