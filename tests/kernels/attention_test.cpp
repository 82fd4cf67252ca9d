// Tests of localspec/kernels/attention.*, cells.* and attention_kernels.h: values against a reference in double precision, and
// bits: a row's result must not depend on passes, threads, the layout of cells or the instruction set.
//
// Built with -DLOCALSPEC_ISAS="ISA(avx512) ISA(avx2)", one object of isa.cpp for each. Prints a line a check; exits with 1 if
// one fails. "quick" leaves out what is slow under an emulator; "hash" only prints a number that every machine must print.
#include "../../localspec/kernels/attention.h"
#include "../../localspec/kernels/cells.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

#define ISA(name)                             \
    namespace localspec::name {               \
    extern const AttentionKernels attention;  \
    }
LOCALSPEC_ISAS
#undef ISA

using namespace localspec;

namespace {

bool runs_here(const std::string &isa) {
#if defined(__x86_64__)
    if (isa == "avx512") return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
    return !isa.empty();
#endif
}

struct Isa {
    std::string name;
    const AttentionKernels *kernels;
};

std::vector<Isa> isas() {
    std::vector<Isa> all = {
#define ISA(name) {#name, &localspec::name::attention},
        LOCALSPEC_ISAS
#undef ISA
    };
    all.erase(std::remove_if(all.begin(), all.end(), [](const Isa &i) { return !runs_here(i.name); }), all.end());
    return all;
}

int failures = 0;
bool quick = false;
void check(bool ok, const std::string &what) {
    printf("%s %s\n", ok ? "ok    " : "FAILED", what.c_str());
    fflush(stdout);
    failures += !ok;
}

// ---- numbers

uint16_t to_f16(float x) {  // round to nearest even; |x| < 65504 or infinite
    uint32_t u;
    memcpy(&u, &x, 4);
    const uint16_t sign = uint16_t(u >> 16 & 0x8000);
    if (std::isinf(x)) return sign | 0x7c00;
    if (std::isnan(x)) return sign | 0x7e00;
    const int e = std::ilogb(x);
    if (x == 0 || e < -25) return sign;
    const int shift = std::max(e, -14) - 10;
    const double m = std::nearbyint(std::ldexp(std::fabs(double(x)), -shift));
    return uint16_t(sign | (e < -14 ? int(m) : ((e + 15) << 10) + int(m) - 1024));
}
float of_f16(uint16_t h) {
    const int e = h >> 10 & 31, m = h & 1023;
    const float x = e == 31 ? (m ? NAN : INFINITY) : e ? std::ldexp(float(m + 1024), e - 25) : std::ldexp(float(m), -24);
    return h & 0x8000 ? -x : x;
}

size_t bytes_of(KvType type, int64_t d) { return type == KV_F32 ? 4 * d : type == KV_Q8_0 ? d / 32 * 34 : 2 * d; }

// Encodes a row of d floats and puts the values that it stands for back into x.
void encode(KvType type, float *x, int64_t d, char *out) {
    for (int64_t i = 0; i < d; i++) {
        if (type == KV_F32) memcpy(out + 4 * i, x + i, 4);
        if (type == KV_F16) {
            const uint16_t h = to_f16(x[i]);
            memcpy(out + 2 * i, &h, 2);
            x[i] = of_f16(h);
        }
        if (type == KV_BF16) {
            memcpy(out + 2 * i, reinterpret_cast<char *>(x + i) + 2, 2);
            const uint16_t zero = 0;
            memcpy(x + i, &zero, 2);
        }
        if (type == KV_Q8_0 && i % 32 == 0) {
            float top = 0;
            for (int j = 0; j < 32; j++) top = std::max(top, std::fabs(x[i + j]));
            const uint16_t h = to_f16(top / 127);
            const float scale = of_f16(h);
            char *block = out + i / 32 * 34;
            memcpy(block, &h, 2);
            for (int j = 0; j < 32; j++) {
                const int n = std::clamp(int(std::lround(scale > 0 ? x[i + j] / scale : 0)), -127, 127);
                block[2 + j] = char(n);
                x[i + j] = n * scale;
            }
        }
    }
}

// ---- problems: entries (a token of a sequence) with positions, queries, and who sees whom. Cells come later.

struct Problem {
    int64_t dk = 64, dv = 64, kv_heads = 2, group = 3, n = 16;
    KvType k_type = KV_F16, v_type = KV_F16;
    float scale = 0, max_bias = 0, softcap = 0;
    bool sinks = false, null_mask = false;
    int64_t mask_heads = 1;
    std::vector<int32_t> position;                                              // of the entries
    std::function<float(int64_t query, int64_t entry, int64_t mask_head)> bias;  // -infinity: not seen

