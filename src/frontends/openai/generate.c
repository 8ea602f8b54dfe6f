/* SPDX-License-Identifier: Apache-2.0
 * The life of a request: choices, one call of the model for each, the answer, the end. */
#include "frontends/openai/generate.h"
#include "frontends/openai/responses.h"

#include "base/clock.h"
#include "frontends/http/lease.h"
#include "nereid/llm_tensors.h"

#include <stdio.h>
#include <sys/random.h>

/* ---- the end ---- */

static void release_choice(nrd_oai_choice *c)
{
    nrd_detok_free(c->detok);
    nrd_harmony_free(c->harmony);
    nrd_str_fini(&c->text);
    nrd_ids_fini(&c->ids);
    free(c->log_probs);
    free(c->top_ids);
    free(c->top_log_probs);
    free(c->offsets);
    free((void *)(uintptr_t)c->prompt_probs.log_probs);
}

void nrd_oai_request_free(nrd_oai_request *r)
{
    for (int i = 0; i < r->n_choices; i++) {
        release_choice(&r->choices[i]);
    }
    for (size_t i = 0; i < r->n_prompts; i++) {
        nrd_ids_fini(&r->prompts[i]);
        nrd_str_fini(&r->echoes[i]);
    }
    free(r->choices);
    free(r->extra);
    nrd_str_fini(&r->unknown);
    nrd_str_fini(&r->guide);
    nrd_str_fini(&r->reasoning);
    nrd_str_fini(&r->logit_bias);
    nrd_str_fini(&r->allowed);
    nrd_str_fini(&r->shown);
    nrd_str_fini(&r->images);
    nrd_str_fini(&r->videos);
    free(r->video_times);
    nrd_str_fini(&r->out);
    nrd_ids_fini(&r->stop_ids);
    nrd_ids_fini(&r->bad_ids);
    nrd_ids_fini(&r->bad_ends);
    nrd_str_fini(&r->llama.fields);
    nrd_str_fini(&r->resp.echoed);
    nrd_str_fini(&r->resp.input);
    nrd_json_doc_free(r->resp.tools);
    nrd_response_store_give_back(r->o->kept, r->resp.previous);
    nrd_bg_release(r->resp.job);
    nrd_json_doc_free(r->doc);
    nrd_oai_model_unref(r->model);
    free(r);
}

static void unref(nrd_oai_request *r)
{
    if (--r->refs > 0) {
        return;
    }
    atomic_fetch_sub(&r->o->n_running, 1);
    nrd_quota_give(r->o->api->front->quotas, r->quota, (uint64_t)nrd_oai_used_tokens(r));
    nrd_http_request_unref(r->req);
    nrd_oai_request_free(r);
}

static void cancel_choice(nrd_oai_choice *c)
{
    if (c->call) {
        nrd_infer_cancel(&c->call->infer);
    }
}

static void cancel_all(nrd_oai_request *r)
{
    for (int i = 0; i < r->n_choices; i++) {
        cancel_choice(&r->choices[i]);
    }
}

static void on_gone(nrd_http_request *req, void *arg)
{
    (void)req;
    cancel_all(arg);
}

/* One error answers for all choices; in a stream it is its last event. Takes err. */
static void fail(nrd_oai_request *r, nrd_error *err)
{
    if (r->failed || nrd_http_is_gone(r->req)) {
        nrd_error_free(err);
        r->failed = true;
        return;
    }
    r->failed = true;
    if (r->resp.job) {
        nrd_resp_fail_job(r, nrd_error_message(err));
    }
    if (r->streaming) {
        nrd_str_clear(&r->out);
        if (r->form->put_failure) {
            r->form->put_failure(&r->out, r, nrd_error_message(err));
        } else {
            nrd_str_puts(&r->out, r->form->before_error);
            r->form->put_error(&r->out, nrd_oai_status(err), nrd_error_message(err), NULL, nrd_error_reason(err));
            nrd_str_puts(&r->out, r->form->after_error);
        }
        nrd_http_stream_put(r->req, &r->out);
        nrd_http_stream_end(r->req);
        nrd_error_free(err);
    } else {
        nrd_oai_fail(r->req, err, r->extra);
    }
    r->req->on_gone = NULL;
    cancel_all(r);
}

static void put_answer(void *arg)
{
    nrd_oai_request *r = arg;
    r->form->put_answer(r);
}

static void send_answer(void *arg, bool ran)
{
    nrd_oai_request *r = arg;
    if (ran) {
        nrd_http_reply_str(r->req, 200, "application/json", r->extra, &r->out);
    } else {
        fail(r, nrd_errorf(NRD_ERR_UNAVAILABLE, "the server is shutting down"));
    }
    unref(r);
}

