// Python: packed matrices, experts, and their products.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "context.h"
#include "grids.h"
#include "memory.h"
#include "products.h"

namespace nb = nanobind;
using namespace strata;

namespace {

using FloatRows = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using FloatVector = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using IntRows = nb::ndarray<int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using ByteRows = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

[[noreturn]] void refuse(const std::string &what) { throw std::invalid_argument(what); }

int64_t num_panels(int64_t rows) { return (rows + PANEL_ROWS - 1) / PANEL_ROWS; }

void check_inner(int format, int64_t inner) {
    const FormatShape shape = format_shape(format);
    if (shape.block_size == 0) refuse("no block format has number " + std::to_string(format));
    if (inner < 1 || inner % shape.block_size != 0)
        refuse("a row of " + std::to_string(inner) + " weights is not a whole number of blocks of " +
               std::to_string(shape.block_size));
}

// Rows of `packed` panels from `raw`, by all threads of the pool.
void pack_rows(Context &ctx, int format, const uint8_t *raw, int64_t rows, int64_t inner, uint8_t *packed) {
    const FormatShape shape = format_shape(format);
    const int64_t row_bytes = inner / shape.block_size * shape.block_bytes;
    const int64_t bytes = panel_bytes(format, inner);
    ctx.pool.run([&](int thread, int n) {
        const Range range = split(num_panels(rows), thread, n);
        for (int64_t p = range.begin; p < range.end; p++)
            pack_panel(format, raw, row_bytes, p * PANEL_ROWS, rows, inner, packed + p * bytes);
    });
}

struct Matrix {
    int format;
    int64_t rows, inner;
    Buffer data;

    int64_t bytes_per_panel() const { return panel_bytes(format, inner); }
    int64_t bytes() const { return num_panels(rows) * bytes_per_panel(); }
};

Matrix *pack_matrix(Context &ctx, int format, ByteRows raw, int64_t inner) {
    check_inner(format, inner);
    const FormatShape shape = format_shape(format);
    if ((int64_t)raw.shape(1) != inner / shape.block_size * shape.block_bytes)
        refuse("rows of " + std::to_string(raw.shape(1)) + " bytes do not hold " + std::to_string(inner) + " weights");
    auto *m = new Matrix{format, (int64_t)raw.shape(0), inner, {}};
    nb::gil_scoped_release release;
    m->data = Buffer(m->bytes());
    pack_rows(ctx, format, raw.data(), m->rows, inner, m->data.get());
    return m;
}

// The activations of a call and the memory behind their quantised form.
struct Input {
    Activations a;
    Buffer codes, scales, sums;

