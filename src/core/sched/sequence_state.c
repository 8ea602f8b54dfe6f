/* SPDX-License-Identifier: Apache-2.0
 * Implicit state: tensors that a request leaves for the next one of its sequence. Each has an input
 * side, which the backend reads, and an output side, which it fills; StateUpdate makes the new
 * output the next input. A buffer that a request still reads is never written: the output side gets
 * a fresh one then, unless the configuration says that both sides are one buffer. */
#include "core/api.h"
#include "core/memory.h"
#include "core/model.h"
#include "core/model_internal.h"
#include "core/request_internal.h"
#include "core/sched/sequence.h"
#include "core/types.h"

#include "base/error.h"
#include "base/log.h"
#include "base/mem.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef Inference__ModelSequenceBatching__State state_config;

typedef struct side { /* TRITONBACKEND_State: the output side */
    struct pair *pair;
    TRITONSERVER_DataType dtype;
    int64_t dims[NRD_MAX_RANK];
    uint32_t n_dims;
    nrd_buf *buf; /* NULL: nothing yet */
    nrd_attr attr;
} side;

typedef struct pair {
    const char *in_name, *out_name; /* borrowed from the model's configuration */
    bool one_buffer, growable;
    side in, out;
} pair;

struct nrd_sequence_states {
    atomic_int refs;
    size_t n;
    pair pairs[];
};

struct nrd_sequence_plan {
    size_t n;
    struct planned {
        const state_config *cfg; /* borrowed */
        int64_t dims[NRD_MAX_RANK];
        uint32_t n_dims;
        nrd_buf *initial;
    } items[];
};

/* ---- what the configuration says ---- */

enum { MAX_STATE_FILE = 1 << 30 };

static nrd_error *check_initial(const state_config *st)
{
    const Inference__ModelSequenceBatching__InitialState *in = st->initial_state[0];

    if (in->data_type != st->data_type) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "The data type used for 'initial_state' field of state '%s' does not "
                          "match the state data type.",
                          st->input_name);
    }
    if (in->name[0] == '\0') {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "Field 'name' must be set when using initial_state for state input '%s'.",
                          st->input_name);
    }
    if (in->n_dims != st->n_dims) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "Number of dimensions in 'initial_state' doesn't match the size of "
                          "'state' dimensions for state input '%s'. %zu != %zu",
                          st->input_name, in->n_dims, st->n_dims);
    }
    for (size_t i = 0; i < in->n_dims; i++) {
        if (in->dims[i] < 0) {
            return nrd_errorf(
                NRD_ERR_INVALID_ARG,
                "'initial_state' field for state input name '%s' contains variable dimensions.",
                st->input_name);
        }
        if (st->dims[i] != -1 && st->dims[i] != in->dims[i]) {
            return nrd_errorf(NRD_ERR_INVALID_ARG,
                              "'initial_state' dim for input name '%s' doesn't match 'state' dim "
                              "description. %lld != %lld",
                              st->input_name, (long long)in->dims[i], (long long)st->dims[i]);
        }
    }
    return NULL;
}

static nrd_error *read_initial(const nrd_model *m, const state_config *st, uint64_t size,
                               nrd_buf **out)
{
    const Inference__ModelSequenceBatching__InitialState *in = st->initial_state[0];
    const bool is_text = st->data_type == INFERENCE__DATA_TYPE__TYPE_STRING;
    char *path, *data = NULL;
    size_t len = 0;
    nrd_error *err;

    switch (in->state_data_case) {
    case INFERENCE__MODEL_SEQUENCE_BATCHING__INITIAL_STATE__STATE_DATA_ZERO_DATA:
        return NULL;
    case INFERENCE__MODEL_SEQUENCE_BATCHING__INITIAL_STATE__STATE_DATA_DATA_FILE:
        break;
    default:
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "initial_state setting expects state'%s' to have state_data set",
                          st->input_name);
    }
    if (asprintf(&path, "%s/initial_state/%s", m->dir, in->data_file) < 0) {
        return nrd_error_no_memory();
    }
    err = nrd_model_read_file(&data, &len, path);
    free(path);
    if (!err && !is_text && len < size) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG,
                         "initial_state setting expects %llu bytes, but the data provided from "
                         "%sonly has %zu bytes.",
                         (unsigned long long)size, in->data_file, len);
    }
    if (!err) {
        nrd_buf_unref(*out);
        *out = nrd_buf_new(is_text ? len : size);
        err = *out ? NULL : nrd_error_no_memory();
    }
    if (!err) {
        memcpy((*out)->data, data, (*out)->size_bytes);
    }
    free(data);
    return err;
}