    std::vector<float> q, sink, k, v;  // [n][heads][dk], [heads], [entry][kv_head][dk], ... [dv]
    std::vector<char> k_bytes, v_bytes;

    int64_t heads() const { return kv_heads * group; }
    int64_t entries() const { return int64_t(position.size()); }
    void fill(unsigned seed, float spread = 1) {
        std::mt19937 random(seed);
        auto normal = [](std::mt19937 &r) {  // nearly; the same numbers on every machine
            float sum = 0;
            for (int i = 0; i < 4; i++) sum += float(r() >> 8) / 16777216.f - 0.5f;
            return sum * 1.732f;
        };
        if (scale == 0) scale = 1 / std::sqrt(float(dk));
        q.resize(n * heads() * dk), sink.resize(heads()), k.resize(entries() * kv_heads * dk), v.resize(entries() * kv_heads * dv);
        for (float &x : q) x = normal(random) * spread;
        for (float &x : sink) x = normal(random) * 2;
        for (float &x : k) x = normal(random) * 2;
        for (float &x : v) x = normal(random);
        const size_t kb = bytes_of(k_type, dk), vb = bytes_of(v_type, dv);
        k_bytes.resize(entries() * kv_heads * kb), v_bytes.resize(entries() * kv_heads * vb);
        for (int64_t i = 0; i < entries() * kv_heads; i++) {
            encode(k_type, &k[i * dk], dk, &k_bytes[i * kb]);
            encode(v_type, &v[i * dv], dv, &v_bytes[i * vb]);
        }
    }
};

std::vector<double> reference(const Problem &p) {
    std::vector<double> out(p.n * p.heads() * p.dv), x(p.entries());
    int64_t power = 1;
    while (power * 2 <= p.heads()) power *= 2;
    for (int64_t t = 0; t < p.n; t++)
        for (int64_t h = 0; h < p.heads(); h++) {
            const double slope = p.max_bias <= 0 ? 1 : h < power ? std::pow(2, -p.max_bias / power * (h + 1)) : std::pow(2, -p.max_bias / 2 / power * (2 * (h - power) + 1));
            double top = p.sinks ? p.sink[h] : -INFINITY, sum = 0;
            for (int64_t e = 0; e < p.entries(); e++) {
                const double bias = p.null_mask ? 0 : of_f16(to_f16(p.bias(t, e, h % p.mask_heads)));
                x[e] = -INFINITY;
                if (bias == -INFINITY) continue;
                double dot = 0;
                for (int64_t d = 0; d < p.dk; d++) dot += double(p.q[(t * p.heads() + h) * p.dk + d]) * p.k[(e * p.kv_heads + h / p.group) * p.dk + d];
                dot *= p.scale;
                if (p.softcap > 0) dot = p.softcap * std::tanh(dot / p.softcap);
                x[e] = dot + slope * bias;
                top = std::max(top, x[e]);
            }
            if (p.sinks) sum += std::exp(p.sink[h] - top);
            double *o = &out[(t * p.heads() + h) * p.dv];
            for (int64_t e = 0; e < p.entries(); e++) {
                if (x[e] == -INFINITY) continue;
                const double w = std::exp(x[e] - top);
                sum += w;
                for (int64_t d = 0; d < p.dv; d++) o[d] += w * p.v[(e * p.kv_heads + h / p.group) * p.dv + d];
            }
            for (int64_t d = 0; d < p.dv; d++) o[d] = sum > 0 ? o[d] / sum : 0;
        }
    return out;
}

// ---- runs

struct Barrier {
    int n;
    std::atomic<int> arrived{0}, round{0}, calls{0};
    explicit Barrier(int threads) : n(threads) {}
    static void wait(void *context) {
        Barrier &b = *static_cast<Barrier *>(context);
        b.calls++;
        const int mine = b.round;
        if (++b.arrived == b.n) {
            b.arrived = 0;
            b.round++;
        } else
            while (b.round == mine) std::this_thread::yield();
    }
};

struct Layout {                 // where entries lie
    std::vector<int64_t> cell;  // of each entry
    int64_t n_kv;
    bool told = true;           // whether positions come from Cells; else the cell's index is the position
};

Layout in_order(const Problem &p, int64_t spare = 37) {
    Layout l;
    for (int64_t e = 0; e < p.entries(); e++) l.cell.push_back(e);
    l.n_kv = p.entries() + (p.null_mask ? 0 : spare);
    return l;
}

Layout scrambled(const Problem &p, unsigned seed, int64_t spare = 100) {
    Layout l = in_order(p, spare);
    std::vector<int64_t> all(l.n_kv);
    for (int64_t i = 0; i < l.n_kv; i++) all[i] = i;
    std::shuffle(all.begin(), all.end(), std::mt19937(seed));
    l.cell.assign(all.begin(), all.begin() + p.entries());
    return l;
}

bool split = false;  // whether the last run divided chunks

std::vector<float> run(const Problem &p, const Layout &l, const AttentionKernels &kernels, int nth, int64_t t0, int64_t t1) {
    const size_t kb = bytes_of(p.k_type, p.dk), vb = bytes_of(p.v_type, p.dv), k_cell = kb * p.kv_heads, v_cell = vb * p.kv_heads;
    // Cells that hold no entry are stale: NaN and infinity in every format but q8_0, whose scale is made NaN.
    std::vector<char> k(l.n_kv * k_cell, char(0xff)), v(l.n_kv * v_cell, char(0xff));
    const uint16_t infinite = p.v_type == KV_BF16 ? 0x7f80 : 0x7c00;
    if (p.v_type != KV_F32)
        for (size_t i = 0; i + 1 < v.size(); i += 4) memcpy(&v[i], &infinite, 2);
    const int64_t n = t1 - t0, padding = 5;
    std::vector<uint16_t> mask(p.null_mask ? 0 : p.mask_heads * (n + padding) * l.n_kv, 0xfc00);
    std::vector<int64_t> cells;
    for (int64_t e = 0; e < p.entries(); e++) {
        const int64_t c = l.cell[e];
        if (c >= l.n_kv) continue;  // a pass that came before this entry
        memcpy(&k[c * k_cell], &p.k_bytes[e * k_cell], k_cell);
        memcpy(&v[c * v_cell], &p.v_bytes[e * v_cell], v_cell);
        if (!p.null_mask)
            for (int64_t h = 0; h < p.mask_heads; h++)
                for (int64_t t = 0; t < n; t++) mask[(h * (n + padding) + t) * l.n_kv + c] = to_f16(p.bias(t0 + t, e, h));
    }
    Cells map;
    if (l.told) {
        for (int64_t c : l.cell) cells.push_back(c);
        map.written(cells.data(), p.position.data(), p.entries());
    }
    const CellView view = l.told ? map.view(l.n_kv) : CellView{nullptr, nullptr};

    std::vector<float> out(n * p.heads() * p.dv, NAN);
    AttentionTask task = {};
    task.q = reinterpret_cast<const char *>(p.q.data() + t0 * p.heads() * p.dk);
    task.q_token = p.heads() * p.dk * 4, task.q_head = p.dk * 4;
    task.k = k.data(), task.v = v.data(), task.k_cell = k_cell, task.v_cell = v_cell, task.k_head = kb, task.v_head = vb;
    task.k_type = p.k_type, task.v_type = p.v_type;
    task.mask = p.null_mask ? nullptr : reinterpret_cast<const char *>(mask.data());
    task.mask_token = l.n_kv * 2, task.mask_head = (n + padding) * l.n_kv * 2, task.mask_heads = p.mask_heads;
    task.sinks = p.sinks ? p.sink.data() : nullptr;
    task.out = reinterpret_cast<char *>(out.data()), task.out_token = p.heads() * p.dv * 4, task.out_head = p.dv * 4;
    task.n = n, task.n_kv = l.n_kv, task.kv_heads = p.kv_heads, task.group = p.group, task.dk = p.dk, task.dv = p.dv, task.batches = 1;
    task.scale = p.scale, task.max_bias = p.max_bias, task.softcap = p.softcap;
    task.order = view.order, task.positions = view.positions;
    if (!attention_takes(task)) return {};

    std::vector<char> memory(attention_scratch(task, nth) + 64, char(0xff));  // NaN: what is read must have been written
    char *scratch = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
    Barrier barrier(nth);
    std::vector<std::thread> threads;
    for (int i = 1; i < nth; i++) threads.emplace_back([&, i] { attention_run(kernels, task, i, nth, scratch, Barrier::wait, &barrier); });
    attention_run(kernels, task, 0, nth, scratch, Barrier::wait, &barrier);
    for (std::thread &t : threads) t.join();
    split = barrier.calls > 0;
    return out;
}

double error(const std::vector<float> &got, const std::vector<double> &want) {
    if (got.size() != want.size()) return INFINITY;
    double worst = 0;
    for (size_t i = 0; i < got.size(); i++) {
        const double e = std::fabs(got[i] - want[i]);
        worst = e <= worst ? worst : std::isnan(e) ? INFINITY : e;  // NaN fails
    }
    return worst;
}

bool same(const std::vector<float> &a, const std::vector<float> &b) { return a.size() == b.size() && !memcmp(a.data(), b.data(), a.size() * 4); }

// Cut into passes of `size` queries.
std::vector<float> in_passes(const Problem &p, const Layout &l, const AttentionKernels &kernels, int nth, int64_t size) {
    std::vector<float> all;
    for (int64_t t = 0; t < p.n; t += size) {
        const std::vector<float> part = run(p, l, kernels, nth, t, std::min(p.n, t + size));
        all.insert(all.end(), part.begin(), part.end());
    }
    return all;
}

// ---- masks

Problem causal(int64_t n, int64_t entries) {  // the queries are the last n entries
    Problem p;
    p.n = n;
    for (int64_t e = 0; e < entries; e++) p.position.push_back(int32_t(e));
    p.bias = [=](int64_t t, int64_t e, int64_t) { return e <= entries - n + t ? 0.f : -INFINITY; };
    return p;
}

Problem window(int64_t n, int64_t entries, int64_t width) {
    Problem p = causal(n, entries);
    p.bias = [=](int64_t t, int64_t e, int64_t) { return e <= entries - n + t && e > entries - n + t - width ? 0.f : -INFINITY; };
    return p;
}

Problem tree(int64_t branches, int64_t depth, int64_t context) {  // after a context, `branches` chains of `depth` at the same positions
    Problem p = causal(branches * depth, context);
    for (int64_t b = 0; b < branches; b++)
        for (int64_t d = 0; d < depth; d++) p.position.push_back(int32_t(context + d));
    p.bias = [=](int64_t t, int64_t e, int64_t) {
        const int64_t o = e - context;
        return e < context || (o / depth == t / depth && o % depth <= t % depth) ? 0.f : -INFINITY;
    };
    return p;
}

Problem sequences(int64_t n, std::vector<int64_t> lengths, int64_t each = 1) {  // `each` queries of every sequence at its end; n: of all
    Problem p;
    p.n = n;
    std::vector<int64_t> owner;
    for (size_t s = 0; s < lengths.size(); s++)
        for (int64_t i = 0; i < lengths[s]; i++) p.position.push_back(int32_t(i)), owner.push_back(int64_t(s));
    const std::vector<int32_t> position = p.position;
    p.bias = [=](int64_t t, int64_t e, int64_t) { return owner[e] == t / each && position[e] <= lengths[t / each] - each + t % each ? 0.f : -INFINITY; };
    return p;
}

// ---- checks

const char *const TYPE_NAMES[] = {"f32", "f16", "bf16", "q8_0"};

void values(const Problem &p, const Layout &l, const std::string &what, double tolerance = 1e-5) {
    const std::vector<double> want = reference(p);
    std::string errors;
    bool ok = true;
    for (const Isa &isa : isas())
        for (int nth : quick ? std::vector<int>{2} : std::vector<int>{1, 2, 3}) {
            const double e = error(run(p, l, *isa.kernels, nth, 0, p.n), want);
            ok = ok && e < tolerance;
            char text[32];
            snprintf(text, sizeof text, " %.1e", e);
            if (nth < 3 || !(e < tolerance)) errors += text;
        }
    check(ok, what + ": error" + errors);
}

void bits(const Problem &p, const std::vector<Layout> &layouts, const std::string &what, std::vector<int64_t> sizes = {1, 2, 3, 5, 8, 13, 64, 200}) {
    const std::vector<Isa> all = isas();
    const std::vector<float> base = run(p, layouts[0], *all[0].kernels, 1, 0, p.n);
    bool finite = true;
    for (float x : base) finite = finite && std::isfinite(x);
    std::string wrong = finite && !base.empty() ? "" : " not finite";
    int compared = 0;
    for (const Isa &isa : all)
        for (size_t i = 0; i < layouts.size(); i++)
            for (int nth : quick ? std::vector<int>{1, 3} : std::vector<int>{1, 2, 3})
                for (int64_t size : sizes) {
                    if (size > p.n && size != sizes.back()) continue;
                    compared++;
                    if (!same(base, in_passes(p, layouts[i], *isa.kernels, nth, size)))
                        wrong += " [" + isa.name + " layout " + std::to_string(i) + " nth " + std::to_string(nth) + " size " + std::to_string(size) + "]";
                }
    check(wrong.empty(), what + ": " + std::to_string(compared) + " runs the same bits" + wrong);
}

void monotone(const Isa &isa) {  // weights do not fall where a score grows, with and without the cap
    constexpr int tile = ATTENTION_TILE;
    std::vector<float> q(tile, 1), o(tile), keys(tile * tile), v(tile * tile);
    std::vector<size_t> at;
    for (int c = 0; c < tile; c++) at.push_back(c * tile * sizeof(float)), v[c * tile + c] = 1;  // o[c] is the weight of cell c
    float m, l;
    const AttentionRows rows = {q.data(), o.data(), &m, &l, 1};
    AttentionTile t = {};
    t.keys = keys.data(), t.v = reinterpret_cast<const char *>(v.data()), t.v_at = at.data(), t.dk = t.dv = tile;
    bool ok = true;
    for (float cap : {0.f, 30 * 1.442695f}) {
        t.cap = cap;
        float last = 0, score = cap > 0 ? -90.f : -60.f;
        const float end = -score;
        while (score < end) {
            for (int c = 0; c < tile; c++) {
                keys[c] = score;
                score = std::fabs(score) > 0.01f ? score + std::fabs(score) * 1.5e-6f : score + 1e-6f;
            }
            std::fill(o.begin(), o.end(), 0.f), m = l = 0;
            isa.kernels->add[KV_F32](rows, t);
            for (int c = 0; c < tile; c++) ok = ok && o[c] >= last, last = o[c];
        }
    }
    check(ok, "weights grow with scores: " + isa.name);
}

void cells_map() {
    std::mt19937 random(7);
    Cells map;
    std::vector<int32_t> known;
    bool ok = true;
    int64_t n = 0;
    auto grow = [&](int64_t to) {
        while (int64_t(known.size()) < to) known.push_back(int32_t(known.size()));
    };
    for (int round = 0; round < 3000 && ok; round++) {
        const int kind = int(random() % 40);
        const int64_t count = kind < 30 ? 1 + random() % 12 : 1 + random() % 200;
        std::vector<int64_t> cells;
        std::vector<int32_t> positions;
        const int64_t first = random() % 900;
        for (int64_t i = 0; i < count; i++) {
            cells.push_back(kind < 20 ? first + i : int64_t(random() % 1000));
            if (std::count(cells.begin(), cells.end(), cells.back()) > 1) {
                cells.pop_back();
                continue;
            }
            positions.push_back(int32_t(random() % 4 ? cells.back() : random() % 1200));
        }
        if (kind == 39) {
            grow(first + count);
            positions.resize(count, 5);
            map.restored(first, count, positions.data());
            for (int64_t i = 0; i < count; i++) known[first + i] = positions[i];
        } else if (kind == 38) {
            grow(count);
            std::vector<int32_t> deltas(count, -3);
            map.shifted(deltas.data(), count);
            for (int64_t i = 0; i < count; i++) known[i] -= 3;
        } else {
            for (int repeat = 0; repeat < 2; repeat++) map.written(cells.data(), positions.data(), int64_t(cells.size()));
            for (size_t i = 0; i < cells.size(); i++) grow(cells[i] + 1), known[cells[i]] = positions[i];
        }
        if (round % 5 == 0) n = 1 + random() % 1100;
        if (round % 500 > 400) {  // back in order
            std::vector<int64_t> all;
            grow(1100);
            for (int32_t c = 0; c < 1100; c++) all.push_back(c), known[c] = c / 2;
            map.written(all.data(), known.data(), 1100);
        }
        grow(n);
        const CellView view = map.view(n);
        std::vector<int32_t> want(n);
        for (int64_t i = 0; i < n; i++) want[i] = int32_t(i);
        std::sort(want.begin(), want.end(), [&](int32_t a, int32_t b) { return known[a] != known[b] ? known[a] < known[b] : a < b; });
        bool identity = true;
        for (int64_t i = 0; i < n; i++) identity = identity && want[i] == i;
        ok = ok && (view.order == nullptr) == identity && !memcmp(view.positions, known.data(), n * 4);
        ok = ok && (identity || !memcmp(view.order, want.data(), n * 4));
    }
    check(ok, "cells: order after writes, shifts and restores equals a sort");
    check(&cells_of(&map) == &cells_of(&map) && &cells_of(&map) != &cells_of(&known), "cells: one map an address");
}

// Printed to be compared between machines: equal on x86 and aarch64.
void hash() {
    uint64_t h = 1469598103934665603u;
    for (int type = 0; type < KV_TYPES; type++) {
        Problem p = causal(20, 1300);
        p.k_type = p.v_type = KvType(type), p.softcap = type % 2 ? 20.f : 0.f, p.sinks = type > 1;
        p.fill(21, 3);
        for (float x : run(p, in_order(p), *isas()[0].kernels, 1, 0, p.n)) {
            uint32_t u;
            memcpy(&u, &x, 4);
            h = (h ^ u) * 1099511628211u;
        }
    }
    printf("bits: %016llx\n", (unsigned long long)h);
}

void declined() {
    bool ok = true;
    for (auto [dk, dv, type, takes] : {std::tuple{64, 64, KV_F16, true}, {80, 80, KV_Q8_0, false}, {96, 96, KV_Q8_0, true}, {192, 128, KV_BF16, true}, {128, 192, KV_F16, false},
                                       {576, 512, KV_F16, false}, {40, 40, KV_F16, false}, {256, 256, KV_F32, true}}) {
        AttentionTask t = {};
        t.dk = dk, t.dv = dv, t.k_type = t.v_type = type, t.batches = 1, t.n = t.n_kv = t.kv_heads = t.group = t.mask_heads = 1;
        ok = ok && attention_takes(t) == takes;
        t.batches = 2;
        ok = ok && !attention_takes(t);
    }
    check(ok, "head sizes, types and batches that are declined");
}

}  // namespace