    Input(const float *x, int64_t rows, int64_t inner, bool is_quantized_needed) {
        a = {x, rows, inner, nullptr, nullptr, nullptr};
        if (!is_quantized_needed) return;
        codes = Buffer(rows * inner);
        scales = Buffer(rows * (inner / 32) * 4);
        sums = Buffer(rows * (inner / 16) * 4);
        a.codes = (int8_t *)codes.get();
        a.scales = (float *)scales.get();
        a.sums = (int32_t *)sums.get();
    }
};

// Work in pieces that threads take as they come free; which thread does a piece changes no bit.
struct Queue {
    std::atomic<int64_t> next{0};
    int64_t total;
    explicit Queue(int64_t total_) : total(total_) {}
    bool take(int64_t piece, Range &range) {
        const int64_t begin = next.fetch_add(piece, std::memory_order_relaxed);
        if (begin >= total) return false;
        range = {begin, std::min(begin + piece, total)};
        return true;
    }
};

// Panels one thread takes at a time: about 64 KiB of weights, fewer when many rows share them.
int64_t piece_of(int64_t bytes_per_panel) { return std::max<int64_t>(1, (64 << 10) / bytes_per_panel); }

struct Target {
    const Matrix *matrix;
    float *out;
};

void product(Context &ctx, nb::list matrices, FloatRows x, nb::list outs) {
    std::vector<Target> targets;
    const int64_t rows = x.shape(0), inner = x.shape(1);
    bool is_quantized_needed = false;
    if (matrices.size() != outs.size()) refuse("as many outputs as matrices are needed");
    for (size_t i = 0; i < matrices.size(); i++) {
        const auto *m = nb::cast<const Matrix *>(matrices[i]);
        const auto out = nb::cast<FloatRows>(outs[i]);
        if (m->inner != inner) refuse("the input has " + std::to_string(inner) + " columns, the matrix " + std::to_string(m->inner));
        if ((int64_t)out.shape(0) != rows || (int64_t)out.shape(1) != m->rows) refuse("an output has the wrong shape");
        targets.push_back({m, out.data()});
        is_quantized_needed |= is_quantized(m->format);
    }
    if (rows == 0) return;
    bool is_finite = true;
    {
        nb::gil_scoped_release release;
        Input input(x.data(), rows, inner, is_quantized_needed);
        std::atomic<bool> has_bad_value{false};
        std::vector<int64_t> first(targets.size() + 1, 0);
        for (size_t i = 0; i < targets.size(); i++) first[i + 1] = first[i] + num_panels(targets[i].matrix->rows);
        Queue queue(first.back());
        ctx.pool.run([&](int thread, int n) {
            if (is_quantized_needed) {
                const Range range = split(rows, thread, n);
                if (!ctx.products.quantize(input.a, range.begin, range.end)) has_bad_value = true;
                ctx.pool.barrier();
            }
            uint8_t *scratch = thread_scratch(product_scratch_bytes(inner));
            Range range;
            const int64_t piece = piece_of(targets[0].matrix->bytes_per_panel());
            while (queue.take(piece, range))
                for (size_t i = 0; i < targets.size(); i++) {
                    const int64_t begin = std::max(range.begin, first[i]) - first[i];
                    const int64_t end = std::min(range.end, first[i + 1]) - first[i];
                    if (begin >= end) continue;
                    const Matrix &m = *targets[i].matrix;
                    ctx.products.panels(m.format, m.data.get(), m.rows, begin, end, input.a, nullptr, rows,
                                        targets[i].out, m.rows, scratch);
                }
        });
        is_finite = !has_bad_value;
    }
    if (!is_finite) throw std::domain_error("an input value is NaN or infinite");
}

// The routed experts of one layer (or its shared expert, as a stack of one).
struct Experts {
    int gate_format, up_format, down_format;
    int64_t num, hidden, size;
    Buffer gate, up, down;
    std::vector<uint8_t> is_loaded;

