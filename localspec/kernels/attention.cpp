// The driver of attention: which thread computes which rows over which cells, in tiles and chunks. Generic code: the hot loops
// are in the kernels of an instruction set.
#include "attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace localspec {
namespace {

constexpr int TILE = ATTENTION_TILE;
constexpr int BLOCK = 384;            // most rows that share a converted tile of K and V
constexpr int MAX_SEGMENTS = 32;      // heads that share a walk over the cells
constexpr int ROWS = 48;              // most rows that a kernel processes at once
constexpr int MAX_SUBS = MAX_SEGMENTS + BLOCK / ROWS;
constexpr int GROUPED = 64;           // up to this many queries are grouped by the cells they see
constexpr int DIRECT = 48;            // up to this many rows read V as stored, more from a converted tile
constexpr int64_t READING = 8;        // reading a cell costs about as much as the arithmetic of this many rows
constexpr size_t MOST_PARTIAL_BYTES = 8 << 20;
constexpr float LOG2E = 1.44269504f;

size_t row_bytes(KvType type, int64_t d) {
    return type == KV_F32 ? 4 * d : type == KV_Q8_0 ? d / 32 * 34 : 2 * d;
}

bool head_size_taken(int64_t d) { return d == 64 || d == 80 || d == 96 || d == 128 || d == 192 || d == 256; }

// Hands out a thread's scratch in pieces aligned to 64 bytes; with a null base it only counts the bytes.
struct Arena {
    char *base;
    size_t used = 0;
    template <class T> T *take(size_t count) {
        T *p = base ? reinterpret_cast<T *>(base + used) : nullptr;
        used += (count * sizeof(T) + 63) & ~size_t(63);
        return p;
    }
};

struct Buffers {  // of one thread
    float *q, *o, *total_o, *m, *l, *total_m, *total_l, *keys, *values, *bias;
    uint16_t *gathered;  // [lines][TILE] mask values of a tile
    int32_t *cells;      // [n_kv] a list of cells to walk
    uint64_t *seen, *united;
    int64_t words;

    Buffers(const AttentionTask &t, Arena &arena) {
        const size_t rows = std::min<int64_t>(BLOCK, t.n * t.group * t.kv_heads);
        words = (t.n_kv + 63) / 64;
        q = arena.take<float>(rows * t.dk);
        o = arena.take<float>(rows * t.dv);
        total_o = arena.take<float>(rows * t.dv);
        m = arena.take<float>(rows);
        l = arena.take<float>(rows);
        total_m = arena.take<float>(rows);
        total_l = arena.take<float>(rows);
        keys = arena.take<float>(TILE * t.dk);
        values = arena.take<float>(TILE * t.dv);
        bias = arena.take<float>(TILE * ROWS);
        gathered = arena.take<uint16_t>(rows * TILE);
        cells = arena.take<int32_t>(t.n_kv);
        seen = arena.take<uint64_t>(words);
        united = arena.take<uint64_t>(words);
    }
};

size_t thread_bytes(const AttentionTask &task) {
    Arena arena{nullptr};
    Buffers buffers(task, arena);
    return arena.used;
}

// Bytes for the sums of chunks, if threads share rows.
size_t partial_bytes(const AttentionTask &task, int nth) {
    if (nth == 1 || task.n > GROUPED) return 0;
    const size_t chunks = task.n_kv / ATTENTION_CHUNK + 8;
    return std::min(MOST_PARTIAL_BYTES, task.n * task.kv_heads * task.group * chunks * (task.dv + 2) * sizeof(float));
}

struct Walk {  // cells in order of position
    const int32_t *cells;  // null: first, first + 1, ...
    int64_t first, count;
    int64_t cell(int64_t i) const { return cells ? cells[i] : first + i; }
};

struct Group {  // consecutive queries that see mostly the same cells
    int64_t t0, t1, cells, chunks;
};

struct Segment {  // rows w0 ... w1 of a KV head, counted as w = token * group + head within the group
    int64_t head, w0, w1;
    float *partial;  // where a chunk's sums go, [row][dv + 2]; null: results go to the output
};

struct Sub {  // rows of a segment that a kernel processes at once
    AttentionRows rows;
    float *total_o, *total_m, *total_l;
    int64_t w0;
    bool touched;
};

struct Pass {
    const AttentionKernels &kernels;
    const AttentionTask &task;
    Buffers buffers;
    int ith, nth;

