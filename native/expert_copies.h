// Experts copied to memory of somebody else's: out of memory, of a place of the cache, or of files.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "expert_source.h"

namespace strata {

// Begins when it is made. Any number of them at once; to begin and to end, they wait for a fetch.
class ExpertCopies {
  public:
    // targets: of each expert as many bytes as a file has of it.
    // is_passing: they come to no memory where they stay, so they will be asked for again. What is read
    // of them comes by way of free places of the cache, where it stays, as far as there are any. The
    // others' reads leave the cache as it is.
    ExpertCopies(ExpertSource &source, int64_t layer, const std::vector<int32_t> &experts,
                 const std::vector<uint8_t *> &targets, bool is_passing);
    // Returns when every expert is there; false where one did not come (ExpertSource::take_failure).
    // Not inside a run of the pool.
    bool wait();
    ExpertSource &source() const { return source_; }

  private:
    // Places of experts on their way. They are nobody else's: neither free, nor in the order of use,
    // nor found by their expert. Whatever becomes of this, they go back.
    class Places {
      public:
        explicit Places(ExpertSource &source) : source_(source) {}
        ~Places() { end(false); }
        Places(const Places &) = delete;
        Places &operator=(const Places &) = delete;
        // Under the source's lock. Where the expert is to be read to; null: it gets no place.
        uint8_t *take(int64_t key, uint8_t *target);
        void reserve(size_t num) { taken_.reserve(num); }
        // Nobody but this looks into the places, so this takes no lock.
        void copy_to_targets(int64_t size) const;
        // The experts are in the cache, or their places are free: those of what did not come, or came
        // elsewhere meanwhile, or was to be forgotten.
        void end(bool is_there);

      private:
        struct Taken {
            int64_t key;
            int32_t place;
            uint8_t *target;
        };
        ExpertSource &source_;
        uint64_t num_drops_ = 0;
        std::vector<Taken> taken_;
    };

    ExpertSource &source_;
    int64_t size_;
    bool is_ended_ = false, is_good_ = true;
    // In this order: reads end before their places go back.
    Places places_;
    std::unique_ptr<ExpertReads> reads_; // null: none is needed
};

} // namespace strata
