/* SPDX-License-Identifier: Apache-2.0
 * A graph of models. Nothing waits here: the response callback of one step starts the next ones, so
 * a request costs no thread, and tensors go from step to step as shares of the same buffer.
 *
 * Life of one request: enqueue makes a `job` and starts the steps whose inputs are there. Every
 * response of a step adds values to tensors; a step runs when all its inputs have a value of the
 * same iteration (a decoupled step makes several), and a response goes out when all outputs have
 * one. When no step is in flight the final response goes out, and when the last inner request is
 * released too, the figures are written and the outer request is released.
 *
 * Lock: job.mu guards the job. It is not held while steps are queued or responses are sent;
 * responses wait in job.outbox and one thread at a time sends them, in order. */
#include "core/sched/ensemble.h"

#include "core/cancel.h"
#include "core/context.h"
#include "core/memory.h"
#include "core/model.h"
#include "core/model_internal.h"
#include "core/model_metrics.h"
#include "core/request.h"
#include "core/request_internal.h"
#include "core/request_run.h"
#include "core/response.h"
#include "core/response_internal.h"
#include "core/sched/scheduler.h"
#include "core/sched/worker.h"
#include "core/statistics.h"
#include "core/trace.h"
#include "core/types.h"
#include "core/wakeup.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/mem.h"
#include "base/pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef struct pin { /* between a model's tensor name and an ensemble tensor */
    char *name;
    uint32_t tensor;
} pin;

typedef struct step {
    char *model, *namespace; /* name, namespace */
    int64_t version;
    pin *in, *out;
    uint32_t n_in, n_out;
} step;

typedef struct tensor {
    char *name;
    uint32_t *readers; /* steps */
    uint32_t n_readers;
    const Inference__ModelInput *input;   /* of the ensemble, or NULL; borrowed from its config */
    const Inference__ModelOutput *output; /* likewise */
} tensor;

typedef struct nrd_ensemble {
    nrd_scheduler base;
    nrd_model *model; /* borrowed: owns this */
    step *steps;
    uint32_t n_steps;
    tensor *tensors;
    uint32_t n_tensors;
} nrd_ensemble;

typedef struct value {
    struct value *next;
    uint32_t iteration, readers_left;
    bool present; /* false: optional and not given */
    TRITONSERVER_DataType dtype;
    uint32_t n_dims, batch_size;
    int64_t dims[NRD_MAX_RANK];
    nrd_segment *segments; /* owners shared */
    uint32_t n_segments;
    bool from_step;
    uint64_t corr_id;
    char *corr_str;
    uint32_t flags;
} value;

typedef struct slot { /* the values of one tensor in one job */
    value *head;
    uint32_t n_made; /* the next value's iteration */
} slot;

typedef struct outgoing {
    struct outgoing *next;
    uint32_t flags;
    nrd_error *error;
    bool has_response;
    struct {
        uint32_t tensor;
        value *v;
    } * outputs; /* own */
    uint32_t n_outputs;
    bool last;
} outgoing;

typedef struct job {
    atomic_int refs; /* one for the graph, one per inner request */
    nrd_ensemble *ens;
    nrd_request *req;   /* borrowed until released at the end */
    nrd_model **models; /* per step, shared */
    nrd_cancel *cancel; /* of all steps; set when the graph failed */
    nrd_step_sums sums;
    pthread_mutex_t mu;
    slot *slots;
    uint32_t n_in_flight;
    nrd_error *error; /* the first one */
    bool failed, sent_any, finished, sending;
    outgoing *outbox, **outbox_tail;
    outgoing end; /* the last one of all, where it is none with outputs: it needs no memory */
} job;

typedef struct run {  /* one inner request */
    atomic_int parts; /* released, and answered for the last time */
    job *j;
    uint32_t step, iteration;
    uint32_t batch_size; /* of the inner request; 0: its model does not batch */
    nrd_request *req;    /* until queued */
    struct run *next;
    uint64_t corr_id;
    char *corr_str;
    uint32_t flags;
} run;

/* ---- the graph ---- */

/* UINT32_MAX: no memory. */
static uint32_t tensor_id(nrd_ensemble *e, const char *name)
{
    for (uint32_t i = 0; i < e->n_tensors; i++) {
        if (strcmp(e->tensors[i].name, name) == 0) {
            return i;
        }
    }
    tensor *list = realloc(e->tensors, (e->n_tensors + 1) * sizeof *list);
    e->tensors = list ? list : e->tensors;
    char *copy = list ? strdup(name) : NULL;
    if (!copy) {
        return UINT32_MAX;
    }
    list[e->n_tensors] = (tensor){.name = copy};
    return e->n_tensors++;
}

static nrd_error *add_reader(tensor *t, uint32_t step_id)
{
    for (uint32_t i = 0; i < t->n_readers; i++) {
        if (t->readers[i] == step_id) {
            return NULL;
        }
    }
    uint32_t *list = realloc(t->readers, (t->n_readers + 1) * sizeof *list);
    if (!list) {
        return nrd_error_no_memory();
    }
    t->readers = list;
    t->readers[t->n_readers++] = step_id;
    return NULL;
}

