#include "matmul.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "barrier.h"
#include "shares.h"

namespace localspec {

using namespace ggml_abi;

namespace {

// Up to this many tokens, each thread quantizes for itself, which is cheaper than a barrier.
constexpr int64_t OWN_QUANTS = 2;
// Groups of tokens that use a tile before the next tile is read: their activations stay in L2.
constexpr int64_t GROUPS_PER_TILE = 8;

// Index in the parameters of a product that ggml does not use.
constexpr int CHOSEN_AT = 8;

thread_local Chosen chosen{nullptr, 0, 0};

int64_t tiles_of(const Tensor * weights) { return (weights->ne[1] + ROWS - 1) / ROWS; }

char * aligned(void * p) { return (char *) (((uintptr_t) p + 63) & ~(uintptr_t) 63); }
size_t aligned(size_t bytes) { return (bytes + 63) & ~(size_t) 63; }

// `count` rows of activations in groups of at most MAX_TOKENS, as even as possible.
struct Groups {
    int64_t count, groups;
    explicit Groups(int64_t n) : count(n), groups((n + MAX_TOKENS - 1) / MAX_TOKENS) {}
    int64_t start(int64_t group) const { return count * group / groups; }
};

// The rows of activations of an operation, and the rows of its result. With experts (MUL_MAT_ID) a
// row is a slot of a token: row i is slot i % slots of token i / slots.
struct Rows {
    const Tensor * x;
    const Tensor * op;
    int64_t slots, count;

    explicit Rows(const Tensor * o) : x(o->src[1]), op(o) {
        const bool experts = o->op == MUL_MAT_ID;
        slots = experts ? o->src[2]->ne[0] : 1;
        count = experts ? slots * o->src[2]->ne[1] : x->ne[1] * x->ne[2] * x->ne[3];
    }
    const float * in(int64_t i) const {
        const char * p = (const char *) x->data;
        if (op->op == MUL_MAT_ID) p += i % slots % x->ne[1] * x->nb[1] + i / slots * x->nb[2];
        else p += i % x->ne[1] * x->nb[1] + i / x->ne[1] % x->ne[2] * x->nb[2] + i / x->ne[1] / x->ne[2] * x->nb[3];
        return (const float *) p;
    }
    float * out(int64_t i) const {
        char * p = (char *) op->data;
        if (op->op == MUL_MAT_ID) return (float *) (p + i % slots * op->nb[1] + i / slots * op->nb[2]);
        return (float *) (p + i * op->nb[1]);    // contiguous, as ggml makes it
    }
    int32_t expert(int64_t i) const {
        const Tensor * ids = op->src[2];
        return *(const int32_t *) ((const char *) ids->data + i % slots * ids->nb[0] + i / slots * ids->nb[1]);
    }
};

// Rows ordered by expert: expert e has rows[begin[e]] … rows[begin[e + 1] − 1].
struct Routes {
    int64_t * begin;
    int32_t * rows;

