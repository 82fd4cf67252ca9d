// Integer tiles with NEON, for processors with dot products of bytes (neon_dotprod) and for those that
// also multiply unsigned by signed bytes (neon_i8mm): four registers for the 16 rows.
//
// The integer sums are exact, so that every instruction set gives the same bits.
#pragma once

#include <arm_neon.h>

#include "layout.h"
#include "simd.h"
#include "stream.h"

namespace localspec::LOCALSPEC_ISA {

constexpr int QUARTERS = ROWS / W;      // registers of a tile's 16 rows
constexpr int PREFETCH_BYTES = 4096;

LOCALSPEC_INLINE void prefetch_ahead(const Stream & stream, const uint8_t * p, int bytes) {
    const uint8_t * ahead = stream.at(p, PREFETCH_BYTES);
#pragma GCC unroll 9
    for (int i = 0; i < bytes; i += 64) __builtin_prefetch(ahead + i);
}

// 16 bytes as floats.
LOCALSPEC_INLINE void unsigned_floats(uint8x16_t x, V * out) {
    const uint16x8_t low = vmovl_u8(vget_low_u8(x)), high = vmovl_high_u8(x);
    out[0] = vcvtq_f32_u32(vmovl_u16(vget_low_u16(low)));
    out[1] = vcvtq_f32_u32(vmovl_high_u16(low));
    out[2] = vcvtq_f32_u32(vmovl_u16(vget_low_u16(high)));
    out[3] = vcvtq_f32_u32(vmovl_high_u16(high));
}
LOCALSPEC_INLINE void signed_floats(int8x16_t x, V * out) {
    const int16x8_t low = vmovl_s8(vget_low_s8(x)), high = vmovl_high_s8(x);
    out[0] = vcvtq_f32_s32(vmovl_s16(vget_low_s16(low)));
    out[1] = vcvtq_f32_s32(vmovl_high_s16(low));
    out[2] = vcvtq_f32_s32(vmovl_s16(vget_low_s16(high)));
    out[3] = vcvtq_f32_s32(vmovl_high_s16(high));
}

LOCALSPEC_INLINE void halves_at(const uint8_t * p, V * out) {
    for (int x = 0; x < QUARTERS; x++) out[x] = from_f16(p + 2 * W * x);
}
LOCALSPEC_INLINE void store_rows(float * out, const V * v) {
    for (int x = 0; x < QUARTERS; x++) store(out + W * x, v[x]);
}
LOCALSPEC_INLINE void store_products(float * out, const V * a, const V * b) {
    for (int x = 0; x < QUARTERS; x++) store(out + W * x, mul(a[x], b[x]));
}

// Half of 2^(e − 127): the scale of MXFP4, whose values are doubled. The two smallest are subnormal.
LOCALSPEC_INLINE V exponents(uint32x4_t e) {
    const uint32x4_t normal = vshlq_n_u32(vsubq_u32(e, vdupq_n_u32(1)), 23);
    const uint32x4_t tiny = vshlq_u32(vdupq_n_u32(0x00200000), vreinterpretq_s32_u32(e));
    return vreinterpretq_f32_u32(vbslq_u32(vcltq_u32(e, vdupq_n_u32(2)), tiny, normal));
}
LOCALSPEC_INLINE void exponents_at(const uint8_t * p, V * out) {
    const uint8x16_t e = vld1q_u8(p);
    const uint16x8_t low = vmovl_u8(vget_low_u8(e)), high = vmovl_high_u8(e);
    out[0] = exponents(vmovl_u16(vget_low_u16(low)));
    out[1] = exponents(vmovl_high_u16(low));
    out[2] = exponents(vmovl_u16(vget_low_u16(high)));
    out[3] = exponents(vmovl_high_u16(high));
}

// 256 numbers of six bits, one per byte.
LOCALSPEC_INLINE void six_bits(const uint8_t * p, uint8_t * numbers) {
    const uint8x16_t low = vdupq_n_u8(63);
    for (int k = 0; k < 64; k += 16) {
        const uint8x16_t a = vld1q_u8(p + k), b = vld1q_u8(p + 64 + k), c = vld1q_u8(p + 128 + k);
        vst1q_u8(numbers + k, vandq_u8(a, low));
        vst1q_u8(numbers + 64 + k, vandq_u8(b, low));
        vst1q_u8(numbers + 128 + k, vandq_u8(c, low));
        const uint8x16_t second = vandq_u8(vshrq_n_u8(b, 4), vdupq_n_u8(3 << 2));
        const uint8x16_t third = vandq_u8(vshrq_n_u8(c, 2), vdupq_n_u8(3 << 4));
        vst1q_u8(numbers + 192 + k, vorrq_u8(vshrq_n_u8(a, 6), vorrq_u8(second, third)));
    }
}

// Scales and minimums of the blocks that share a header: [PER_16 ? 2·blocks : blocks][16 rows].
struct Header {
    alignas(64) float scale[16][ROWS];
    alignas(64) float minimum[16][ROWS];
};

template <Type T> LOCALSPEC_INLINE void read_header(const uint8_t * p, Header & out) {
    using namespace ggml_abi;
    V d[QUARTERS];
    [[maybe_unused]] V dmin[QUARTERS], v[QUARTERS];
    [[maybe_unused]] uint8_t n[256];
    if constexpr (T == MXFP4) {
        exponents_at(p, d);
        store_rows(out.scale[0], d);
        return;
    }
    halves_at(p, d);
    if constexpr (has_minimums<T>) halves_at(p + 32, dmin);
    if constexpr (Layout<T>::blocks == 1) {
        store_rows(out.scale[0], d);
        if constexpr (has_minimums<T>) store_rows(out.minimum[0], dmin);
        return;
    }
    if constexpr (has_minimums<T>)
        for (int x = 0; x < QUARTERS; x++) dmin[x] = sub(set1(0.0f), dmin[x]);
    if constexpr (T == Q4_K || T == Q5_K) {
        six_bits(p + 64, n);
        for (int j = 0; j < 8; j++) {
            unsigned_floats(vld1q_u8(n + 16 * j), v);
            store_products(out.scale[j], d, v);
            unsigned_floats(vld1q_u8(n + 128 + 16 * j), v);
            store_products(out.minimum[j], dmin, v);
        }
    } else if constexpr (T == Q2_K) {
        for (int j = 0; j < 16; j++) {
            const uint8x16_t x = vld1q_u8(p + 64 + 16 * j);
            unsigned_floats(vandq_u8(x, vdupq_n_u8(15)), v);
            store_products(out.scale[j], d, v);
            unsigned_floats(vshrq_n_u8(x, 4), v);
            store_products(out.minimum[j], dmin, v);
        }
    } else if constexpr (T == Q3_K) {
        six_bits(p + 32, n);
        for (int j = 0; j < 16; j++) {
            signed_floats(vreinterpretq_s8_u8(vsubq_u8(vld1q_u8(n + 16 * j), vdupq_n_u8(32))), v);
            store_products(out.scale[j], d, v);
        }
    } else if constexpr (T == Q6_K || T == IQ4_XS) {
        for (int j = 0; j < (T == Q6_K ? 16 : 8); j++) {
            signed_floats(vreinterpretq_s8_u8(vld1q_u8(p + 32 + 16 * j)), v);
            store_products(out.scale[j], d, v);
        }
    }
}

template <int LEFT> LOCALSPEC_INLINE uint8x16_t shifted(uint8x16_t x) {
    if constexpr (LEFT > 0) return vshlq_n_u8(x, LEFT);
    else if constexpr (LEFT < 0) return vshrq_n_u8(x, -LEFT);
    else return x;
}

// Columns 4G … 4G + 3 of 4 rows, unsigned; `p`: the block's quants at these rows.
template <Type T, int G> LOCALSPEC_INLINE uint8x16_t weights(const uint8_t * p) {
    using namespace ggml_abi;
    if constexpr (T == Q8_0) return vld1q_u8(p + 64 * G);
    uint8x16_t w = vdupq_n_u8(0);
    if constexpr (T != Q2_K && T != Q3_K) {
        const uint8x16_t x = vld1q_u8(p + 64 * (G & 3));
        w = G < 4 ? vandq_u8(x, vdupq_n_u8(15)) : vshrq_n_u8(x, 4);
    }
    if constexpr (T == IQ4_NL || T == IQ4_XS || T == MXFP4)
        w = vqtbl1q_u8(vld1q_u8(T == MXFP4 ? MXFP4_VALUES : IQ4_VALUES), w);
    if constexpr (T == Q2_K || T == Q3_K || T == Q6_K) {
        constexpr int at = T == Q6_K ? 4 : 0;
        const uint8x16_t x = vld1q_u8(p + (T == Q6_K ? 256 : 0) + 64 * (G / 4));
        w = vorrq_u8(w, vandq_u8(shifted<at - 2 * (G & 3)>(x), vdupq_n_u8(3 << at)));
    }
    if constexpr (T == Q5_0 || T == Q5_1 || T == Q5_K || T == Q3_K) {
        constexpr int at = T == Q3_K ? 2 : 4;
        const uint8x16_t x = vld1q_u8(p + (T == Q3_K ? 128 : 256));
        w = vorrq_u8(w, vandq_u8(shifted<at - G>(x), vdupq_n_u8(1 << at)));
    }
    return w;
}

// Four sums of four products: 4 rows, columns 4·LANE … 4·LANE + 3 of the 16 that `q` holds.
#ifdef __ARM_FEATURE_MATMUL_INT8
template <Type T> constexpr int CORRECTION = Layout<T>::offset;
template <Type T, int LANE> LOCALSPEC_INLINE int32x4_t dot(int32x4_t sum, uint8x16_t w, int8x16_t q) {
    return vusdotq_laneq_s32(sum, w, q, LANE);
}
#else
// Both operands are signed here: full-byte weights become signed, without their offset; all others are
// below 128 and stay as they are.
template <Type T> constexpr bool full_bytes = Layout<T>::offset == 128;
template <Type T> constexpr int CORRECTION = full_bytes<T> ? 0 : Layout<T>::offset;
template <Type T, int LANE> LOCALSPEC_INLINE int32x4_t dot(int32x4_t sum, uint8x16_t w, int8x16_t q) {
    if constexpr (full_bytes<T>) w = veorq_u8(w, vdupq_n_u8(0x80));
    return vdotq_laneq_s32(sum, vreinterpretq_s8_u8(w), q, LANE);
}
#endif

template <Type T, int U, int G>
LOCALSPEC_INLINE void add_columns(const uint8_t * p, const int8x16_t * q, int32x4_t (*sum)[QUARTERS]) {
#pragma GCC unroll 4
    for (int x = 0; x < QUARTERS; x++) {
        const uint8x16_t w = weights<T, G>(p + 16 * x);
#pragma GCC unroll 4
        for (int u = 0; u < U; u++) sum[u][x] = dot<T, G & 3>(sum[u][x], w, q[u]);
    }
}

template <Type T, int U, int HALF>
LOCALSPEC_INLINE void add_half(const uint8_t * p, const int8_t * q, int32x4_t (*sum)[QUARTERS]) {
    int8x16_t x[U];
#pragma GCC unroll 4
    for (int u = 0; u < U; u++) x[u] = vld1q_s8(q + BLOCK * u + 16 * HALF);
    add_columns<T, U, 4 * HALF>(p, x, sum);
    add_columns<T, U, 4 * HALF + 1>(p, x, sum);
    add_columns<T, U, 4 * HALF + 2>(p, x, sum);
    add_columns<T, U, 4 * HALF + 3>(p, x, sum);
}

template <Type T, int U> LOCALSPEC_INLINE void begin(const Activation * a, int part, int32x4_t (*sum)[QUARTERS]) {
#pragma GCC unroll 4
    for (int u = 0; u < U; u++) {       // the offset times the sum of the activations is subtracted first
        const int total = has_halves<T> ? a[u].sum[part] : a[u].total;
#pragma GCC unroll 4
        for (int x = 0; x < QUARTERS; x++) sum[u][x] = vdupq_n_s32(-CORRECTION<T> * total);
    }
}

// Unpacking again costs as little as reading bytes from memory.
template <Type T> LOCALSPEC_INLINE const uint8_t * unpacked(const uint8_t * p, uint8_t *) { return p; }

template <int U>
LOCALSPEC_INLINE void scale_sums(const int32x4_t (*sum)[QUARTERS], const float * scale, const Activation * a,
                                 float (*f)[ROWS]) {
#pragma GCC unroll 4
    for (int x = 0; x < QUARTERS; x++) {
        const V s = load(scale + W * x);
#pragma GCC unroll 4
        for (int u = 0; u < U; u++) {
            float * to = f[u] + W * x;
            store(to, fma(vcvtq_f32_s32(sum[u][x]), mul(s, set1(a[u].scale)), load(to)));
        }
    }
}

// Adds one block of 32 columns to the sums of U tokens. `scale` and `minimum`: of the block; for PER_16
// of its first half, followed by those of its second.
template <Type T, int U, bool>
LOCALSPEC_INLINE void add_block(const uint8_t * p, const int8_t * q, const Activation * a, const float (*scale)[ROWS],
                                const float (*minimum)[ROWS], float (*f)[ROWS]) {
    int32x4_t sum[U][QUARTERS];
    begin<T, U>(a, 0, sum);
    add_half<T, U, 0>(p, q, sum);
    if constexpr (has_halves<T>) {
        scale_sums<U>(sum, scale[0], a, f);
        begin<T, U>(a, 1, sum);
    }
    add_half<T, U, 1>(p, q, sum);
    scale_sums<U>(sum, scale[has_halves<T> ? 1 : 0], a, f);
    if constexpr (has_minimums<T>)
#pragma GCC unroll 4
        for (int u = 0; u < U; u++)
            for (int part = 0; part < (has_halves<T> ? 2 : 1); part++) {
                const float by = has_halves<T> ? a[u].scale * (float) a[u].sum[part] : a[u].scaled_sum;
                for (int x = 0; x < ROWS; x += W)
                    store(f[u] + x, fma(load(minimum[part] + x), set1(by), load(f[u] + x)));
            }
}

static void quantize_row(const float * x, int blocks, int8_t * q, size_t step, Activation * a, size_t a_step) {
    for (int i = 0; i < blocks; i++, x += BLOCK, q += step, a += a_step) {
        V v[8], most = set1(0.0f);
        for (int k = 0; k < 8; k++) {
            v[k] = load(x + W * k);
            most = vmaxq_f32(most, abs(v[k]));
        }
        const float m = highest(most), scale = m / 127.0f, inverse = m > TINY ? 127.0f / m : 0.0f;
        int32x4_t w[8];
        for (int k = 0; k < 8; k++) w[k] = vcvtnq_s32_f32(mul(v[k], set1(inverse)));
        for (int h = 0; h < 2; h++) {
            const int32x4_t * y = w + 4 * h;
            const int16x8_t low = vqmovn_high_s32(vqmovn_s32(y[0]), y[1]), high = vqmovn_high_s32(vqmovn_s32(y[2]), y[3]);
            vst1q_s8(q + 16 * h, vqmovn_high_s16(vqmovn_s16(low), high));
            a->sum[h] = (int16_t) vaddvq_s32(vaddq_s32(vaddq_s32(y[0], y[1]), vaddq_s32(y[2], y[3])));
        }
        a->scale = scale;
        a->total = a->sum[0] + a->sum[1];
        a->scaled_sum = scale * (float) a->total;
    }
}

}  // namespace localspec::LOCALSPEC_ISA
