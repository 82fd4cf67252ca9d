// The work of an operation, shared by the threads of a pass. Each thread computes its own part, and then
// helps those that are behind: their cores may be slow, or busy with other programs.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <new>

namespace localspec {

class Shares {
  public:
    // Of memory that the threads have in common, aligned to 64.
    static size_t bytes(int threads) { return threads * sizeof(Share); }

    // Every thread makes one, and then all wait for each other before the first takes items.
    Shares(void * memory, int64_t items, int ith, int nth)
        : shares_((Share *) memory), items_(items), ith_(ith), nth_(nth) {
        new (&shares_[ith]) Share{{part(ith)}};
    }

    // The first item of a thread's own part.
    int64_t part(int64_t thread) const { return items_ * thread / nth_; }

    // Calls compute(first, end, own) until all items are taken; `own`: from this thread's part.
    template <class Compute> void take(const Compute & compute) {
        const int64_t most = std::max<int64_t>(1, items_ / nth_ / PIECES);
        for (int i = 0; i < nth_; i++) {
            const int owner = (ith_ + i) % nth_;
            const int64_t end = part(owner + 1);
            std::atomic<int64_t> & next = shares_[owner].next;
            while (next.load(std::memory_order_relaxed) < end) {
                const int64_t first = next.fetch_add(most, std::memory_order_relaxed);
                compute(first, std::min(first + most, end), i == 0);
            }
        }
    }

  private:
    static constexpr int64_t PIECES = 16;   // of a part: threads end together, to one of these
    struct alignas(64) Share {
        std::atomic<int64_t> next;
    };
    Share * shares_;
    int64_t items_;
    int ith_, nth_;
};

}  // namespace localspec