    static size_t bytes(int64_t experts, int64_t count) {
        return aligned((experts + 2) * sizeof(int64_t) + count * sizeof(int32_t));
    }
    Routes(char * memory, const Rows & all, int64_t experts)
        : begin((int64_t *) memory), rows((int32_t *) (begin + experts + 2)) {
        std::fill(begin, begin + experts + 2, 0);
        const auto valid = [&](int64_t i) { return all.expert(i) >= 0 && all.expert(i) < experts; };
        for (int64_t i = 0; i < all.count; i++)
            if (valid(i)) begin[all.expert(i) + 2]++;
        for (int64_t e = 1; e <= experts + 1; e++) begin[e] += begin[e - 1];
        for (int64_t i = 0; i < all.count; i++)     // begin[e + 1] runs from expert e's start to its end
            if (valid(i)) rows[begin[all.expert(i) + 1]++] = (int32_t) i;
    }
};

// Writes LOWEST for the rows of weights that are not chosen: each thread for those before its tiles, the
// last one for those at the end.
void leave_out(const Rows & all, const Chosen & only, int64_t tiles, int ith, int nth) {
    const auto lowest = [&](int64_t first, int64_t last) {
        const int64_t end = std::min(last * ROWS, only.rows);
        for (int64_t i = 0; i < all.count && first * ROWS < end; i++)
            std::fill(all.out(i) + first * ROWS, all.out(i) + end, LOWEST);
    };
    const auto after = [&](int64_t k) { return k > 0 ? only.tiles[k - 1] + 1 : 0; };
    for (int64_t k = only.count * ith / nth; k < only.count * (ith + 1) / nth; k++) lowest(after(k), only.tiles[k]);
    if (ith == nth - 1) lowest(after(only.count), tiles);
}

}  // namespace

void choose_rows(const Chosen & rows) { chosen = rows; }

bool Matmul::takes(const Tensor * op, const InstructionSet & isa) {
    const Tensor * w = op->src[0], * x = op->src[1];
    if (op->op != MUL_MAT && op->op != MUL_MAT_ID) return false;
    const TypeKernels * kernels = isa.type(w->type);
    if (!kernels || w->view_src || x->type != F32 || x->nb[0] != sizeof(float)) return false;
    if (w->ne[3] != 1 || (op->op == MUL_MAT && w->ne[2] != 1)) return false;
    return is_float(w->type) || w->ne[0] % (BLOCK * kernels->blocks) == 0;
}

size_t Matmul::tile_bytes(const Tensor * w) const {
    if (is_float(type_)) return (size_t) w->ne[0] * ROWS * float_bytes(type_);
    return (size_t) (w->ne[0] / BLOCK / kernels_.blocks) * kernels_.tile_bytes;
}

size_t Matmul::repacked_bytes(const Tensor * w) const { return tiles_of(w) * w->ne[2] * tile_bytes(w); }

void Matmul::repack(const Tensor * w, const void * file, int part, int parts) const {
    const int64_t per_matrix = tiles_of(w), all = per_matrix * w->ne[2];
    const int blocks = (int) (is_float(type_) ? w->ne[0] : w->ne[0] / BLOCK);
    const size_t row = w->nb[1], bytes = tile_bytes(w);
    for (int64_t i = all * part / parts; i < all * (part + 1) / parts; i++) {
        const int64_t first = i % per_matrix * ROWS, rows = std::min<int64_t>(ROWS, w->ne[1] - first);
        const uint8_t * from = (const uint8_t *) file + i / per_matrix * w->nb[2] + first * row;
        uint8_t * to = (uint8_t *) w->data + i * bytes;
        if (rows == ROWS) {
            kernels_.repack(from, row, blocks, to);
        } else {
            std::vector<uint8_t> filled(row * ROWS, 0);
            memcpy(filled.data(), from, rows * row);
            kernels_.repack(filled.data(), row, blocks, to);
        }
    }
}

// Scratch: the shares of the threads; for MUL_MAT_ID the routes of each thread; then the quantized activations, in a small pass
// once per thread. ggml asks before each pass in the thread that runs it, so that thread's choice is
// stored here for all threads.
bool Matmul::work_size(int threads, const Tensor * op, size_t & bytes) {
    const Rows rows(op);
    const Chosen * only = chosen.tiles && op->op == MUL_MAT && op->src[0]->ne[1] == chosen.rows ? &chosen : nullptr;
    memcpy((int32_t *) op->op_params + CHOSEN_AT, &only, sizeof only);
    const int64_t experts = op->src[0]->ne[2];
    bytes = 64 + Shares::bytes(threads);
    if (op->op == MUL_MAT_ID) bytes += threads * Routes::bytes(experts, rows.count);
    if (!is_float(type_)) {
        const size_t quants = aligned(op->src[0]->ne[0] / BLOCK * rows.count * ACTIVATION_BYTES);
        bytes += quants * (rows.count <= OWN_QUANTS ? threads : 1);
    }
    return true;
}

bool Matmul::compute_forward(ComputeParams * params, Tensor * op) {
    join_barrier(params, op);
    const Tensor * w = op->src[0];
    const Rows all(op);
    const bool routed = op->op == MUL_MAT_ID, floats = is_float(type_), apart = floats || all.count <= OWN_QUANTS;
    const int64_t experts = routed ? w->ne[2] : 1, tiles = tiles_of(w);
    const int blocks = (int) (w->ne[0] / BLOCK), ith = params->ith, nth = params->nth;
    char * shared = aligned(params->wdata), * scratch = shared + Shares::bytes(nth);
    const Chosen * only;
    memcpy(&only, op->op_params + CHOSEN_AT, sizeof only);
    const int64_t walk = only ? only->count : tiles;

    int64_t dense[2] = {0, all.count};
    const int64_t * begin = dense;
    const int32_t * order = nullptr;
    if (routed) {
        const size_t bytes = Routes::bytes(experts, all.count);
        const Routes routes(scratch + ith * bytes, all, experts);
        begin = routes.begin;
        order = routes.rows;
        scratch += nth * bytes;
    }
    const auto row = [&](int64_t i) { return order ? order[i] : i; };

    // An item of work is a tile and a round, groups of tokens that use it before the next tile is read.
    struct Round {
        int64_t expert, group;
    };
    thread_local std::vector<Round> rounds;
    rounds.clear();
    for (int64_t e = 0; e < experts; e++)
        for (int64_t g = 0; g < Groups(begin[e + 1] - begin[e]).groups; g += GROUPS_PER_TILE) rounds.push_back({e, g});
    Shares shares(shared, walk * (int64_t) rounds.size(), ith, nth);

    // Quantize: every thread does a part of the columns of every row.
    uint8_t * quants = (uint8_t *) scratch;
    if (!floats) {
        if (apart) quants += ith * aligned(blocks * all.count * ACTIVATION_BYTES);
        const int b0 = apart ? 0 : blocks * ith / nth, b1 = apart ? blocks : blocks * (ith + 1) / nth;
        for (int64_t e = 0; e < experts; e++) {
            const Groups groups(begin[e + 1] - begin[e]);
            for (int64_t g = 0; g < groups.groups; g++) {
                const int64_t first = begin[e] + groups.start(g), size = groups.start(g + 1) - groups.start(g);
                uint8_t * to = quants + blocks * first * ACTIVATION_BYTES;
                for (int64_t u = 0; u < size; u++)
                    isa_.quantize_row(all.in(row(first + u)) + BLOCK * b0, b1 - b0,
                                      (int8_t *) to + (b0 * size + u) * BLOCK, size * BLOCK,
                                      (Activation *) (to + blocks * size * BLOCK) + b0 * size + u, size);
            }
        }
        if (!apart) barrier_(params->threadpool);
    }

    const size_t tile_size = tile_bytes(w);
    const uint8_t * weights = (const uint8_t *) w->data;
    const auto tile_at = [&](int64_t k) { return only ? only->tiles[k] : k; };
    const auto compute = [&](int64_t item, int64_t end, const Stream & stream) {
        for (; item < end; item++) {
            const Round & round = rounds[item / walk];
            const int64_t i = tile_at(item % walk), begins = begin[round.expert];
            const Groups groups(begin[round.expert + 1] - begins);
            const uint8_t * tile = weights + (round.expert * tiles + i) * tile_size;
            for (int64_t g = round.group; g < std::min(groups.groups, round.group + GROUPS_PER_TILE); g++) {
                const int64_t first = begins + groups.start(g), size = groups.start(g + 1) - groups.start(g);
                const bool whole = (i + 1) * ROWS <= w->ne[1] && !routed;
                float spare[MAX_TOKENS * ROWS];
                float * out = whole ? all.out(first) + i * ROWS : spare;
                const size_t stride = whole ? op->nb[1] / sizeof(float) : ROWS;
                if (floats) {
                    const float * x[MAX_TOKENS];
                    for (int64_t u = 0; u < size; u++) x[u] = all.in(row(first + u));
                    kernels_.floating[size - 1](tile, x, w->ne[0], out, stride);
                } else {
                    kernels_.integer[size - 1](tile, stream, quants + blocks * first * ACTIVATION_BYTES, blocks, out, stride);
                }
                if (!whole) {
                    const int64_t rows = std::min<int64_t>(ROWS, w->ne[1] - i * ROWS);
                    for (int64_t u = 0; u < size; u++)
                        memcpy(all.out(row(first + u)) + i * ROWS, spare + u * ROWS, rows * sizeof(float));
                }
            }
        }
    };
    const int64_t first = shares.part(ith), end = shares.part(ith + 1);
    const Stream none{weights, 0};      // the next experts are not known in advance, nor other threads' parts
    const Stream stream = routed || first == end || end > walk ? none :
        follow(weights + tile_at(first) * tile_size, weights + (tile_at(end - 1) + 1) * tile_size);
    if (apart) compute(first, end, stream);
    else shares.take([&](int64_t item, int64_t last, bool own) { compute(item, last, own ? stream : none); });
    if (only) leave_out(all, *only, tiles, ith, nth);
    return true;
}

}  // namespace localspec
