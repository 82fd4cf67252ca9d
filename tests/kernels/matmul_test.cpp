// Tests of localspec/kernels/matmul.cpp and of what isa.cpp compiles for it: values against weights that are read from the
// file's blocks one by one, in double precision, and bits: a token's row must not depend on the pass, threads or instruction set.
//
// Built with -DLOCALSPEC_ISAS="ISA(avx512) ISA(avx2)", one object of isa.cpp for each. Prints a line a check; exits with 1 if
// one fails. "quick" leaves out what is slow under an emulator.
#include "../../localspec/kernels/matmul.h"

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace localspec {
bool cpu_has(const char * name);
#define ISA(name)                                   \
    namespace name {                                \
    extern const InstructionSet instruction_set;    \
    }
LOCALSPEC_ISAS
#undef ISA
}  // namespace localspec

using namespace localspec;
using namespace ggml_abi;

namespace {

int failures = 0;
bool quick = false;
void check(bool ok, const std::string & what) {
    printf("%s %s\n", ok ? "ok    " : "FAILED", what.c_str());
    fflush(stdout);
    failures += !ok;
}

// ---- the types: their blocks in a file, and the CRC-32 of what `bits` computes with them, on every machine

struct TypeInfo {
    Type type;
    const char * name;
    int block, bytes;
    uint32_t crc;
};
const TypeInfo TYPES[] = {
    {F32, "F32", 1, 4, 0x9282bfc0}, {F16, "F16", 1, 2, 0x006705e0}, {BF16, "BF16", 1, 2, 0xb79214d5},
    {Q4_0, "Q4_0", 32, 18, 0xa77518f4}, {Q4_1, "Q4_1", 32, 20, 0xa20537f5}, {Q5_0, "Q5_0", 32, 22, 0x839d06e6},
    {Q5_1, "Q5_1", 32, 24, 0xb8f968cd}, {Q8_0, "Q8_0", 32, 34, 0xb9f50ed1}, {IQ4_NL, "IQ4_NL", 32, 18, 0x8c3923d2},
    {MXFP4, "MXFP4", 32, 17, 0x6cf7b4b3}, {IQ4_XS, "IQ4_XS", 256, 136, 0x36943cc3}, {Q2_K, "Q2_K", 256, 84, 0xdfd67a21},
    {Q3_K, "Q3_K", 256, 110, 0xba959c68}, {Q4_K, "Q4_K", 256, 144, 0x51533d32}, {Q5_K, "Q5_K", 256, 176, 0x6c8b36bf},
    {Q6_K, "Q6_K", 256, 210, 0x2560ec43},
};

uint32_t crc32(const void * data, size_t bytes, uint32_t crc) {
    const uint8_t * p = (const uint8_t *) data;
    crc = ~crc;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= p[i];
        for (int k = 0; k < 8; k++) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
    }
    return ~crc;
}

