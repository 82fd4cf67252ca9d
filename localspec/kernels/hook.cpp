// How the kernels enter ggml: a buffer type of our own, inserted before the CPU's.
//
// libggml-cpu keeps a list of extra buffer types and asks each of them about every operation of a
// graph, in ggml's own threads. That list is reached through a C++ symbol and private structures, so
// only the build that ggml_abi.h was written for is accepted.
#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <string>

#include "attention_op.h"
#include "barrier.h"
#include "buffers.h"
#include "kernels.h"
#include "lazy_zeros.h"
#include "raw_matmul.h"

namespace localspec {

#define LOCALSPEC_DECLARE(NAMESPACE) \
    namespace NAMESPACE { extern const InstructionSet instruction_set; }
LOCALSPEC_DECLARE(avx512)
LOCALSPEC_DECLARE(avxvnni)
LOCALSPEC_DECLARE(avx2)
LOCALSPEC_DECLARE(neon_i8mm)
LOCALSPEC_DECLARE(neon_dotprod)

bool cpu_has(const char * name);    // cpu.cpp

namespace {

using namespace ggml_abi;

struct Named {
    const char * name;
    const InstructionSet * set;
};

// Those compiled in, best first.
const Named INSTRUCTION_SETS[] = {
#ifdef LOCALSPEC_HAS_AVX512
    {"avx512", &avx512::instruction_set},
#endif
#ifdef LOCALSPEC_HAS_AVXVNNI
    {"avxvnni", &avxvnni::instruction_set},
#endif
#ifdef LOCALSPEC_HAS_AVX2
    {"avx2", &avx2::instruction_set},
#endif
#ifdef LOCALSPEC_HAS_NEON_I8MM
    {"neon-i8mm", &neon_i8mm::instruction_set},
#endif
#ifdef LOCALSPEC_HAS_NEON_DOTPROD
    {"neon-dotprod", &neon_dotprod::instruction_set},
#endif
};

BufferType * buffer_type;
const InstructionSet * in_use;
thread_local bool taking = true;
thread_local int64_t left;          // operations left to ggml although the other tokens may affect them

bool is_ours(const Tensor * tensor) { return tensor && tensor->buffer && tensor->buffer->buft == buffer_type; }

// Whether this tensor was computed from our weights: attention belongs to the model whose projection
// computed its queries, and a model that was opened without the kernels keeps ggml's.
bool leads_to_ours(const Tensor * tensor) {
    constexpr int FAR = 24;     // operations between a projection and the attention; 3 to 8 in practice
    for (int i = 0; tensor && i < FAR; i++) {
        const bool product = tensor->op == MUL_MAT || tensor->op == MUL_MAT_ID;
        if (product && is_ours(tensor->src[0])) return true;
        if (product && tensor->src[0]->op != NONE) return false;    // of two activations
        // Past a product with a matrix that is not repacked, such as a rotation, to its other operand.
        tensor = product ? tensor->src[1] : tensor->src[0] ? tensor->src[0] : tensor->view_src;
    }
    return false;
}

class Hook : public ExtraBufferType {
  public:
    bool supports_op(Device *, const Tensor * op) override {
        if (!is_ours(op->src[0])) return false;
        const bool takes = Matmul::takes(op, *in_use);
        const bool loading = !op->src[0]->data;     // llama.cpp asks with a tensor without data
        if (loading && takes && !taking) return false;
        if (loading && !takes && (op->op == MUL_MAT || op->op == MUL_MAT_ID)) counts().declined++;
        return takes;
    }
    TensorTraits * get_tensor_traits(const Tensor * op) override {
        TensorTraits * traits = nullptr;
        switch (op->op) {
            case MUL_MAT:
            case MUL_MAT_ID:
                if (is_ours(op->src[0])) traits = (TensorTraits *) op->src[0]->extra;
                else if (leads_to_ours(op->src[1])) traits = raw_matmul(op, *in_use);
                break;
            case FLASH_ATTN_EXT:
                if (leads_to_ours(op->src[0])) traits = attention_traits(op);
                break;
            case ROPE:
            case SET_ROWS: return watching_traits();
            default: return nullptr;
        }
        if (!traits) left++;
        return traits;
    }
};

template <typename F> bool find(void * library, const char * name, F & function) {
    function = (F) dlsym(library, name);
    return function != nullptr;
}

const char * find_functions(const char * cpu_path, const char * base_path, Functions & f) {
    // A wheel has each library under several names, as separate files: one that llama.cpp did not load
    // would be a second ggml.
    void * cpu = dlopen(cpu_path, RTLD_NOW | RTLD_NOLOAD), * base = dlopen(base_path, RTLD_NOW | RTLD_NOLOAD);
    if (!cpu || !base) return "the ggml libraries that were named are not those that llama.cpp loaded";
    const bool all = find(cpu, "_Z39ggml_backend_cpu_get_extra_buffer_typesv", f.extra_buffer_types) &&
                     find(cpu, "ggml_barrier", f.barrier) && find(cpu, "ggml_backend_cpu_reg", f.cpu_registry) &&
                     find(base, "ggml_backend_reg_dev_get", f.device_of) &&
                     find(base, "ggml_backend_buffer_init", f.buffer_init) &&
                     find(base, "ggml_backend_cpu_buffer_type", f.cpu_buffer_type) &&
                     find(base, "ggml_op_name", f.op_name) && find(base, "ggml_type_name", f.type_name) &&
                     find(base, "ggml_type_size", f.type_size) && find(base, "ggml_blck_size", f.block_size);
    return all ? nullptr : "ggml's libraries lack a function that the kernels need";
}

// Whether numbers mean the same in this library as in ggml_abi.h.
bool check_abi(const Functions & f) {
    const auto op = [&](Op o, const char * name) { return !strcmp(f.op_name(o), name); };
    const auto type = [&](Type t, const char * name, size_t bytes, int64_t block) {
        return !strcmp(f.type_name(t), name) && f.type_size(t) == bytes && f.block_size(t) == block;
    };
    return op(MUL_MAT, "MUL_MAT") && op(MUL_MAT_ID, "MUL_MAT_ID") && op(CPY, "CPY") && op(CONT, "CONT") &&
           op(SET_ROWS, "SET_ROWS") && op(ROPE, "ROPE") && op(FLASH_ATTN_EXT, "FLASH_ATTN_EXT") &&
           type(F32, "f32", 4, 1) && type(F16, "f16", 2, 1) && type(BF16, "bf16", 2, 1) &&
           type(Q4_0, "q4_0", 18, 32) && type(Q4_1, "q4_1", 20, 32) && type(Q5_0, "q5_0", 22, 32) &&
           type(Q5_1, "q5_1", 24, 32) && type(Q8_0, "q8_0", 34, 32) && type(IQ4_NL, "iq4_nl", 18, 32) &&
           type(MXFP4, "mxfp4", 17, 32) && type(Q2_K, "q2_K", 84, 256) && type(Q3_K, "q3_K", 110, 256) &&
           type(Q4_K, "q4_K", 144, 256) && type(Q5_K, "q5_K", 176, 256) && type(Q6_K, "q6_K", 210, 256) &&
           type(IQ4_XS, "iq4_xs", 136, 256) && type(I32, "i32", 4, 1) && type(I64, "i64", 8, 1);
}

const InstructionSet * choose(const char * name) {
    for (const Named & one : INSTRUCTION_SETS)
        if (cpu_has(one.name) && (!name || !*name || !strcmp(one.name, name))) return one.set;
    return nullptr;
}

const char * start(const char * cpu_path, const char * base_path, const char * isa) {
    static Functions functions;
    const InstructionSet * chosen = choose(isa);
    if (!chosen) return "this CPU lacks the instructions that the kernels need";
    if (const char * why = find_functions(cpu_path, base_path, functions)) return why;
    if (!check_abi(functions)) return "ggml is not the version that the kernels were built for";
    in_use = chosen;
    functions.barrier = replace_barrier(dlopen(cpu_path, RTLD_NOW | RTLD_NOLOAD), functions.barrier);
    buffer_type = make_buffer_type(functions, *chosen, new Hook());
    start_attention(functions, *chosen->attention);
    clear_lazily(functions.cpu_buffer_type(), [] { return taking; });
    auto & types = functions.extra_buffer_types();
    types.insert(types.begin(), buffer_type);
    return nullptr;
}

}  // namespace

}  // namespace localspec

