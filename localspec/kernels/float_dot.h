// The product of a row of floating-point weights with a token: 16 sums of every sixteenth column, added
// in order, whatever the width of a register.
#pragma once

#include "layout.h"
#include "simd.h"

namespace localspec::LOCALSPEC_ISA {

template <typename Load> static inline float dot_with(Load weights, const float * x, int64_t columns) {
    constexpr int R = 16 / W;
    V sums[R];
    for (int r = 0; r < R; r++) sums[r] = set1(0.0f);
    int64_t c = 0;
    for (; c + 16 <= columns; c += 16)
        for (int r = 0; r < R; r++) sums[r] = fma(weights(c + r * W), load(x + c + r * W), sums[r]);
    float parts[16], sum = 0.0f;
    for (int r = 0; r < R; r++) store(parts + r * W, sums[r]);
    for (int i = 0; i < 16; i++) sum += parts[i];
    for (; c < columns; c++) sum = first(fma(set1(weights.one(c)), set1(x[c]), set1(sum)));
    return sum;
}

struct DotF32 {
    const float * p;
    V operator()(int64_t c) const { return load(p + c); }
    float one(int64_t c) const { return p[c]; }
};

struct DotF16 {
    const uint16_t * p;
    V operator()(int64_t c) const { return from_f16(p + c); }
    float one(int64_t c) const {
        uint16_t padded[16] = {p[c]};
        return first(from_f16(padded));
    }
};

struct DotBF16 {
    const uint16_t * p;
    V operator()(int64_t c) const { return from_bf16(p + c); }
    float one(int64_t c) const {
        uint16_t padded[16] = {p[c]};
        return first(from_bf16(padded));
    }
};

static float dot_of(Type type, const void * weights, const float * x, int64_t columns) {
    switch (type) {
        case ggml_abi::F32: return dot_with(DotF32{(const float *) weights}, x, columns);
        case ggml_abi::F16: return dot_with(DotF16{(const uint16_t *) weights}, x, columns);
        default: return dot_with(DotBF16{(const uint16_t *) weights}, x, columns);
    }
}

}  // namespace localspec::LOCALSPEC_ISA
