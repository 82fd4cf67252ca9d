// Tiles of floating-point weights: F32, F16, BF16 times the activations as they are.
//
// Even and odd columns are summed separately, which keeps the multipliers busy for a single token; for
// more tokens too, so that the sums are the same.
#pragma once

#include "layout.h"
#include "simd.h"

namespace localspec::LOCALSPEC_ISA {

template <Type T> static inline __attribute__((always_inline)) V weights_at(const uint8_t * tile, int64_t i) {
    if constexpr (T == ggml_abi::F32) return load((const float *) tile + i);
    else if constexpr (T == ggml_abi::F16) return from_f16((const uint16_t *) tile + i);
    else return from_bf16((const uint16_t *) tile + i);
}

template <Type T, int N>
static inline __attribute__((always_inline)) void float_rows(const uint8_t * tile, const float * const * x,
                                                             int64_t columns, float * out, size_t stride) {
    constexpr int R = ROWS / W;
    V even[N][R], odd[N][R];
#pragma GCC unroll 16
    for (int t = 0; t < N; t++)
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) even[t][r] = odd[t][r] = set1(0.0f);
    int64_t c = 0;
    for (; c + 2 <= columns; c += 2) {
        __builtin_prefetch(tile + c * ROWS * float_bytes(T) + 4096);
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
            const V w0 = weights_at<T>(tile, c * ROWS + r * W), w1 = weights_at<T>(tile, (c + 1) * ROWS + r * W);
#pragma GCC unroll 16
            for (int t = 0; t < N; t++) {
                even[t][r] = fma(w0, set1(x[t][c]), even[t][r]);
                odd[t][r] = fma(w1, set1(x[t][c + 1]), odd[t][r]);
            }
        }
    }
    if (c < columns)
        for (int r = 0; r < R; r++)
            for (int t = 0; t < N; t++)
                even[t][r] = fma(weights_at<T>(tile, c * ROWS + r * W), set1(x[t][c]), even[t][r]);
#pragma GCC unroll 16
    for (int t = 0; t < N; t++)
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) store(out + t * stride + r * W, add(even[t][r], odd[t][r]));
}

template <Type T, int N>
static void float_tile(const void * tile, const float * const * x, int64_t columns, float * out, size_t stride) {
    constexpr int U = W == 16 ? 12 : 3;     // tokens whose sums fit into registers
    int t = 0;
    if constexpr (N >= U)
        for (; t + U <= N; t += U) float_rows<T, U>((const uint8_t *) tile, x + t, columns, out + t * stride, stride);
    if constexpr (N % U) float_rows<T, N % U>((const uint8_t *) tile, x + t, columns, out + t * stride, stride);
}

}  // namespace localspec::LOCALSPEC_ISA
