// From the file's blocks to tiles (layout.h): 16 rows at a time, four neighbouring columns at once.
//
// Any bits are accepted: a damaged file yields wrong numbers, never an access out of bounds.
#pragma once

#include <cstring>

#include "layout.h"

namespace localspec::LOCALSPEC_ISA {

static inline uint32_t word(const uint8_t * p) {
    uint32_t x;
    memcpy(&x, p, 4);
    return x;
}

static inline void put(uint8_t * p, uint32_t x) { memcpy(p, &x, 4); }

constexpr uint32_t NIBBLES = 0x0f0f0f0f, PAIRS = 0x03030303, BITS = 0x01010101;

// Nibbles of 32 columns of one row: `first` holds columns 0…15 from bit `shift` on, `last` the others.
static inline void put_nibbles(const uint8_t * first, const uint8_t * last, int shift, uint8_t * quants, int row) {
    for (int g = 0; g < 4; g++) {
        const uint32_t x = word(first + 4 * g) >> shift & NIBBLES, y = word(last + 4 * g) >> shift & NIBBLES;
        put(quants + 64 * g + 4 * row, x | y << 4);
    }
}

// Two bits of each of 32 columns, from bit `shift` of `from[column]` on: 2 x 64 bytes.
static inline void put_pairs(const uint8_t * from, int shift, uint8_t * plane, int row) {
    for (int h = 0; h < 2; h++) {
        uint32_t x = 0;
        for (int g = 0; g < 4; g++) x |= (word(from + 16 * h + 4 * g) >> shift & PAIRS) << 2 * g;
        put(plane + 64 * h + 4 * row, x);
    }
}

// Bit `shift` of each of 32 columns: 64 bytes.
static inline void put_bits(const uint8_t * from, int shift, uint8_t * plane, int row) {
    uint32_t x = 0;
    for (int g = 0; g < 8; g++) x |= (word(from + 4 * g) >> shift & BITS) << g;
    put(plane + 4 * row, x);
}

// The same from a word that holds the bits of columns 0…31 in this order.
static inline void put_bits(uint32_t bits, uint8_t * plane, int row) {
    for (int j = 0; j < 4; j++) {
        uint32_t x = bits >> j & 0x11111111;        // columns j, j + 4, …: every fourth bit
        x = (x | x >> 3) & PAIRS;
        x = (x | x >> 6) & 0x000f000f;
        plane[4 * row + j] = (uint8_t) (x | x >> 12);
    }
}

// 256 numbers of six bits, one per byte, into 192 bytes.
static inline void put_six_bits(const uint8_t * numbers, uint8_t * out) {
    for (int c = 0; c < 3; c++)
        for (int k = 0; k < 64; k++)
            out[64 * c + k] = (uint8_t) (numbers[64 * c + k] | (numbers[192 + k] >> 2 * c & 3) << 6);
}

template <Type T> static void repack_tile(const uint8_t * rows, size_t row_bytes, int blocks, uint8_t * tile) {
    using namespace ggml_abi;
    using L = Layout<T>;
    for (int i = 0; i < blocks; i += L::blocks, tile += L::tile_bytes, rows += L::file_bytes) {
        [[maybe_unused]] uint8_t numbers[256];
        for (int r = 0; r < ROWS; r++) {
            const uint8_t * b = rows + r * row_bytes;
            uint8_t * q = tile + L::header;
            if constexpr (T == Q4_0 || T == IQ4_NL) {
                memcpy(tile + 2 * r, b, 2);
                for (int g = 0; g < 4; g++) put(q + 64 * g + 4 * r, word(b + 2 + 4 * g));
            } else if constexpr (T == MXFP4) {
                tile[r] = b[0];
                for (int g = 0; g < 4; g++) put(q + 64 * g + 4 * r, word(b + 1 + 4 * g));
            } else if constexpr (T == Q4_1) {
                memcpy(tile + 2 * r, b, 2);
                memcpy(tile + 32 + 2 * r, b + 2, 2);
                for (int g = 0; g < 4; g++) put(q + 64 * g + 4 * r, word(b + 4 + 4 * g));
            } else if constexpr (T == Q5_0) {
                memcpy(tile + 2 * r, b, 2);
                for (int g = 0; g < 4; g++) put(q + 64 * g + 4 * r, word(b + 6 + 4 * g));
                put_bits(word(b + 2), q + 256, r);
            } else if constexpr (T == Q5_1) {
                memcpy(tile + 2 * r, b, 2);
                memcpy(tile + 32 + 2 * r, b + 2, 2);
                for (int g = 0; g < 4; g++) put(q + 64 * g + 4 * r, word(b + 8 + 4 * g));
                put_bits(word(b + 4), q + 256, r);
            } else if constexpr (T == Q8_0) {
                memcpy(tile + 2 * r, b, 2);
                for (int g = 0; g < 8; g++) put(q + 64 * g + 4 * r, word(b + 2 + 4 * g) ^ 0x80808080);
            } else if constexpr (T == IQ4_XS) {
                memcpy(tile + 2 * r, b, 2);
                const int high = b[2] | b[3] << 8;
                for (int j = 0; j < 8; j++, q += L::quants) {
                    const int scale = (b[4 + j / 2] >> 4 * (j & 1) & 15) | (high >> 2 * j & 3) << 4;
                    tile[32 + 16 * j + r] = (uint8_t) (scale - 32);
                    for (int g = 0; g < 4; g++) put(q + 64 * g + 4 * r, word(b + 8 + 16 * j + 4 * g));
                }
            } else if constexpr (T == Q4_K || T == Q5_K) {
                memcpy(tile + 2 * r, b, 2);
                memcpy(tile + 32 + 2 * r, b + 2, 2);
                const uint8_t * scales = b + 4, * high = b + 16, * low = T == Q5_K ? b + 48 : b + 16;
                for (int j = 0; j < 8; j++, q += L::quants) {
                    numbers[16 * j + r] = j < 4 ? scales[j] & 63 : (scales[j + 4] & 15) | (scales[j - 4] >> 6) << 4;
                    numbers[128 + 16 * j + r] =
                        j < 4 ? scales[j + 4] & 63 : (scales[j + 4] >> 4) | (scales[j] >> 6) << 4;
                    put_nibbles(low + j / 2 * 32, low + j / 2 * 32 + 16, 4 * (j & 1), q, r);
                    if constexpr (T == Q5_K) put_bits(high, j, q + 256, r);
                }
            } else if constexpr (T == Q2_K) {
                memcpy(tile + 2 * r, b + 80, 2);
                memcpy(tile + 32 + 2 * r, b + 82, 2);
                for (int j = 0; j < 16; j++) tile[64 + 16 * j + r] = b[j];
                for (int j = 0; j < 8; j++, q += L::quants) put_pairs(b + 16 + j / 4 * 32, 2 * (j & 3), q, r);
            } else if constexpr (T == Q3_K) {
                memcpy(tile + 2 * r, b + 108, 2);
                const uint8_t * scales = b + 96;
                for (int j = 0; j < 16; j++)
                    numbers[16 * j + r] = (scales[j & 7] >> 4 * (j >> 3) & 15) | (scales[8 + (j & 3)] >> 2 * (j >> 2) & 3) << 4;
                for (int j = 0; j < 8; j++, q += L::quants) {
                    put_pairs(b + 32 + j / 4 * 32, 2 * (j & 3), q, r);
                    put_bits(b, j, q + 128, r);
                }
            } else if constexpr (T == Q6_K) {
                memcpy(tile + 2 * r, b + 208, 2);
                for (int j = 0; j < 16; j++) tile[32 + 16 * j + r] = b[192 + j];
                for (int j = 0; j < 8; j++, q += L::quants) {
                    const uint8_t * low = b + j / 4 * 64 + (j & 1) * 32;
                    put_nibbles(low, low + 16, (j & 2) * 2, q, r);
                    put_pairs(b + 128 + j / 4 * 32, 2 * (j & 3), q + 256, r);
                }
            }
        }
        if constexpr (T == Q4_K || T == Q5_K) put_six_bits(numbers, tile + 64);
        if constexpr (T == Q3_K) put_six_bits(numbers, tile + 32);
    }
}

// Floating-point types: `blocks` is the number of columns.
template <Type T> static void repack_float_tile(const uint8_t * rows, size_t row_bytes, int columns, uint8_t * tile) {
    constexpr int bytes = float_bytes(T);
    for (int c = 0; c < columns; c++)
        for (int r = 0; r < ROWS; r++) memcpy(tile + bytes * (ROWS * c + r), rows + r * row_bytes + bytes * c, bytes);
}

}  // namespace localspec::LOCALSPEC_ISA
