#include "file_reads.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <exception>

namespace strata {

namespace {

// Long reads are cut at multiples of this: large enough that a disk is at its full rate, small
// enough that a few blobs of some MiB occupy every thread.
constexpr int64_t PIECE_BYTES = 512 << 10;
// From this size on the unaligned end of a direct read is a piece of its own, so that the rest can
// go straight to its place; below, copying costs less than one more read.
constexpr int64_t MIN_STRAIGHT_BYTES = 64 << 10;
// Plain batches up to these are looked for in the page cache first: a row there takes less than
// waking a thread, and far less than starting some tens of them, which the first batch would.
constexpr size_t SMALL_READS = 512;
constexpr int64_t SMALL_BYTES = 256 << 10;
// Up to so many that are not there need no threads either: whoever starts the batch asks for them.
constexpr size_t ASKED_READS = 128;
// Threads that each woken thread, and whoever starts a batch, wakes while there is more to read.
constexpr int WAKES = 2;

std::atomic<uint64_t> num_forks{0};

uint64_t fork_generation() {
    static const int registered = pthread_atfork(nullptr, nullptr, [] { num_forks++; });
    (void)registered;
    return num_forks.load(std::memory_order_relaxed);
}

int64_t align_down(int64_t n) { return n / DIRECT_ALIGNMENT * DIRECT_ALIGNMENT; }
int64_t align_up(int64_t n) { return align_down(n + DIRECT_ALIGNMENT - 1); }

// Aligned memory of a thread for direct reads. A fork does not share it: a page that a child also
// holds would be copied when written, and the disk would write to the old one.
class Bounce {
  public:
    static constexpr int64_t BYTES = PIECE_BYTES + 2 * DIRECT_ALIGNMENT;
    uint8_t *get() {
        if (p_ && generation_ == fork_generation()) return p_;
        void *p = mmap(nullptr, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED) return nullptr;
#if defined(__linux__)
        madvise(p, BYTES, MADV_DONTFORK);
#endif
        generation_ = fork_generation();
        return p_ = static_cast<uint8_t *>(p);
    }
    ~Bounce() {
        if (p_ && generation_ == fork_generation()) munmap(p_, BYTES);
    }

  private:
    uint8_t *p_ = nullptr;
    uint64_t generation_ = 0;
};

// Reads up to `size` bytes; less only at the end of the file or after an error.
// `unit`: what a read that is continued has to be a multiple of.
int64_t read_fully(int fd, uint8_t *to, int64_t size, int64_t offset, int64_t unit, int &error) {
    int64_t got = 0;
    while (got < size) {
        const ssize_t n = pread(fd, to + got, size - got, offset + got);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            error = errno;
            break;
        }
        got += n;
        if (n == 0 || got % unit) break;
    }
    return got;
}

int64_t read_direct(int fd, const FileRead &part, int &error) {
    const int64_t before = part.offset % DIRECT_ALIGNMENT;
    const int64_t size = align_up(before + part.size);
    if (before == 0 && size == part.size && reinterpret_cast<uintptr_t>(part.to) % DIRECT_ALIGNMENT == 0)
        return read_fully(fd, part.to, size, part.offset, DIRECT_ALIGNMENT, error);
    thread_local Bounce bounce;
    uint8_t *aligned = bounce.get();
    if (!aligned) {
        error = ENOMEM;
        return 0;
    }
    const int64_t got = read_fully(fd, aligned, size, part.offset - before, DIRECT_ALIGNMENT, error) - before;
    const int64_t num = std::clamp<int64_t>(got, 0, part.size);
    memcpy(part.to, aligned + before, num);
    // What follows the read may be damaged; the read itself is whole.
    if (num == part.size) error = 0;
    return num;
}

} // namespace

