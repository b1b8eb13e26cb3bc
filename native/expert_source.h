// Experts' bytes wherever they lie: at home in memory, in a place of a bounded cache, or in files.
//
// Whoever computes asks for a layer's experts (ExpertFetch) and gets them in runs, each as soon as
// its bytes are in memory: first those that are there, while the others are read at depth.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "ahead_reads.h"
#include "context.h"
#include "file_reads.h"
#include "memory.h"

namespace strata {

// The experts of a layer, each a blob: gate panels, up panels, down panels.
struct ExpertLayer {
    int formats[3];
    int64_t num, hidden, size;
    const uint8_t *blobs; // null: where they lie is the matter of an ExpertSource
    int64_t blob_bytes;   // from one expert to the next
    const float *scales;  // [num, 3], factors on the outputs

    int64_t rows(int role) const { return role == 2 ? hidden : size; }
    int64_t inner(int role) const { return role == 2 ? size : hidden; }
};

// Where a role's panels begin in a blob; role 3: bytes of an expert's three matrices.
int64_t role_offset(const ExpertLayer &layer, int role);
inline int64_t expert_bytes(const ExpertLayer &layer) { return role_offset(layer, 3); }

// Packs an expert from blocks as in the file into `blob`.
void pack_expert(Context &ctx, const ExpertLayer &layer, const uint8_t *const raw[3], uint8_t *blob);

// A file open twice: `direct` passes the page cache by, -1 where the file system has no such thing.
struct ExpertFile {
    std::string path;
    int direct, plain;
};

// A run of bytes in one of the files.
struct Extent {
    int64_t file, offset, size;
};

// How often experts were found where, since the start.
struct SourceCounts {
    std::atomic<int64_t> home{0}, cached{0}, read{0}, bytes{0}, wait_nanoseconds{0};
    // Of those: asked for by scans, and read for them. Fetches that were none.
    std::atomic<int64_t> scanned{0}, scan_read{0}, windows{0};
    // Reads that began before anybody asked; those that were taken, those given up, and bytes read for
    // the latter. What was taken is also among the experts that were read.
    std::atomic<int64_t> ahead{0}, ahead_used{0}, ahead_dropped{0}, ahead_bytes{0};
};

// An expert could not be read; the text says which, why and where.
struct ExpertsNotRead : std::runtime_error {
    using std::runtime_error::runtime_error;
};

class ExpertSource {
  public:
    // extents: for each expert of each layer one (a packed blob) or three (gate, up and down as a
    // GGUF stores them, packed once they have arrived). `places` are `num_places` times `place_bytes`
    // of page-aligned memory, each enough for any expert, and READ_PAST more. The last `num_ahead` of
    // them are not the cache's: they have what is read ahead.
    ExpertSource(Context &ctx, std::vector<ExpertLayer> layers, std::vector<ExpertFile> files,
                 std::vector<Extent> extents, uint8_t *places, int64_t num_places, int64_t place_bytes,
                 int64_t num_ahead = 0);
    ExpertSource(const ExpertSource &) = delete;
    ExpertSource &operator=(const ExpertSource &) = delete;

    int64_t num_layers() const { return (int64_t)layers_.size(); }
    const ExpertLayer &layer(int64_t number) const { return layers_[number]; }
    int64_t key_of(int64_t layer, int64_t expert) const { return first_key_[layer] + expert; }
    int64_t num_keys() const { return (int64_t)place_of_.size(); }
    // Of the cache.
    int64_t num_places() const { return (int64_t)places_.size() - ahead_.num_places(); }

    // Memory that holds an expert for good; null: there is none any more. Not while it is in use.
    void set_home(int64_t layer, int64_t expert, const uint8_t *blob);
    // Experts in places, the one used last first.
    std::vector<int64_t> cached_keys() const;
    // Forgets what is in places, or on its way there; waits until nobody fetches.
    void drop_cached();

    // Whom the layers' routers would choose; set before anybody fetches.
    NextExperts &next_experts() { return next_; }
    // Experts of the layer after `layer` that rows with this input of `layer` may want; empty where
    // nobody guesses, or nothing of that layer is in files alone. Runs the pool; for who fetches.
    std::vector<int32_t> guess_after(int64_t layer, const Activations &x);
    // Guesses and reads them before they are asked for, unless somebody fetches.
    void look_ahead(int64_t layer, const Activations &x);

    const SourceCounts &counts(int64_t layer) const { return counts_[layer]; }
    // Bytes of reads that were waited for to their end, and the time from their beginning on.
    int64_t timed_bytes() const { return timed_bytes_; }
    int64_t timed_nanoseconds() const { return timed_nanoseconds_; }
    // What went wrong last; taken once, empty where nothing did since.
    std::string take_failure();
    // Something else than a read went wrong while experts of a layer were brought.
    void set_failure(int64_t layer, const std::exception &error);
    // Reads on their way end; the files may be closed afterwards.
    void close();

  private:
    friend class AheadReads;
    friend class ExpertReads;
    friend class ExpertFetch;
    friend class ExpertCopies;
    struct Place {
        int64_t key = -1;
        int32_t before = -1, after = -1; // neighbours by use; the newest has none before it
        bool is_linked = false;
    };

