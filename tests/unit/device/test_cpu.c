/* SPDX-License-Identifier: Apache-2.0
 * The CPU device as its users see it: opening, memory, streams, order, steady steps. */
#include "base/mem.h"
#include "base/numa.h"
#include "device/cpu/prefix.h"
#include "device/cpu/threads.h"
#include "device/device.h"
#include "device/ops/ops.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

/* Counts every allocation of the program: these definitions come before the C library's. */
static _Atomic long n_allocs;
extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t n);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
void *malloc(size_t n)
{
    atomic_fetch_add(&n_allocs, 1);
    return __libc_malloc(n);
}
void *calloc(size_t n, size_t size)
{
    atomic_fetch_add(&n_allocs, 1);
    return __libc_calloc(n, size);
}
void *realloc(void *p, size_t n)
{
    atomic_fetch_add(&n_allocs, 1);
    return __libc_realloc(p, n);
}
#endif

static void ok(nrd_error *err)
{
    if (err) {
        fail_msg("%s", nrd_error_message(err));
    }
}

static void expect(nrd_error *err, nrd_error_code code, const char *part)
{
    assert_non_null(err);
    assert_int_equal(nrd_error_get_code(err), code);
    if (!strstr(nrd_error_message(err), part)) {
        fail_msg("\"%s\" does not say \"%s\"", nrd_error_message(err), part);
    }
    nrd_error_free(err);
}

static nrd_device *open_cpu(int threads)
{
    nrd_device_config config = {.n_threads = threads};
    nrd_device *dev;
    ok(nrd_device_open(&dev, "cpu", &config));
    return dev;
}

static void test_unknown_devices_are_refused_by_name(void **state)
{
    nrd_device *dev;
    nrd_device_config config = {.isa = "mmx"};
    (void)state;
    expect(nrd_device_open(&dev, "../evil", NULL), NRD_ERR_INVALID_ARG, "letters");
    expect(nrd_device_open(&dev, "abacus", NULL), NRD_ERR_NOT_FOUND, "nereid_abacus.so");
    expect(nrd_device_open(&dev, "cpu", &config), NRD_ERR_UNSUPPORTED, "mmx");
    config.isa = "";
    config.n_threads = -1;
    expect(nrd_device_open(&dev, "cpu", &config), NRD_ERR_INVALID_ARG, "n_threads");
}

static void test_info_tells_threads_and_types(void **state)
{
    nrd_device *dev = open_cpu(3);
    nrd_device_info info;
    (void)state;
    dev->ops->get_info(dev, &info);
    assert_int_equal(info.n_threads, 3);
    assert_true(info.host_is_device);
    assert_int_equal(info.act_dtype, NRD_DTYPE_F32);
    assert_true(strstr(info.name, "3 threads") != NULL);
    assert_true(info.mem_total_bytes >= info.mem_free_bytes && info.mem_free_bytes > 0);
    dev->ops->close(dev);
}

static void test_memory_is_zeroed_aligned_and_reported(void **state)
{
    nrd_device *dev = open_cpu(1);
    nrd_mem_report rows[8];
    uint8_t *a, *b;
    void *p;
    (void)state;
    ok(dev->ops->alloc(dev, &p, NRD_MEM_DEVICE, 1000, "kv"));
    a = p;
    ok(dev->ops->alloc(dev, &p, NRD_MEM_HOST, 5u << 20, "weights"));
    b = p;
    assert_int_equal((uintptr_t)a % 256, 0);
    assert_int_equal((uintptr_t)b % 256, 0);
    for (int i = 0; i < 1000; i++) {
        assert_int_equal(a[i] | b[i * 5000], 0);
    }
    assert_int_equal(dev->ops->mem_report(dev, rows, 8), 2);
    assert_string_equal(rows[0].name, "kv");
    assert_int_equal(rows[0].bytes, 1000);
    assert_int_equal(rows[1].bytes, 5u << 20);
    dev->ops->free(dev, NRD_MEM_DEVICE, a);
    dev->ops->free(dev, NRD_MEM_HOST, b);
    dev->ops->free(dev, NRD_MEM_HOST, NULL);
    dev->ops->mem_report(dev, rows, 8);
    assert_int_equal(rows[0].bytes + rows[1].bytes, 0);
    dev->ops->close(dev);
}

