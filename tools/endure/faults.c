/* Loaded before a process's other libraries: a disk that is full from some write on. Files are what
   is counted; pipes and terminals are left alone. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static long counted, left = -1;

/* So many writes have room from now on; -1: all. */
void endure_room(long writes) { left = writes; counted = 0; }
/* How many there were since then. */
long endure_writes(void) { return counted; }

static int full(void) {
    counted++;
    if (left < 0) return 0;
    if (left > 0) { left--; return 0; }
    errno = ENOSPC;
    return 1;
}

static int full_for(int fd) {
    struct stat about;
    return fstat(fd, &about) == 0 && S_ISREG(about.st_mode) && full();
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int fd, const void *data, size_t size) {
    return full_for(fd) ? -1 : REAL(write)(fd, data, size);
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    return full_for(fd) ? -1 : REAL(pwrite)(fd, data, size, at);
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    return full_for(fd) ? -1 : REAL(pwrite64)(fd, data, size, at);
}
ssize_t writev(int fd, const struct iovec *parts, int count) {
    return full_for(fd) ? -1 : REAL(writev)(fd, parts, count);
}
int fallocate(int fd, int mode, off_t at, off_t size) {
    return full_for(fd) ? -1 : REAL(fallocate)(fd, mode, at, size);
}
int posix_fallocate(int fd, off_t at, off_t size) {
    return full_for(fd) ? ENOSPC : REAL(posix_fallocate)(fd, at, size);
}
int mkdir(const char *path, mode_t mode) { return full() ? -1 : REAL(mkdir)(path, mode); }

#define OPEN(name)                                                                                 \
    int name(const char *path, int flags, ...) {                                                   \
        va_list more;                                                                              \
        va_start(more, flags);                                                                     \
        mode_t mode = va_arg(more, mode_t);                                                        \
        va_end(more);                                                                              \
        if ((flags & O_CREAT) && access(path, F_OK) != 0 && full()) return -1;                     \
        return REAL(name)(path, flags, mode);                                                      \
    }
OPEN(open)
OPEN(open64)