/* The whole answer, when all choices are done; a long one is written by a worker. */
static void answer(nrd_oai_request *r)
{
    const size_t bytes = nrd_oai_answer_bytes(r);
    nrd_error *full = nrd_claim_bytes(&r->req->claim, bytes, "its answer");
    if (full) {
        fail(r, full);
        return;
    }
    r->refs++;
    nrd_http_work_if(bytes > NRD_HTTP_LONG_TEXT, r->o->api->front->workers, r->req, put_answer, send_answer, r);
}

static void on_response(nrd_http_call *call, TRITONSERVER_InferenceResponse *response, bool final)
{
    nrd_oai_choice *c = call->user;
    nrd_oai_request *r = c->r;
    nrd_error *err = NULL;
    nrd_oai_piece p;

    if (response && !r->failed) {
        err = nrd_oai_read_piece(r, response, &p);
        if (!err) {
            c->cum_log_prob = p.cum_log_prob;
            c->n_prompt = p.prompt_tokens > 0 ? p.prompt_tokens : c->n_prompt;
            c->n_cached = p.tokens_per_block > 0 ? p.reused_blocks * p.tokens_per_block : c->n_cached;
            if (p.last_token_ns > 0) {
                c->arrival_ns = p.arrival_ns;
                c->first_token_ns = p.first_token_ns;
                c->last_token_ns = p.last_token_ns;
            }
            if (!c->first_ns) {
                c->first_ns = nrd_now_ns();
                nrd_bg_begun(r->resp.job);
            }
            bool had_finish = c->finish != NULL;
            err = nrd_oai_take_ids(c, &p);
            if (!c->finish && (p.finish_reason == NRD_FINISH_END_ID || p.finish_reason == NRD_FINISH_STOP_WORDS)) {
                c->finish = "stop"; /* a guide's text that was complete needs no end token */
            }
            c->timed_out = p.finish_reason == NRD_FINISH_TIMED_OUT && !c->finish;
            if (c->finish && !had_finish && !final) {
                cancel_choice(c);
            }
        } else if (c->finish) { /* it was cancelled after its stop string */
            nrd_error_free(err);
            err = NULL;
        }
    }
    if (final) {
        c->call = NULL;
        r->n_active--;
        r->req->on_gone = r->n_active > 0 && !r->failed ? on_gone : NULL;
        r->req->gone_arg = r;
        err = err ? err : nrd_http_call_error(call);
        if (!err && !r->failed) {
            err = nrd_oai_finish_choice(c);
        }
    }
    if (err) {
        fail(r, err);
    }
    if (!r->failed && !nrd_http_is_gone(r->req)) {
        err = r->stream ? nrd_oai_chunk(c) : NULL;
        if (err) {
            fail(r, err);
        } else if (r->n_done == r->n_choices) {
            if (r->stream) {
                nrd_oai_last_chunks(r);
            } else {
                answer(r);
            }
        }
    }
    nrd_infer_response_delete(response);
    if (final) {
        unref(r);
    }
}

/* ---- the handlers ---- */

static nrd_error *start_choice(nrd_oai_choice *c, int turn)
{
    nrd_oai_request *r = c->r;
    nrd_http_call *call = NULL;
    NRD_TRY(nrd_http_call_new(&call, r->o->api, r->req, r->model->llm, -1));
    call->on_response = on_response;
    call->user = c;
    nrd_error *err = nrd_oai_fill(call, c, turn);
    if (!err) {
        err = nrd_http_call_submit(call);
    }
    if (err) {
        nrd_http_call_abandon(call);
        return err;
    }
    c->call = call;
    r->refs++;
    r->n_active++;
    return NULL;
}