ReadBatch::ReadBatch(int fd, bool is_direct, const std::vector<FileRead> &reads)
    : fd_(fd), is_direct_(is_direct), generation_(fork_generation()), reads_(reads) {
    pieces_.reserve(reads_.size());
    int64_t total = 0;
    for (size_t i = 0; i < reads_.size(); i++) {
        if (reads_[i].size > 0) cut(int32_t(i), reads_[i]);
        total += reads_[i].size;
    }
    is_small_ = pieces_.size() <= SMALL_READS && total <= SMALL_BYTES;
    left_ = int32_t(num_pieces());
}

void ReadBatch::cut(int32_t index, const FileRead &read) {
    const int64_t end = read.offset + read.size;
    // Whether a direct read of whole pages can go straight to its place.
    const bool is_congruent = (reinterpret_cast<uintptr_t>(read.to) - uint64_t(read.offset)) % DIRECT_ALIGNMENT == 0;
    const bool is_straight = is_direct_ && is_congruent && read.size >= MIN_STRAIGHT_BYTES;
    int64_t at = read.offset;
    while (at < end) {
        int64_t stop = std::min(align_down(at) + PIECE_BYTES, end);
        if (is_straight && at % DIRECT_ALIGNMENT) stop = std::min(align_up(at), end);
        else if (is_straight && stop % DIRECT_ALIGNMENT && align_down(stop) > at) stop = align_down(stop);
        pieces_.push_back({{at, stop - at, read.to + (at - read.offset)}, index, stop == end});
        at = stop;
    }
}

void ReadBatch::take_pieces() {
    while (true) {
        const int64_t index = next_.fetch_add(1, std::memory_order_relaxed);
        if (index >= num_pieces()) return;
        read_piece(index);
    }
}

void ReadBatch::read_piece(int64_t index) {
    const FileRead &part = pieces_[index].part;
    int error = 0;
    int64_t got = 0;
    if (is_cancelled_.load(std::memory_order_relaxed)) error = ECANCELED;
    else if (is_direct_) got = read_direct(fd_, part, error);
    else got = read_fully(fd_, part.to, part.size, part.offset, 1, error);
    finish_piece(index, error, got);
}

void ReadBatch::finish_piece(int64_t index, int error, int64_t got) {
    const Piece &piece = pieces_[index];
    if (got < piece.part.size) {
        struct stat file;
        // A direct read that meets a bad sector gives what lies before it, and no error.
        if (error == 0 && fstat(fd_, &file) == 0 && file.st_size >= piece.part.offset + piece.part.size) error = EIO;
        std::lock_guard<std::mutex> lock(failure_mutex_);
        if (failed_piece_ < 0 || index < failed_piece_) {
            const FileRead &read = reads_[piece.read];
            failed_piece_ = index;
            failure_ = {read.offset, error, read.size, piece.part.offset - read.offset + got};
        }
    } else {
        num_reads_.fetch_add(piece.is_last, std::memory_order_relaxed);
    }
    num_bytes_.fetch_add(got, std::memory_order_relaxed);
    if (left_.fetch_sub(1, std::memory_order_acq_rel) == 1) left_.notify_all();
}

void ReadBatch::read_cached() {
#if defined(__linux__) && defined(RWF_NOWAIT)
    // Pieces that have to wait move to the front, where next_ finds them.
    std::vector<Piece> waiting;
    for (const Piece &piece : pieces_) {
        iovec place{piece.part.to, size_t(piece.part.size)};
        if (preadv2(fd_, &place, 1, piece.part.offset, RWF_NOWAIT) == piece.part.size) {
            num_reads_.fetch_add(piece.is_last, std::memory_order_relaxed);
            num_bytes_.fetch_add(piece.part.size, std::memory_order_relaxed);
            continue;
        }
        waiting.push_back(piece);
    }
    is_small_ = waiting.size() <= ASKED_READS;
    for (const Piece &piece : waiting)
        if (is_small_) posix_fadvise(fd_, piece.part.offset, piece.part.size, POSIX_FADV_WILLNEED);
    pieces_.swap(waiting);
    left_ = int32_t(num_pieces());
#else
    is_small_ = pieces_.size() <= ASKED_READS;
#endif
}

