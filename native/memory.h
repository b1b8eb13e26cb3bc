// Aligned memory: weights in pages of 2 MiB where the system gives them, and a scratch per thread.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <new>
#include <utility>
#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace strata {

// Owns bytes aligned to a cache line (to 2 MiB when large); contents are not set. Readers may look
// up to READ_PAST bytes behind the end.
class Buffer {
  public:
    static constexpr int64_t READ_PAST = 64;

    Buffer() = default;
    explicit Buffer(int64_t bytes) {
        const int64_t align = bytes >= HUGE_PAGE ? HUGE_PAGE : 64;
        const int64_t size = (bytes + READ_PAST + align - 1) / align * align;
        p_ = static_cast<uint8_t *>(std::aligned_alloc(align, size));
        if (!p_) throw std::bad_alloc();
#if defined(__linux__)
        if (align == HUGE_PAGE) madvise(p_, size, MADV_HUGEPAGE);
#endif
    }
    Buffer(Buffer &&other) noexcept : p_(std::exchange(other.p_, nullptr)) {}
    Buffer &operator=(Buffer &&other) noexcept {
        std::swap(p_, other.p_);
        return *this;
    }
    ~Buffer() { std::free(p_); }

    uint8_t *get() const { return p_; }

  private:
    static constexpr int64_t HUGE_PAGE = 2 << 20;
    uint8_t *p_ = nullptr;
};

// At least `bytes` of this thread's own scratch, kept for the next call.
inline uint8_t *thread_scratch(int64_t bytes) {
    thread_local Buffer buffer;
    thread_local int64_t size = 0;
    if (size < bytes) {
        buffer = Buffer(bytes);
        size = bytes;
    }
    return buffer.get();
}

} // namespace strata
