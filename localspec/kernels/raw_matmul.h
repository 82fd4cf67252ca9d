// Products with small floating-point matrices in ggml's own layout: the rotation of a quantized KV
// cache, LoRA adapters. ggml sums these in a different order for one token than for several.
#pragma once

#include "isa.h"

namespace localspec {

// The traits of such a product; null for other operations.
ggml_abi::TensorTraits * raw_matmul(const ggml_abi::Tensor * op, const InstructionSet & isa);

}  // namespace localspec
