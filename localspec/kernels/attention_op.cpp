#include "attention_op.h"

#include <cstring>
#include <map>
#include <vector>

#include "attention.h"
#include "cells.h"

namespace localspec {

using namespace ggml_abi;

namespace {

const Functions * ggml;
const AttentionKernels * kernels;
thread_local int64_t unknown;   // see cells_unknown()

const Tensor * root(const Tensor * tensor) { return tensor->view_src ? tensor->view_src : tensor; }

// llama.cpp's names: cache_k_l0, cache_v_l0, …; tensors computed from one have its name with a suffix.
bool is_cache(const Tensor * tensor) { return tensor->op == NONE && !strncmp(tensor->name, "cache_", 6); }

// The cache that a tensor is a view of, or a converted copy of: a cache in F32 is read as F16.
const Tensor * cache_of(const Tensor * tensor) {
    constexpr int FAR = 4;
    for (int i = 0; tensor && i < FAR; i++) {
        const Tensor * whole = root(tensor);
        if (is_cache(whole)) return whole;
        tensor = whole->src[0];
    }
    return nullptr;
}

bool kv_type(Type type, KvType & out) {
    switch (type) {
        case F32: out = KV_F32; return true;
        case F16: out = KV_F16; return true;
        case BF16: out = KV_BF16; return true;
        case Q8_0: out = KV_Q8_0; return true;
        default: return false;
    }
}

// The task of an operation, without the order of its cells. False if its types are not supported.
bool task_of(const Tensor * op, AttentionTask & task) {
    const Tensor * q = op->src[0], * k = op->src[1], * v = op->src[2], * mask = op->src[3], * sinks = op->src[4];
    task = {};
    if (!kv_type(k->type, task.k_type) || !kv_type(v->type, task.v_type) || q->type != F32 || op->type != F32)
        return false;
    if ((mask && (mask->type != F16 || mask->nb[0] != 2)) || (sinks && sinks->type != F32)) return false;
    if (q->nb[0] != 4 || k->nb[0] != ggml->type_size(k->type) || v->nb[0] != ggml->type_size(v->type)) return false;
    if (k->ne[2] != v->ne[2] || k->ne[3] != q->ne[3] || q->ne[2] % k->ne[2]) return false;
    task.q = (const char *) q->data, task.q_token = q->nb[1], task.q_head = q->nb[2];
    task.k = (const char *) k->data, task.k_cell = k->nb[1], task.k_head = k->nb[2];
    task.v = (const char *) v->data, task.v_cell = v->nb[1], task.v_head = v->nb[2];
    task.mask_heads = 1;
    if (mask) {
        task.mask = (const char *) mask->data, task.mask_token = mask->nb[1];
        task.mask_head = mask->nb[2], task.mask_heads = mask->ne[2];
    }
    task.sinks = sinks ? (const float *) sinks->data : nullptr;
    task.out = (char *) op->data, task.out_head = op->nb[1], task.out_token = op->nb[2];
    task.n = q->ne[1], task.n_kv = k->ne[1], task.kv_heads = k->ne[2], task.group = q->ne[2] / k->ne[2];
    task.dk = k->ne[0], task.dv = v->ne[0], task.batches = q->ne[3];
    memcpy(&task.scale, op->op_params, 4);
    memcpy(&task.max_bias, op->op_params + 1, 4);
    memcpy(&task.softcap, op->op_params + 2, 4);
    return attention_takes(task);
}

class Attention : public TensorTraits {
  public:
    bool work_size(int threads, const Tensor * op, size_t & bytes) override {
        AttentionTask task;
        if (!task_of(op, task)) return false;
        bytes = attention_scratch(task, threads) + 64;
        return true;
    }
    bool compute_forward(ComputeParams * params, Tensor * op) override {
        AttentionTask task;
        if (!task_of(op, task)) return false;
        if (const Tensor * cache = cache_of(op->src[1])) {
            const CellView cells = cells_of(cache->data).view(task.n_kv);
            task.order = cells.order;
            task.positions = cells.positions;
        } else if (params->ith == 0) {
            unknown++;
        }
        void * scratch = (void *) (((uintptr_t) params->wdata + 63) & ~(uintptr_t) 63);
        const auto barrier = [](void * pool) { ggml->barrier((Threadpool *) pool); };
        attention_run(*kernels, task, params->ith, params->nth, scratch, barrier, params->threadpool);
        return true;
    }
};

// Positions of a pass come with ROPE, the cells that its tokens are written to with SET_ROWS. Both are
// inputs of one graph, in one buffer: positions of another model's pass are never used.
thread_local std::vector<int32_t> pass_positions;
thread_local const Buffer * pass_buffer;

class Watching : public TensorTraits {
  public:
    bool work_size(int, const Tensor *, size_t &) override { return false; }
    bool compute_forward(ComputeParams * params, Tensor * op) override {
        const Tensor * numbers = op->src[1];
        if (params->ith != 0 || !numbers) return false;
        if (op->op == ROPE && numbers->type == I32) {
            const auto * values = (const int32_t *) numbers->data;
            if (const Tensor * cache = cache_of(op->src[0])) {      // a shift of the context
                cells_of(cache->data).shifted(values, op->ne[2]);
            } else {                // of several coordinates per token (M-RoPE) the first is the position
                pass_positions.assign(values, values + op->ne[2]);
                pass_buffer = numbers->buffer;
            }
        } else if (op->op == SET_ROWS && is_cache(root(op))) {
            if (numbers->type == I64 && numbers->buffer == pass_buffer && numbers->ne[1] == 1 && numbers->ne[2] == 1 &&
                numbers->ne[0] == (int64_t) pass_positions.size()) {
                cells_of(root(op)->data).written((const int64_t *) numbers->data, pass_positions.data(), numbers->ne[0]);
            } else {
                unknown++;
            }
        }
        return false;
    }
};

// The state that a thread restores: positions in its order, and how many cells each tensor got.
struct Restored {
    const int32_t * positions = nullptr;
    int64_t count = 0;
    std::map<const void *, int64_t> cells;
};
thread_local Restored restored;

Buffer * (*alloc_cpu_buffer)(BufferType *, size_t);
void (*free_cpu_buffer)(Buffer *);
void (*set_cpu_tensor)(Buffer *, Tensor *, const void *, size_t, size_t);

void set_tensor(Buffer * buffer, Tensor * tensor, const void * data, size_t offset, size_t size) {
    if (restored.positions && is_cache(root(tensor)) && size % tensor->nb[1] == 0 && offset % tensor->nb[1] == 0) {
        int64_t & next = restored.cells[root(tensor)];
        const int64_t first = (int64_t) (offset / tensor->nb[1]), count = (int64_t) (size / tensor->nb[1]);
        if (next + count <= restored.count) cells_of(root(tensor)->data).restored(first, count, restored.positions + next);
        next += count;
    }
    set_cpu_tensor(buffer, tensor, data, offset, size);
}

void free_buffer(Buffer * buffer) {
    forget_cells(buffer->context, buffer->size);
    free_cpu_buffer(buffer);
}

Buffer * alloc_buffer(BufferType * type, size_t size) {
    Buffer * buffer = alloc_cpu_buffer(type, size);
    if (!buffer) return nullptr;
    free_cpu_buffer = buffer->iface.free_buffer;
    set_cpu_tensor = buffer->iface.set_tensor;
    buffer->iface.free_buffer = free_buffer;
    buffer->iface.set_tensor = set_tensor;
    return buffer;
}

}  // namespace

void start_attention(const Functions & functions, const AttentionKernels & chosen) {
    ggml = &functions;
    kernels = &chosen;
    BufferTypeInterface & cpu = functions.cpu_buffer_type()->iface;
    alloc_cpu_buffer = cpu.alloc_buffer;
    cpu.alloc_buffer = alloc_buffer;
}

TensorTraits * attention_traits(const Tensor * op) {
    static Attention traits;
    AttentionTask task;
    return task_of(op, task) ? &traits : nullptr;
}

int64_t cells_unknown() { return unknown; }

TensorTraits * watching_traits() {
    static Watching traits;
    return &traits;
}

void set_restored(const int32_t * positions, int64_t n) {
    restored.positions = positions;
    restored.count = n;
    restored.cells.clear();
}

}  // namespace localspec
