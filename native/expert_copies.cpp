#include "expert_copies.h"

#include <string.h>

#include <utility>

namespace strata {

uint8_t *ExpertCopies::Places::take(int64_t key, uint8_t *target) {
    // One is left to whoever fetches meanwhile: without any, a fetch would end before its last expert.
    if (source_.free_.empty() || source_.num_reserved_ + 1 >= source_.num_places()) return nullptr;
    const int32_t place = source_.take_place();
    source_.num_reserved_++;
    num_drops_ = source_.num_drops_;
    taken_.push_back({key, place, target});
    return source_.memory_of(place);
}

void ExpertCopies::Places::copy_to_targets(int64_t size) const {
    for (const Taken &taken : taken_) memcpy(taken.target, source_.memory_of(taken.place), size);
}

void ExpertCopies::Places::end(bool is_there) {
    if (taken_.empty()) return;
    std::lock_guard<std::mutex> lock(source_.mutex_);
    is_there = is_there && num_drops_ == source_.num_drops_;
    for (const Taken &taken : taken_) {
        source_.num_reserved_--;
        if (!is_there || source_.homes_[taken.key] || source_.place_of_[taken.key] >= 0) {
            source_.give_back(taken.place);
            continue;
        }
        source_.places_[taken.place].key = taken.key;
        source_.place_of_[taken.key] = taken.place;
        source_.link(taken.place, true);
    }
    taken_.clear();
}

ExpertCopies::ExpertCopies(ExpertSource &source, int64_t layer, const std::vector<int32_t> &experts,
                           const std::vector<uint8_t *> &targets, bool is_passing)
    : source_(source), size_(expert_bytes(source.layers_[layer])), places_(source) {
    std::lock_guard<std::mutex> lock(source.mutex_);
    std::vector<int64_t> keys;
    std::vector<uint8_t *> rest;
    std::vector<std::pair<const uint8_t *, uint8_t *>> found;
    places_.reserve(experts.size()); // nothing may be thrown while a place is nobody's
    SourceCounts &counts = source.counts_[layer];
    for (size_t i = 0; i < experts.size(); i++) {
        const int64_t key = source.key_of(layer, experts[i]);
        const int32_t place = source.place_of_[key];
        if (const uint8_t *home = source.homes_[key]) {
            counts.home++;
            found.push_back({home, targets[i]});
        } else if (place >= 0) {
            counts.cached++;
            found.push_back({source.memory_of(place), targets[i]});
            if (!is_passing) continue;
            source.unlink(place);
            source.link(place, true);
        } else {
            keys.push_back(key);
            rest.push_back(targets[i]);
        }
    }
    for (size_t i = 0; is_passing && i < keys.size(); i++)
        if (uint8_t *place = places_.take(keys[i], rest[i])) rest[i] = place;
    if (!keys.empty()) {
        source.ahead_.make_way(-1, {});
        reads_ = std::make_unique<ExpertReads>(source, std::move(keys), std::move(rest));
    }
    // The disk is at work meanwhile.
    for (const auto &[from, to] : found) memcpy(to, from, size_);
}

bool ExpertCopies::wait() {
    if (is_ended_) return is_good_;
    is_good_ = !reads_ || reads_->wait();
    is_ended_ = true;
    if (is_good_) places_.copy_to_targets(size_);
    places_.end(is_good_);
    return is_good_;
}

} // namespace strata
