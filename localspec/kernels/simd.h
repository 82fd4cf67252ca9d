// Vectors of W floats of the instruction set that a file is compiled for: AVX-512, AVX2 with FMA and F16C, or NEON (aarch64).
//
// Every function here gives the same bits for each lane on every instruction set (NaN payloads aside): products and sums are
// fused only by `fma` (compile with -ffp-contract=off), rounding is to nearest even. A kernel whose order of
// operations for one value does not depend on W is therefore bit-identical everywhere.
//
// Only for files that are compiled once for each instruction set (isa.cpp), with LOCALSPEC_ISA naming the namespace. All
// functions are static: with external linkage the linker could use an AVX-512 copy of one in generic code.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#ifndef LOCALSPEC_ISA
#error "LOCALSPEC_ISA must name the instruction set: -DLOCALSPEC_ISA=avx512, avxvnni, avx2, neon_dotprod, ..."
#endif

#if defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <immintrin.h>
#else
#error "simd.h needs aarch64, AVX-512, or AVX2 with FMA and F16C"
#endif

#define LOCALSPEC_INLINE static inline __attribute__((always_inline, unused))

namespace localspec::LOCALSPEC_ISA {

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)

constexpr int W = 16;
constexpr int REGISTERS = 32;
typedef __m512 V;
typedef __mmask16 M;  // one truth value per lane

LOCALSPEC_INLINE V load(const float *p) { return _mm512_loadu_ps(p); }
LOCALSPEC_INLINE void store(float *p, V x) { _mm512_storeu_ps(p, x); }
LOCALSPEC_INLINE V set1(float x) { return _mm512_set1_ps(x); }
LOCALSPEC_INLINE float first(V x) { return _mm512_cvtss_f32(x); }
LOCALSPEC_INLINE V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
LOCALSPEC_INLINE V mul(V a, V b) { return _mm512_mul_ps(a, b); }
LOCALSPEC_INLINE V add(V a, V b) { return _mm512_add_ps(a, b); }
LOCALSPEC_INLINE V sub(V a, V b) { return _mm512_sub_ps(a, b); }
LOCALSPEC_INLINE V div(V a, V b) { return _mm512_div_ps(a, b); }
LOCALSPEC_INLINE V max(V a, V b) { return _mm512_max_ps(a, b); }
LOCALSPEC_INLINE V round_even(V x) { return _mm512_roundscale_ps(x, 8); }
LOCALSPEC_INLINE V abs(V x) { return _mm512_andnot_ps(_mm512_set1_ps(-0.f), x); }
LOCALSPEC_INLINE V sign_of(V x, V sign) { return _mm512_or_ps(x, _mm512_and_ps(_mm512_set1_ps(-0.f), sign)); }
LOCALSPEC_INLINE M greater(V a, V b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
LOCALSPEC_INLINE V select(M m, V yes, V no) { return _mm512_mask_blend_ps(m, no, yes); }
LOCALSPEC_INLINE bool different(V a, V b) { return _mm512_cmp_ps_mask(a, b, _CMP_NEQ_UQ) != 0; }
LOCALSPEC_INLINE float highest(V x) { return _mm512_reduce_max_ps(x); }
LOCALSPEC_INLINE V scale2(V x, V n) {
    return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(n, _mm512_set1_ps(-125.f), _CMP_NLT_UQ), x, n);
}
LOCALSPEC_INLINE V from_f16(const void *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
LOCALSPEC_INLINE V from_bf16(const void *p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}
LOCALSPEC_INLINE V from_i8(const void *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}

LOCALSPEC_INLINE V pairs_low(V a, V b) { return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b))); }
LOCALSPEC_INLINE V pairs_high(V a, V b) { return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b))); }
LOCALSPEC_INLINE void transpose(V *a) {
    V b[16];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        a[i] = pairs_low(b[i], b[i + 2]);
        a[i + 1] = pairs_high(b[i], b[i + 2]);
        a[i + 2] = pairs_low(b[i + 1], b[i + 3]);
        a[i + 3] = pairs_high(b[i + 1], b[i + 3]);
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        V x = _mm512_shuffle_f32x4(a[j], a[4 + j], 0x88), y = _mm512_shuffle_f32x4(a[j], a[4 + j], 0xdd);
        V z = _mm512_shuffle_f32x4(a[8 + j], a[12 + j], 0x88), w = _mm512_shuffle_f32x4(a[8 + j], a[12 + j], 0xdd);
        b[j] = _mm512_shuffle_f32x4(x, z, 0x88);
        b[8 + j] = _mm512_shuffle_f32x4(x, z, 0xdd);
        b[4 + j] = _mm512_shuffle_f32x4(y, w, 0x88);
        b[12 + j] = _mm512_shuffle_f32x4(y, w, 0xdd);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) a[i] = b[i];
}

