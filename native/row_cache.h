// Rows of a table kept in memory by their number, as many as fit; the least used go first.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <vector>

namespace strata {

class RowCache {
  public:
    // limit_bytes: of rows and of what finds them. Pages are taken from the system as rows come.
    RowCache(int64_t row_bytes, int64_t limit_bytes);

    // Copies the rows that are here to their places in out, [num, row_bytes]. The others: the index of
    // the first asking for each goes to `missing`, later ones to `repeats` as pairs (index, first).
    void take(const int64_t *rows, int64_t num, uint8_t *out, std::vector<int64_t> &missing,
              std::vector<int64_t> &repeats);
    // Keeps rows[i], whose bytes are raw + i * row_bytes, for each of the num indices i in `which`.
    void put(const int64_t *rows, const uint8_t *raw, const int64_t *which, int64_t num);

    int64_t row_bytes() const { return row_bytes_; }
    int64_t capacity() const { return capacity_; }
    int64_t size() const { return size_; }
    // Memory it may come to hold.
    int64_t num_bytes() const;
    // Rows asked for, and those of them that were here, since the beginning.
    int64_t num_asked() const { return num_asked_; }
    int64_t num_found() const { return num_found_; }

  private:
    struct Free {
        void operator()(void *p) const { std::free(p); }
    };
    template <class T> using Zeroed = std::unique_ptr<T[], Free>;

    int64_t home(int64_t row) const;
    // Where the row stands in the index, or the empty place where it would.
    int64_t find(int64_t row) const;
    uint32_t free_slot();
    void forget(int64_t place);

    int64_t row_bytes_, capacity_;
    int shift_ = 63; // of a hash, to a place in the index
    int64_t mask_ = 0;
    Zeroed<uint32_t> index_; // slot + 1; 0: empty
    Zeroed<int64_t> keys_;   // of each slot
    Zeroed<uint8_t> used_;   // asked for since the hand passed
    Zeroed<uint8_t> rows_;   // [capacity, row_bytes]
    int64_t size_ = 0, hand_ = 0, num_asked_ = 0, num_found_ = 0;
    std::mutex mutex_;
};

} // namespace strata
