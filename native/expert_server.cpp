#include "expert_server.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
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

int64_t role_offset(const ExpertLayer &layer, int role) {
    int64_t offset = 0;
    for (int before = 0; before < role; before++)
        offset += packed_bytes(layer.formats[before], layer.rows(before), layer.inner(before));
    return offset;
}

} // namespace

int64_t expert_bytes(const ExpertLayer &layer) { return role_offset(layer, 3); }

void pack_expert(Context &ctx, const ExpertLayer &layer, const uint8_t *const raw[3], uint8_t *blob) {
    for (int role = 0; role < 3; role++)
        pack_rows(ctx, layer.formats[role], raw[role], layer.rows(role), layer.inner(role), blob + role_offset(layer, role));
}

ExpertServer::ExpertServer(Context &ctx, std::vector<ExpertLayer> layers, const Mailbox &mailbox, int64_t max_rows,
                           int64_t k)
    : ctx_(ctx), layers_(std::move(layers)), box_(mailbox), max_rows_(max_rows), k_(k),
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
    rows_.resize(entries), places_.resize(entries), identity_.resize(entries);
    groups_.reserve(entries);
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
        const AnswerStatus status = compute();
        // A request that nobody waits for any more: its memory may be in use for another.
        if (is_stopping_) return;
        box_.answer[1] = status;
        __atomic_store_n(box_.answer, number, __ATOMIC_RELEASE);
    }
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
            groups_.push_back({expert, 0, 0});
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

AnswerStatus ExpertServer::compute() {
    const auto begin_time = Clock::now();
    const int64_t number = box_.request[1], rows = box_.request[2];
    if (number < 0 || number >= num_layers() || rows < 1 || rows > max_rows_) return ANSWER_REFUSED;
    const ExpertLayer &layer = layers_[number];
    const int64_t hidden = layer.hidden, size = layer.size;
    if (!group_entries(layer, rows * k_)) return ANSWER_REFUSED;
    const int64_t num_groups = (int64_t)groups_.size();
    const int64_t num_entries = num_groups ? groups_.back().first + groups_.back().num : 0;
    // Codes come from the card and are only read.
    const Activations x = {nullptr, rows, hidden, const_cast<int8_t *>(box_.codes), const_cast<float *>(box_.scales),
                           const_cast<int32_t *>(box_.sums)};
    float *gate = (float *)gate_.get(), *up = (float *)up_.get(), *scratch = (float *)outputs_.get();
    const Activations h = {gate, num_entries, size, (int8_t *)codes_.get(), (float *)scales_.get(), (int32_t *)sums_.get()};
    const int64_t up_panels = num_panels(size), down_panels = num_panels(hidden);
    const int64_t offsets[] = {0, role_offset(layer, 1), role_offset(layer, 2)};
    Queue up_queue(num_groups * 2 * up_panels), gate_queue(num_entries), down_queue(num_groups * down_panels);
    const int64_t up_piece = piece_of(panel_bytes(layer.formats[0], hidden), rows);
    const int64_t down_piece = piece_of(panel_bytes(layer.formats[2], size), rows);
    std::atomic<bool> is_bad{false};
    ctx_.pool.run([&](int, int) {
        Range range;
        while (up_queue.take(up_piece, range))
            for_each_run(up_panels, range.begin, range.end, [&](int64_t i, int64_t begin, int64_t end) {
                const Group &group = groups_[i / 2];
                const int role = i % 2;
                const uint8_t *blob = layer.blobs + group.expert * layer.blob_bytes;
                float *out = (role ? up : gate) + group.first * size;
                run_job(ctx_,
                        {layer.formats[role], blob + offsets[role], size, layer.scales[3 * group.expert + role], &x,
                         rows_.data() + group.first, group.num, out, size},
                        begin, end);
            });
        ctx_.pool.barrier();
        while (gate_queue.take(1, range)) {
            ctx_.products.gate_up(gate + range.begin * size, up + range.begin * size, size);
            if (!ctx_.products.quantize(h, range.begin, range.end)) is_bad = true;
        }
        ctx_.pool.barrier();
        while (down_queue.take(down_piece, range))
            for_each_run(down_panels, range.begin, range.end, [&](int64_t i, int64_t begin, int64_t end) {
                const Group &group = groups_[i];
                const uint8_t *blob = layer.blobs + group.expert * layer.blob_bytes;
                const bool is_single = group.num == 1;
                float *out = is_single ? box_.outputs + places_[group.first] * hidden : scratch + group.first * hidden;
                run_job(ctx_,
                        {layer.formats[2], blob + offsets[2], hidden, layer.scales[3 * group.expert + 2], &h,
                         identity_.data() + group.first, group.num, out, hidden},
                        begin, end);
                if (is_single) return;
                const int64_t first = begin * PANEL_ROWS, last = std::min(end * PANEL_ROWS, hidden);
                for (int64_t j = 0; j < group.num; j++)
                    memcpy(box_.outputs + places_[group.first + j] * hidden + first, out + j * hidden + first,
                           (last - first) * 4);
            });
    });
    ServedCounts &counts = counts_[number];
    counts.requests += 1;
    counts.entries += num_entries;
    counts.experts += num_groups;
    counts.bytes += num_groups * expert_bytes(layer);
    counts.nanoseconds += std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin_time).count();
    return is_bad ? ANSWER_NOT_FINITE : ANSWER_GOOD;
}

} // namespace strata
