// The attention kernels for the instruction set being compiled; attention.h defines what they compute.
#pragma once
#include "attention.h"
#include "simd.h"

namespace localspec::LOCALSPEC_ISA {

constexpr int TILE = ATTENTION_TILE;
constexpr float LOWEST = ATTENTION_LOWEST, MASKED = ATTENTION_MASKED;
constexpr float RAISE = 64;  // M is replaced if a cell exceeds it by more: p stays below 2^65

// ---- elements of K and V

struct InF32 {
    LOCALSPEC_INLINE V at(const char *p, int i) { return load((const float *)p + i); }
};
struct InF16 {
    LOCALSPEC_INLINE V at(const char *p, int i) { return from_f16(p + 2 * i); }
};
struct InBF16 {
    LOCALSPEC_INLINE V at(const char *p, int i) { return from_bf16(p + 2 * i); }
};
struct InQ8_0 {  // blocks of 32: a scale in f16, 32 signed bytes; the product is exact in f32
    LOCALSPEC_INLINE V at(const char *p, int i) {
        const char *block = p + (i >> 5) * 34;
        uint16_t scale;
        memcpy(&scale, block, 2);
        return mul(from_i8(block + 2 + (i & 31)), set1(half(scale)));
    }
};

template <class T> static void keys(const char *k, const size_t *at, int dk, float *out) {
    for (int d = 0; d < dk; d += W)
        for (int c = 0; c < TILE; c += W) {
            V a[W];
#pragma GCC unroll 16
            for (int i = 0; i < W; i++) a[i] = T::at(k + at[c + i], d);
            transpose(a);
#pragma GCC unroll 16
            for (int i = 0; i < W; i++) store(out + (d + i) * TILE + c, a[i]);
        }
}

template <class T> static void values(const char *v, const size_t *at, int dv, float *out) {
    for (int c = 0; c < TILE; c++)
        for (int d = 0; d < dv; d += W) store(out + c * dv + d, T::at(v + at[c], d));
}

// ---- one row at a time: the definition, for rare cases

// x[cell] of one row; cells with x < LOWEST are masked.
template <class T>
static __attribute__((noinline)) void add_cells(const float *x, const AttentionTile &tile, float *o, float *m, float *l) {
    const int dv = tile.dv;
    for (int c = 0; c < TILE; c++) {
        V score = set1(x[c]), n = round_even(score);
        float top = first(n);
        if (top < LOWEST) continue;
        if (top > *m + RAISE) {
            V f = scale2(set1(1.f), set1(*m - top));
            *l *= first(f);
            for (int d = 0; d < dv; d += W) store(o + d, mul(load(o + d), f));
            *m = top;
        }
        V p = scale2(exp2_fraction(sub(score, n)), sub(n, set1(*m)));
        *l += first(p);
        for (int d = 0; d < dv; d += W) store(o + d, fma(p, T::at(tile.v + tile.v_at[c], d), load(o + d)));
    }
}

// The columns j ... j + columns of one row again, without its masked cells: 0 * infinity has made them NaN.
template <class T>
static __attribute__((noinline)) void add_visible(const float *p, const float *mask, const AttentionTile &tile, int j, int columns, float *o) {
    for (int c = 0; c < TILE; c++) {
        if (mask[c] < LOWEST) continue;
        for (int d = j; d < j + columns; d += W) store(o + d, fma(set1(p[c]), T::at(tile.v + tile.v_at[c], d), load(o + d)));
    }
}

// ---- steps of several rows

LOCALSPEC_INLINE V capped(V x, V cap) {  // cap * tanh(y) for x = 2 y log2(e), as (1 - t) / (1 + t) with t = 2^-|x|
    V a = sub(set1(0.f), abs(x)), n = round_even(a);
    V t = scale2(exp2_fraction(sub(a, n)), n), one = set1(1.f);
    return mul(sign_of(div(sub(one, t), add(one, t)), x), cap);
}

LOCALSPEC_INLINE V masked(V x, V mask) { return select(greater(set1(LOWEST), mask), set1(MASKED), add(x, mask)); }

LOCALSPEC_INLINE V power(V x, V m) {
    V n = round_even(x);
    return scale2(exp2_fraction(sub(x, n)), sub(n, m));
}

// Adds the tile's values to columns j ... j + X * W of R rows: p[row * TILE + cell]. With SUM, also p to l.
template <class T, int R, int X, bool SUM>
LOCALSPEC_INLINE void columns(const float *p, const AttentionTile &tile, const float *mask, int j, float *o, float *l, bool prefetching) {
    const int dv = tile.dv;
    V a[R][X], sum[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) {
        if (SUM) sum[r] = set1(l[r]);
#pragma GCC unroll 8
        for (int x = 0; x < X; x++) a[r][x] = load(o + r * dv + j + x * W);
    }
    const char *v = tile.v, *next_k = tile.next_k, *next_v = tile.next_v;
    const size_t *v_at = tile.v_at, *next_k_at = tile.next_k_at, *next_v_at = tile.next_v_at;
    const int k_bytes = tile.next_k_bytes, v_bytes = tile.next_v_bytes;
    for (int c = 0; c < TILE; c++) {
        const char *vc = v + v_at[c];
        V b[X];
#pragma GCC unroll 8
        for (int x = 0; x < X; x++) b[x] = T::at(vc, j + x * W);
        if (prefetching) {
            prefetch_cell(next_k + next_k_at[c], k_bytes);
            prefetch_cell(next_v + next_v_at[c], v_bytes);
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            V w = set1(p[r * TILE + c]);
            if (SUM) sum[r] = add(sum[r], w);
#pragma GCC unroll 8
            for (int x = 0; x < X; x++) a[r][x] = fma(w, b[x], a[r][x]);
        }
    }
    if (SUM) {
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) l[r] = first(sum[r]);
    }
    if (mask) {
        V zero = set1(0.f);  // stays zero if all sums are finite
#pragma GCC unroll 8
        for (int r = 0; r < R; r++)
#pragma GCC unroll 8
            for (int x = 0; x < X; x++) zero = fma(a[r][x], set1(0.f), zero);
        if (different(zero, set1(0.f))) {
            for (int r = 0; r < R; r++) add_visible<T>(p + r * TILE, mask + r * TILE, tile, j, X * W, o + r * dv);
            return;
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int x = 0; x < X; x++) store(o + r * dv + j + x * W, a[r][x]);
}

// All columns of R rows. As many accumulators as fit into registers next to the values, and enough to hide the latency.
template <class T, int R>
static void add_values(const float *p, const AttentionTile &tile, const float *mask, float *o, float *l) {
    constexpr int X = R == 1 ? 8 : REGISTERS == 32 || R < 3 ? 4 : 2;
    const int dv = tile.dv;
    const bool prefetching = tile.next_k;
    int j = 0;
    auto block = [&](auto width) {
        constexpr int N = decltype(width)::value;
        for (; j + N * W <= dv; j += N * W)
            if (j == 0)
                prefetching ? columns<T, R, N, true>(p, tile, mask, j, o, l, true)
                            : columns<T, R, N, true>(p, tile, mask, j, o, l, false);
            else
                columns<T, R, N, false>(p, tile, mask, j, o, l, false);
    };
    if constexpr (X >= 8) block(Int<8>());
    if constexpr (X >= 4) block(Int<4>());
    block(Int<2>());
    block(Int<1>());
}

// ---- R rows: lanes are cells

template <class T, int R> static void add_rows(const AttentionRows &rows, int row, const AttentionTile &tile) {
    // Vectors of cells at once: few enough for the registers, enough chains for the latency.
    constexpr int ALL = TILE / W, WANT = REGISTERS == 32 ? (R == 1 ? 8 : 4) : R == 1 ? 8 : R == 4 ? 2 : 4;
    constexpr int N = WANT < ALL ? WANT : ALL;
    const float *mask = tile.mask ? tile.mask + row * TILE : nullptr;
    alignas(64) float x[R * TILE];
    V top[R];
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) top[r] = set1(MASKED);
    for (int c = 0; c < TILE; c += N * W) {
        V a[R][N];
#pragma GCC unroll 4
        for (int r = 0; r < R; r++)
#pragma GCC unroll 8
            for (int i = 0; i < N; i++) a[r][i] = set1(0.f);
        const float *k = tile.keys + c, *q = rows.q + row;
        for (int d = 0; d < tile.dk; d++, k += TILE, q += rows.rows) {
            V b[R];
#pragma GCC unroll 4
            for (int r = 0; r < R; r++) b[r] = set1(q[r]);
#pragma GCC unroll 8
            for (int i = 0; i < N; i++) {
                V key = load(k + i * W);
#pragma GCC unroll 4
                for (int r = 0; r < R; r++) a[r][i] = fma(key, b[r], a[r][i]);
            }
        }
#pragma GCC unroll 4
        for (int r = 0; r < R; r++)
#pragma GCC unroll 8
            for (int i = 0; i < N; i++) {
                const int at = r * TILE + c + i * W;
                V s = a[r][i];
                if (tile.cap != 0) s = capped(s, set1(tile.cap));
                if (mask) s = masked(s, load(mask + at));
                store(x + at, s);
                top[r] = max(s, top[r]);
            }
    }
    float *o = rows.o + row * tile.dv, *m = rows.m + row, *l = rows.l + row, now[R];
    bool settled = true;
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) {
        float high = first(round_even(set1(highest(top[r]))));
        now[r] = m[r];
        if (high > m[r] + RAISE && !(m[r] > LOWEST)) {  // the first visible cell of a row that has seen none
            const float *xr = x + r * TILE;
            int c = 0;
            while (!(xr[c] > LOWEST) && c < TILE - 1) c++;
            now[r] = first(round_even(set1(xr[c])));
        }
        settled = settled && !(high > now[r] + RAISE);
    }
    if (!settled) {
        for (int r = 0; r < R; r++) add_cells<T>(x + r * TILE, tile, o + r * tile.dv, m + r, l + r);
        return;
    }
    for (int r = 0; r < R; r++) {
        m[r] = now[r];
#pragma GCC unroll 4
        for (int c = 0; c < TILE; c += W) store(x + r * TILE + c, power(load(x + r * TILE + c), set1(now[r])));
    }
    add_values<T, R>(x, tile, mask, o, l);
}

