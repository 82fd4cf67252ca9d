// The memory layout of repacked weights, for every type that the kernels support.
//
// A tile holds 16 rows of a weight matrix, so that one row fills one 32-bit lane of a register of 512
// bits. Along its columns it is cut into blocks of 32, and `blocks` of these share one header of
// `header` bytes, followed by `quants` bytes per block:
//
//     4 x 64 bytes  nibbles: byte 4·row + j of vector v holds column 4v + j in its low half and
//                   column 16 + 4v + j in its high half
//     2 x 64 bytes  pairs of bits: in byte 4·row + j of vector h, bits 2g and 2g + 1 are those of
//                   column 16h + 4g + j
//     1 x 64 bytes  single bits: in byte 4·row + j, bit g is that of column 4g + j
//     8 x 64 bytes  whole bytes: byte 4·row + j of vector g is column 4g + j
//
// So the bytes of one row and four neighbouring columns always share a 32-bit lane, as expected by the
// instructions that multiply four unsigned by four signed bytes (vpdpbusd, usdot).
#pragma once

#include <cstddef>
#include <cstdint>

#include "ggml_abi.h"

namespace localspec {

using ggml_abi::Type;

constexpr int ROWS = 16;        // of a tile
constexpr int BLOCK = 32;       // columns of a block
constexpr int MAX_TOKENS = 12;  // tokens that share one walk over a tile: more would spill registers

// A weight is scale·(q − offset), plus a minimum if the type has them. Scales (and minimums) are for
// 32 columns or for 16.
enum class Scales { PER_32, PER_32_MIN, PER_16, PER_16_MIN };

template <Type T> struct Layout;    // integer types only

#define LOCALSPEC_LAYOUT(TYPE, BLOCKS, HEADER, QUANTS, OFFSET, SCALES, FILE_BYTES) \
    template <> struct Layout<ggml_abi::TYPE> {                                    \
        static constexpr int blocks = BLOCKS, header = HEADER, quants = QUANTS;    \
        static constexpr int offset = OFFSET, file_bytes = FILE_BYTES;             \
        static constexpr Scales scales = Scales::SCALES;                           \
        static constexpr int tile_bytes = HEADER + BLOCKS * QUANTS;                \
    };
//               type    blocks header quants offset scales    bytes of a (super-)block in the file
LOCALSPEC_LAYOUT(Q4_0,   1,      32,   256,     8,   PER_32,      18)
LOCALSPEC_LAYOUT(Q4_1,   1,      64,   256,     0,   PER_32_MIN,  20)
LOCALSPEC_LAYOUT(Q5_0,   1,      32,   320,    16,   PER_32,      22)
LOCALSPEC_LAYOUT(Q5_1,   1,      64,   320,     0,   PER_32_MIN,  24)
LOCALSPEC_LAYOUT(Q8_0,   1,      32,   512,   128,   PER_32,      34)
LOCALSPEC_LAYOUT(IQ4_NL, 1,      32,   256,   128,   PER_32,      18)
LOCALSPEC_LAYOUT(MXFP4,  1,      16,   256,    16,   PER_32,      17)
LOCALSPEC_LAYOUT(IQ4_XS, 8,     160,   256,   128,   PER_32,     136)
LOCALSPEC_LAYOUT(Q4_K,   8,     256,   256,     0,   PER_32_MIN, 144)
LOCALSPEC_LAYOUT(Q5_K,   8,     256,   320,     0,   PER_32_MIN, 176)
LOCALSPEC_LAYOUT(Q2_K,   8,     320,   128,     0,   PER_16_MIN,  84)
LOCALSPEC_LAYOUT(Q3_K,   8,     224,   192,     4,   PER_16,     110)
LOCALSPEC_LAYOUT(Q6_K,   8,     288,   384,    32,   PER_16,     210)
#undef LOCALSPEC_LAYOUT

template <Type T>
constexpr bool has_halves = Layout<T>::scales == Scales::PER_16 || Layout<T>::scales == Scales::PER_16_MIN;
template <Type T>
constexpr bool has_minimums = Layout<T>::scales == Scales::PER_32_MIN || Layout<T>::scales == Scales::PER_16_MIN;

// Headers. Half-precision numbers are stored as one per row, 32 bytes:
//     Q4_0, Q5_0, Q8_0, IQ4_NL   scales
//     Q4_1, Q5_1                 scales, minimums
//     MXFP4                      16 one-byte exponents
//     IQ4_XS                     d; 8 x 16 one-byte scales, signed
//     Q4_K, Q5_K                 d, dmin; 8 x 16 scales and 8 x 16 minimums of six bits (below)
//     Q2_K                       d, dmin; 16 x 16 bytes, scale in the low half, minimum in the high
//     Q3_K                       d; 16 x 16 scales of six bits, biased by 32
//     Q6_K                       d; 16 x 16 one-byte scales, signed
// 256 numbers of six bits take 3 x 64 bytes: the low six bits of byte k of vector c are number
// 64c + k, and the upper two bits of the three bytes k are number 192 + k, lowest bits first.

// Tokens are processed in groups of T <= MAX_TOKENS: int8 quants [blocks][T][32], then Activation
// [blocks][T]; the groups of a pass follow each other.
struct Activation {
    float scale;        // x ≈ scale·q
    float scaled_sum;   // scale·total
    int32_t total;      // sum of the q
    int16_t sum[2];     // of the first and of the last 16 columns
};
constexpr float TINY = 1e-35f;  // blocks whose largest number is smaller become zeros: 127/x stays finite
constexpr size_t ACTIVATION_BYTES = BLOCK + sizeof(Activation);     // of a block and token

// The numbers of the non-linear types, plus `offset`.
alignas(16) constexpr uint8_t IQ4_VALUES[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                                129, 141, 153, 166, 181, 197, 217, 241};
alignas(16) constexpr uint8_t MXFP4_VALUES[16] = {16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4};

constexpr bool is_float(Type type) {
    return type == ggml_abi::F32 || type == ggml_abi::F16 || type == ggml_abi::BF16;
}

constexpr int float_bytes(Type type) { return type == ggml_abi::F32 ? 4 : 2; }

// Every supported type, for tables.
#define LOCALSPEC_INTEGER_TYPES(X) \
    X(Q4_0) X(Q4_1) X(Q5_0) X(Q5_1) X(Q8_0) X(IQ4_NL) X(MXFP4) X(IQ4_XS) X(Q4_K) X(Q5_K) X(Q2_K) X(Q3_K) X(Q6_K)
#define LOCALSPEC_FLOAT_TYPES(X) X(F32) X(F16) X(BF16)

// Floating-point types: a tile is [columns][16 rows] in the type of the file.

}  // namespace localspec