void ReadBatch::wait() {
    if (generation_ != fork_generation() && !is_done()) {
        // In a child: pieces that threads of the parent had begun end in the parent's memory.
        generation_ = fork_generation();
        next_ = 0;
        left_ = int32_t(num_pieces());
        new (&failure_mutex_) std::mutex;
        failed_piece_ = -1;
    }
    take_pieces();
    for (int32_t left = left_.load(std::memory_order_acquire); left != 0; left = left_.load(std::memory_order_acquire))
        left_.wait(left);
}

// What threads share. In a forked child it is left behind as it is: its mutex may be held for ever.
struct FileReader::Crew {
    mutable std::mutex mutex;
    std::condition_variable has_work;
    std::deque<std::shared_ptr<ReadBatch>> batches; // with pieces nobody has begun
    std::vector<std::thread> threads;
    int num_idle = 0;
    bool is_stopping = false;
};

FileReader::FileReader(int num_threads)
    : max_threads_(num_threads), generation_(fork_generation()), crew_(new Crew) {}

FileReader::~FileReader() { close(); }

void FileReader::enter_fork() {
    if (generation_ == fork_generation()) return;
    generation_ = fork_generation();
    const bool is_closed = crew_->is_stopping;
    (void)crew_.release();
    crew_.reset(new Crew);
    crew_->is_stopping = is_closed;
}

void FileReader::start(const std::shared_ptr<ReadBatch> &batch) {
    enter_fork();
    if (batch->is_small()) batch->read_cached();
    if (batch->is_done()) return;
    {
        std::lock_guard<std::mutex> lock(crew_->mutex);
        if (crew_->is_stopping) return;
        auto &batches = crew_->batches;
        while (!batches.empty() && !batches.front()->has_more()) batches.pop_front();
        batches.push_back(batch);
        // A small one is left to whoever waits for it, or to close().
        if (batch->is_small()) return;
        add_threads(batch->num_pieces());
    }
    for (int i = 0; i < WAKES; i++) crew_->has_work.notify_one();
}

// With the mutex held.
void FileReader::add_threads(int64_t num_pieces) {
    Crew &crew = *crew_;
    const int64_t wanted = std::min<int64_t>(max_threads_, int64_t(crew.threads.size()) + num_pieces - crew.num_idle);
    if (int64_t(crew.threads.size()) >= wanted) return;
    // Signals are for the threads that Python knows.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
        while (int64_t(crew.threads.size()) < wanted) crew.threads.emplace_back(work, &crew);
    } catch (const std::exception &) { // no thread, or no memory for one
        // The threads there are, or whoever waits, do the work.
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void FileReader::work(Crew *crew) {
    std::unique_lock<std::mutex> lock(crew->mutex);
    while (true) {
        crew->num_idle++;
        crew->has_work.wait(lock, [&] { return crew->is_stopping || !crew->batches.empty(); });
        crew->num_idle--;
        if (crew->batches.empty()) return;
        const std::shared_ptr<ReadBatch> batch = crew->batches.front();
        if (!batch->has_more()) {
            crew->batches.pop_front();
            continue;
        }
        lock.unlock();
        for (int i = 0; i < WAKES && batch->has_more(); i++) crew->has_work.notify_one();
        batch->take_pieces();
        lock.lock();
    }
}

void FileReader::close() {
    enter_fork();
    std::vector<std::thread> threads;
    {
        std::lock_guard<std::mutex> lock(crew_->mutex);
        crew_->is_stopping = true;
        threads.swap(crew_->threads);
    }
    crew_->has_work.notify_all();
    for (auto &thread : threads) thread.join();
    // What no thread was woken for; nobody adds to it any more.
    for (const auto &batch : crew_->batches) batch->wait();
    crew_->batches.clear();
}

int FileReader::num_threads() const {
    if (generation_ != fork_generation()) return 0;
    std::lock_guard<std::mutex> lock(crew_->mutex);
    return int(crew_->threads.size());
}

} // namespace strata