    Experts(int gate_format_, int up_format_, int down_format_, int64_t num_, int64_t hidden_, int64_t size_)
        : gate_format(gate_format_), up_format(up_format_), down_format(down_format_), num(num_), hidden(hidden_), size(size_),
          is_loaded(num_, 0) {
        check_inner(gate_format, hidden);
        check_inner(up_format, hidden);
        check_inner(down_format, size);
        gate = Buffer(num * stack_bytes(gate_format, size, hidden));
        up = Buffer(num * stack_bytes(up_format, size, hidden));
        down = Buffer(num * stack_bytes(down_format, hidden, size));
    }
    static int64_t stack_bytes(int format, int64_t rows, int64_t inner) { return num_panels(rows) * panel_bytes(format, inner); }
    int64_t bytes() const {
        return num * (stack_bytes(gate_format, size, hidden) + stack_bytes(up_format, size, hidden) + stack_bytes(down_format, hidden, size));
    }
    const uint8_t *gate_of(int64_t e) const { return gate.get() + e * stack_bytes(gate_format, size, hidden); }
    const uint8_t *up_of(int64_t e) const { return up.get() + e * stack_bytes(up_format, size, hidden); }
    const uint8_t *down_of(int64_t e) const { return down.get() + e * stack_bytes(down_format, hidden, size); }
};

void load_expert(Experts &self, Context &ctx, int64_t e, ByteRows gate, ByteRows up, ByteRows down) {
    if (e < 0 || e >= self.num) refuse("no expert " + std::to_string(e) + " among " + std::to_string(self.num));
    const auto check = [](const ByteRows &raw, int format, int64_t rows, int64_t inner, const char *role) {
        const FormatShape shape = format_shape(format);
        if ((int64_t)raw.shape(0) != rows || (int64_t)raw.shape(1) != inner / shape.block_size * shape.block_bytes)
            refuse(std::string(role) + " has the wrong shape");
    };
    check(gate, self.gate_format, self.size, self.hidden, "gate");
    check(up, self.up_format, self.size, self.hidden, "up");
    check(down, self.down_format, self.hidden, self.size, "down");
    nb::gil_scoped_release release;
    pack_rows(ctx, self.gate_format, gate.data(), self.size, self.hidden, const_cast<uint8_t *>(self.gate_of(e)));
    pack_rows(ctx, self.up_format, up.data(), self.size, self.hidden, const_cast<uint8_t *>(self.up_of(e)));
    pack_rows(ctx, self.down_format, down.data(), self.hidden, self.size, const_cast<uint8_t *>(self.down_of(e)));
    self.is_loaded[e] = 1;
}

// One expert and the rows that chose it.
struct Group {
    const Experts *experts;
    int64_t expert;
    int64_t first; // of its rows among all entries
    int64_t num;
};

// A layer's call: entries (one for each row and chosen expert) sorted by expert.
struct ExpertCall {
    std::vector<Group> groups;
    std::vector<int32_t> entry_row;   // [entries] row of x
    std::vector<int64_t> entry_of;    // [rows, K (+1)] entry of row i, rank k; the shared expert last
};

void group_entries(ExpertCall &call, const Experts &routed, const IntRows &ids, const Experts *shared) {
    const int64_t rows = ids.shape(0), k = ids.shape(1), slots = k + (shared ? 1 : 0);
    std::vector<int64_t> count(routed.num, 0);
    for (int64_t i = 0; i < rows * k; i++) {
        const int32_t e = ids.data()[i];
        if (e < 0 || e >= routed.num) refuse("no expert " + std::to_string(e) + " among " + std::to_string(routed.num));
        if (!routed.is_loaded[e]) refuse("expert " + std::to_string(e) + " was not loaded");
        count[e]++;
    }
    int64_t entries = 0;
    std::vector<int64_t> next(routed.num);
    for (int64_t e = 0; e < routed.num; e++) {
        next[e] = entries;
        if (count[e]) call.groups.push_back({&routed, e, entries, count[e]});
        entries += count[e];
    }
    call.entry_row.resize(entries + (shared ? rows : 0));
    call.entry_of.resize(rows * slots);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < k; j++) {
            const int64_t entry = next[ids.data()[i * k + j]]++;
            call.entry_row[entry] = (int32_t)i;
            call.entry_of[i * slots + j] = entry;
        }
    if (!shared) return;
    call.groups.push_back({shared, 0, entries, rows});
    for (int64_t i = 0; i < rows; i++) {
        call.entry_row[entries + i] = (int32_t)i;
        call.entry_of[i * slots + k] = entries + i;
    }
}

// Where a piece of panels lies: tasks are (group, matrix) in order, each with its panels.
struct Task {
    const Group *group;
    bool is_up;
};

