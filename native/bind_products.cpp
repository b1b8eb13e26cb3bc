// Python: packed matrices, experts, and their products.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "experts.h"
#include "grids.h"
#include "matrix.h"

namespace nb = nanobind;
using namespace strata;

namespace {

using FloatRows = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using FloatVector = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using IntRows = nb::ndarray<int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using ByteRows = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

Matrix *pack_matrix(Context &ctx, int format, ByteRows raw, int64_t inner, float scale) {
    check_inner(format, inner);
    if ((int64_t)raw.shape(1) != row_bytes(format, inner))
        refuse("rows of " + std::to_string(raw.shape(1)) + " bytes do not hold " + std::to_string(inner) + " weights");
    const int64_t rows = raw.shape(0);
    nb::gil_scoped_release release;
    auto m = std::make_unique<Matrix>(Matrix{format, rows, inner, scale, Buffer(packed_bytes(format, rows, inner))});
    pack_rows(ctx, format, raw.data(), rows, inner, m->data.get());
    return m.release();
}

void product(Context &ctx, nb::list matrices, FloatRows x, nb::list outs) {
    std::vector<Target> targets;
    const int64_t rows = x.shape(0), inner = x.shape(1);
    if (matrices.size() != outs.size()) refuse("as many outputs as matrices are needed");
    for (size_t i = 0; i < matrices.size(); i++) {
        const auto *m = nb::cast<const Matrix *>(matrices[i]);
        // A converted copy would take the values and be gone before anyone reads them.
        FloatRows out;
        if (!nb::try_cast<FloatRows>(outs[i], out, false))
            refuse("an output must be float32 [rows, columns], without gaps");
        if (m->inner != inner)
            refuse("the input has " + std::to_string(inner) + " columns, the matrix " + std::to_string(m->inner));
        if ((int64_t)out.shape(0) != rows || (int64_t)out.shape(1) != m->rows) refuse("an output has the wrong shape");
        targets.push_back({m, out.data()});
    }
    if (rows == 0 || targets.empty()) return;
    bool is_finite;
    {
        nb::gil_scoped_release release;
        is_finite = run_product(ctx, targets.data(), targets.size(), x.data(), rows, inner);
    }
    if (!is_finite) throw std::domain_error("an input value is NaN or infinite");
}

void load_expert(Experts &self, Context &ctx, int64_t e, ByteRows gate, ByteRows up, ByteRows down, float gate_scale,
                 float up_scale, float down_scale) {
    if (e < 0 || e >= self.num()) refuse("no expert " + std::to_string(e) + " among " + std::to_string(self.num()));
    if (self.source()) refuse("experts of a source are not loaded");
    const ByteRows *raw[] = {&gate, &up, &down};
    const char *names[] = {"gate", "up", "down"};
    for (const auto role : {Experts::gate, Experts::up, Experts::down})
        if ((int64_t)raw[role]->shape(0) != self.rows(role) ||
            (int64_t)raw[role]->shape(1) != row_bytes(self.format(role), self.inner(role)))
            refuse(std::string(names[role]) + " has the wrong shape");
    const uint8_t *blocks[] = {gate.data(), up.data(), down.data()};
    const float scales[] = {gate_scale, up_scale, down_scale};
    nb::gil_scoped_release release;
    self.load(ctx, e, blocks, scales);
}

void experts(Context &ctx, const Experts &routed, FloatRows x, IntRows ids, FloatRows weights, const Experts *shared,
             nb::object shared_weight, FloatRows out) {
    const int64_t rows = x.shape(0), hidden = x.shape(1), k = ids.shape(1);
    if (hidden != routed.hidden() || (shared && shared->hidden() != hidden)) refuse("the input is not as wide as the experts");
    if (k < 1 || (int64_t)ids.shape(0) != rows || (int64_t)weights.shape(0) != rows || weights.shape(1) != ids.shape(1))
        refuse("ids and weights must both be [rows, K]");
    if ((int64_t)out.shape(0) != rows || (int64_t)out.shape(1) != hidden) refuse("the output has the wrong shape");
    const float *shared_weights = nullptr;
    if (shared) {
        const auto vector = nb::cast<FloatVector>(shared_weight);
        if ((int64_t)vector.shape(0) != rows) refuse("one weight of the shared expert is needed for each row");
        shared_weights = vector.data();
    }
    if (rows == 0) return;
    bool is_finite;
    {
        nb::gil_scoped_release release;
        is_finite = run_experts(
            ctx, {&routed, shared, rows, k, x.data(), ids.data(), weights.data(), shared_weights, out.data()});
    }
    if (!is_finite) throw std::domain_error("an input value of an expert is NaN or infinite");
}

// Reads `bytes` of memory with every thread and returns bytes a second, the best of several passes.
double measure_bandwidth(Context &ctx, int64_t bytes, int passes) {
    nb::gil_scoped_release release;
    Buffer buffer(bytes);
    std::memset(buffer.get(), 1, bytes);
    std::atomic<uint64_t> sink{0};
    double best = 0;
    for (int pass = 0; pass < passes; pass++) {
        const auto begin = std::chrono::steady_clock::now();
        ctx.pool.run([&](int thread, int n) {
            const Range range = split(bytes / 64, thread, n);
            sink += ctx.products.read_all(buffer.get() + 64 * range.begin, 64 * (range.end - range.begin));
        });
        const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
        best = std::max(best, bytes / time.count());
    }
    return best;
}

int grid_number(const std::string &name) {
    const char *names[] = {"iq2xxs", "iq2xs", "iq2s", "iq3xxs", "iq3s", "iq1s"};
    for (int i = 0; i < NUM_GRIDS; i++)
        if (name == names[i]) return i;
    refuse("no grid named " + name);
}

// Builds the kernels' tables from a grid's plain values ([entries, 4 or 8] int8).
void set_grid(const std::string &name, nb::ndarray<const int8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu> values) {
    const int number = grid_number(name);
    const int scale = number == GRID_IQ1 ? 8 : 1;
    const int64_t entries = values.shape(0), width = values.shape(1);
    if (entries > 2048 || (width != 4 && width != 8)) refuse("a grid has at most 2048 entries of 4 or 8 values");
    std::vector<int> distinct(values.data(), values.data() + entries * width);
    std::sort(distinct.begin(), distinct.end());
    distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
    const int64_t period = width == 4 ? 16 : 4;
    if ((int64_t)distinct.size() > period) refuse("grid " + name + " has too many distinct values");
    Grid &grid = grids[number];
    for (int i = 0; i < 64; i++) {
        const int index = i % period;
        grid.values[i] = index < (int)distinct.size() ? (uint8_t)(GRID_BIAS + scale * distinct[index]) : 0;
    }
    const int bits = width == 4 ? 4 : 2;
    for (int64_t e = 0; e < entries; e++) {
        uint32_t index = 0;
        uint64_t bytes = 0;
        for (int i = 0; i < width; i++) {
            const int v = values.data()[e * width + i];
            const auto at = std::lower_bound(distinct.begin(), distinct.end(), v) - distinct.begin();
            index |= (uint32_t)at << bits * i;
            bytes |= (uint64_t)(uint8_t)(GRID_BIAS + scale * v) << 8 * i;
        }
        grid.first[e] = (uint8_t)index;
        grid.second[e] = (uint8_t)(index >> 8);
        grid.low[e] = (uint32_t)bytes;
        grid.high[e] = (uint32_t)(bytes >> 32);
    }
}

} // namespace

