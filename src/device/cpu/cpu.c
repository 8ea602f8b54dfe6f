/* SPDX-License-Identifier: Apache-2.0
 * The CPU device: memory, streams, weights, and the vtable. */
#include "device/cpu/cpu.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/numa.h"
#include "base/str.h"
#include "device/cpu/cache_memory.h"
#include "device/cpu/comm.h"
#include "device/cpu/walk.h"
#include "device/device.h"
#include "device/ops/pack.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    MAX_COMMANDS = 1024, /* a longer list is run when it is full */
    MAX_POOLS = 64,
    MAPPED = 256 << 10, /* from here on memory is mapped, and taken as it is touched */
    ARENA_BYTES = 64 << 10, /* copied host arrays of a step */
    COPY_CHUNK = 1 << 20,
};

typedef struct memory_pool {
    char name[32];
    uint64_t bytes;
} memory_pool;

typedef struct block_head { /* 256 bytes in front of every allocation */
    size_t total_bytes;
    int pool_id;
    bool is_mapped;
} block_head;

typedef struct nrd_cpu {
    nrd_device dev;
    const nrd_cpu_kernels *k;
    nrd_threads *threads;
    pthread_mutex_t lock;
    memory_pool pools[MAX_POOLS]; /* guarded by lock */
    int n_pools;                  /* guarded by lock */
} nrd_cpu;

struct nrd_stream {
    nrd_cpu *dev;
    nrd_cpu_cmd *list; /* [MAX_COMMANDS] */
    int n;
    nrd_cpu_walk *walk;
    uint64_t enqueued, done; /* commands since the start */
    uint8_t **scratch;       /* [threads] */
    size_t scratch_bytes, shared_bytes;
    uint8_t *shared;
    uint8_t *arena;
    size_t arena_used;
    nrd_cpu_prefix prefix;
    const nrd_comm *comm; /* of the collective operations that were enqueued; or NULL */
};

struct nrd_event {
    nrd_stream *stream;
    uint64_t at; /* command count of the stream when it was recorded */
};

static nrd_cpu *cpu_of(nrd_device *dev)
{
    return (nrd_cpu *)dev;
}

/* ---- memory ---- */

static nrd_error *cpu_alloc(nrd_device *dev, void **out, nrd_mem_kind kind, size_t bytes, const char *pool_name)
{
    nrd_cpu *cpu = cpu_of(dev);
    size_t total;
    block_head *h = NULL;

    (void)kind; /* host and device memory are one */
    *out = NULL;
    if (!nrd_size_add(bytes, 256, &total)) {
        return nrd_error_no_memory();
    }
    const bool big = total >= MAPPED, is_cache = pool_name && strcmp(pool_name, "kv cache") == 0;
    if (big) {
        h = is_cache && total >= NRD_CPU_HUGE_PAGE
                ? nrd_cpu_map_cache(total)
                : mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (h == MAP_FAILED) {
            return nrd_errorf(NRD_ERR_UNAVAILABLE, "cpu: no memory for %zu bytes of %s", bytes,
                              pool_name ? pool_name : "a pool");
        }
        if (total >= NRD_CPU_HUGE_PAGE) {
            (void)madvise(h, total, MADV_HUGEPAGE); /* fewer TLB misses where the system allows */
        }
        if (!pool_name || strcmp(pool_name, "scratch") != 0) { /* that is near the thread that uses it */
            nrd_numa_interleave(h, total);
        }
    } else {
        h = nrd_aligned_zalloc(256, total);
        if (!h) {
            return nrd_error_no_memory();
        }
    }
    pthread_mutex_lock(&cpu->lock);
    int id = 0;
    const char *name = pool_name ? pool_name : "other";
    while (id < cpu->n_pools && strcmp(cpu->pools[id].name, name) != 0) {
        id++;
    }
    if (id == cpu->n_pools) {
        if (id < MAX_POOLS) {
            snprintf(cpu->pools[id].name, sizeof cpu->pools[id].name, "%s", name);
            cpu->n_pools++;
        } else {
            id = MAX_POOLS - 1; /* the last row takes the rest */
        }
    }
    cpu->pools[id].bytes += bytes;
    pthread_mutex_unlock(&cpu->lock);
    h->total_bytes = total;
    h->pool_id = id;
    h->is_mapped = big;
    *out = (uint8_t *)h + 256;
    return NULL;
}