template <class T> static void add(const AttentionRows &rows, const AttentionTile &tile) {
    AttentionTile t = tile;
    int r = 0;
    for (; r + 4 <= rows.rows; r += 4) {
        add_rows<T, 4>(rows, r, t);
        t.next_k = nullptr;
    }
    switch (rows.rows - r) {
        case 3: return add_rows<T, 3>(rows, r, t);
        case 2: return add_rows<T, 2>(rows, r, t);
        case 1: return add_rows<T, 1>(rows, r, t);
    }
}

// ---- chunks, masks

static void merge(const float *o, const float *m, const float *l, int rows, int dv, float *total_o, float *total_m, float *total_l) {
    for (int r = 0; r < rows; r++) {
        float top = m[r] > total_m[r] ? m[r] : total_m[r];
        V part = scale2(set1(1.f), set1(m[r] - top)), total = scale2(set1(1.f), set1(total_m[r] - top));
        total_m[r] = top;
        total_l[r] = total_l[r] * first(total) + l[r] * first(part);
        for (int d = 0; d < dv; d += W) {
            float *to = total_o + r * dv + d;
            store(to, add(mul(load(to), total), mul(load(o + r * dv + d), part)));
        }
    }
}

static void finish(const float *o, float m, float l, int dv, const float *sink, float *out) {
    V f = set1(1.f);
    if (sink) {  // one more logit, without a value
        V x = set1(*sink * 1.44269504f), n = round_even(x);
        float top = first(n) > m ? first(n) : m;
        f = scale2(f, set1(m - top));
        l = l * first(f) + first(power(x, set1(top)));
    }
    f = mul(f, set1(l > 0 || l != l ? 1.f / l : 0.f));
    for (int d = 0; d < dv; d += W) store(out + d, add(mul(load(o + d), f), set1(0.f)));  // + 0: no negative zeros
}