double half_at(const uint8_t * p) {
    const int bits = p[0] | p[1] << 8, e = bits >> 10 & 31, m = bits & 1023;
    const double x = e ? std::ldexp(m + 1024, e - 25) : std::ldexp(m, -24);
    return bits & 0x8000 ? -x : x;
}
float float_at(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

// Weight `i` of a row of the file: ggml's block_q4_0, block_q2_K, …
double weight(Type type, const uint8_t * row, int i) {
    static const int8_t iq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    static const int8_t mxfp4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};    // doubled
    const TypeInfo & info = *std::find_if(std::begin(TYPES), std::end(TYPES), [&](auto & t) { return t.type == type; });
    const uint8_t * b = row + i / info.block * info.bytes;
    const int j = i % info.block, column = j % 32, part = j / 32;      // of a super-block: part 0 … 7
    // Blocks of 32 have columns 0 … 15 in the low halves of 16 bytes, 16 … 31 in the high ones.
    const auto nibble = [&](const uint8_t * p) { return column < 16 ? p[column] & 15 : p[column - 16] >> 4; };
    // Q4_K, Q5_K: parts 2k and 2k + 1 share 32 bytes.
    const auto shared = [&](const uint8_t * p) { return p[part / 2 * 32 + column] >> part % 2 * 4 & 15; };
    const auto bit = [&](const uint8_t * p, int at) { return p[at / 8] >> at % 8 & 1; };
    switch (type) {
        case F32: return float_at(b[0] | b[1] << 8 | b[2] << 16 | (uint32_t) b[3] << 24);
        case F16: return half_at(b);
        case BF16: return float_at((uint32_t) (b[0] | b[1] << 8) << 16);
        case Q4_0: return half_at(b) * (nibble(b + 2) - 8);
        case Q4_1: return half_at(b) * nibble(b + 4) + half_at(b + 2);
        case Q5_0: return half_at(b) * ((nibble(b + 6) | bit(b + 2, column) << 4) - 16);
        case Q5_1: return half_at(b) * (nibble(b + 8) | bit(b + 4, column) << 4) + half_at(b + 2);
        case Q8_0: return half_at(b) * (int8_t) b[2 + column];
        case IQ4_NL: return half_at(b) * iq4[nibble(b + 2)];
        case MXFP4: return std::ldexp(mxfp4[nibble(b + 1)], b[0] - 128);
        case IQ4_XS: {
            const int scale = (b[4 + part / 2] >> part % 2 * 4 & 15) | ((b[2] | b[3] << 8) >> 2 * part & 3) << 4;
            return half_at(b) * (scale - 32) * iq4[nibble(b + 8 + 16 * part)];
        }
        case Q2_K: {
            const int scales = b[j / 16], q = b[16 + j / 128 * 32 + column] >> part % 4 * 2 & 3;
            return half_at(b + 80) * (scales & 15) * q - half_at(b + 82) * (scales >> 4);
        }
        case Q3_K: {
            const uint8_t * scales = b + 96;
            const int s = j / 16, low = s < 8 ? scales[s] & 15 : scales[s - 8] >> 4, high = scales[8 + s % 4] >> s / 4 * 2 & 3;
            const int q = b[32 + j / 128 * 32 + column] >> part % 4 * 2 & 3, set = b[column] >> part & 1;
            return half_at(b + 108) * ((low | high << 4) - 32) * (q - (set ? 0 : 4));
        }
        case Q4_K:
        case Q5_K: {
            const uint8_t * s = b + 4;
            const int scale = part < 4 ? s[part] & 63 : (s[part + 4] & 15) | s[part - 4] >> 6 << 4;
            const int minimum = part < 4 ? s[part + 4] & 63 : s[part + 4] >> 4 | s[part] >> 6 << 4;
            const int q = type == Q4_K ? shared(b + 16) : shared(b + 48) | (b[16 + column] >> part & 1) << 4;
            return half_at(b) * scale * q - half_at(b + 2) * minimum;
        }
        case Q6_K: {
            const int n = j / 128, quarter = part % 4, low = b[64 * n + quarter % 2 * 32 + column] >> quarter / 2 * 4 & 15;
            const int high = b[128 + 32 * n + column] >> 2 * quarter & 3;
            return half_at(b + 208) * (int8_t) b[192 + j / 16] * ((low | high << 4) - 32);
        }
        default: return NAN;
    }
}

// ---- random data, the same on every machine

using Random = std::mt19937;

// Numbers of moderate size, both signs: as f16, bf16 (the upper half of the float) or float.
uint16_t moderate_half(Random & r) { return (uint16_t) ((r() & 1) << 15 | (r() % 5 + 8) << 10 | (r() & 1023)); }
uint32_t moderate_float(Random & r) { return (uint32_t) (r() & 1) << 31 | (uint32_t) (r() % 6 + 121) << 23 | (r() & 0x7fffff); }

float normal(Random & r) {      // nearly
    float sum = 0;
    for (int i = 0; i < 4; i++) sum += float(r() >> 8) / 16777216.f - 0.5f;
    return sum * 1.732f;
}