static void cpu_free(nrd_device *dev, nrd_mem_kind kind, void *p)
{
    nrd_cpu *cpu = cpu_of(dev);

    (void)kind;
    if (!p) {
        return;
    }
    block_head *h = (block_head *)(void *)((uint8_t *)p - 256);
    pthread_mutex_lock(&cpu->lock);
    cpu->pools[h->pool_id].bytes -= h->total_bytes - 256;
    pthread_mutex_unlock(&cpu->lock);
    if (h->is_mapped) {
        munmap(h, h->total_bytes);
    } else {
        free(h);
    }
}

static int32_t cpu_mem_report(nrd_device *dev, nrd_mem_report *rows, int32_t max_rows)
{
    nrd_cpu *cpu = cpu_of(dev);
    int32_t n = 0;

    pthread_mutex_lock(&cpu->lock);
    for (; n < cpu->n_pools && n < max_rows; n++) {
        rows[n].name = cpu->pools[n].name;
        rows[n].bytes = cpu->pools[n].bytes;
    }
    pthread_mutex_unlock(&cpu->lock);
    return n;
}

static void cpu_get_info(nrd_device *dev, nrd_device_info *info)
{
    nrd_cpu *cpu = cpu_of(dev);
    nrd_device_info full = {0};
    long page = sysconf(_SC_PAGESIZE), pages = sysconf(_SC_PHYS_PAGES), free_pages = sysconf(_SC_AVPHYS_PAGES);
    FILE *f = fopen("/proc/meminfo", "re");
    char line[128];

    full.n_threads = nrd_threads_size(cpu->threads);
    snprintf(full.name, sizeof full.name, "cpu: %s, %d thread%s", cpu->k->name, full.n_threads,
             full.n_threads == 1 ? "" : "s");
    full.host_is_device = true;
    full.act_dtype = NRD_DTYPE_F32;
    full.kv_dtype = NRD_DTYPE_F16;
    full.f32_rows = cpu->k->linear->mx_from ? cpu->k->linear->mx_from(NRD_DTYPE_Q4_0) : 0;
    full.mem_total_bytes = (uint64_t)pages * (uint64_t)page;
    full.mem_free_bytes = (uint64_t)free_pages * (uint64_t)page;
    while (f && fgets(line, sizeof line, f)) { /* what can be had includes the page cache */
        unsigned long long kib;
        if (sscanf(line, "MemAvailable: %20llu kB", &kib) == 1) {
            full.mem_free_bytes = (uint64_t)kib * 1024;
        }
    }
    if (f) {
        fclose(f);
    }
    *info = full;
}

/* ---- streams ---- */

static nrd_error *cpu_stream_new(nrd_device *dev, nrd_stream **out)
{
    nrd_error *err = NULL;
    nrd_stream *s = NULL;

    *out = NULL;
    NRD_NEW_GOTO(s, 1, err, fail);
    s->dev = cpu_of(dev);
    NRD_NEW_GOTO(s->list, MAX_COMMANDS, err, fail);
    NRD_NEW_GOTO(s->scratch, nrd_threads_size(s->dev->threads), err, fail);
    NRD_NEW_GOTO(s->arena, ARENA_BYTES, err, fail);
    NRD_TRY_GOTO(nrd_cpu_walk_new(&s->walk, nrd_threads_size(s->dev->threads), MAX_COMMANDS), err, fail);
    *out = s;
    return NULL;

fail:
    if (s) {
        free(s->arena);
        free(s->list);
        free(s->scratch);
        free(s);
    }
    return err;
}

static void cpu_stream_free(nrd_stream *s)
{
    if (!s) {
        return;
    }
    for (int i = 0; i < nrd_threads_size(s->dev->threads); i++) {
        cpu_free(&s->dev->dev, NRD_MEM_DEVICE, s->scratch[i]);
    }
    free(s->scratch);
    cpu_free(&s->dev->dev, NRD_MEM_DEVICE, s->shared);
    nrd_cpu_prefix_fini(&s->prefix);
    nrd_cpu_walk_free(s->walk);
    free(s->arena);
    free(s->list);
    free(s);
}

/* Mapped, not cleared: what a step does not touch takes no memory. */
static nrd_error *regrow(nrd_cpu *cpu, uint8_t **room, size_t bytes)
{
    void *p = NULL;

    cpu_free(&cpu->dev, NRD_MEM_DEVICE, *room);
    *room = NULL;
    NRD_TRY(cpu_alloc(&cpu->dev, &p, NRD_MEM_DEVICE, bytes + 64, "scratch"));
    *room = p;
    return NULL;
}