int main(int argc, char **argv) {
    quick = argc > 1 && std::string(argv[1]) == "quick";
    std::string names;
    for (const Isa &isa : isas()) names += " " + isa.name;
    printf("instruction sets:%s\n", names.c_str());
    if (names.empty()) return 1;
    hash();
    if (argc > 1 && std::string(argv[1]) == "hash") return 0;
    declined();
    cells_map();
    for (const Isa &isa : isas()) monotone(isa);

    for (auto [dk, dv] : {std::pair<int64_t, int64_t>{64, 64}, {80, 80}, {96, 96}, {128, 128}, {192, 192}, {192, 128}, {256, 256}})
        for (int kt = 0; kt < KV_TYPES; kt++)
            for (int vt = 0; vt < KV_TYPES; vt++) {
                if (dk == 80 && (kt == KV_Q8_0 || vt == KV_Q8_0)) continue;
                if (quick && kt != vt && dk != 64) continue;
                Problem p = causal(21, 170);
                p.dk = dk, p.dv = dv, p.k_type = KvType(kt), p.v_type = KvType(vt);
                p.fill(unsigned(dk + 10 * kt + vt));
                const std::string what = std::to_string(dk) + "/" + std::to_string(dv) + " " + TYPE_NAMES[kt] + "/" + TYPE_NAMES[vt];
                values(p, in_order(p), what);
                bits(p, {in_order(p), scrambled(p, 3)}, what, {1, 4, 21});
            }

    auto both = [&](Problem p, const std::string &what, std::vector<int64_t> sizes = {1, 2, 3, 5, 8, 13, 64, 200}) {
        p.fill(11, 3);
        values(p, in_order(p), what, 2e-5);
        values(p, scrambled(p, 5), what + ", scrambled", 2e-5);
        bits(p, {in_order(p), scrambled(p, 5), scrambled(p, 6, 300)}, what, sizes);
    };
    both(causal(200, 300), "prompt");
    both(window(200, 300, 50), "sliding window");
    if (!quick) {  // more threads than a block fills: their rows cross from head to head
        Problem p = causal(500, 500);
        p.kv_heads = 3, p.group = 1;
        p.fill(11);
        const std::vector<float> one = run(p, in_order(p), *isas()[0].kernels, 1, 0, p.n);
        check(same(one, run(p, in_order(p), *isas()[0].kernels, 9, 0, p.n)) && same(one, run(p, scrambled(p, 5), *isas()[0].kernels, 16, 0, p.n)), "many threads");
    }
    both(tree(4, 3, 200), "tree", {1, 2, 3, 5, 8, 12});
    both(sequences(8, {50, 300, 70, 128, 5, 260, 1, 90}), "sequences", {1, 2, 3, 5, 8});
    both(sequences(12, {100, 220, 64}, 4), "sequences of several queries", {1, 2, 3, 5, 8, 12});
    {
        Problem p = causal(20, 200);
        p.softcap = 20, p.scale = 0.5f;
        both(p, "softcap", {1, 3, 8, 20});
        p.softcap = 0, p.sinks = true;
        both(p, "sinks", {1, 3, 8, 20});
        p = causal(20, 200);
        p.group = 5, p.max_bias = 8;  // 10 heads: both kinds of slopes
        p.bias = [](int64_t t, int64_t e, int64_t) { return e <= 180 + t ? float(e - 180 - t) : -INFINITY; };
        both(p, "ALiBi", {1, 3, 8, 20});
        p.softcap = 15, p.sinks = true;
        both(p, "ALiBi, softcap and sinks", {1, 3, 8, 20});
        p = causal(20, 200);
        p.mask_heads = 2;
        p.bias = [](int64_t t, int64_t e, int64_t h) { return (e + t) % (3 + h) ? 0.25f * float(h) : -INFINITY; };
        both(p, "masks by head", {1, 3, 8, 20});
        p = causal(20, 200);
        p.bias = [](int64_t t, int64_t e, int64_t) { return t % 3 == 1 ? -INFINITY : e <= 180 + t ? 0.f : -INFINITY; };
        both(p, "rows that see nothing", {1, 3, 8, 20});
        p.sinks = true;
        both(p, "rows that see nothing but a sink", {1, 3, 8, 20});
        p = causal(20, 131);
        p.null_mask = true;
        p.fill(11);
        values(p, in_order(p), "no mask");
        bits(p, {in_order(p)}, "no mask", {1, 3, 8, 20});
        p = causal(20, 200);  // scores that grow by hundreds along the cells: M is replaced within tiles
        p.fill(12, 3);
        for (int64_t e = 0; e < 200; e++)
            for (int64_t d = 0; d < p.kv_heads * p.dk; d++) p.k[e * p.kv_heads * p.dk + d] *= float(e % 120) / 4;
        for (int64_t i = 0; i < 200 * p.kv_heads; i++) encode(p.k_type, &p.k[i * p.dk], p.dk, &p.k_bytes[i * bytes_of(p.k_type, p.dk)]);
        values(p, in_order(p), "steep scores", 3e-3);
        bits(p, {in_order(p), scrambled(p, 5)}, "steep scores", {1, 3, 8, 20});
    }
    {  // an infinity that one row sees must stay with that row
        Problem p = causal(20, 200);
        p.fill(13);
        const std::vector<float> clean = run(p, in_order(p), *isas()[0].kernels, 1, 0, 20);
        const uint16_t infinite = 0x7c00;
        for (int64_t i = 0; i < p.kv_heads * p.dv; i++) memcpy(&p.v_bytes[(190 * p.kv_heads * p.dv + i) * 2], &infinite, 2);
        bool ok = true;
        for (const Isa &isa : isas())
            for (int64_t size : {1, 4, 20}) {
                const std::vector<float> got = in_passes(p, in_order(p), *isa.kernels, 2, size);
                const size_t row = p.heads() * p.dv;  // query 10 is the first that sees entry 190
                ok = ok && !memcmp(got.data(), clean.data(), 10 * row * 4);
                for (size_t i = 10 * row; i < got.size(); i++) ok = ok && std::isinf(got[i]);
            }
        check(ok, "an infinite value reaches the rows that see it, and no other");
    }
    {  // chunks: over several, divided among threads, and with n_kv cut behind what a pass sees
        Problem p = causal(6, quick ? 1500 : 4500);
        p.kv_heads = 1;
        p.fill(14);
        values(p, in_order(p), "several chunks");
        run(p, in_order(p), *isas()[0].kernels, 3, 5, 6);
        check(split, "one query over several chunks is divided among threads");
        run(p, in_order(p), *isas()[0].kernels, 1, 5, 6);
        check(!split, "one thread needs no barrier");
        Layout tight = in_order(p), untold = in_order(p);
        tight.n_kv = p.entries(), untold.told = false;
        bits(p, {in_order(p), tight, untold, scrambled(p, 5)}, "several chunks", {1, 2, 6});
        for (int32_t &x : p.position) x += 700;  // the chunks' borders lie elsewhere
        values(p, in_order(p), "chunks that begin elsewhere");
        bits(p, {in_order(p), scrambled(p, 5)}, "chunks that begin elsewhere", {1, 2, 6});
        if (!quick) {
            Problem s = sequences(3, {1400, 3000, 700});
            s.kv_heads = 1;
            s.fill(15);
            values(s, in_order(s), "long sequences");
            bits(s, {in_order(s), scrambled(s, 5)}, "long sequences", {1, 2, 3});
        }
    }
    printf("%d failed\n", failures);
    return failures > 0;
}