static nrd_error *start(nrd_oai_request *r)
{
    r->n_choices = (int)r->n_prompts * r->best_of;
    r->choices = calloc((size_t)r->n_choices, sizeof *r->choices);
    if (!r->choices) {
        r->n_choices = 0;
        return nrd_error_no_memory();
    }
    for (int i = 0; i < r->n_choices; i++) {
        nrd_oai_choice *c = &r->choices[i];
        bool keep = r->has_tools || !r->skip_special || (r->chat && r->model->has_channels); /* markers may be special tokens */
        c->r = r;
        c->index = i;
        c->prompt = &r->prompts[i / r->best_of];
        c->detok = nrd_detok_new(r->model->tokenizer, keep ? 0 : NRD_DECODE_SKIP_SPECIAL);
        if (!c->detok) {
            return nrd_error_no_memory();
        }
        if (r->chat && r->model->is_harmony && r->skip_special) {
            c->harmony = nrd_harmony_new(&r->model->harmony, r->model->tokenizer, r->tools, c->prompt);
            if (!c->harmony) {
                return nrd_error_no_memory();
            }
        }
    }
    if (r->n_choices > 1 && getrandom(&r->group, sizeof r->group, 0) != (ssize_t)sizeof r->group) {
        return nrd_errorf(NRD_ERR_INTERNAL, "cannot get random numbers");
    }
    nrd_claim_open(&r->req->claim); /* all choices are one request */
    for (int i = 0; i < r->n_choices; i++) {
        NRD_TRY(start_choice(&r->choices[i], i % r->best_of));
    }
    r->req->on_gone = on_gone;
    r->req->gone_arg = r;
    if (nrd_http_is_gone(r->req)) {
        cancel_all(r);
    }
    return NULL;
}

/* Ids of answers that are kept open them: nobody should guess one. */
static void put_id(char *out, size_t n, const char *prefix, uint64_t now_ns)
{
    static _Atomic uint64_t counter;
    uint64_t drawn;
    if (getrandom(&drawn, sizeof drawn, GRND_NONBLOCK) != (ssize_t)sizeof drawn) {
        drawn = now_ns; /* early at boot */
    }
    snprintf(out, n, "%s%016llx%08llx", prefix, (unsigned long long)drawn,
             (unsigned long long)(atomic_fetch_add(&counter, 1) & 0xffffffffu));
}

/* On the loop or on a worker. */
static void read_request(void *arg)
{
    nrd_oai_request *r = arg;
    if (!r->doc) {
        r->err = nrd_oai_body(r->req, &r->doc);
    }
    if (!r->err) {
        r->err = nrd_oai_read_form(r, &r->req->claim);
    }
    if (!r->err && r->unknown.len > 0 && !r->unknown.no_memory) {
        r->extra = nrd_oai_warn_unknown(r->extra, r->unknown.data);
    }
}

/* Back on the loop. */
static void begin(void *arg, bool ran)
{
    nrd_oai_request *r = arg;
    nrd_error *err = r->err;
    r->err = NULL;
    if (!ran && !err) {
        err = nrd_errorf(NRD_ERR_UNAVAILABLE, "the server is shutting down");
    }
    if (!err && !nrd_http_is_gone(r->req)) {
        err = r->resp.background ? nrd_resp_take_job(r) : NULL;
        err = err ? err : start(r);
        err = err || !r->resp.background ? err : nrd_resp_detach(r);
    }
    if (err) {
        fail(r, err);
    }
    unref(r);
}

static void generate(nrd_openai *o, nrd_http_request *req, char *extra, nrd_json_doc *doc, const nrd_oai_what *what)
{
    const nrd_oai_form *form = what->form;
    const uint64_t now_ns = nrd_wall_ns();

    nrd_oai_request *r = calloc(1, sizeof *r);
    if (!r) {
        nrd_oai_fail(req, nrd_error_no_memory(), extra);
        nrd_json_doc_free(doc);
        free(extra);
        return;
    }
    if (!nrd_oai_take_place(o, req, extra, &r->quota)) {
        nrd_json_doc_free(doc);
        free(extra);
        free(r);
        return;
    }
    atomic_fetch_add(&o->n_running, 1);
    r->o = o;
    r->req = req;
    r->form = form;
    r->chat = form->is_chat;
    r->extra = extra;
    r->doc = doc;
    r->load_ns = nrd_http_lease_waited_ns(req);
    r->key = nrd_oai_key(o, req);
    r->refs = 1;
    nrd_http_request_ref(req);
    r->begun_ns = nrd_now_ns();
    r->created = (int64_t)(now_ns / 1000000000u);
    put_id(r->id, sizeof r->id, form->id_prefix, now_ns);
    nrd_oai_work(o, req, &r->doc, &r->err, read_request, begin, r);
}

void nrd_oai_generate(nrd_openai *o, nrd_http_request *req, const nrd_oai_form *form)
{
    char *extra = NULL;
    if (nrd_oai_admit(o, req, true, &extra)) {
        nrd_oai_pass(o, req, extra, (nrd_oai_what){.form = form}, generate);
    }
}

void nrd_oai_on_chat(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    (void)route;
    nrd_oai_generate(user, req, &nrd_oai_form_chat);
}

void nrd_oai_on_completions(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    (void)route;
    nrd_oai_generate(user, req, &nrd_oai_form_text);
}