static nrd_error *grow(nrd_stream *s, size_t scratch_bytes, size_t shared_bytes)
{
    if (scratch_bytes > s->scratch_bytes) {
        s->scratch_bytes = 0;
        for (int i = 0; i < nrd_threads_size(s->dev->threads); i++) {
            NRD_TRY(regrow(s->dev, &s->scratch[i], scratch_bytes));
        }
        s->scratch_bytes = scratch_bytes;
    }
    if (shared_bytes > s->shared_bytes) {
        s->shared_bytes = 0;
        NRD_TRY(regrow(s->dev, &s->shared, shared_bytes));
        s->shared_bytes = shared_bytes;
    }
    return NULL;
}

static nrd_error *cpu_stream_sync(nrd_stream *s)
{
    if (s->n > 0) {
        nrd_cpu_walk_run(s->walk, s->dev->threads, s->list, s->n, s->scratch, s->shared);
    }
    s->done += (uint64_t)s->n;
    s->n = 0;
    s->arena_used = 0;
    s->prefix.view.n_seqs = 0;
    return s->comm ? nrd_cpu_comm_health(s->comm) : NULL;
}

static nrd_error *cpu_event_new(nrd_device *dev, nrd_event **out)
{
    (void)dev;
    *out = calloc(1, sizeof **out);
    return *out ? NULL : nrd_error_no_memory();
}

static void cpu_event_free(nrd_event *e)
{
    free(e);
}

static nrd_error *cpu_event_record(nrd_stream *s, nrd_event *e)
{
    e->stream = s;
    e->at = s->enqueued;
    return NULL;
}

static nrd_error *cpu_event_wait(nrd_event *e)
{
    if (!e->stream) {
        return NULL;
    }
    if (e->stream->done < e->at) {
        return cpu_stream_sync(e->stream);
    }
    return e->stream->comm ? nrd_cpu_comm_health(e->stream->comm) : NULL; /* of an earlier run */
}

static nrd_error *cpu_stream_wait(nrd_stream *s, nrd_event *e)
{
    return e->stream == s ? NULL : cpu_event_wait(e); /* same stream: already in order */
}

/* ---- commands ---- */

static nrd_error *new_command(nrd_stream *s, nrd_cpu_cmd **out)
{
    if (s->n == MAX_COMMANDS) {
        NRD_TRY(cpu_stream_sync(s));
    }
    nrd_cpu_cmd *c = &s->list[s->n];
    memset(c, 0, sizeof *c);
    c->k = s->dev->k;
    *out = c;
    return NULL;
}

static nrd_error *commit(nrd_stream *s, nrd_cpu_cmd *c)
{
    if (c->scratch_bytes > s->scratch_bytes || c->shared_bytes > s->shared_bytes) {
        NRD_TRY(grow(s, c->scratch_bytes, c->shared_bytes));
    }
    s->n++;
    s->enqueued++;
    return NULL;
}

