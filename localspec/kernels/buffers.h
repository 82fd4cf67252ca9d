// The memory of repacked weights: a buffer type that ggml offers to llama.cpp for every tensor.
#pragma once

#include "matmul.h"

namespace localspec {

struct Counts {
    int64_t taken, declined, bytes, microseconds;
};

// The buffer type; ggml asks `context` about operations. Created once, never freed.
ggml_abi::BufferType * make_buffer_type(const ggml_abi::Functions & ggml, const InstructionSet & isa,
                                        ggml_abi::ExtraBufferType * context);

// The traits of weights of a type; null if it is not supported.
Matmul * traits_of(Type type);

Counts & counts();

// Moves weights from pages of usual size into the next huge page, which takes up to some milliseconds;
// false when all have been tried. From any thread.
bool make_page_huge();

}  // namespace localspec