    int64_t position(int64_t cell) const { return task.positions ? task.positions[cell] : cell; }

    int64_t chunk_end(const Walk &walk, int64_t i) const {
        auto chunk = [&](int64_t j) { return position(walk.cell(j)) >> 10; };
        static_assert(ATTENTION_CHUNK == 1 << 10, "the shift above");
        const int64_t mine = chunk(i);
        int64_t low = i, high = std::min(walk.count, i + ATTENTION_CHUNK);  // low is in the chunk
        while (high < walk.count && chunk(high) == mine) low = high, high = std::min(walk.count, high + ATTENTION_CHUNK);
        while (high - low > 1) {
            int64_t middle = (low + high) / 2;
            (chunk(middle) == mine ? low : high) = middle;
        }
        return high;
    }

    // A line of the mask: a token's, or a row's if heads have separate masks.
    int64_t line(int64_t w) const { return task.mask_heads == 1 ? w / task.group : w; }
    const uint16_t *mask_line(int64_t head, int64_t line) const {
        const int64_t token = task.mask_heads == 1 ? line : line / task.group;
        const int64_t mask_head = task.mask_heads == 1 ? 0 : (head * task.group + line % task.group) % task.mask_heads;
        return reinterpret_cast<const uint16_t *>(task.mask + token * task.mask_token + mask_head * task.mask_head);
    }

    void see(int64_t token, uint64_t *bits) const {  // bits |= the cells that the token sees
        const uint16_t *mask = mask_line(0, token);
        const int64_t whole = task.n_kv / 64;
        kernels.visible(mask, whole, bits);
        for (int64_t c = whole * 64; c < task.n_kv; c++) bits[whole] |= uint64_t(mask[c] != 0xfc00) << (c % 64);
    }

    int64_t count(const uint64_t *bits) const {
        int64_t n = 0;
        for (int64_t w = 0; w < buffers.words; w++) n += __builtin_popcountll(bits[w]);
        return n;
    }

    int groups(Group *out) const {
        const bool whole = !task.mask || task.mask_heads > 1 || task.n > GROUPED;
        out[0] = {0, task.n, task.n_kv, 0};
        if (whole) return 1;
        uint64_t *seen = buffers.seen, *united = buffers.united;
        const size_t bytes = buffers.words * sizeof(uint64_t);
        int n = 0;
        for (int64_t t = 0; t < task.n; t++) {
            memset(seen, 0, bytes);
            see(t, seen);
            int64_t common = 0, all = 0;
            if (t)
                for (int64_t w = 0; w < buffers.words; w++) {
                    common += __builtin_popcountll(seen[w] & united[w]);
                    all += __builtin_popcountll(seen[w] | united[w]);
                }
            if (t && 2 * common >= all) {
                for (int64_t w = 0; w < buffers.words; w++) united[w] |= seen[w];
                out[n - 1].t1 = t + 1;
                out[n - 1].cells = all;
            } else {
                memcpy(united, seen, bytes);
                out[n++] = {t, t + 1, count(seen), 0};
            }
        }
        return n;
    }

    // The cells that the queries t0 ... t1 have to walk.
    Walk walk(int64_t t0, int64_t t1) const {
        if (!task.mask || task.mask_heads > 1 || (!task.order && task.n > GROUPED)) return {task.order, 0, task.n_kv};
        uint64_t *bits = buffers.united;
        memset(bits, 0, buffers.words * sizeof(uint64_t));
        for (int64_t t = t0; t < t1; t++) see(t, bits);
        int64_t low = 0, high = buffers.words - 1, n = 0;
        while (low <= high && !bits[low]) low++;
        if (low > high) return {nullptr, 0, 0};
        while (!bits[high]) high--;
        const int64_t first = low * 64 + __builtin_ctzll(bits[low]), end = high * 64 + 64 - __builtin_clzll(bits[high]);
        if (task.order) {
            for (int64_t i = 0; i < task.n_kv; i++) {
                const int32_t c = task.order[i];
                if (bits[c >> 6] >> (c & 63) & 1) buffers.cells[n++] = c;
            }
            return {buffers.cells, 0, n};
        }
        if (count(bits) * 4 >= (end - first) * 3) return {nullptr, first, end - first};
        for (int64_t w = low; w <= high; w++)
            for (uint64_t word = bits[w]; word; word &= word - 1) buffers.cells[n++] = int32_t(w * 64 + __builtin_ctzll(word));
        return {buffers.cells, 0, n};
    }