#define ENQUEUE(field, view_line)                                                                  \
    static nrd_error *cpu_##field(nrd_stream *s, const nrd_##field##_args *a)                      \
    {                                                                                              \
        nrd_cpu_cmd *c;                                                                            \
        NRD_TRY(new_command(s, &c));                                                               \
        c->u.field = *a;                                                                    \
        NRD_TRY(nrd_##field##_check(&c->u.field));                                                 \
        view_line;                                                                                 \
        NRD_TRY(nrd_##field##_cpu(c, nrd_threads_size(s->dev->threads)));                          \
        return commit(s, c);                                                                       \
    }
#define TAKE_VIEW(field)                                                                           \
    do {                                                                                           \
        c->view = *c->u.field.batch;                                                               \
        c->u.field.batch = &c->view;                                                               \
    } while (0)

ENQUEUE(embed, (void)0)
ENQUEUE(add_rows, (void)0)
ENQUEUE(sum_spans, (void)0)
ENQUEUE(clamp, (void)0)
ENQUEUE(norm, (void)0)
ENQUEUE(linear, (void)0)
ENQUEUE(rope_kv, TAKE_VIEW(rope_kv))
ENQUEUE(head_squares, (void)0)
ENQUEUE(latent_kv, TAKE_VIEW(latent_kv))
ENQUEUE(latent_attention, TAKE_VIEW(latent_attention))
ENQUEUE(act, (void)0)
ENQUEUE(sample, (void)0)
ENQUEUE(counts, (void)0)
ENQUEUE(lora, (void)0)
ENQUEUE(moe_route, (void)0)
ENQUEUE(moe_linear, (void)0)
ENQUEUE(moe_sum, (void)0)
ENQUEUE(short_conv, TAKE_VIEW(short_conv))
ENQUEUE(ssm, TAKE_VIEW(ssm))
ENQUEUE(delta_rule, TAKE_VIEW(delta_rule))
ENQUEUE(gated_norm, (void)0)
ENQUEUE(rg_lru, TAKE_VIEW(rg_lru))
ENQUEUE(altup_predict, (void)0)
ENQUEUE(altup_correct, (void)0)
ENQUEUE(altup_match, (void)0)

static nrd_error *cpu_linear_sample(nrd_stream *s, const nrd_linear_args *l, const nrd_rough_weight *rough,
                                    const nrd_sample_args *a)
{
    nrd_cpu_cmd *c;
    bool fits = false;

    NRD_TRY(new_command(s, &c));
    c->u.linear_sample.linear = *l;
    c->u.linear_sample.sample = *a;
    c->u.linear_sample.rough = rough ? *rough : (nrd_rough_weight){0};
    NRD_TRY(nrd_linear_sample_check(l, rough, a));
    NRD_TRY(nrd_linear_sample_cpu(c, nrd_threads_size(s->dev->threads), &fits));
    if (fits) {
        return commit(s, c);
    }
    NRD_TRY(cpu_linear(s, l));
    return cpu_sample(s, a);
}

static nrd_error *cpu_linear_gated(nrd_stream *s, const nrd_linear_args *l, nrd_act_kind act, bool *done)
{
    nrd_cpu_cmd *c;

    NRD_TRY(new_command(s, &c));
    c->u.linear_gated.linear = *l;
    NRD_TRY(nrd_linear_gated_cpu(c, act, nrd_threads_size(s->dev->threads), done));
    return *done ? commit(s, c) : NULL;
}

/* Who shares blocks is found out once for all layers of a step. */
static nrd_error *cpu_attention(nrd_stream *s, const nrd_attention_args *args)
{
    nrd_attention_args a = *args;
    nrd_cpu_cmd *c;

    NRD_TRY(nrd_attention_check(&a));
    bool shares = nrd_attention_cpu_shares(&a, s->dev->k, nrd_threads_size(s->dev->threads));
    if (s->n == MAX_COMMANDS) { /* here, so that new_command does not empty the list */
        NRD_TRY(cpu_stream_sync(s));
    }
    if (shares && !nrd_cpu_prefix_is_of(&s->prefix, a.batch)) {
        if (s->prefix.view.n_seqs > 0) { /* another batch's is still in use */
            NRD_TRY(cpu_stream_sync(s));
        }
        NRD_TRY(nrd_cpu_prefix_fill(&s->prefix, a.batch, a.kv.block_tokens, NRD_ATTN_MIN_SHARED));
    }
    NRD_TRY(new_command(s, &c));
    c->u.attention = a;
    c->view = *a.batch;
    c->u.attention.batch = &c->view;
    c->prefix = shares && s->prefix.n_groups > 0 ? &s->prefix : NULL;
    NRD_TRY(nrd_attention_cpu(c, nrd_threads_size(s->dev->threads)));
    return commit(s, c);
}

static nrd_error *cpu_all_reduce(nrd_stream *s, const nrd_all_reduce_args *a)
{
    nrd_cpu_comm_part done = {0};
    nrd_cpu_cmd *c;

    NRD_TRY(nrd_all_reduce_check(a));
    if (a->dtype != NRD_DTYPE_F32) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cpu: all_reduce of %s", nrd_dtype_name(a->dtype));
    }
    s->comm = a->comm;
    for (;;) {
        NRD_TRY(new_command(s, &c));
        c->u.all_reduce = *a;
        if (!nrd_all_reduce_cpu(c, &done, nrd_threads_size(s->dev->threads))) {
            return NULL;
        }
        NRD_TRY(commit(s, c));
    }
}

static nrd_error *cpu_gather(nrd_stream *s, const nrd_gather_args *a)
{
    nrd_cpu_comm_part done = {0};
    nrd_cpu_cmd *c;

    NRD_TRY(nrd_gather_check(a));
    s->comm = a->comm;
    for (;;) {
        NRD_TRY(new_command(s, &c));
        c->u.gather = *a;
        if (!nrd_gather_cpu(c, &done, nrd_threads_size(s->dev->threads))) {
            return NULL;
        }
        NRD_TRY(commit(s, c));
    }
}

static nrd_error *transfer(nrd_stream *s, const nrd_transfer_args *a, bool sends)
{
    nrd_cpu_comm_part done = {0};
    nrd_cpu_cmd *c;

    NRD_TRY(nrd_transfer_check(a));
    s->comm = a->comm;
    for (;;) {
        NRD_TRY(new_command(s, &c));
        c->u.transfer = *a;
        if (!nrd_transfer_cpu(c, &done, sends)) {
            return NULL;
        }
        NRD_TRY(commit(s, c));
    }
}

static nrd_error *cpu_send(nrd_stream *s, const nrd_transfer_args *a)
{
    return transfer(s, a, true);
}

static nrd_error *cpu_receive(nrd_stream *s, const nrd_transfer_args *a)
{
    return transfer(s, a, false);
}

static void run_copy(nrd_cpu_run *r, nrd_cpu_cmd *c, int phase, int32_t task)
{
    const nrd_cpu_copy_args *a = &c->u.copy;
    size_t at = (size_t)task * COPY_CHUNK, n = a->bytes - at < COPY_CHUNK ? a->bytes - at : COPY_CHUNK;

    (void)r;
    (void)phase;
    if (a->src) {
        memmove((uint8_t *)a->dst + at, (const uint8_t *)a->src + at, n);
    } else {
        memset((uint8_t *)a->dst + at, a->byte, n);
    }
}

static const nrd_cpu_op op_copy = {run_copy};

static nrd_error *enqueue_copy(nrd_stream *s, nrd_cpu_copy_args a)
{
    nrd_cpu_cmd *c;

    if (a.bytes == 0) {
        return NULL;
    }
    if (a.bytes / COPY_CHUNK >= INT32_MAX) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "copy: %zu bytes", a.bytes);
    }
    NRD_TRY(new_command(s, &c));
    c->op = &op_copy;
    c->u.copy = a;
    c->n_tasks[0] = (int32_t)((a.bytes + COPY_CHUNK - 1) / COPY_CHUNK);
    return commit(s, c);
}

