/* SPDX-License-Identifier: Apache-2.0
 * The shared memory of an executor's ranks, and messages through it.
 *
 * `published` counts messages; message n (from 1) lies in slot n % n_slots. Each rank counts in `read[rank]` the
 * messages that it is done with; rank 0 fills a slot again when everyone has read what was there. Hosts of other ranks have
 * memory of their own, to which a mirror carries both. Who waits
 * spins for about the time between two steps, then sleeps on a futex and looks now and then whether the ranks
 * were stopped. */
#include "executor/ranks/segment.h"

#include "base/mem.h"
#include "base/spin.h"
#include "device/device.h"

#include <errno.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { MAX_SLOTS = 16, SPINS = 4000, SLEEP_MS = 50, ALIGN = 4096 };

typedef struct shared {
    char build[40]; /* nrd_device_id() of who made it */
    int32_t size, n_slots;
    size_t comm_offset, slot_offset, total;
    nrd_rank_config config;
    _Alignas(64) _Atomic uint32_t sleepers;
    struct {
        _Alignas(64) _Atomic int32_t process;
        _Atomic int32_t thread;
        _Atomic uint32_t n_beats;
        _Atomic int64_t still_ms;
    } life[NRD_RANKS_MAX];
    /* From here on other hosts write. Above is what decides where things are and which processes are ended. */
    _Alignas(64) _Atomic uint32_t published;
    struct {
        _Alignas(64) _Atomic uint32_t read;
    } rank[NRD_RANKS_MAX];
} shared;

typedef struct message {
    nrd_message_kind kind;
    size_t bytes;
    _Alignas(64) uint8_t data[];
} message;

/* Address space; what is not used takes no memory. */
enum { SLOT_BYTES = NRD_RANKS_MESSAGE_BYTES + ALIGN };

struct nrd_segment {
    shared *at;
    nrd_mirror *mirror; /* NULL: all ranks are on this host */
    int32_t rank;
    uint32_t held; /* the message that is being read; 0: none yet */
};

static size_t align(size_t n)
{
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

static nrd_error *map(nrd_segment **out, int fd, size_t bytes, int32_t rank)
{
    nrd_error *err = NULL;
    nrd_segment *s = NULL;

    NRD_NEW_GOTO(s, 1, err, fail);
    s->rank = rank;
    s->at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (s->at == MAP_FAILED) {
        free(s);
        return nrd_errorf(NRD_ERR_UNAVAILABLE, "no shared memory for ranks: %s", strerror(errno));
    }
    *out = s;
fail:
    return err;
}

nrd_error *nrd_segment_new(nrd_segment **out, int32_t size, int32_t n_ahead, size_t comm_bytes,
                           const nrd_rank_config *config, int *out_fd)
{
    size_t comm = align(sizeof(shared)), slots = comm + align(comm_bytes);
    const int32_t n_slots = n_ahead < MAX_SLOTS ? n_ahead : MAX_SLOTS;
    size_t total = slots + (size_t)n_slots * SLOT_BYTES;
    int fd = (int)syscall(SYS_memfd_create, "nereid-ranks", 1u /* MFD_CLOEXEC */);

    *out = NULL;
    *out_fd = -1;
    if (fd < 0 || ftruncate(fd, (off_t)total) != 0) {
        nrd_error *err = nrd_errorf(NRD_ERR_UNAVAILABLE, "no shared memory for ranks: %s", strerror(errno));
        if (fd >= 0) {
            close(fd);
        }
        return err;
    }
    nrd_error *err = map(out, fd, total, 0);
    if (err) {
        close(fd);
        return err;
    }
    shared *at = (*out)->at;
    at->size = size;
    at->n_slots = n_slots;
    at->comm_offset = comm;
    at->slot_offset = slots;
    at->total = total;
    at->config = *config;
    strncpy(at->build, nrd_device_id(), sizeof at->build - 1);
    *out_fd = fd;
    return NULL;
}

nrd_error *nrd_segment_open(nrd_segment **out, int fd, int32_t rank)
{
    off_t bytes = lseek(fd, 0, SEEK_END);

    *out = NULL;
    if (bytes < (off_t)sizeof(shared)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "descriptor %d is no memory of ranks", fd);
    }
    NRD_TRY(map(out, fd, (size_t)bytes, rank));
    const shared *at = (*out)->at;
    bool same = !strncmp(at->build, nrd_device_id(), sizeof at->build - 1);
    if (!same || at->total != (size_t)bytes || rank < 1 || rank >= at->size) {
        nrd_segment_free(*out);
        *out = NULL;
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          same ? "rank %d is none of this executor" : "rank %d is of another build", rank);
    }
    return NULL;
}