void bind_products(nb::module_ &m) {
    m.def("set_grid", &set_grid, nb::arg("name"), nb::arg("values"));
    nb::class_<Matrix>(m, "Matrix")
        .def_static("pack", &pack_matrix, nb::arg("ctx"), nb::arg("format"), nb::arg("raw"), nb::arg("inner"),
                    nb::arg("scale") = 1.0f, nb::rv_policy::take_ownership)
        .def_ro("format", &Matrix::format)
        .def_ro("rows", &Matrix::rows)
        .def_ro("inner", &Matrix::inner)
        .def_prop_ro("num_bytes", &Matrix::bytes);
    nb::class_<Experts>(m, "Experts")
        .def(nb::init<int, int, int, int64_t, int64_t, int64_t>(), nb::arg("gate_format"), nb::arg("up_format"),
             nb::arg("down_format"), nb::arg("num_experts"), nb::arg("hidden_size"), nb::arg("expert_size"))
        .def(
            "__init__",
            [](Experts *self, ExpertSource &source, int64_t layer) {
                if (layer < 0 || layer >= source.num_layers()) refuse("there is no such layer");
                new (self) Experts(source, layer);
            },
            nb::arg("source"), nb::arg("layer"), nb::keep_alive<1, 2>())
        .def("load", &load_expert, nb::arg("ctx"), nb::arg("expert"), nb::arg("gate"), nb::arg("up"), nb::arg("down"),
             nb::arg("gate_scale") = 1.0f, nb::arg("up_scale") = 1.0f, nb::arg("down_scale") = 1.0f)
        .def_prop_ro("num_bytes", &Experts::bytes);
    m.def("product", &product, nb::arg("ctx"), nb::arg("matrices"), nb::arg("x"), nb::arg("outs"));
    m.def("experts", &experts, nb::arg("ctx"), nb::arg("routed"), nb::arg("x"), nb::arg("ids"), nb::arg("weights"),
          nb::arg("shared").none(), nb::arg("shared_weight").none(), nb::arg("out").noconvert());
    m.def("measure_bandwidth", &measure_bandwidth, nb::arg("ctx"), nb::arg("num_bytes"), nb::arg("passes") = 3);
}
