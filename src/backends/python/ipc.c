/* SPDX-License-Identifier: Apache-2.0
 * The memory file that the server and a stub process share: mapping, sleeping and waking with
 * futexes, an allocator for each side's half, blocks that one side gives back to the other through
 * a ring, and the encoding of messages and tensors. Compiled into both sides; each uses its own
 * half of the functions. */
#include "backends/python/ipc.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* ---- the file ---- */

enum { PAGE = 4096 };

static uint64_t round_up(uint64_t v, uint64_t to)
{
    return (v + to - 1) / to * to;
}

int nrd_py_map_create(nrd_py_map *m, const char *name, uint64_t want_half_bytes)
{
    uint64_t control = round_up(sizeof(nrd_py_control), 1 << 20);
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);

    memset(m, 0, sizeof *m);
    if (fd < 0) {
        return -1;
    }
    for (uint64_t half = want_half_bytes; half >= 1 << 24; half /= 2) {
        uint64_t bytes = control + 2 * half;
        if (ftruncate(fd, (off_t)bytes) != 0) {
            continue; /* a limit on file sizes */
        }
        void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
        if (p == MAP_FAILED) {
            continue; /* a limit on address space */
        }
        m->base = p;
        m->ctl = p;
        m->bytes = bytes;
        m->ctl->abi = NRD_PY_ABI;
        m->ctl->file_bytes = bytes;
        m->ctl->server_base = control;
        m->ctl->stub_base = control + half;
        m->ctl->half_bytes = half;
        /* Neither side can cut the file under the other's feet. */
        (void)fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
        return fd;
    }
    int saved = errno;
    close(fd);
    errno = saved;
    return -1;
}

bool nrd_py_map_open(nrd_py_map *m, int fd)
{
    struct stat st;
    void *p;

    memset(m, 0, sizeof *m);
    if (fstat(fd, &st) != 0) {
        return false;
    }
    if ((uint64_t)st.st_size < sizeof(nrd_py_control)) {
        errno = EINVAL;
        return false;
    }
    p = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (p == MAP_FAILED) {
        return false;
    }
    m->base = p;
    m->ctl = p;
    m->bytes = (size_t)st.st_size;
    if (m->ctl->abi != NRD_PY_ABI || m->ctl->file_bytes != (uint64_t)st.st_size) {
        nrd_py_map_close(m);
        errno = EPROTO;
        return false;
    }
    return true;
}

void nrd_py_map_close(nrd_py_map *m)
{
    if (m->base) {
        munmap(m->base, m->bytes);
    }
    memset(m, 0, sizeof *m);
}

bool nrd_py_map_has(const nrd_py_map *m, uint64_t offset, uint64_t bytes)
{
    uint64_t first = round_up(sizeof(nrd_py_control), 1 << 20);
    return offset >= first && offset <= m->bytes && bytes <= m->bytes - offset;
}

/* ---- futex ---- */

void nrd_py_wake(_Atomic uint32_t *word, int n)
{
    syscall(SYS_futex, word, FUTEX_WAKE, n, NULL, NULL, 0);
}

void nrd_py_sleep(_Atomic uint32_t *word, uint32_t seen, int timeout_ms)
{
    struct timespec t = {.tv_sec = timeout_ms / 1000, .tv_nsec = timeout_ms % 1000 * 1000000L};
    syscall(SYS_futex, word, FUTEX_WAIT, seen, timeout_ms < 0 ? NULL : &t, NULL, 0);
}

void nrd_py_post(nrd_py_channel *c, uint32_t type, uint32_t failed, uint64_t offset, uint64_t bytes)
{
    c->type = type;
    c->failed = failed;
    c->offset = offset;
    c->bytes = bytes;
    atomic_fetch_add(&c->seq, 1);
    if (atomic_load(&c->sleepers)) {
        nrd_py_wake(&c->seq, INT_MAX);
    }
}

bool nrd_py_await(nrd_py_channel *c, uint32_t seen, int timeout_ms)
{
    if (atomic_load(&c->seq) == seen) {
        atomic_fetch_add(&c->sleepers, 1);
        nrd_py_sleep(&c->seq, seen, timeout_ms);
        atomic_fetch_sub(&c->sleepers, 1);
    }
    return atomic_load(&c->seq) != seen;
}

