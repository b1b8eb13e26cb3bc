#include "ahead_reads.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <numeric>
#include <utility>

#include "expert_source.h"

namespace strata {

namespace {

// So many reads are looked at together. Where less than a third was taken, wrong ones were in the way
// for longer than right ones saved (benchmarks/look_ahead.py), and so many layers are left alone.
constexpr int64_t JUDGED_READS = 256, LEAST_PART = 3, PAUSE_LAYERS = 2048;

} // namespace

bool AheadRecord::may_read() {
    if (pause_ > 0) {
        pause_--;
        return false;
    }
    if (begun_ < JUDGED_READS) return true;
    const bool is_worth = used_ * LEAST_PART >= begun_;
    begun_ = used_ = 0;
    if (!is_worth) pause_ = PAUSE_LAYERS;
    return is_worth;
}

void NextExperts::set_router(int64_t layer, const Matrix &router) {
    if (layer < 0 || layer >= int64_t(routers_.size())) refuse("there is no such layer");
    if (!is_quantized(router.format)) refuse("a router to guess by must be quantised");
    routers_[layer] = &router;
}

std::vector<int32_t> NextExperts::guess(Context &ctx, int64_t layer, const Activations &x) {
    const Matrix &router = *routers_[layer];
    const int64_t num = router.rows, k = std::min(top_k(), num);
    if (router.inner != x.inner) refuse("a router of another width");
    if (room_ < x.rows * num) {
        logits_ = Buffer(x.rows * num * 4);
        room_ = x.rows * num;
    }
    float *logits = (float *)logits_.get();
    Queue queue(num_panels(num));
    const int64_t piece = piece_of(panel_bytes(router.format, router.inner), x.rows);
    ctx.pool.run([&](int, int) {
        Range range;
        while (queue.take(piece, range))
            run_job(ctx, {router.format, router.data.get(), num, router.scale, &x, nullptr, x.rows, logits, num},
                    range.begin, range.end);
    });
    for (int64_t i = 0; i < x.rows * num; i++)
        if (!std::isfinite(logits[i])) logits[i] = -std::numeric_limits<float>::infinity();
    std::vector<std::vector<int32_t>> best(x.rows);
    for (int64_t r = 0; r < x.rows; r++) {
        const float *row = logits + r * num;
        best[r].resize(num);
        std::iota(best[r].begin(), best[r].end(), 0);
        std::partial_sort(best[r].begin(), best[r].begin() + k, best[r].end(),
                          [row](int32_t a, int32_t b) { return row[a] != row[b] ? row[a] > row[b] : a < b; });
    }
    std::vector<int32_t> found;
    std::vector<bool> is_found(num);
    for (int64_t rank = 0; rank < k; rank++)
        for (const auto &order : best)
            if (!is_found[order[rank]]) {
                is_found[order[rank]] = true;
                found.push_back(order[rank]);
            }
    return found;
}

AheadReads::AheadReads(ExpertSource &source, std::vector<int32_t> places)
    : source_(source), places_(std::move(places)), num_places_(int64_t(places_.size())) {}

AheadReads::~AheadReads() = default;

bool AheadReads::has(int64_t key) const {
    return std::any_of(items_.begin(), items_.end(), [key](const Item &item) { return item.key == key && !item.is_left; });
}

// An item that nobody took, whose reads have ended or are ended here.
void AheadReads::drop(size_t number) {
    Item &item = items_[number];
    item.reads->abandon();
    SourceCounts &counts = source_.counts_[source_.layer_of(item.key)];
    counts.ahead_dropped++;
    counts.ahead_bytes += item.reads->num_bytes();
    places_.push_back(item.place);
    items_.erase(items_.begin() + number);
}

// Makes a place free: of what was given up, or else of the oldest of earlier calls.
bool AheadReads::free_place() {
    for (size_t i = items_.size(); i-- > 0;)
        if (items_[i].is_left && items_[i].reads->is_done()) drop(i);
    for (size_t i = 0; places_.empty() && i < items_.size(); i++)
        if (items_[i].reads->is_done() && items_[i].call != num_calls_) drop(i);
    return !places_.empty();
}

void AheadReads::begin(int64_t layer, const std::vector<int32_t> &experts) {
    int64_t num = 0;
    num_calls_++;
    for (const int32_t expert : experts) {
        const int64_t key = source_.key_of(layer, expert);
        if (source_.homes_[key] || source_.place_of_[key] >= 0 || has(key)) continue;
        if (!free_place()) break;
        const int32_t place = places_.back();
        try {
            auto reads = std::make_unique<ExpertReads>(source_, std::vector<int64_t>{key},
                                                       std::vector<uint8_t *>{source_.memory_of(place)}, true);
            items_.push_back({key, num_calls_, place, false, std::move(reads)});
        } catch (const std::exception &) { // no memory: whoever asks will read it
            break;
        }
        places_.pop_back();
        num++;
    }
    source_.counts_[layer].ahead += num;
    source_.record_.add_begun(num);
}

std::unique_ptr<ExpertReads> AheadReads::take(int64_t key, int32_t &place) {
    const auto at = std::find_if(items_.begin(), items_.end(), [key](const Item &item) { return item.key == key && !item.is_left; });
    if (at == items_.end()) return nullptr;
    std::unique_ptr<ExpertReads> reads = std::move(at->reads);
    places_.push_back(std::exchange(place, at->place));
    items_.erase(at);
    source_.counts_[source_.layer_of(key)].ahead_used++;
    source_.record_.add_used();
    return reads;
}

void AheadReads::make_way(int64_t layer, const std::vector<int32_t> &wanted) {
    for (Item &item : items_) {
        if (item.is_left || item.reads->is_done()) continue;
        if (source_.layer_of(item.key) == layer) {
            const int64_t expert = item.key - source_.key_of(layer, 0);
            if (std::find(wanted.begin(), wanted.end(), int32_t(expert)) != wanted.end()) continue;
        }
        item.is_left = true;
        item.reads->cancel();
    }
}

void AheadReads::clear() {
    while (!items_.empty()) drop(items_.size() - 1);
}

} // namespace strata
