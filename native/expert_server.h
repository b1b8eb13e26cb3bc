// Experts that a card has not got, computed in RAM in the middle of its window: a thread waits for
// requests in memory the card writes and answers into memory the card reads (docs/decisions/0005).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "context.h"
#include "expert_source.h"
#include "memory.h"
#include "products.h"

namespace strata {

// A request's memory and its answer's. Numbers go up by one; whoever writes one has written
// everything else before.
struct Mailbox {
    const int32_t *request; // number, layer, rows
    int32_t *answer;        // number, status
    const int32_t *ids;     // [rows, k]; -1: not asked for
    const int8_t *codes;    // [rows, hidden]
    const float *scales;    // [rows, hidden / 32]
    const int32_t *sums;    // [rows, hidden / 16]
    float *outputs;         // [rows * k, hidden]
};

enum AnswerStatus { ANSWER_GOOD = 0, ANSWER_NOT_FINITE = 1, ANSWER_REFUSED = 2, ANSWER_NOT_READ = 3, ANSWER_FAILED = 4 };

// What has been done for one layer; of the experts, those that were read from a file first.
struct ServedCounts {
    std::atomic<int64_t> requests{0}, entries{0}, experts{0}, bytes{0}, nanoseconds{0}, from_file{0}, file_bytes{0};
};

class ExpertServer {
  public:
    // source: of layers without blobs, or null.
    ExpertServer(Context &ctx, std::vector<ExpertLayer> layers, ExpertSource *source, const Mailbox &mailbox,
                 int64_t max_rows, int64_t k);
    ~ExpertServer();

    // Begins to wait for a number other than `number`, the last one that was dealt with.
    void start(int32_t number);
    // Ends the thread. False if it did not end within so many seconds; it may not be started then.
    bool stop(double seconds);
    bool is_running() const { return is_running_; }
    // Between begin and end requests are awaited without sleep.
    void begin();
    void end();

    int64_t num_layers() const { return (int64_t)layers_.size(); }
    const ServedCounts &counts(int64_t layer) const { return counts_[layer]; }

  private:
    struct Group {
        int32_t expert;
        int64_t first, num; // of the sorted entries
        const uint8_t *blob;
    };

    // How far a group is; of its own cache line, since other threads look while it changes.
    struct alignas(64) Progress {
        std::atomic<int64_t> panels_left{0}; // of gate and up
        std::atomic<bool> is_gated{false};   // the down projection's input is there
        void wait() const;
    };

    void serve(int32_t number);
    bool wait_for_request(int32_t seen);
    AnswerStatus answer();
    AnswerStatus compute();
    bool group_entries(const ExpertLayer &layer, int64_t num_entries);
    bool run_groups(const ExpertLayer &layer, const Activations &x, const std::vector<Group> &groups);
    AnswerStatus run_fetched(int64_t number, const Activations &x, int64_t &wait_nanoseconds);
    void keep_input(int64_t number, const Activations &x);
    void look_ahead();
    template <class F> void for_each_run(int64_t panels_of_group, int64_t begin, int64_t end, F f) const;

    Context &ctx_;
    std::vector<ExpertLayer> layers_;
    ExpertSource *source_;
    Mailbox box_;
    int64_t max_rows_, k_;
    std::unique_ptr<ServedCounts[]> counts_;

    Buffer gate_, up_, codes_, scales_, sums_, outputs_;
    std::vector<Group> groups_, present_;           // all, and those whose bytes are in memory
    std::vector<int32_t> rows_, places_, identity_; // of sorted entries: row of x, entry
    std::unique_ptr<Progress[]> progress_;          // of the groups that are run
    std::vector<int32_t> first_of_;                 // scratch, by expert
    // The input of a request that waited for no disk, for a guess after its answer.
    Buffer kept_codes_, kept_scales_, kept_sums_;
    Activations kept_{};
    int64_t kept_number_ = -1;

    std::thread thread_;
    std::atomic<bool> is_running_{false}, is_stopping_{false}, is_active_{false};
    std::atomic<uint32_t> bell_{0};
};

} // namespace strata
