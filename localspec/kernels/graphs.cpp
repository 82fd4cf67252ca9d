// llama.cpp keeps the graph of its latest pass, and rebuilds it when the next pass has another size:
// 0.3 to 0.5 ms for 30 layers, a sixth of a small model's pass. Drafting constantly changes the size.
//
// So a context gets one scheduler and one graph for each size of short passes. Before a pass, ours replace
// llama.cpp's, which then finds the graph that it built for this size, and checks whether it still fits.
// They are fields of llama_context, found by their contents; if that fails, no graphs are kept.
#include "kernels.h"

#ifdef __linux__

#include <dlfcn.h>
#include <malloc.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <vector>

#include "calls.h"

namespace localspec {

namespace {

constexpr uint32_t LONGEST = 16;    // most tokens of a pass whose graph is kept: for more, building costs little
constexpr size_t MOST = 12;         // graphs of a context

// llama_ubatch (llama-batch.h), as far as it is read.
struct Part {
    uint32_t equal_sequences, tokens, tokens_each, sequence_sets, sequences, positions;
    void * token, * embedding, * position, * sequence_count, * sequence, * unique_sequences, * sequence_index;
    const int8_t * output;
};

using Process = void * (*)(void * context, const Part * part, int type, void * memory, int * status);

struct Functions {
    Process process;
    void * (*scheduler)(const void * context);
    void * (*reserved)(const void * context);
    int64_t (*most_nodes)(const void * graph);
    void (*delete_graph)(void * graph);
    void * (*new_scheduler)(void ** backends, void ** types, int count, size_t nodes, bool parallel, bool offload);
    void (*free_scheduler)(void * scheduler);
    int (*backends)(void * scheduler);
    void * (*backend)(void * scheduler, int number);
    void * (*type)(void * scheduler, void * backend);
};

Functions llama;

class Graphs {
  public:
    explicit Graphs(void * context) : context(context) {}

    // Leaves the context its original fields, whose size it checks when it is freed.
    ~Graphs() {
        if (!scheduler) return;
        choose(Size{});
        for (size_t i = 1; i < kept.size(); i++) {
            llama.free_scheduler(kept[i].scheduler);
            if (kept[i].graph) llama.delete_graph(kept[i].graph);
        }
    }

    void choose(const Part & part) {
        if (!scheduler && !find()) return;
        const auto outputs = part.output ? part.tokens - std::count(part.output, part.output + part.tokens, 0) : 0;
        choose(part.tokens <= LONGEST && outputs > 0 ? Size{part.tokens, (uint32_t) outputs, part.sequences} : Size{});
    }

  private:
    struct Size {
        uint32_t tokens, outputs, sequences;
        bool operator==(const Size & o) const {
            return tokens == o.tokens && outputs == o.outputs && sequences == o.sequences;
        }
    };
    struct Graph {
        Size size;      // zero for passes that are not short
        void * scheduler, * graph;
        bool built;
        uint64_t used;
    };

    void choose(const Size & size) {
        // llama.cpp may have replaced them; without an active graph it needs all of them rebuilt.
        kept[now].scheduler = *scheduler, kept[now].graph = *graph, kept[now].built = *active && *active == *graph;
        if (!*active) for (Graph & one : kept) one.built = false;
        now = place(size);
        kept[now].used = ++passes;
        *scheduler = kept[now].scheduler, *graph = kept[now].graph, *active = kept[now].built ? *graph : nullptr;
    }

    // llama_context has `sched`, and further on `gf_res_prev[2]`, `gf_res_reserve`, `gf_res_prev_active`.
    bool find() {
        void ** fields = (void **) context, ** end = fields + malloc_usable_size(context) / sizeof(void *);
        void * in_use = llama.scheduler(context), * reserved = llama.reserved(context);
        if (!in_use || !reserved || llama.backends(in_use) != 1) return false;
        void ** first = std::find(fields, end, in_use), ** last = std::find(fields, end, reserved);
        const bool once = std::count(fields, end, in_use) == 1 && std::count(fields, end, reserved) == 1;
        if (!once || last - first < 3 || end - last < 2 || !last[-1] || last[1] != last[-1]) return false;
        scheduler = first, graph = last - 1, active = last + 1;
        kept.push_back({{}, *scheduler, *graph, true, 0});
        return true;
    }