static void free_ensemble(nrd_scheduler *base)
{
    nrd_ensemble *e = (nrd_ensemble *)base;

    for (uint32_t i = 0; i < e->n_steps; i++) {
        step *s = &e->steps[i];
        for (uint32_t k = 0; k < s->n_in; k++) {
            free(s->in[k].name);
        }
        for (uint32_t k = 0; k < s->n_out; k++) {
            free(s->out[k].name);
        }
        free(s->in);
        free(s->out);
        free(s->model);
        free(s->namespace);
    }
    for (uint32_t i = 0; i < e->n_tensors; i++) {
        free(e->tensors[i].readers);
        free(e->tensors[i].name);
    }
    free(e->tensors);
    free(e->steps);
    free(e);
}

/* ---- checking the graph against the models ---- */

typedef struct seen {
    const char *tensor, *model;
    Inference__DataType type;
} seen;

static const char *type_name(Inference__DataType t)
{
    const ProtobufCEnumValue *v =
        protobuf_c_enum_descriptor_get_value(&inference__data_type__descriptor, (int)t);
    return v ? v->name : "TYPE_INVALID";
}

static nrd_error *note(seen *list, size_t *n, const char *ens, const char *t, const char *model,
                       Inference__DataType type)
{
    for (size_t i = 0; i < *n; i++) {
        if (strcmp(list[i].tensor, t) == 0) {
            if (list[i].type != type) {
                return nrd_errorf(
                    NRD_ERR_INVALID_ARG,
                    "in ensemble %s, ensemble tensor %s: inconsistent data type: %s is "
                    "inferred from model %s while %s is inferred from model %s",
                    ens, t, type_name(list[i].type), list[i].model, type_name(type), model);
            }
            return NULL;
        }
    }
    list[(*n)++] = (seen){t, model, type};
    return NULL;
}

static nrd_error *check_step(const nrd_config *cfg, const Inference__ModelEnsembling__Step *s,
                             nrd_model *m, seen *list, size_t *n)
{
    if (m->config->max_batch_size > 0 && m->config->max_batch_size < cfg->max_batch_size) {
        return nrd_errorf(
            NRD_ERR_INVALID_ARG,
            "ensemble %s allows maximum batch size %d, but it contains model %s which "
            "only allows maximum batch size to be %d",
            cfg->name, cfg->max_batch_size, m->name, m->config->max_batch_size);
    }
    for (size_t k = 0; k < s->n_input_map; k++) {
        const Inference__ModelInput *in = nrd_model_input(m, s->input_map[k]->key);
        if (!in) {
            return nrd_errorf(NRD_ERR_INVALID_ARG,
                              "in ensemble %s, ensemble tensor %s is mapping to non-existing input "
                              "%s in model %s",
                              cfg->name, s->input_map[k]->value, s->input_map[k]->key, m->name);
        }
        NRD_TRY(note(list, n, cfg->name, s->input_map[k]->value, s->model_name, in->data_type));
    }
    for (size_t k = 0; k < s->n_output_map; k++) {
        const Inference__ModelOutput *o = nrd_model_output(m, s->output_map[k]->key);
        if (!o) {
            return nrd_errorf(
                NRD_ERR_INVALID_ARG,
                "in ensemble %s, ensemble tensor %s is mapped from non-existing output "
                "%s in model %s",
                cfg->name, s->output_map[k]->value, s->output_map[k]->key, m->name);
        }
        NRD_TRY(note(list, n, cfg->name, s->output_map[k]->value, s->model_name, o->data_type));
    }
    for (size_t i = 0; i < m->config->n_input; i++) {
        bool is_mapped = m->config->input[i]->optional;
        for (size_t k = 0; k < s->n_input_map && !is_mapped; k++) {
            is_mapped = strcmp(s->input_map[k]->key, m->config->input[i]->name) == 0;
        }
        if (!is_mapped) {
            return nrd_errorf(NRD_ERR_INVALID_ARG,
                              "in ensemble %s, input %s in model %s is not mapped to any ensemble "
                              "tensors",
                              cfg->name, m->config->input[i]->name, m->name);
        }
    }
    return NULL;
}

static nrd_error *mark_decoupled(nrd_config *cfg, bool decoupled)
{
    if (!cfg->model_transaction_policy) {
        cfg->model_transaction_policy = malloc(sizeof *cfg->model_transaction_policy);
        if (!cfg->model_transaction_policy) {
            return nrd_error_no_memory();
        }
        inference__model_transaction_policy__init(cfg->model_transaction_policy);
    }
    cfg->model_transaction_policy->decoupled = decoupled;
    return NULL;
}

