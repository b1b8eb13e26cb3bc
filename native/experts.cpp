#include "experts.h"

#include <algorithm>
#include <string>

#include "matrix.h"

namespace strata {

Experts::Experts(int gate_format, int up_format, int down_format, int64_t num, int64_t hidden, int64_t size)
    : formats_{gate_format, up_format, down_format}, num_(num), hidden_(hidden), size_(size), scales_(3 * num, 1.0f),
      is_loaded_(num, 0) {
    for (const Role role : {gate, up, down}) {
        check_inner(formats_[role], inner(role));
        data_[role] = Buffer(num * stack_bytes(role));
    }
}

Experts::Experts(ExpertSource &source, int64_t layer) : source_(&source), layer_(layer) {
    const ExpertLayer &shape = source.layer(layer);
    for (const Role role : {gate, up, down}) formats_[role] = shape.formats[role];
    num_ = shape.num, hidden_ = shape.hidden, size_ = shape.size;
    scales_.assign(shape.scales, shape.scales + 3 * num_);
    is_loaded_.assign(num_, 1);
}

int64_t Experts::stack_bytes(Role role) const { return packed_bytes(formats_[role], rows(role), inner(role)); }

int64_t Experts::bytes() const { return source_ ? 0 : num_ * (stack_bytes(gate) + stack_bytes(up) + stack_bytes(down)); }

void Experts::load(Context &ctx, int64_t e, const uint8_t *const raw[3], const float scales[3]) {
    for (const Role role : {gate, up, down}) {
        pack_rows(ctx, formats_[role], raw[role], rows(role), inner(role), data_[role].get() + e * stack_bytes(role));
        scales_[3 * e + role] = scales[role];
    }
    is_loaded_[e] = 1;
}

namespace {

// One expert and its entries: an entry is a row that chose it. Entries of an expert lie together.
struct Group {
    const Experts *experts;
    int64_t expert;
    int64_t first; // entry, among those of its kind (routed or shared)
    int64_t num;
    bool is_shared;
    const uint8_t *packed[3]; // gate, up, down; null until they are in memory
};

Group group_of(const Experts &experts, int64_t expert, int64_t first, int64_t num, bool is_shared) {
    Group group = {&experts, expert, first, num, is_shared, {}};
    if (!experts.source())
        for (const Experts::Role role : {Experts::gate, Experts::up, Experts::down})
            group.packed[role] = experts.packed(role, expert);
    return group;
}

// More rows than a window has, so most of a layer is wanted once: what is read makes way for the next.
constexpr int64_t MAX_WINDOW_ROWS = 8;

// Gate, up and down of all entries of one kind.
struct Entries {
    int64_t num, size, hidden;
    Buffer gate_memory, up_memory, down_memory;
    Input inner; // gate rows, once gated: what the down projection reads

    Entries(const Experts *experts, int64_t num_)
        : num(experts ? num_ : 0), size(experts ? experts->size() : 0), hidden(experts ? experts->hidden() : 0),
          gate_memory(num * size * 4), up_memory(num * size * 4), down_memory(num * hidden * 4),
          inner((float *)gate_memory.get(), num, size, experts && is_quantized(experts->format(Experts::down))) {}
    float *gate(int64_t entry) { return (float *)gate_memory.get() + entry * size; }
    float *up(int64_t entry) { return (float *)up_memory.get() + entry * size; }
    float *down(int64_t entry) { return (float *)down_memory.get() + entry * hidden; }
};

bool reads_codes(const Experts *e) {
    return e && (is_quantized(e->format(Experts::gate)) || is_quantized(e->format(Experts::up)));
}

class Run {
  public:
    Run(Context &ctx, const ExpertCall &call)
        : ctx_(ctx), call_(call), input_(call.x, call.rows, call.routed->hidden(), needs_codes()),
          routed_(call.routed, call.rows * call.k), shared_(call.shared, call.rows) {
        group_entries();
    }

    bool run() {
        if (!call_.routed->source()) {
            set_active(std::move(groups_));
            ctx_.pool.run([&](int thread, int n) {
                quantize(thread, n);
                project(thread, n);
                combine(split(call_.rows, thread, n));
            });
            return !has_bad_value_;
        }
        ctx_.pool.run([&](int thread, int n) { quantize(thread, n); });
        run_fetched();
        ctx_.pool.run([&](int thread, int n) { combine(split(call_.rows, thread, n)); });
        return !has_bad_value_;
    }