    float slope(int64_t head) const {  // ALiBi
        if (task.max_bias <= 0) return 1;
        const int64_t heads = task.kv_heads * task.group;
        int64_t power = 1;
        while (power * 2 <= heads) power *= 2;
        const float m0 = powf(2.f, -task.max_bias / power), m1 = powf(2.f, -task.max_bias / 2 / power);
        return head < power ? powf(m0, float(head + 1)) : powf(m1, float(2 * (head - power) + 1));
    }

    void start(Sub &sub, int64_t head) const {
        const float factor = task.softcap != 0 ? task.scale / task.softcap * 2 * LOG2E : task.scale * LOG2E;
        const int rows = sub.rows.rows;
        for (int r = 0; r < rows; r++) {
            const int64_t w = sub.w0 + r;
            const float *q = reinterpret_cast<const float *>(task.q + w / task.group * task.q_token + (head * task.group + w % task.group) * task.q_head);
            for (int64_t d = 0; d < task.dk; d++) sub.rows.q[d * rows + r] = q[d] * factor;
        }
        memset(sub.total_o, 0, rows * task.dv * sizeof(float));
        for (int r = 0; r < rows; r++) sub.total_m[r] = ATTENTION_LOWEST, sub.total_l[r] = 0;
        sub.touched = true;
    }

    void clear(Sub &sub) const {
        memset(sub.rows.o, 0, sub.rows.rows * task.dv * sizeof(float));
        for (int r = 0; r < sub.rows.rows; r++) sub.rows.m[r] = ATTENTION_LOWEST, sub.rows.l[r] = 0;
        sub.touched = false;
    }

    struct Lines {  // of the mask, over the current tile
        int64_t first;
        int count;
        const uint16_t *mask[BLOCK];
        AttentionSeen seen[BLOCK];
    };

    // Fills in the tile of `cells` cells from i on; returns whether any line sees one of them.
    bool look(Lines &lines, const Walk &walk, int64_t head, int64_t i, int cells) const {
        bool any = !task.mask;
        for (int j = 0; j < lines.count; j++) {
            const uint16_t *mask = mask_line(head, lines.first + j);
            lines.mask[j] = mask + walk.first + i;
            if (walk.cells || cells < TILE) {
                uint16_t *gathered = buffers.gathered + j * TILE;
                for (int c = 0; c < cells; c++) gathered[c] = mask[walk.cell(i + c)];
                std::fill(gathered + cells, gathered + TILE, uint16_t(0xfc00));
                lines.mask[j] = gathered;
            }
            lines.seen[j] = kernels.seen(lines.mask[j]);
            any = any || lines.seen[j] != SEEN_NONE;
        }
        return any;
    }

    // The bias of a tile's cells for the rows of a sub-block, in the layout that the kernel expects.
    void fill_bias(const Sub &sub, int64_t head, const Lines &lines, int cells) const {
        alignas(64) float values[TILE];
        int64_t last = -1;
        for (int r = 0; r < sub.rows.rows; r++) {
            const int64_t w = sub.w0 + r, i = task.mask ? line(w) - lines.first : 0;
            if (!task.mask || lines.seen[i] == SEEN_ALL) {
                std::fill(values, values + TILE, 0.f);
                last = -1;
            } else if (i != last || task.max_bias > 0) {
                kernels.bias(lines.mask[i], slope(head * task.group + w % task.group) * LOG2E, values);
                last = i;
            }
            std::fill(values + cells, values + TILE, -INFINITY);
            memcpy(buffers.bias + r * TILE, values, sizeof values);
        }
    }

