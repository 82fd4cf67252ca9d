// Integer tiles with AVX2, or AVX-VNNI if compiled in: two registers for the 16 rows.
//
// The integer sums are exact, so that every instruction set gives the same bits.
#pragma once

#include <immintrin.h>

#include <cstring>

#include "layout.h"
#include "stream.h"

namespace localspec::LOCALSPEC_ISA {

#define INLINE static inline __attribute__((always_inline, unused))

constexpr int PREFETCH_BYTES = 4096;

INLINE void prefetch_ahead(const Stream & stream, const uint8_t * p, int bytes) {
    const uint8_t * ahead = stream.at(p, PREFETCH_BYTES);
#pragma GCC unroll 9
    for (int i = 0; i < bytes; i += 64) _mm_prefetch((const char *) ahead + i, _MM_HINT_T0);
}

INLINE __m256i bytes_at(const void * p) { return _mm256_loadu_si256((const __m256i *) p); }
INLINE __m256 halves_at(const void * p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) p)); }
INLINE __m256i widened(const uint8_t * p) { return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *) p)); }
INLINE __m256 unsigned_at(const uint8_t * p) { return _mm256_cvtepi32_ps(widened(p)); }
INLINE __m256 signed_at(const uint8_t * p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *) p)));
}
INLINE __m256 times(__m256 a, __m256 b) { return _mm256_mul_ps(a, b); }
INLINE __m256 minus(__m256 a) { return _mm256_sub_ps(_mm256_setzero_ps(), a); }

INLINE __m256 exponents_at(const uint8_t * p) {
    const __m256i e = widened(p);
    const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    const __m256i tiny = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(normal, tiny, _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e)));
}

INLINE void six_bits(const uint8_t * p, uint8_t * numbers) {
    const __m256i low = _mm256_set1_epi8(63), pair = _mm256_set1_epi8(3);
    for (int h = 0; h < 64; h += 32) {
        __m256i rest = _mm256_setzero_si256();
#pragma GCC unroll 3
        for (int c = 0; c < 3; c++) {
            const __m256i x = bytes_at(p + 64 * c + h);
            _mm256_store_si256((__m256i *) (numbers + 64 * c + h), _mm256_and_si256(x, low));
            rest = _mm256_or_si256(rest, _mm256_slli_epi16(_mm256_and_si256(_mm256_srli_epi16(x, 6), pair), 2 * c));
        }
        _mm256_store_si256((__m256i *) (numbers + 192 + h), rest);
    }
}

struct Header {
    alignas(64) float scale[16][ROWS];
    alignas(64) float minimum[16][ROWS];
};

template <Type T> INLINE void read_header(const uint8_t * p, Header & out) {
    using namespace ggml_abi;
    [[maybe_unused]] alignas(64) uint8_t n[256];
    if constexpr (T == Q4_K || T == Q5_K) six_bits(p + 64, n);
    if constexpr (T == Q3_K) six_bits(p + 32, n);
    for (int r = 0; r < ROWS; r += 8) {
        if constexpr (T == MXFP4) {
            _mm256_store_ps(out.scale[0] + r, exponents_at(p + r));
            continue;
        }
        const __m256 d = halves_at(p + 2 * r);
        if constexpr (Layout<T>::blocks == 1) {
            _mm256_store_ps(out.scale[0] + r, d);
            if constexpr (has_minimums<T>) _mm256_store_ps(out.minimum[0] + r, halves_at(p + 32 + 2 * r));
        } else if constexpr (T == Q4_K || T == Q5_K) {
            const __m256 dmin = minus(halves_at(p + 32 + 2 * r));
            for (int j = 0; j < 8; j++) {
                _mm256_store_ps(out.scale[j] + r, times(d, unsigned_at(n + 16 * j + r)));
                _mm256_store_ps(out.minimum[j] + r, times(dmin, unsigned_at(n + 128 + 16 * j + r)));
            }
        } else if constexpr (T == Q2_K) {
            const __m256 dmin = minus(halves_at(p + 32 + 2 * r));
            for (int j = 0; j < 16; j++) {
                const __m256i x = widened(p + 64 + 16 * j + r);
                const __m256i low = _mm256_and_si256(x, _mm256_set1_epi32(15));
                _mm256_store_ps(out.scale[j] + r, times(d, _mm256_cvtepi32_ps(low)));
                _mm256_store_ps(out.minimum[j] + r, times(dmin, _mm256_cvtepi32_ps(_mm256_srli_epi32(x, 4))));
            }
        } else if constexpr (T == Q3_K) {
            for (int j = 0; j < 16; j++)
                _mm256_store_ps(out.scale[j] + r,
                                times(d, _mm256_sub_ps(unsigned_at(n + 16 * j + r), _mm256_set1_ps(32))));
        } else {
            static_assert(T == Q6_K || T == IQ4_XS);
            for (int j = 0; j < (T == Q6_K ? 16 : 8); j++)
                _mm256_store_ps(out.scale[j] + r, times(d, signed_at(p + 32 + 16 * j + r)));
        }
    }
}

