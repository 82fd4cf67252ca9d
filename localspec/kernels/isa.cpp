// The kernels of one instruction set: compiled once for each, with LOCALSPEC_ISA naming it.
//
// Nothing here or in the included files may have external linkage except the table at the end: the
// linker could use a copy compiled for AVX-512 in code that runs everywhere.
#include "isa.h"

#include "attention_kernels.h"
#include "float_dot.h"
#include "float_tile.h"
#include "repack.h"
#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
#include "dot_avx512.h"
#elif defined(__AVX2__)
#include "dot_avx2.h"
#include "integer_tile.h"
#elif defined(__aarch64__)
#include "dot_neon.h"
#include "integer_tile.h"
#endif

namespace localspec::LOCALSPEC_ISA {

static const TypeKernels * type_kernels(Type type) {
    // One entry for each number of tokens that share a walk over a tile.
#define TOKENS(TILE, T) \
    { TILE<T, 1>, TILE<T, 2>, TILE<T, 3>, TILE<T, 4>, TILE<T, 5>, TILE<T, 6>, TILE<T, 7>, TILE<T, 8>, TILE<T, 9>, \
      TILE<T, 10>, TILE<T, 11>, TILE<T, 12> }
#define INTEGER(T)                                                                                                  \
    case ggml_abi::T: {                                                                                             \
        using L = Layout<ggml_abi::T>;                                                                              \
        static constexpr TypeKernels kernels = {L::blocks, L::tile_bytes, L::file_bytes, repack_tile<ggml_abi::T>,  \
                                                TOKENS(integer_tile, ggml_abi::T), {}};                             \
        return &kernels;                                                                                            \
    }
#define FLOATING(T)                                                                                                 \
    case ggml_abi::T: {                                                                                             \
        static constexpr TypeKernels kernels = {1, 0, 0, repack_float_tile<ggml_abi::T>, {},                        \
                                                TOKENS(float_tile, ggml_abi::T)};                                   \
        return &kernels;                                                                                            \
    }
    switch (type) {
        LOCALSPEC_INTEGER_TYPES(INTEGER)
        LOCALSPEC_FLOAT_TYPES(FLOATING)
        default: return nullptr;
    }
}

extern const AttentionKernels attention;
const AttentionKernels attention = attention_kernels();

extern const InstructionSet instruction_set;
const InstructionSet instruction_set = {quantize_row, type_kernels, dot_of, &attention};

}  // namespace localspec::LOCALSPEC_ISA