  private:
    bool needs_codes() const { return reads_codes(call_.routed) || reads_codes(call_.shared); }
    Entries &entries_of(const Group &group) { return group.is_shared ? shared_ : routed_; }

    void quantize(int thread, int n) {
        if (!needs_codes()) return;
        const Range range = split(call_.rows, thread, n);
        if (!ctx_.products.quantize(input_.a, range.begin, range.end)) has_bad_value_ = true;
        ctx_.pool.barrier();
    }

    // Outputs of the active groups' entries.
    void project(int, int) {
        project_up(up_queue_);
        ctx_.pool.barrier();
        apply_gates(gate_queue_);
        ctx_.pool.barrier();
        project_down(down_queue_);
        ctx_.pool.barrier();
    }

    // Experts whose bytes may lie on a disk: those in memory while the others are read.
    void run_fetched() {
        std::vector<Group> shared;
        if (call_.shared) {
            shared.push_back(groups_.back());
            groups_.pop_back();
        }
        std::vector<int32_t> experts;
        for (const Group &group : groups_) experts.push_back((int32_t)group.expert);
        ExpertSource &source = *call_.routed->source();
        const ExpertLayer &layer = source.layer(call_.routed->layer());
        ExpertFetch fetch(source, call_.routed->layer(), std::move(experts), call_.rows > MAX_WINDOW_ROWS);
        std::vector<Group> active = std::move(shared);
        const bool can_look = call_.rows <= MAX_WINDOW_ROWS;
        fetch.begin();
        for (bool has_looked = !can_look;;) {
            // While the disk is waited for, or before anything else where it is not.
            if (!has_looked && (fetch.will_wait() || !fetch.has_missing())) {
                has_looked = true;
                look_ahead(fetch, source);
            }
            if (!fetch.next()) break;
            for (const int32_t i : fetch.ready()) {
                active.push_back(groups_[i]);
                for (int role = 0; role < 3; role++) active.back().packed[role] = fetch.blob(i) + role_offset(layer, role);
            }
            set_active(std::move(active));
            active.clear();
            ctx_.pool.run([&](int thread, int n) { project(thread, n); });
        }
        if (fetch.has_failed()) throw ExpertsNotRead(source.take_failure());
    }

    // Whom the next layer may want is read when everything for this one has been.
    void look_ahead(ExpertFetch &fetch, ExpertSource &source) {
        const int64_t layer = call_.routed->layer();
        if (!source.next_experts().knows(layer + 1)) return;
        if (input_.a.codes) {
            fetch.read_ahead(layer + 1, source.guess_after(layer, input_.a));
            return;
        }
        const Input input(call_.x, call_.rows, call_.routed->hidden(), true);
        if (ctx_.products.quantize(input.a, 0, call_.rows)) fetch.read_ahead(layer + 1, source.guess_after(layer, input.a));
    }

    // The groups that are run next, and the work there is.
    void set_active(std::vector<Group> groups) {
        active_ = std::move(groups);
        first_up_.assign(1, 0), first_down_.assign(1, 0), entries_.clear();
        for (const Group &group : active_) {
            for (int i = 0; i < 2; i++) first_up_.push_back(first_up_.back() + num_panels(group.experts->size()));
            first_down_.push_back(first_down_.back() + num_panels(group.experts->hidden()));
            for (int64_t i = 0; i < group.num; i++) entries_.push_back({group.is_shared, group.first + i});
        }
        up_queue_.reset(first_up_.back()), gate_queue_.reset((int64_t)entries_.size()), down_queue_.reset(first_down_.back());
    }

    void group_entries() {
        const Experts &routed = *call_.routed;
        std::vector<int64_t> next(routed.num() + 1, 0);
        for (int64_t i = 0; i < call_.rows * call_.k; i++) next[call_.ids[i] + 1]++;
        for (int64_t e = 0; e < routed.num(); e++) {
            if (next[e + 1]) groups_.push_back(group_of(routed, e, next[e], next[e + 1], false));
            next[e + 1] += next[e];
        }
        row_of_entry_.resize(call_.rows * call_.k);
        entry_of_.resize(call_.rows * call_.k);
        for (int64_t i = 0; i < call_.rows * call_.k; i++) {
            entry_of_[i] = next[call_.ids[i]]++;
            row_of_entry_[entry_of_[i]] = (int32_t)(i / call_.k);
        }
        if (call_.shared) groups_.push_back(group_of(*call_.shared, 0, 0, call_.rows, true));
        identity_.resize(std::max(call_.rows * call_.k, call_.rows));
        for (size_t i = 0; i < identity_.size(); i++) identity_[i] = (int32_t)i;
    }

