// The memory of repacked weights: a buffer type that ggml offers to llama.cpp for every tensor.
#pragma once

#include "matmul.h"

namespace localspec {

struct Counts {
    int64_t taken, declined, bytes, microseconds;
};

// The buffer type; `context` is what ggml asks about operations. Made once, never freed.
ggml_abi::BufferType * make_buffer_type(const ggml_abi::Functions & ggml, const InstructionSet & isa,
                                        ggml_abi::ExtraBufferType * context);

// The traits of weights of a type; null where it is not taken.
Matmul * traits_of(Type type);

Counts & counts();

// Moves weights into the next huge page where they are in pages of usual size, which takes up to some
// milliseconds; false when all have been tried. From any thread.
bool make_page_huge();

}  // namespace localspec
