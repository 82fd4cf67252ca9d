// Integer tiles with AVX-512 VNNI: a register holds four columns of the 16 rows.
#pragma once

#include <immintrin.h>

#include <cstring>

#include "layout.h"
#include "stream.h"

namespace localspec::LOCALSPEC_ISA {

#define INLINE static inline __attribute__((always_inline, unused))

// Weights are read once per pass. On Zen 5, the non-temporal hint keeps them from evicting reused data from
// L2 and L3, and saves writing them to L3. L1 supports few outstanding misses, so hints can be dropped:
// each line gets a second one halfway. On Intel, that hint fills one way of L1, 4 KB, and no L2: weights
// would be evicted before they are used, and read again. There and on Zen 4 they come into L2 first.
template <bool PAST_CACHES> INLINE void prefetch_ahead(const Stream & stream, const uint8_t * p, int bytes) {
    const uint8_t * far = stream.at(p, 8192), * near = stream.at(p, PAST_CACHES ? 4096 : 2048);
#pragma GCC unroll 9
    for (int i = 0; i < bytes; i += 64) {
        _mm_prefetch((const char *) far + i, PAST_CACHES ? _MM_HINT_NTA : _MM_HINT_T1);
        _mm_prefetch((const char *) near + i, _MM_HINT_T0);
    }
}

INLINE __m512i bytes_at(const void * p) {
    __m512i x = _mm512_loadu_si512(p);
    asm("" : "+v"(x));      // or gcc loads it again for each use, across two cache lines
    return x;
}
INLINE __m512 halves_at(const void * p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) p)); }
INLINE __m512 unsigned_at(const uint8_t * p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *) p)));
}
INLINE __m512 signed_at(const uint8_t * p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *) p)));
}
INLINE __m512 times(__m512 a, __m512 b) { return _mm512_mul_ps(a, b); }
INLINE __m512 minus(__m512 a) { return _mm512_sub_ps(_mm512_setzero_ps(), a); }
INLINE __m512i table(const uint8_t * values) {
    return _mm512_broadcast_i32x4(_mm_load_si128((const __m128i *) values));
}

// Half of 2^(e − 127): the scale of MXFP4, whose values are doubled.
INLINE __m512 exponents_at(const uint8_t * p) {
    const __m512i e = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *) p));
    const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
    const __m512i tiny = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), e);
    return _mm512_castsi512_ps(_mm512_mask_mov_epi32(normal, _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2)), tiny));
}

// 256 numbers of six bits, one per byte.
INLINE void six_bits(const uint8_t * p, uint8_t * numbers) {
    const __m512i low = _mm512_set1_epi8(63), pair = _mm512_set1_epi8(3);
    __m512i rest = _mm512_setzero_si512();
#pragma GCC unroll 3
    for (int c = 0; c < 3; c++) {
        const __m512i x = bytes_at(p + 64 * c);
        _mm512_store_si512(numbers + 64 * c, _mm512_and_si512(x, low));
        rest = _mm512_or_si512(rest, _mm512_slli_epi16(_mm512_and_si512(_mm512_srli_epi16(x, 6), pair), 2 * c));
    }
    _mm512_store_si512(numbers + 192, rest);
}

// Scales and minimums of the blocks that share a header: [PER_16 ? 2·blocks : blocks][16 rows].
struct Header {
    alignas(64) float scale[16][ROWS];
    alignas(64) float minimum[16][ROWS];
};

template <Type T> INLINE void read_header(const uint8_t * p, Header & h) {
    using namespace ggml_abi;
    const __m512 d = halves_at(p);
    if constexpr (T == Q4_K || T == Q5_K) {
        alignas(64) uint8_t n[256];
        const __m512 dmin = minus(halves_at(p + 32));
        six_bits(p + 64, n);
        for (int j = 0; j < 8; j++) {
            _mm512_store_ps(h.scale[j], times(d, unsigned_at(n + 16 * j)));
            _mm512_store_ps(h.minimum[j], times(dmin, unsigned_at(n + 128 + 16 * j)));
        }
    } else if constexpr (T == Q2_K) {
        const __m512 dmin = minus(halves_at(p + 32));
        for (int j = 0; j < 16; j++) {
            const __m512i x = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *) (p + 64 + 16 * j)));
            _mm512_store_ps(h.scale[j], times(d, _mm512_cvtepi32_ps(_mm512_and_si512(x, _mm512_set1_epi32(15)))));
            _mm512_store_ps(h.minimum[j], times(dmin, _mm512_cvtepi32_ps(_mm512_srli_epi32(x, 4))));
        }
    } else if constexpr (T == Q3_K) {
        alignas(64) uint8_t n[256];
        six_bits(p + 32, n);
        for (int j = 0; j < 16; j++)
            _mm512_store_ps(h.scale[j], times(d, _mm512_sub_ps(unsigned_at(n + 16 * j), _mm512_set1_ps(32))));
    } else {
        static_assert(T == Q6_K || T == IQ4_XS);
        for (int j = 0; j < (T == Q6_K ? 16 : 8); j++)
            _mm512_store_ps(h.scale[j], times(d, signed_at(p + 32 + 16 * j)));
    }
}

