// Attention and the order of cells, from ggml's operations.
#pragma once

#include "isa.h"

namespace localspec {

// Prepares the traits below; from then on the cells of restored states are recorded (set_restored).
void start_attention(const ggml_abi::Functions & ggml, const AttentionKernels & kernels);

// For FLASH_ATTN_EXT: computes the tasks that attention.h supports; null for the rest, left to ggml.
ggml_abi::TensorTraits * attention_traits(const ggml_abi::Tensor * op);

// For ROPE and SET_ROWS: records the positions that are written to cells, computes nothing.
ggml_abi::TensorTraits * watching_traits();

// How many times this thread's passes wrote or read cells whose positions were not known.
int64_t cells_unknown();

// Positions of the cells that this thread restores from now on, in the order in which they are
// written; null ends it.
void set_restored(const int32_t * positions, int64_t n);

}  // namespace localspec