// Rows of weights in the file's format. Any bits are legal but those of the scales, which stay moderate.
std::vector<uint8_t> random_weights(const TypeInfo & t, int64_t columns, int64_t rows, Random & r) {
    const int64_t blocks = columns / t.block * rows;
    std::vector<uint8_t> all(blocks * t.bytes);
    for (uint8_t & x : all) x = (uint8_t) r();
    for (int64_t i = 0; i < blocks; i++) {
        uint8_t * b = all.data() + i * t.bytes;
        const auto half = [&](int at) {
            const uint16_t h = moderate_half(r);
            memcpy(b + at, &h, 2);
        };
        const uint32_t x = moderate_float(r);
        const int64_t row = i / (columns / t.block);
        switch (t.type) {
            case F32: memcpy(b, &x, 4); break;
            case BF16: memcpy(b, (const char *) &x + 2, 2); break;
            case MXFP4: b[0] = (uint8_t) (row % 8 == 3 ? r() % 2 : 120 + r() % 6); break;    // some subnormal
            case Q2_K: half(80), half(82); break;
            case Q3_K: half(108); break;
            case Q6_K: half(208); break;
            case Q4_1: case Q5_1: case Q4_K: case Q5_K: half(0), half(2); break;
            default: half(0);
        }
    }
    return all;
}

// Rows of activations: of different sizes, one of zeros, and a block that is too small to be more.
std::vector<float> random_activations(int64_t columns, int64_t n, Random & r) {
    std::vector<float> x(columns * n);
    for (int64_t t = 0; t < n; t++) {
        const float size = std::ldexp(1.f, int(r() % 7));
        for (int64_t i = 0; i < columns; i++) {
            const float y = normal(r) * size;
            x[t * columns + i] = t == 5 ? 0 : t == 6 && i < 32 ? y * 1e-38f : y;
        }
    }
    return x;
}

// ---- operations

struct Barrier {
    int threads, waiting = 0, passed = 0;
    std::mutex mutex;
    std::condition_variable all_here;
    static void wait(Threadpool * p) {
        Barrier & b = *(Barrier *) p;
        std::unique_lock<std::mutex> lock(b.mutex);
        const int turn = b.passed;
        if (++b.waiting == b.threads) {
            b.waiting = 0, b.passed++;
            b.all_here.notify_all();
        } else {
            b.all_here.wait(lock, [&] { return b.passed != turn; });
        }
    }
};

Tensor tensor(Type type, std::vector<int64_t> ne, std::vector<size_t> nb, void * data) {
    Tensor t = {};
    t.type = type, t.data = data;
    for (int i = 0; i < 4; i++) {
        t.ne[i] = i < (int) ne.size() ? ne[i] : 1;
        t.nb[i] = i < (int) nb.size() ? nb[i] : t.nb[i - 1] * t.ne[i - 1];
    }
    return t;
}

// Weights of one type, repacked for one instruction set.
struct Weights {
    const InstructionSet & isa;
    Matmul matmul;
    Tensor tensor;
    std::vector<uint8_t> tiles;

    Weights(const TypeInfo & t, const InstructionSet & set, int64_t columns, int64_t rows, int64_t experts,
            const std::vector<uint8_t> & file, int parts = 3)
        : isa(set), matmul(t.type, set, Barrier::wait) {
        const size_t row = columns / t.block * t.bytes;
        tensor = ::tensor(t.type, {columns, rows, experts}, {size_t(t.bytes), row}, nullptr);
        tiles.resize(matmul.repacked_bytes(&tensor));
        tensor.data = tiles.data();
        for (int i = 0; i < parts; i++) matmul.repack(&tensor, file.data(), i, parts);
    }
    Weights(const Weights &) = delete;

    void run(Tensor & op, int threads) {
        size_t bytes = 0;
        if (!Matmul::takes(&op, isa) || !matmul.work_size(threads, &op, bytes)) return check(false, "an operation is taken");
        std::vector<char> scratch(bytes, char(0xff));   // NaN: what is read must have been written
        Barrier barrier;
        barrier.threads = threads;
        const auto compute = [&](int i) {
            ComputeParams params = {i, threads, bytes, scratch.data(), (Threadpool *) &barrier, false};
            matmul.compute_forward(&params, &op);
        };
        std::vector<std::thread> others;
        for (int i = 1; i < threads; i++) others.emplace_back(compute, i);
        compute(0);
        for (std::thread & t : others) t.join();
    }