void nrd_segment_free(nrd_segment *s)
{
    if (s) {
        nrd_mirror_close(s->mirror);
        munmap(s->at, s->at->total);
        free(s);
    }
}

int32_t nrd_segment_size(const nrd_segment *s)
{
    return s->at->size;
}

const nrd_rank_config *nrd_segment_config(const nrd_segment *s)
{
    return &s->at->config;
}

void *nrd_segment_comm(const nrd_segment *s)
{
    return (uint8_t *)s->at + s->at->comm_offset;
}

static _Atomic uint32_t *stop_word(const nrd_segment *s)
{
    return (_Atomic uint32_t *)(void *)nrd_comm_stop_word(nrd_segment_comm(s));
}

void nrd_segment_stop(nrd_segment *s, int32_t lost_rank)
{
    uint32_t none = 0;
    atomic_compare_exchange_strong(stop_word(s), &none, (uint32_t)lost_rank + 1); /* the first is the cause */
}

bool nrd_segment_is_stopped(const nrd_segment *s)
{
    return atomic_load_explicit(stop_word(s), memory_order_relaxed) != 0;
}

void nrd_segment_beat(nrd_segment *s, int32_t rank, int64_t still_ms)
{
    atomic_store(&s->at->life[rank].process, (int32_t)getpid());
    atomic_store(&s->at->life[rank].thread, (int32_t)syscall(SYS_gettid));
    atomic_store(&s->at->life[rank].still_ms, still_ms);
    atomic_fetch_add(&s->at->life[rank].n_beats, 1);
}

nrd_rank_life nrd_segment_life(const nrd_segment *s, int32_t rank)
{
    return (nrd_rank_life){
        .process = atomic_load(&s->at->life[rank].process),
        .thread = atomic_load(&s->at->life[rank].thread),
        .n_beats = atomic_load(&s->at->life[rank].n_beats),
        .still_ms = atomic_load(&s->at->life[rank].still_ms),
    };
}

/* ---- other hosts ---- */

nrd_mirror_memory nrd_segment_memory(const nrd_segment *s)
{
    const size_t own = offsetof(shared, published);
    return (nrd_mirror_memory){
        .base = (uint8_t *)s->at + own, .bytes = s->at->total - own, .stop = stop_word(s)};
}

void nrd_segment_set_hosts(nrd_segment *s, const nrd_rank_hosts *hosts)
{
    s->at->config.hosts = *hosts;
}

nrd_error *nrd_segment_connect(nrd_segment *s)
{
    const nrd_mirror_memory memory = nrd_segment_memory(s);
    const nrd_rank_hosts *hosts = &s->at->config.hosts;
    return hosts->n > 1 ? nrd_mirror_open(&s->mirror, &memory, hosts, s->rank, s->at->size) : NULL;
}

static void wrote(void *user, int32_t first, int32_t n, const void *data, size_t bytes, const void *mark, uint32_t value)
{
    nrd_mirror_wrote(((nrd_segment *)user)->mirror, first, n, data, bytes, mark, value);
}

nrd_comm_far nrd_segment_far(nrd_segment *s)
{
    return s->mirror ? (nrd_comm_far){.host_of = s->at->config.hosts.of, .wrote = wrote, .user = s} : (nrd_comm_far){0};
}

