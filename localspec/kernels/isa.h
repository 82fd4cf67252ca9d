// The functions of one instruction set; `isa.cpp` defines one table for each that is compiled.
#pragma once

#include <cstddef>
#include <cstdint>

#include "layout.h"
#include "stream.h"

namespace localspec {

struct AttentionKernels;

// One tile times the activations of a group of tokens: 16 sums for each, `stride` floats apart. `stream`:
// where the tile is, for prefetching.
using IntegerTile = void (*)(const uint8_t * tile, Stream stream, const uint8_t * activations, int blocks, float * out,
                             size_t stride);
// The same for floating-point weights; `x` are the rows of the tokens.
using FloatTile = void (*)(const void * tile, const float * const * x, int64_t columns, float * out, size_t stride);
// 16 rows of the file, `row_bytes` apart, of `blocks` blocks of 32 columns (of `columns` for floats).
using Repack = void (*)(const uint8_t * rows, size_t row_bytes, int blocks, uint8_t * tile);

struct TypeKernels {
    int blocks;                 // of 32 columns that a header covers
    int tile_bytes;             // of these blocks of a tile
    int file_bytes;             // of these blocks of a row in the file
    Repack repack;
    IntegerTile integer[MAX_TOKENS];    // by number of tokens − 1
    FloatTile floating[MAX_TOKENS];
};

struct InstructionSet {
    // A run of blocks of one token in a group: `step` bytes from block to block of `quants`,
    // `activation_step` Activations.
    void (*quantize_row)(const float * x, int blocks, int8_t * quants, size_t step, Activation * activation,
                         size_t activation_step);
    const TypeKernels * (*type)(Type);  // null if the type is not supported
    // One row of floating-point weights, as ggml has them, times one token.
    float (*dot)(Type, const void * weights, const float * x, int64_t columns);
    const AttentionKernels * attention;
};

}  // namespace localspec
