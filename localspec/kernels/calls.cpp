#ifdef __linux__

#include "calls.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>

namespace localspec {

void ** place_of(const link_map * library, const char * function) {
    const char * names = nullptr;
    const ElfW(Sym) * symbols = nullptr;
    const ElfW(Rela) * entries = nullptr;
    size_t bytes = 0;
    for (const ElfW(Dyn) * d = library->l_ld; d->d_tag != DT_NULL; d++) {
        // musl leaves these relative to the library.
        const ElfW(Addr) at = d->d_un.d_ptr < library->l_addr ? d->d_un.d_ptr + library->l_addr : d->d_un.d_ptr;
        if (d->d_tag == DT_STRTAB) names = (const char *) at;
        if (d->d_tag == DT_SYMTAB) symbols = (const ElfW(Sym) *) at;
        if (d->d_tag == DT_JMPREL) entries = (const ElfW(Rela) *) at;
        if (d->d_tag == DT_PLTRELSZ) bytes = d->d_un.d_val;
    }
    if (!names || !symbols || !entries) return nullptr;
    for (size_t i = 0; i < bytes / sizeof(ElfW(Rela)); i++)
        if (!strcmp(names + symbols[ELF64_R_SYM(entries[i].r_info)].st_name, function))
            return (void **) (library->l_addr + entries[i].r_offset);
    return nullptr;
}

bool redirect(void ** place, void * ours) {
    const uintptr_t page = (uintptr_t) sysconf(_SC_PAGESIZE), start = (uintptr_t) place & ~(page - 1);
    if (mprotect((void *) start, page, PROT_READ | PROT_WRITE)) return false;
    *place = ours;
    return true;
}

}  // namespace localspec

#endif