nrd_error *nrd_ensemble_check(nrd_context *ctx, nrd_config *cfg)
{
    const Inference__ModelEnsembling *en = cfg->ensemble_scheduling;
    size_t cap = cfg->n_input + cfg->n_output, n = 0;
    bool decoupled = false;
    nrd_error *err = NULL;
    seen *list;

    for (size_t i = 0; i < en->n_step; i++) {
        cap += en->step[i]->n_input_map + en->step[i]->n_output_map;
    }
    list = calloc(cap + 1, sizeof *list);
    if (!list) {
        return nrd_error_no_memory();
    }
    for (size_t i = 0; i < cfg->n_input && !err; i++) {
        err = note(list, &n, cfg->name, cfg->input[i]->name, cfg->name, cfg->input[i]->data_type);
    }
    for (size_t i = 0; i < cfg->n_output && !err; i++) {
        err = note(list, &n, cfg->name, cfg->output[i]->name, cfg->name, cfg->output[i]->data_type);
    }
    for (size_t i = 0; i < en->n_step && !err; i++) {
        nrd_model *m = NULL;
        int64_t version = en->step[i]->model_version ? en->step[i]->model_version : -1;
        err = ctx->catalog.get_step(&m, ctx->catalog.repo, en->step[i]->model_namespace,
                                    en->step[i]->model_name, version);
        if (err && nrd_error_get_code(err) == NRD_ERR_NO_MEMORY) {
            break;
        }
        if (err) {
            nrd_error_free(err);
            err = nrd_errorf(NRD_ERR_INVALID_ARG,
                             "ensemble '%s' depends on '%s' which has no loaded version.",
                             cfg->name, en->step[i]->model_name);
            break;
        }
        err = check_step(cfg, en->step[i], m, list, &n);
        decoupled = decoupled || m->decoupled;
        nrd_model_unref(m);
    }
    free(list);
    return err ? err : mark_decoupled(cfg, decoupled);
}

/* ---- values ---- */

static void value_free(value *v)
{
    for (uint32_t i = 0; i < v->n_segments; i++) {
        nrd_buf_unref(v->segments[i].owner);
    }
    nrd_pool_put(v->segments, v->n_segments * sizeof *v->segments);
    free(v->corr_str);
    nrd_pool_put(v, sizeof *v);
}

/* Of the dimensions only the first n_dims count. NULL: no memory. */
static value *value_new(void)
{
    value *v = nrd_pool_get(sizeof *v);
    if (!v) {
        return NULL;
    }
    memset(v, 0, offsetof(value, dims));
    memset((char *)v + offsetof(value, segments), 0, sizeof *v - offsetof(value, segments));
    return v;
}

/* Shares the owners. */
static bool set_segments(value *v, const nrd_segment *from, uint32_t n)
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

static bool set_text(char **field, const char *text)
{
    char *copy = text ? strdup(text) : NULL;
    if (text && !copy) {
        return false;
    }
    free(*field);
    *field = copy;
    return true;
}

/* Everybody who may read a value of the tensor: its steps, and the response. */
static uint32_t n_readers(const job *j, uint32_t t)
{
    const tensor *ten = &j->ens->tensors[t];
    return ten->n_readers + (ten->output && nrd_request_wants(j->req, ten->name) ? 1u : 0u);
}

static void add_value_locked(job *j, uint32_t t, value *v)
{
    value **p = &j->slots[t].head;
    v->iteration = j->slots[t].n_made++;
    v->readers_left = n_readers(j, t);
    if (v->readers_left == 0) {
        value_free(v);
        return;
    }
    while (*p) {
        p = &(*p)->next;
    }
    *p = v;
}

static value *find_value_locked(const job *j, uint32_t t, uint32_t iteration)
{
    value *v = j->slots[t].head;
    while (v && v->iteration != iteration) {
        v = v->next;
    }
    return v;
}

/* One reader is done; the last one takes the value out (returned, to be freed or kept). */
static value *consume_locked(job *j, uint32_t t, value *v)
{
    if (--v->readers_left > 0) {
        return NULL;
    }
    value **p = &j->slots[t].head;
    while (*p != v) {
        p = &(*p)->next;
    }
    *p = v->next;
    v->next = NULL;
    return v;
}

static value *copy_value(const value *v)
{
    value *c = nrd_pool_get(sizeof *c);
    if (!c) {
        return NULL;
    }
    *c = *v;
    c->next = NULL;
    c->corr_str = NULL;
    c->segments = NULL;
    c->n_segments = 0;
    if (!set_text(&c->corr_str, v->corr_str) || !set_segments(c, v->segments, v->n_segments)) {
        value_free(c);
        return NULL;
    }
    return c;
}

static value *value_of_input(const nrd_input *in, uint32_t batch_size)
{
    value *v = value_new();
    /* The segments are borrowed: the outer request lives longer. */
    if (!v || !set_segments(v, in->segments, in->n_segments)) {
        if (v) {
            value_free(v);
        }
        return NULL;
    }
    v->present = true;
    v->dtype = in->dtype;
    v->batch_size = batch_size;
    v->n_dims = in->n_dims;
    memcpy(v->dims, in->dims, in->n_dims * sizeof *v->dims);
    return v;
}

static value *value_of_output(const nrd_output *o, uint32_t batch_size)
{
    value *v = value_new();
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
            value_free(v);
            return NULL;
        }
    }
    return v;
}

