#include "buffers.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>

namespace localspec {

using namespace ggml_abi;

namespace {

constexpr size_t HUGE_PAGE = 2 << 20;
// From this size on another thread for repacking pays; smaller tensors are done before it starts.
constexpr size_t BYTES_PER_THREAD = 1 << 18;
constexpr size_t MAX_REPACK_THREADS = 8;
// A huge page takes 0.1 to 0.3 ms. If memory is fragmented, or a virtual machine's host has yet to
// find it, it can take 6 ms, and pages of usual size are faster; such slow pages are counted.
constexpr auto SLOW_PAGE = std::chrono::microseconds(1000);
constexpr int MOST_SLOW_PAGES = 3;
// A computation that begins meanwhile waits for a page, which takes at most some milliseconds unless
// memory is short.
constexpr auto PATIENCE = std::chrono::milliseconds(50);
constexpr auto AFTER_LOADING = std::chrono::milliseconds(500);

using Clock = std::chrono::steady_clock;

const Functions * ggml;
// Never destroyed, as other threads may still use it when the process exits.
auto & traits = *new std::map<Type, std::unique_ptr<Matmul>>;

Matmul * traits_for(const Tensor * tensor) { return (Matmul *) (tensor->view_src ? tensor->view_src : tensor)->extra; }

// Repacked bytes begin at most one page after the rounding of mmap. Kernels may prefetch or load past
// the last tile, which stays within the spare page.
size_t mapped(size_t size) { return (size + 2 * 4096 + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE; }

// By base of a buffer: its pages that may not be huge yet.
struct Pages {
    char * first, * end;
};
auto & rest = *new std::map<void *, Pages>;   // never destroyed, as above
std::mutex rest_lock;
std::atomic<Clock::rep> written{0};     // when a tensor was last written

void free_buffer(Buffer * buffer) {
    {
        const std::lock_guard<std::mutex> hold(rest_lock);
        rest.erase(buffer->context);
    }
    munmap(buffer->context, mapped(buffer->size));
}

void * get_base(Buffer * buffer) { return buffer->context; }

int init_tensor(Buffer *, Tensor * tensor) {
    tensor->extra = tensor->view_src ? tensor->view_src->extra : traits_of(tensor->type);
    return 0;
}

// Releases the pages of a mapped file that hold [data, data + size), which is not read again. Pages that
// do not belong to a file are left alone, as they would lose their contents.
void release(const void * data, size_t size) {
#ifdef __linux__
    constexpr uint64_t HELD = 3ull << 62, FILES = 1ull << 61;     // proc_pid_pagemap(5)
    const uintptr_t page = (uintptr_t) sysconf(_SC_PAGESIZE), first = ((uintptr_t) data + page - 1) / page,
                    end = ((uintptr_t) data + size) / page;
    if (end <= first) return;
    std::vector<uint64_t> entries(end - first);
    const ssize_t bytes = entries.size() * sizeof(uint64_t);
    const int file = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    const bool known = pread(file, entries.data(), bytes, first * sizeof(uint64_t)) == bytes;
    close(file);
    const auto is_files = [](uint64_t entry) { return entry & FILES || !(entry & HELD); };
    if (!known || !std::all_of(entries.begin(), entries.end(), is_files)) return;
    madvise((void *) (first * page), (end - first) * page, MADV_DONTNEED);
    // Small tensors between such ranges stay mapped; each would map a huge page of the page cache.
    madvise((void *) (first * page), (end - first) * page, MADV_NOHUGEPAGE);
#else
    (void) data, (void) size;
#endif
}

// Times the first huge page of a tensor that is about to be written. Once several were slow, the rest
// of the buffer gets pages of usual size.
void leave_slow_huge_pages(Buffer * buffer, void * data, size_t size) {
#ifdef MADV_NOHUGEPAGE
    static std::atomic<int> slow{0};
    char * page = (char *) (((uintptr_t) data + HUGE_PAGE - 1) & ~(uintptr_t) (HUGE_PAGE - 1));
    if (page >= (char *) data + size) return;
    if (slow < MOST_SLOW_PAGES) {
        const auto started = Clock::now();
        *(volatile char *) page = 0;
        slow += Clock::now() - started > SLOW_PAGE;
    }
    if (slow >= MOST_SLOW_PAGES)
        madvise(page, (char *) buffer->context + mapped(buffer->size) - page, MADV_NOHUGEPAGE);
#else
    (void) buffer, (void) data, (void) size;
#endif
}

void set_tensor(Buffer * buffer, Tensor * tensor, const void * data, size_t offset, size_t size) {
    // llama.cpp writes weights as a whole. A part cannot be repacked, and writing it anywhere would be
    // worse than leaving zeros.
    Matmul * matmul = traits_for(tensor);
    if (offset != 0 || tensor->view_src || size < tensor->nb[2] * (size_t) tensor->ne[2]) return;
    const auto started = Clock::now();
    leave_slow_huge_pages(buffer, tensor->data, matmul->repacked_bytes(tensor));
    const size_t cores = std::min<size_t>(std::max(1u, std::thread::hardware_concurrency()), MAX_REPACK_THREADS);
    const int parts = (int) std::clamp<size_t>(size / BYTES_PER_THREAD, 1, cores);
    std::vector<std::thread> threads;
    int begun = 1;
    try {
        for (; begun < parts; begun++)
            threads.emplace_back([=] { matmul->repack(tensor, data, begun, parts); });
    } catch (const std::system_error &) {  // no more threads: this one does the rest
    }
    matmul->repack(tensor, data, 0, parts);
    for (int part = begun; part < parts; part++) matmul->repack(tensor, data, part, parts);
    for (auto & thread : threads) thread.join();
    release(data, size);
    counts().taken++;
    counts().bytes += (int64_t) size;
    const auto ended = Clock::now();
    written = ended.time_since_epoch().count();
    counts().microseconds += std::chrono::duration_cast<std::chrono::microseconds>(ended - started).count();
}

void clear(Buffer * buffer, uint8_t value) { memset(buffer->context, value, buffer->size); }

const char * get_name(BufferType *) { return "LOCALSPEC"; }

size_t get_alignment(BufferType *) { return 64; }

size_t get_alloc_size(BufferType *, const Tensor * tensor) {
    const Matmul * matmul = traits_of(tensor->type);
    const size_t file = tensor->nb[3] * (size_t) tensor->ne[3];
    return matmul && !tensor->view_src ? std::max(file, matmul->repacked_bytes(tensor)) : file;
}

Buffer * alloc_buffer(BufferType * type, size_t size) {
    const size_t length = mapped(size);
    char * memory = (char *) mmap(nullptr, length + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
    char * base = (char *) (((uintptr_t) memory + HUGE_PAGE - 1) & ~(uintptr_t) (HUGE_PAGE - 1));
    if (base > memory) munmap(memory, base - memory);
    munmap(base + length, memory + HUGE_PAGE - base);
#ifdef MADV_HUGEPAGE
    madvise(base, length, MADV_HUGEPAGE);   // only for speed
#endif
    BufferInterface iface = {};
    iface.free_buffer = free_buffer;
    iface.get_base = get_base;
    iface.init_tensor = init_tensor;
    iface.set_tensor = set_tensor;
    iface.clear = clear;
    const std::lock_guard<std::mutex> hold(rest_lock);
    rest[base] = {base, base + length};
    return ggml->buffer_init(type, iface, base, size);
}

}  // namespace

bool make_page_huge() {
#ifdef __linux__
    constexpr int COLLAPSE = 25;    // MADV_COLLAPSE, of Linux 6.1
    if (Clock::now().time_since_epoch() - Clock::duration(written) < AFTER_LOADING) {
        usleep(10000);
        return true;
    }
    const std::lock_guard<std::mutex> hold(rest_lock);
    for (auto & [base, pages] : rest) {
        if (pages.first == pages.end) continue;
        const auto started = Clock::now();
        // Pages of usual size may have been requested to load quickly; that is over.
        if (pages.first == base) madvise(base, pages.end - pages.first, MADV_HUGEPAGE);
        const int failed = madvise(pages.first, HUGE_PAGE, COLLAPSE) ? errno : 0;
        const bool next = (!failed || failed == EAGAIN || failed == EBUSY) && Clock::now() - started < PATIENCE;
        pages.first = next ? pages.first + HUGE_PAGE : pages.end;
        return true;
    }
#endif
    return false;
}

Counts & counts() {
    static Counts all;
    return all;
}

Matmul * traits_of(Type type) {
    const auto found = traits.find(type);
    return found == traits.end() ? nullptr : found->second.get();
}

BufferType * make_buffer_type(const Functions & functions, const InstructionSet & isa, ExtraBufferType * context) {
    ggml = &functions;
#define TRAITS(TYPE) traits[TYPE] = std::make_unique<Matmul>(TYPE, isa, functions.barrier);
    LOCALSPEC_INTEGER_TYPES(TRAITS)
    LOCALSPEC_FLOAT_TYPES(TRAITS)
#undef TRAITS
    // A forked child has no thread that could unlock it.
    pthread_atfork(nullptr, nullptr, [] { new (&rest_lock) std::mutex; });
    static BufferType type = {};
    type.iface.get_name = get_name;
    type.iface.alloc_buffer = alloc_buffer;
    type.iface.get_alignment = get_alignment;
    type.iface.get_alloc_size = get_alloc_size;
    type.device = functions.device_of(functions.cpu_registry(), 0);
    type.context = context;
    return &type;
}

}  // namespace localspec
