// Python: reads of files, rows kept in memory, rows decoded.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "bind_arrays.h"
#include "file_reads.h"
#include "row_cache.h"
#include "row_decode.h"

namespace nb = nanobind;
using namespace strata;

namespace {

using Numbers = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<uint8_t, nb::c_contig, nb::device::cpu>;
using FloatRows = nb::ndarray<float, nb::ndim<2>, nb::device::cpu>;
using ByteRows = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

[[noreturn]] void refuse(const std::string &what) { throw std::invalid_argument(what); }

// A batch, and the array it is read into.
struct Reads {
    std::shared_ptr<ReadBatch> batch;
    Bytes out;

    Reads(std::shared_ptr<ReadBatch> b, Bytes o) : batch(std::move(b)), out(std::move(o)) {}
    Reads(Reads &&) = default;
    ~Reads() {
        if (!batch) return;
        // Nobody waited: nothing may be written to the array any more.
        batch->cancel();
        batch->wait();
    }
};

Reads start_reads(FileReader &reader, int fd, const Numbers &offsets, const Numbers &sizes, const Numbers &places,
                  Bytes out, bool is_direct) {
    const size_t num = offsets.size();
    if (sizes.size() != num || places.size() != num) refuse("every read needs an offset, a size and a place");
    std::vector<FileRead> reads(num);
    const auto room = int64_t(out.size());
    for (size_t i = 0; i < num; i++) {
        const int64_t offset = offsets.data()[i], size = sizes.data()[i], place = places.data()[i];
        if (offset < 0 || size < 0) refuse("an offset or a size is negative");
        if (place < 0 || place > room || size > room - place) refuse("a read would end outside its array");
        reads[i] = {offset, size, out.data() + place};
    }
    auto batch = std::make_shared<ReadBatch>(fd, is_direct, reads);
    reader.start(batch);
    return Reads(std::move(batch), std::move(out));
}

nb::object wait_reads(Reads &self) {
    if (!self.batch->is_done()) {
        nb::gil_scoped_release release;
        self.batch->wait();
    }
    if (!self.batch->has_failed()) return nb::none();
    const ReadFailure failure = self.batch->failure();
    return nb::make_tuple(failure.error, failure.offset, failure.wanted, failure.got);
}

void abandon_reads(Reads &self) {
    self.batch->cancel();
    nb::gil_scoped_release release;
    self.batch->wait();
}

nb::object to_array(std::vector<int64_t> &&values) {
    auto *kept = new std::vector<int64_t>(std::move(values));
    nb::capsule owner(kept, [](void *p) noexcept { delete static_cast<std::vector<int64_t> *>(p); });
    return nb::ndarray<nb::numpy, int64_t, nb::ndim<1>>(kept->data(), {kept->size()}, owner).cast();
}

void check_rows(const RowCache &cache, const Numbers &rows, int64_t bytes) {
    if (bytes != int64_t(rows.size()) * cache.row_bytes())
        refuse(std::to_string(bytes) + " bytes are not " + std::to_string(rows.size()) + " rows of " +
               std::to_string(cache.row_bytes()));
}

// Copies kept rows into out. Of the others, as ReadFile.start takes them: index among the rows, offset
// in the file, size, place in out; and pairs of indices whose first repeats the second, or None.
nb::object take_rows(RowCache &cache, const Numbers &rows, int64_t num_rows, int64_t offset, const Bytes &out) {
    check_rows(cache, rows, int64_t(out.size()));
    std::vector<int64_t> missing, repeats;
    cache.take(rows.data(), int64_t(rows.size()), out.data(), missing, repeats);
    if (missing.empty()) return nb::none();
    const size_t num = missing.size();
    std::vector<int64_t> offsets(num), sizes(num, cache.row_bytes()), places(num);
    for (size_t i = 0; i < num; i++) {
        const int64_t row = rows.data()[missing[i]];
        if (row < 0 || row >= num_rows) throw std::out_of_range("there is no row " + std::to_string(row));
        offsets[i] = offset + row * cache.row_bytes();
        places[i] = missing[i] * cache.row_bytes();
    }
    nb::object again = repeats.empty() ? nb::object(nb::none()) : to_array(std::move(repeats));
    return nb::make_tuple(to_array(std::move(missing)), to_array(std::move(offsets)), to_array(std::move(sizes)),
                          to_array(std::move(places)), again);
}

// Keeps rows[i], which lies in raw at i, for each i of `which`.
void put_rows(RowCache &cache, const Numbers &rows, const ByteRows &raw, const Numbers &which) {
    check_rows(cache, rows, int64_t(raw.size()));
    for (size_t i = 0; i < which.size(); i++)
        if (which.data()[i] < 0 || which.data()[i] >= int64_t(rows.size())) refuse("an index is outside the rows");
    cache.put(rows.data(), raw.data(), which.data(), int64_t(which.size()));
}

// A row of out, which may lie apart from the next, takes as many decoded ones as fit, side by side.
void decode_rows(int format, const ByteRows &raw, nb::object wanted, float scale, const FloatRows &out) {
    if (!is_row_format(format)) refuse("format " + std::to_string(format) + " is not decoded here");
    const FormatShape shape = format_shape(format);
    const int64_t bytes = raw.shape(1), blocks = bytes / shape.block_bytes, width = blocks * shape.block_size;
    if (bytes == 0 || bytes % shape.block_bytes) refuse("a row is not a whole number of blocks");
    Numbers rows;
    const bool is_gather = !wanted.is_none();
    if (is_gather && !nb::try_cast<Numbers>(wanted, rows, false)) refuse("rows must be int64 [N]");
    const int64_t num = is_gather ? int64_t(rows.size()) : int64_t(raw.shape(0));
    const int64_t room = int64_t(out.shape(1)), each = room / width;
    if (int64_t(out.size()) != num * width || (num && (room % width || (room > 1 && out.stride(1) != 1))))
        refuse("the output has the wrong size");
    const int64_t *at = is_gather ? rows.data() : nullptr;
    for (int64_t i = 0; at && i < num; i++)
        if (at[i] < 0 || at[i] >= int64_t(raw.shape(0)))
            throw std::out_of_range("there is no row " + std::to_string(at[i]));
    const uint8_t *stored = raw.data();
    float *const first = out.data();
    const int64_t stride = out.stride(0);
    // A few rows end sooner than other threads would give the interpreter back; but rows of a mapped
    // file may have to come from the disk.
    nb::gil_scoped_release release;
    for (int64_t i = 0; i < num; i++) {
        float *to = first + i / each * stride + i % each * width;
        decode_row(format, stored + (at ? at[i] : i) * bytes, blocks, to);
        if (scale != 1.0f)
            for (int64_t j = 0; j < width; j++) to[j] *= scale;
    }
}

} // namespace

