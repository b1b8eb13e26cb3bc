#include "expert_source.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "matrix.h"

namespace strata {

namespace {

using Clock = std::chrono::steady_clock;

// Reads in flight; a solid-state disk is at its full rate from 32 to 128 on.
constexpr int NUM_READERS = 64;
// Experts that are read as one run: enough to keep the disk busy, few enough that computing begins
// before a layer has come.
constexpr size_t RUN = 32;
// Runs of a scan on their way at once: one is computed, one has come, one is read.
constexpr size_t SCAN_FLIGHTS = 3;
// What passes by takes a quarter of the places at most.
constexpr size_t SCAN_PLACES = 4;

// The last `num` of `all` numbers.
std::vector<int32_t> last_numbers(int64_t all, int64_t num) {
    std::vector<int32_t> numbers;
    for (int64_t i = std::max<int64_t>(0, all - std::max<int64_t>(0, num)); i < all; i++) numbers.push_back(int32_t(i));
    return numbers;
}

} // namespace

int64_t role_offset(const ExpertLayer &layer, int role) {
    int64_t offset = 0;
    for (int before = 0; before < role; before++)
        offset += packed_bytes(layer.formats[before], layer.rows(before), layer.inner(before));
    return offset;
}

void pack_expert(Context &ctx, const ExpertLayer &layer, const uint8_t *const raw[3], uint8_t *blob) {
    for (int role = 0; role < 3; role++)
        pack_rows(ctx, layer.formats[role], raw[role], layer.rows(role), layer.inner(role), blob + role_offset(layer, role));
}

ExpertSource::ExpertSource(Context &ctx, std::vector<ExpertLayer> layers, std::vector<ExpertFile> files,
                           std::vector<Extent> extents, uint8_t *places, int64_t num_places, int64_t place_bytes,
                           int64_t num_ahead)
    : ctx_(ctx), layers_(std::move(layers)), files_(std::move(files)), extents_(std::move(extents)), memory_(places),
      place_bytes_(place_bytes), places_(num_places), counts_(new SourceCounts[layers_.size()]),
      next_(int64_t(layers_.size())), ahead_(*this, last_numbers(num_places, num_ahead)), reader_(NUM_READERS) {
    int64_t num = 0;
    for (const ExpertLayer &layer : layers_) {
        first_key_.push_back(num);
        num_far_.push_back(layer.num);
        num += layer.num;
        if (expert_bytes(layer) > place_bytes) refuse("a place is too small for an expert");
    }
    if (num_places > INT32_MAX || num_ahead < 0 || num_places <= num_ahead || !places) refuse("at least one place is needed");
    if (num == 0 || (extents_.size() != size_t(num) && extents_.size() != size_t(3 * num)))
        refuse("each expert has one extent or three");
    parts_ = int(extents_.size() / num);
    for (size_t i = 0; i < extents_.size(); i++) {
        const Extent &e = extents_[i];
        if (e.file < 0 || e.file >= int64_t(files_.size()) || e.offset < 0 || e.size < 1) refuse("an extent lies in no file");
    }
    for (int64_t i = 0; i < num_layers(); i++)
        for (int64_t part = 0; part < layers_[i].num * parts_; part++) {
            const int64_t size = extents_[first_key_[i] * parts_ + part].size;
            const int role = int(part % parts_);
            const int64_t raw = layers_[i].rows(role) * row_bytes(layers_[i].formats[role], layers_[i].inner(role));
            if (is_packed() ? size < expert_bytes(layers_[i]) || size > place_bytes : size != raw)
                refuse("an extent has the wrong size");
        }
    homes_.assign(num, nullptr);
    place_of_.assign(num, -1);
    for (int64_t i = num_places - num_ahead; i-- > 0;) free_.push_back(int32_t(i));
}

void ExpertSource::set_home(int64_t layer, int64_t expert, const uint8_t *blob) {
    std::lock_guard<std::mutex> lock(mutex_);
    const uint8_t *&home = homes_[key_of(layer, expert)];
    num_far_[layer] += (home != nullptr) - (blob != nullptr);
    home = blob;
}

std::vector<int32_t> ExpertSource::guess_after(int64_t layer, const Activations &x) {
    const int64_t next = layer + 1;
    if (!ahead_.num_places() || !next_.knows(next) || !num_far_[next] || !record_.may_read()) return {};
    return next_.guess(ctx_, next, x);
}

void ExpertSource::look_ahead(int64_t layer, const Activations &x) {
    std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
    if (!lock) return;
    const std::vector<int32_t> experts = guess_after(layer, x);
    if (!experts.empty()) ahead_.begin(layer + 1, experts);
}

void ExpertSource::close() {
    if (std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock); lock) ahead_.make_way(-1, {});
    reader_.close();
}

std::vector<int64_t> ExpertSource::cached_keys() const {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<int64_t> keys;
    for (int32_t place = newest_; place >= 0; place = places_[place].after) keys.push_back(places_[place].key);
    return keys;
}

void ExpertSource::drop_cached() {
    std::lock_guard<std::mutex> lock(mutex_);
    while (oldest_ >= 0) {
        const int32_t place = oldest_;
        unlink(place);
        give_back(place);
    }
    num_drops_++;
    ahead_.clear();
}