static long resident_bytes(void)
{
    long size = 0, pages = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%20ld %20ld", &size, &pages), 2);
    fclose(f);
    return pages * sysconf(_SC_PAGESIZE);
}

static void test_reserved_memory_is_taken_when_it_is_used(void **state)
{
    nrd_device *dev = open_cpu(2);
    nrd_stream *s;
    (void)state;
    ok(dev->ops->stream_new(dev, &s));
    long before = resident_bytes();
    ok(dev->ops->reserve(s, 16384, 32, 8192, 4096, 1000)); /* room for 512 MiB */
    assert_true(resident_bytes() - before < (64l << 20));
    dev->ops->stream_free(s);
    dev->ops->close(dev);
}

static void test_a_stream_keeps_its_order_beyond_a_full_list(void **state)
{
    nrd_device *dev = open_cpu(3);
    nrd_stream *s, *other;
    nrd_event *e;
    static uint8_t buf[3000];
    (void)state;
    ok(dev->ops->stream_new(dev, &s));
    ok(dev->ops->stream_new(dev, &other));
    ok(dev->ops->event_new(dev, &e));
    memset(buf, 0, sizeof buf);
    buf[0] = 7;
    for (int i = 0; i + 1 < 3000; i++) { /* each copies what the one before wrote */
        ok(dev->ops->copy(s, buf + i + 1, buf + i, 1));
    }
    ok(dev->ops->event_record(s, e));
    ok(dev->ops->stream_wait(other, e));
    ok(dev->ops->event_wait(e));
    assert_int_equal(buf[2999], 7);
    ok(dev->ops->fill(s, buf, 9, 3000));
    ok(dev->ops->fill(s, buf, 3, 0));
    ok(dev->ops->stream_sync(s));
    assert_int_equal(buf[0] + buf[2999], 18);
    dev->ops->event_free(e);
    dev->ops->stream_free(other);
    dev->ops->stream_free(s);
    dev->ops->close(dev);
}

typedef struct barrier_check {
    _Atomic int count;
    _Atomic int wrong;
} barrier_check;

static void barrier_worker(void *user, nrd_thread *self)
{
    barrier_check *b = user;
    for (int i = 1; i <= 50; i++) {
        atomic_fetch_add(&b->count, 1);
        nrd_threads_barrier(self);
        if (atomic_load(&b->count) != i * self->n) {
            atomic_fetch_add(&b->wrong, 1);
        }
        nrd_threads_barrier(self);
    }
}

