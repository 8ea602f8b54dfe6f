/* SPDX-License-Identifier: Apache-2.0
 * A library to preload: the n-th allocation, read, write, mapping, thread, file, connection or epoll
 * registration, process, descriptor or look at a file of a running server fails, when the test that runs
 * it says so.
 *
 * NEREID_FAULTS names a file that both have mapped: struct control. Only calls whose return address is
 * in one of our own files are counted: gRPC and libevent end the process where malloc fails, and what
 * another library does without memory is not what is tested. */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define CALLER __builtin_return_address(0)

enum { ALLOC = 1, READ = 2, WRITE = 4, MAP = 8, THREAD = 16, OPEN = 32, ACCEPT = 64, EPOLL = 128,
       PROCESS = 256, /* other programs, and descriptors of no file */ LOOK = 512 };

/* As in harness.py. */
struct control {
    _Atomic uint32_t kinds; /* 0: nothing is counted */
    _Atomic uint32_t for_ever;
    _Atomic uint64_t at; /* the first call that fails, from 1 */
    _Atomic uint64_t n_calls, n_failed;
    _Atomic uint64_t first_failed; /* address in its file, for messages */
    char first_file[96];
};

static struct control none, *control = &none;

__attribute__((constructor)) static void attach(void)
{
    const char *path = getenv("NEREID_FAULTS");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void *p = fd < 0 ? MAP_FAILED
                     : mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p != MAP_FAILED) {
        control = p;
    }
    if (fd >= 0) {
        close(fd);
    }
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* Programs and libraries of this repository. */
static bool is_ours(const char *file)
{
    const char *name = base_name(file);
    return !strcmp(name, "tritonserver") || !strncmp(name, "libtritonserver.so", 18) ||
           !strncmp(name, "libnereid.so", 12) || !strncmp(name, "libtriton_", 10) ||
           !strncmp(name, "libtritoncache_", 15) || !strncmp(name, "libtritonrepoagent_", 19);
}

static bool fails(uint32_t kind, void *caller)
{
    Dl_info info;
    if (!(atomic_load_explicit(&control->kinds, memory_order_relaxed) & kind) ||
        !dladdr(caller, &info) || !info.dli_fname || !is_ours(info.dli_fname)) {
        return false;
    }
    const uint64_t n = atomic_fetch_add(&control->n_calls, 1) + 1, at = atomic_load(&control->at);
    if (at == 0 || n < at || (n > at && !atomic_load(&control->for_ever))) {
        return false;
    }
    if (atomic_fetch_add(&control->n_failed, 1) == 0) {
        atomic_store(&control->first_failed, (uint64_t)((char *)caller - (char *)info.dli_fbase));
        snprintf(control->first_file, sizeof control->first_file, "%s", base_name(info.dli_fname));
    }
    return true;
}

/* The next definition of a function. */
#define NEXT(name)                                                                                 \
    static __typeof__(&name) next;                                                                 \
    if (!next) {                                                                                   \
        *(void **)&next = dlsym(RTLD_NEXT, #name);                                                 \
    }
#define REFUSE(kind, code, value)                                                                  \
    do {                                                                                           \
        if (fails(kind, CALLER)) {                                                                 \
            errno = (code);                                                                        \
            return value;                                                                          \
        }                                                                                          \
    } while (0)

/* ---- memory ---- */

EXPORT void *malloc(size_t n)
{
    NEXT(malloc)
    REFUSE(ALLOC, ENOMEM, NULL);
    return next(n);
}

EXPORT void *calloc(size_t n, size_t size)
{
    NEXT(calloc)
    REFUSE(ALLOC, ENOMEM, NULL);
    return next(n, size);
}

EXPORT void *realloc(void *p, size_t n)
{
    NEXT(realloc)
    REFUSE(ALLOC, ENOMEM, NULL);
    return next(p, n);
}

EXPORT int posix_memalign(void **out, size_t align, size_t n)
{
    NEXT(posix_memalign)
    if (fails(ALLOC, CALLER)) {
        return ENOMEM;
    }
    return next(out, align, n);
}

EXPORT void *aligned_alloc(size_t align, size_t n)
{
    NEXT(aligned_alloc)
    REFUSE(ALLOC, ENOMEM, NULL);
    return next(align, n);
}

/* The C library's functions that allocate for their caller. */
EXPORT char *strdup(const char *s)
{
    NEXT(strdup)
    REFUSE(ALLOC, ENOMEM, NULL);
    return next(s);
}

EXPORT char *strndup(const char *s, size_t n)
{
    NEXT(strndup)
    REFUSE(ALLOC, ENOMEM, NULL);
    return next(s, n);
}

EXPORT int vasprintf(char **out, const char *format, va_list args)
{
    NEXT(vasprintf)
    REFUSE(ALLOC, ENOMEM, -1);
    return next(out, format, args);
}

EXPORT int asprintf(char **out, const char *format, ...)
{
    va_list args;
    REFUSE(ALLOC, ENOMEM, -1);
    va_start(args, format);
    int n = vasprintf(out, format, args); /* its caller is this file, which is not counted */
    va_end(args);
    return n;
}

/* What they are called in hardened builds. */
EXPORT int __vasprintf_chk(char **out, int flag, const char *format, va_list args);
EXPORT int __vasprintf_chk(char **out, int flag, const char *format, va_list args)
{
    (void)flag;
    REFUSE(ALLOC, ENOMEM, -1);
    return vasprintf(out, format, args);
}

EXPORT int __asprintf_chk(char **out, int flag, const char *format, ...);
EXPORT int __asprintf_chk(char **out, int flag, const char *format, ...)
{
    va_list args;
    (void)flag;
    REFUSE(ALLOC, ENOMEM, -1);
    va_start(args, format);
    int n = vasprintf(out, format, args);
    va_end(args);
    return n;
}

/* ---- the system ---- */

EXPORT ssize_t read(int fd, void *buffer, size_t n)
{
    NEXT(read)
    REFUSE(READ, EIO, -1);
    return next(fd, buffer, n);
}

EXPORT ssize_t recv(int fd, void *buffer, size_t n, int flags)
{
    NEXT(recv)
    REFUSE(READ, ECONNRESET, -1);
    return next(fd, buffer, n, flags);
}

EXPORT ssize_t write(int fd, const void *buffer, size_t n)
{
    NEXT(write)
    REFUSE(WRITE, EIO, -1);
    return next(fd, buffer, n);
}

EXPORT ssize_t writev(int fd, const struct iovec *parts, int n)
{
    NEXT(writev)
    REFUSE(WRITE, EPIPE, -1);
    return next(fd, parts, n);
}

EXPORT ssize_t sendmsg(int fd, const struct msghdr *m, int flags)
{
    NEXT(sendmsg)
    REFUSE(WRITE, EPIPE, -1);
    return next(fd, m, flags);
}

EXPORT void *mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset)
{
    NEXT(mmap)
    REFUSE(MAP, ENOMEM, MAP_FAILED);
    return next(at, n, prot, flags, fd, offset);
}