    // The first n of the rows of x, `stride` floats apart.
    std::vector<float> times(const float * x, int64_t n, int threads, int64_t stride = 0) {
        const int64_t columns = tensor.ne[0], rows = tensor.ne[1];
        std::vector<float> out(rows * n, NAN);
        Tensor in = ::tensor(F32, {columns, n}, {4, size_t(stride ? stride : columns) * 4}, (void *) x);
        Tensor op = ::tensor(F32, {rows, n}, {4}, out.data());
        op.op = MUL_MAT, op.src[0] = &tensor, op.src[1] = &in;
        run(op, threads);
        return out;
    }
};

struct Isa {
    std::string name;
    const InstructionSet * set;
};
std::vector<Isa> isas() {
    std::vector<Isa> all = {
#define ISA(name) {#name, &localspec::name::instruction_set},
        LOCALSPEC_ISAS
#undef ISA
    };
    for (Isa & isa : all) std::replace(isa.name.begin(), isa.name.end(), '_', '-');
    all.erase(std::remove_if(all.begin(), all.end(), [](const Isa & isa) { return !cpu_has(isa.name.c_str()); }), all.end());
    return all;
}

bool same(const float * a, const float * b, size_t n) { return !memcmp(a, b, n * sizeof(float)); }

// ---- checks

// What quantize_row must give: round to nearest even, sums of 16.
void quantize(const float * x, int8_t * q, Activation & a) {
    float most = 0;
    for (int i = 0; i < BLOCK; i++) most = std::max(most, std::fabs(x[i]));
    const float inverse = most > 1e-35f ? 127.0f / most : 0.0f;
    a.scale = most / 127.0f;
    a.sum[0] = a.sum[1] = 0;
    for (int i = 0; i < BLOCK; i++) {
        q[i] = (int8_t) std::nearbyint(x[i] * inverse);
        a.sum[i / 16] += q[i];
    }
    a.total = a.sum[0] + a.sum[1];
    a.scaled_sum = a.scale * float(a.total);
}

void quantization(const Isa & isa) {
    constexpr int BLOCKS = 60, GROUP = 3;
    Random r(1);
    std::vector<float> x = random_activations(BLOCKS * BLOCK / 12, 12, r);
    for (int i = 0; i < BLOCK; i++) {
        x[i] = float(i % 2 ? -i : i) + 0.5f;            // ties
        x[BLOCK + i] = 0;
        x[2 * BLOCK + i] = 1e-36f * float(i);           // below the smallest that counts
        x[3 * BLOCK + i] = i == 31 ? -3e38f : 1e37f;
        x[4 * BLOCK + i] = i == 15 ? 1.1e-35f : -3e-36f;
    }
    x[0] = 127;                                         // so the ties stay what they are
    std::vector<int8_t> q(BLOCKS * GROUP * BLOCK, 99);
    std::vector<Activation> a(BLOCKS * GROUP, Activation{7, 7, 7, {7, 7}});
    isa.set->quantize_row(x.data(), BLOCKS, q.data() + BLOCK, GROUP * BLOCK, a.data() + 1, GROUP);
    bool ok = true, others = true;
    for (int i = 0; i < BLOCKS * GROUP; i++) {
        int8_t want[BLOCK];
        Activation activation{7, 7, 7, {7, 7}};
        std::fill(want, want + BLOCK, int8_t(99));
        if (i % GROUP == 1) quantize(x.data() + i / GROUP * BLOCK, want, activation);
        (i % GROUP == 1 ? ok : others) &= !memcmp(want, q.data() + i * BLOCK, BLOCK) && !memcmp(&activation, &a[i], sizeof(Activation));
    }
    check(ok, isa.name + " quantizes as the reference");
    check(others, isa.name + " leaves the group's other tokens alone");
}