static nrd_error *cpu_copy(nrd_stream *s, void *dst, const void *src, size_t bytes)
{
    if (bytes > 0 && (!dst || !src)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "copy: %zu bytes from or to nowhere", bytes);
    }
    return enqueue_copy(s, (nrd_cpu_copy_args){dst, src, bytes, 0});
}

static nrd_error *cpu_fill(nrd_stream *s, void *dst, int byte, size_t bytes)
{
    if (bytes > 0 && !dst) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "fill: %zu bytes to nowhere", bytes);
    }
    return enqueue_copy(s, (nrd_cpu_copy_args){dst, NULL, bytes, byte});
}

static void *arena_copy(nrd_stream *s, const void *src, size_t bytes)
{
    void *at = s->arena + s->arena_used;

    memcpy(at, src, bytes);
    s->arena_used += (bytes + 15) & ~(size_t)15;
    return at;
}

static nrd_error *cpu_copy_blocks(nrd_stream *s, const nrd_copy_blocks_args *a)
{
    nrd_copy_blocks_args args = *a;
    nrd_cpu_cmd *c;

    NRD_TRY(nrd_copy_blocks_check(&args));
    size_t layers = (size_t)args.n_layers * sizeof *args.src, pairs = (size_t)args.n_pairs * 8;
    if (2 * layers + pairs + 48 > ARENA_BYTES) { /* too many to keep: now, in order */
        NRD_TRY(cpu_stream_sync(s));
        nrd_copy_blocks_ref(&args);
        return NULL;
    }
    if (s->arena_used + 2 * layers + pairs + 48 > ARENA_BYTES) {
        NRD_TRY(cpu_stream_sync(s));
    }
    NRD_TRY(new_command(s, &c));
    c->u.copy_blocks = args;
    if (args.n_layers > 0 && args.n_pairs > 0) {
        c->u.copy_blocks.src = arena_copy(s, args.src, layers);
        c->u.copy_blocks.dst = arena_copy(s, args.dst, layers);
        c->u.copy_blocks.pairs = arena_copy(s, args.pairs, pairs);
    }
    NRD_TRY(nrd_copy_blocks_cpu(c, nrd_threads_size(s->dev->threads)));
    return commit(s, c);
}