static void test_common_beginnings_of_sequences_are_found(void **state)
{
    /* 0, 2, 4 begin with 7 8 9; 1 and 3 with 5 6; 5 has two new tokens; 6 shares too little */
    static const int32_t table[7][4] = {{7, 8, 9, 1}, {5, 6, 2, 3}, {7, 8, 9, 4}, {5, 6, -1, 9},
                                        {7, 8, 9, 9}, {7, 8, 9, 1}, {7, 1, 2, 3}};
    static const int32_t q_start[8] = {0, 1, 2, 3, 4, 5, 7, 8}, ctx[7] = {60, 50, 64, 40, 49, 60, 60};
    nrd_batch_view v = {.n_tokens = 8, .n_seqs = 7, .q_start = q_start, .ctx_len = ctx, .block_table = &table[0][0],
                        .block_table_stride = 4};
    nrd_cpu_prefix p = {0};
    (void)state;
    assert_false(nrd_cpu_prefix_is_of(&p, &v));
    ok(nrd_cpu_prefix_fill(&p, &v, 16, 32));
    assert_true(nrd_cpu_prefix_is_of(&p, &v));
    assert_int_equal(p.n_groups, 2);
    assert_int_equal(p.groups[0].n, 3);
    assert_int_equal(p.groups[0].n_blocks, 3);
    assert_int_equal(p.groups[1].n, 2);
    assert_int_equal(p.groups[1].n_blocks, 2);
    static const int32_t members[5] = {0, 2, 4, 1, 3}, group_of[7] = {0, 1, 0, 1, 0, -1, -1};
    assert_memory_equal(p.members, members, sizeof members);
    assert_memory_equal(p.group_of, group_of, sizeof group_of);
    static const int32_t shorter[7] = {60, 50, 64, 40, 48, 60, 60};
    v.ctx_len = shorter; /* the third block of 4 holds its new token */
    assert_false(nrd_cpu_prefix_is_of(&p, &v));
    ok(nrd_cpu_prefix_fill(&p, &v, 16, 32));
    assert_int_equal(p.groups[0].n_blocks, 2);
    nrd_cpu_prefix_fini(&p);
}

static void test_threads_take_whole_cores_first_and_every_node_in_turn(void **state)
{
    /* cores {0, 4}, {1, 5}, {2, 6}; 3 says nothing, 7 nonsense; 0 is not ours; node 1 has 2, 6, 7 */
    static const char *const siblings[8] = {"0,4\n", "1,5\n", "2,6\n", NULL, "0,4\n", "1,5\n", "2,6\n", "?\n"};
    static const int want[7] = {1, 2, 3, 7, 4, 5, 6};
    static const int nodes[8] = {0, 0, 1, 0, 0, 0, 1, 1};
    char dir[] = "/tmp/nereid-cpus-XXXXXX", path[128];
    int cpus[CPU_SETSIZE], n_cores = 0;
    cpu_set_t set;
    (void)state;

    assert_non_null(mkdtemp(dir));
    CPU_ZERO(&set);
    for (int i = 0; i < 8; i++) {
        for (int level = 0; siblings[i] && level < 3; level++) {
            static const char *const rest[3] = {"", "/topology", "/topology/thread_siblings_list"};
            snprintf(path, sizeof path, "%s/cpu%d%s", dir, i, rest[level]);
            if (level < 2) {
                assert_int_equal(mkdir(path, 0700), 0);
                continue;
            }
            FILE *f = fopen(path, "we");
            assert_non_null(f);
            assert_true(fputs(siblings[i], f) >= 0);
            assert_int_equal(fclose(f), 0);
        }
        snprintf(path, sizeof path, "%s/cpu%d/node%d", dir, i, nodes[i]);
        assert_true(!siblings[i] || mkdir(path, 0700) == 0);
        if (i > 0) {
            CPU_SET((size_t)i, &set);
        }
    }
    assert_int_equal(nrd_threads_order_cpus(dir, &set, cpus, &n_cores), 7);
    assert_int_equal(n_cores, 5);
    assert_memory_equal(cpus, want, sizeof want);
    assert_int_equal(nrd_numa_nodes(dir, &set), 3);
    CPU_CLR(2, &set);
    CPU_CLR(6, &set);
    CPU_CLR(7, &set);
    assert_int_equal(nrd_numa_nodes(dir, &set), 1);
    for (int i = 0; i < 8; i++) {
        snprintf(path, sizeof path, "%s/cpu%d/node%d", dir, i, nodes[i]);
        assert_true(!siblings[i] || rmdir(path) == 0);
        static const char *const parts[3] = {"/topology/thread_siblings_list", "/topology", ""};
        for (int level = 0; siblings[i] && level < 3; level++) {
            snprintf(path, sizeof path, "%s/cpu%d%s", dir, i, parts[level]);
            assert_int_equal(remove(path), 0);
        }
    }
    assert_int_equal(rmdir(dir), 0);
}

