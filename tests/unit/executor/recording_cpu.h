/* SPDX-License-Identifier: Apache-2.0
 * The CPU as a device with memory of its own that records steps: what is enqueued while it records is kept, arguments and all, and
 * done again at each launch, so that only what lies in memory can be another from launch to launch. For one test program, linked
 * with --wrap=nrd_cpu_open. */
#ifndef NRD_TEST_RECORDING_CPU_H
#define NRD_TEST_RECORDING_CPU_H

#include "base/mem.h"
#include "device/cpu/cpu.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

typedef struct recorded_op {
    int32_t kind;
    nrd_batch_view view;
    union {
        nrd_embed_args embed;
        nrd_norm_args norm;
        nrd_linear_args linear;
        nrd_rope_kv_args rope_kv;
        nrd_attention_args attention;
        nrd_act_args act;
        nrd_sample_args sample;
    } u;
    void *dst;
    const void *src;
    size_t bytes;
} recorded_op;

enum { MAX_RECORDED = 256, KIND_COPY = 0 };

struct nrd_graph {
    recorded_op ops[MAX_RECORDED];
    int32_t n;
};

static bool records_steps; /* of the devices opened next */
static nrd_device_ops cpu_ops, recording_ops;
static nrd_graph *being_recorded;
static int32_t n_recorded, n_launched, n_mixed; /* n_mixed: of those launched, with sequences of different numbers of tokens */

static inline recorded_op *next_op(int32_t kind)
{
    assert_true(being_recorded->n < MAX_RECORDED);
    recorded_op *o = &being_recorded->ops[being_recorded->n++];
    o->kind = kind;
    return o;
}

/* The operation of this name: kept while a graph is recorded. */
#define RECORDED(name, kind_, keep_view)                                          \
    enum { KIND_##name = kind_ };                                                 \
    static nrd_error *recording_##name(nrd_stream *s, const nrd_##name##_args *a) \
    {                                                                             \
        if (!being_recorded) {                                                    \
            return cpu_ops.name(s, a);                                            \
        }                                                                         \
        recorded_op *o = next_op(kind_);                                          \
        o->u.name = *a;                                                           \
        keep_view;                                                                \
        return NULL;                                                              \
    }
#define KEEP_VIEW(name) o->view = *a->batch, o->u.name.batch = &o->view
RECORDED(embed, 1, (void)0)
RECORDED(norm, 2, (void)0)
RECORDED(linear, 3, (void)0)
RECORDED(rope_kv, 4, KEEP_VIEW(rope_kv))
RECORDED(attention, 5, KEEP_VIEW(attention))
RECORDED(act, 6, (void)0)
RECORDED(sample, 7, (void)0)

/* In the order of the stream, and over when it returns: attention looks at arrays of the batch when it is enqueued. */
static inline nrd_error *recording_copy(nrd_stream *s, void *dst, const void *src, size_t bytes)
{
    if (being_recorded) {
        recorded_op *o = next_op(KIND_COPY);
        o->dst = dst;
        o->src = src;
        o->bytes = bytes;
        return NULL;
    }
    NRD_TRY(cpu_ops.stream_sync(s));
    memcpy(dst, src, bytes);
    return NULL;
}

static inline nrd_error *recording_begin(nrd_stream *s)
{
    (void)s;
    assert_null(being_recorded);
    being_recorded = nrd_xcalloc(1, sizeof *being_recorded);
    return NULL;
}

static inline nrd_error *recording_end(nrd_stream *s, nrd_graph **out)
{
    (void)s;
    *out = being_recorded;
    being_recorded = NULL;
    n_recorded++;
    return NULL;
}

static inline nrd_error *recording_launch(nrd_stream *s, nrd_graph *g)
{
    n_launched++;
    for (int32_t i = 0; i < g->n; i++) {
        const recorded_op *o = &g->ops[i];
        n_mixed += o->kind == KIND_rope_kv && o->view.n_tokens != o->view.n_seqs * o->view.max_q_len && i < 8;
        NRD_TRY(o->kind == KIND_embed       ? cpu_ops.embed(s, &o->u.embed)
                : o->kind == KIND_norm      ? cpu_ops.norm(s, &o->u.norm)
                : o->kind == KIND_linear    ? cpu_ops.linear(s, &o->u.linear)
                : o->kind == KIND_rope_kv   ? cpu_ops.rope_kv(s, &o->u.rope_kv)
                : o->kind == KIND_attention ? cpu_ops.attention(s, &o->u.attention)
                : o->kind == KIND_act       ? cpu_ops.act(s, &o->u.act)
                : o->kind == KIND_sample    ? cpu_ops.sample(s, &o->u.sample)
                                            : recording_copy(s, o->dst, o->src, o->bytes));
    }
    return NULL;
}

static inline void recording_free(nrd_graph *g)
{
    free(g);
}

static inline void recording_info(nrd_device *dev, nrd_device_info *info)
{
    cpu_ops.get_info(dev, info);
    info->host_is_device = false;
}

nrd_error *__real_nrd_cpu_open(nrd_device **out, const nrd_device_config *config);
nrd_error *__wrap_nrd_cpu_open(nrd_device **out, const nrd_device_config *config);
nrd_error *__wrap_nrd_cpu_open(nrd_device **out, const nrd_device_config *config)
{
    NRD_TRY(__real_nrd_cpu_open(out, config));
    if (records_steps) {
        cpu_ops = recording_ops = *(*out)->ops;
        recording_ops.get_info = recording_info;
        recording_ops.embed = recording_embed;
        recording_ops.norm = recording_norm;
        recording_ops.linear = recording_linear;
        recording_ops.rope_kv = recording_rope_kv;
        recording_ops.attention = recording_attention;
        recording_ops.act = recording_act;
        recording_ops.sample = recording_sample;
        recording_ops.copy = recording_copy;
        recording_ops.graph_begin = recording_begin;
        recording_ops.graph_end = recording_end;
        recording_ops.graph_launch = recording_launch;
        recording_ops.graph_free = recording_free;
        (*out)->ops = &recording_ops;
    }
    return NULL;
}

#endif