static nrd_error *cpu_move_tokens(nrd_stream *s, const nrd_move_tokens_args *a)
{
    nrd_move_tokens_args args = *a;
    nrd_cpu_cmd *c;

    NRD_TRY(nrd_move_tokens_check(&args));
    size_t layers = (size_t)args.n_layers * sizeof *args.kv, pairs = (size_t)args.n_pairs * 8;
    if (layers + pairs + 32 > ARENA_BYTES) { /* too many to keep: now, in order */
        NRD_TRY(cpu_stream_sync(s));
        nrd_move_tokens_ref(&args);
        return NULL;
    }
    if (s->arena_used + layers + pairs + 32 > ARENA_BYTES) {
        NRD_TRY(cpu_stream_sync(s));
    }
    NRD_TRY(new_command(s, &c));
    c->u.move_tokens = args;
    if (args.n_layers > 0 && args.n_pairs > 0) {
        c->u.move_tokens.kv = arena_copy(s, args.kv, layers);
        c->u.move_tokens.pairs = arena_copy(s, args.pairs, pairs);
    }
    NRD_TRY(nrd_move_tokens_cpu(c, nrd_threads_size(s->dev->threads)));
    return commit(s, c);
}

/* ---- weights ---- */

static nrd_error *cpu_weight_plan(nrd_device *dev, nrd_dtype dtype, int64_t rows, int64_t cols, bool is_linear,
                                  uint32_t *out_layout, uint64_t *out_bytes)
{
    (void)dev;
    *out_layout = NRD_LAYOUT_ROWS;
    if (is_linear && cols > 1 && nrd_tile16_bytes(dtype, cols) > 0) {
        *out_layout = NRD_LAYOUT_TILE16;
    }
    *out_bytes = nrd_weight_bytes(dtype, *out_layout, rows, cols);
    if (*out_bytes == 0 && rows > 0 && cols > 0) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cpu: no %s weight of %lld x %lld", nrd_dtype_name(dtype),
                          (long long)rows, (long long)cols);
    }
    return NULL;
}

typedef struct pack_job {
    const nrd_weight *src;
    uint8_t *dst;
    _Atomic int64_t next;
} pack_job;

static void pack_worker(void *user, nrd_thread *self)
{
    pack_job *j = user;
    size_t bytes = nrd_tile16_bytes(j->src->dtype, j->src->cols);
    int64_t n = (j->src->rows + 15) / 16, i;

    (void)self;
    while ((i = atomic_fetch_add(&j->next, 8)) < n) {
        for (int64_t t = i; t < n && t < i + 8; t++) {
            nrd_tile16_pack(j->src, t * 16, j->dst + (size_t)t * bytes);
        }
    }
}

static nrd_error *cpu_weight_pack(nrd_device *dev, const nrd_weight *src, uint32_t layout, void *dst)
{
    NRD_TRY(nrd_weight_check(src, "weight_pack"));
    if (src->layout == layout) {
        const int64_t n = nrd_weight_n_stacked(src);
        memcpy(dst, src->data, (size_t)n * (size_t)nrd_weight_bytes(src->dtype, layout, src->rows / n, src->cols));
        return NULL;
    }
    if (src->layout != NRD_LAYOUT_ROWS || layout != NRD_LAYOUT_TILE16) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cpu: no packing from layout %u to %u", src->layout, layout);
    }
    for (int64_t i = 0; i < nrd_weight_n_stacked(src); i++) {
        nrd_weight one = nrd_weight_of_stack(src, i);
        size_t bytes = (size_t)nrd_weight_bytes(one.dtype, layout, one.rows, one.cols);
        pack_job j = {&one, (uint8_t *)dst + (size_t)i * bytes, 0};
        nrd_threads_run(cpu_of(dev)->threads, pack_worker, &j);
    }
    return NULL;
}

static nrd_error *cpu_weight_load(nrd_stream *s, const nrd_weight *src, bool is_linear, nrd_weight *out,
                                  bool *out_owned);

