// Attention and the order of cells, as ggml's operations bring them.
#pragma once

#include "isa.h"

namespace localspec {

// Prepares the traits below; from then on states that are restored tell their cells (set_restored).
void start_attention(const ggml_abi::Functions & ggml, const AttentionKernels & kernels);

// For FLASH_ATTN_EXT: computes what attention.h takes; null for the rest, which is ggml's.
ggml_abi::TensorTraits * attention_traits(const ggml_abi::Tensor * op);

// For ROPE and SET_ROWS: takes note of the positions that are written to cells, computes nothing.
ggml_abi::TensorTraits * watching_traits();

// How many times this thread's passes wrote or read cells whose positions were not known.
int64_t cells_unknown();

// Positions of the cells that this thread restores from now on, in the order in which they are
// written; null ends it.
void set_restored(const int32_t * positions, int64_t n);

}  // namespace localspec