    // Rows of one or several heads (at most BLOCK together) over the cells i0 ... i1 of the walk, which are whole chunks; for
    // segments with partial sums, one chunk. Heads take turns at each tile: a cell's heads are adjacent in memory.
    void block(const Walk &walk, const Segment *segments, int n_segments, int64_t i0, int64_t i1) const {
        Sub subs[MAX_SUBS];
        int first_sub[MAX_SEGMENTS + 1] = {0};
        bool convert[MAX_SEGMENTS];  // whether V is converted to a tile, because more rows read it
        size_t at = 0;
        int n_subs = 0;
        Lines lines;
        int64_t end_line = 0;
        lines.first = INT64_MAX;
        for (int g = 0; g < n_segments; g++) {
            const Segment &segment = segments[g];
            convert[g] = segment.w1 - segment.w0 > DIRECT;
            lines.first = std::min(lines.first, line(segment.w0));
            end_line = std::max(end_line, line(segment.w1 - 1) + 1);
            for (int64_t w = segment.w0; w < segment.w1; n_subs++) {
                Sub &s = subs[n_subs];
                s.rows.rows = int(std::min<int64_t>(ROWS, segment.w1 - w));
                s.w0 = w;
                s.rows.q = buffers.q + at * task.dk;
                s.rows.o = buffers.o + at * task.dv;
                s.total_o = buffers.total_o + at * task.dv;
                s.rows.m = buffers.m + at, s.rows.l = buffers.l + at;
                s.total_m = buffers.total_m + at, s.total_l = buffers.total_l + at;
                w += s.rows.rows, at += s.rows.rows;
                start(s, segment.head);
            }
            first_sub[g + 1] = n_subs;
        }
        lines.count = task.mask ? int(end_line - lines.first) : 0;
        size_t k_at[2 * TILE], v_at[2 * TILE];  // offsets of this tile's cells and the next one's
        size_t converted_at[TILE];
        for (int c = 0; c < TILE; c++) converted_at[c] = c * task.dv * sizeof(float);
        AttentionTile tile;
        tile.keys = buffers.keys, tile.mask = nullptr, tile.dk = int(task.dk), tile.dv = int(task.dv);
        tile.next_k_bytes = int(row_bytes(task.k_type, task.dk)), tile.next_v_bytes = int(row_bytes(task.v_type, task.dv));
        tile.cap = task.softcap * LOG2E;

        for (int64_t i = i0; i < i1;) {
            const int64_t end = chunk_end(walk, i);
            for (int s = 0; s < n_subs; s++)
                if (subs[s].touched) clear(subs[s]);
            for (; i < end; i += TILE) {
                const int cells = int(std::min<int64_t>(TILE, end - i));
                if (!look(lines, walk, segments[0].head, i, cells)) continue;
                for (int c = 0; c < 2 * TILE; c++) {
                    const int64_t cell = walk.cell(c < TILE ? i + std::min(c, cells - 1) : std::min(i + c, walk.count - 1));
                    k_at[c] = cell * task.k_cell, v_at[c] = cell * task.v_cell;
                }
                if (i == i0)  // the first head's first cells: nobody has prefetched them
                    for (int c = 0; c < TILE; c++) {
                        const int64_t head = segments[0].head;
                        prefetch_cell(task.k + head * task.k_head + k_at[c], tile.next_k_bytes);
                        prefetch_cell(task.v + head * task.v_head + v_at[c], tile.next_v_bytes);
                    }
                for (int g = 0; g < n_segments; g++) {
                    const int64_t head = segments[g].head;
                    const char *k_head = task.k + head * task.k_head, *v_head = task.v + head * task.v_head;
                    kernels.keys[task.k_type](k_head, k_at, tile.dk, buffers.keys);
                    if (convert[g]) kernels.values[task.v_type](v_head, v_at, tile.dv, buffers.values);
                    tile.v = convert[g] ? reinterpret_cast<const char *>(buffers.values) : v_head;
                    tile.v_at = convert[g] ? converted_at : v_at;
                    const bool last = g + 1 == n_segments;  // the next one is the first, of the next tile
                    const int64_t next = segments[last ? 0 : g + 1].head;
                    tile.next_k = last && i + TILE >= i1 ? nullptr : task.k + next * task.k_head;
                    tile.next_v = task.v + next * task.v_head;
                    tile.next_k_at = last ? k_at + TILE : k_at, tile.next_v_at = last ? v_at + TILE : v_at;
                    for (int s = first_sub[g]; s < first_sub[g + 1]; s++) {
                        Sub &sub = subs[s];
                        bool all = cells == TILE, some = !task.mask;
                        if (task.mask)
                            for (int64_t j = line(sub.w0), last = line(sub.w0 + sub.rows.rows - 1); j <= last; j++) {
                                all = all && lines.seen[j - lines.first] == SEEN_ALL;
                                some = some || lines.seen[j - lines.first] != SEEN_NONE;
                            }
                        if (!some) continue;
                        if (!all) fill_bias(sub, head, lines, cells);
                        tile.mask = all ? nullptr : buffers.bias;
                        sub.touched = true;
                        kernels.add[convert[g] ? KV_F32 : task.v_type](sub.rows, tile);
                        tile.next_k = nullptr;
                    }
                }
            }
            i = end;
            for (int g = 0; g < n_segments; g++)
                for (int s = first_sub[g]; s < first_sub[g + 1]; s++) end_chunk(subs[s], segments[g]);
        }
        for (int g = 0; g < n_segments && !segments[0].partial; g++)
            for (int s = first_sub[g]; s < first_sub[g + 1]; s++) {
                const Sub &sub = subs[s];
                for (int r = 0; r < sub.rows.rows; r++) finish(segments[g].head, sub.w0 + r, sub.total_o + r * task.dv, sub.total_m[r], sub.total_l[r]);
            }
    }