void bind_files(nb::module_ &m) {
    nb::class_<Reads>(m, "FileReads")
        .def_prop_ro("is_done", [](const Reads &r) { return r.batch->is_done(); })
        .def_prop_ro("num_reads", [](const Reads &r) { return r.batch->num_reads(); })
        .def_prop_ro("num_bytes", [](const Reads &r) { return r.batch->num_bytes(); })
        .def("wait", wait_reads)
        .def("abandon", abandon_reads);
    nb::class_<FileReader>(m, "FileReader")
        .def(
            "__init__",
            [](FileReader *self, int num_threads) {
                if (num_threads < 0 || num_threads > 1024) refuse("num_threads must be between 0 and 1024");
                new (self) FileReader(num_threads);
            },
            nb::arg("num_threads"))
        .def_prop_ro("num_threads", &FileReader::num_threads)
        .def("start", start_reads, nb::keep_alive<0, 1>(), nb::arg("fd"), nb::arg("offsets").noconvert(),
             nb::arg("sizes").noconvert(), nb::arg("places").noconvert(), nb::arg("out").noconvert(),
             nb::arg("is_direct"))
        .def("close", &FileReader::close, nb::call_guard<nb::gil_scoped_release>());
    nb::class_<RowCache>(m, "RowCache")
        .def(
            "__init__",
            [](RowCache *self, int64_t row_bytes, int64_t limit_bytes) {
                if (row_bytes < 1 || limit_bytes < 0) refuse("a row has at least one byte, a cache none or more");
                new (self) RowCache(row_bytes, limit_bytes);
            },
            nb::arg("row_bytes"), nb::arg("limit_bytes"))
        .def_prop_ro("capacity", &RowCache::capacity)
        .def_prop_ro("num_bytes", &RowCache::num_bytes)
        .def_prop_ro("num_asked", &RowCache::num_asked)
        .def_prop_ro("num_found", &RowCache::num_found)
        .def("__len__", &RowCache::size)
        .def("take", take_rows, nb::arg("rows").noconvert(), nb::arg("num_rows"), nb::arg("offset"),
             nb::arg("out").noconvert())
        .def("put", put_rows, nb::arg("rows").noconvert(), nb::arg("raw").noconvert(), nb::arg("which").noconvert());
    m.attr("DIRECT_ALIGNMENT") = DIRECT_ALIGNMENT;
    m.def("is_row_format", &is_row_format);
    m.def("decode_rows", decode_rows, nb::arg("format"), nb::arg("raw"), nb::arg("rows").none(), nb::arg("scale"),
          nb::arg("out").noconvert());
}