std::string ExpertSource::take_failure() {
    std::lock_guard<std::mutex> lock(failure_mutex_);
    return std::exchange(failure_, {});
}

void ExpertSource::link(int32_t place, bool is_newest) {
    Place &p = places_[place];
    p.is_linked = true;
    p.before = is_newest ? -1 : oldest_;
    p.after = is_newest ? newest_ : -1;
    if (p.before >= 0) places_[p.before].after = place;
    else newest_ = place;
    if (p.after >= 0) places_[p.after].before = place;
    else oldest_ = place;
}

void ExpertSource::unlink(int32_t place) {
    Place &p = places_[place];
    (p.before >= 0 ? places_[p.before].after : newest_) = p.after;
    (p.after >= 0 ? places_[p.after].before : oldest_) = p.before;
    p = {p.key, -1, -1, false};
}

// A place for another expert: a free one, or that of the expert used longest ago. -1: all are in use.
int32_t ExpertSource::take_place() {
    if (!free_.empty()) {
        const int32_t place = free_.back();
        free_.pop_back();
        return place;
    }
    const int32_t place = oldest_;
    if (place < 0) return -1;
    unlink(place);
    place_of_[places_[place].key] = -1;
    places_[place].key = -1;
    return place;
}

// An unlinked place becomes free; what is in it is forgotten.
void ExpertSource::give_back(int32_t place) {
    if (places_[place].key >= 0) place_of_[places_[place].key] = -1;
    places_[place].key = -1;
    free_.push_back(place);
}

int64_t ExpertSource::layer_of(int64_t key) const {
    return std::upper_bound(first_key_.begin(), first_key_.end(), key) - first_key_.begin() - 1;
}

std::string ExpertSource::name_of(int64_t key) const {
    const int64_t layer = layer_of(key);
    return "expert " + std::to_string(key - first_key_[layer]) + " of layer " + std::to_string(layer);
}

void ExpertSource::set_failure(int64_t key, const ExpertFile &file, const ReadFailure &failure) {
    std::string reason = failure.error ? strerror(failure.error)
                                       : "expected " + std::to_string(failure.wanted) + " bytes, found " +
                                             std::to_string(failure.got) + "; the file has become shorter";
    char offset[32];
    snprintf(offset, sizeof offset, "%#llx", (unsigned long long)failure.offset);
    set_failure("cannot read " + name_of(key) + ": " + reason + ".\n  file: " + file.path + ", offset " + offset);
}

void ExpertSource::set_failure(int64_t layer, const std::exception &error) {
    const bool is_memory = dynamic_cast<const std::bad_alloc *>(&error);
    set_failure("cannot read experts of layer " + std::to_string(layer) + ": " +
                (is_memory ? "the system gave no memory for them" : error.what()) + ".");
}

void ExpertSource::set_failure(const std::string &text) {
    std::lock_guard<std::mutex> lock(failure_mutex_);
    failure_ = text;
}

ExpertFetch::ExpertFetch(ExpertSource &source, int64_t layer, std::vector<int32_t> experts, bool is_scan)
    : source_(source), lock_(source.mutex_), layer_(layer), experts_(std::move(experts)), is_scan_(is_scan),
      blobs_(experts_.size(), nullptr) {
    // Nothing may be thrown once a place has left the order: no destructor would follow.
    for (auto *numbers : {&ready_, &held_, &missing_}) numbers->reserve(experts_.size());
    source_.ahead_.make_way(layer_, experts_);
    SourceCounts &counts = source_.counts_[layer_];
    if (is_scan_) counts.scanned += int64_t(experts_.size());
    else counts.windows++;
    for (size_t i = 0; i < experts_.size(); i++) {
        const int64_t key = source_.key_of(layer_, experts_[i]);
        if (source_.homes_[key]) {
            counts.home++;
            blobs_[i] = source_.homes_[key];
            ready_.push_back(int32_t(i));
        } else if (const int32_t place = source_.place_of_[key]; place >= 0) {
            counts.cached++;
            source_.unlink(place);
            held_.push_back(place);
            blobs_[i] = source_.memory_of(place);
            ready_.push_back(int32_t(i));
        } else {
            missing_.push_back(int32_t(i));
        }
    }
    const auto is_ahead = [this](int32_t i) { return source_.ahead_.has(source_.key_of(layer_, experts_[i])); };
    num_ahead_ = std::stable_partition(missing_.begin(), missing_.end(), is_ahead) - missing_.begin();
}

ExpertFetch::~ExpertFetch() {
    release();
    for (Flight &flight : flights_) drop(flight);
}

void ExpertFetch::release() {
    // What passes by gives its places to what comes next; what was there before is wanted again.
    for (const int32_t place : held_) source_.link(place, !is_scan_ || are_hits_);
    held_.clear();
    ready_.clear();
}

// Reads on their way end, and their places are free again.
void ExpertFetch::drop(Flight &flight) {
    flight.reads.clear();
    for (const int32_t place : flight.places) source_.give_back(place);
}

