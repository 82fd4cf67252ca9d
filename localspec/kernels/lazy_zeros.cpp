#include "lazy_zeros.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

namespace localspec {

using namespace ggml_abi;

namespace {

Buffer * (*ggml_alloc_buffer)(BufferType *, size_t);
void (*ggml_clear)(Buffer *, uint8_t);
bool (*is_wanted)();

void clear(Buffer * buffer, uint8_t value) {
    char * base = (char *) buffer->iface.get_base(buffer), * end = base + buffer->size;
    const uintptr_t page = (uintptr_t) sysconf(_SC_PAGESIZE);
    char * first = (char *) (((uintptr_t) base + page - 1) / page * page),
         * last = (char *) ((uintptr_t) end / page * page);
    // On Linux, private memory that is released is zero when it is next read; locked memory stays.
    if (value || !is_wanted() || first >= last || madvise(first, last - first, MADV_DONTNEED))
        return ggml_clear(buffer, value);
    memset(base, 0, first - base);
    memset(last, 0, end - last);
}

Buffer * alloc_buffer(BufferType * type, size_t size) {
    Buffer * buffer = ggml_alloc_buffer(type, size);
    if (!buffer) return nullptr;
    ggml_clear = buffer->iface.clear;   // one function for all buffers of the CPU
    buffer->iface.clear = clear;
    return buffer;
}

}  // namespace

void clear_lazily(BufferType * cpu, bool (*wanted)()) {
    is_wanted = wanted;
#ifdef __linux__
    ggml_alloc_buffer = cpu->iface.alloc_buffer;
    cpu->iface.alloc_buffer = alloc_buffer;
#else
    (void) cpu, (void) alloc_buffer;
#endif
}

}  // namespace localspec
