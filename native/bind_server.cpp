// Python: experts as blobs in memory that others own too, and the thread that answers a card.
//
// Addresses come as integers: the memory is page-locked or mapped. Its owners live as long as the server.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "bind_arrays.h"
#include "expert_copies.h"
#include "expert_server.h"
#include "expert_source.h"
#include "matrix.h"

namespace nb = nanobind;
using namespace strata;

namespace {

using ByteRows = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class T> T *at(uintptr_t address) { return reinterpret_cast<T *>(address); }

ExpertLayer layer_of(int gate_format, int up_format, int down_format, int64_t num, int64_t hidden, int64_t size) {
    ExpertLayer layer = {{gate_format, up_format, down_format}, num, hidden, size, nullptr, 0, nullptr};
    for (int role = 0; role < 3; role++) check_inner(layer.formats[role], layer.inner(role));
    return layer;
}

void pack_blob(Context &ctx, const ExpertLayer &layer, ByteRows gate, ByteRows up, ByteRows down, Bytes out) {
    const ByteRows *raw[] = {&gate, &up, &down};
    for (int role = 0; role < 3; role++)
        if ((int64_t)raw[role]->shape(0) != layer.rows(role) ||
            (int64_t)raw[role]->shape(1) != row_bytes(layer.formats[role], layer.inner(role)))
            refuse("matrix " + std::to_string(role) + " of an expert has the wrong shape");
    uint8_t *blob = data_of(out, expert_bytes(layer), "out");
    const uint8_t *blocks[] = {gate.data(), up.data(), down.data()};
    nb::gil_scoped_release release;
    pack_expert(ctx, layer, blocks, blob);
}

void set_memory(ExpertLayer &layer, uintptr_t blobs, int64_t blob_bytes, uintptr_t scales) {
    if (blob_bytes < expert_bytes(layer)) refuse("experts would overlap");
    layer.blobs = at<const uint8_t>(blobs);
    layer.blob_bytes = blob_bytes;
    layer.scales = at<const float>(scales);
}

void make_server(ExpertServer *self, Context &ctx, nb::list layers, const std::vector<uintptr_t> &addresses,
                 int64_t max_rows, int64_t k, nb::handle, ExpertSource *source) {
    if (addresses.size() != 7) refuse("a mailbox has seven parts");
    if (addresses[1] % 8) refuse("an answer is one word of 8 bytes");
    std::vector<ExpertLayer> all;
    for (nb::handle layer : layers) {
        all.push_back(nb::cast<const ExpertLayer &>(layer));
        if (!all.back().blobs && !source) refuse("a layer has no memory");
    }
    if (source && source->num_layers() != (int64_t)all.size()) refuse("the source has other layers");
    const Mailbox box = {at<const int32_t>(addresses[0]), at<int32_t>(addresses[1]), at<const int32_t>(addresses[2]),
                         at<const int8_t>(addresses[3]),  at<const float>(addresses[4]), at<const int32_t>(addresses[5]),
                         at<float>(addresses[6])};
    new (self) ExpertServer(ctx, std::move(all), source, box, max_rows, k);
}

// [layers, 7]: requests, entries, experts, bytes, nanoseconds; experts and bytes from files.
void read_counts(const ExpertServer &server, nb::ndarray<int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu> out) {
    if ((int64_t)out.shape(0) != server.num_layers() || out.shape(1) != 7) refuse("counts are [layers, 7]");
    for (int64_t i = 0; i < server.num_layers(); i++) {
        const ServedCounts &counts = server.counts(i);
        int64_t *row = out.data() + 7 * i;
        row[0] = counts.requests, row[1] = counts.entries, row[2] = counts.experts;
        row[3] = counts.bytes, row[4] = counts.nanoseconds;
        row[5] = counts.from_file, row[6] = counts.file_bytes;
    }
}

// extents: [experts of all layers, 1 or 3, 3] file, offset, size. files: (path, direct descriptor, plain one).
void make_source(ExpertSource *self, Context &ctx, nb::list layers, nb::list files,
                 nb::ndarray<const int64_t, nb::ndim<3>, nb::c_contig, nb::device::cpu> extents, uintptr_t places,
                 int64_t num_places, int64_t place_bytes, nb::handle, int64_t num_ahead) {
    std::vector<ExpertLayer> all;
    for (nb::handle layer : layers) {
        all.push_back(nb::cast<const ExpertLayer &>(layer));
        if (!all.back().scales) refuse("a layer has no factors");
        all.back().blobs = nullptr, all.back().blob_bytes = 0;
    }
    std::vector<ExpertFile> opened;
    for (nb::handle file : files) {
        const auto parts = nb::cast<nb::tuple>(file);
        opened.push_back({nb::cast<std::string>(parts[0]), nb::cast<int>(parts[1]), nb::cast<int>(parts[2])});
    }
    if (extents.shape(2) != 3) refuse("an extent has three numbers");
    std::vector<Extent> found;
    const int64_t *numbers = extents.data();
    for (size_t i = 0; i < extents.shape(0) * extents.shape(1); i++, numbers += 3)
        found.push_back({numbers[0], numbers[1], numbers[2]});
    new (self) ExpertSource(ctx, std::move(all), std::move(opened), std::move(found), at<uint8_t>(places), num_places, place_bytes,
                            num_ahead);
}

std::vector<int32_t> checked(const ExpertSource &source, int64_t layer, const std::vector<int32_t> &experts) {
    if (layer < 0 || layer >= source.num_layers()) refuse("there is no such layer");
    for (const int32_t expert : experts)
        if (expert < 0 || expert >= source.layer(layer).num) refuse("there is no expert " + std::to_string(expert));
    return experts;
}

// [layers, 8]: experts found at home, found in a place, read; bytes read; nanoseconds waited; of those
// asked for by scans, read for them; fetches that were none.
void read_source_counts(const ExpertSource &source,
                        nb::ndarray<int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu> out) {
    if ((int64_t)out.shape(0) != source.num_layers() || out.shape(1) != 8) refuse("counts are [layers, 8]");
    for (int64_t i = 0; i < source.num_layers(); i++) {
        const SourceCounts &counts = source.counts(i);
        int64_t *row = out.data() + 8 * i;
        row[0] = counts.home, row[1] = counts.cached, row[2] = counts.read;
        row[3] = counts.bytes, row[4] = counts.wait_nanoseconds;
        row[5] = counts.scanned, row[6] = counts.scan_read, row[7] = counts.windows;
    }
}

// [layers, 4]: reads begun ahead, taken, given up; bytes read for the last.
void read_ahead_counts(const ExpertSource &source,
                       nb::ndarray<int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu> out) {
    if ((int64_t)out.shape(0) != source.num_layers() || out.shape(1) != 4) refuse("counts are [layers, 4]");
    for (int64_t i = 0; i < source.num_layers(); i++) {
        const SourceCounts &counts = source.counts(i);
        int64_t *row = out.data() + 4 * i;
        row[0] = counts.ahead, row[1] = counts.ahead_used, row[2] = counts.ahead_dropped, row[3] = counts.ahead_bytes;
    }
}

// Experts of `layer` that the layer's router chooses for rows of x.
std::vector<int32_t> guess_experts(ExpertSource &source, Context &ctx, int64_t layer,
                                   nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu> x) {
    NextExperts &next = source.next_experts();
    if (layer < 0 || !next.knows(layer)) refuse("nobody guesses for this layer");
    const Input input(x.data(), (int64_t)x.shape(0), (int64_t)x.shape(1), true);
    if (!ctx.products.quantize(input.a, 0, input.a.rows)) refuse("a value is not finite");
    return next.guess(ctx, layer, input.a);
}

// The runs of a fetch, as indices into `experts`; for tests of what is kept.
std::vector<std::vector<int32_t>> fetch_all(ExpertSource &source, int64_t layer, const std::vector<int32_t> &experts,
                                            bool is_scan, const std::vector<int32_t> &ahead) {
    std::vector<std::vector<int32_t>> runs;
    nb::gil_scoped_release release;
    ExpertFetch fetch(source, layer, checked(source, layer, experts), is_scan);
    if (!ahead.empty()) fetch.read_ahead(layer + 1, checked(source, layer + 1, ahead));
    while (fetch.next()) runs.push_back(fetch.ready());
    if (fetch.has_failed()) throw ExpertsNotRead(source.take_failure());
    return runs;
}

std::unique_ptr<ExpertCopies> copy_experts(ExpertSource &source, int64_t layer, const std::vector<int32_t> &experts,
                                           const std::vector<uintptr_t> &targets, bool is_passing) {
    if (experts.size() != targets.size()) refuse("as many targets as experts are needed");
    std::vector<uint8_t *> to;
    for (const uintptr_t target : targets) to.push_back(at<uint8_t>(target));
    nb::gil_scoped_release release;
    return std::make_unique<ExpertCopies>(source, layer, checked(source, layer, experts), to, is_passing);
}

void wait_copies(ExpertCopies &copies) {
    nb::gil_scoped_release release;
    if (!copies.wait()) throw ExpertsNotRead(copies.source().take_failure());
}

} // namespace