    void end_chunk(const Sub &sub, const Segment &segment) const {
        if (segment.partial)
            for (int r = 0; r < sub.rows.rows; r++) {
                float *p = segment.partial + (sub.w0 - segment.w0 + r) * (task.dv + 2);
                memcpy(p, sub.rows.o + r * task.dv, task.dv * sizeof(float));
                p[task.dv] = sub.rows.m[r], p[task.dv + 1] = sub.rows.l[r];
            }
        else if (sub.touched)
            kernels.merge(sub.rows.o, sub.rows.m, sub.rows.l, sub.rows.rows, int(task.dv), sub.total_o, sub.total_m, sub.total_l);
    }

    void finish(int64_t head, int64_t w, const float *o, float m, float l) const {
        const int64_t h = head * task.group + w % task.group;
        float *out = reinterpret_cast<float *>(task.out + w / task.group * task.out_token + h * task.out_head);
        kernels.finish(o, m, l, int(task.dv), task.sinks ? task.sinks + h : nullptr, out);
    }

    // Gathers segments until they fill a block.
    struct Batch {
        const Pass &pass;
        const Walk &walk;
        int64_t i0, i1;
        Segment segments[MAX_SEGMENTS];
        int count = 0;
        int64_t rows = 0;

        void add(int64_t head, int64_t w0, int64_t w1, float *partial) {
            while (w0 < w1) {
                const int64_t n = std::min(w1 - w0, BLOCK - rows);
                segments[count++] = {head, w0, w0 + n, partial};
                w0 += n, rows += n;
                if (partial) partial += n * (pass.task.dv + 2);
                // Heads with separate masks cannot share a tile's lines of the mask.
                // Nor can parts of a long prompt: together they could have more lines than a block has room for.
                if (rows == BLOCK || count == MAX_SEGMENTS || pass.task.mask_heads > 1 || pass.task.n > GROUPED) flush();
            }
        }
        void flush() {
            if (count) pass.block(walk, segments, count, i0, i1);
            count = 0, rows = 0;
        }
    };

    // ---- divisions of the work

    // Many rows: blocks of rows, heads fastest, so that threads get similar amounts of a causal mask.
    void in_blocks() const {
        const int64_t per_head = task.n * task.group;
        int64_t size = task.dk > 128 ? BLOCK / 2 : BLOCK;
        while (size > 48 && (per_head + size - 1) / size * task.kv_heads < 4 * nth) size /= 2;
        for (int64_t item = ith; item < (per_head + size - 1) / size * task.kv_heads; item += nth) {
            const Segment segment = {item % task.kv_heads, item / task.kv_heads * size, std::min(per_head, (item / task.kv_heads + 1) * size), nullptr};
            const Walk cells = walk(segment.w0 / task.group, (segment.w1 - 1) / task.group + 1);
            block(cells, &segment, 1, 0, cells.count);
        }
    }

