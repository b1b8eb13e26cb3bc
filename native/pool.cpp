#include "pool.h"

#include <chrono>
#include <mutex>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace strata {

namespace {

inline void relax() {
#if defined(__x86_64__)
    _mm_pause();
#else
    std::this_thread::yield();
#endif
}

// Between two operations of one token the host needs some ten microseconds; after this long
// nothing is coming, and the thread sleeps until it is woken.
constexpr auto SPIN_TIME = std::chrono::microseconds(2000);

template <class Ready> bool spin_until(Ready ready) {
    const auto deadline = std::chrono::steady_clock::now() + SPIN_TIME;
    while (true) {
        for (int i = 0; i < 256; i++) {
            if (ready()) return true;
            relax();
        }
        if (std::chrono::steady_clock::now() > deadline) return false;
        // The awaited thread may have no core to run on; without such a thread this costs nothing.
        std::this_thread::yield();
    }
}

} // namespace

struct Pool::Mutex {
    std::mutex m;
};

Pool::Pool(int num_threads) : num_threads_(num_threads), mutex_(new Mutex) {
    try {
        for (int thread = 1; thread < num_threads; thread++)
            workers_.emplace_back([this, thread] { work(thread); });
    } catch (...) {
        // No destructor follows, and a thread that nobody joined would end the process.
        stop();
        throw;
    }
}

Pool::~Pool() { stop(); }

void Pool::stop() {
    is_stopping_ = true;
    epoch_.fetch_add(1);
    epoch_.notify_all();
    for (auto &w : workers_) w.join();
}

void Pool::run_erased(Task task, void *ctx) {
    std::lock_guard<std::mutex> lock(mutex_->m);
    if (num_threads_ == 1) {
        task(ctx, 0, 1);
        return;
    }
    task_ = task;
    ctx_ = ctx;
    running_.store(num_threads_ - 1, std::memory_order_relaxed);
    epoch_.fetch_add(1, std::memory_order_release);
    epoch_.notify_all();
    task(ctx, 0, num_threads_);
    // The others hold parts of the same work, so they finish at nearly the same time; but a
    // descheduled worker must not make this thread burn its core for long.
    while (!spin_until([&] { return running_.load(std::memory_order_acquire) == 0; })) {
        const int left = running_.load(std::memory_order_acquire);
        if (left != 0) running_.wait(left);
    }
}

void Pool::barrier() {
    if (num_threads_ == 1) return;
    const uint32_t epoch = barrier_epoch_.load(std::memory_order_acquire);
    if (barrier_count_.fetch_add(1, std::memory_order_acq_rel) == num_threads_ - 1) {
        barrier_count_.store(0, std::memory_order_relaxed);
        barrier_epoch_.fetch_add(1, std::memory_order_release);
        barrier_epoch_.notify_all();
        return;
    }
    const auto is_over = [&] { return barrier_epoch_.load(std::memory_order_acquire) != epoch; };
    while (!spin_until(is_over)) barrier_epoch_.wait(epoch);
}

void Pool::work(int thread) {
    uint32_t seen = 0;
    while (true) {
        const auto has_work = [&] { return epoch_.load(std::memory_order_acquire) != seen; };
        while (!spin_until(has_work)) epoch_.wait(seen);
        seen++;
        if (is_stopping_) return;
        task_(ctx_, thread, num_threads_);
        if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) running_.notify_all();
    }
}

} // namespace strata
