#include "row_cache.h"

#include <algorithm>
#include <cstring>
#include <new>

namespace strata {

namespace {

constexpr uint64_t HASH = 0x9e3779b97f4a7c15; // 2^64 over the golden ratio: spreads neighbours
constexpr int64_t SLOT_BYTES = sizeof(int64_t) + 1; // key and mark

template <class T> T *zeroed(int64_t num) {
    // Pages that nothing was written to take no memory.
    void *p = std::calloc(std::max<int64_t>(num, 1), sizeof(T));
    if (!p) throw std::bad_alloc();
    return static_cast<T *>(p);
}

// Has the system give the first pages now. Of the index a page is read before it is written, and then
// it costs twice: the second time every thread is told that the empty page is no more, some 9 us.
void touch(volatile uint32_t *p, int64_t num) {
    constexpr int64_t PAGE = 4096 / sizeof(uint32_t), MOST = (int64_t(4) << 20) / sizeof(uint32_t);
    for (int64_t i = 0; i < std::min(num, MOST); i += PAGE) p[i] = 0;
}

// Places of the index: a power of two, a quarter to a half of them filled.
int index_bits(int64_t capacity) {
    int bits = 1;
    while ((int64_t(1) << bits) < 2 * capacity) bits++;
    return bits;
}

int64_t total_bytes(int64_t capacity, int64_t row_bytes) {
    return capacity == 0 ? 0 : capacity * (row_bytes + SLOT_BYTES) + (int64_t(4) << index_bits(capacity));
}

int64_t capacity_of(int64_t row_bytes, int64_t limit_bytes) {
    int64_t low = 0, high = std::min<int64_t>(limit_bytes / (row_bytes + SLOT_BYTES), int64_t(1) << 31);
    while (low < high) {
        const int64_t middle = (low + high + 1) / 2;
        if (total_bytes(middle, row_bytes) <= limit_bytes) low = middle;
        else high = middle - 1;
    }
    return low;
}

} // namespace

RowCache::RowCache(int64_t row_bytes, int64_t limit_bytes)
    : row_bytes_(row_bytes), capacity_(capacity_of(row_bytes, limit_bytes)) {
    const int bits = index_bits(capacity_);
    shift_ = 64 - bits;
    mask_ = (int64_t(1) << bits) - 1;
    index_.reset(zeroed<uint32_t>(mask_ + 1));
    touch(index_.get(), mask_ + 1);
    keys_.reset(zeroed<int64_t>(capacity_));
    used_.reset(zeroed<uint8_t>(capacity_));
    rows_.reset(zeroed<uint8_t>(capacity_ * row_bytes_));
}

int64_t RowCache::num_bytes() const { return total_bytes(capacity_, row_bytes_); }

int64_t RowCache::home(int64_t row) const { return int64_t(uint64_t(row) * HASH >> shift_); }

int64_t RowCache::find(int64_t row) const {
    int64_t place = home(row);
    while (index_[place] != 0 && keys_[index_[place] - 1] != row) place = (place + 1) & mask_;
    return place;
}

void RowCache::take(const int64_t *rows, int64_t num, uint8_t *out, std::vector<int64_t> &missing,
                    std::vector<int64_t> &repeats) {
    std::lock_guard<std::mutex> lock(mutex_);
    num_asked_ += num;
    for (int64_t i = 0; i < num; i++) {
        const uint32_t slot = index_[find(rows[i])];
        if (slot == 0) {
            missing.push_back(i);
            continue;
        }
        used_[slot - 1] = 1;
        std::memcpy(out + i * row_bytes_, rows_.get() + int64_t(slot - 1) * row_bytes_, row_bytes_);
    }
    num_found_ += num - int64_t(missing.size());
    if (missing.size() < 2) return;
    // The same row twice, neither of them here: found by sorting, since there are few.
    std::vector<int64_t> sorted(missing);
    std::sort(sorted.begin(), sorted.end(), [&](int64_t a, int64_t b) {
        return rows[a] != rows[b] ? rows[a] < rows[b] : a < b;
    });
    int64_t first = sorted[0];
    for (size_t j = 1; j < sorted.size(); j++) {
        if (rows[sorted[j]] != rows[first]) {
            first = sorted[j];
        } else {
            repeats.push_back(sorted[j]);
            repeats.push_back(first);
        }
    }
    if (repeats.empty()) return;
    sorted.clear();
    for (size_t j = 0; j < repeats.size(); j += 2) sorted.push_back(repeats[j]);
    std::sort(sorted.begin(), sorted.end());
    const auto is_repeat = [&](int64_t i) { return std::binary_search(sorted.begin(), sorted.end(), i); };
    missing.erase(std::remove_if(missing.begin(), missing.end(), is_repeat), missing.end());
}

void RowCache::put(const int64_t *rows, const uint8_t *raw, const int64_t *which, int64_t num) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (capacity_ == 0) return;
    for (int64_t j = 0; j < num; j++) {
        const int64_t i = which[j], row = rows[i];
        // Another request may have brought it meanwhile.
        if (index_[find(row)] != 0) continue;
        const uint32_t slot = free_slot();
        keys_[slot] = row;
        used_[slot] = 0;
        std::memcpy(rows_.get() + int64_t(slot) * row_bytes_, raw + i * row_bytes_, row_bytes_);
        index_[find(row)] = slot + 1;
    }
}

uint32_t RowCache::free_slot() {
    if (size_ < capacity_) return uint32_t(size_++);
    while (used_[hand_]) {
        used_[hand_] = 0;
        hand_ = (hand_ + 1) % capacity_;
    }
    const auto slot = uint32_t(hand_);
    hand_ = (hand_ + 1) % capacity_;
    forget(find(keys_[slot]));
    return slot;
}

// Empties a place; those behind it that could not stand nearer to home move up.
void RowCache::forget(int64_t place) {
    index_[place] = 0;
    for (int64_t next = (place + 1) & mask_; index_[next] != 0; next = (next + 1) & mask_) {
        const int64_t wanted = home(keys_[index_[next] - 1]);
        if (((next - wanted) & mask_) < ((next - place) & mask_)) continue;
        index_[place] = index_[next];
        index_[next] = 0;
        place = next;
    }
}

} // namespace strata
