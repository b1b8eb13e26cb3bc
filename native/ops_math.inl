// exp and what is made of it, sums of products, norms. The operations of exp are those of
// src/strata/reference/expert_numerics.py, in the same order and with the same constants.

// exp(x) = 2^n * exp(r) with n = rint(x * log2 e). LN2_HI has ten bits, so n * LN2_HI is exact.
constexpr float EXP_LO = -104.0f, EXP_HI = 88.7f;
constexpr float LOG2_E = 0x1.715476p+0f, LN2_HI = 0.693359375f, LN2_LO = -0x1.bd0106p-13f;
constexpr float EXP_C2 = 0x1.fffffcp-2f, EXP_C3 = 0x1.555490p-3f, EXP_C4 = 0x1.5558f8p-5f,
                EXP_C5 = 0x1.123b02p-7f, EXP_C6 = 0x1.6a2256p-10f;
constexpr float SOFTPLUS_IDENTITY = 20.0f; // above it softplus(x) is x
constexpr float L2_EPS = 1e-6f;            // of the norm of GDN queries and keys

STRATA_INLINE vf power_of_two(vi n) { return from_bits((n + 127) << 23); }

STRATA_INLINE vf exp(vf x) {
    x = min(max(x, set1(EXP_LO)), set1(EXP_HI));
    const vf n = round_even(x * set1(LOG2_E));
    const vf r = (x - n * set1(LN2_HI)) - n * set1(LN2_LO);
    vf p = set1(EXP_C6) * r + set1(EXP_C5);
    p = p * r + set1(EXP_C4);
    p = p * r + set1(EXP_C3);
    p = p * r + set1(EXP_C2);
    const vf y = (p * (r * r) + r) + set1(1.0f);
    const vi whole = to_int(n), half = whole >> 1;
    return (y * power_of_two(half)) * power_of_two(whole - half);
}

STRATA_INLINE vf sigmoid(vf x) { return set1(1.0f) / (set1(1.0f) + exp(set1(0.0f) - x)); }
STRATA_INLINE vf silu(vf x) { return x / (set1(1.0f) + exp(set1(0.0f) - x)); }

// log(u) for normal u >= 1: u = 2^n m with m in [0.7, 1.42), log m = 2 artanh((m - 1) / (m + 1)).
STRATA_INLINE vf log_from_one(vf u) {
    const vi bits = bits_of(u);
    vf m = from_bits((bits & 0x007fffff) + 0x3f800000);
    vf n = to_float((bits >> 23) + -127);
    const vf is_high = select_less(set1(1.41421356f), m, set1(1.0f), set1(0.0f));
    m = m - is_high * (m * set1(0.5f));
    n = n + is_high;
    const vf s = (m - set1(1.0f)) / (m + set1(1.0f));
    const vf t = s * s;
    vf p = set1(1.0f / 9.0f) * t + set1(1.0f / 7.0f);
    p = p * t + set1(1.0f / 5.0f);
    p = p * t + set1(1.0f / 3.0f);
    const vf log_m = set1(2.0f) * (s + (s * t) * p);
    return n * set1(LN2_HI) + (n * set1(LN2_LO) + log_m);
}

// log(1 + exp(x)). With u = 1 + e rounded, log(u) * e / (u - 1) takes the rounding back out.
STRATA_INLINE vf softplus(vf x) {
    const vf e = exp(x);
    const vf u = e + set1(1.0f);
    const vf d = u - set1(1.0f);
    const vf is_tiny = set1(0x1p-24f);
    const vf safe = max(d, is_tiny);
    const vf y = select_less(is_tiny, d, log_from_one(u) * (e / safe), e);
    return select_less(set1(SOFTPLUS_IDENTITY), x, x, y);
}

STRATA_INLINE float sigmoid_scalar(float x) {
    float lanes[LANES];
    store(lanes, sigmoid(set1(x)));
    return lanes[0];
}

// Sum of x[i] * y[i]: four interleaved sums of 16 lanes hide the latency of the addition.
STRATA_INLINE float dot(const float *x, const float *y, int64_t n) {
    vf s0 = set1(0.0f), s1 = s0, s2 = s0, s3 = s0;
    int64_t i = 0;
    for (; i + 4 * LANES <= n; i += 4 * LANES) {
        s0 = s0 + load(x + i) * load(y + i);
        s1 = s1 + load(x + i + LANES) * load(y + i + LANES);
        s2 = s2 + load(x + i + 2 * LANES) * load(y + i + 2 * LANES);
        s3 = s3 + load(x + i + 3 * LANES) * load(y + i + 3 * LANES);
    }
    for (; i < n; i += LANES) s0 = s0 + load_n(x + i, n - i) * load_n(y + i, n - i);
    return sum((s0 + s1) + (s2 + s3));
}

// out[i] = f(i, x[i]) in lanes, for any n.
#define STRATA_EACH(I, N) for (int64_t I = 0; I < (N); I += LANES)

static void exp_rows(const float *x, float *out, int64_t n) {
    STRATA_EACH(i, n) store_n(out + i, exp(load_n(x + i, n - i)), n - i);
}

static void silu_rows(const float *x, float *out, int64_t n) {
    STRATA_EACH(i, n) store_n(out + i, silu(load_n(x + i, n - i)), n - i);
}

static void sigmoid_rows(const float *x, float *out, int64_t n) {
    STRATA_EACH(i, n) store_n(out + i, sigmoid(load_n(x + i, n - i)), n - i);
}

static void softplus_rows(const float *x, float *out, int64_t n) {
    STRATA_EACH(i, n) store_n(out + i, softplus(load_n(x + i, n - i)), n - i);
}

static void silu_of_quotient(const float *x, float divisor, float *out, int64_t n) {
    const vf d = set1(divisor);
    STRATA_EACH(i, n) store_n(out + i, silu(load_n(x + i, n - i) / d), n - i);
}

STRATA_INLINE float inverse_rms(const float *x, float eps, int64_t n) {
    return 1.0f / __builtin_sqrtf(dot(x, x, n) / float(n) + eps);
}

static void rms_norm(const float *x, const float *gamma, float eps, float *out, int64_t n) {
    const vf inverse = set1(inverse_rms(x, eps, n));
    STRATA_EACH(i, n) {
        const vf y = (load_n(x + i, n - i) * inverse) * load_n(gamma + i, n - i);
        store_n(out + i, y, n - i);
    }
}

static void hc_mix(const float *xn, const float *gate, int64_t streams, int64_t width,
                   int64_t begin, int64_t end, float *out) {
    const vf divisor = set1(float(streams));
    for (int64_t i = begin; i < end; i += LANES) {
        const int64_t n = end - i;
        vf total = set1(0.0f);
        for (int64_t s = 0; s < streams; s++) {
            const int64_t at = s * width + i;
            total = total + load_n(xn + at, n) * sigmoid(load_n(gate + at, n));
        }
        store_n(out + i, total / divisor, n);
    }
}

static void hc_write(float *stream, const float *out, float inject, float streams, int64_t n) {
    const vf weight = set1(2.0f * sigmoid_scalar(inject / streams));
    STRATA_EACH(i, n) {
        const vf y = load_n(stream + i, n - i) + load_n(out + i, n - i) * weight;
        store_n(stream + i, y, n - i);
    }
}
