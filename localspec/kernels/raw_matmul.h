// Products with small floating-point matrices that lie as ggml left them: the rotation of a quantized
// KV cache, LoRA adapters. ggml sums these in another order for one token than for several.
#pragma once

#include "isa.h"

namespace localspec {

// The traits of such a product; null where it is not one.
ggml_abi::TensorTraits * raw_matmul(const ggml_abi::Tensor * op, const InstructionSet & isa);

}  // namespace localspec