static bool is_repeated(const Inference__ModelSequenceBatching *sb, size_t i)
{
    for (size_t k = 0; k < i; k++) {
        if (strcmp(sb->state[k]->output_name, sb->state[i]->output_name) == 0 ||
            strcmp(sb->state[k]->input_name, sb->state[i]->input_name) == 0) {
            return true;
        }
    }
    return false;
}

static nrd_error *plan_state(struct planned *p, const nrd_model *m, const state_config *st)
{
    const bool batched = m->config->max_batch_size > 0;
    uint64_t count, size;

    if (st->n_initial_state > 1) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "initial_state field for state input '%s' must contain exactly one or "
                          "zero element. Found '%zu' elements.",
                          st->input_name, st->n_initial_state);
    }
    if (st->use_growable_memory && !st->use_same_buffer_for_input_output) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "In order to 'use_growable_memory', you must also enable "
                          "'use_single_buffer' for state input name '%s'.",
                          st->input_name);
    }
    if (st->n_dims + 1 > NRD_MAX_RANK) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "state '%s' has more than %d dimensions",
                          st->input_name, (int)NRD_MAX_RANK - 1);
    }
    if (st->n_initial_state == 1) {
        NRD_TRY(check_initial(st));
    }
    p->cfg = st;
    if (batched) {
        p->dims[p->n_dims++] = 1;
    }
    for (size_t i = 0; i < st->n_dims; i++) { /* what may vary starts as 1 */
        int64_t d = st->n_initial_state ? st->initial_state[0]->dims[i] : st->dims[i];
        p->dims[p->n_dims++] = d == -1 ? 1 : d;
    }
    uint32_t element = nrd_datatype_size(nrd_datatype_from_config(st->data_type));
    element = element ? element : sizeof(uint32_t); /* texts start empty */
    if (!nrd_shape_count(p->dims, p->n_dims, &count) ||
        __builtin_mul_overflow(count, (uint64_t)element, &size) || size > MAX_STATE_FILE) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "state '%s' is too large", st->input_name);
    }
    p->initial = nrd_buf_new(size);
    if (!p->initial) {
        return nrd_error_no_memory();
    }
    memset(p->initial->data, 0, size);
    return st->n_initial_state == 1 ? read_initial(m, st, size, &p->initial) : NULL;
}

nrd_error *nrd_sequence_plan_new(nrd_sequence_plan **out, const nrd_model *m)
{
    const Inference__ModelSequenceBatching *sb = m->config->sequence_batching;
    nrd_sequence_plan *p = calloc(1, sizeof *p + (sb->n_state + 1) * sizeof p->items[0]);
    nrd_error *err = NULL;

    *out = NULL;
    if (!p) {
        return nrd_error_no_memory();
    }
    for (size_t i = 0; i < sb->n_state && !err; i++) {
        if (is_repeated(sb, i)) {
            NRD_LOG_WARN("Detected duplicate 'input_name' in the state configuration: '%s.' This "
                         "state configuration will be ignored.",
                         sb->state[i]->input_name);
            continue;
        }
        err = plan_state(&p->items[p->n++], m, sb->state[i]);
    }
    if (err) {
        nrd_sequence_plan_free(p);
        return err;
    }
    *out = p;
    return NULL;
}

void nrd_sequence_plan_free(nrd_sequence_plan *p)
{
    if (p) {
        for (size_t i = 0; i < p->n; i++) {
            nrd_buf_unref(p->items[i].initial);
        }
        free(p);
    }
}

bool nrd_sequence_plan_is_empty(const nrd_sequence_plan *p)
{
    return p->n == 0;
}

/* ---- the states of one sequence ---- */