/* ---- heap ----
 *
 * Blocks below LARGE come from classes (four to each power of two) and go back to their class.
 * Larger ones are spans of pages in a list sorted by offset, first fit, merged when freed; their
 * number is small, a handful of tensors in flight. Bookkeeping is a hash from offset to size. */

enum { LARGE = 65536, N_CLASSES = 36, KEEP_BYTES = 128 << 20 };

typedef struct span {
    struct span *next;
    uint64_t offset, bytes;
} span;

typedef struct block {
    struct block *next;
    uint64_t offset, bytes;
} block;

struct nrd_py_heap {
    pthread_mutex_t mu; /* guards everything below */
    uint8_t *file;
    uint64_t base, end, top; /* [base, top) was handed out at least once */
    nrd_py_returns *back;
    block *free_class[N_CLASSES];
    span *spans;             /* free, sorted by offset */
    block **table;           /* blocks in use, by offset */
    size_t n_table, n_used;
    uint64_t used, kept;     /* bytes in use; bytes of free spans whose pages exist */
};

static unsigned class_of(uint64_t bytes, uint64_t *out_size)
{
    unsigned shift = 8;

    if (bytes <= 256) {
        unsigned k = bytes ? (unsigned)((bytes - 1) / 64) : 0;
        *out_size = (k + 1) * 64u;
        return k;
    }
    while (((uint64_t)1 << (shift + 1)) < bytes) {
        shift++;
    }
    /* 2^shift < bytes <= 2^(shift+1), in quarters */
    uint64_t quarter = (uint64_t)1 << (shift - 2);
    uint64_t k = (bytes - ((uint64_t)1 << shift) + quarter - 1) / quarter;
    *out_size = ((uint64_t)1 << shift) + k * quarter;
    return (unsigned)(4 + (shift - 8) * 4 + k - 1);
}

nrd_py_heap *nrd_py_heap_new(uint8_t *file, uint64_t base, uint64_t bytes, nrd_py_returns *back)
{
    nrd_py_heap *h = calloc(1, sizeof *h);
    if (!h) {
        return NULL;
    }
    h->n_table = 256;
    h->table = calloc(h->n_table, sizeof(block *));
    if (!h->table) {
        free(h);
        return NULL;
    }
    pthread_mutex_init(&h->mu, NULL);
    h->file = file;
    h->base = h->top = base;
    h->end = base + bytes;
    h->back = back;
    return h;
}

static void blocks_free(block *b)
{
    while (b) {
        block *next = b->next;
        free(b);
        b = next;
    }
}

void nrd_py_heap_free(nrd_py_heap *h)
{
    if (!h) {
        return;
    }
    for (size_t i = 0; i < h->n_table; i++) {
        blocks_free(h->table[i]);
    }
    for (size_t i = 0; i < N_CLASSES; i++) {
        blocks_free(h->free_class[i]);
    }
    for (span *s = h->spans; s;) {
        span *next = s->next;
        free(s);
        s = next;
    }
    free(h->table);
    pthread_mutex_destroy(&h->mu);
    free(h);
}

static size_t slot_of(const nrd_py_heap *h, uint64_t offset)
{
    return (size_t)((offset >> 6) * 0x9e3779b97f4a7c15u >> 20) & (h->n_table - 1);
}

static void table_grow(nrd_py_heap *h)
{
    size_t n = h->n_table * 2, old = h->n_table;
    block **table = calloc(n, sizeof(block *)), **from = h->table;
    if (!table) {
        return; /* longer chains, nothing worse */
    }
    h->n_table = n;
    h->table = table;
    for (size_t i = 0; i < old; i++) {
        for (block *b = from[i]; b;) {
            block *next = b->next;
            size_t k = slot_of(h, b->offset);
            b->next = table[k];
            table[k] = b;
            b = next;
        }
    }
    free(from);
}

static void table_add(nrd_py_heap *h, block *b)
{
    if (++h->n_used > h->n_table) {
        table_grow(h);
    }
    size_t k = slot_of(h, b->offset);
    b->next = h->table[k];
    h->table[k] = b;
    h->used += b->bytes;
}

