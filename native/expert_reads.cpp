// Experts on their way from the files: which pieces, where to, what is packed when they have come.
#include <errno.h>

#include <algorithm>
#include <utility>

#include "expert_source.h"

namespace strata {

ExpertReads::ExpertReads(ExpertSource &source, std::vector<int64_t> keys, std::vector<uint8_t *> targets, bool is_ahead)
    : source_(source), keys_(std::move(keys)), targets_(std::move(targets)), is_ahead_(is_ahead) {
    if (!source_.is_packed()) {
        int64_t total = 0;
        for (const int64_t key : keys_) {
            raw_first_.push_back(total);
            total += source_.stored_bytes(key);
        }
        raw_ = Buffer(total);
    }
    try {
        begin();
    } catch (...) {
        abandon();
        throw;
    }
}

ExpertReads::~ExpertReads() {
    if (!is_waited_) abandon();
}

bool ExpertReads::is_done() const {
    return std::all_of(batches_.begin(), batches_.end(), [](const auto &batch) { return !batch || batch->is_done(); });
}

int64_t ExpertReads::num_bytes() const {
    int64_t num = 0;
    for (const auto &batch : batches_) num += batch ? batch->num_bytes() : 0;
    return num;
}

void ExpertReads::cancel() {
    for (const auto &batch : batches_)
        if (batch) batch->cancel();
}

void ExpertReads::abandon() {
    cancel();
    for (const auto &batch : batches_)
        if (batch) batch->wait();
}

void ExpertReads::begin() {
    is_direct_ = !source_.is_direct_refused_;
    std::vector<std::vector<FileRead>> reads(source_.files_.size());
    for (size_t i = 0; i < keys_.size(); i++) {
        uint8_t *to = source_.is_packed() ? targets_[i] : raw_.get() + raw_first_[i];
        for (int part = 0; part < source_.parts_; part++) {
            const Extent &e = source_.extents_[keys_[i] * source_.parts_ + part];
            reads[e.file].push_back({e.offset, e.size, to});
            to += e.size;
        }
    }
    batches_.clear();
    for (size_t i = 0; i < reads.size(); i++) {
        const ExpertFile &file = source_.files_[i];
        const bool is_direct = is_direct_ && file.direct >= 0;
        batches_.push_back(nullptr);
        if (reads[i].empty()) continue;
        batches_.back() = std::make_shared<ReadBatch>(is_direct ? file.direct : file.plain, is_direct, reads[i]);
        source_.reader_.start(batches_.back());
    }
}

// Waits for all reads; false where one failed.
bool ExpertReads::collect(bool &is_direct_refused) {
    bool is_good = true;
    for (size_t i = 0; i < batches_.size(); i++) {
        if (!batches_[i]) continue;
        batches_[i]->wait();
        if (!is_good || !batches_[i]->has_failed()) continue;
        is_good = false;
        const ReadFailure failure = batches_[i]->failure();
        is_direct_refused = is_direct_ && source_.files_[i].direct >= 0 && failure.error == EINVAL;
        if (is_ahead_) continue;
        for (const int64_t key : keys_)
            for (int part = 0; part < source_.parts_; part++) {
                const Extent &e = source_.extents_[key * source_.parts_ + part];
                if (e.file == int64_t(i) && e.offset == failure.offset) source_.set_failure(key, source_.files_[i], failure);
            }
    }
    return is_good;
}

bool ExpertReads::wait() {
    bool is_direct_refused = false;
    bool is_good = collect(is_direct_refused);
    if (is_direct_refused) {
        // Some file systems take the flag and refuse the read.
        source_.is_direct_refused_ = true;
        begin();
        is_good = collect(is_direct_refused);
    }
    is_waited_ = true;
    if (!is_good) return false;
    for (size_t i = 0; i < keys_.size(); i++) {
        const int64_t layer = source_.layer_of(keys_[i]);
        SourceCounts &counts = source_.counts_[layer];
        counts.read++;
        counts.bytes += source_.stored_bytes(keys_[i]);
        if (source_.is_packed()) continue;
        const uint8_t *raw[3];
        const uint8_t *at = raw_.get() + raw_first_[i];
        for (int role = 0; role < 3; role++) {
            raw[role] = at;
            at += source_.extents_[keys_[i] * 3 + role].size;
        }
        pack_expert(source_.ctx_, source_.layers_[layer], raw, targets_[i]);
    }
    return true;
}

} // namespace strata
