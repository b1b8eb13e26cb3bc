#include "expert_server.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <string>
#include <utility>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "matrix.h"

namespace strata {

namespace {

using Clock = std::chrono::steady_clock;

// Layers follow each other within some ten microseconds. What takes longer is the host at work, or
// a card that is far slower than it should be; the thread then looks from time to time.
constexpr auto SPIN_TIME = std::chrono::milliseconds(5);
constexpr auto NAP = std::chrono::microseconds(50);

inline void relax() {
#if defined(__x86_64__)
    _mm_pause();
#else
    std::this_thread::yield();
#endif
}

int32_t load_number(const int32_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }

} // namespace

ExpertServer::ExpertServer(Context &ctx, std::vector<ExpertLayer> layers, ExpertSource *source, const Mailbox &mailbox,
                           int64_t max_rows, int64_t k)
    : ctx_(ctx), layers_(std::move(layers)), source_(source), box_(mailbox), max_rows_(max_rows), k_(k),
      counts_(new ServedCounts[layers_.size()]) {
    int64_t size = 0, hidden = 0, num = 0;
    for (const ExpertLayer &layer : layers_) {
        for (int role = 0; role < 3; role++) {
            check_inner(layer.formats[role], layer.inner(role));
            if (!is_quantized(layer.formats[role])) refuse("experts that are computed beside a card must be quantised");
        }
        if (layer.size % 32 || layer.hidden % 32) refuse("sizes of experts must be multiples of 32");
        size = std::max(size, layer.size), hidden = std::max(hidden, layer.hidden), num = std::max(num, layer.num);
    }
    const int64_t entries = max_rows * k;
    gate_ = Buffer(entries * size * 4), up_ = Buffer(entries * size * 4), outputs_ = Buffer(entries * hidden * 4);
    codes_ = Buffer(entries * size), scales_ = Buffer(entries * (size / 32) * 4), sums_ = Buffer(entries * (size / 16) * 4);
    if (source) {
        kept_codes_ = Buffer(max_rows * hidden);
        kept_scales_ = Buffer(max_rows * (hidden / 32) * 4), kept_sums_ = Buffer(max_rows * (hidden / 16) * 4);
    }
    rows_.resize(entries), places_.resize(entries), identity_.resize(entries);
    groups_.reserve(entries), present_.reserve(entries), progress_.reset(new Progress[entries]);
    for (int64_t i = 0; i < entries; i++) identity_[i] = (int32_t)i;
    first_of_.assign(num, -1);
}

ExpertServer::~ExpertServer() {
    is_stopping_ = true;
    bell_.fetch_add(1);
    bell_.notify_all();
    if (thread_.joinable()) thread_.join();
}

void ExpertServer::start(int32_t number) {
    if (is_running_) return;
    if (thread_.joinable()) thread_.join();
    is_stopping_ = false;
    is_running_ = true;
    try {
        thread_ = std::thread([this, number] {
            serve(number);
            is_running_ = false;
        });
    } catch (...) { // the system refused a thread
        is_running_ = false;
        throw;
    }
}

bool ExpertServer::stop(double seconds) {
    is_stopping_ = true;
    bell_.fetch_add(1);
    bell_.notify_all();
    const auto deadline = Clock::now() + std::chrono::duration<double>(seconds);
    while (is_running_) {
        if (Clock::now() > deadline) return false;
        std::this_thread::sleep_for(NAP);
    }
    if (thread_.joinable()) thread_.join();
    return true;
}

void ExpertServer::begin() {
    is_active_ = true;
    bell_.fetch_add(1);
    bell_.notify_all();
}

void ExpertServer::end() { is_active_ = false; }

bool ExpertServer::wait_for_request(int32_t seen) {
    auto deadline = Clock::now() + SPIN_TIME;
    while (true) {
        const uint32_t bell = bell_.load();
        if (is_stopping_) return false;
        for (int i = 0; i < 64; i++) {
            if (load_number(box_.request) != seen) return !is_stopping_;
            relax();
        }
        if (!is_active_) {
            bell_.wait(bell);
            deadline = Clock::now() + SPIN_TIME;
        } else if (Clock::now() > deadline) {
            std::this_thread::sleep_for(NAP);
        }
    }
}

void ExpertServer::serve(int32_t number) {
    while (wait_for_request(number)) {
        number = load_number(box_.request);
        const AnswerStatus status = answer();
        // A request that nobody waits for any more: its memory may be in use for another.
        if (is_stopping_) return;
        // Number and status are read at once.
        const int32_t words[2] = {number, status};
        int64_t both;
        memcpy(&both, words, sizeof both);
        __atomic_store_n((int64_t *)box_.answer, both, __ATOMIC_RELEASE);
        if (kept_number_ >= 0) look_ahead();
    }
}

// The card writes its next request where this one's codes are.
void ExpertServer::keep_input(int64_t number, const Activations &x) {
    const int64_t num = x.rows * x.inner;
    memcpy(kept_codes_.get(), x.codes, num);
    memcpy(kept_scales_.get(), x.scales, num / 32 * 4);
    memcpy(kept_sums_.get(), x.sums, num / 16 * 4);
    kept_ = {nullptr,         x.rows, x.inner, (int8_t *)kept_codes_.get(), (float *)kept_scales_.get(),
             (int32_t *)kept_sums_.get()};
    kept_number_ = number;
}

void ExpertServer::look_ahead() {
    const int64_t number = std::exchange(kept_number_, -1);
    try {
        source_->look_ahead(number, kept_);
    } catch (const std::exception &) { // nobody asked for a guess
    }
}

// Memory may be refused while experts are read. Nothing leaves the thread: it would end the process.
AnswerStatus ExpertServer::answer() {
    try {
        try {
            return compute();
        } catch (const std::exception &error) {
            if (source_) source_->set_failure(box_.request[1], error);
        }
    } catch (...) { // not even for the text
    }
    return ANSWER_FAILED;
}

// Entries of an expert side by side. False if the request names what there is not.
bool ExpertServer::group_entries(const ExpertLayer &layer, int64_t num_entries) {
    // All of them before any is grouped: a refused request leaves nothing for the next.
    for (int64_t i = 0; i < num_entries; i++)
        if (box_.ids[i] < -1 || box_.ids[i] >= layer.num) return false;
    groups_.clear();
    for (int64_t i = 0; i < num_entries; i++) {
        const int32_t expert = box_.ids[i];
        if (expert < 0) continue;
        int32_t &group = first_of_[expert];
        if (group < 0) {
            group = (int32_t)groups_.size();
            groups_.push_back({expert, 0, 0, layer.blobs + expert * layer.blob_bytes});
        }
        groups_[group].num++;
    }
    int64_t first = 0;
    for (Group &group : groups_) {
        group.first = first;
        first += group.num;
        group.num = 0;
    }
    for (int64_t i = 0; i < num_entries; i++) {
        if (box_.ids[i] < 0) continue;
        Group &group = groups_[first_of_[box_.ids[i]]];
        const int64_t at = group.first + group.num++;
        rows_[at] = (int32_t)(i / k_);
        places_[at] = (int32_t)i;
    }
    for (const Group &group : groups_) first_of_[group.expert] = -1;
    return true;
}

// Calls f(group, begin, end) for the runs of panels that a range of all groups' panels covers.
template <class F> void ExpertServer::for_each_run(int64_t panels_of_group, int64_t begin, int64_t end, F f) const {
    for (int64_t g = begin / panels_of_group; g * panels_of_group < end; g++) {
        const int64_t first = g * panels_of_group;
        f(g, std::max(begin, first) - first, std::min(end, first + panels_of_group) - first);
    }
}

void ExpertServer::Progress::wait() const {
    for (int i = 0; !is_gated.load(std::memory_order_acquire); i++) {
        relax();
        // Whom it waits for may have no core to run on.
        if (i % 256 == 255) std::this_thread::yield();
    }
}

// Outputs of some of the request's groups. False if a value is not finite. No thread waits for all
// others on the way: who ends a group's last panel of gate and up makes what its down panels read.
bool ExpertServer::run_groups(const ExpertLayer &layer, const Activations &x, const std::vector<Group> &groups) {
    const int64_t hidden = layer.hidden, size = layer.size, num_groups = (int64_t)groups.size();
    float *gate = (float *)gate_.get(), *up = (float *)up_.get(), *scratch = (float *)outputs_.get();
    const Activations h = {gate,           (int64_t)rows_.size(),    size, (int8_t *)codes_.get(), (float *)scales_.get(),
                           (int32_t *)sums_.get()};
    const int64_t up_panels = num_panels(size), down_panels = num_panels(hidden);
    const int64_t offsets[] = {0, role_offset(layer, 1), role_offset(layer, 2)};
    const int64_t up_piece = piece_of(panel_bytes(layer.formats[0], hidden), x.rows);
    const int64_t down_piece = piece_of(panel_bytes(layer.formats[2], size), x.rows);
    const int num_threads = ctx_.pool.num_threads();
    Queue up_queue(num_groups * 2 * up_panels, up_piece, num_threads);
    Queue down_queue(num_groups * down_panels, down_piece, num_threads);
    std::atomic<bool> is_bad{false};
    for (int64_t g = 0; g < num_groups; g++) {
        progress_[g].panels_left.store(2 * up_panels, std::memory_order_relaxed);
        progress_[g].is_gated.store(false, std::memory_order_relaxed);
    }
    const auto apply_gate = [&](const Group &group) {
        for (int64_t entry = group.first; entry < group.first + group.num; entry++) {
            ctx_.products.gate_up(gate + entry * size, up + entry * size, size);
            if (!ctx_.products.quantize(h, entry, entry + 1)) is_bad = true;
        }
    };
    ctx_.pool.run([&](int thread, int) {
        Range range;
        for (bool has = up_queue.own(up_piece, thread, range); has; has = up_queue.take(up_piece, range))
            for_each_run(up_panels, range.begin, range.end, [&](int64_t i, int64_t begin, int64_t end) {
                const Group &group = groups[i / 2];
                const int role = i % 2;
                float *out = (role ? up : gate) + group.first * size;
                run_job(ctx_,
                        {layer.formats[role], group.blob + offsets[role], size, layer.scales[3 * group.expert + role], &x,
                         rows_.data() + group.first, group.num, out, size},
                        begin, end);
                Progress &progress = progress_[i / 2];
                if (progress.panels_left.fetch_sub(end - begin, std::memory_order_acq_rel) != end - begin) return;
                apply_gate(group);
                progress.is_gated.store(true, std::memory_order_release);
            });
        for (bool has = down_queue.own(down_piece, thread, range); has; has = down_queue.take(down_piece, range))
            for_each_run(down_panels, range.begin, range.end, [&](int64_t i, int64_t begin, int64_t end) {
                const Group &group = groups[i];
                const bool is_single = group.num == 1;
                float *out = is_single ? box_.outputs + places_[group.first] * hidden : scratch + group.first * hidden;
                progress_[i].wait();
                run_job(ctx_,
                        {layer.formats[2], group.blob + offsets[2], hidden, layer.scales[3 * group.expert + 2], &h,
                         identity_.data() + group.first, group.num, out, hidden},
                        begin, end);
                if (is_single) return;
                const int64_t first = begin * PANEL_ROWS, last = std::min(end * PANEL_ROWS, hidden);
                for (int64_t j = 0; j < group.num; j++)
                    memcpy(box_.outputs + places_[group.first + j] * hidden + first, out + j * hidden + first,
                           (last - first) * 4);
            });
    });
    return !is_bad;
}

// The same for all groups, whose bytes may lie on a disk: what is in memory first, while the rest is read.
AnswerStatus ExpertServer::run_fetched(int64_t number, const Activations &x, int64_t &wait_nanoseconds) {
    std::vector<int32_t> experts;
    for (const Group &group : groups_) experts.push_back(group.expert);
    ExpertFetch fetch(*source_, number, std::move(experts), false);
    AnswerStatus status = ANSWER_GOOD;
    bool has_looked = !source_->next_experts().knows(number + 1);
    if (!has_looked && !fetch.has_missing()) {
        keep_input(number, x);
        has_looked = true;
    }
    fetch.begin();
    while (true) {
        // The processor has nothing else to do until the disk has answered.
        if (!has_looked && fetch.will_wait()) {
            has_looked = true;
            fetch.read_ahead(number + 1, source_->guess_after(number, x));
        }
        if (!fetch.next()) break;
        present_.clear();
        for (const int32_t i : fetch.ready()) {
            present_.push_back(groups_[i]);
            present_.back().blob = fetch.blob(i);
        }
        if (!run_groups(layers_[number], x, present_)) status = ANSWER_NOT_FINITE;
    }
    wait_nanoseconds = fetch.wait_nanoseconds();
    counts_[number].from_file += fetch.num_read();
    counts_[number].file_bytes += fetch.bytes_read();
    return fetch.has_failed() ? ANSWER_NOT_READ : status;
}

AnswerStatus ExpertServer::compute() {
    const auto begin_time = Clock::now();
    const int64_t number = box_.request[1], rows = box_.request[2];
    if (number < 0 || number >= num_layers() || rows < 1 || rows > max_rows_) return ANSWER_REFUSED;
    const ExpertLayer &layer = layers_[number];
    if (!group_entries(layer, rows * k_)) return ANSWER_REFUSED;
    const int64_t num_groups = (int64_t)groups_.size();
    // Codes come from the card and are only read.
    const Activations x = {nullptr, rows, layer.hidden, const_cast<int8_t *>(box_.codes), const_cast<float *>(box_.scales),
                           const_cast<int32_t *>(box_.sums)};
    int64_t wait_nanoseconds = 0;
    AnswerStatus status;
    if (source_) status = run_fetched(number, x, wait_nanoseconds);
    else status = run_groups(layer, x, groups_) ? ANSWER_GOOD : ANSWER_NOT_FINITE;
    ServedCounts &counts = counts_[number];
    counts.requests += 1;
    counts.entries += num_groups ? groups_.back().first + groups_.back().num : 0;
    counts.experts += num_groups;
    counts.bytes += num_groups * expert_bytes(layer);
    // What a disk took is not the processor's time; ExpertSource counts it.
    counts.nanoseconds +=
        std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin_time).count() - wait_nanoseconds;
    return status;
}

} // namespace strata