// Bytes of the weights of 8 rows that every group of four columns needs.
struct Planes {
    __m256i pairs[2], bits;
};

template <Type T> INLINE void read_planes(const uint8_t * p, Planes & out) {
    using namespace ggml_abi;
    if constexpr (T == Q2_K || T == Q3_K || T == Q6_K)
        for (int h = 0; h < 2; h++) out.pairs[h] = bytes_at(p + (T == Q6_K ? 256 : 0) + 64 * h);
    if constexpr (T == Q5_0 || T == Q5_1 || T == Q5_K) out.bits = bytes_at(p + 256);
    if constexpr (T == Q3_K) out.bits = bytes_at(p + 128);
}

INLINE __m256i shifted(__m256i x, int left) {
    return left >= 0 ? _mm256_slli_epi16(x, left) : _mm256_srli_epi16(x, -left);
}

// Columns 4g … 4g + 3 of 8 rows, unsigned; `p`: the block's quants at these rows.
template <Type T> INLINE __m256i weights(const uint8_t * p, int g, const Planes & planes) {
    using namespace ggml_abi;
    if constexpr (T == Q8_0) return bytes_at(p + 64 * g);
    __m256i w = _mm256_setzero_si256();
    if constexpr (T != Q2_K && T != Q3_K)
        w = _mm256_and_si256(shifted(bytes_at(p + 64 * (g & 3)), g < 4 ? 0 : -4), _mm256_set1_epi8(15));
    if constexpr (T == IQ4_NL || T == IQ4_XS || T == MXFP4) {
        const uint8_t * values = T == MXFP4 ? MXFP4_VALUES : IQ4_VALUES;
        w = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_load_si128((const __m128i *) values)), w);
    }
    if constexpr (T == Q2_K || T == Q3_K || T == Q6_K) {
        constexpr int at = T == Q6_K ? 4 : 0;
        const __m256i x = shifted(planes.pairs[g / 4], at - 2 * (g & 3));
        w = _mm256_or_si256(w, _mm256_and_si256(x, _mm256_set1_epi8(3 << at)));
    }
    if constexpr (T == Q5_0 || T == Q5_1 || T == Q5_K || T == Q3_K) {
        constexpr int at = T == Q3_K ? 2 : 4;
        w = _mm256_or_si256(w, _mm256_and_si256(shifted(planes.bits, at - g), _mm256_set1_epi8(1 << at)));
    }
    return w;
}

INLINE __m256i broadcast(const int8_t * q) {
    int32_t x;
    memcpy(&x, q, 4);
    return _mm256_set1_epi32(x);
}

// The weights of one block, as bytes.
template <Type T> INLINE const uint8_t * unpacked(const uint8_t * p, uint8_t * bytes) {
#pragma GCC unroll 2
    for (int x = 0; x < 64; x += 32) {
        Planes planes;
        read_planes<T>(p + x, planes);
#pragma GCC unroll 8
        for (int g = 0; g < 8; g++) _mm256_store_si256((__m256i *) (bytes + 64 * g + x), weights<T>(p + x, g, planes));
    }
    return bytes;
}

