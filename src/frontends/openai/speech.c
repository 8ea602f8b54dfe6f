/* SPDX-License-Identifier: Apache-2.0
 * Life of a request with sound: the form, the worker, then one window after the other. */
#include "frontends/openai/speech.h"

#include "frontends/http/lease.h"

#include <stdlib.h>

static void release(nrd_speech *r)
{
    if (r->counted) {
        atomic_fetch_sub(&r->o->n_running, 1);
    }
    nrd_error_free(r->err);
    nrd_oai_model_unref(r->model);
    nrd_str_fini(&r->file);
    nrd_str_fini(&r->value);
    nrd_str_fini(&r->unknown);
    nrd_str_fini(&r->prompt);
    nrd_str_fini(&r->text);
    nrd_str_fini(&r->out);
    nrd_ids_fini(&r->before);
    nrd_ids_fini(&r->answer);
    free(r->segments);
    free(r->features);
    nrd_oai_give_place(r->o, r->req, r->quota);
    nrd_http_request_unref(r->req);
    free(r->extra);
    free(r);
}

/* Answers with the error, in a stream as its last event. Takes err and r. */
static void fail(nrd_speech *r, nrd_error *err)
{
    if (r->streaming) {
        nrd_str_clear(&r->out);
        nrd_str_puts(&r->out, "data: ");
        nrd_oai_put_error(&r->out, nrd_oai_status(err), nrd_error_message(err), NULL, nrd_error_reason(err));
        nrd_str_puts(&r->out, "\n\n");
        nrd_http_stream_put(r->req, &r->out);
        nrd_http_stream_end(r->req);
        nrd_error_free(err);
    } else {
        nrd_oai_fail(r->req, err, r->extra);
    }
    release(r);
}

/* ---- on a worker ---- */

static void work(void *arg)
{
    nrd_speech *r = arg;
    r->err = nrd_speech_read_sound(r);
}

/* ---- one window after the other ---- */

static void on_response(nrd_http_call *call, TRITONSERVER_InferenceResponse *response, bool final);

static void on_gone(nrd_http_request *req, void *arg)
{
    nrd_speech *r = arg;
    (void)req;
    nrd_infer_cancel(&r->call->infer);
}

/* Asks for the window, or for its language. Answers errors itself, as r is gone then. */
static void ask(nrd_speech *r)
{
    nrd_http_call *call = NULL;
    nrd_ids prompt = {0};
    nrd_error *err = nrd_speech_make_prompt(r, &prompt);

    err = err ? err : nrd_http_call_new(&call, r->o->api, r->req, r->model->llm, -1);
    if (!err) {
        call->on_response = on_response;
        call->user = r;
        err = nrd_speech_fill(call, r, &prompt);
        err = err ? err : nrd_http_call_submit(call);
        if (err) {
            nrd_http_call_abandon(call);
        }
    }
    nrd_ids_fini(&prompt);
    if (err) {
        fail(r, err);
        return;
    }
    r->call = call;
    r->answer.n = 0;
    r->cum_log_prob = 0;
    r->has_log_prob = false;
    r->no_speech = -1;
    r->req->on_gone = on_gone;
    r->req->gone_arg = r;
}

static void answer(nrd_speech *r)
{
    nrd_str_clear(&r->out);
    if (r->stream) {
        nrd_speech_put_done(r, &r->out);
        nrd_http_stream_put(r->req, &r->out);
        nrd_http_stream_end(r->req);
    } else {
        nrd_speech_put_answer(r, &r->out);
        nrd_http_reply_str(r->req, 200, nrd_speech_type(r), r->extra, &r->out);
    }
    release(r);
}

static void tell(nrd_speech *r)
{
    if (!r->streaming) {
        nrd_http_stream_begin(r->req, 200, "text/event-stream", r->extra);
        r->streaming = true;
    }
    nrd_str_clear(&r->out);
    nrd_speech_put_deltas(r, &r->out);
    if (r->out.len > 0 || r->out.no_memory) {
        nrd_http_stream_put(r->req, &r->out);
    }
}

static void go_on(nrd_speech *r)
{
    if (r->stream && !r->detecting && r->n_segments > r->n_told) {
        tell(r);
    }
    if (r->seek < r->n_frames) {
        ask(r);
        return;
    }
    if (r->stream && !r->streaming) {
        tell(r);
    }
    answer(r);
}