// The unsigned weights of a block: w[g] holds columns 4g … 4g + 3.
template <Type T> INLINE void unpack(const uint8_t * p, __m512i * w) {
    using namespace ggml_abi;
    const __m512i low = _mm512_set1_epi8(15);
    constexpr bool pairs_only = T == Q2_K || T == Q3_K;
    if constexpr (T == Q8_0) {
#pragma GCC unroll 8
        for (int g = 0; g < 8; g++) w[g] = bytes_at(p + 64 * g);
        return;
    } else if constexpr (!pairs_only) {
#pragma GCC unroll 4
        for (int g = 0; g < 4; g++) {
            const __m512i x = bytes_at(p + 64 * g);
            w[g] = _mm512_and_si512(x, low);
            w[g + 4] = _mm512_and_si512(_mm512_srli_epi16(x, 4), low);
        }
    }
    if constexpr (T == IQ4_NL || T == IQ4_XS || T == MXFP4) {
        const __m512i values = table(T == MXFP4 ? MXFP4_VALUES : IQ4_VALUES);
#pragma GCC unroll 8
        for (int g = 0; g < 8; g++) w[g] = _mm512_shuffle_epi8(values, w[g]);
    }
    if constexpr (T == Q2_K || T == Q3_K || T == Q6_K) {
        // Shifts of 16 bits: bits that cross into a neighbouring byte are masked away.
        constexpr int at = T == Q6_K ? 4 : 0;
        const __m512i mask = _mm512_set1_epi8(3 << at);
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++) {
            const __m512i x = bytes_at(p + (T == Q6_K ? 256 : 0) + 64 * h);
#pragma GCC unroll 4
            for (int g = 0; g < 4; g++) {
                const int shift = at - 2 * g;
                const __m512i y = shift >= 0 ? _mm512_slli_epi16(x, shift) : _mm512_srli_epi16(x, -shift);
                const __m512i z = _mm512_and_si512(y, mask);
                w[4 * h + g] = pairs_only ? z : _mm512_or_si512(w[4 * h + g], z);
            }
        }
    }
    if constexpr (T == Q5_0 || T == Q5_1 || T == Q5_K || T == Q3_K) {
        constexpr int at = T == Q3_K ? 2 : 4;
        const __m512i mask = _mm512_set1_epi8(1 << at), x = bytes_at(p + (T == Q3_K ? 128 : 256));
#pragma GCC unroll 8
        for (int g = 0; g < 8; g++) {
            const int shift = at - g;
            const __m512i y = shift >= 0 ? _mm512_slli_epi16(x, shift) : _mm512_srli_epi16(x, -shift);
            w[g] = _mm512_or_si512(w[g], _mm512_and_si512(y, mask));
        }
    }
}

INLINE __m512i dot(__m512i sum, __m512i w, const int8_t * q) {
    int32_t x;
    memcpy(&x, q, 4);
    return _mm512_dpbusd_epi32(sum, w, _mm512_set1_epi32(x));
}

// Adds one block to the sums of U tokens. `scale` and `minimum`: of the block; for PER_16 of its first
// half, followed (a row of ROWS further) by those of its second.
template <Type T, int U>
INLINE void add_block(const __m512i * w, const int8_t * q, const Activation * a, const __m512 * scale,
                      const __m512 * minimum, __m512 * f) {
    using L = Layout<T>;
    constexpr bool halves = has_halves<T>, minimums = has_minimums<T>;
    __m512i first[U], last[U];
#pragma GCC unroll 4
    for (int u = 0; u < U; u++) {       // the offset times the sum of the activations is subtracted first
        if constexpr (L::offset == 0) first[u] = last[u] = _mm512_setzero_si512();
        else if constexpr (halves) {
            first[u] = _mm512_set1_epi32(-L::offset * a[u].sum[0]);
            last[u] = _mm512_set1_epi32(-L::offset * a[u].sum[1]);
        } else {
            first[u] = _mm512_set1_epi32(-L::offset * a[u].total);
            last[u] = _mm512_setzero_si512();
        }
    }
#pragma GCC unroll 4
    for (int g = 0; g < 4; g++)
#pragma GCC unroll 4
        for (int u = 0; u < U; u++) {
            first[u] = dot(first[u], w[g], q + BLOCK * u + 4 * g);
            last[u] = dot(last[u], w[g + 4], q + BLOCK * u + 16 + 4 * g);
        }
#pragma GCC unroll 4
    for (int u = 0; u < U; u++) {
        const __m512 d = _mm512_set1_ps(a[u].scale);
        if constexpr (halves) {
            f[u] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(first[u]), times(scale[0], d), f[u]);
            f[u] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(last[u]), times(scale[1], d), f[u]);
            if constexpr (minimums) {
                f[u] = _mm512_fmadd_ps(minimum[0], _mm512_set1_ps(a[u].scale * (float) a[u].sum[0]), f[u]);
                f[u] = _mm512_fmadd_ps(minimum[1], _mm512_set1_ps(a[u].scale * (float) a[u].sum[1]), f[u]);
            }
        } else {
            f[u] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_add_epi32(first[u], last[u])), times(scale[0], d), f[u]);
            if constexpr (minimums) f[u] = _mm512_fmadd_ps(minimum[0], _mm512_set1_ps(a[u].scaled_sum), f[u]);
        }
    }
}