/* A weight in a type that only GPUs multiply, as bfloat16. */
static nrd_error *load_unpacked(nrd_stream *s, const nrd_weight *src, nrd_weight *out, bool *out_owned)
{
    nrd_weight plain = *src;
    nrd_error *err = NULL;
    uint16_t *rows = NULL;
    float *row = NULL;

    plain.dtype = NRD_DTYPE_BF16;
    plain.scales = NULL;
    plain.scale = 1;
    plain.data_bytes = (uint64_t)(src->rows * src->cols) * sizeof *rows;
    NRD_NEW_GOTO(rows, src->rows * src->cols, err, done);
    NRD_NEW_GOTO(row, src->cols, err, done);
    for (int64_t r = 0; r < src->rows; r++) {
        nrd_weight_row(src, r, row);
        for (int64_t k = 0; k < src->cols; k++) {
            rows[r * src->cols + k] = nrd_f32_to_bf16(row[k]);
        }
    }
    plain.data = rows;
    err = cpu_weight_load(s, &plain, true, out, out_owned);
    if (!err && !*out_owned) { /* of one column: used where it lies, which only `rows` is */
        err = nrd_errorf(NRD_ERR_UNSUPPORTED, "cpu: no %s weight of %lld x %lld", nrd_dtype_name(src->dtype),
                         (long long)src->rows, (long long)src->cols);
    }
done:
    free(rows);
    free(row);
    return err;
}

static nrd_error *cpu_weight_load(nrd_stream *s, const nrd_weight *src, bool is_linear, nrd_weight *out,
                                  bool *out_owned)
{
    uint32_t layout;
    uint64_t bytes;
    void *data;

    *out = *src;
    *out_owned = false;
    NRD_TRY(nrd_weight_check(src, "weight_load"));
    if (!is_linear || src->layout == NRD_LAYOUT_TILE16) {
        return NULL; /* used where it lies */
    }
    if (nrd_dtype_is_packed(src->dtype) || src->dtype == NRD_DTYPE_F8_E4M3) {
        return load_unpacked(s, src, out, out_owned);
    }
    const int64_t n = nrd_weight_n_stacked(src);
    NRD_TRY(cpu_weight_plan(&s->dev->dev, src->dtype, src->rows / n, src->cols, is_linear, &layout, &bytes));
    bytes *= (uint64_t)n;
    if (layout == src->layout) {
        return NULL;
    }
    NRD_TRY(cpu_alloc(&s->dev->dev, &data, NRD_MEM_DEVICE, (size_t)bytes, "weights"));
    nrd_error *err = cpu_weight_pack(&s->dev->dev, src, layout, data);
    if (err) {
        cpu_free(&s->dev->dev, NRD_MEM_DEVICE, data);
        return err;
    }
    out->data = data;
    out->layout = layout;
    out->data_bytes = bytes;
    *out_owned = true;
    return NULL;
}

static void cpu_weight_unload(nrd_device *dev, nrd_weight *w)
{
    void *data;

    memcpy(&data, &w->data, sizeof data);
    cpu_free(dev, NRD_MEM_DEVICE, data);
    w->data = NULL;
}

static nrd_dtype cpu_linear_input(nrd_device *dev, const nrd_weight *w, nrd_dtype act_dtype,
                                  size_t *out_row_bytes, bool *out_row_scale)
{
    bool quant = nrd_tile16_format_of(w->dtype) != NULL;
    nrd_dtype t = quant ? NRD_DTYPE_ACT_Q8 : act_dtype;

    (void)dev;
    *out_row_bytes = nrd_row_bytes(t, w->cols);
    *out_row_scale = false;
    return t;
}

static size_t cpu_kv_block_bytes(nrd_device *dev, nrd_dtype dtype, int32_t block_tokens, int32_t n_kv_heads,
                                 int32_t head_dim)
{
    (void)dev;
    return nrd_kv_block_bytes(dtype, block_tokens, n_kv_heads, head_dim);
}

static nrd_error *cpu_reserve(nrd_stream *s, int32_t max_tokens, int32_t max_seqs, int32_t max_hidden,
                              int32_t max_ctx_len, int32_t vocab)
{
    size_t tokens = (size_t)(max_tokens > 16 ? max_tokens : 16), hidden = (size_t)max_hidden;

    (void)max_ctx_len;
    NRD_TRY(cpu_stream_sync(s));
    NRD_TRY(nrd_cpu_prefix_reserve(&s->prefix, max_seqs));
    return grow(s, hidden * 256 + (size_t)vocab * 16, tokens * hidden * 4);
}

static nrd_error *cpu_limits(nrd_device *dev, nrd_device_limits *out)
{
    return nrd_cpu_limits(cpu_of(dev)->k, cpu_of(dev)->threads, out);
}

static void cpu_close(nrd_device *dev)
{
    nrd_cpu *cpu = cpu_of(dev);

    nrd_threads_free(cpu->threads);
    pthread_mutex_destroy(&cpu->lock);
    free(cpu);
}

