// The weights that a thread reads in a pass, as one stream: its part of a matrix, then its part of the
// next one. Between two matrices are small operations and barriers, during which memory would be idle.
#pragma once

#include <cstddef>
#include <cstdint>

namespace localspec {

struct Stream {
    const uint8_t * end;        // of the part
    ptrdiff_t gap;              // bytes from there to the next one

    // The address `bytes` after `p` in the stream, for prefetching.
    __attribute__((always_inline)) const uint8_t * at(const uint8_t * p, ptrdiff_t bytes) const {
        return p + bytes + (end - p > bytes ? 0 : gap);
    }
};

// The stream of this thread from a part on. The next part is the one that came next in the last pass.
Stream follow(const uint8_t * part, const uint8_t * end);

// Whether AVX-512 kernels prefetch weights past L2 and L3.
extern const bool past_caches;

// Prefetches a little of the next part; false once there is no more to prefetch. Called while waiting.
bool prefetch_next();

}  // namespace localspec