static void bias(const uint16_t *mask, float factor, float *out) {
    for (int c = 0; c < TILE; c += W) store(out + c, mul(from_f16(mask + c), set1(factor)));
}

constexpr uint16_t MINUS_INFINITY = 0xfc00;

#if defined(__AVX512BW__)
static AttentionSeen seen(const uint16_t *mask) {
    __m512i a = _mm512_loadu_si512(mask), b = _mm512_loadu_si512(mask + 32), gone = _mm512_set1_epi16((short)MINUS_INFINITY);
    __m512i ored = _mm512_or_si512(a, b);
    if (_mm512_test_epi16_mask(ored, ored) == 0) return SEEN_ALL;
    return (_mm512_cmpeq_epi16_mask(a, gone) & _mm512_cmpeq_epi16_mask(b, gone)) == 0xffffffffu ? SEEN_NONE : SEEN_SOME;
}
static void visible(const uint16_t *mask, int64_t words, uint64_t *bits) {
    __m512i gone = _mm512_set1_epi16((short)MINUS_INFINITY);
    for (int64_t w = 0; w < words; w++, mask += 64) {
        uint64_t low = _mm512_cmpneq_epi16_mask(_mm512_loadu_si512(mask), gone);
        bits[w] |= low | (uint64_t)_mm512_cmpneq_epi16_mask(_mm512_loadu_si512(mask + 32), gone) << 32;
    }
}
#elif defined(__AVX2__)
static AttentionSeen seen(const uint16_t *mask) {
    __m256i gone = _mm256_set1_epi16((short)MINUS_INFINITY), ored = _mm256_setzero_si256(), all = _mm256_set1_epi8(-1);
    for (int c = 0; c < TILE; c += 16) {
        __m256i x = _mm256_loadu_si256((const __m256i *)(mask + c));
        ored = _mm256_or_si256(ored, x);
        all = _mm256_and_si256(all, _mm256_cmpeq_epi16(x, gone));
    }
    if (_mm256_testz_si256(ored, ored)) return SEEN_ALL;
    return _mm256_movemask_epi8(all) == -1 ? SEEN_NONE : SEEN_SOME;
}
static void visible(const uint16_t *mask, int64_t words, uint64_t *bits) {
    __m256i gone = _mm256_set1_epi16((short)MINUS_INFINITY);
    for (int64_t w = 0; w < words; w++)
        for (int half_word = 0; half_word < 64; half_word += 32, mask += 32) {
            __m256i a = _mm256_cmpeq_epi16(_mm256_loadu_si256((const __m256i *)mask), gone);
            __m256i b = _mm256_cmpeq_epi16(_mm256_loadu_si256((const __m256i *)(mask + 16)), gone);
            __m256i bytes = _mm256_permute4x64_epi64(_mm256_packs_epi16(a, b), 0xd8);
            bits[w] |= (uint64_t)(uint32_t)~_mm256_movemask_epi8(bytes) << half_word;
        }
}
#else
static AttentionSeen seen(const uint16_t *mask) {
    uint16x8_t gone = vdupq_n_u16(MINUS_INFINITY), ored = vdupq_n_u16(0), all = vdupq_n_u16(0xffff);
    for (int c = 0; c < TILE; c += 8) {
        uint16x8_t x = vld1q_u16(mask + c);
        ored = vorrq_u16(ored, x);
        all = vandq_u16(all, vceqq_u16(x, gone));
    }
    if (vmaxvq_u16(ored) == 0) return SEEN_ALL;
    return vminvq_u16(all) == 0xffff ? SEEN_NONE : SEEN_SOME;
}
static void visible(const uint16_t *mask, int64_t words, uint64_t *bits) {
    const uint16x8_t gone = vdupq_n_u16(MINUS_INFINITY), weights = {1, 2, 4, 8, 16, 32, 64, 128};
    for (int64_t w = 0; w < words; w++)
        for (int c = 0; c < 64; c += 8, mask += 8)
            bits[w] |= (uint64_t)vaddvq_u16(vbicq_u16(weights, vceqq_u16(vld1q_u16(mask), gone))) << c;
}
#endif

// The table, for its single definition in isa.cpp.
LOCALSPEC_INLINE constexpr AttentionKernels attention_kernels() {
    return {{keys<InF32>, keys<InF16>, keys<InBF16>, keys<InQ8_0>},
            {values<InF32>, values<InF16>, values<InBF16>, values<InQ8_0>}, {add<InF32>, add<InF16>, add<InBF16>, add<InQ8_0>},
            merge, finish, seen, bias, visible};
}

}  // namespace localspec::LOCALSPEC_ISA