// Products against the file's weights in double precision: with the activations as they are, to what their quantization costs,
// and with quantized activations, to what single precision costs. Errors are in units of |w|·|x|/√columns, a product's RMS.
void values(const TypeInfo & t, const std::vector<Isa> & all, int64_t columns, int64_t rows) {
    constexpr int64_t N = 24;
    Random r(unsigned(100 * t.type + columns + rows));
    const std::vector<uint8_t> file = random_weights(t, columns, rows, r);
    const std::vector<float> x = random_activations(columns, N, r);
    std::vector<double> w(rows * columns), quantized(x.begin(), x.end());
    for (int64_t i = 0; i < rows * columns; i++)
        w[i] = weight(t.type, file.data() + i / columns * (columns / t.block * t.bytes), int(i % columns));
    if (!is_float(t.type))
        for (size_t i = 0; i < x.size(); i += BLOCK) {
            int8_t q[BLOCK];
            Activation a;
            quantize(x.data() + i, q, a);
            for (int j = 0; j < BLOCK; j++) quantized[i + j] = (double) a.scale * q[j];
        }
    std::vector<double> want(rows * N), close(rows * N), unit(rows * N);
    for (int64_t u = 0; u < N; u++)
        for (int64_t i = 0; i < rows; i++) {
            double ww = 0, xx = 0, wx = 0, wq = 0;
            for (int64_t k = 0; k < columns; k++) {
                const double a = w[i * columns + k], b = x[u * columns + k];
                ww += a * a, xx += b * b, wx += a * b, wq += a * quantized[u * columns + k];
            }
            want[u * rows + i] = wx, close[u * rows + i] = wq, unit[u * rows + i] = std::sqrt(ww) * std::sqrt(xx / double(columns));
        }
    // A subnormal scale (MXFP4) is coarse: half of 2^-149 for every block, times its sum.
    const double coarse = t.type == MXFP4 ? columns * 12 * 127 * std::ldexp(1, -150) : 0;
    for (const Isa & isa : all) {
        Weights weights(t, *isa.set, columns, rows, 1, file);
        const std::vector<float> got = weights.times(x.data(), N, 2);
        double noise = 0, worst = 0;
        bool zeros = true;
        for (int64_t i = 0; i < rows * N; i++) {
            const double e = std::fabs(got[i] - close[i]) - coarse, f = got[i] - want[i];
            if (unit[i] == 0) zeros &= got[i] == 0;
            else worst = e / unit[i] <= worst ? worst : std::isnan(e) ? INFINITY : e / unit[i], noise += f * f / (unit[i] * unit[i]);
        }
        noise = std::sqrt(noise / double(rows * N));
        char text[200];
        snprintf(text, sizeof text, "%s %s %dx%d: noise %.4f, rounding %.1e", isa.name.c_str(), t.name, int(rows), int(columns), noise, worst);
        check(zeros && worst < 5e-6 && noise < (is_float(t.type) ? 1e-6 : 0.006), text);
    }
}

