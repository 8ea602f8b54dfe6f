/* SPDX-License-Identifier: Apache-2.0 */
#include "base/foreign.h"

#include "base/mem.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* An entry is never freed, only used again: the handler may look at any time. */
struct nrd_foreign {
    nrd_foreign *next;
    atomic_uintptr_t base; /* 0: free, or being changed */
    atomic_size_t n;
    atomic_bool lost;
    bool used; /* guarded by mu */
};

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(nrd_foreign *) entries; /* changed under mu */
static struct sigaction before;
static uintptr_t page;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int install_errno;

static nrd_foreign *find(uintptr_t at)
{
    for (nrd_foreign *f = atomic_load(&entries); f; f = f->next) {
        const uintptr_t base = atomic_load(&f->base);
        const size_t n = atomic_load(&f->n);
        if (base && at >= base && at - base < n && atomic_load(&f->base) == base) {
            return f;
        }
    }
    return NULL;
}

static void pass_on(int sig, siginfo_t *info, void *context)
{
    if (before.sa_flags & SA_SIGINFO) {
        before.sa_sigaction(sig, info, context);
    } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
        before.sa_handler(sig);
    } else {
        signal(sig, SIG_DFL); /* the access is tried again, and ends the process */
    }
}

/* Runs on the thread that made the access. What it calls is a system call and no more. */
static void on_bus_error(int sig, siginfo_t *info, void *context)
{
    const int saved = errno;
    const uintptr_t at = (uintptr_t)info->si_addr;
    nrd_foreign *f = info->si_code == BUS_ADRERR ? find(at) : NULL;

    if (f) {
        atomic_store(&f->lost, true);
        void *p = mmap((void *)(at - at % page), page, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        f = p == MAP_FAILED ? NULL : f;
    }
    if (!f) {
        pass_on(sig, info, context);
    }
    errno = saved;
}

static void install(void)
{
    struct sigaction action = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};

    page = (uintptr_t)sysconf(_SC_PAGESIZE);
    sigemptyset(&action.sa_mask);
    install_errno = sigaction(SIGBUS, &action, &before) == 0 ? 0 : errno;
}

nrd_error *nrd_foreign_add(nrd_foreign **out, void *base, size_t n)
{
    *out = NULL;
    pthread_once(&once, install);
    if (install_errno) {
        return nrd_errorf(NRD_ERR_INTERNAL, "cannot handle SIGBUS: %s", strerror(install_errno));
    }
    pthread_mutex_lock(&mu);
    nrd_foreign *f = atomic_load(&entries);
    while (f && f->used) {
        f = f->next;
    }
    if (!f) {
        f = calloc(1, sizeof *f);
        if (!f) {
            pthread_mutex_unlock(&mu);
            return nrd_error_no_memory();
        }
        f->next = atomic_load(&entries);
        atomic_store(&entries, f);
    }
    f->used = true;
    atomic_store(&f->lost, false);
    atomic_store(&f->n, n);
    atomic_store(&f->base, (uintptr_t)base);
    pthread_mutex_unlock(&mu);
    *out = f;
    return NULL;
}

bool nrd_foreign_is_lost(const nrd_foreign *f)
{
    return f && atomic_load(&f->lost);
}

void nrd_foreign_remove(nrd_foreign *f)
{
    if (f) {
        pthread_mutex_lock(&mu);
        atomic_store(&f->base, 0);
        f->used = false;
        pthread_mutex_unlock(&mu);
    }
}
