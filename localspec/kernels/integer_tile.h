// A tile times a group of tokens, where a register holds a part of the 16 rows: sums are in memory, and
// `add_block` processes a few tokens at once. For dot_avx2.h and dot_neon.h.
#pragma once

#include <cstring>

#include "layout.h"
#include "simd.h"
#include "stream.h"

namespace localspec::LOCALSPEC_ISA {

constexpr int SHARING = 4;  // tokens that share weights in registers: more would spill

template <Type T, int N>
static void integer_tile(const uint8_t * p, Stream stream, const uint8_t * activations, int blocks, float * out,
                         size_t stride) {
    using L = Layout<T>;
    constexpr int U = SHARING, WHOLE = N / U * U;
    constexpr bool BYTES = N > U;   // weights are unpacked once, for all groups of tokens
    const int8_t * q = (const int8_t *) activations;
    const Activation * a = (const Activation *) (activations + (size_t) blocks * N * BLOCK);
    alignas(64) float f[N][ROWS];
    alignas(64) uint8_t bytes[BLOCK * ROWS];
    memset(f, 0, sizeof f);
    Header header;
    for (int i = 0; i < blocks; i += L::blocks) {
        if constexpr (L::blocks > 1) prefetch_ahead(stream, p, L::header);
        read_header<T>(p, header);
        p += L::header;
        for (int j = 0; j < L::blocks; j++) {
            prefetch_ahead(stream, p, L::quants + (L::blocks == 1 ? L::header : 0));
            const int at = has_halves<T> ? 2 * j : j;
            const auto scale = header.scale + at, minimum = header.minimum + at;
            const uint8_t * w = BYTES ? unpacked<T>(p, bytes) : p;
#pragma GCC unroll 1
            for (int t = 0; t < WHOLE; t += U) add_block<T, U, BYTES>(w, q + BLOCK * t, a + t, scale, minimum, f + t);
            if constexpr (N % U)
                add_block<T, N % U, BYTES>(w, q + BLOCK * WHOLE, a + WHOLE, scale, minimum, f + WHOLE);
            p += L::quants;
            q += BLOCK * N;
            a += N;
        }
    }
    for (int t = 0; t < N; t++)
        for (int x = 0; x < ROWS; x += W) store(out + t * stride + x, load(f[t] + x));
}

}  // namespace localspec::LOCALSPEC_ISA