#elif defined(__AVX2__)

constexpr int W = 8;
constexpr int REGISTERS = 16;
typedef __m256 V;
typedef __m256 M;  // one truth value per lane: all bits or none

LOCALSPEC_INLINE V load(const float *p) { return _mm256_loadu_ps(p); }
LOCALSPEC_INLINE void store(float *p, V x) { _mm256_storeu_ps(p, x); }
LOCALSPEC_INLINE V set1(float x) { return _mm256_set1_ps(x); }
LOCALSPEC_INLINE float first(V x) { return _mm256_cvtss_f32(x); }
LOCALSPEC_INLINE V fma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
LOCALSPEC_INLINE V mul(V a, V b) { return _mm256_mul_ps(a, b); }
LOCALSPEC_INLINE V add(V a, V b) { return _mm256_add_ps(a, b); }
LOCALSPEC_INLINE V sub(V a, V b) { return _mm256_sub_ps(a, b); }
LOCALSPEC_INLINE V div(V a, V b) { return _mm256_div_ps(a, b); }
LOCALSPEC_INLINE V max(V a, V b) { return _mm256_max_ps(a, b); }
LOCALSPEC_INLINE V round_even(V x) { return _mm256_round_ps(x, 8); }
LOCALSPEC_INLINE V abs(V x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.f), x); }
LOCALSPEC_INLINE V sign_of(V x, V sign) { return _mm256_or_ps(x, _mm256_and_ps(_mm256_set1_ps(-0.f), sign)); }
LOCALSPEC_INLINE M greater(V a, V b) { return _mm256_cmp_ps(a, b, _CMP_GT_OQ); }
LOCALSPEC_INLINE V select(M m, V yes, V no) { return _mm256_blendv_ps(no, yes, m); }
LOCALSPEC_INLINE bool different(V a, V b) { return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_NEQ_UQ)) != 0; }
LOCALSPEC_INLINE float highest(V x) {
    __m128 h = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    h = _mm_max_ps(h, _mm_movehl_ps(h, h));
    return _mm_cvtss_f32(_mm_max_ss(h, _mm_shuffle_ps(h, h, 1)));
}
LOCALSPEC_INLINE V scale2(V x, V n) {
    __m256i factor = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    V alive = _mm256_cmp_ps(n, _mm256_set1_ps(-125.f), _CMP_NLT_UQ);
    return _mm256_and_ps(alive, _mm256_mul_ps(x, _mm256_castsi256_ps(factor)));
}
LOCALSPEC_INLINE V from_f16(const void *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
LOCALSPEC_INLINE V from_bf16(const void *p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}
LOCALSPEC_INLINE V from_i8(const void *p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}

LOCALSPEC_INLINE void transpose(V *a) {
    V b[8];
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
        b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
        a[i] = _mm256_shuffle_ps(b[i], b[i + 2], 0x44);
        a[i + 1] = _mm256_shuffle_ps(b[i], b[i + 2], 0xee);
        a[i + 2] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0x44);
        a[i + 3] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        V low = a[j], high = a[4 + j];
        a[j] = _mm256_permute2f128_ps(low, high, 0x20);
        a[4 + j] = _mm256_permute2f128_ps(low, high, 0x31);
    }
}

#else  // NEON

constexpr int W = 4;
constexpr int REGISTERS = 32;
typedef float32x4_t V;
typedef uint32x4_t M;  // one truth value per lane: all bits or none