static block *table_take(nrd_py_heap *h, uint64_t offset)
{
    for (block **p = &h->table[slot_of(h, offset)]; *p; p = &(*p)->next) {
        if ((*p)->offset == offset) {
            block *b = *p;
            *p = b->next;
            h->n_used--;
            h->used -= b->bytes;
            return b;
        }
    }
    return NULL;
}

/* Puts [offset, offset + bytes) into the sorted list, merged with its neighbours. */
static void span_add(nrd_py_heap *h, uint64_t offset, uint64_t bytes)
{
    span **p = &h->spans, *before = NULL;

    while (*p && (*p)->offset < offset) {
        before = *p;
        p = &(*p)->next;
    }
    if (before && before->offset + before->bytes == offset) {
        before->bytes += bytes;
    } else {
        span *s = malloc(sizeof *s);
        if (!s) {
            return; /* the space is lost until the half goes */
        }
        s->offset = offset;
        s->bytes = bytes;
        s->next = *p;
        *p = s;
        before = s;
    }
    if (before->next && before->offset + before->bytes == before->next->offset) {
        span *after = before->next;
        before->bytes += after->bytes;
        before->next = after->next;
        free(after);
    }
}

static uint64_t span_take(nrd_py_heap *h, uint64_t bytes)
{
    for (span **p = &h->spans; *p; p = &(*p)->next) {
        span *s = *p;
        if (s->bytes >= bytes) {
            uint64_t offset = s->offset;
            s->offset += bytes;
            s->bytes -= bytes;
            if (s->bytes == 0) {
                *p = s->next;
                free(s);
            }
            h->kept = h->kept > bytes ? h->kept - bytes : 0;
            return offset;
        }
    }
    return 0;
}

static uint64_t fresh(nrd_py_heap *h, uint64_t bytes, uint64_t align)
{
    uint64_t offset = round_up(h->top, align);
    if (offset > h->end || bytes > h->end - offset) {
        return 0;
    }
    h->top = offset + bytes;
    return offset;
}

static void release_locked(nrd_py_heap *h, uint64_t offset)
{
    uint64_t size;
    block *b = table_take(h, offset);

    if (!b) {
        return; /* given back twice, or never ours: the other side is confused, we are not */
    }
    if (b->bytes < LARGE) {
        unsigned k = class_of(b->bytes, &size);
        b->next = h->free_class[k];
        h->free_class[k] = b;
        return;
    }
    /* Pages are kept for the next tensor of that size, up to a limit. */
    if (h->kept + b->bytes > KEEP_BYTES) {
        madvise(h->file + b->offset, b->bytes, MADV_REMOVE);
    } else {
        h->kept += b->bytes;
    }
    span_add(h, b->offset, b->bytes);
    free(b);
}

static void collect(nrd_py_heap *h)
{
    uint32_t head = atomic_load_explicit(&h->back->head, memory_order_relaxed);
    uint32_t tail = atomic_load_explicit(&h->back->tail, memory_order_acquire);
    for (uint32_t n = 0; head != tail && n < NRD_PY_RETURNS; n++, head++) {
        release_locked(h, h->back->offset[head % NRD_PY_RETURNS]);
    }
    atomic_store_explicit(&h->back->head, head, memory_order_release);
}

uint64_t nrd_py_heap_alloc(nrd_py_heap *h, uint64_t bytes)
{
    uint64_t size = 0, offset = 0;
    block *b = NULL;

    if (bytes > h->end - h->base) {
        return 0;
    }
    pthread_mutex_lock(&h->mu);
    collect(h);
    unsigned k = bytes < LARGE ? class_of(bytes, &size) : N_CLASSES;
    if (bytes < LARGE && size < LARGE) {
        b = h->free_class[k];
        if (b) {
            h->free_class[k] = b->next;
            offset = b->offset;
        } else {
            offset = fresh(h, size, 64);
        }
    } else {
        size = round_up(bytes < LARGE ? LARGE : bytes, PAGE);
        offset = span_take(h, size);
        if (!offset) {
            offset = fresh(h, size, PAGE);
        }
    }
    if (offset && !b) {
        b = malloc(sizeof *b);
        if (b) {
            b->offset = offset;
            b->bytes = size;
        } else {
            offset = 0;
        }
    }
    if (offset) {
        table_add(h, b);
    }
    pthread_mutex_unlock(&h->mu);
    return offset;
}

