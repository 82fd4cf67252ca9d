// Products of repacked weights with the activations of a pass: MUL_MAT and MUL_MAT_ID.
//
// The sums of one token depend neither on the tokens that share the pass nor on the threads: a thread
// computes whole rows of weights, and every token goes through the same instructions in the same
// order.
#pragma once

#include "isa.h"

namespace localspec {

// The tiles of a matrix of `rows` rows to multiply by, in ascending order; products with all other rows
// are LOWEST.
struct Chosen {
    const int32_t * tiles;      // null: all
    int64_t count, rows;
};
constexpr float LOWEST = -1e30f;

// For the passes of this thread.
void choose_rows(const Chosen & rows);

// The traits of weights of one type, which ggml calls for each operation on them.
class Matmul : public ggml_abi::TensorTraits {
  public:
    Matmul(Type type, const InstructionSet & isa, void (*barrier)(ggml_abi::Threadpool *))
        : type_(type), kernels_(*isa.type(type)), isa_(isa), barrier_(barrier) {}

    // Whether this operation can be computed, wherever its tensors are.
    static bool takes(const ggml_abi::Tensor * op, const InstructionSet & isa);

    // Bytes of repacked weights, the last tile filled up with rows of zeros.
    size_t repacked_bytes(const ggml_abi::Tensor * weights) const;

    // Repacks a part of a tensor's tiles, `part` of `parts`.
    void repack(const ggml_abi::Tensor * weights, const void * file, int part, int parts) const;

    bool work_size(int threads, const ggml_abi::Tensor * op, size_t & bytes) override;
    bool compute_forward(ggml_abi::ComputeParams * params, ggml_abi::Tensor * op) override;

  private:
    size_t tile_bytes(const ggml_abi::Tensor * weights) const;

    Type type_;
    const TypeKernels & kernels_;
    const InstructionSet & isa_;
    void (*barrier_)(ggml_abi::Threadpool *);
};

}  // namespace localspec