/* A batching model and one that does not batch may follow each other when the shapes allow it. */
static uint32_t reshape(const int64_t *want, size_t n_want, bool batching, const value *v,
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

/* ---- jobs ---- */

static void step_released(TRITONSERVER_InferenceRequest *request, const uint32_t flags,
                          void *userp);
static void step_answered(TRITONSERVER_InferenceResponse *response, const uint32_t flags,
                          void *userp);

static void job_free(job *j)
{
    const nrd_ensemble *e = j->ens;

    nrd_pool_put(j->models, e->n_steps * sizeof *j->models);
    nrd_pool_put(j->slots, e->n_tensors * sizeof *j->slots);
    nrd_cancel_unref(j->cancel);
    pthread_mutex_destroy(&j->mu);
    nrd_pool_put(j, sizeof *j);
}

static void job_unref(job *j)
{
    nrd_request *req = j->req;
    nrd_model *m = j->ens->model;

    if (atomic_fetch_sub(&j->refs, 1) != 1) {
        return;
    }
    uint64_t total = nrd_now_ns() - req->start_ns;
    if (j->failed) {
        nrd_stats_failure(m, total,
                          nrd_request_is_cancelled(req) ? NRD_FAIL_CANCELED : NRD_FAIL_OTHER);
    } else {
        uint64_t batch = req->batch_size ? req->batch_size : 1;
        uint64_t in = atomic_load(&j->sums.input_ns), infer = atomic_load(&j->sums.infer_ns);
        uint64_t out = atomic_load(&j->sums.output_ns);
        nrd_stats_success(m, batch, total, atomic_load(&j->sums.queue_ns), in, infer, out);
        nrd_stats_batch(m, batch, in, infer, out);
    }
    for (uint32_t t = 0; t < j->ens->n_tensors; t++) {
        for (value *v = j->slots[t].head, *next; v; v = next) {
            next = v->next;
            value_free(v);
        }
    }
    for (uint32_t i = 0; i < j->ens->n_steps; i++) {
        nrd_model_unref(j->models[i]);
    }
    job_free(j);
    nrd_request_release(req, TRITONSERVER_REQUEST_RELEASE_ALL);
}

static void run_part_done(run *u)
{
    if (atomic_fetch_sub(&u->parts, 1) == 1) {
        job *j = u->j;
        free(u->corr_str);
        nrd_pool_put(u, sizeof *u);
        job_unref(j);
    }
}

/* Keeps the first error, with the ensemble's name in front, and stops what is still running. Takes
 * err always. */
static void set_error_locked(job *j, nrd_error *err)
{
    if (j->failed) {
        nrd_error_free(err);
        return;
    }
    j->failed = true;
    j->error = nrd_errorf(nrd_error_get_code(err), "in ensemble '%s', %s", j->ens->model->name,
                          nrd_error_message(err));
    nrd_error_free(err);
    nrd_cancel_set(j->cancel);
}

static outgoing *push_outgoing_locked(job *j, outgoing *o)
{
    *j->outbox_tail = o;
    j->outbox_tail = &o->next;
    return o;
}

/* ---- starting steps ---- */

static bool inputs_ready_locked(const job *j, const step *s, uint32_t iteration)
{
    for (uint32_t i = 0; i < s->n_in; i++) {
        if (!find_value_locked(j, s->in[i].tensor, iteration)) {
            return false;
        }
    }
    return true;
}

static nrd_error *fill_request_locked(job *j, run *u, const step *s, nrd_model *m,
                                      uint32_t iteration)
{
    for (uint32_t i = 0; i < s->n_in; i++) {
        value *v = find_value_locked(j, s->in[i].tensor, iteration);
        if (v->present) {
            const Inference__ModelInput *ci = nrd_model_input(m, s->in[i].name);
            int64_t dims[NRD_MAX_RANK];
            nrd_input *in;
            if (!ci) {
                return nrd_errorf(NRD_ERR_INVALID_ARG,
                                  "unexpected inference input '%s' for model '%s'", s->in[i].name,
                                  m->name);
            }
            uint32_t n = reshape(ci->dims, ci->n_dims, m->config->max_batch_size > 0, v, dims);
            NRD_TRY(nrd_request_add_input(&in, u->req, s->in[i].name, v->dtype, dims, n));
            for (uint32_t k = 0; k < v->n_segments; k++) {
                NRD_TRY(nrd_input_append(in, v->segments[k].base, &v->segments[k].attr,
                                         v->segments[k].owner));
            }
        }
        if (v->from_step) { /* the response of a step may name another sequence */
            u->corr_id = v->corr_id;
            if (!set_text(&u->corr_str, v->corr_str)) {
                return nrd_error_no_memory();
            }
            u->flags = v->flags;
        }
    }
    for (uint32_t i = 0; i < s->n_in; i++) {
        bool again = false; /* one tensor may feed two inputs: it is one reader */
        for (uint32_t k = 0; k < i; k++) {
            again = again || s->in[k].tensor == s->in[i].tensor;
        }
        value *v = again ? NULL : find_value_locked(j, s->in[i].tensor, iteration);
        value *done = v ? consume_locked(j, s->in[i].tensor, v) : NULL;
        if (done) {
            value_free(done);
        }
    }
    for (uint32_t i = 0; i < s->n_out; i++) {
        NRD_TRY(nrd_request_add_output(u->req, s->out[i].name));
    }
    return NULL;
}

/* The id and the sequence that a step's request has. */
static nrd_error *name_request(const run *u, const nrd_request *outer)
{
    char *id = nrd_pool_strdup(outer->id);
    if (!id || !set_text(&u->req->corr_str, u->corr_str)) {
        nrd_pool_strput(id);
        return nrd_error_no_memory();
    }
    nrd_pool_strput(u->req->id);
    u->req->id = id;
    return NULL;
}

static nrd_error *make_run_locked(job *j, uint32_t step_id, uint32_t iteration, run **list)
{
    const step *s = &j->ens->steps[step_id];
    nrd_model *m = j->models[step_id];
    run *u = nrd_pool_zget(sizeof *u);
    nrd_error *err = NULL;

    if (!u) {
        return nrd_error_no_memory();
    }
    atomic_init(&u->parts, 2);
    u->j = j;
    u->step = step_id;
    u->iteration = iteration;
    u->corr_id = j->req->corr_id;
    u->flags = j->req->flags;
    u->req = nrd_request_new(m, s->version);
    if (!u->req || !set_text(&u->corr_str, j->req->corr_str)) {
        err = nrd_error_no_memory();
    }
    err = err ? err : fill_request_locked(j, u, s, m, iteration);
    err = err ? err : name_request(u, j->req);
    if (!err) {
        err = nrd_params_copy(&u->req->params, &j->req->params);
    }
    if (err) {
        nrd_request_free(u->req);
        free(u->corr_str);
        nrd_pool_put(u, sizeof *u);
        return err;
    }
    nrd_request *r = u->req;
    if (m->config->max_batch_size > 0 && r->n_inputs > 0 && r->inputs[0]->n_given > 0 &&
        r->inputs[0]->given[0] > 0) {
        u->batch_size = (uint32_t)r->inputs[0]->given[0];
    }
    r->corr_id = u->corr_id;
    r->flags = u->flags;
    r->priority = j->req->priority;
    r->timeout_us = j->req->timeout_us;
    r->release_fn = step_released;
    r->release_userp = u;
    r->response_fn = step_answered;
    r->response_userp = u;
    r->core_buffers = true;
    r->parent = nrd_cancel_ref(j->cancel);
    r->step_sums = &j->sums;
    r->trace = nrd_trace_share(nrd_trace_child(j->req->trace));
    atomic_fetch_add(&j->refs, 1);
    j->n_in_flight++;
    u->next = *list;
    *list = u;
    return NULL;
}

/* Makes the steps that can run now that `tensors` have a value of `iteration`. */
static nrd_error *make_runs_locked(job *j, const uint32_t *tensors, const uint32_t *iterations,
                                   uint32_t n, run **list)
{
    for (uint32_t i = 0; i < n; i++) {
        const tensor *t = &j->ens->tensors[tensors[i]];
        for (uint32_t k = 0; k < t->n_readers; k++) {
            /* A step that ran consumed its values, so it is not found ready twice, unless another
             * reader still holds all of them: then the step is already in the list. */
            bool listed = false;
            for (const run *u = *list; u; u = u->next) {
                listed = listed || (u->step == t->readers[k] && u->iteration == iterations[i]);
            }
            if (!listed && inputs_ready_locked(j, &j->ens->steps[t->readers[k]], iterations[i])) {
                NRD_TRY(make_run_locked(j, t->readers[k], iterations[i], list));
            }
        }
    }
    return NULL;
}

static void finish_locked(job *j, outgoing *response);
static void send_outbox(job *j);

/* Queues the steps; one that is refused ends the graph. */
static void start_runs(run *list)
{
    for (run *u = list, *next; u; u = next) {
        next = u->next;
        nrd_request *r = u->req;
        job *j = u->j;
        nrd_trace *trace = r->trace;
        u->req = NULL;
        nrd_error *err = nrd_request_run(r); /* checks and queues; u may be gone afterwards */
        if (!err) {
            continue;
        }
        r->trace = NULL;
        nrd_trace_unshare(trace);
        nrd_request_free(r);
        pthread_mutex_lock(&j->mu);
        j->n_in_flight--;
        set_error_locked(j, err);
        finish_locked(j, NULL);
        pthread_mutex_unlock(&j->mu);
        send_outbox(j);
        atomic_store(&u->parts, 1);
        run_part_done(u);
    }
}

/* ---- answering ---- */

static void free_outgoing(job *j, outgoing *o)
{
    for (uint32_t i = 0; i < o->n_outputs; i++) {
        value_free(o->outputs[i].v);
    }
    nrd_error_free(o->error);
    nrd_pool_put(o->outputs, j->ens->n_tensors * sizeof *o->outputs);
    if (o != &j->end) {
        nrd_pool_put(o, sizeof *o);
    }
}

/* If all outputs have a value of the iteration, takes them for a response. */
static outgoing *take_outputs_locked(job *j, const uint32_t *tensors, const uint32_t *iterations,
                                     uint32_t n)
{
    const nrd_ensemble *e = j->ens;
    bool any = false;
    uint32_t iteration = 0;

    for (uint32_t i = 0; i < n && !any; i++) {
        const tensor *t = &e->tensors[tensors[i]];
        any = t->output && nrd_request_wants(j->req, t->name);
        iteration = iterations[i];
    }
    for (uint32_t t = 0; any && t < e->n_tensors; t++) {
        if (e->tensors[t].output && nrd_request_wants(j->req, e->tensors[t].name) &&
            !find_value_locked(j, t, iteration)) {
            return NULL;
        }
    }
    if (!any) {
        return NULL;
    }
    outgoing *o = nrd_pool_zget(sizeof *o);
    if (o) {
        o->outputs = nrd_pool_get(e->n_tensors * sizeof *o->outputs);
    }
    if (!o || !o->outputs) {
        nrd_pool_put(o, sizeof *o);
        set_error_locked(j, nrd_error_no_memory());
        return NULL;
    }
    o->has_response = true;
    for (uint32_t t = 0; t < e->n_tensors; t++) {
        if (e->tensors[t].output && nrd_request_wants(j->req, e->tensors[t].name)) {
            value *v = find_value_locked(j, t, iteration);
            value *mine = consume_locked(j, t, v);
            mine = mine ? mine : copy_value(v);
            if (!mine) {
                free_outgoing(j, o);
                set_error_locked(j, nrd_error_no_memory());
                return NULL;
            }
            o->outputs[o->n_outputs].tensor = t;
            o->outputs[o->n_outputs++].v = mine;
        }
    }
    push_outgoing_locked(j, o);
    j->sent_any = true;
    return o;
}

/* When nothing is in flight any more: the last response, or the error. `response` is the one just
 * put into the outbox, if any, which then carries the final flag. */
static void finish_locked(job *j, outgoing *response)
{
    if (j->n_in_flight > 0 || j->finished) {
        return;
    }
    j->finished = true;
    if (!j->failed && !response && !j->sent_any && !j->ens->model->decoupled) {
        set_error_locked(j,
                         nrd_request_errorf(j->req, NRD_ERR_INVALID_ARG,
                                            "unexpected deadlock, at least one output is not set "
                                            "while no more ensemble steps can be made"));
    }
    if (j->failed || !response) {
        response = push_outgoing_locked(j, &j->end);
    }
    response->flags = TRITONSERVER_RESPONSE_COMPLETE_FINAL;
    response->last = true;
    response->error = j->error;
    j->error = NULL;
}

static nrd_error *fill_output(nrd_response *r, const job *j, uint32_t t, value *v)
{
    const tensor *ten = &j->ens->tensors[t];
    TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
    int64_t type_id = 0, dims[NRD_MAX_RANK];
    uint64_t total = 0;
    nrd_output *o;
    uint32_t n = reshape(ten->output->dims, ten->output->n_dims, j->req->batch_size != 0, v, dims);

    NRD_TRY(nrd_response_add_output(&o, r, ten->name, v->dtype, dims, n));
    for (uint32_t i = 0; i < v->n_segments; i++) {
        total += v->segments[i].attr.byte_size;
        if (v->segments[i].attr.memory_type == TRITONSERVER_MEMORY_GPU) {
            return nrd_errorf(NRD_ERR_UNSUPPORTED,
                              "output '%s' lies in GPU memory, which the ensemble cannot copy",
                              ten->name);
        }
    }
    if (r->factory->core_buffers && v->n_segments == 1 && v->segments[0].owner) {
        o->buf = nrd_buf_ref(v->segments[0].owner); /* to an enclosing ensemble: no copy */
        o->base = (void *)(uintptr_t)v->segments[0].base;
        o->attr = v->segments[0].attr;
        o->has_buffer = true;
        return NULL;
    }
    NRD_TRY(nrd_output_alloc(o, total, &type, &type_id));
    if (total > 0 && (!o->base || type == TRITONSERVER_MEMORY_GPU)) {
        return nrd_errorf(NRD_ERR_INTERNAL, "failed to allocate buffer for output '%s'", ten->name);
    }
    char *to = o->base;
    for (uint32_t i = 0; i < v->n_segments; i++) {
        memcpy(to, v->segments[i].base, v->segments[i].attr.byte_size);
        to += v->segments[i].attr.byte_size;
    }
    return NULL;
}

static nrd_error *set_sequence_params(nrd_response *r, const value *v)
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

static void send_one(job *j, outgoing *o)
{
    nrd_factory *f = j->req->factory;

    if (!o->has_response && !o->error) {
        nrd_factory_send_flags(f, o->flags);
        return;
    }
    nrd_error *err = o->error;
    o->error = NULL;
    nrd_response *r = err ? NULL : nrd_response_new(f);
    if (!r) {
        nrd_factory_send_error(f, o->flags, err ? err : nrd_error_no_memory());
        return;
    }
    for (uint32_t i = 0; i < o->n_outputs && !err; i++) {
        value *v = o->outputs[i].v;
        if (v->present) {
            err = fill_output(r, j, o->outputs[i].tensor, v);
        }
        if (v->from_step && !err) {
            err = set_sequence_params(r, v);
        }
    }
    nrd_response_send(r, o->flags, err);
}

/* One thread at a time empties the outbox, so that responses keep their order. The caller holds a
 * share of the job other than the graph's. */
static void send_outbox(job *j)
{
    bool last = false;

    pthread_mutex_lock(&j->mu);
    if (!j->sending) {
        j->sending = true;
        for (outgoing *o; (o = j->outbox) != NULL;) {
            j->outbox = o->next;
            if (!j->outbox) {
                j->outbox_tail = &j->outbox;
            }
            pthread_mutex_unlock(&j->mu);
            send_one(j, o);
            last = last || o->last;
            free_outgoing(j, o);
            pthread_mutex_lock(&j->mu);
        }
        j->sending = false;
    }
    pthread_mutex_unlock(&j->mu);
    if (last) {
        job_unref(j); /* the graph's share */
    }
}

/* ---- callbacks of the steps ---- */

static void step_released(TRITONSERVER_InferenceRequest *request, const uint32_t flags, void *userp)
{
    if (flags & TRITONSERVER_REQUEST_RELEASE_ALL) {
        nrd_request_free((nrd_request *)(void *)request);
        run_part_done(userp);
    }
}

/* What a step's response says about sequences goes on with its tensors. */
static bool read_sequence_params(const nrd_response *r, value *v)
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
            if (!set_text(&v->corr_str, p->str)) {
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

/* Puts the outputs of a response into their tensors. Outputs that are missing count as optional
 * values that were not given. */
static uint32_t store_outputs_locked(job *j, const run *u, const nrd_response *r, uint32_t *tensors,
                                     uint32_t *iterations)
{
    const step *s = &j->ens->steps[u->step];
    uint32_t n = 0;

    for (uint32_t i = 0; i < s->n_out; i++) {
        const nrd_output *o = NULL;
        for (uint32_t k = 0; k < r->n_outputs; k++) {
            o = strcmp(r->outputs[k]->name, s->out[i].name) == 0 ? r->outputs[k] : o;
        }
        value *v = o ? value_of_output(o, u->batch_size) : value_new();
        if (v) {
            v->from_step = true;
            v->corr_id = u->corr_id;
            v->flags = u->flags;
        }
        if (!v || !set_text(&v->corr_str, u->corr_str) || !read_sequence_params(r, v)) {
            if (v) {
                value_free(v);
            }
            set_error_locked(j, nrd_error_no_memory());
            return 0;
        }
        tensors[n] = s->out[i].tensor;
        iterations[n] = j->slots[s->out[i].tensor].n_made;
        n++;
        add_value_locked(j, s->out[i].tensor, v);
    }
    return n;
}

enum { USUAL_OUTPUTS = 32 };

static void step_answered(TRITONSERVER_InferenceResponse *response, const uint32_t flags,
                          void *userp)
{
    run *u = userp;
    job *j = u->j;
    nrd_response *r = (nrd_response *)(void *)response;
    bool final = (flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL) != 0;
    uint32_t n_out = j->ens->steps[u->step].n_out, n = 0;
    const size_t changed_bytes = 2u * n_out * sizeof(uint32_t);
    uint32_t usual[2 * USUAL_OUTPUTS];
    uint32_t *changed = n_out <= USUAL_OUTPUTS ? usual : nrd_pool_get(changed_bytes);
    outgoing *out = NULL;
    run *list = NULL;

    pthread_mutex_lock(&j->mu);
    if (final) {
        j->n_in_flight--;
    }
    if (r && r->error) {
        set_error_locked(
            j, nrd_errorf(nrd_error_get_code(r->error), "%s", nrd_error_message(r->error)));
    } else if (r && !j->failed && !changed) {
        set_error_locked(j, nrd_error_no_memory());
    } else if (r && !j->failed) {
        n = store_outputs_locked(j, u, r, changed, changed + n_out);
    }
    if (!j->failed && n > 0) {
        nrd_error *err = NULL;
        if (nrd_request_is_cancelled(j->req)) {
            err = nrd_request_errorf(j->req, NRD_ERR_CANCELLED, "Request was cancelled");
        } else {
            err = make_runs_locked(j, changed, changed + n_out, n, &list);
        }
        if (err) {
            set_error_locked(j, err);
        } else {
            out = take_outputs_locked(j, changed, changed + n_out, n);
        }
    }
    finish_locked(j, out);
    bool failed = j->failed;
    pthread_mutex_unlock(&j->mu);
    if (changed != usual) {
        nrd_pool_put(changed, changed_bytes);
    }
    nrd_response_free(r);
    if (failed) {
        nrd_wakeup_signal(
            &j->req->ctx->housekeeping); /* steps that still wait in queues are cancelled now */
    }
    bool was = final && nrd_worker_begin_next_steps();
    start_runs(list);
    if (final) {
        nrd_worker_end_next_steps(was);
    }
    send_outbox(j);
    if (final) {
        run_part_done(u);
    }
}

/* ---- entering ---- */

static void free_unstarted(job *j)
{
    for (uint32_t i = 0; j->models && i < j->ens->n_steps; i++) {
        if (j->models[i]) {
            nrd_model_unref(j->models[i]);
        }
    }
    job_free(j);
}

static nrd_error *enqueue(nrd_scheduler *base, nrd_request *r)
{
    nrd_ensemble *e = (nrd_ensemble *)base;
    job *j = nrd_pool_zget(sizeof *j);
    const size_t changed_bytes = 2u * e->n_tensors * sizeof(uint32_t);
    uint32_t *changed;
    run *list = NULL;
    nrd_error *err = NULL;

    if (!j) {
        return nrd_error_no_memory();
    }
    r->queue_ns = nrd_now_ns();
    nrd_trace_report(r->trace, TRITONSERVER_TRACE_QUEUE_START, r->queue_ns);
    atomic_init(&j->refs, 2); /* the graph's, and one for this call */
    j->ens = e;
    j->req = r;
    pthread_mutex_init(&j->mu, NULL);
    j->cancel = nrd_cancel_new(r->cancel);
    j->outbox_tail = &j->outbox;
    j->slots = nrd_pool_zget(e->n_tensors * sizeof *j->slots);
    j->models = nrd_pool_zget(e->n_steps * sizeof *j->models);
    changed = nrd_pool_zget(changed_bytes); /* iterations stay 0 */
    if (!j->cancel || !j->slots || !j->models || !changed) {
        err = nrd_error_no_memory();
    }
    for (uint32_t i = 0; i < e->n_steps && !err; i++) {
        err = r->ctx->catalog.get_step(&j->models[i], r->ctx->catalog.repo, e->steps[i].namespace,
                                       e->steps[i].model, e->steps[i].version);
    }
    if (err) {
        nrd_pool_put(changed, changed_bytes);
        free_unstarted(j);
        return nrd_error_wrap(err, "in ensemble '%s'", e->model->name);
    }
    atomic_store(&r->state, NRD_REQ_RUNNING);
    pthread_mutex_lock(&j->mu);
    uint32_t n = 0;
    for (uint32_t t = 0; t < e->n_tensors && !err; t++) {
        if (e->tensors[t].input) {
            const nrd_input *in = nrd_request_find_input(r, e->tensors[t].name);
            value *v = in ? value_of_input(in, r->batch_size) : value_new();
            if (v) {
                add_value_locked(j, t, v);
                changed[n++] = t;
            } else {
                err = nrd_error_no_memory();
            }
        }
    }
    err = err ? err : make_runs_locked(j, changed, changed + e->n_tensors, n, &list);
    if (err) {
        set_error_locked(j, err);
    }
    outgoing *out = j->failed ? NULL : take_outputs_locked(j, changed, changed + e->n_tensors, n);
    finish_locked(j, out);
    pthread_mutex_unlock(&j->mu);
    nrd_pool_put(changed, changed_bytes);
    start_runs(list);
    send_outbox(j);
    job_unref(j);
    return NULL;
}

/* ---- making ---- */

static const nrd_scheduler_ops ops = {
    .enqueue = enqueue,
    .free = free_ensemble,
};

/* The pins of one side of a step. */
static nrd_error *add_pin(nrd_ensemble *e, pin *list, uint32_t *n, const char *name,
                          const char *tensor_name, uint32_t *out_tensor)
{
    const uint32_t t = tensor_id(e, tensor_name);
    char *copy = strdup(name);

    if (t == UINT32_MAX || !copy) {
        free(copy);
        return nrd_error_no_memory();
    }
    list[(*n)++] = (pin){copy, t};
    *out_tensor = t;
    return NULL;
}

static nrd_error *add_step(nrd_ensemble *e, const Inference__ModelEnsembling__Step *cs)
{
    const uint32_t i = e->n_steps;
    step *s = &e->steps[e->n_steps++];
    uint32_t t;

    s->model = strdup(cs->model_name);
    s->namespace = strdup(cs->model_namespace);
    s->version = cs->model_version ? cs->model_version : -1;
    s->in = calloc(cs->n_input_map + 1, sizeof *s->in);
    s->out = calloc(cs->n_output_map + 1, sizeof *s->out);
    if (!s->model || !s->namespace || !s->in || !s->out) {
        return nrd_error_no_memory();
    }
    for (size_t k = 0; k < cs->n_input_map; k++) {
        NRD_TRY(add_pin(e, s->in, &s->n_in, cs->input_map[k]->key, cs->input_map[k]->value, &t));
        NRD_TRY(add_reader(&e->tensors[t], i));
    }
    for (size_t k = 0; k < cs->n_output_map; k++) {
        NRD_TRY(add_pin(e, s->out, &s->n_out, cs->output_map[k]->key, cs->output_map[k]->value, &t));
    }
    return NULL;
}

nrd_error *nrd_ensemble_new(nrd_scheduler **out, nrd_model *m)
{
    const Inference__ModelEnsembling *cfg = m->config->ensemble_scheduling;
    nrd_ensemble *e = NULL;
    nrd_error *err = NULL;
    uint32_t t = 0;

    *out = NULL;
    NRD_NEW_GOTO(e, 1, err, fail);
    e->base = (nrd_scheduler){.ops = &ops};
    e->model = m;
    for (size_t i = 0; i < m->config->n_input && t != UINT32_MAX; i++) {
        t = tensor_id(e, m->config->input[i]->name);
        if (t != UINT32_MAX) {
            e->tensors[t].input = m->config->input[i];
        }
    }
    for (size_t i = 0; i < m->config->n_output && t != UINT32_MAX; i++) {
        t = tensor_id(e, m->config->output[i]->name);
        if (t != UINT32_MAX) {
            e->tensors[t].output = m->config->output[i];
        }
    }
    if (t == UINT32_MAX) {
        err = nrd_error_no_memory();
        goto fail;
    }
    NRD_NEW_GOTO(e->steps, cfg->n_step, err, fail);
    for (size_t i = 0; i < cfg->n_step; i++) {
        NRD_TRY_GOTO(add_step(e, cfg->step[i]), err, fail);
    }
    *out = &e->base;
    return NULL;

fail:
    if (e) {
        free_ensemble(&e->base);
    }
    return err;
}