void ExpertFetch::begin_reads() {
    const size_t run =
        std::clamp<size_t>(source_.num_places() / (SCAN_FLIGHTS * (is_scan_ ? SCAN_PLACES : 1)), 1, RUN);
    while (next_missing_ < missing_.size() && (!is_scan_ || flights_.size() < SCAN_FLIGHTS)) {
        // Whatever is thrown, the destructor finds the places.
        Flight &flight = flights_.emplace_back();
        try {
            if (begin_flight(flight, run)) continue;
            flights_.pop_back();
        } catch (const std::exception &error) { // no memory for what has to be packed
            has_failed_ = true;
            source_.set_failure(layer_, error);
        }
        return;
    }
}

// So many of those that are missing, either from what was read ahead or from files; false: no place.
bool ExpertFetch::begin_flight(Flight &flight, size_t most) {
    std::vector<int64_t> keys;
    std::vector<uint8_t *> targets;
    const bool is_ahead = next_missing_ < num_ahead_;
    const size_t end = std::min(is_ahead ? num_ahead_ : missing_.size(), next_missing_ + most);
    const size_t num = end - next_missing_;
    // Nothing may be thrown while a place is neither free nor the flight's.
    flight.items.reserve(num), flight.places.reserve(num), flight.reads.reserve(is_ahead ? num : 1);
    keys.reserve(num), targets.reserve(num);
    for (; next_missing_ < end; next_missing_++) {
        int32_t place = source_.take_place();
        if (place < 0) break;
        const int32_t item = missing_[next_missing_];
        const int64_t key = source_.key_of(layer_, experts_[item]);
        if (is_ahead) flight.reads.push_back(source_.ahead_.take(key, place));
        source_.places_[place].key = key;
        source_.place_of_[key] = place;
        flight.items.push_back(item);
        flight.places.push_back(place);
        keys.push_back(key);
        targets.push_back(source_.memory_of(place));
    }
    if (flight.items.empty()) return false;
    flight.begun = Clock::now();
    if (!is_ahead) flight.reads.push_back(std::make_unique<ExpertReads>(source_, std::move(keys), std::move(targets)));
    return true;
}

void ExpertFetch::read_ahead(int64_t layer, std::vector<int32_t> experts) {
    ahead_layer_ = layer;
    ahead_experts_ = std::move(experts);
    begin_ahead();
}

void ExpertFetch::begin_ahead() {
    if (ahead_layer_ < 0 || !flights_.empty() || next_missing_ < missing_.size()) return;
    source_.ahead_.begin(std::exchange(ahead_layer_, -1), ahead_experts_);
}

void ExpertFetch::count_time(const Flight &flight) {
    for (const int32_t item : flight.items)
        source_.timed_bytes_ += source_.stored_bytes(source_.key_of(layer_, experts_[item]));
    source_.timed_nanoseconds_ += std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - flight.begun).count();
}

// What was read ahead and did not come is read as if it had never been.
bool ExpertFetch::wait(Flight &flight) try {
    for (size_t i = 0; i < flight.reads.size(); i++) {
        if (flight.reads[i]->wait()) continue;
        if (!flight.reads[i]->is_ahead()) return false;
        const int64_t key = source_.key_of(layer_, experts_[flight.items[i]]);
        const std::vector<uint8_t *> target = {source_.memory_of(flight.places[i])};
        flight.reads[i] = std::make_unique<ExpertReads>(source_, std::vector<int64_t>{key}, target);
        if (!flight.reads[i]->wait()) return false;
    }
    return true;
} catch (const std::exception &error) {
    source_.set_failure(layer_, error);
    return false;
}

bool ExpertFetch::next() {
    if (has_failed_) return false;
    const bool has_hits = !has_begun_ && !ready_.empty();
    has_begun_ = true;
    if (!has_hits) {
        release();
        are_hits_ = false;
    }
    begin_reads();
    if (has_failed_) return false;
    if (has_hits) return true;
    if (flights_.empty()) return false;
    const auto begin = Clock::now();
    const ExpertReads &first = *flights_.front().reads.front();
    // What is there already may have been for long, and what others read meanwhile took their time.
    const bool is_timed = flights_.size() == 1 && !first.is_ahead() && !first.is_done();
    const bool is_good = wait(flights_.front());
    Flight flight = std::move(flights_.front());
    flights_.pop_front();
    if (is_good && is_timed) count_time(flight);
    const int64_t waited = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin).count();
    wait_nanoseconds_ += waited;
    source_.counts_[layer_].wait_nanoseconds += waited;
    if (!is_good) {
        has_failed_ = true;
        drop(flight);
        return false;
    }
    begin_ahead();
    if (is_scan_) source_.counts_[layer_].scan_read += int64_t(flight.items.size());
    for (size_t i = 0; i < flight.items.size(); i++) {
        blobs_[flight.items[i]] = source_.memory_of(flight.places[i]);
        num_read_++;
        bytes_read_ += source_.stored_bytes(source_.key_of(layer_, experts_[flight.items[i]]));
    }
    ready_ = std::move(flight.items);
    held_ = std::move(flight.places);
    return true;
}

} // namespace strata
