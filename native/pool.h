// A pool of worker threads that all run the same function (one thread each), with a barrier.
// Workers spin briefly for the next call, then sleep, so an idle engine costs nothing.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace strata {

class Pool {
  public:
    // num_threads >= 1; the calling thread is thread 0 of every run(). Throws std::system_error when
    // the system refuses a thread.
    explicit Pool(int num_threads);
    ~Pool();
    Pool(const Pool &) = delete;
    Pool &operator=(const Pool &) = delete;

    int num_threads() const { return num_threads_; }

    // Calls f(thread, num_threads) on every thread, returns when all have returned.
    // One run at a time; calls from several threads queue on a mutex. f may not throw:
    // the others would wait for ever at the next barrier, so an exception ends the process.
    template <class F> void run(F &&f) {
        run_erased([](void *ctx, int thread, int n) noexcept { (*static_cast<F *>(ctx))(thread, n); },
                   const_cast<void *>(static_cast<const void *>(&f)));
    }

    // To be called by every thread of a run, the same number of times.
    void barrier();

  private:
    using Task = void (*)(void *, int, int);
    void run_erased(Task task, void *ctx);
    void work(int thread);
    void stop();

    int num_threads_;
    Task task_ = nullptr;
    void *ctx_ = nullptr;
    alignas(64) std::atomic<uint32_t> epoch_{0};    // a new run begins
    alignas(64) std::atomic<int> running_{0};       // workers still in this run
    alignas(64) std::atomic<int> barrier_count_{0}; // arrivals at the current barrier
    alignas(64) std::atomic<uint32_t> barrier_epoch_{0};
    std::atomic<bool> is_stopping_{false};
    struct Mutex;
    std::unique_ptr<Mutex> mutex_;
    std::vector<std::thread> workers_;
};

// The half-open range of n items that belongs to one of num_threads threads: contiguous, even.
struct Range {
    int64_t begin, end;
};
inline Range split(int64_t n, int thread, int num_threads) {
    return {n * thread / num_threads, n * (thread + 1) / num_threads};
}

} // namespace strata
