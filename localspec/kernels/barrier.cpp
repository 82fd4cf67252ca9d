// A graph has several hundred operations, with a barrier after each. GNU OpenMP's barrier makes a
// system call whenever it opens, and takes four times as long as ours.
//
// libggml-cpu calls ggml_barrier through a table of addresses, into which ours is put. All threads of a
// team must wait with the same barrier: a running team must not switch, nor may one that computes
// with stock llama.cpp. So thread 0 marks the team in the first operation on our weights, and each
// thread sees that mark in the next one, with a barrier in between.
#include "barrier.h"

#ifdef __linux__

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>

#include "calls.h"
#include "stream.h"

namespace localspec {

using namespace ggml_abi;

namespace {

constexpr int ARRIVALS = 0xffff;    // bits of Threadpool::arrived that count threads; the mark is above
constexpr int ASLEEP = 1;           // bit of Threadpool::passed: a thread is asleep
constexpr int PATIENCE = 4000;      // spins, some 100 µs, before a thread sleeps

Barrier ggml_barrier;               // null while all use ggml's
int cores;                          // of this process
thread_local const Threadpool * joined;     // the team whose mark this thread has seen

int mark_of(const Tensor * op) { return (int) ((uintptr_t) op / sizeof(Tensor) % 0x7ffe + 1) << 16; }

void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield" ::: "memory");
#endif
}

void futex(std::atomic<int> & word, int operation, int value) {
    syscall(SYS_futex, &word, operation | FUTEX_PRIVATE_FLAG, value, nullptr, nullptr, 0);
}

void barrier(Threadpool * team) {
    // Another team may have had this address, and a new one has no mark.
    if (joined != team || team->arrived.load(std::memory_order_relaxed) == 0) return ggml_barrier(team);
    const int threads = team->n_graph.load(std::memory_order_relaxed) & ARRIVALS;
    const int before = team->passed.load(std::memory_order_relaxed) & ~ASLEEP, after = before + 2;
    if ((team->arrived.fetch_add(1, std::memory_order_acq_rel) & ARRIVALS) == threads - 1) {
        team->arrived.fetch_sub(threads, std::memory_order_relaxed);
        if (team->passed.exchange(after, std::memory_order_acq_rel) & ASLEEP) futex(team->passed, FUTEX_WAKE, INT_MAX);
        return;
    }
    const auto waits = [&] { return (team->passed.load(std::memory_order_acquire) & ~ASLEEP) == before; };
    for (int turn = 0; turn < PATIENCE; turn++) {
        if (!waits()) return;
        if (!prefetch_next()) relax();
    }
    while (waits()) {
        int expected = before;
        team->passed.compare_exchange_strong(expected, before | ASLEEP, std::memory_order_relaxed);
        futex(team->passed, FUTEX_WAIT, before | ASLEEP);
    }
}

}  // namespace

Barrier replace_barrier(void * cpu, Barrier theirs) {
    const link_map * library = (const link_map *) cpu;      // as dlopen returns it
    void ** place = place_of(library, "ggml_barrier");
    if (!place || !place_of(library, "GOMP_barrier")) return theirs;
    cpu_set_t set;
    cores = sched_getaffinity(0, sizeof set, &set) ? 0 : CPU_COUNT(&set);
    ggml_barrier = theirs;
    if (redirect(place, (void *) barrier)) return barrier;
    ggml_barrier = nullptr;
    return theirs;
}

void join_barrier(const ComputeParams * params, const Tensor * op) {
    // More threads than cores must not spin; OpenMP's sleep.
    if (!ggml_barrier || params->nth > cores) return;
    Threadpool * team = params->threadpool;
    const int found = team->arrived.load(std::memory_order_acquire), mark = mark_of(op);
    joined = found != 0 && (found & ~ARRIVALS) != mark ? team : nullptr;
    if (found == 0 && params->ith == 0) team->arrived.store(mark, std::memory_order_release);
}

}  // namespace localspec

#else

namespace localspec {

Barrier replace_barrier(void *, Barrier theirs) { return theirs; }
void join_barrier(const ggml_abi::ComputeParams *, const ggml_abi::Tensor *) {}

}  // namespace localspec

#endif