void experts(Context &ctx, const Experts &routed, FloatRows x, IntRows ids, FloatRows weights, const Experts *shared,
             nb::object shared_weight_object, FloatRows out) {
    const int64_t rows = x.shape(0), hidden = x.shape(1), k = ids.shape(1);
    if (hidden != routed.hidden || (shared && shared->hidden != hidden)) refuse("the input is not as wide as the experts");
    if ((int64_t)ids.shape(0) != rows || (int64_t)weights.shape(0) != rows || weights.shape(1) != ids.shape(1))
        refuse("ids and weights must both be [rows, K]");
    if ((int64_t)out.shape(0) != rows || (int64_t)out.shape(1) != hidden) refuse("the output has the wrong shape");
    const float *shared_weight = nullptr;
    if (shared) {
        const auto vector = nb::cast<FloatVector>(shared_weight_object);
        if ((int64_t)vector.shape(0) != rows) refuse("one weight of the shared expert is needed for each row");
        shared_weight = vector.data();
    }
    if (rows == 0) return;
    ExpertCall call;
    group_entries(call, routed, ids, shared);
    bool is_finite = true;
    {
        nb::gil_scoped_release release;
        const int64_t entries = call.entry_row.size();
        const int64_t widest = std::max(routed.size, shared ? shared->size : 0);
        const bool needs_x = is_quantized(routed.gate_format) || is_quantized(routed.up_format) ||
                             (shared && (is_quantized(shared->gate_format) || is_quantized(shared->up_format)));
        Input input(x.data(), rows, hidden, needs_x);
        // Entries of the routed experts are `size` wide, those of the shared expert its own size.
        const int64_t routed_entries = rows * k;
        Buffer gate(entries * widest * 4), up(entries * widest * 4), y(entries * hidden * 4);
        float *g = (float *)gate.get(), *u = (float *)up.get(), *down_out = (float *)y.get();
        Input inner_routed(g, routed_entries, routed.size, is_quantized(routed.down_format));
        Input inner_shared(g + routed_entries * widest, shared ? rows : 0, shared ? shared->size : 0,
                           shared && is_quantized(shared->down_format));

        std::vector<Task> tasks;
        std::vector<int64_t> first{0};
        for (const Group &group : call.groups)
            for (const bool is_up : {false, true}) {
                tasks.push_back({&group, is_up});
                first.push_back(first.back() + num_panels(group.experts->size));
            }
        std::vector<int64_t> first_down{0};
        for (size_t i = 0; i < call.groups.size(); i++) first_down.push_back(first_down.back() + num_panels(hidden));
        Queue up_queue(first.back()), entry_queue(entries), down_queue(first_down.back());
        std::atomic<bool> has_bad_value{false};
        // Rows of routed entries are packed `size` apart, so the quantiser sees a plain matrix.
        const auto inner_of = [&](const Group &group, float *base) {
            const bool is_shared = group.experts == shared && group.first >= routed_entries;
            return is_shared ? base + routed_entries * widest + (group.first - routed_entries) * shared->size
                             : base + group.first * routed.size;
        };
        std::vector<int32_t> identity(std::max(entries, rows));
        for (size_t i = 0; i < identity.size(); i++) identity[i] = (int32_t)i;

        ctx.pool.run([&](int thread, int n) {
            if (needs_x) {
                const Range range = split(rows, thread, n);
                if (!ctx.products.quantize(input.a, range.begin, range.end)) has_bad_value = true;
                ctx.pool.barrier();
            }
            const int64_t scratch_inner = std::max(hidden, widest);
            uint8_t *scratch = thread_scratch(product_scratch_bytes(scratch_inner));
            Range range;
            const int64_t up_piece = piece_of(panel_bytes(routed.gate_format, hidden));
            while (up_queue.take(up_piece, range)) {
                size_t i = std::upper_bound(first.begin(), first.end(), range.begin) - first.begin() - 1;
                for (; i < tasks.size() && first[i] < range.end; i++) {
                    const Group &group = *tasks[i].group;
                    const Experts &e = *group.experts;
                    ctx.products.panels(tasks[i].is_up ? e.up_format : e.gate_format,
                                        tasks[i].is_up ? e.up_of(group.expert) : e.gate_of(group.expert), e.size,
                                        std::max(range.begin, first[i]) - first[i], std::min(range.end, first[i + 1]) - first[i],
                                        input.a, call.entry_row.data() + group.first, group.num,
                                        inner_of(group, tasks[i].is_up ? u : g), e.size, scratch);
                }
            }
            ctx.pool.barrier();
            while (entry_queue.take(1, range)) {
                const int64_t entry = range.begin;
                const bool is_shared = entry >= routed_entries;
                const int64_t row = is_shared ? entry - routed_entries : entry;
                const Input &in = is_shared ? inner_shared : inner_routed;
                const int64_t offset = is_shared ? routed_entries * widest + row * in.a.inner : row * in.a.inner;
                ctx.products.gate_up(g + offset, u + offset, in.a.inner);
                if (in.a.codes && !ctx.products.quantize(in.a, row, row + 1)) has_bad_value = true;
            }
            ctx.pool.barrier();
            const int64_t down_piece = piece_of(panel_bytes(routed.down_format, routed.size));
            while (down_queue.take(down_piece, range)) {
                size_t i = std::upper_bound(first_down.begin(), first_down.end(), range.begin) - first_down.begin() - 1;
                for (; i < call.groups.size() && first_down[i] < range.end; i++) {
                    const Group &group = call.groups[i];
                    const Experts &e = *group.experts;
                    const bool is_shared = group.first >= routed_entries;
                    const Input &in = is_shared ? inner_shared : inner_routed;
                    const int64_t begin_row = is_shared ? group.first - routed_entries : group.first;
                    ctx.products.panels(e.down_format, e.down_of(group.expert), hidden,
                                        std::max(range.begin, first_down[i]) - first_down[i],
                                        std::min(range.end, first_down[i + 1]) - first_down[i], in.a,
                                        identity.data() + begin_row, group.num, down_out + group.first * hidden, hidden, scratch);
                }
            }
            ctx.pool.barrier();
            const int64_t slots = k + (shared ? 1 : 0);
            std::vector<const float *> ys(k);
            for (Range r = split(rows, thread, n); r.begin < r.end; r.begin++) {
                const int64_t *entry = call.entry_of.data() + r.begin * slots;
                for (int64_t j = 0; j < k; j++) ys[j] = down_out + entry[j] * hidden;
                ctx.products.combine(ys.data(), weights.data() + r.begin * k, (int)k,
                                     shared ? down_out + entry[k] * hidden : nullptr,
                                     shared ? shared_weight[r.begin] : 0.0f, out.data() + r.begin * hidden, hidden);
            }
        });
        is_finite = !has_bad_value;
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

namespace strata {
int64_t product_scratch_bytes(int64_t inner) {
    // Corrections of a tile, then an unpacked panel: eight vectors of codes and up to five more a block.
    const int64_t quantized = (int64_t)TOKEN_TILE * (inner / 16) * 4 + (inner / 32 + 1) * 13 * 64 + 64;
    // A stretch of float columns, then four sums for each row of a tile (products.inl).
    const int64_t floats = 512 * PANEL_ROWS * 4 + (TOKEN_TILE + 4) * 4 * 64;
    return std::max(quantized, floats);
}
} // namespace strata

void bind_products(nb::module_ &m) {
    m.def("set_grid", &set_grid, nb::arg("name"), nb::arg("values"));
    nb::class_<Matrix>(m, "Matrix")
        .def_static("pack", &pack_matrix, nb::arg("ctx"), nb::arg("format"), nb::arg("raw"), nb::arg("inner"),
                    nb::rv_policy::take_ownership)
        .def_ro("format", &Matrix::format)
        .def_ro("rows", &Matrix::rows)
        .def_ro("inner", &Matrix::inner)
        .def_prop_ro("num_bytes", &Matrix::bytes);
    nb::class_<Experts>(m, "Experts")
        .def(nb::init<int, int, int, int64_t, int64_t, int64_t>(), nb::arg("gate_format"), nb::arg("up_format"),
             nb::arg("down_format"), nb::arg("num_experts"), nb::arg("hidden_size"), nb::arg("expert_size"))
        .def("load", &load_expert, nb::arg("ctx"), nb::arg("expert"), nb::arg("gate"), nb::arg("up"), nb::arg("down"))
        .def_prop_ro("num_bytes", &Experts::bytes);
    m.def("product", &product, nb::arg("ctx"), nb::arg("matrices"), nb::arg("x"), nb::arg("outs"));
    m.def("experts", &experts, nb::arg("ctx"), nb::arg("routed"), nb::arg("x"), nb::arg("ids"), nb::arg("weights"),
          nb::arg("shared").none(), nb::arg("shared_weight").none(), nb::arg("out"));
    m.def("measure_bandwidth", &measure_bandwidth, nb::arg("ctx"), nb::arg("num_bytes"), nb::arg("passes") = 3);
}