#ifdef __AVXVNNI__
template <Type T> constexpr bool is_signed = false;
#else
// Full-byte weights use their absolute value, the others are unsigned. Several products of the latter
// fit into 16 bits together: that many groups are added before they are widened.
template <Type T> constexpr bool is_signed = Layout<T>::offset == 128;
template <Type T> constexpr int largest = 0;    // weight of the type
template <> constexpr int largest<ggml_abi::Q4_0> = 15;
template <> constexpr int largest<ggml_abi::Q4_1> = 15;
template <> constexpr int largest<ggml_abi::Q4_K> = 15;
template <> constexpr int largest<ggml_abi::Q5_0> = 31;
template <> constexpr int largest<ggml_abi::Q5_1> = 31;
template <> constexpr int largest<ggml_abi::Q5_K> = 31;
template <> constexpr int largest<ggml_abi::Q6_K> = 63;
template <> constexpr int largest<ggml_abi::Q3_K> = 7;
template <> constexpr int largest<ggml_abi::Q2_K> = 3;
template <> constexpr int largest<ggml_abi::MXFP4> = 28;
constexpr int groups_that_fit(int weight) {
    for (int n = 8; n > 1; n /= 2)
        if (2 * weight * 127 * n <= 32767) return n;
    return 1;
}
template <Type T>
constexpr int SUMS_OF_16_BITS = is_signed<T>       ? 1
                                : has_halves<T> && groups_that_fit(largest<T>) > 4 ? 4
                                                   : groups_that_fit(largest<T>);
#endif

// The products of U tokens with a part of a block, of 16 rows: `sum` of 32 bits.
template <Type T, int U, bool UNPACKED>
INLINE void multiply(const uint8_t * p, const int8_t * q, const Planes * planes, int part, __m256i (*sum)[2]) {
    constexpr int groups = has_halves<T> ? 4 : 8;
    [[maybe_unused]] __m256i narrow[U][2];
#pragma GCC unroll 8
    for (int i = 0; i < groups; i++) {
        const int g = part * groups + i;
        __m256i w[2];
#pragma GCC unroll 2
        for (int x = 0; x < 2; x++) {
            w[x] = UNPACKED ? bytes_at(p + 64 * g + 32 * x) : weights<T>(p + 32 * x, g, planes[x]);
            if constexpr (is_signed<T>) w[x] = _mm256_xor_si256(w[x], _mm256_set1_epi8((char) 0x80));
            asm("" : "+x"(w[x]));   // or gcc unpacks many groups first, and spills them
        }
#pragma GCC unroll 4
        for (int u = 0; u < U; u++) {
            const __m256i b = broadcast(q + BLOCK * u + 4 * g);
#pragma GCC unroll 2
            for (int x = 0; x < 2; x++) {
#ifdef __AVXVNNI__
                sum[u][x] = _mm256_dpbusd_avx_epi32(i ? sum[u][x] : _mm256_setzero_si256(), w[x], b);
#else
                constexpr int together = SUMS_OF_16_BITS<T>;
                __m256i z;
                if constexpr (is_signed<T>) z = _mm256_maddubs_epi16(_mm256_abs_epi8(w[x]), _mm256_sign_epi8(b, w[x]));
                else z = _mm256_maddubs_epi16(w[x], b);
                narrow[u][x] = i % together ? _mm256_add_epi16(narrow[u][x], z) : z;
                if (i % together == together - 1) {
                    z = _mm256_madd_epi16(_mm256_set1_epi16(1), narrow[u][x]);
                    sum[u][x] = i < together ? z : _mm256_add_epi32(sum[u][x], z);
                    asm("" : "+x"(sum[u][x]));
                } else {
                    asm("" : "+x"(narrow[u][x]));   // or gcc adds in another order, and spills
                }
#endif
            }
        }
    }
}

