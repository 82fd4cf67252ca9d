// Attention on the CPU: softmax(scale * q k' + mask) v of one FLASH_ATTN_EXT operation, for any number of queries.
//
// The result of a row (one query of one head) depends on the row alone. Over its visible cells in order of position:
//     x = q . k                 one chain of fused multiply-adds over d; q holds scale * log2(e)
//     x = cap * tanh(x / cap) + slope * mask            if the model has them
//     n = round(x), p = 2^(x - n) * 2^(n - M)           M: an integer, so the second factor is exact
//     o[d] = fma(p, v[d], o[d]), l = l + p              one chain each
// M is the n of the first visible cell and is replaced by a cell's n only if that exceeds M + 64. Cells whose pos / 1024 is
// equal form a chunk; each chunk starts from zero, and chunks are merged in order by exact scalings and one addition. So
// neither tiles, nor which rows share a pass, nor how a prompt is split, nor threads, nor the instruction set change a bit.
//
// A masked cell has no effect at all, whatever its K and V contain, NaN and infinity included.
#pragma once
#include <cstddef>
#include <cstdint>

namespace localspec {

enum KvType { KV_F32, KV_F16, KV_BF16, KV_Q8_0, KV_TYPES };

// One operation. Strides are in bytes. Pointers need no alignment beyond that of their elements.
struct AttentionTask {
    const char *q;  // f32 [n][kv_heads * group][dk]
    size_t q_token, q_head;
    const char *k, *v;  // [kv_heads][n_kv][dk or dv]; a cell's elements are contiguous
    size_t k_cell, k_head, v_cell, v_head;
    KvType k_type, v_type;
    const char *mask;  // f16 [mask_heads][n][n_kv], or null: all cells are visible. Head h uses mask head h % mask_heads
    size_t mask_token, mask_head;
    int64_t mask_heads;
    const float *sinks;  // one logit per head, or null
    char *out;           // f32 [n][heads][dv]
    size_t out_token, out_head;
    int64_t n, n_kv, kv_heads, group, dk, dv;
    int64_t batches;  // ne[3] of q; only 1 is supported
    float scale, max_bias, softcap;
    // Order of the cells (cells.h). order: the cells 0 ... n_kv - 1 sorted by (position, cell); null: they are in order.
    // positions: of each cell; null: a cell's position is its index. Neither is needed by takes and scratch.
    const int32_t *order, *positions;
};

struct AttentionKernels;  // of one instruction set, below

// Loads a cell of K or V into L2.
inline __attribute__((always_inline)) void prefetch_cell(const char *p, int bytes) {
    for (int i = 0; i < bytes; i += 64) __builtin_prefetch(p + i, 0, 2);
}

// Whether attention_run computes this kind of task; if not, it is left to ggml. Reads no data.
bool attention_takes(const AttentionTask &task);

// Bytes of scratch that attention_run needs for up to nth threads. Depends on shapes and types alone, not on data.
size_t attention_scratch(const AttentionTask &task, int nth);

// Thread ith of nth computes its part; all threads must call it with the same task, nth and scratch (aligned to 64 bytes).
// barrier(context) waits for all nth threads; it is called by all of them or by none.
void attention_run(const AttentionKernels &kernels, const AttentionTask &task, int ith, int nth, void *scratch,
                   void (*barrier)(void *), void *context);

// ---- between attention.cpp and the kernels of an instruction set (attention_kernels.h)

constexpr int ATTENTION_TILE = 64;     // cells that a kernel processes at once
constexpr int ATTENTION_CHUNK = 1024;  // positions with separate sums: part of the definition of the result
constexpr float ATTENTION_LOWEST = -1e30f;  // M before the first visible cell
constexpr float ATTENTION_MASKED = -2e30f;  // x of a masked cell

enum AttentionSeen { SEEN_NONE, SEEN_SOME, SEEN_ALL };  // ALL: visible, and no bias

struct AttentionRows {  // rows that a kernel processes at once, and their running sums
    float *q;      // [dk][rows]
    float *o;      // [rows][dv]
    float *m, *l;  // [rows]
    int rows;
};

struct AttentionTile {     // ATTENTION_TILE cells; at the end of a chunk the last cell is repeated, masked
    const float *keys;     // [dk][TILE]
    const char *v;         // the cells' values, at v + v_at[cell]
    const size_t *v_at;
    const char *next_k, *next_v;  // cells to prefetch, likewise; or null
    const size_t *next_k_at, *next_v_at;
    int next_k_bytes, next_v_bytes;
    const float *mask;  // [rows][TILE]; added to x, -infinity: masked; null: all are visible
    int dk, dv;
    float cap;  // softcap * log2(e), or 0; x is then q . k * 2 log2(e) / softcap
};

struct AttentionKernels {
    // TILE cells, at k + at[cell] -> [dk][TILE]; the same for values -> [TILE][dv].
    void (*keys[KV_TYPES])(const char *k, const size_t *at, int dk, float *keys);
    void (*values[KV_TYPES])(const char *v, const size_t *at, int dv, float *values);
    void (*add[KV_TYPES])(const AttentionRows &rows, const AttentionTile &tile);  // by the type of the values
    // Adds a chunk's sums of `rows` rows to the totals.
    void (*merge)(const float *o, const float *m, const float *l, int rows, int dv, float *total_o, float *total_m, float *total_l);
    void (*finish)(const float *o, float m, float l, int dv, const float *sink, float *out);  // one row
    AttentionSeen (*seen)(const uint16_t *mask);                               // of TILE cells
    void (*bias)(const uint16_t *mask, float factor, float *out);              // TILE mask values * factor
    void (*visible)(const uint16_t *mask, int64_t words, uint64_t *bits);      // bits |= cells that are not -infinity, 64 per word
};

}  // namespace localspec
