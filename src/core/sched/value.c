/* SPDX-License-Identifier: Apache-2.0
 * Values of an ensemble's tensors: made from inputs and outputs, copied, shaped for a model. */
#include "core/sched/value.h"

#include "core/request.h"
#include "core/request_internal.h"
#include "core/response.h"
#include "core/response_internal.h"

#include "base/pool.h"

#include <stdlib.h>
#include <string.h>

void nrd_value_free(nrd_value *v)
{
    if (!v) {
        return;
    }
    for (uint32_t i = 0; i < v->n_segments; i++) {
        nrd_buf_unref(v->segments[i].owner);
    }
    nrd_pool_put(v->segments, v->n_segments * sizeof *v->segments);
    free(v->corr_str);
    nrd_pool_put(v, sizeof *v);
}

/* Of the dimensions only the first n_dims count. NULL: no memory. */
nrd_value *nrd_value_new(void)
{
    nrd_value *v = nrd_pool_get(sizeof *v);
    if (!v) {
        return NULL;
    }
    memset(v, 0, offsetof(nrd_value, dims));
    memset((char *)v + offsetof(nrd_value, segments), 0, sizeof *v - offsetof(nrd_value, segments));
    return v;
}

/* Shares the owners. */
static bool set_segments(nrd_value *v, const nrd_segment *from, uint32_t n)
{
    v->segments = n ? nrd_pool_get(n * sizeof *v->segments) : NULL;
    if (n && !v->segments) {
        return false;
    }
    v->n_segments = n;
    for (uint32_t i = 0; i < n; i++) {
        v->segments[i] = from[i];
        if (v->segments[i].owner) {
            nrd_buf_ref(v->segments[i].owner);
        }
    }
    return true;
}

bool nrd_value_set_text(char **field, const char *text)
{
    char *copy = text ? strdup(text) : NULL;
    if (text && !copy) {
        return false;
    }
    free(*field);
    *field = copy;
    return true;
}

nrd_value *nrd_value_copy(const nrd_value *v)
{
    nrd_value *c = nrd_pool_get(sizeof *c);
    if (!c) {
        return NULL;
    }
    *c = *v;
    c->next = NULL;
    c->corr_str = NULL;
    c->segments = NULL;
    c->n_segments = 0;
    if (!nrd_value_set_text(&c->corr_str, v->corr_str) ||
        !set_segments(c, v->segments, v->n_segments)) {
        nrd_value_free(c);
        return NULL;
    }
    return c;
}

nrd_value *nrd_value_of_input(const nrd_input *in, uint32_t batch_size)
{
    nrd_value *v = nrd_value_new();
    /* The segments are borrowed: the outer request lives longer. */
    if (!v || !set_segments(v, in->segments, in->n_segments)) {
        nrd_value_free(v);
        return NULL;
    }
    v->present = true;
    v->dtype = in->dtype;
    v->batch_size = batch_size;
    v->n_dims = in->n_dims;
    memcpy(v->dims, in->dims, in->n_dims * sizeof *v->dims);
    return v;
}

nrd_value *nrd_value_of_output(const nrd_output *o, uint32_t batch_size)
{
    nrd_value *v = nrd_value_new();
    if (!v) {
        return NULL;
    }
    v->present = true;
    v->from_step = true;
    v->dtype = o->dtype;
    v->batch_size = batch_size;
    v->n_dims = o->n_dims;
    memcpy(v->dims, o->dims, o->n_dims * sizeof *v->dims);
    if (o->buf && o->attr.byte_size > 0) {
        const nrd_segment s = {.base = o->base, .attr = o->attr, .owner = o->buf};
        if (!set_segments(v, &s, 1)) {
            nrd_value_free(v);
            return NULL;
        }
    }
    return v;
}

uint32_t nrd_value_shape(const nrd_value *v, const int64_t *want, size_t n_want, bool batching,
                         int64_t *out)
{
    bool matches = v->n_dims == n_want;

    for (size_t i = 0; matches && i < n_want; i++) {
        matches = want[i] < 0 || want[i] == v->dims[i];
    }
    if (batching && v->batch_size == 0 && matches && v->n_dims + 1 < NRD_MAX_RANK) {
        out[0] = 1;
        memcpy(out + 1, v->dims, v->n_dims * sizeof *out);
        return v->n_dims + 1;
    }
    if (!batching && v->batch_size == 1 && !matches && v->n_dims > 0) {
        memcpy(out, v->dims + 1, (v->n_dims - 1) * sizeof *out);
        return v->n_dims - 1;
    }
    memcpy(out, v->dims, v->n_dims * sizeof *out);
    return v->n_dims;
}

bool nrd_value_read_sequence(nrd_value *v, const nrd_response *r)
{
    bool flags_set = false;
    for (uint32_t i = 0; i < r->params.n; i++) {
        const nrd_param *p = &r->params.items[i];
        if (strcmp(p->name, "sequence_id") == 0 && p->type == TRITONSERVER_PARAMETER_INT) {
            free(v->corr_str);
            v->corr_str = NULL;
            v->corr_id = (uint64_t)p->i;
        } else if (strcmp(p->name, "sequence_id") == 0 &&
                   p->type == TRITONSERVER_PARAMETER_STRING) {
            if (!nrd_value_set_text(&v->corr_str, p->str)) {
                return false;
            }
        } else if (p->type == TRITONSERVER_PARAMETER_BOOL &&
                   (strcmp(p->name, "sequence_start") == 0 ||
                    strcmp(p->name, "sequence_end") == 0)) {
            uint32_t bit = p->name[9] == 's' ? TRITONSERVER_REQUEST_FLAG_SEQUENCE_START
                                             : TRITONSERVER_REQUEST_FLAG_SEQUENCE_END;
            v->flags = flags_set ? v->flags : 0;
            flags_set = true;
            v->flags |= p->b ? bit : 0;
        }
    }
    return true;
}

nrd_error *nrd_value_write_sequence(nrd_response *r, const nrd_value *v)
{
    bool start = (v->flags & TRITONSERVER_REQUEST_FLAG_SEQUENCE_START) != 0;
    bool end = (v->flags & TRITONSERVER_REQUEST_FLAG_SEQUENCE_END) != 0;

    if (v->corr_str) {
        NRD_TRY(
            nrd_params_set(&r->params, "sequence_id", TRITONSERVER_PARAMETER_STRING, v->corr_str));
    } else {
        int64_t id = (int64_t)v->corr_id;
        NRD_TRY(nrd_params_set(&r->params, "sequence_id", TRITONSERVER_PARAMETER_INT, &id));
    }
    NRD_TRY(nrd_params_set(&r->params, "sequence_start", TRITONSERVER_PARAMETER_BOOL, &start));
    return nrd_params_set(&r->params, "sequence_end", TRITONSERVER_PARAMETER_BOOL, &end);
}