static void put_buf(side *s, nrd_buf *b) /* takes the reference */
{
    nrd_buf_unref(s->buf);
    s->buf = b;
    s->attr = (nrd_attr){.byte_size = b ? b->size_bytes : 0};
}

static nrd_sequence_states *states_new(size_t n)
{
    nrd_sequence_states *s = calloc(1, sizeof *s + (n + 1) * sizeof s->pairs[0]);
    if (!s) {
        return NULL;
    }
    atomic_init(&s->refs, 1);
    s->n = n;
    for (size_t i = 0; i < n; i++) {
        s->pairs[i].in.pair = s->pairs[i].out.pair = &s->pairs[i];
    }
    return s;
}

static nrd_buf *copy_of(const nrd_buf *from)
{
    nrd_buf *b = nrd_buf_new(from->size_bytes);
    if (b) {
        memcpy(b->data, from->data, from->size_bytes);
    }
    return b;
}

nrd_sequence_states *nrd_sequence_states_new(const nrd_sequence_plan *p)
{
    nrd_sequence_states *s = states_new(p->n);

    if (!s) {
        return NULL;
    }
    for (size_t i = 0; i < p->n; i++) {
        const struct planned *plan = &p->items[i];
        pair *t = &s->pairs[i];
        t->in_name = plan->cfg->input_name;
        t->out_name = plan->cfg->output_name;
        t->growable = plan->cfg->use_growable_memory;
        t->one_buffer = plan->cfg->use_same_buffer_for_input_output;
        t->in.dtype = t->out.dtype = nrd_datatype_from_config(plan->cfg->data_type);
        t->in.n_dims = t->out.n_dims = plan->n_dims;
        memcpy(t->in.dims, plan->dims, sizeof t->in.dims);
        memcpy(t->out.dims, plan->dims, sizeof t->out.dims);
        put_buf(&t->in, t->one_buffer ? copy_of(plan->initial) : nrd_buf_ref(plan->initial));
        if (!t->in.buf) {
            nrd_sequence_states_unref(s);
            return NULL;
        }
        if (t->one_buffer) {
            put_buf(&t->out, nrd_buf_ref(t->in.buf));
        }
    }
    return s;
}

nrd_sequence_states *nrd_sequence_states_new_null(const nrd_sequence_states *like)
{
    nrd_sequence_states *s = states_new(like->n);

    if (!s) {
        return NULL;
    }
    for (size_t i = 0; i < like->n; i++) {
        const pair *from = &like->pairs[i];
        pair *t = &s->pairs[i];
        uint64_t count = 0, size = from->in.buf->size_bytes;
        t->in_name = from->in_name;
        t->out_name = from->out_name;
        t->in.dtype = t->out.dtype = from->in.dtype;
        t->in.n_dims = t->out.n_dims = from->in.n_dims;
        memcpy(t->in.dims, from->in.dims, sizeof t->in.dims);
        memcpy(t->out.dims, from->in.dims, sizeof t->out.dims);
        if (t->in.dtype == TRITONSERVER_TYPE_BYTES &&
            nrd_shape_count(t->in.dims, t->in.n_dims, &count)) {
            size = count * sizeof(uint32_t);
        }
        nrd_buf *b = nrd_buf_new(size);
        if (!b) {
            nrd_sequence_states_unref(s);
            return NULL;
        }
        memset(b->data, 0, size);
        put_buf(&t->in, b);
    }
    return s;
}

nrd_sequence_states *nrd_sequence_states_ref(nrd_sequence_states *s)
{
    atomic_fetch_add(&s->refs, 1);
    return s;
}

void nrd_sequence_states_unref(nrd_sequence_states *s)
{
    if (s && atomic_fetch_sub(&s->refs, 1) == 1) {
        for (size_t i = 0; i < s->n; i++) {
            put_buf(&s->pairs[i].in, NULL);
            put_buf(&s->pairs[i].out, NULL);
        }
        free(s);
    }
}

bool nrd_sequence_states_input(const nrd_sequence_states *s, size_t i,
                               nrd_sequence_state_input *out)
{
    if (!s || i >= s->n) {
        return false;
    }
    const side *in = &s->pairs[i].in;
    *out = (nrd_sequence_state_input){.name = s->pairs[i].in_name,
                                      .dtype = in->dtype,
                                      .n_dims = in->n_dims,
                                      .dims = in->dims,
                                      .data = in->buf};
    return true;
}