/* ---- messages ---- */

static message *slot(const nrd_segment *s, uint32_t n)
{
    return (message *)(void *)((uint8_t *)s->at + s->at->slot_offset + (size_t)(n % (uint32_t)s->at->n_slots) * SLOT_BYTES);
}

/* Counts *at up to n; n_ranks ranks from `first` on wait for that, and read `bytes` at `data`. */
static void tell(nrd_segment *s, int32_t first, int32_t n_ranks, const void *data, size_t bytes, _Atomic uint32_t *at, uint32_t n)
{
    atomic_store(at, n);
    if (atomic_load(&s->at->sleepers)) {
        syscall(SYS_futex, at, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
    }
    if (s->mirror) {
        nrd_mirror_wrote(s->mirror, first, n_ranks, data, bytes, at, n);
    }
}

/* Waits until *at has reached n; false: the ranks were stopped. */
static bool wait_for(nrd_segment *s, _Atomic uint32_t *at, uint32_t n)
{
    const struct timespec most = {0, SLEEP_MS * 1000000};

    for (int spins = 0; (int32_t)(atomic_load_explicit(at, memory_order_acquire) - n) < 0; spins++) {
        if (nrd_segment_is_stopped(s)) {
            return false;
        }
        if (spins < SPINS) {
            nrd_spin_pause();
            continue;
        }
        atomic_fetch_add(&s->at->sleepers, 1); /* before the last look: the waker looks after its write */
        uint32_t seen = atomic_load(at);
        if ((int32_t)(seen - n) < 0) {
            syscall(SYS_futex, at, FUTEX_WAIT, seen, &most, NULL, 0);
        }
        atomic_fetch_sub(&s->at->sleepers, 1);
    }
    return true;
}

static nrd_error *stopped(void)
{
    return nrd_errorf(NRD_ERR_UNAVAILABLE, "the ranks were stopped");
}

nrd_error *nrd_segment_begin(nrd_segment *s, void **out)
{
    uint32_t n = atomic_load(&s->at->published) + 1;

    *out = NULL;
    const uint32_t n_slots = (uint32_t)s->at->n_slots;
    for (int32_t i = 1; i < s->at->size && n > n_slots; i++) {
        if (!wait_for(s, &s->at->rank[i].read, n - n_slots)) {
            return stopped();
        }
    }
    *out = slot(s, n)->data;
    return NULL;
}

void nrd_segment_end(nrd_segment *s, nrd_message_kind kind, size_t bytes)
{
    const uint32_t n = atomic_load(&s->at->published) + 1;
    message *m = slot(s, n);

    m->kind = kind;
    m->bytes = bytes;
    tell(s, 1, s->at->size - 1, m, sizeof *m + bytes, &s->at->published, n);
}

nrd_error *nrd_segment_drain(nrd_segment *s)
{
    for (int32_t i = 1; i < s->at->size; i++) {
        if (!wait_for(s, &s->at->rank[i].read, atomic_load(&s->at->published))) {
            return stopped();
        }
    }
    return NULL;
}

nrd_error *nrd_segment_next(nrd_segment *s, nrd_message_kind *kind, const void **out, size_t *out_bytes)
{
    if (s->held > 0) {
        tell(s, 0, 1, NULL, 0, &s->at->rank[s->rank].read, s->held);
    }
    if (!wait_for(s, &s->at->published, s->held + 1)) {
        return stopped();
    }
    s->held++;
    const message *m = slot(s, s->held);
    *kind = m->kind;
    *out = m->data;
    *out_bytes = m->bytes;
    return *out_bytes <= NRD_RANKS_MESSAGE_BYTES
               ? NULL
               : nrd_errorf(NRD_ERR_INTERNAL, "a message of %zu bytes, the limit is %d", *out_bytes,
                            (int)NRD_RANKS_MESSAGE_BYTES);
}