    // Calls f(index, begin, end) for the runs of panels that a range of all panels covers.
    template <class F> static void for_each_run(const std::vector<int64_t> &first, Range range, F f) {
        size_t i = std::upper_bound(first.begin(), first.end(), range.begin) - first.begin() - 1;
        for (; i + 1 < first.size() && first[i] < range.end; i++)
            f(i, std::max(range.begin, first[i]) - first[i], std::min(range.end, first[i + 1]) - first[i]);
    }

    void project_up(Queue &queue) {
        const int64_t piece = piece_of(panel_bytes(call_.routed->format(Experts::gate), call_.routed->hidden()), call_.rows);
        Range range;
        while (queue.take(piece, range))
            for_each_run(first_up_, range, [&](size_t i, int64_t begin, int64_t end) {
                const Group &group = active_[i / 2];
                const Experts &e = *group.experts;
                const Experts::Role role = i % 2 ? Experts::up : Experts::gate;
                Entries &entries = entries_of(group);
                const int32_t *rows = group.is_shared ? identity_.data() : row_of_entry_.data() + group.first;
                run_job(ctx_,
                        {e.format(role), group.packed[role], e.size(), e.scale(role, group.expert), &input_.a, rows,
                         group.num, role == Experts::up ? entries.up(group.first) : entries.gate(group.first), e.size()},
                        begin, end);
            });
    }

    void apply_gates(Queue &queue) {
        Range range;
        while (queue.take(1, range)) {
            const auto [is_shared, entry] = entries_[range.begin];
            Entries &entries = is_shared ? shared_ : routed_;
            ctx_.products.gate_up(entries.gate(entry), entries.up(entry), entries.size);
            if (entries.inner.a.codes && !ctx_.products.quantize(entries.inner.a, entry, entry + 1)) has_bad_value_ = true;
        }
    }

    void project_down(Queue &queue) {
        const int64_t piece = piece_of(panel_bytes(call_.routed->format(Experts::down), call_.routed->size()), call_.rows);
        Range range;
        while (queue.take(piece, range))
            for_each_run(first_down_, range, [&](size_t i, int64_t begin, int64_t end) {
                const Group &group = active_[i];
                const Experts &e = *group.experts;
                Entries &entries = entries_of(group);
                run_job(ctx_,
                        {e.format(Experts::down), group.packed[Experts::down], e.hidden(),
                         e.scale(Experts::down, group.expert), &entries.inner.a, identity_.data() + group.first, group.num,
                         entries.down(group.first), e.hidden()},
                        begin, end);
            });
    }

    // Routing order, rank 0 first, then the shared expert.
    void combine(Range rows) {
        std::vector<const float *> outputs(call_.k);
        const int64_t hidden = call_.routed->hidden();
        for (int64_t r = rows.begin; r < rows.end; r++) {
            for (int64_t j = 0; j < call_.k; j++) outputs[j] = routed_.down(entry_of_[r * call_.k + j]);
            ctx_.products.combine(outputs.data(), call_.weights + r * call_.k, (int)call_.k,
                                  call_.shared ? shared_.down(r) : nullptr,
                                  call_.shared ? call_.shared_weight[r] : 0.0f, call_.out + r * hidden, hidden);
        }
    }

    Context &ctx_;
    const ExpertCall &call_;
    Input input_;
    Entries routed_, shared_;
    std::vector<Group> groups_, active_;
    std::vector<std::pair<bool, int64_t>> entries_; // of the active groups: shared or routed, which
    Queue up_queue_{0}, gate_queue_{0}, down_queue_{0};
    std::vector<int32_t> row_of_entry_; // of routed entries
    std::vector<int64_t> entry_of_;     // [rows, k]
    std::vector<int32_t> identity_;
    std::vector<int64_t> first_up_{0}, first_down_{0};
    std::atomic<bool> has_bad_value_{false};
};

} // namespace

bool run_experts(Context &ctx, const ExpertCall &call) {
    for (int64_t i = 0; i < call.rows * call.k; i++) {
        const int32_t e = call.ids[i];
        if (e < 0 || e >= call.routed->num())
            refuse("no expert " + std::to_string(e) + " among " + std::to_string(call.routed->num()));
        if (!call.routed->is_loaded(e)) refuse("expert " + std::to_string(e) + " was not loaded");
    }
    if (call.shared && !call.shared->is_loaded(0)) refuse("the shared expert was not loaded");
    return Run(ctx, call).run();
}

} // namespace strata