static void test_a_barrier_lets_nobody_through_early(void **state)
{
    (void)state;
    for (int n = 1; n <= 5; n++) {
        nrd_threads *p;
        ok(nrd_threads_new(&p, n, 0, 1));
        for (int run = 0; run < 20; run++) {
            barrier_check b = {0};
            nrd_threads_run(p, barrier_worker, &b);
            assert_int_equal(atomic_load(&b.wrong), 0);
            assert_int_equal(atomic_load(&b.count), 50 * n);
        }
        nrd_threads_free(p);
    }
}

static void note_processor(void *user, nrd_thread *self)
{
    ((int *)user)[self->id] = sched_getcpu();
    nrd_threads_barrier(self); /* nobody leaves before all have noted theirs */
}

static void test_a_caller_that_is_on_a_workers_processor_goes_elsewhere(void **state)
{
    const int n = nrd_threads_default() < 64 ? nrd_threads_default() : 64;
    nrd_threads *p = NULL;
    cpu_set_t own, one, after;
    enum { N_ROUNDS = 50 };
    int at[64], n_elsewhere = 0;
    (void)state;
    if (n < 2) {
        skip();
    }
    assert_int_equal(sched_getaffinity(0, sizeof own, &own), 0);
    ok(nrd_threads_new(&p, n, 0, 1));
    nrd_threads_run(p, note_processor, at);
    CPU_ZERO(&one);
    CPU_SET((size_t)at[1], &one);
    for (int round = 0; round < N_ROUNDS; round++) {
        assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
        nrd_threads_run(p, note_processor, at);
        assert_int_equal(at[0], at[1]); /* it may run nowhere else */
        assert_int_equal(sched_setaffinity(0, sizeof own, &own), 0);
        nrd_threads_run(p, note_processor, at);
        n_elsewhere += at[0] != at[1];
    }
    assert_true(n_elsewhere > N_ROUNDS / 2); /* the system may bring it back where others are busy */
    assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
    assert_true(CPU_EQUAL(&own, &after));
    nrd_threads_free(p);
}

/* One decoder layer and a head, small: every operation of a step. */
typedef struct step {
    nrd_weight emb, qkv, up, down, norm;
    float *res, *buf, *logits;
    void *act;
    nrd_kv_layer kv;
    nrd_batch_view view;
    int32_t ids[40], positions[40], token_seq[40], q_start[5], ctx[4], table[16], slots[4], out[4];
    nrd_sample_row rows[4];
    float inv[16];
    bool fused; /* choices without logits */
} step;

enum { HID = 128, HEADS = 4, KVH = 2, DIM = 32, INTER = 256, VOCAB = 500 };

static nrd_weight make_weight(nrd_dtype t, int64_t rows, int64_t cols)
{
    nrd_weight w = {.dtype = t, .rows = rows, .cols = cols, .scale = 1};
    w.data_bytes = nrd_weight_bytes(t, NRD_LAYOUT_ROWS, rows, cols);
    uint8_t *data = nrd_xcalloc(1, w.data_bytes);
    float *x = nrd_xmalloc((size_t)cols * 4);
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t k = 0; k < cols; k++) {
            x[k] = sinf((float)(r * 31 + k * 7)) * (cols > 1 ? 0.2f : 1.0f);
        }
        if (t == NRD_DTYPE_F32) {
            memcpy(data + w.data_bytes / (uint64_t)rows * (uint64_t)r, x, (size_t)cols * 4);
        } else {
            nrd_quantize_row(t, x, data + w.data_bytes / (uint64_t)rows * (uint64_t)r, cols);
        }
    }
    free(x);
    w.data = data;
    return w;
}

