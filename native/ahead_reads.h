// Experts read before anybody asked for them, in places of their own; and who they are: a guess.
//
// Nothing here changes a result: what was read ahead is taken instead of being read, and what could
// not be read is read again by whoever asks (docs/decisions/0017-look-ahead.md).
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "context.h"
#include "matrix.h"
#include "memory.h"
#include "products.h"

namespace strata {

class ExpertSource;
class ExpertReads;

// The experts that the next layer's router chooses for this layer's input.
class NextExperts {
  public:
    explicit NextExperts(int64_t num_layers) : routers_(num_layers, nullptr) {}
    // A quantised router; the matrix outlives this.
    void set_router(int64_t layer, const Matrix &router);
    // Of each row so many; 0: nobody guesses. At any time.
    void set_top_k(int64_t k) { top_k_ = k; }
    int64_t top_k() const { return top_k_; }
    bool knows(int64_t layer) const { return layer < int64_t(routers_.size()) && routers_[layer] && top_k_ > 0; }
    // Distinct experts of `layer`, first those that rows want most. x: codes of the input of the
    // layer before. Runs the pool.
    std::vector<int32_t> guess(Context &ctx, int64_t layer, const Activations &x);

  private:
    std::vector<const Matrix *> routers_;
    std::atomic<int64_t> top_k_{0};
    int64_t room_ = 0;
    Buffer logits_;
};

// Whether guesses are worth their reads, by how many of the last were taken.
class AheadRecord {
  public:
    void add_begun(int64_t num) { begun_ += num; }
    void add_used() { used_++; }
    // Asked once for each layer that could be guessed for; false: not this time.
    bool may_read();

  private:
    int64_t begun_ = 0, used_ = 0, pause_ = 0;
};

// What is on its way or there. Under the source's lock.
class AheadReads {
  public:
    // places: of the source, not the cache's.
    AheadReads(ExpertSource &source, std::vector<int32_t> places);
    ~AheadReads();

    int64_t num_places() const { return num_places_; }
    // Begins to read those of the layer that are in no memory, as long as there are places.
    void begin(int64_t layer, const std::vector<int32_t> &experts);
    bool has(int64_t key) const;
    // The reads of an expert and their place, for which `place` is given.
    std::unique_ptr<ExpertReads> take(int64_t key, int32_t &place);
    // Others are to be read: pieces that nobody has begun are left out, but for these experts.
    void make_way(int64_t layer, const std::vector<int32_t> &wanted);
    // Forgets all of it; waits for what is on its way.
    void clear();

  private:
    struct Item {
        int64_t key, call; // which call of begin()
        int32_t place;
        bool is_left; // given up, and on its way still
        std::unique_ptr<ExpertReads> reads;
    };

    void drop(size_t number);
    bool free_place();

    ExpertSource &source_;
    std::vector<int32_t> places_; // free ones
    int64_t num_places_, num_calls_ = 0;
    std::deque<Item> items_; // the oldest first
};

} // namespace strata