    // The rows of one group and head that thread `thread` gets if rows are divided; offset: the cells * rows before them.
    static void share(const Group &g, int64_t rows, int64_t offset, int64_t total, int thread, int nth, int64_t &w0, int64_t &w1) {
        auto bound = [&](int64_t at) { return std::clamp<int64_t>((at - offset + g.cells - 1) / std::max<int64_t>(1, g.cells), 0, rows); };
        w0 = total * thread / nth <= offset ? 0 : bound(total * thread / nth);
        w1 = total * (thread + 1) / nth <= offset ? 0 : bound(total * (thread + 1) / nth);
        if (thread == nth - 1) w1 = rows;
    }

    void by_rows(const Group *groups, int n_groups, int64_t total) const {
        int64_t offset = 0;
        for (int i = 0; i < n_groups; i++) {
            const Group &g = groups[i];
            const int64_t n_rows = (g.t1 - g.t0) * task.group, base = g.t0 * task.group;
            Walk cells{nullptr, 0, 0};
            bool known = false;
            Batch batch{*this, cells, 0, 0, {}};
            for (int64_t head = 0; head < task.kv_heads; head++, offset += n_rows * g.cells) {
                int64_t w0, w1;
                share(g, n_rows, offset, total, ith, nth, w0, w1);
                if (w0 >= w1) continue;
                if (!known) cells = walk(g.t0, g.t1), batch.i1 = cells.count, known = true;
                batch.add(head, base + w0, base + w1, nullptr);
            }
            batch.flush();
        }
    }

    // The longest share if rows are divided, in cells * (READING + rows).
    int64_t cost_by_rows(const Group *groups, int n_groups, int64_t total) const {
        int64_t worst = 0;
        for (int thread = 0; thread < nth; thread++) {
            int64_t offset = 0, cost = 0;
            for (int i = 0; i < n_groups; i++) {
                const int64_t n_rows = (groups[i].t1 - groups[i].t0) * task.group;
                for (int64_t head = 0; head < task.kv_heads; head++, offset += n_rows * groups[i].cells) {
                    int64_t w0, w1;
                    share(groups[i], n_rows, offset, total, thread, nth, w0, w1);
                    if (w0 < w1) cost += groups[i].cells * (READING + w1 - w0);
                }
            }
            worst = std::max(worst, cost);
        }
        return worst;
    }

    // Units of (group, chunk, head), in this order, divided by their cost. Each unit's sums go to scratch; then rows are merged.
    // False if the units would be no better than rows (cost `other`), or do not fit into scratch.
    bool by_chunks(Group *groups, int n_groups, int64_t other, float *partial, size_t capacity, void (*barrier)(void *), void *context) const {
        int64_t total = 0, largest = 0;
        size_t floats = 0;
        for (int i = 0; i < n_groups; i++) total += groups[i].cells * (READING + (groups[i].t1 - groups[i].t0) * task.group) * task.kv_heads;
        if (total / nth * 10 > other * 9) return false;
        total = 0;
        for (int i = 0; i < n_groups; i++) {
            Group &g = groups[i];
            const int64_t n_rows = (g.t1 - g.t0) * task.group;
            const Walk cells = walk(g.t0, g.t1);
            g.cells = cells.count;
            g.chunks = 0;
            for (int64_t j = 0; j < cells.count; g.chunks++) {
                const int64_t end = chunk_end(cells, j);
                largest = std::max(largest, (end - j) * (READING + n_rows));
                j = end;
            }
            total += g.cells * (READING + n_rows) * task.kv_heads;
            floats += size_t(task.kv_heads * g.chunks * n_rows * (task.dv + 2));
        }
        if (floats * sizeof(float) > capacity || (total / nth + largest / 2) * 10 > other * 9) return false;

        int64_t done = 0;
        float *at = partial;
        for (int i = 0; i < n_groups; i++) {
            const Group &g = groups[i];
            const int64_t n_rows = (g.t1 - g.t0) * task.group, base = g.t0 * task.group;
            const Walk cells = walk(g.t0, g.t1);
            for (int64_t j = 0; j < cells.count;) {
                const int64_t end = chunk_end(cells, j), cost = (end - j) * (READING + n_rows);
                Batch batch{*this, cells, j, end, {}};
                for (int64_t head = 0; head < task.kv_heads; head++, done += cost, at += n_rows * (task.dv + 2))
                    if ((done + cost / 2) * nth / total == ith) batch.add(head, base, base + n_rows, at);
                batch.flush();
                j = end;
            }
        }
        barrier(context);
        merge_chunks(groups, n_groups, partial);
        return true;
    }