void nrd_py_heap_release(nrd_py_heap *h, uint64_t offset)
{
    pthread_mutex_lock(&h->mu);
    release_locked(h, offset);
    pthread_mutex_unlock(&h->mu);
}

uint64_t nrd_py_heap_used(nrd_py_heap *h)
{
    pthread_mutex_lock(&h->mu);
    collect(h);
    uint64_t used = h->used;
    pthread_mutex_unlock(&h->mu);
    return used;
}

/* ---- giving back ---- */

void nrd_py_returner_init(nrd_py_returner *r, nrd_py_returns *ring)
{
    memset(r, 0, sizeof *r);
    r->ring = ring;
    pthread_mutex_init(&r->mu, NULL);
}

void nrd_py_returner_fini(nrd_py_returner *r)
{
    free(r->late);
    pthread_mutex_destroy(&r->mu);
}

static bool ring_add(nrd_py_returns *ring, uint64_t offset)
{
    uint32_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);
    uint32_t head = atomic_load_explicit(&ring->head, memory_order_acquire);
    if (tail - head >= NRD_PY_RETURNS) {
        return false;
    }
    ring->offset[tail % NRD_PY_RETURNS] = offset;
    atomic_store_explicit(&ring->tail, tail + 1, memory_order_release);
    return true;
}

void nrd_py_return(nrd_py_returner *r, uint64_t offset)
{
    pthread_mutex_lock(&r->mu);
    while (r->n_late && ring_add(r->ring, r->late[r->n_late - 1])) {
        r->n_late--;
    }
    if (r->n_late || !ring_add(r->ring, offset)) {
        if (r->n_late == r->cap_late) {
            size_t cap = r->cap_late ? r->cap_late * 2 : 1024;
            uint64_t *late = realloc(r->late, cap * sizeof *late);
            if (late) {
                r->late = late;
                r->cap_late = cap;
            }
        }
        if (r->n_late < r->cap_late) {
            r->late[r->n_late++] = offset;
        }
    }
    pthread_mutex_unlock(&r->mu);
}

/* ---- messages ---- */

static void put(nrd_py_writer *w, const void *data, size_t n)
{
    if (w->failed) {
        return;
    }
    if (n > w->cap - w->len) {
        size_t cap = w->cap ? w->cap : 1024;
        while (cap - w->len < n && cap < SIZE_MAX / 2) {
            cap *= 2;
        }
        uint8_t *p = cap - w->len < n ? NULL : realloc(w->data, cap);
        if (!p) {
            w->failed = true;
            return;
        }
        w->data = p;
        w->cap = cap;
    }
    if (n) {
        memcpy(w->data + w->len, data, n);
    }
    w->len += n;
}

void nrd_py_put_u8(nrd_py_writer *w, uint8_t v)
{
    put(w, &v, sizeof v);
}

void nrd_py_put_u32(nrd_py_writer *w, uint32_t v)
{
    put(w, &v, sizeof v);
}

void nrd_py_put_u64(nrd_py_writer *w, uint64_t v)
{
    put(w, &v, sizeof v);
}

void nrd_py_put_str(nrd_py_writer *w, const char *s, size_t n)
{
    if (n >= UINT32_MAX) {
        w->failed = true;
        return;
    }
    nrd_py_put_u32(w, (uint32_t)n);
    put(w, s, n);
    nrd_py_put_u8(w, 0);
}

void nrd_py_put_cstr(nrd_py_writer *w, const char *s)
{
    nrd_py_put_str(w, s ? s : "", s ? strlen(s) : 0);
}

void nrd_py_writer_fini(nrd_py_writer *w)
{
    free(w->data);
    memset(w, 0, sizeof *w);
}

const void *nrd_py_get(nrd_py_reader *r, size_t n)
{
    if (r->bad || n > (size_t)(r->end - r->p)) {
        r->bad = true;
        return NULL;
    }
    const void *at = r->p;
    r->p += n;
    return at;
}

