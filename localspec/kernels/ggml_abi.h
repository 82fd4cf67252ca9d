// The part of ggml's binary interface that the kernels rely on, as of the llama.cpp inside
// llama-cpp-python 0.3.36 (ggml.h, ggml-backend-impl.h, ggml-cpu/traits.h, ggml-cpu/ggml-cpu-impl.h).
//
// Declared here so that the library builds without llama.cpp. `check_abi` (hook.cpp) and the
// self-test compare it with the loaded library; any other version is refused.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace localspec::ggml_abi {

constexpr const char * BUILT_FOR = "llama-cpp-python 0.3.36";

enum Type : int32_t {
    F32 = 0, F16 = 1, Q4_0 = 2, Q4_1 = 3, Q5_0 = 6, Q5_1 = 7, Q8_0 = 8, Q2_K = 10, Q3_K = 11,
    Q4_K = 12, Q5_K = 13, Q6_K = 14, IQ4_NL = 20, IQ4_XS = 23, I32 = 26, I64 = 27, BF16 = 30,
    MXFP4 = 39,
};

enum Op : int32_t {
    NONE = 0, DUP = 1, MUL_MAT = 29, MUL_MAT_ID = 30, CPY = 34, CONT = 35, SET_ROWS = 42, ROPE = 48,
    FLASH_ATTN_EXT = 74,
};

struct Buffer;
struct BufferType;
struct Device;

struct Tensor {
    Type type;
    Buffer * buffer;
    int64_t ne[4];              // elements of each dimension
    size_t nb[4];               // strides in bytes
    Op op;
    int32_t op_params[16];
    int32_t flags;
    Tensor * src[10];
    Tensor * view_src;
    size_t view_offs;
    void * data;
    char name[64];
    void * extra;
    char padding[8];
};
static_assert(sizeof(Tensor) == 336 && offsetof(Tensor, op) == 80 && offsetof(Tensor, src) == 152 &&
              offsetof(Tensor, data) == 248 && offsetof(Tensor, extra) == 320, "ggml_tensor");

struct BufferTypeInterface {
    const char * (*get_name)(BufferType *);
    Buffer * (*alloc_buffer)(BufferType *, size_t);
    size_t (*get_alignment)(BufferType *);
    size_t (*get_max_size)(BufferType *);
    size_t (*get_alloc_size)(BufferType *, const Tensor *);
    bool (*is_host)(BufferType *);
};

struct BufferType {
    BufferTypeInterface iface;
    Device * device;
    void * context;             // of an extra buffer type: its ExtraBufferType
};

struct BufferInterface {
    void (*free_buffer)(Buffer *);
    void * (*get_base)(Buffer *);
    int (*init_tensor)(Buffer *, Tensor *);         // ggml_status, 0 is success
    void (*memset_tensor)(Buffer *, Tensor *, uint8_t, size_t offset, size_t size);
    void (*set_tensor)(Buffer *, Tensor *, const void *, size_t offset, size_t size);
    void (*get_tensor)(Buffer *, const Tensor *, void *, size_t offset, size_t size);
    void (*set_tensor_2d)(Buffer *, Tensor *, const void *, size_t, size_t, size_t, size_t, size_t);
    void (*get_tensor_2d)(Buffer *, const Tensor *, void *, size_t, size_t, size_t, size_t, size_t);
    bool (*cpy_tensor)(Buffer *, const Tensor *, Tensor *);
    void (*clear)(Buffer *, uint8_t);
    void (*reset)(Buffer *);
};

struct Buffer {
    BufferInterface iface;
    BufferType * buft;
    void * context;
    size_t size;
    int usage;
};

// The team of one pass. With OpenMP ggml sets `arrived` and `passed` to 0 and does not use them.
struct Threadpool {
    pthread_mutex_t mutex;
    pthread_cond_t condition;
    void * graph, * plan;
    std::atomic<int> n_graph;               // the lower 16 bits: number of threads
    alignas(64) std::atomic<int> arrived;   // n_barrier
    alignas(64) std::atomic<int> passed;    // n_barrier_passed
};
#ifdef __linux__
static_assert(offsetof(Threadpool, arrived) == 128 && offsetof(Threadpool, passed) == 192, "ggml_threadpool");
#endif

struct ComputeParams {
    int ith, nth;               // index and number of threads
    size_t wsize;
    void * wdata;               // shared by the threads
    Threadpool * threadpool;
    bool use_ref;
};

// ggml::cpu::tensor_traits and ggml::cpu::extra_buffer_type: ggml calls them through their vtables.
class TensorTraits {
  public:
    virtual ~TensorTraits() = default;
    virtual bool work_size(int threads, const Tensor * op, size_t & bytes) = 0;
    virtual bool compute_forward(ComputeParams * params, Tensor * op) = 0;
};

class ExtraBufferType {
  public:
    virtual ~ExtraBufferType() = default;
    virtual bool supports_op(Device * device, const Tensor * op) = 0;
    virtual TensorTraits * get_tensor_traits(const Tensor * op) = 0;
};

// Functions of libggml-cpu and libggml-base, found by name when the library is started.
struct Functions {
    std::vector<BufferType *> & (*extra_buffer_types)();    // ggml_backend_cpu_get_extra_buffer_types
    void (*barrier)(Threadpool *);                          // ggml_barrier
    void * (*cpu_registry)();                               // ggml_backend_cpu_reg
    Device * (*device_of)(void * registry, size_t index);   // ggml_backend_reg_dev_get
    Buffer * (*buffer_init)(BufferType *, BufferInterface, void * context, size_t);
    BufferType * (*cpu_buffer_type)();                      // ggml_backend_cpu_buffer_type
    const char * (*op_name)(Op);
    const char * (*type_name)(Type);
    size_t (*type_size)(Type);
    int64_t (*block_size)(Type);
};

}  // namespace localspec::ggml_abi