    void merge_chunks(const Group *groups, int n_groups, const float *at) const {
        const int64_t all = task.n * task.group * task.kv_heads;
        int64_t index = 0;
        for (int i = 0; i < n_groups; i++) {
            const Group &g = groups[i];
            const int64_t n_rows = (g.t1 - g.t0) * task.group;
            const size_t row = task.dv + 2, chunk = n_rows * row * task.kv_heads;
            for (int64_t head = 0; head < task.kv_heads; head++)
                for (int64_t r = 0; r < n_rows; r++, index++) {
                    if (index < all * ith / nth || index >= all * (ith + 1) / nth) continue;
                    float m = ATTENTION_LOWEST, l = 0;
                    memset(buffers.total_o, 0, task.dv * sizeof(float));
                    for (int64_t c = 0; c < g.chunks; c++) {
                        const float *o = at + c * chunk + (head * n_rows + r) * row;
                        kernels.merge(o, o + task.dv, o + task.dv + 1, 1, int(task.dv), buffers.total_o, &m, &l);
                    }
                    finish(head, g.t0 * task.group + r, buffers.total_o, m, l);
                }
            at += g.chunks * chunk;
        }
    }
};

}  // namespace

bool attention_takes(const AttentionTask &t) {
    auto type = [](KvType type, int64_t d) { return type >= 0 && type < KV_TYPES && (type != KV_Q8_0 || d % 32 == 0); };
    const bool sizes = t.dk == t.dv ? head_size_taken(t.dk) : t.dk == 192 && t.dv == 128;
    return sizes && type(t.k_type, t.dk) && type(t.v_type, t.dv) && t.batches == 1 && t.n > 0 && t.n_kv > 0 && t.kv_heads > 0 && t.group > 0 &&
           t.n_kv < INT32_MAX && t.mask_heads >= 1;
}

size_t attention_scratch(const AttentionTask &task, int nth) { return thread_bytes(task) * nth + partial_bytes(task, nth); }

void attention_run(const AttentionKernels &kernels, const AttentionTask &task, int ith, int nth, void *scratch, void (*barrier)(void *), void *context) {
    const size_t mine = thread_bytes(task);
    Arena arena{static_cast<char *>(scratch) + mine * ith};
    const Pass pass{kernels, task, Buffers(task, arena), ith, nth};
    const int64_t rows = task.n * task.group * task.kv_heads;
    if (task.n > GROUPED && rows > nth * BLOCK / 2) return pass.in_blocks();
    Group groups[GROUPED];
    const int n_groups = pass.groups(groups);
    int64_t total = 0, cells = 0;
    for (int i = 0; i < n_groups; i++) {
        total += groups[i].cells * (groups[i].t1 - groups[i].t0) * task.group * task.kv_heads;
        cells = std::max(cells, groups[i].cells);
    }
    const size_t capacity = partial_bytes(task, nth);
    if (capacity && cells > ATTENTION_CHUNK / 2) {
        const int64_t cost = pass.cost_by_rows(groups, n_groups, total);
        float *partial = reinterpret_cast<float *>(static_cast<char *>(scratch) + mine * nth);
        Group exact[GROUPED];
        std::copy(groups, groups + n_groups, exact);
        if (pass.by_chunks(exact, n_groups, cost, partial, capacity, barrier, context)) return;
    }
    pass.by_rows(groups, n_groups, total);
}

}  // namespace localspec