uint8_t nrd_py_get_u8(nrd_py_reader *r)
{
    const uint8_t *p = nrd_py_get(r, 1);
    return p ? *p : 0;
}

uint32_t nrd_py_get_u32(nrd_py_reader *r)
{
    uint32_t v = 0;
    const void *p = nrd_py_get(r, sizeof v);
    if (p) {
        memcpy(&v, p, sizeof v);
    }
    return v;
}

uint64_t nrd_py_get_u64(nrd_py_reader *r)
{
    uint64_t v = 0;
    const void *p = nrd_py_get(r, sizeof v);
    if (p) {
        memcpy(&v, p, sizeof v);
    }
    return v;
}

const char *nrd_py_get_str(nrd_py_reader *r, size_t *out_n)
{
    uint32_t n = nrd_py_get_u32(r);
    const char *s = nrd_py_get(r, (size_t)n + 1);
    if (!s || s[n] != '\0') {
        r->bad = true;
        n = 0;
        s = "";
    }
    if (out_n) {
        *out_n = n;
    }
    return s;
}

/* ---- tensors ---- */

void nrd_py_message_begin(nrd_py_message *m, nrd_py_heap *heap, uint8_t *file)
{
    m->heap = heap;
    m->file = file;
    m->w.len = 0;
    m->w.failed = false;
    m->n_pieces = m->n_blocks = 0;
    m->inline_bytes = m->block_left = m->piece_left = 0;
    m->block = NULL;
    nrd_py_put_u64(&m->w, 0);
}

static void *grown(void *p, size_t n, size_t *cap, size_t size)
{
    if (n < *cap) {
        return p;
    }
    size_t more = *cap ? *cap * 2 : 16;
    void *q = realloc(p, more * size);
    if (q) {
        *cap = more;
    }
    return q;
}

static void add_block(nrd_py_message *m, uint64_t offset)
{
    uint64_t *p = grown(m->blocks, m->n_blocks, &m->cap_blocks, sizeof *p);
    if (!p) {
        nrd_py_heap_release(m->heap, offset);
        m->w.failed = true;
        return;
    }
    m->blocks = p;
    m->blocks[m->n_blocks++] = offset;
}

static void put_head(nrd_py_message *m, const char *name, size_t name_len, uint32_t dtype,
                     const int64_t *dims, uint32_t n_dims, uint64_t bytes, nrd_py_data how,
                     uint64_t where)
{
    if (n_dims > NRD_PY_MAX_DIMS) {
        m->w.failed = true;
        return;
    }
    nrd_py_put_str(&m->w, name, name_len);
    nrd_py_put_u32(&m->w, dtype);
    nrd_py_put_u32(&m->w, n_dims);
    put(&m->w, dims, n_dims * sizeof *dims);
    nrd_py_put_u64(&m->w, bytes);
    nrd_py_put_u8(&m->w, (uint8_t)how);
    nrd_py_put_u64(&m->w, where);
}

void nrd_py_message_tensor(nrd_py_message *m, const char *name, size_t name_len, uint32_t dtype,
                           const int64_t *dims, uint32_t n_dims, uint64_t bytes)
{
    m->block = NULL;
    m->block_left = m->piece_left = 0;
    if (bytes <= NRD_PY_INLINE) {
        m->inline_bytes = round_up(m->inline_bytes, 64);
        put_head(m, name, name_len, dtype, dims, n_dims, bytes, NRD_PY_DATA_INSIDE,
                 m->inline_bytes);
        m->piece_left = bytes;
        return;
    }
    uint64_t offset = nrd_py_heap_alloc(m->heap, bytes);
    if (!offset) {
        m->w.failed = true;
        return;
    }
    add_block(m, offset);
    put_head(m, name, name_len, dtype, dims, n_dims, bytes, NRD_PY_DATA_BLOCK, offset);
    m->block = m->file + offset;
    m->block_left = bytes;
}

