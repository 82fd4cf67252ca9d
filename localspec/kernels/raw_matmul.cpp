#include "raw_matmul.h"

namespace localspec {

using namespace ggml_abi;

namespace {

class RawMatmul : public TensorTraits {
  public:
    const InstructionSet * isa = nullptr;

    bool work_size(int, const Tensor *, size_t & bytes) override {
        bytes = 0;
        return true;
    }
    bool compute_forward(ComputeParams * params, Tensor * op) override {
        const Tensor * w = op->src[0], * x = op->src[1];
        const int64_t rows = w->ne[1], count = x->ne[1] * x->ne[2] * x->ne[3];
        for (int64_t i = count * params->ith / params->nth; i < count * (params->ith + 1) / params->nth; i++) {
            const char * in = (const char *) x->data + i % x->ne[1] * x->nb[1] +
                              i / x->ne[1] % x->ne[2] * x->nb[2] + i / x->ne[1] / x->ne[2] * x->nb[3];
            float * out = (float *) ((char *) op->data + i * op->nb[1]);
            for (int64_t r = 0; r < rows; r++)
                out[r] = isa->dot(w->type, (const char *) w->data + r * w->nb[1], (const float *) in, w->ne[0]);
        }
        return true;
    }
};

}  // namespace

TensorTraits * raw_matmul(const Tensor * op, const InstructionSet & isa) {
    const Tensor * w = op->src[0], * x = op->src[1];
    if (op->op != MUL_MAT || !is_float(w->type) || x->type != F32 || x->nb[0] != 4) return nullptr;
    if (w->op != NONE || w->ne[2] != 1 || w->ne[3] != 1 || w->nb[0] != (size_t) float_bytes(w->type)) return nullptr;
    static RawMatmul traits;
    traits.isa = &isa;
    return &traits;
}

}  // namespace localspec
