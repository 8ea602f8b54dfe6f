/* SPDX-License-Identifier: Apache-2.0
 * What the core adds to requests of sequence models. Control tensors have one element, since the
 * sequence batcher takes requests of batch size 1 only. */
#include "core/memory.h"
#include "core/request.h"
#include "core/request_internal.h"
#include "core/sched/sequence.h"
#include "core/types.h"

#include "base/error.h"
#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct flag_control {
    const char *name; /* borrowed from the configuration; NULL: not wanted */
    TRITONSERVER_DataType dtype;
    nrd_buf *no, *yes;
} flag_control;

struct nrd_sequence_controls {
    flag_control start, end, ready;
    const char *id_name; /* borrowed; NULL: not wanted */
    TRITONSERVER_DataType id_type;
    uint32_t n_dims;
};

static const int64_t ones[2] = {1, 1};

/* The control of a kind and its tensor's name; NULL: the model has none. */
static const nrd_control *find_control(const nrd_config *cfg, nrd_control_kind kind,
                                    const char **out_name)
{
    const Inference__ModelSequenceBatching *sb = cfg->sequence_batching;

    for (size_t i = 0; i < sb->n_control_input; i++) {
        for (size_t k = 0; k < sb->control_input[i]->n_control; k++) {
            if (sb->control_input[i]->control[k]->kind == kind) {
                *out_name = sb->control_input[i]->name;
                return sb->control_input[i]->control[k];
            }
        }
    }
    *out_name = NULL;
    return NULL;
}

/* NULL: no memory. */
static nrd_buf *value(const void *data, size_t n)
{
    nrd_buf *b = nrd_buf_new(n);
    if (b) {
        memcpy(b->data, data, n);
    }
    return b;
}

static flag_control flag(const nrd_config *cfg, nrd_control_kind kind)
{
    flag_control f = {0};
    const nrd_control *c = find_control(cfg, kind, &f.name);

    if (!c) {
        return f;
    }
    if (c->n_int32_false_true == 2) {
        f.dtype = TRITONSERVER_TYPE_INT32;
        f.no = value(&c->int32_false_true[0], sizeof(int32_t));
        f.yes = value(&c->int32_false_true[1], sizeof(int32_t));
    } else if (c->n_fp32_false_true == 2) {
        f.dtype = TRITONSERVER_TYPE_FP32;
        f.no = value(&c->fp32_false_true[0], sizeof(float));
        f.yes = value(&c->fp32_false_true[1], sizeof(float));
    } else {
        const unsigned char bits[2] = {c->bool_false_true[0] != 0, c->bool_false_true[1] != 0};
        f.dtype = TRITONSERVER_TYPE_BOOL;
        f.no = value(&bits[0], 1);
        f.yes = value(&bits[1], 1);
    }
    return f;
}

nrd_sequence_controls *nrd_sequence_controls_new(const nrd_config *cfg)
{
    nrd_sequence_controls *c = calloc(1, sizeof *c);
    const nrd_control *id;

    if (!c) {
        return NULL;
    }
#define KIND(x) INFERENCE__MODEL_SEQUENCE_BATCHING__CONTROL__KIND__CONTROL_SEQUENCE_##x
    c->start = flag(cfg, KIND(START));
    c->end = flag(cfg, KIND(END));
    c->ready = flag(cfg, KIND(READY));
    id = find_control(cfg, KIND(CORRID), &c->id_name);
#undef KIND
    c->id_type = id ? nrd_datatype_from_config(id->data_type) : TRITONSERVER_TYPE_INVALID;
    c->n_dims = cfg->max_batch_size > 0 ? 2 : 1;
    const flag_control *all[] = {&c->start, &c->end, &c->ready};
    for (int i = 0; i < 3; i++) {
        if (all[i]->name && (!all[i]->no || !all[i]->yes)) {
            nrd_sequence_controls_free(c);
            return NULL;
        }
    }
    return c;
}

void nrd_sequence_controls_free(nrd_sequence_controls *c)
{
    if (c) {
        flag_control *all[] = {&c->start, &c->end, &c->ready};
        for (int i = 0; i < 3; i++) {
            nrd_buf_unref(all[i]->no);
            nrd_buf_unref(all[i]->yes);
        }
        free(c);
    }
}

static void apply_flag(const nrd_sequence_controls *c, const flag_control *f, nrd_request *r,
                       bool on)
{
    if (f->name) {
        nrd_buf *b = on ? f->yes : f->no;
        nrd_request_override(r, f->name, f->dtype, ones, c->n_dims, b, b->size_bytes);
    }
}

/* An id of the other kind is handed over in the kind that the model asks for: a number as text; for
 * a text the number that the batcher gave its sequence. */
static nrd_buf *id_value(const nrd_sequence_controls *c, const nrd_request *r)
{
    char digits[24];
    uint64_t id = r->is_null ? 0 : r->corr_id;

    if (c->id_type != TRITONSERVER_TYPE_BYTES) {
        return value(&id, nrd_datatype_size(c->id_type)); /* little end first: the low bytes */
    }
    snprintf(digits, sizeof digits, "%llu", (unsigned long long)id);
    const char *text = r->is_null ? "" : r->corr_str ? r->corr_str : digits;
    uint32_t len = (uint32_t)strlen(text);
    nrd_buf *b = nrd_buf_new(sizeof len + len);
    if (!b) {
        return NULL;
    }
    memcpy(b->data, &len, sizeof len);
    memcpy((char *)b->data + sizeof len, text, len);
    return b;
}

void nrd_sequence_controls_apply(const nrd_sequence_controls *c, nrd_request *r)
{
    apply_flag(c, &c->start, r,
               !r->is_null && (r->flags & TRITONSERVER_REQUEST_FLAG_SEQUENCE_START));
    apply_flag(c, &c->end, r, !r->is_null && (r->flags & TRITONSERVER_REQUEST_FLAG_SEQUENCE_END));
    apply_flag(c, &c->ready, r, !r->is_null);
    if (c->id_name) {
        nrd_buf *b = id_value(c, r);
        nrd_request_override(r, c->id_name, c->id_type, ones, c->n_dims, b, b ? b->size_bytes : 0);
        nrd_buf_unref(b);
    }
}

void nrd_sequence_states_apply(nrd_request *r)
{
    nrd_sequence_state_input t;

    if (!r->states) {
        return;
    }
    for (size_t i = 0; nrd_sequence_states_input(r->states, i, &t); i++) {
        const nrd_input *in = nrd_request_find_input(r, t.name);
        if (in && in->is_override) {
            continue; /* given for the warm-up */
        }
        nrd_request_override(r, t.name, t.dtype, t.dims, t.n_dims, t.data, t.data->size_bytes);
    }
}