    bool is_packed() const { return parts_ == 1; }
    int64_t stored_bytes(int64_t key) const {
        int64_t size = 0;
        for (int part = 0; part < parts_; part++) size += extents_[key * parts_ + part].size;
        return size;
    }
    uint8_t *memory_of(int32_t place) const { return memory_ + place * place_bytes_; }
    void link(int32_t place, bool is_newest);
    void unlink(int32_t place);
    int32_t take_place();
    void give_back(int32_t place);
    void set_failure(const std::string &text);
    void set_failure(int64_t key, const ExpertFile &file, const ReadFailure &failure);
    int64_t layer_of(int64_t key) const;
    std::string name_of(int64_t key) const;

    Context &ctx_;
    std::vector<ExpertLayer> layers_;
    std::vector<ExpertFile> files_;
    std::vector<Extent> extents_;
    int parts_;
    uint8_t *memory_;
    int64_t place_bytes_;
    std::vector<int64_t> first_key_;
    std::vector<const uint8_t *> homes_; // by key
    std::vector<int64_t> num_far_;       // of each layer, experts without a home
    std::vector<int32_t> place_of_;      // by key, -1: in none
    std::vector<Place> places_;
    std::vector<int32_t> free_;
    int32_t newest_ = -1, oldest_ = -1;
    int64_t num_reserved_ = 0; // places of experts that are on their way to copies
    uint64_t num_drops_ = 0;   // how often all was forgotten
    std::unique_ptr<SourceCounts[]> counts_;
    std::atomic<int64_t> timed_bytes_{0}, timed_nanoseconds_{0};
    mutable std::mutex mutex_; // of places; held as long as experts are fetched
    std::mutex failure_mutex_;
    std::string failure_;
    std::atomic<bool> is_direct_refused_{false};
    NextExperts next_;
    AheadRecord record_;
    AheadReads ahead_;
    FileReader reader_;
};

// Experts on their way from the files to somewhere.
class ExpertReads {
  public:
    // is_ahead: nobody has asked for them yet, so a failure is nobody's.
    ExpertReads(ExpertSource &source, std::vector<int64_t> keys, std::vector<uint8_t *> targets, bool is_ahead = false);
    ~ExpertReads();
    // Returns when every byte is there, packed; false where one did not come (ExpertSource::failure).
    // Not inside a run of the pool.
    bool wait();
    ExpertSource &source() const { return source_; }
    bool is_ahead() const { return is_ahead_; }
    // No piece is on its way, whatever became of it.
    bool is_done() const;
    // Pieces that nobody has begun are left out; only abandon() may follow.
    void cancel();
    // Nothing is written any more afterwards.
    void abandon();
    int64_t num_bytes() const;

  private:
    void begin();
    bool collect(bool &is_direct_refused);

    ExpertSource &source_;
    std::vector<int64_t> keys_;
    std::vector<uint8_t *> targets_;
    Buffer raw_;
    std::vector<int64_t> raw_first_; // of each expert, in raw_
    std::vector<std::shared_ptr<ReadBatch>> batches_; // by file, null where nothing is read from it
    bool is_direct_ = false, is_waited_ = false, is_ahead_;
};

// Experts of one layer, held in memory while they are in use. One fetch of a source at a time.
class ExpertFetch {
  public:
    // experts: distinct. is_scan: more than will be wanted soon; they give their places up first.
    ExpertFetch(ExpertSource &source, int64_t layer, std::vector<int32_t> experts, bool is_scan);
    ~ExpertFetch();
    // Begins the reads, so that something else can be done before the first run is asked for.
    void begin() { begin_reads(); }
    // Whether the next run is one that is waited for.
    bool will_wait() const { return !flights_.empty() && (has_begun_ || ready_.empty()); }
    // Whether anything is read for this, begun or not.
    bool has_missing() const { return !missing_.empty(); }
    // Experts of a later layer, to be read when all that is asked for here has been read.
    void read_ahead(int64_t layer, std::vector<int32_t> experts);
    // Lets the last run go and waits for the next one. False: there is none, or a read failed.
    bool next();
    // The run: indices into `experts`.
    const std::vector<int32_t> &ready() const { return ready_; }
    const uint8_t *blob(int32_t index) const { return blobs_[index]; }
    bool has_failed() const { return has_failed_; }
    int64_t wait_nanoseconds() const { return wait_nanoseconds_; }
    // From files, so far.
    int64_t num_read() const { return num_read_; }
    int64_t bytes_read() const { return bytes_read_; }

  private:
    struct Flight {
        std::vector<int32_t> items, places;
        std::vector<std::unique_ptr<ExpertReads>> reads;
        std::chrono::steady_clock::time_point begun;
    };
    void begin_reads();
    bool begin_flight(Flight &flight, size_t most);
    void begin_ahead();
    bool wait(Flight &flight);
    void count_time(const Flight &flight);
    void release();
    void drop(Flight &flight);

    ExpertSource &source_;
    std::unique_lock<std::mutex> lock_;
    int64_t layer_;
    std::vector<int32_t> experts_;
    bool is_scan_, has_begun_ = false, are_hits_ = true, has_failed_ = false;
    std::vector<const uint8_t *> blobs_;
    std::vector<int32_t> ready_, held_, missing_;
    size_t next_missing_ = 0, num_ahead_ = 0; // of the missing, those that are read already
    int64_t ahead_layer_ = -1;
    std::vector<int32_t> ahead_experts_;
    std::deque<Flight> flights_;
    int64_t wait_nanoseconds_ = 0, num_read_ = 0, bytes_read_ = 0;
};

} // namespace strata