static void on_response(nrd_http_call *call, TRITONSERVER_InferenceResponse *response, bool final)
{
    nrd_speech *r = call->user;

    if (response && !r->err) {
        r->err = nrd_speech_read_response(r, response);
    }
    nrd_infer_response_delete(response);
    if (!final) {
        return;
    }
    nrd_error *err = r->err ? r->err : nrd_http_call_error(call);
    r->err = NULL;
    r->call = NULL;
    r->req->on_gone = NULL;
    err = err ? err : nrd_speech_take_window(r);
    if (nrd_http_is_gone(r->req)) {
        nrd_error_free(err);
        release(r);
    } else if (err) {
        fail(r, err);
    } else {
        go_on(r);
    }
}

/* ---- before it: the form, the model ---- */

static void worked(void *arg, bool ran)
{
    nrd_speech *r = arg;
    nrd_error *err = r->err;

    r->err = NULL;
    if (!ran && !err) {
        err = nrd_errorf(NRD_ERR_UNAVAILABLE, "the server is shutting down");
    }
    if (err) {
        fail(r, err);
        return;
    }
    nrd_claim_open(&r->req->claim); /* all windows are one request */
    r->counted = true;
    atomic_fetch_add(&r->o->n_running, 1);
    r->detecting = r->language < 0 && nrd_whisper_is_multilingual(r->model->whisper);
    ask(r);
}

static void leased(void *user, nrd_http_request *req, nrd_error *err)
{
    nrd_speech *r = user;
    err = err ? err : nrd_http_work(r->o->api->front->workers, req, work, worked, r);
    if (err) {
        fail(r, err);
    }
}

/* The form is whole: where models come and go, its model is waited for. */
static void have_form(nrd_speech *r)
{
    nrd_switcher *s = r->o->api->front->switcher;
    nrd_switch_model *m = !s ? NULL : r->model_name[0] ? nrd_oai_switch_asked(r->o, r->req, r->model_name) : nrd_switcher_only(s);
    if (m) {
        nrd_http_lease(s, r->req, m, NRD_SWITCH_DEFAULT, leased, r);
    } else {
        leased(r, r->req, NULL); /* whoever looks for it says what is wrong */
    }
}

static void on_piece(nrd_http_request *req, void *arg, const char *data, size_t n, bool last);

static void on_gone_early(nrd_http_request *req, void *arg)
{
    (void)req;
    release(arg);
}

/* The request is the connection's until a piece comes or the client is gone. */
static void read_more(nrd_speech *r)
{
    if (nrd_http_is_gone(r->req)) {
        release(r);
        return;
    }
    r->req->on_gone = on_gone_early;
    r->req->gone_arg = r;
    nrd_http_read_body(r->req, on_piece, r);
}

static void on_piece(nrd_http_request *req, void *arg, const char *data, size_t n, bool last)
{
    nrd_speech *r = arg;

    req->on_gone = NULL;
    nrd_error *err = nrd_multipart_feed(&r->multipart, data, n);
    if (!err && last) {
        err = nrd_speech_form_end(r);
    }
    if (err) {
        fail(r, err);
    } else if (last) {
        have_form(r);
    } else {
        read_more(r);
    }
}

static void begin(nrd_openai *o, nrd_http_request *req, bool translate)
{
    char *extra = NULL;

    if (!nrd_oai_admit(o, req, true, &extra)) {
        return;
    }
    if (nrd_oai_refuse_foreign(o, req, extra)) {
        free(extra);
        return;
    }
    nrd_speech *r = calloc(1, sizeof *r);
    if (!r) {
        nrd_oai_fail(req, nrd_error_no_memory(), extra);
        free(extra);
        return;
    }
    if (!nrd_oai_take_place(o, req, extra, &r->quota)) {
        free(extra);
        free(r);
        return;
    }
    r->o = o;
    r->req = req;
    r->extra = extra;
    r->translate = translate;
    nrd_http_request_ref(req);
    nrd_error *err = nrd_speech_form_begin(r);
    if (err) {
        fail(r, err);
    } else {
        read_more(r);
    }
}

void nrd_oai_on_transcriptions(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    (void)route;
    begin(user, req, false);
}

void nrd_oai_on_translations(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    (void)route;
    begin(user, req, true);
}