// Every size of a pass, every number of threads, every instruction set and the tiles' repacking in any parts: the same bits.
uint32_t bits(const TypeInfo & t, const std::vector<Isa> & all, int64_t columns, int64_t rows, uint32_t crc) {
    constexpr int64_t N = 100;
    Random r(unsigned(100 * t.type + columns + rows));
    const std::vector<uint8_t> file = random_weights(t, columns, rows, r);
    const std::vector<float> x = random_activations(columns, N, r);
    std::vector<float> want;
    for (const Isa & isa : all) {
        const std::string what = isa.name + " " + t.name + " " + std::to_string(rows) + "x" + std::to_string(columns);
        Weights weights(t, *isa.set, columns, rows, 1, file);
        check(weights.tiles == Weights(t, *isa.set, columns, rows, 1, file, 1).tiles, what + ": repacked in parts");
        if (want.empty()) want = weights.times(x.data(), N, 1);
        bool ok = true;
        for (int threads = 1; threads <= 3; threads++)
            for (int n = 1; n <= 17; n++) {
                if (quick && threads > 1 && n % 5 != threads) continue;
                const int64_t size = n == 17 ? N : n;
                ok &= same(weights.times(x.data(), size, threads).data(), want.data(), size * rows);
            }
        // A token deep in a pass alone, and a pass whose rows have gaps, in three dimensions.
        ok &= same(weights.times(x.data() + 77 * columns, 1, 3).data(), want.data() + 77 * rows, rows);
        std::vector<float> out(12 * rows, NAN), gaps(12 * (columns + 8), NAN);
        for (int u = 0; u < 12; u++) std::copy_n(x.data() + u * columns, columns, gaps.data() + u * (columns + 8));
        Tensor in = tensor(F32, {columns, 2, 3, 2}, {4, size_t(columns + 8) * 4}, gaps.data());
        Tensor op = tensor(F32, {rows, 2, 3, 2}, {4}, out.data());
        op.op = MUL_MAT, op.src[0] = &weights.tensor, op.src[1] = &in;
        weights.run(op, 2);
        ok &= same(out.data(), want.data(), 12 * rows);
        check(ok, what + ": the same bits in every pass");
    }
    return crc32(want.data(), want.size() * sizeof(float), crc);
}

// Some tiles alone, the incomplete last one among them, or none: the same bits there, and LOWEST elsewhere.
void chosen(const TypeInfo & t, const Isa & isa, int64_t columns, int64_t rows) {
    constexpr int64_t N = 13;
    Random r(unsigned(100 * t.type + columns + rows));
    Weights weights(t, *isa.set, columns, rows, 1, random_weights(t, columns, rows, r));
    const std::vector<float> x = random_activations(columns, N, r);
    const std::vector<float> all = weights.times(x.data(), N, 1);
    bool ok = true;
    for (const std::vector<int32_t> & tiles : {std::vector<int32_t>{1, 2, 5}, {0, 3}, {4}, {}})
        for (int threads = 1; threads <= 4; threads++)
            for (int64_t n : {int64_t(1), int64_t(3), N}) {
                std::vector<float> want(all.begin(), all.begin() + n * rows);
                for (int64_t i = 0; i < n * rows; i++)
                    if (!std::count(tiles.begin(), tiles.end(), i % rows / ROWS)) want[i] = LOWEST;
                const int32_t none = 0;
                choose_rows({tiles.empty() ? &none : tiles.data(), (int64_t) tiles.size(), rows});
                ok &= same(weights.times(x.data(), n, threads).data(), want.data(), n * rows);
            }
    choose_rows({nullptr, 0, 0});
    ok &= same(weights.times(x.data(), N, 2).data(), all.data(), N * rows);
    check(ok, isa.name + " " + t.name + ": chosen rows");
}