/* ---- TRITONBACKEND ---- */

static side *of_api(TRITONBACKEND_State *s)
{
    return (side *)(void *)s;
}

TRITONSERVER_Error *TRITONBACKEND_StateNew(TRITONBACKEND_State **state,
                                           TRITONBACKEND_Request *request, const char *name,
                                           const TRITONSERVER_DataType datatype,
                                           const int64_t *shape, const uint32_t dims_count)
{
    const nrd_request *r = (const nrd_request *)(void *)request;

    *state = NULL;
    if (!r->states) {
        return as_api(nrd_errorf(NRD_ERR_INVALID_ARG,
                                 "unable to add state '%s'. State configuration is missing for "
                                 "model '%s'.",
                                 name, r->model_name));
    }
    if (dims_count > NRD_MAX_RANK) {
        return as_api(nrd_errorf(NRD_ERR_INVALID_ARG, "state '%s' has more than %d dimensions",
                                 name, (int)NRD_MAX_RANK));
    }
    for (size_t i = 0; i < r->states->n; i++) {
        side *s = &r->states->pairs[i].out;
        if (strcmp(s->pair->out_name, name) == 0) {
            s->dtype = datatype;
            s->n_dims = dims_count;
            if (dims_count) {
                memcpy(s->dims, shape, dims_count * sizeof *shape);
            }
            *state = (TRITONBACKEND_State *)(void *)s;
            return NULL;
        }
    }
    return as_api(nrd_errorf(NRD_ERR_INVALID_ARG, "state '%s' is not a valid state name.", name));
}

TRITONSERVER_Error *TRITONBACKEND_StateBuffer(TRITONBACKEND_State *state, void **buffer,
                                              const uint64_t buffer_byte_size,
                                              TRITONSERVER_MemoryType *memory_type,
                                              int64_t *memory_type_id)
{
    side *s = of_api(state);
    pair *p = s->pair;
    /* Its readers are the input side, if shared on purpose, and requests that have it as input. */
    const bool is_ours = s->buf && (p->one_buffer || atomic_load(&s->buf->refs) == 1);

    *memory_type = TRITONSERVER_MEMORY_CPU;
    *memory_type_id = 0;
    *buffer = NULL;
    if (!is_ours || s->buf->size_bytes != buffer_byte_size) {
        nrd_buf *b = nrd_buf_new(buffer_byte_size);
        if (!b) {
            return as_api(nrd_error_no_memory());
        }
        if (p->growable && s->buf) { /* what was there stays */
            memcpy(b->data, s->buf->data,
                   b->size_bytes < s->buf->size_bytes ? b->size_bytes : s->buf->size_bytes);
        }
        put_buf(s, b);
        if (p->one_buffer) {
            put_buf(&p->in, nrd_buf_ref(b));
        }
    }
    *buffer = s->buf->data;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_StateUpdate(TRITONBACKEND_State *state)
{
    side *s = of_api(state);
    pair *p = s->pair;

    if (!s->buf) {
        return as_api(nrd_errorf(NRD_ERR_INVALID_ARG,
                                 "state '%s' has no buffer, get one with TRITONBACKEND_StateBuffer",
                                 p->out_name));
    }
    if (!p->one_buffer) {
        nrd_buf *was = p->in.buf;
        p->in.buf = s->buf;
        s->buf = was;
        p->in.attr.byte_size = p->in.buf->size_bytes;
        s->attr.byte_size = s->buf->size_bytes;
    }
    p->in.dtype = s->dtype;
    p->in.n_dims = s->n_dims;
    memcpy(p->in.dims, s->dims, sizeof p->in.dims);
    return NULL;
}

TRITONSERVER_Error *
TRITONBACKEND_StateBufferAttributes(TRITONBACKEND_State *state,
                                    TRITONSERVER_BufferAttributes **buffer_attributes)
{
    *buffer_attributes = (TRITONSERVER_BufferAttributes *)(void *)&of_api(state)->attr;
    return NULL;
}
