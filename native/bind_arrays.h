// numpy arrays as the operations take them, with the checks that keep a wrong call from writing
// over foreign memory. Such a call is a bug of ours: it raises ValueError, not a StrataError.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>

#include "context.h"
#include "ops.h"

namespace strata {

namespace nb = nanobind;

template <class T> using Array = nb::ndarray<T, nb::c_contig, nb::device::cpu>;
using Floats = Array<float>;
using ConstFloats = Array<const float>;

// The array's data, after checking that it holds at least `size` values.
template <class A> auto *data_of(const A &array, int64_t size, const char *name) {
    if (int64_t(array.size()) < size)
        throw std::invalid_argument(std::string(name) + " holds " + std::to_string(array.size()) +
                                    " values, " + std::to_string(size) + " are needed");
    return array.data();
}

inline void check(bool is_true, const char *message) {
    if (!is_true) throw std::invalid_argument(message);
}

// One aligned piece of scratch for each thread.
class ThreadScratch {
  public:
    ThreadScratch(int num_threads, int64_t floats)
        : stride_((floats + 15) / 16 * 16),
          data_(static_cast<float *>(::operator new(sizeof(float) * stride_ * num_threads,
                                                    std::align_val_t(64)))) {}
    float *of(int thread) const { return data_.get() + stride_ * thread; }

  private:
    struct Free {
        void operator()(float *p) const { ::operator delete(p, std::align_val_t(64)); }
    };
    int64_t stride_;
    std::unique_ptr<float, Free> data_;
};

// Calls item(i, thread) for this thread's share of num_items; used inside Pool::run.
template <class Item> void share(int64_t num_items, int thread, int n, Item &&item) {
    const Range range = split(num_items, thread, n);
    for (int64_t i = range.begin; i < range.end; i++) item(i, thread);
}

// The same as one run of the pool.
template <class Item> void for_items(Context &ctx, int64_t num_items, Item &&item) {
    nb::gil_scoped_release released;
    ctx.pool.run([&](int thread, int n) { share(num_items, thread, n, item); });
}

} // namespace strata