    size_t place(const Size & size) {
        for (size_t i = 0; i < kept.size(); i++) if (kept[i].size == size) return i;
        if (kept.size() < MOST) {
            void * backend = llama.backend(kept[0].scheduler, 0), * type = llama.type(kept[0].scheduler, backend);
            const size_t nodes = llama.most_nodes(llama.reserved(context));
            kept.push_back({size, llama.new_scheduler(&backend, &type, 1, nodes, false, true), nullptr, false, 0});
            return kept.size() - 1;
        }
        const auto older = [](const Graph & a, const Graph & b) { return a.used < b.used; };
        const auto oldest = std::min_element(kept.begin() + 1, kept.end(), older);
        oldest->size = size, oldest->built = false;
        return oldest - kept.begin();
    }

    void * context;
    void ** scheduler = nullptr, ** graph = nullptr, ** active = nullptr;
    std::vector<Graph> kept;
    size_t now = 0;
    uint64_t passes = 0;
};

std::mutex lock;
std::map<void *, Graphs> all;       // by context

void * process(void * context, const Part * part, int type, void * memory, int * status) {
    Graphs * graphs = nullptr;
    {
        const std::lock_guard<std::mutex> guard(lock);
        const auto found = all.find(context);
        if (found != all.end()) graphs = &found->second;
    }
    if (graphs) graphs->choose(*part);      // a context computes in one thread
    return llama.process(context, part, type, memory, status);
}

template <typename F> bool find(void * library, const char * name, F & function) {
    function = (F) dlsym(library, name);
    return function != nullptr;
}

bool start(void * decode) {
    const char * name = "_ZN13llama_context14process_ubatchERK12llama_ubatch14llm_graph_typeP22llama_memory_context_iR11ggml_status";
    Dl_info info;
    void * library = dladdr(decode, &info) ? dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD) : nullptr;
    // libllama also resolves symbols of libggml-base, on which it depends.
    const bool complete = library && find(library, name, llama.process) &&
        find(library, "_ZNK13llama_context9get_schedEv", llama.scheduler) &&
        find(library, "_ZNK13llama_context18get_gf_res_reserveEv", llama.reserved) &&
        find(library, "_ZNK16llm_graph_result13get_max_nodesEv", llama.most_nodes) &&
        find(library, "_ZN16llm_graph_resultD0Ev", llama.delete_graph) &&
        find(library, "ggml_backend_sched_new", llama.new_scheduler) &&
        find(library, "ggml_backend_sched_free", llama.free_scheduler) &&
        find(library, "ggml_backend_sched_get_n_backends", llama.backends) &&
        find(library, "ggml_backend_sched_get_backend", llama.backend) &&
        find(library, "ggml_backend_sched_get_buffer_type", llama.type);
    void ** place = complete ? place_of((const link_map *) library, name) : nullptr;
    return place && redirect(place, (void *) process);
}

}  // namespace

}  // namespace localspec

int localspec_kernels_keep_graphs(void * context, void * decode) {
    static const bool started = localspec::start(decode);
    if (!started) return 0;
    const std::lock_guard<std::mutex> guard(localspec::lock);
    localspec::all.try_emplace(context, context);
    return 1;
}

void localspec_kernels_drop_graphs(void * context) {
    const std::lock_guard<std::mutex> guard(localspec::lock);
    localspec::all.erase(context);
}

#else

int localspec_kernels_keep_graphs(void *, void *) { return 0; }
void localspec_kernels_drop_graphs(void *) {}

#endif
