// Many reads of a file in flight, by threads of their own: rows of a table, blobs of weights.
//
// A batch is a list of reads from one descriptor. Long reads are cut into pieces, so that one of them
// keeps several threads busy. Direct reads (a descriptor opened with O_DIRECT) may have any offset,
// size and destination: what is not aligned passes through a thread's own aligned memory.
//
// Whoever waits takes pieces too. So a batch ends even where the system gives no thread, and in a
// process forked from the one that started it, which has none of its threads.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace strata {

struct FileRead {
    int64_t offset;
    int64_t size;
    uint8_t *to;
};

// The first failure of a batch, by the order of its reads.
struct ReadFailure {
    int64_t offset; // where the failed read begins
    int error;      // errno; 0: the file ends inside the read
    int64_t wanted, got;
};

// Multiple of offsets, sizes and addresses of direct reads: 4 KiB suits every common disk.
constexpr int64_t DIRECT_ALIGNMENT = 4096;

class ReadBatch {
  public:
    ReadBatch(int fd, bool is_direct, const std::vector<FileRead> &reads);
    ReadBatch(const ReadBatch &) = delete;
    ReadBatch &operator=(const ReadBatch &) = delete;

    bool is_done() const { return left_.load(std::memory_order_acquire) == 0; }
    // Returns when no piece is on its way any more, having taken those that nobody had begun.
    void wait();
    // Pieces not begun are dropped. Wait afterwards; the destinations' content is then undefined.
    void cancel() { is_cancelled_ = true; }
    // After wait(): whether a read failed, and which.
    bool has_failed() const { return failed_piece_ >= 0; }
    ReadFailure failure() const { return failure_; }
    // What arrived so far. A read counts when its last piece has been read.
    int64_t num_reads() const { return num_reads_; }
    int64_t num_bytes() const { return num_bytes_; }

  private:
    friend class FileReader;
    struct Piece {
        FileRead part;
        int32_t read; // index
        bool is_last; // of its read
    };

    int64_t num_pieces() const { return int64_t(pieces_.size()); }
    bool has_more() const { return next_.load(std::memory_order_relaxed) < num_pieces(); }
    void cut(int32_t index, const FileRead &read);
    // Reads pieces until all have been begun.
    void take_pieces();
    void read_piece(int64_t index);
    void finish_piece(int64_t index, int error, int64_t got);
    // Small plain reads: what lies in the page cache is read at once. If little is left the system is
    // asked to fetch it, and wait() then reads that without any thread; else the batch is not small.
    void read_cached();
    bool is_small() const { return !is_direct_ && is_small_; }

    int fd_;
    bool is_direct_, is_small_ = false;
    uint64_t generation_; // forks this process had behind it
    std::vector<FileRead> reads_;
    std::vector<Piece> pieces_;
    std::atomic<int64_t> next_{0};
    std::atomic<int32_t> left_{0};
    std::atomic<bool> is_cancelled_{false};
    std::atomic<int64_t> num_reads_{0}, num_bytes_{0};
    std::mutex failure_mutex_;
    int64_t failed_piece_ = -1;
    ReadFailure failure_{};
};

class FileReader {
  public:
    // Threads start when there is work for them; num_threads of them read at once.
    explicit FileReader(int num_threads);
    ~FileReader();
    FileReader(const FileReader &) = delete;
    FileReader &operator=(const FileReader &) = delete;

    // Begins a batch and does not wait. The destinations must live until the batch is done, the
    // descriptor until then or until close() has returned.
    void start(const std::shared_ptr<ReadBatch> &batch);
    // Batches on their way are read to their end, then the threads end.
    void close();
    int num_threads() const;

  private:
    struct Crew;
    static void work(Crew *crew);
    void enter_fork();
    void add_threads(int64_t num_pieces);

    int max_threads_;
    uint64_t generation_;
    std::unique_ptr<Crew> crew_;
};

} // namespace strata