template <Type T, int N, bool PAST_CACHES>
INLINE void multiply_tile(const uint8_t * p, const Stream & stream, const uint8_t * activations, int blocks,
                          float * out, size_t stride) {
    using namespace ggml_abi;
    using L = Layout<T>;
    constexpr bool halves = has_halves<T>, minimums = has_minimums<T>;
    const int8_t * q = (const int8_t *) activations;
    const Activation * a = (const Activation *) (activations + (size_t) blocks * N * BLOCK);
    __m512 f[N];
#pragma GCC unroll 16
    for (int t = 0; t < N; t++) f[t] = _mm512_setzero_ps();
    [[maybe_unused]] Header header;
    for (int i = 0; i < blocks; i += L::blocks) {
        if constexpr (L::blocks > 1) {
            prefetch_ahead<PAST_CACHES>(stream, p, L::header);
            read_header<T>(p, header);
        }
        const uint8_t * h = p;
        p += L::header;
        for (int j = 0; j < L::blocks; j++) {
            prefetch_ahead<PAST_CACHES>(stream, p, L::quants + (L::blocks == 1 ? L::header : 0));
            __m512i w[8];
            __m512 scale[2], minimum[2];
            unpack<T>(p, w);
            if constexpr (T == MXFP4) scale[0] = exponents_at(h);
            else if constexpr (L::blocks == 1) {
                scale[0] = halves_at(h);
                if constexpr (L::scales == Scales::PER_32_MIN) minimum[0] = halves_at(h + 32);
            } else {
                const int at = halves ? 2 * j : j;
                scale[0] = _mm512_load_ps(header.scale[at]);
                if constexpr (minimums) minimum[0] = _mm512_load_ps(header.minimum[at]);
                if constexpr (halves) {
                    scale[1] = _mm512_load_ps(header.scale[at + 1]);
                    if constexpr (minimums) minimum[1] = _mm512_load_ps(header.minimum[at + 1]);
                }
            }
            constexpr int FOURS = N / 4 * 4;
#pragma GCC unroll 4
            for (int t = 0; t < FOURS; t += 4) add_block<T, 4>(w, q + BLOCK * t, a + t, scale, minimum, f + t);
            if constexpr (N % 4) add_block<T, N % 4>(w, q + BLOCK * FOURS, a + FOURS, scale, minimum, f + FOURS);
            p += L::quants;
            q += BLOCK * N;
            a += N;
        }
    }
#pragma GCC unroll 16
    for (int t = 0; t < N; t++) _mm512_storeu_ps(out + t * stride, f[t]);
}

template <Type T, int N>
static void integer_tile(const uint8_t * p, Stream stream, const uint8_t * activations, int blocks, float * out,
                         size_t stride) {
    if (past_caches) multiply_tile<T, N, true>(p, stream, activations, blocks, out, stride);
    else multiply_tile<T, N, false>(p, stream, activations, blocks, out, stride);
}

static void quantize_row(const float * x, int blocks, int8_t * q, size_t step, Activation * a, size_t a_step) {
    for (int i = 0; i < blocks; i++, x += BLOCK, q += step, a += a_step) {
        const __m512 first = _mm512_loadu_ps(x), last = _mm512_loadu_ps(x + 16);
        const float most = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(first), _mm512_abs_ps(last)));
        const float scale = most / 127.0f, inverse = most > TINY ? 127.0f / most : 0.0f;
        const __m512i m = _mm512_cvtps_epi32(_mm512_mul_ps(first, _mm512_set1_ps(inverse)));
        const __m512i n = _mm512_cvtps_epi32(_mm512_mul_ps(last, _mm512_set1_ps(inverse)));
        _mm_storeu_si128((__m128i *) q, _mm512_cvtsepi32_epi8(m));
        _mm_storeu_si128((__m128i *) (q + 16), _mm512_cvtsepi32_epi8(n));
        a->scale = scale;
        a->sum[0] = (int16_t) _mm512_reduce_add_epi32(m);
        a->sum[1] = (int16_t) _mm512_reduce_add_epi32(n);
        a->total = a->sum[0] + a->sum[1];
        a->scaled_sum = scale * (float) a->total;
    }
}

}  // namespace localspec::LOCALSPEC_ISA