static void run_step(nrd_device *dev, nrd_stream *s, step *t)
{
    const nrd_device_ops *o = dev->ops;
    int32_t n = t->view.n_tokens;
    nrd_embed_args e = {.n_tokens = n, .hidden = HID, .ids = t->ids, .slot_tokens = t->slots,
                        .table = &t->emb, .scale = 1, .out = t->res, .out_dtype = NRD_DTYPE_F32};
    nrd_norm_args a = {.eps = 1e-5f, .n_tokens = n, .hidden = HID, .residual = t->res, .weight = &t->norm,
                       .out = t->act, .out_dtype = NRD_DTYPE_ACT_Q8, .act_dtype = NRD_DTYPE_F32};
    nrd_linear_args l = {.n_tokens = n, .x = t->act, .x_dtype = NRD_DTYPE_ACT_Q8, .n_parts = 1,
                         .w = {&t->qkv}, .y = t->buf, .y_dtype = NRD_DTYPE_F32};
    nrd_rope_kv_args r = {.batch = &t->view, .qkv = t->buf, .act_dtype = NRD_DTYPE_F32, .n_heads = HEADS,
                          .rope = NRD_ROPE_NEOX, .rotary_dim = DIM, .inv_freq = t->inv, .rope_scale = 1, .kv = t->kv};
    nrd_attention_args at = {.batch = &t->view, .q = t->buf, .q_stride = (HEADS + 2 * KVH) * DIM, .out = t->act,
                             .act_dtype = NRD_DTYPE_F32, .out_dtype = NRD_DTYPE_ACT_Q8, .n_heads = HEADS, .scale = 0.2f, .kv = t->kv};
    nrd_act_args g = {.kind = NRD_ACT_SILU, .gated = true, .n_tokens = n, .inter = INTER / 2, .x = t->buf,
                      .act_dtype = NRD_DTYPE_F32, .out = t->act, .out_dtype = NRD_DTYPE_ACT_Q8};
    nrd_sample_args c = {.n_rows = t->view.n_seqs, .vocab = VOCAB, .logits = t->logits, .rows = t->rows,
                         .slot_tokens = t->slots, .out_ids = t->out};
    ok(o->embed(s, &e));
    ok(o->norm(s, &a));
    ok(o->linear(s, &l));
    ok(o->rope_kv(s, &r));
    ok(o->attention(s, &at));
    l.w[0] = &t->up;
    ok(o->linear(s, &l));
    ok(o->act(s, &g));
    l.w[0] = &t->down;
    l.y = t->res;
    ok(o->linear(s, &l));
    ok(o->norm(s, &a));
    l.w[0] = &t->emb;
    l.y = t->logits;
    if (t->fused) {
        l.n_tokens = c.n_rows;
        ok(o->linear_sample(s, &l, NULL, &c));
    } else {
        ok(o->linear(s, &l));
        ok(o->sample(s, &c));
    }
    ok(o->stream_sync(s));
}

