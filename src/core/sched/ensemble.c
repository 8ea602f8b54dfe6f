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
#include "core/model.h"
#include "core/model_internal.h"
#include "core/model_metrics.h"
#include "core/request.h"
#include "core/request_internal.h"
#include "core/request_run.h"
#include "core/response.h"
#include "core/response_internal.h"
#include "core/sched/graph.h"
#include "core/sched/scheduler.h"
#include "core/sched/value.h"
#include "core/sched/worker.h"
#include "core/statistics.h"
#include "core/trace.h"
#include "core/types.h"
#include "core/wakeup.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

typedef struct nrd_ensemble {
    nrd_scheduler base;
    nrd_model *model; /* borrowed: owns this */
    nrd_graph graph;
} nrd_ensemble;

typedef struct slot { /* the values of one tensor in one job */
    nrd_value *head, *last; /* as many as are made faster than they are read; last: only with a head */
    uint32_t n_made;        /* the next value's iteration */
} slot;

typedef struct outgoing {
    struct outgoing *next;
    uint32_t flags;
    nrd_error *error;
    bool has_response, timed_out;
    struct {
        uint32_t tensor;
        nrd_value *v;
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
    bool timed_out; /* a step says so, so this request's responses do; guarded by mu */
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

/* ---- values in their tensors ---- */

/* Everybody who may read a value of the tensor: its steps, and the response. */
static uint32_t n_readers(const job *j, uint32_t t)
{
    const nrd_graph_tensor *ten = &j->ens->graph.tensors[t];
    return ten->n_readers + (ten->output && nrd_request_wants(j->req, ten->name) ? 1u : 0u);
}

static void add_value_locked(job *j, uint32_t t, nrd_value *v)
{
    slot *s = &j->slots[t];
    v->iteration = s->n_made++;
    v->readers_left = n_readers(j, t);
    if (v->readers_left == 0) {
        nrd_value_free(v);
        return;
    }
    *(s->head ? &s->last->next : &s->head) = v;
    s->last = v;
}

static nrd_value *find_value_locked(const job *j, uint32_t t, uint32_t iteration)
{
    nrd_value *v = j->slots[t].head;
    while (v && v->iteration != iteration) {
        v = v->next;
    }
    return v;
}

/* One reader is done; the last one takes the value out (returned, to be freed or kept). */
static nrd_value *consume_locked(job *j, uint32_t t, nrd_value *v)
{
    if (--v->readers_left > 0) {
        return NULL;
    }
    slot *s = &j->slots[t];
    nrd_value **p = &s->head, *before = NULL;
    while (*p != v) {
        before = *p;
        p = &before->next;
    }
    *p = v->next;
    s->last = s->last == v ? before : s->last;
    v->next = NULL;
    return v;
}

/* ---- jobs ---- */

static void step_released(TRITONSERVER_InferenceRequest *request, const uint32_t flags,
                          void *userp);
static void step_answered(TRITONSERVER_InferenceResponse *response, const uint32_t flags,
                          void *userp);

static void job_free(job *j)
{
    const nrd_ensemble *e = j->ens;

    nrd_pool_put(j->models, e->graph.n_steps * sizeof *j->models);
    nrd_pool_put(j->slots, e->graph.n_tensors * sizeof *j->slots);
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
    for (uint32_t t = 0; t < j->ens->graph.n_tensors; t++) {
        for (nrd_value *v = j->slots[t].head, *next; v; v = next) {
            next = v->next;
            nrd_value_free(v);
        }
    }
    for (uint32_t i = 0; i < j->ens->graph.n_steps; i++) {
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

static bool inputs_ready_locked(const job *j, const nrd_graph_step *s, uint32_t iteration)
{
    for (uint32_t i = 0; i < s->n_in; i++) {
        if (!find_value_locked(j, s->in[i].tensor, iteration)) {
            return false;
        }
    }
    return true;
}

static nrd_error *fill_request_locked(job *j, run *u, const nrd_graph_step *s, nrd_model *m,
                                      uint32_t iteration)
{
    for (uint32_t i = 0; i < s->n_in; i++) {
        nrd_value *v = find_value_locked(j, s->in[i].tensor, iteration);
        if (v->present) {
            const Inference__ModelInput *ci = nrd_model_input(m, s->in[i].name);
            int64_t dims[NRD_MAX_RANK];
            nrd_input *in;
            if (!ci) {
                return nrd_errorf(NRD_ERR_INVALID_ARG,
                                  "unexpected inference input '%s' for model '%s'", s->in[i].name,
                                  m->name);
            }
            uint32_t n =
                nrd_value_shape(v, ci->dims, ci->n_dims, m->config->max_batch_size > 0, dims);
            NRD_TRY(nrd_request_add_input(&in, u->req, s->in[i].name, v->dtype, dims, n));
            for (uint32_t k = 0; k < v->n_segments; k++) {
                NRD_TRY(nrd_input_append(in, v->segments[k].base, &v->segments[k].attr,
                                         v->segments[k].owner));
            }
        }
        if (v->from_step) { /* the response of a step may name another sequence */
            u->corr_id = v->corr_id;
            if (!nrd_value_set_text(&u->corr_str, v->corr_str)) {
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
        nrd_value *v = again ? NULL : find_value_locked(j, s->in[i].tensor, iteration);
        nrd_value *done = v ? consume_locked(j, s->in[i].tensor, v) : NULL;
        nrd_value_free(done);
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
    if (!id || !nrd_value_set_text(&u->req->corr_str, u->corr_str)) {
        nrd_pool_strput(id);
        return nrd_error_no_memory();
    }
    nrd_pool_strput(u->req->id);
    u->req->id = id;
    return NULL;
}

static nrd_error *make_run_locked(job *j, uint32_t step_id, uint32_t iteration, run **list)
{
    const nrd_graph_step *s = &j->ens->graph.steps[step_id];
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
    if (!u->req || !nrd_value_set_text(&u->corr_str, j->req->corr_str)) {
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
    r->timeout_us = nrd_request_time_left_us(j->req);
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
        const nrd_graph_tensor *t = &j->ens->graph.tensors[tensors[i]];
        for (uint32_t k = 0; k < t->n_readers; k++) {
            /* A step that ran consumed its values, so it is not found ready twice, unless another
             * reader still holds all of them: then the step is already in the list. */
            bool listed = false;
            for (const run *u = *list; u; u = u->next) {
                listed = listed || (u->step == t->readers[k] && u->iteration == iterations[i]);
            }
            if (!listed &&
                inputs_ready_locked(j, &j->ens->graph.steps[t->readers[k]], iterations[i])) {
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
        nrd_value_free(o->outputs[i].v);
    }
    nrd_error_free(o->error);
    nrd_pool_put(o->outputs, j->ens->graph.n_tensors * sizeof *o->outputs);
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
        const nrd_graph_tensor *t = &e->graph.tensors[tensors[i]];
        any = t->output && nrd_request_wants(j->req, t->name);
        iteration = iterations[i];
    }
    for (uint32_t t = 0; any && t < e->graph.n_tensors; t++) {
        if (e->graph.tensors[t].output && nrd_request_wants(j->req, e->graph.tensors[t].name) &&
            !find_value_locked(j, t, iteration)) {
            return NULL;
        }
    }
    if (!any) {
        return NULL;
    }
    outgoing *o = nrd_pool_zget(sizeof *o);
    if (o) {
        o->outputs = nrd_pool_get(e->graph.n_tensors * sizeof *o->outputs);
    }
    if (!o || !o->outputs) {
        nrd_pool_put(o, sizeof *o);
        set_error_locked(j, nrd_error_no_memory());
        return NULL;
    }
    o->has_response = true;
    o->timed_out = j->timed_out;
    for (uint32_t t = 0; t < e->graph.n_tensors; t++) {
        if (e->graph.tensors[t].output && nrd_request_wants(j->req, e->graph.tensors[t].name)) {
            nrd_value *v = find_value_locked(j, t, iteration);
            nrd_value *mine = consume_locked(j, t, v);
            mine = mine ? mine : nrd_value_copy(v);
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

static nrd_error *fill_output(nrd_response *r, const job *j, uint32_t t, nrd_value *v)
{
    const nrd_graph_tensor *ten = &j->ens->graph.tensors[t];
    TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
    int64_t type_id = 0, dims[NRD_MAX_RANK];
    uint64_t total = 0;
    nrd_output *o;
    uint32_t n =
        nrd_value_shape(v, ten->output->dims, ten->output->n_dims, j->req->batch_size != 0, dims);

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
    const nrd_value *named = NULL; /* of several that name a sequence the last one counts */
    for (uint32_t i = 0; i < o->n_outputs && !err; i++) {
        nrd_value *v = o->outputs[i].v;
        if (v->present) {
            err = fill_output(r, j, o->outputs[i].tensor, v);
        }
        named = v->from_step ? v : named;
    }
    if (named && !err) {
        err = nrd_value_write_sequence(r, named);
    }
    if (o->timed_out && !err) {
        err = nrd_response_set_timed_out(r);
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

/* Puts the outputs of a response into their tensors. Outputs that are missing count as optional
 * values that were not given. */
static uint32_t store_outputs_locked(job *j, const run *u, const nrd_response *r, uint32_t *tensors,
                                     uint32_t *iterations)
{
    const nrd_graph_step *s = &j->ens->graph.steps[u->step];
    uint32_t n = 0;

    for (uint32_t i = 0; i < s->n_out; i++) {
        const nrd_output *o = NULL;
        for (uint32_t k = 0; k < r->n_outputs; k++) {
            o = strcmp(r->outputs[k]->name, s->out[i].name) == 0 ? r->outputs[k] : o;
        }
        nrd_value *v = o ? nrd_value_of_output(o, u->batch_size) : nrd_value_new();
        if (v) {
            v->from_step = true;
            v->corr_id = u->corr_id;
            v->flags = u->flags;
        }
        if (!v || !nrd_value_set_text(&v->corr_str, u->corr_str) ||
            !nrd_value_read_sequence(v, r)) {
            nrd_value_free(v);
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
    uint32_t n_out = j->ens->graph.steps[u->step].n_out, n = 0;
    const size_t changed_bytes = 2u * n_out * sizeof(uint32_t);
    uint32_t usual[2 * USUAL_OUTPUTS];
    uint32_t *changed = n_out <= USUAL_OUTPUTS ? usual : nrd_pool_get(changed_bytes);
    outgoing *out = NULL;
    run *list = NULL;

    pthread_mutex_lock(&j->mu);
    if (final) {
        j->n_in_flight--;
    }
    j->timed_out |= r && nrd_response_is_timed_out(r);
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
    for (uint32_t i = 0; j->models && i < j->ens->graph.n_steps; i++) {
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
    const size_t changed_bytes = 2u * e->graph.n_tensors * sizeof(uint32_t);
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
    j->slots = nrd_pool_zget(e->graph.n_tensors * sizeof *j->slots);
    j->models = nrd_pool_zget(e->graph.n_steps * sizeof *j->models);
    changed = nrd_pool_zget(changed_bytes); /* iterations stay 0 */
    if (!j->cancel || !j->slots || !j->models || !changed) {
        err = nrd_error_no_memory();
    }
    for (uint32_t i = 0; i < e->graph.n_steps && !err; i++) {
        err = r->ctx->catalog.get_step(&j->models[i], r->ctx->catalog.repo,
                                       e->graph.steps[i].namespace, e->graph.steps[i].model,
                                       e->graph.steps[i].version);
    }
    if (err) {
        nrd_pool_put(changed, changed_bytes);
        free_unstarted(j);
        return nrd_error_wrap(err, "in ensemble '%s'", e->model->name);
    }
    atomic_store(&r->state, NRD_REQ_RUNNING);
    pthread_mutex_lock(&j->mu);
    uint32_t n = 0;
    for (uint32_t t = 0; t < e->graph.n_tensors && !err; t++) {
        if (e->graph.tensors[t].input) {
            const nrd_input *in = nrd_request_find_input(r, e->graph.tensors[t].name);
            nrd_value *v = in ? nrd_value_of_input(in, r->batch_size) : nrd_value_new();
            if (v) {
                add_value_locked(j, t, v);
                changed[n++] = t;
            } else {
                err = nrd_error_no_memory();
            }
        }
    }
    err = err ? err : make_runs_locked(j, changed, changed + e->graph.n_tensors, n, &list);
    if (err) {
        set_error_locked(j, err);
    }
    outgoing *out =
        j->failed ? NULL : take_outputs_locked(j, changed, changed + e->graph.n_tensors, n);
    finish_locked(j, out);
    pthread_mutex_unlock(&j->mu);
    nrd_pool_put(changed, changed_bytes);
    start_runs(list);
    send_outbox(j);
    job_unref(j);
    return NULL;
}

/* ---- making ---- */

static void free_ensemble(nrd_scheduler *base)
{
    nrd_ensemble *e = (nrd_ensemble *)base;

    nrd_graph_free(&e->graph);
    free(e);
}

static const nrd_scheduler_ops ops = {
    .enqueue = enqueue,
    .free = free_ensemble,
};

nrd_error *nrd_ensemble_new(nrd_scheduler **out, nrd_model *m)
{
    nrd_ensemble *e = calloc(1, sizeof *e);
    nrd_error *err;

    *out = NULL;
    if (!e) {
        return nrd_error_no_memory();
    }
    e->base = (nrd_scheduler){.ops = &ops};
    e->model = m;
    err = nrd_graph_init(&e->graph, m->config);
    if (err) {
        free(e);
        return err;
    }
    *out = &e->base;
    return NULL;
}