LOCALSPEC_INLINE V load(const float *p) { return vld1q_f32(p); }
LOCALSPEC_INLINE void store(float *p, V x) { vst1q_f32(p, x); }
LOCALSPEC_INLINE V set1(float x) { return vdupq_n_f32(x); }
LOCALSPEC_INLINE float first(V x) { return vgetq_lane_f32(x, 0); }
LOCALSPEC_INLINE V fma(V a, V b, V c) { return vfmaq_f32(c, a, b); }
LOCALSPEC_INLINE V mul(V a, V b) { return vmulq_f32(a, b); }
LOCALSPEC_INLINE V add(V a, V b) { return vaddq_f32(a, b); }
LOCALSPEC_INLINE V sub(V a, V b) { return vsubq_f32(a, b); }
LOCALSPEC_INLINE V div(V a, V b) { return vdivq_f32(a, b); }
LOCALSPEC_INLINE V max(V a, V b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }  // as on x86: b if one is NaN
LOCALSPEC_INLINE V round_even(V x) { return vrndnq_f32(x); }
LOCALSPEC_INLINE V abs(V x) { return vabsq_f32(x); }
LOCALSPEC_INLINE V sign_of(V x, V sign) { return vbslq_f32(vdupq_n_u32(0x80000000u), sign, x); }
LOCALSPEC_INLINE M greater(V a, V b) { return vcgtq_f32(a, b); }
LOCALSPEC_INLINE V select(M m, V yes, V no) { return vbslq_f32(m, yes, no); }
LOCALSPEC_INLINE bool different(V a, V b) { return vminvq_u32(vceqq_f32(a, b)) == 0; }
LOCALSPEC_INLINE float highest(V x) { return vmaxvq_f32(x); }
LOCALSPEC_INLINE V scale2(V x, V n) {
    float32x4_t factor = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)), 23));
    uint32x4_t dead = vcltq_f32(n, vdupq_n_f32(-125.f));
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(vmulq_f32(x, factor)), dead));
}
LOCALSPEC_INLINE V from_f16(const void *p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16((const uint16_t *)p))); }
LOCALSPEC_INLINE V from_bf16(const void *p) {
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16((const uint16_t *)p), 16));
}
LOCALSPEC_INLINE V from_i8(const void *p) {
    int32_t four;
    memcpy(&four, p, 4);
    int8x8_t bytes = vreinterpret_s8_s32(vdup_n_s32(four));
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(bytes))));
}

LOCALSPEC_INLINE void transpose(V *a) {
    float32x4x2_t x = vtrnq_f32(a[0], a[1]), y = vtrnq_f32(a[2], a[3]);
    a[0] = vcombine_f32(vget_low_f32(x.val[0]), vget_low_f32(y.val[0]));
    a[1] = vcombine_f32(vget_low_f32(x.val[1]), vget_low_f32(y.val[1]));
    a[2] = vcombine_f32(vget_high_f32(x.val[0]), vget_high_f32(y.val[0]));
    a[3] = vcombine_f32(vget_high_f32(x.val[1]), vget_high_f32(y.val[1]));
}

#endif

template <int N> struct Int {  // a number as a type, for loops over unrolled sizes
    static constexpr int value = N;
};

// Contracts of the functions above that their names do not state:
//   max(a, b)      b if one of them is NaN
//   greater, select(m, yes, no): truth values by lane
//   different(a, b) whether any lane differs or is NaN
//   scale2(x, n)   x * 2^n for integral n <= 127; zero if n < -125, so that no factor is subnormal; NaN stays NaN
//   sign_of(x, s)  x >= 0 with the sign of s
//   from_f16, from_bf16: W values of 2 bytes; from_i8: W signed bytes as floats; half(x): one f16
//   transpose(a)   W vectors as rows of a square: a[i][j] <-> a[j][i]

LOCALSPEC_INLINE float half(uint16_t x) {
#if defined(__aarch64__)
    __fp16 h;
    memcpy(&h, &x, 2);
    return h;
#else
    return _cvtsh_ss(x);
#endif
}

// 2^r for |r| <= 1/2: the polynomial of least maximal relative error with 2^0 = 1 (7.9e-8 in float32). Monotone in r, also
// across the joints: 2^(1/2) <= 2 * 2^(-1/2).
LOCALSPEC_INLINE V exp2_fraction(V r) {
    V p = set1(1.5353362e-4f);
    p = fma(p, r, set1(1.3398874e-3f));
    p = fma(p, r, set1(9.6184373e-3f));
    p = fma(p, r, set1(5.5503324e-2f));
    p = fma(p, r, set1(2.4022648e-1f));
    p = fma(p, r, set1(6.9314720e-1f));
    return fma(p, r, set1(1.f));
}

}  // namespace localspec::LOCALSPEC_ISA