static void test_steady_steps_allocate_nothing(void **state)
{
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    long start = atomic_load(&n_allocs);
    free(nrd_xmalloc(64));
    assert_true(atomic_load(&n_allocs) > start); /* the counter counts */
#endif
    nrd_device *dev = open_cpu(3);
    nrd_stream *s;
    static step t;
    nrd_weight plain[4] = {make_weight(NRD_DTYPE_Q8_0, VOCAB, HID), make_weight(NRD_DTYPE_Q4_1, (HEADS + 2 * KVH) * DIM, HID),
                           make_weight(NRD_DTYPE_Q5_0, INTER, HID), make_weight(NRD_DTYPE_Q4_0, HID, INTER / 2)};
    nrd_weight *used[4] = {&t.emb, &t.qkv, &t.up, &t.down};
    bool owned[4];
    void *pool;
    (void)state;
    ok(dev->ops->stream_new(dev, &s));
    for (int i = 0; i < 4; i++) {
        ok(dev->ops->weight_load(s, &plain[i], true, used[i], &owned[i]));
        assert_true(owned[i]); /* packed: another layout than the source's */
    }
    t.norm = make_weight(NRD_DTYPE_F32, HID, 1);
    ok(dev->ops->alloc(dev, &pool, NRD_MEM_DEVICE, dev->ops->kv_block_bytes(dev, NRD_DTYPE_F16, 16, KVH, DIM) * 16, "kv"));
    t.kv = (nrd_kv_layer){pool, NRD_DTYPE_F16, 16, 16, KVH, DIM, NULL};
    t.res = nrd_xcalloc(40 * HID, 4);
    t.buf = nrd_xcalloc(40 * 512, 4);
    t.logits = nrd_xcalloc(40 * VOCAB, 4);
    t.act = nrd_aligned_zalloc(64, 40 * nrd_act_q8_row_bytes(512));
    for (int i = 0; i < 16; i++) {
        t.table[i] = i;
        t.inv[i] = powf(10000.0f, -(float)i / 16.0f);
    }
    long before = 0;
    for (int round = 0; round < 12; round++) {
        int32_t n_seqs = 1 + round % 4, fresh = round % 3 == 2 ? 10 : 1, n = 0;
        for (int32_t q = 0; q < n_seqs; q++) {
            t.q_start[q] = n;
            t.ctx[q] = 20 + fresh;
            t.rows[q] = (nrd_sample_row){.slot = q, .temperature = round % 2 ? 0.7f : 0, .top_k = round % 4 == 3 ? 20 : 0,
                                         .top_p = round % 5 == 1 ? 0.9f : 0, .repetition_penalty = 1, .end_id = -1};
            for (int32_t k = 0; k < fresh; k++, n++) {
                t.ids[n] = -1 - q;
                t.positions[n] = 20 + k;
                t.token_seq[n] = q;
            }
        }
        t.q_start[n_seqs] = n;
        t.view = (nrd_batch_view){.n_tokens = n,
                                  .n_seqs = n_seqs,
                                  .max_q_len = fresh,
                                  .max_ctx_len = 20 + fresh,
                                  .positions = t.positions,
                                  .token_seq = t.token_seq,
                                  .q_start = t.q_start,
                                  .ctx_len = t.ctx,
                                  .block_table = t.table,
                                  .block_table_stride = 4};
        if (round == 6) {
            before = atomic_load(&n_allocs); /* every shape has been seen */
        }
        t.fused = false;
        run_step(dev, s, &t);
        t.fused = true;
        run_step(dev, s, &t);
    }
    assert_int_equal(atomic_load(&n_allocs) - before, 0); /* sanitizers count for themselves: 0 there */
    for (int i = 0; i < 4; i++) {
        dev->ops->weight_unload(dev, used[i]);
        free((void *)(uintptr_t)plain[i].data);
    }
    free((void *)(uintptr_t)t.norm.data);
    free(t.res);
    free(t.buf);
    free(t.logits);
    free(t.act);
    dev->ops->free(dev, NRD_MEM_DEVICE, pool);
    dev->ops->stream_free(s);
    dev->ops->close(dev);
}