const char * localspec_kernels_built_for(void) { return localspec::ggml_abi::BUILT_FOR; }

const char * localspec_kernels_supported(void) {
    static const std::string names = [] {
        std::string all;
        for (const localspec::Named & one : localspec::INSTRUCTION_SETS)
            if (localspec::cpu_has(one.name)) all += (all.empty() ? "" : ",") + std::string(one.name);
        return all;
    }();
    return names.c_str();
}

const char * localspec_kernels_start(const char * ggml_cpu_path, const char * ggml_base_path, const char * isa) {
    static std::mutex lock;
    const std::lock_guard<std::mutex> guard(lock);
    if (localspec::buffer_type) return nullptr;
    return localspec::start(ggml_cpu_path, ggml_base_path, isa);
}

void localspec_kernels_take(int on) { localspec::taking = on != 0; }

void localspec_kernels_choose(const int32_t * tiles, int64_t count, int64_t rows) {
    localspec::choose_rows({tiles, count, rows});
}

void localspec_kernels_restoring(const int32_t * positions, int64_t n) { localspec::set_restored(positions, n); }

int localspec_kernels_make_page_huge(void) { return localspec::make_page_huge(); }

int64_t localspec_kernels_left(void) { return localspec::left + localspec::cells_unknown(); }

void localspec_kernels_counts(int64_t out[4]) {
    const localspec::Counts & c = localspec::counts();
    out[0] = c.taken, out[1] = c.declined, out[2] = c.bytes, out[3] = c.microseconds;
}
