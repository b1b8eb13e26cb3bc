// Python entry points of the model operations that need no layer object: hyper-connections, the
// n-gram memory's gate and convolution, the router. bind_mixers.cpp holds GDN and QSA.
#include <nanobind/stl/optional.h>

#include "bind_arrays.h"

using namespace strata;

void bind_mixers(nb::module_ &m);

namespace {

using Elementwise = void (*)(const float *, float *, int64_t);

void each_value(Context &ctx, Elementwise op, const ConstFloats &x, const Floats &out) {
    const int64_t size = int64_t(x.size());
    const float *in = x.data();
    float *to = data_of(out, size, "out");
    nb::gil_scoped_release released;
    ctx.pool.run([&](int thread, int n) {
        const Range range = split(size, thread, n);
        op(in + range.begin, to + range.begin, range.end - range.begin);
    });
}

void silu_of_quotient(Context &ctx, const Floats &x, float divisor) {
    const int64_t size = int64_t(x.size());
    float *data = x.data();
    nb::gil_scoped_release released;
    ctx.pool.run([&](int thread, int n) {
        const Range range = split(size, thread, n);
        float *at = data + range.begin;
        ctx.ops.silu_of_quotient(at, divisor, at, range.end - range.begin);
    });
}

// residual [T, S, D], gamma [S, D], xn [T, S, D].
void hc_norm(Context &ctx, const ConstFloats &residual, const ConstFloats &gamma, float eps,
             const Floats &xn) {
    check(residual.ndim() == 3, "residual must be [rows, streams, width]");
    const int64_t streams = residual.shape(1), width = residual.shape(2);
    const int64_t items = residual.shape(0) * streams;
    const float *r = residual.data(), *g = data_of(gamma, streams * width, "gamma");
    float *out = data_of(xn, items * width, "xn");
    for_items(ctx, items, [&](int64_t i, int) {
        ctx.ops.rms_norm(r + i * width, g + i % streams * width, eps, out + i * width, width);
    });
}

// residual[t, s] += out[t] * 2 sigmoid(inject[t, s] / S), then its norm if gamma is given.
void hc_write(Context &ctx, const Floats &residual, const ConstFloats &out,
              const ConstFloats &inject, const std::optional<ConstFloats> &gamma, float eps,
              const std::optional<Floats> &xn) {
    check(residual.ndim() == 3, "residual must be [rows, streams, width]");
    check(gamma.has_value() == xn.has_value(), "gamma and xn go together");
    const int64_t streams = residual.shape(1), width = residual.shape(2);
    const int64_t rows = residual.shape(0), items = rows * streams;
    float *r = residual.data();
    const float *o = data_of(out, rows * width, "out"), *in = data_of(inject, items, "inject");
    const float *g = gamma ? data_of(*gamma, streams * width, "gamma") : nullptr;
    float *normed = xn ? data_of(*xn, items * width, "xn") : nullptr;
    for_items(ctx, items, [&](int64_t i, int) {
        float *stream = r + i * width;
        ctx.ops.hc_write(stream, o + i / streams * width, in[i], float(streams), width);
        if (g != nullptr)
            ctx.ops.rms_norm(stream, g + i % streams * width, eps, normed + i * width, width);
    });
}

// out[t] = mean over streams of xn[t, s] * sigmoid(gate[t, s]).
void hc_mix(Context &ctx, const ConstFloats &xn, const ConstFloats &gate, int64_t streams,
            const Floats &out) {
    check(out.ndim() == 2, "out must be [rows, width]");
    constexpr int64_t COLUMNS = 256;
    const int64_t rows = out.shape(0), width = out.shape(1);
    const int64_t tiles = (width + COLUMNS - 1) / COLUMNS, row_size = streams * width;
    const float *x = data_of(xn, rows * row_size, "xn"), *g = data_of(gate, rows * row_size, "gate");
    float *to = out.data();
    for_items(ctx, rows * tiles, [&](int64_t i, int) {
        const int64_t row = i / tiles, begin = i % tiles * COLUMNS;
        const int64_t end = begin + COLUMNS < width ? begin + COLUMNS : width;
        ctx.ops.hc_mix(x + row * row_size, g + row * row_size, streams, width, begin, end,
                       to + row * width);
    });
}

void ple(Context &ctx, const Floats &residual, const ConstFloats &key, const ConstFloats &value,
         const ConstFloats &key_gamma, const ConstFloats &query_gamma,
         const ConstFloats &conv_gamma, const ConstFloats &conv_weight, int64_t dilation, float eps,
         const Floats &gated, const Floats &normed) {
    check(residual.ndim() == 3, "residual must be [rows, streams, width]");
    check(conv_weight.ndim() == 2, "conv_weight must be [kernel, channels]");
    Ple p{};
    p.rows = residual.shape(0), p.streams = residual.shape(1), p.width = residual.shape(2);
    p.kernel = conv_weight.shape(0), p.dilation = dilation, p.eps = eps;
    const int64_t channels = p.streams * p.width, history = (p.kernel - 1) * dilation;
    p.residual = residual.data();
    p.key = data_of(key, p.rows * channels, "key");
    p.value = data_of(value, p.rows * p.width, "value");
    p.key_gamma = data_of(key_gamma, channels, "key_gamma");
    p.query_gamma = data_of(query_gamma, channels, "query_gamma");
    p.conv_gamma = data_of(conv_gamma, channels, "conv_gamma");
    p.conv_weight = data_of(conv_weight, p.kernel * channels, "conv_weight");
    p.gated = data_of(gated, p.rows * channels, "gated");
    p.normed = data_of(normed, (history + p.rows) * channels, "normed");
    const ThreadScratch scratch(ctx.pool.num_threads(), 2 * p.width);
    const int64_t items = p.rows * p.streams;
    nb::gil_scoped_release released;
    ctx.pool.run([&](int thread, int n) {
        share(items, thread, n, [&](int64_t i, int) {
            ctx.ops.ple_gate(p, i / p.streams, i % p.streams, scratch.of(thread));
        });
        ctx.pool.barrier();
        share(items, thread, n,
              [&](int64_t i, int) { ctx.ops.ple_conv(p, i / p.streams, i % p.streams); });
    });
}

// Returns the first row with a logit that is not a finite number, or -1.
int64_t route(Context &ctx, const ConstFloats &logits, float scale,
              const Array<int32_t> &ids, const Floats &weights, const std::optional<Floats> &shared) {
    check(logits.ndim() == 2 && ids.ndim() == 2, "logits must be [rows, experts], ids [rows, k]");
    const int64_t rows = logits.shape(0), experts = logits.shape(1), k = ids.shape(1);
    check(k >= 1 && k <= experts, "more experts are to be chosen than there are");
    const float *x = logits.data();
    int32_t *id = data_of(ids, rows * k, "ids");
    float *w = data_of(weights, rows * k, "weights");
    float *gate = shared ? data_of(*shared, rows, "shared") : nullptr;
    const ThreadScratch scratch(ctx.pool.num_threads(), experts);
    std::atomic<int64_t> bad{rows};
    for_items(ctx, rows, [&](int64_t i, int thread) {
        if (gate != nullptr) ctx.ops.sigmoid_rows(gate + i, gate + i, 1);
        if (ctx.ops.route(x + i * experts, experts, k, scale, scratch.of(thread), id + i * k,
                          w + i * k))
            return;
        for (int64_t seen = bad; i < seen && !bad.compare_exchange_weak(seen, i);) {
        }
    });
    return bad == rows ? -1 : bad.load();
}

} // namespace