EXPORT int pthread_create(pthread_t *out, const pthread_attr_t *attr, void *(*run)(void *), void *arg)
{
    NEXT(pthread_create)
    if (fails(THREAD, CALLER)) {
        return EAGAIN;
    }
    return next(out, attr, run, arg);
}

EXPORT pid_t fork(void)
{
    NEXT(fork)
    REFUSE(THREAD, EAGAIN, -1);
    return next();
}

EXPORT int open(const char *path, int flags, ...)
{
    NEXT(open)
    va_list args;
    va_start(args, flags);
    const int mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(args, int) : 0;
    va_end(args);
    REFUSE(OPEN, EMFILE, -1);
    return next(path, flags, mode);
}

EXPORT FILE *fopen(const char *path, const char *mode)
{
    NEXT(fopen)
    REFUSE(OPEN, EMFILE, NULL);
    return next(path, mode);
}

EXPORT int accept4(int fd, struct sockaddr *address, socklen_t *n, int flags)
{
    NEXT(accept4)
    REFUSE(ACCEPT, EMFILE, -1);
    return next(fd, address, n, flags);
}

EXPORT int epoll_ctl(int epoll, int op, int fd, struct epoll_event *event)
{
    NEXT(epoll_ctl)
    if (op != EPOLL_CTL_DEL) { /* what is registered can always be taken out */
        REFUSE(EPOLL, ENOMEM, -1);
    }
    return next(epoll, op, fd, event);
}

/* ---- processes, descriptors of no file, looks at files ---- */

EXPORT int posix_spawnp(pid_t *pid, const char *file, const posix_spawn_file_actions_t *actions,
                        const posix_spawnattr_t *attr, char *const argv[], char *const env[])
{
    NEXT(posix_spawnp)
    if (fails(PROCESS, CALLER)) {
        return EAGAIN;
    }
    return next(pid, file, actions, attr, argv, env);
}

EXPORT int socketpair(int domain, int type, int protocol, int fd[2])
{
    NEXT(socketpair)
    REFUSE(PROCESS, EMFILE, -1);
    return next(domain, type, protocol, fd);
}

EXPORT int memfd_create(const char *name, unsigned flags)
{
    NEXT(memfd_create)
    REFUSE(PROCESS, EMFILE, -1);
    return next(name, flags);
}

EXPORT int eventfd(unsigned value, int flags)
{
    NEXT(eventfd)
    REFUSE(PROCESS, EMFILE, -1);
    return next(value, flags);
}

EXPORT int epoll_create1(int flags)
{
    NEXT(epoll_create1)
    REFUSE(PROCESS, EMFILE, -1);
    return next(flags);
}

EXPORT int fstat(int fd, struct stat *out)
{
    NEXT(fstat)
    REFUSE(LOOK, EIO, -1);
    return next(fd, out);
}

EXPORT DIR *opendir(const char *path)
{
    NEXT(opendir)
    REFUSE(LOOK, EMFILE, NULL);
    return next(path);
}

EXPORT char *mkdtemp(char *name)
{
    NEXT(mkdtemp)
    REFUSE(LOOK, EACCES, NULL);
    return next(name);
}
