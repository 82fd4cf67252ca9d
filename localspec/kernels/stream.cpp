#include "stream.h"

namespace localspec {

namespace {

constexpr int PARTS = 1024;                 // parts that a thread remembers
constexpr ptrdiff_t KERNELS_FETCH = 8192;   // bytes that kernels prefetch themselves, at most
constexpr ptrdiff_t MOST = 65536;           // bytes prefetched while waiting, a fraction of L2

// Addresses are only compared and prefetched, which is safe if they are stale.
struct Link {
    const uint8_t * part, * next;
};
thread_local Link links[PARTS];
thread_local const uint8_t * last, * position, * limit;

Link & link_of(const uint8_t * part) { return links[((uintptr_t) part >> 6) * 0x9E3779B97F4A7C15u >> 54]; }

// Of those with AVX-512, all AMD processors but Zen 4.
bool is_zen5() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    return __builtin_cpu_is("amd") && !__builtin_cpu_is("amdfam19h");
#else
    return false;
#endif
}

}  // namespace

const bool past_caches = is_zen5();

Stream follow(const uint8_t * part, const uint8_t * end) {
    link_of(last) = {last, part};
    last = part;
    const Link & link = link_of(part);
    position = limit = nullptr;
    if (link.part != part) return {end, 0};
    position = link.next + KERNELS_FETCH;
    limit = position + MOST;
    return {end, link.next - end};
}

bool prefetch_next() {
    if (position == limit) return false;
    for (int i = 0; i < 4; i++, position += 64) __builtin_prefetch(position, 0, 2);
    return true;
}

}  // namespace localspec