void nrd_py_message_data(nrd_py_message *m, const void *data, uint64_t n)
{
    if (m->w.failed || n == 0) {
        return;
    }
    if (m->block) {
        if (n > m->block_left) {
            m->w.failed = true;
            return;
        }
        memcpy(m->block, data, n);
        m->block += n;
        m->block_left -= n;
        return;
    }
    nrd_py_piece *p = grown(m->pieces, m->n_pieces, &m->cap_pieces, sizeof *p);
    if (!p || n > m->piece_left) {
        m->pieces = p ? p : m->pieces;
        m->w.failed = true;
        return;
    }
    m->pieces = p;
    m->pieces[m->n_pieces++] = (nrd_py_piece){.data = data, .bytes = n, .at = m->inline_bytes};
    m->inline_bytes += n;
    m->piece_left -= n;
}

void nrd_py_message_tensor_at(nrd_py_message *m, const char *name, size_t name_len, uint32_t dtype,
                              const int64_t *dims, uint32_t n_dims, uint64_t bytes, nrd_py_data how,
                              uint64_t where)
{
    m->block = NULL;
    m->block_left = m->piece_left = 0;
    if (how == NRD_PY_DATA_BLOCK) {
        add_block(m, where);
    }
    put_head(m, name, name_len, dtype, dims, n_dims, bytes, how, where);
}

bool nrd_py_message_finish(nrd_py_message *m, uint64_t *out_offset, uint64_t *out_bytes)
{
    uint64_t data_at = round_up(m->w.len, 64), offset = 0;

    if (!m->w.failed) {
        offset = nrd_py_heap_alloc(m->heap, data_at + m->inline_bytes);
    }
    if (!offset) {
        for (size_t i = 0; i < m->n_blocks; i++) {
            nrd_py_heap_release(m->heap, m->blocks[i]);
        }
        m->n_blocks = 0;
        return false;
    }
    uint8_t *at = m->file + offset;
    memcpy(at, m->w.data, m->w.len);
    memcpy(at, &data_at, sizeof data_at);
    for (size_t i = 0; i < m->n_pieces; i++) {
        memcpy(at + data_at + m->pieces[i].at, m->pieces[i].data, m->pieces[i].bytes);
    }
    *out_offset = offset;
    *out_bytes = data_at + m->inline_bytes;
    m->n_blocks = 0;
    return true;
}

void nrd_py_message_fini(nrd_py_message *m)
{
    nrd_py_writer_fini(&m->w);
    free(m->pieces);
    free(m->blocks);
    memset(m, 0, sizeof *m);
}

void nrd_py_reader_begin(nrd_py_reader *r, uint64_t *out_data_at, const nrd_py_map *map,
                         uint64_t offset, uint64_t bytes)
{
    memset(r, 0, sizeof *r);
    *out_data_at = 0;
    if (!nrd_py_map_has(map, offset, bytes)) {
        r->bad = true;
        return;
    }
    r->p = map->base + offset;
    r->end = r->p + bytes;
    *out_data_at = nrd_py_get_u64(r);
    if (*out_data_at > bytes) {
        r->bad = true;
    } else {
        *out_data_at += offset;
    }
}

bool nrd_py_get_tensor(nrd_py_reader *r, const nrd_py_map *map, uint64_t data_at,
                       nrd_py_tensor *out)
{
    out->name = nrd_py_get_str(r, NULL);
    out->dtype = nrd_py_get_u32(r);
    out->n_dims = nrd_py_get_u32(r);
    if (out->n_dims > NRD_PY_MAX_DIMS) {
        r->bad = true;
        return false;
    }
    const void *dims = nrd_py_get(r, out->n_dims * sizeof(int64_t));
    if (dims) {
        memcpy(out->dims, dims, out->n_dims * sizeof(int64_t));
    }
    out->bytes = nrd_py_get_u64(r);
    out->how = (nrd_py_data)nrd_py_get_u8(r);
    out->where = nrd_py_get_u64(r);
    if (r->bad || out->how > NRD_PY_DATA_REMOTE) {
        r->bad = true;
        return false;
    }
    if (out->how == NRD_PY_DATA_INSIDE) {
        out->where += data_at;
    }
    if (out->how != NRD_PY_DATA_REMOTE && !nrd_py_map_has(map, out->where, out->bytes)) {
        r->bad = true;
    }
    return !r->bad;
}