void bind_server(nb::module_ &m) {
    nb::exception<ExpertsNotRead>(m, "ExpertsNotRead");
    nb::class_<ExpertLayer>(m, "ExpertLayer")
        .def("__init__",
             [](ExpertLayer *self, int gate, int up, int down, int64_t num, int64_t hidden, int64_t size) {
                 new (self) ExpertLayer(layer_of(gate, up, down, num, hidden, size));
             },
             nb::arg("gate_format"), nb::arg("up_format"), nb::arg("down_format"), nb::arg("num_experts"),
             nb::arg("hidden_size"), nb::arg("expert_size"))
        .def_prop_ro("expert_bytes", &expert_bytes)
        .def("pack", [](const ExpertLayer &self, Context &ctx, ByteRows gate, ByteRows up, ByteRows down,
                        Bytes out) { pack_blob(ctx, self, gate, up, down, out); },
             nb::arg("ctx"), nb::arg("gate"), nb::arg("up"), nb::arg("down"), nb::arg("out").noconvert())
        .def("set_memory", &set_memory, nb::arg("blobs"), nb::arg("blob_bytes"), nb::arg("scales"));
    nb::class_<ExpertCopies>(m, "ExpertCopies").def("wait", &wait_copies);
    nb::class_<ExpertSource>(m, "ExpertSource")
        .def("__init__", &make_source, nb::arg("ctx"), nb::arg("layers"), nb::arg("files"), nb::arg("extents").noconvert(),
             nb::arg("places"), nb::arg("num_places"), nb::arg("place_bytes"), nb::arg("owners"), nb::arg("num_ahead") = 0,
             nb::keep_alive<1, 2>(), nb::keep_alive<1, 9>())
        .def("set_router", [](ExpertSource &self, int64_t layer, const Matrix &router) {
            self.next_experts().set_router(layer, router);
        }, nb::arg("layer"), nb::arg("router"), nb::keep_alive<1, 3>())
        .def("look_ahead", [](ExpertSource &self, int64_t top_k) { self.next_experts().set_top_k(top_k); }, nb::arg("top_k"))
        .def("guess", &guess_experts, nb::arg("ctx"), nb::arg("layer"), nb::arg("x").noconvert())
        .def_prop_ro("timed_reads", [](const ExpertSource &self) {
            return std::pair<int64_t, int64_t>(self.timed_bytes(), self.timed_nanoseconds());
        })
        .def("read_ahead_counts", &read_ahead_counts, nb::arg("out").noconvert())
        .def("set_home", [](ExpertSource &self, int64_t layer, int32_t expert, uintptr_t blob) {
            checked(self, layer, {expert});
            self.set_home(layer, expert, at<uint8_t>(blob));
        }, nb::arg("layer"), nb::arg("expert"), nb::arg("blob"))
        .def_prop_ro("cached_keys", &ExpertSource::cached_keys)
        .def("take_failure", &ExpertSource::take_failure)
        .def("drop_cached", &ExpertSource::drop_cached)
        .def("read_counts", &read_source_counts, nb::arg("out").noconvert())
        .def("fetch", &fetch_all, nb::arg("layer"), nb::arg("experts"), nb::arg("is_scan"),
             nb::arg("ahead") = std::vector<int32_t>{})
        .def("copy", &copy_experts, nb::arg("layer"), nb::arg("experts"), nb::arg("targets"),
             nb::arg("is_passing") = false, nb::keep_alive<0, 1>())
        .def("close", &ExpertSource::close, nb::call_guard<nb::gil_scoped_release>());
    nb::class_<ExpertServer>(m, "ExpertServer")
        .def("__init__", &make_server, nb::arg("ctx"), nb::arg("layers"), nb::arg("addresses"), nb::arg("max_rows"),
             nb::arg("top_k"), nb::arg("owners"), nb::arg("source").none() = nb::none(), nb::keep_alive<1, 2>(),
             nb::keep_alive<1, 7>(), nb::keep_alive<1, 8>())
        .def("start", &ExpertServer::start, nb::arg("number"), nb::call_guard<nb::gil_scoped_release>())
        .def("stop", &ExpertServer::stop, nb::arg("seconds"), nb::call_guard<nb::gil_scoped_release>())
        .def("begin", &ExpertServer::begin)
        .def("end", &ExpertServer::end)
        .def_prop_ro("is_running", &ExpertServer::is_running)
        .def("read_counts", &read_counts, nb::arg("out").noconvert());
    m.def("pack_panels", [](Context &ctx, int format, ByteRows raw, int64_t inner, Bytes out) {
        check_inner(format, inner);
        if ((int64_t)raw.shape(1) != row_bytes(format, inner)) refuse("rows have the wrong size");
        uint8_t *packed = data_of(out, packed_bytes(format, raw.shape(0), inner), "out");
        pack_rows(ctx, format, raw.data(), raw.shape(0), inner, packed);
    }, nb::arg("ctx"), nb::arg("format"), nb::arg("raw"), nb::arg("inner"), nb::arg("out").noconvert());
}