// Two of four experts for each token: the rows of the product with the expert's matrix; those of experts that there are none of
// stay as they were.
void experts(const TypeInfo & t, const Isa & isa, int64_t columns, int64_t rows) {
    constexpr int64_t EXPERTS = 4, SLOTS = 2;
    Random r(unsigned(t.type + columns));
    const std::vector<uint8_t> file = random_weights(t, columns, rows * EXPERTS, r);
    const size_t matrix = file.size() / EXPERTS;
    Weights all(t, *isa.set, columns, rows, EXPERTS, file);
    bool ok = true, untouched = true;
    for (int64_t tokens : {1, 2, 5, 40})
        for (int64_t inputs : {int64_t(1), SLOTS}) {    // a row of activations for a token, or for each slot
            const std::vector<float> x = random_activations(columns, tokens * inputs, r);
            std::vector<int32_t> ids(tokens * EXPERTS, 2);      // as ggml has it: the first columns of a wider matrix
            for (int64_t i = 0; i < tokens; i++) {
                ids[i * EXPERTS] = int32_t(r() % EXPERTS), ids[i * EXPERTS + 1] = int32_t((ids[i * EXPERTS] + 1 + r() % 3) % EXPERTS);
                if (i % 7 == 3) ids[i * EXPERTS + 1] = i % 2 ? -1 : int32_t(EXPERTS);
            }
            std::vector<float> products[EXPERTS];
            for (int e = 0; e < EXPERTS; e++)
                products[e] = Weights(t, *isa.set, columns, rows, 1, {file.begin() + e * matrix, file.begin() + (e + 1) * matrix})
                                  .times(x.data(), tokens * inputs, 1);
            for (int threads = 1; threads <= 3; threads++) {
                std::vector<float> out(rows * SLOTS * tokens, 12345);
                Tensor in = tensor(F32, {columns, inputs, tokens}, {4}, (void *) x.data());
                Tensor chosen = tensor(I32, {SLOTS, tokens}, {4, EXPERTS * 4}, ids.data());
                Tensor op = tensor(F32, {rows, SLOTS, tokens}, {4}, out.data());
                op.op = MUL_MAT_ID, op.src[0] = &all.tensor, op.src[1] = &in, op.src[2] = &chosen;
                all.run(op, threads);
                for (int64_t i = 0; i < tokens * SLOTS; i++) {
                    const int32_t e = ids[i / SLOTS * EXPERTS + i % SLOTS];
                    const int64_t row = i / SLOTS * inputs + i % SLOTS % inputs;
                    const float * got = out.data() + i * rows;
                    if (e >= 0 && e < EXPERTS) ok &= same(got, products[e].data() + row * rows, rows);
                    else untouched &= std::all_of(got, got + rows, [](float y) { return y == 12345; });
                }
            }
        }
    check(ok, isa.name + " " + t.name + ": experts");
    check(untouched, isa.name + " " + t.name + ": experts that there are none of");
}

void declined(const Isa & isa) {
    Tensor w = tensor(Q4_K, {512, 16}, {144, 288}, nullptr), x = tensor(F32, {512, 4}, {4}, nullptr);
    Tensor op = tensor(F32, {16, 4}, {4}, nullptr);
    op.op = MUL_MAT, op.src[0] = &w, op.src[1] = &x;
    const auto takes = [&](auto change) {
        const Tensor saved[] = {w, x, op};
        change();
        const bool answer = Matmul::takes(&op, *isa.set);
        w = saved[0], x = saved[1], op = saved[2];
        return answer;
    };
    bool ok = takes([] {}) && takes([&] { w.type = Q8_0, w.ne[0] = 288; });
    ok &= !takes([&] { w.ne[0] = 288; }) && !takes([&] { w.type = I32; }) && !takes([&] { w.view_src = &x; });
    ok &= !takes([&] { w.ne[2] = 2; }) && takes([&] { w.ne[2] = 2, op.op = MUL_MAT_ID; }) && !takes([&] { w.ne[3] = 2; });
    ok &= !takes([&] { x.type = F16; }) && !takes([&] { x.nb[0] = 8; }) && !takes([&] { op.op = CPY; });
    check(ok, isa.name + " declines what it cannot compute");
}

}  // namespace

int main(int argc, char ** argv) {
    quick = argc > 1 && std::string(argv[1]) == "quick";
    const std::vector<Isa> all = isas();
    std::string names;
    for (const Isa & isa : all) names += " " + isa.name;
    printf("instruction sets:%s\n", names.c_str());
    if (names.empty()) return 1;
    for (const Isa & isa : all) {
        quantization(isa);
        declined(isa);
    }
    for (const TypeInfo & t : TYPES) {
        uint32_t crc = 0;
        for (int64_t columns : {is_float(t.type) ? 77 : 512, 768})
            for (int64_t rows : {16, 85}) {
                values(t, all, columns, rows);
                crc = bits(t, all, columns, rows, crc);
            }
        char text[80];
        snprintf(text, sizeof text, "%s: CRC %08x", t.name, unsigned(crc));
        check(crc == t.crc, text);
        for (const Isa & isa : all) {
            experts(t, isa, 512, 85);
            chosen(t, isa, 512, 85);
        }
    }
    printf("%d failed\n", failures);
    return failures > 0;
}
