// Tests of localspec/kernels/shares.h: every item is computed once, also if a thread comes late or never.
#include "../../localspec/kernels/shares.h"

#include <cstdio>
#include <thread>
#include <vector>

using namespace localspec;

int main() {
    int failures = 0;
    for (const int64_t items : {0, 1, 5, 36, 100000})
        for (const int threads : {1, 2, 3, 16})
            for (const bool alone : {false, true}) {
                alignas(64) static char memory[16 * 64];
                std::vector<Shares> shares;
                for (int ith = 0; ith < threads; ith++) shares.emplace_back(memory, items, ith, threads);
                std::vector<std::atomic<int>> computed(items);
                int64_t others = 0;
                const auto work = [&](int ith) {
                    shares[ith].take([&](int64_t first, int64_t end, bool own) {
                        for (int64_t i = first; i < end; i++) computed[i]++;
                        if (alone && !own) others += end - first;
                    });
                };
                std::vector<std::thread> team;
                for (int ith = 0; ith < (alone ? 1 : threads); ith++) team.emplace_back(work, ith);
                for (std::thread & one : team) one.join();
                bool ok = !alone || others == items - shares[0].part(1);
                for (const auto & count : computed) ok &= count == 1;
                printf("%s %ld items, %d threads%s\n", ok ? "ok    " : "FAILED", (long) items, threads, alone ? ", one of them at work" : "");
                failures += !ok;
            }
    return failures != 0;
}