// Adds one block of 32 columns to the sums of U tokens. UNPACKED: its weights are bytes already.
template <Type T, int U, bool UNPACKED>
INLINE void add_block(const uint8_t * p, const int8_t * q, const Activation * a, const float (*scale)[ROWS],
                      const float (*minimum)[ROWS], float (*f)[ROWS]) {
    constexpr int parts = has_halves<T> ? 2 : 1, offset = is_signed<T> ? 0 : Layout<T>::offset;
    Planes planes[2];
    if constexpr (UNPACKED)
        asm volatile("" : "+r"(p)::"memory");   // or gcc keeps the bytes for the next tokens, and spills others
    else
        for (int x = 0; x < 2; x++) read_planes<T>(p + 32 * x, planes[x]);
#pragma GCC unroll 2
    for (int part = 0; part < parts; part++) {
        __m256i sum[U][2];
        multiply<T, U, UNPACKED>(p, q, planes, part, sum);
#pragma GCC unroll 4
        for (int u = 0; u < U; u++) {
            const __m256i total = _mm256_set1_epi32(parts == 2 ? a[u].sum[part] : a[u].total);
#pragma GCC unroll 2
            for (int x = 0; x < 2; x++) {
                if constexpr (offset != 0)
                    sum[u][x] = _mm256_sub_epi32(sum[u][x], _mm256_mullo_epi32(total, _mm256_set1_epi32(offset)));
                const __m256 by = times(_mm256_load_ps(scale[part] + 8 * x), _mm256_set1_ps(a[u].scale));
                float * to = f[u] + 8 * x;
                _mm256_store_ps(to, _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[u][x]), by, _mm256_load_ps(to)));
            }
        }
    }
    if constexpr (has_minimums<T>)
#pragma GCC unroll 4
        for (int u = 0; u < U; u++)
#pragma GCC unroll 2
            for (int part = 0; part < parts; part++) {
                const __m256 by = _mm256_set1_ps(parts == 2 ? a[u].scale * (float) a[u].sum[part] : a[u].scaled_sum);
#pragma GCC unroll 2
                for (int x = 0; x < ROWS; x += 8)
                    _mm256_store_ps(f[u] + x, _mm256_fmadd_ps(_mm256_load_ps(minimum[part] + x), by, _mm256_load_ps(f[u] + x)));
            }
}

INLINE float largest_of(__m256 x) {
    __m128 h = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    h = _mm_max_ps(h, _mm_movehl_ps(h, h));
    return _mm_cvtss_f32(_mm_max_ss(h, _mm_movehdup_ps(h)));
}

INLINE int32_t sum_of(__m256i x) {
    __m128i h = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    h = _mm_add_epi32(h, _mm_shuffle_epi32(h, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(h, _mm_shuffle_epi32(h, 0xb1)));
}

static void quantize_row(const float * x, int blocks, int8_t * q, size_t step, Activation * a, size_t a_step) {
    for (int i = 0; i < blocks; i++, x += BLOCK, q += step, a += a_step) {
        __m256 v[4], most = _mm256_setzero_ps();
        for (int k = 0; k < 4; k++) {
            v[k] = _mm256_loadu_ps(x + 8 * k);
            most = _mm256_max_ps(most, _mm256_andnot_ps(_mm256_set1_ps(-0.0f), v[k]));
        }
        const float m = largest_of(most), scale = m / 127.0f, inverse = m > TINY ? 127.0f / m : 0.0f;
        __m256i w[4];
        for (int k = 0; k < 4; k++) w[k] = _mm256_cvtps_epi32(_mm256_mul_ps(v[k], _mm256_set1_ps(inverse)));
        const __m256i packed = _mm256_packs_epi16(_mm256_packs_epi32(w[0], w[1]), _mm256_packs_epi32(w[2], w[3]));
        _mm256_storeu_si256((__m256i *) q, _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
        a->scale = scale;
        a->sum[0] = (int16_t) sum_of(_mm256_add_epi32(w[0], w[1]));
        a->sum[1] = (int16_t) sum_of(_mm256_add_epi32(w[2], w[3]));
        a->total = a->sum[0] + a->sum[1];
        a->scaled_sum = scale * (float) a->total;
    }
}

}  // namespace localspec::LOCALSPEC_ISA