static void test_bad_arguments_are_refused_before_they_run(void **state)
{
    nrd_device *dev = open_cpu(1);
    nrd_stream *s;
    float x[64] = {0}, y[64];
    nrd_weight w = make_weight(NRD_DTYPE_F32, 4, 8), v = w;
    (void)state;
    ok(dev->ops->stream_new(dev, &s));
    nrd_linear_args a = {.n_tokens = 2, .x = x, .x_dtype = NRD_DTYPE_F32, .n_parts = 1, .w = {&w}, .y = y,
                         .y_dtype = NRD_DTYPE_F32};
    ok(dev->ops->linear(s, &a));
    v.data_bytes = 16;
    a.w[0] = &v;
    expect(dev->ops->linear(s, &a), NRD_ERR_INVALID_ARG, "needs 128 bytes");
    v = w;
    v.dtype = NRD_DTYPE_F8_E4M3;
    v.data_bytes = 32;
    expect(dev->ops->linear(s, &a), NRD_ERR_UNSUPPORTED, "fp8");
    a.w[0] = &w;
    a.y_dtype = NRD_DTYPE_F16;
    expect(dev->ops->linear(s, &a), NRD_ERR_UNSUPPORTED, "float16");
    nrd_embed_args e = {.n_tokens = 1, .hidden = 9, .table = &w};
    expect(dev->ops->embed(s, &e), NRD_ERR_INVALID_ARG, "8 columns");
    nrd_kv_layer kv = {x, NRD_DTYPE_F32, 1, 16, 1, 16, NULL};
    int32_t pairs[2] = {0, 1};
    nrd_copy_blocks_args c = {.n_layers = 1, .n_pairs = 1, .src = &kv, .dst = &kv, .pairs = pairs};
    expect(dev->ops->copy_blocks(s, &c), NRD_ERR_INVALID_ARG, "outside");
    ok(dev->ops->stream_sync(s));
    free((void *)(uintptr_t)w.data);
    dev->ops->stream_free(s);
    dev->ops->close(dev);
}

static void test_blocks_and_counts_are_copied_and_started(void **state)
{
    nrd_device *dev = open_cpu(2);
    nrd_stream *s;
    (void)state;
    ok(dev->ops->stream_new(dev, &s));
    size_t bytes = dev->ops->kv_block_bytes(dev, NRD_DTYPE_F16, 16, 2, 32);
    assert_int_equal(bytes, 16 * 2 * 32 * 2 * 2);
    uint8_t *pool = nrd_xcalloc(4, bytes);
    memset(pool + bytes, 5, bytes);
    nrd_kv_layer kv = {pool, NRD_DTYPE_F16, 4, 16, 2, 32, NULL};
    int32_t pairs[4] = {1, 3, 3, 0};
    nrd_copy_blocks_args c = {.n_layers = 1, .n_pairs = 2, .src = &kv, .dst = &kv, .pairs = pairs};
    ok(dev->ops->copy_blocks(s, &c));
    pairs[0] = 2; /* the arrays were copied */
    uint16_t counts[20];
    memset(counts, 0xff, sizeof counts);
    int32_t ids[4] = {3, 3, 9, 11};
    nrd_counts_args n = {.slot = 1, .vocab = 10, .n = 4, .ids = ids, .counts = counts};
    ok(dev->ops->counts(s, &n));
    ok(dev->ops->stream_sync(s));
    assert_int_equal(pool[0], 5);
    assert_int_equal(pool[4 * bytes - 1], 5);
    assert_int_equal(pool[2 * bytes], 0);
    assert_int_equal(counts[9], 0xffff);
    assert_int_equal(counts[13], 2);
    assert_int_equal(counts[19], 1);
    assert_int_equal(counts[10], 0);
    free(pool);
    dev->ops->stream_free(s);
    dev->ops->close(dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unknown_devices_are_refused_by_name),
        cmocka_unit_test(test_info_tells_threads_and_types),
        cmocka_unit_test(test_memory_is_zeroed_aligned_and_reported),
        cmocka_unit_test(test_reserved_memory_is_taken_when_it_is_used),
        cmocka_unit_test(test_a_stream_keeps_its_order_beyond_a_full_list),
        cmocka_unit_test(test_common_beginnings_of_sequences_are_found),
        cmocka_unit_test(test_threads_take_whole_cores_first_and_every_node_in_turn),
        cmocka_unit_test(test_a_barrier_lets_nobody_through_early),
        cmocka_unit_test(test_a_caller_that_is_on_a_workers_processor_goes_elsewhere),
        cmocka_unit_test(test_steady_steps_allocate_nothing),
        cmocka_unit_test(test_bad_arguments_are_refused_before_they_run),
        cmocka_unit_test(test_blocks_and_counts_are_copied_and_started),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
