// The n-gram memory's use, and the router.

// scratch: [2, D].
static void ple_gate(const Ple &p, int64_t row, int64_t stream, float *scratch) {
    const int64_t n = p.width, at = (row * p.streams + stream) * n;
    float *key = scratch, *query = scratch + n;
    rms_norm(p.key + at, p.key_gamma + stream * n, p.eps, key, n);
    rms_norm(p.residual + at, p.query_gamma + stream * n, p.eps, query, n);
    const float s = dot(key, query, n) / __builtin_sqrtf(float(n));
    const float magnitude = s < 0 ? -s : s;
    const float root = __builtin_sqrtf(magnitude < 1e-6f ? 1e-6f : magnitude);
    const float signed_root = s < 0 ? -root : s == 0 ? 0.0f : root;
    const vf gate = set1(sigmoid_scalar(signed_root));
    const float *value = p.value + row * n;
    float *gated = p.gated + at;
    STRATA_EACH(i, n) store_n(gated + i, load_n(value + i, n - i) * gate, n - i);
    const int64_t history = (p.kernel - 1) * p.dilation;
    float *normed = p.normed + ((history + row) * p.streams + stream) * n;
    rms_norm(gated, p.conv_gamma + stream * n, p.eps, normed, n);
}

static void ple_conv(const Ple &p, int64_t row, int64_t stream) {
    const int64_t n = p.width, channels = p.streams * n, channel = stream * n;
    const float *in = p.normed + row * channels + channel, *weight = p.conv_weight + channel;
    const float *gated = p.gated + row * channels + channel;
    float *residual = p.residual + row * channels + channel;
    STRATA_EACH(i, n) {
        vf y = load_n(weight + i, n - i) * load_n(in + i, n - i);
        for (int64_t tap = 1; tap < p.kernel; tap++) {
            const vf past = load_n(in + tap * p.dilation * channels + i, n - i);
            y = y + load_n(weight + tap * channels + i, n - i) * past;
        }
        const vf update = load_n(gated + i, n - i) + silu(y);
        store_n(residual + i, load_n(residual + i, n - i) + update, n - i);
    }
}

// Largest of n floats.
STRATA_INLINE float largest(const float *x, int64_t n) {
    vf m = set1(x[0]);
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) m = max(m, load(x + i));
    float best = max_lane(m);
    for (; i < n; i++) best = best < x[i] ? x[i] : best;
    return best;
}

// out = exp(x - max) and its sum, in lanes.
STRATA_INLINE float exp_and_sum(const float *x, float *out, int64_t n) {
    const vf shift = set1(largest(x, n));
    vf total = set1(0.0f);
    STRATA_EACH(i, n) {
        const vf e = exp(load_n(x + i, n - i) - shift);
        store_n(out + i, e, n - i);
        // The lanes past n hold exp(0 - max): they are read back as zeros.
        total = total + (n - i >= LANES ? e : load_n(out + i, n - i));
    }
    return sum(total);
}

STRATA_INLINE bool is_all_finite(const float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        __builtin_memcpy(&bits, x + i, 4);
        if ((bits & 0x7f800000) == 0x7f800000) return false;
    }
    return true;
}

static bool route(const float *logits, int64_t num_experts, int64_t top_k, float scale,
                  float *probs, int32_t *ids, float *weights) {
    if (!is_all_finite(logits, num_experts)) return false;
    const vf total = set1(exp_and_sum(logits, probs, num_experts));
    STRATA_EACH(i, num_experts) {
        const int64_t n = num_experts - i;
        store_n(probs + i, load_n(probs + i, n) / total, n);
    }
    // Kept sorted; an equal probability that comes later has the higher index and stays behind.
    int64_t kept = 0;
    for (int64_t e = 0; e < num_experts; e++) {
        const float prob = probs[e];
        if (kept == top_k && !(prob > weights[top_k - 1])) continue;
        int64_t at = kept < top_k ? kept++ : top_k - 1;
        for (; at > 0 && weights[at - 1] < prob; at--) {
            weights[at] = weights[at - 1];
            ids[at] = ids[at - 1];
        }
        weights[at] = prob;
        ids[at] = int32_t(e);
    }
    float chosen = 0.0f;
    for (int64_t i = 0; i < top_k; i++) chosen = chosen + weights[i];
    const float divisor = chosen < 0x1p-14f ? 0x1p-14f : chosen;
    for (int64_t i = 0; i < top_k; i++) weights[i] = (weights[i] / divisor) * scale;
    return true;
}