static bool cpu_has_feature(nrd_device *dev, nrd_feature feature)
{
    (void)dev;
    return feature == NRD_FEATURE_WIDE_QK_NORM || feature == NRD_FEATURE_ALIBI || feature == NRD_FEATURE_EXPERTS ||
           feature == NRD_FEATURE_ENCODER || feature == NRD_FEATURE_SINK_LOGITS || feature == NRD_FEATURE_QUERY_FORMS ||
           feature == NRD_FEATURE_CHUNKS || feature == NRD_FEATURE_XIELU || feature == NRD_FEATURE_INPUT_SCALE ||
           feature == NRD_FEATURE_LATENT || feature == NRD_FEATURE_REL_BIAS || feature == NRD_FEATURE_RECURRENT ||
           feature == NRD_FEATURE_ROPE_AXES || feature == NRD_FEATURE_ALTUP || feature == NRD_FEATURE_SHARED_KV ||
           feature == NRD_FEATURE_EMBED_COLUMNS;
}

static const nrd_device_ops ops = {
    .close = cpu_close,
    .get_info = cpu_get_info,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .mem_report = cpu_mem_report,
    .stream_new = cpu_stream_new,
    .stream_free = cpu_stream_free,
    .stream_sync = cpu_stream_sync,
    .event_new = cpu_event_new,
    .event_free = cpu_event_free,
    .event_record = cpu_event_record,
    .event_wait = cpu_event_wait,
    .stream_wait = cpu_stream_wait,
    .copy = cpu_copy,
    .fill = cpu_fill,
    .weight_plan = cpu_weight_plan,
    .weight_pack = cpu_weight_pack,
    .weight_load = cpu_weight_load,
    .weight_unload = cpu_weight_unload,
    .linear_input = cpu_linear_input,
    .kv_block_bytes = cpu_kv_block_bytes,
    .reserve = cpu_reserve,
    .embed = cpu_embed,
    .add_rows = cpu_add_rows,
    .sum_spans = cpu_sum_spans,
    .clamp = cpu_clamp,
    .norm = cpu_norm,
    .linear = cpu_linear,
    .rope_kv = cpu_rope_kv,
    .attention = cpu_attention,
    .act = cpu_act,
    .sample = cpu_sample,
    .counts = cpu_counts,
    .copy_blocks = cpu_copy_blocks,
    .move_tokens = cpu_move_tokens,
    .limits = cpu_limits,
    .linear_sample = cpu_linear_sample,
    .linear_gated = cpu_linear_gated,
    .comm_bytes = nrd_cpu_comm_bytes,
    .comm_open = nrd_cpu_comm_open,
    .comm_close = nrd_cpu_comm_close,
    .all_reduce = cpu_all_reduce,
    .gather = cpu_gather,
    .send = cpu_send,
    .receive = cpu_receive,
    .lora = cpu_lora,
    .has_feature = cpu_has_feature,
    .moe_route = cpu_moe_route,
    .moe_linear = cpu_moe_linear,
    .moe_sum = cpu_moe_sum,
    .latent_kv = cpu_latent_kv,
    .latent_attention = cpu_latent_attention,
    .short_conv = cpu_short_conv,
    .ssm = cpu_ssm,
    .delta_rule = cpu_delta_rule,
    .gated_norm = cpu_gated_norm,
    .rg_lru = cpu_rg_lru,
    .head_squares = cpu_head_squares,
    .altup_predict = cpu_altup_predict,
    .altup_correct = cpu_altup_correct,
    .altup_match = cpu_altup_match,
};

nrd_error *nrd_cpu_open(nrd_device **out, const nrd_device_config *config)
{
    nrd_error *err = NULL;
    nrd_cpu *cpu = NULL;

    *out = NULL;
    if (config->n_threads < 0 || config->n_threads > 1024) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "cpu: n_threads must be 0 to 1024, got %d", config->n_threads);
    }
    NRD_NEW_GOTO(cpu, 1, err, fail);
    cpu->dev.ops = &ops;
    NRD_TRY_GOTO(nrd_cpu_kernels_choose(&cpu->k, config->isa), err, fail);
    NRD_TRY_GOTO(nrd_threads_new(&cpu->threads, config->n_threads, config->share,
                                 config->n_shares > 1 ? config->n_shares : 1),
                 err, fail);
    pthread_mutex_init(&cpu->lock, NULL);
    *out = &cpu->dev;
    return NULL;

fail:
    free(cpu);
    return err;
}