void bind_ops(nb::module_ &m) {
    // What is written takes no conversion: the values would go into a copy.
    const auto bind_elementwise = [&m](const char *name, Elementwise Ops::*op) {
        m.def(
            name,
            [op](Context &ctx, const ConstFloats &x, const Floats &out) {
                each_value(ctx, ctx.ops.*op, x, out);
            },
            nb::arg("ctx"), nb::arg("x"), nb::arg("out").noconvert());
    };
    bind_elementwise("exp", &Ops::exp_rows);
    bind_elementwise("silu", &Ops::silu_rows);
    bind_elementwise("sigmoid", &Ops::sigmoid_rows);
    bind_elementwise("softplus", &Ops::softplus_rows);
    m.def("silu_of_quotient", &silu_of_quotient, nb::arg("ctx"), nb::arg("x").noconvert(),
          nb::arg("divisor"));
    m.def("hc_norm", &hc_norm, nb::arg("ctx"), nb::arg("residual"), nb::arg("gamma"),
          nb::arg("eps"), nb::arg("xn").noconvert());
    m.def("hc_write", &hc_write, nb::arg("ctx"), nb::arg("residual").noconvert(), nb::arg("out"),
          nb::arg("inject"), nb::arg("gamma").none(), nb::arg("eps"),
          nb::arg("xn").noconvert().none());
    m.def("hc_mix", &hc_mix, nb::arg("ctx"), nb::arg("xn"), nb::arg("gate"), nb::arg("streams"),
          nb::arg("out").noconvert());
    m.def("ple", &ple, nb::arg("ctx"), nb::arg("residual").noconvert(), nb::arg("key"),
          nb::arg("value"), nb::arg("key_gamma"), nb::arg("query_gamma"), nb::arg("conv_gamma"),
          nb::arg("conv_weight"), nb::arg("dilation"), nb::arg("eps"), nb::arg("gated").noconvert(),
          nb::arg("normed").noconvert());
    m.def("route", &route, nb::arg("ctx"), nb::arg("logits"), nb::arg("scale"),
          nb::arg("ids").noconvert(), nb::arg("weights").noconvert(),
          nb::arg("shared").noconvert().none());
    bind_mixers(m);
}
