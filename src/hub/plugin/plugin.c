/* SPDX-License-Identifier: Apache-2.0
 * nereid_hub.so from outside: the table of hub/plugin.h. */
#include "hub/plugin.h"

#include "hub/plugin/ask.h"
#include "hub/plugin/fetch.h"

#include <stdio.h>

static void tell(nrd_hub_fault *fault, nrd_error *err)
{
    fault->code = err ? (int)nrd_error_get_code(err) : 0;
    snprintf(fault->text, sizeof fault->text, "%s", err ? nrd_error_message(err) : "");
    nrd_error_free(err);
}

static nrd_error *ask(const nrd_hub_question *q, nrd_hub_answer *answer, nrd_hub_reply *reply)
{
    nrd_http_handle *h = NULL;
    nrd_error *err = nrd_http_handle_new(&h);

    *answer = (nrd_hub_answer){.again = false};
    for (unsigned attempt = 1; !err; attempt++) {
        err = nrd_hub_ask(h, q, answer, reply);
        if (!err || !answer->again || attempt >= NRD_HTTP_ATTEMPTS) {
            break;
        }
        nrd_error_free(err);
        err = NULL;
        nrd_http_reply_fini(&answer->http);
        nrd_hub_wait(reply, attempt);
    }
    nrd_http_handle_free(h);
    return err;
}

static void get(const nrd_hub_access *a, const char *url, size_t max_bytes,
                void (*take)(void *user, const char *data, size_t n), void *user, nrd_hub_reply *reply,
                nrd_hub_fault *fault)
{
    nrd_hub_answer answer;
    nrd_error *err = ask(&(nrd_hub_question){.access = a, .url = url, .max_body = max_bytes}, &answer, reply);

    if (!err) {
        take(user, nrd_str_cstr(&answer.http.body), answer.http.body.len);
    }
    nrd_http_reply_fini(&answer.http);
    tell(fault, err);
}

static bool take_nothing(void *user, const void *data, size_t n)
{
    (void)user;
    (void)data;
    (void)n;
    return false;
}

static void measure(const nrd_hub_access *a, const char *url, uint64_t *size, char etag[256], nrd_hub_reply *reply,
                    nrd_hub_fault *fault)
{
    nrd_hub_answer answer;
    const nrd_hub_question q = {.access = a, .url = url, .has_range = true, .sink = take_nothing, .max_body = 1};
    nrd_error *err = ask(&q, &answer, reply);

    *size = answer.http.status == 206 ? answer.http.total : answer.head.length;
    snprintf(etag, 256, "%s", answer.head.etag);
    if (!err && *size == UINT64_MAX) {
        err = nrd_errorf(NRD_ERR_UNAVAILABLE, "the server does not say how large the file is");
    }
    nrd_http_reply_fini(&answer.http);
    tell(fault, err);
}

static void fetch(const nrd_hub_access *a, const nrd_hub_part *part, nrd_hub_progress progress, void *user,
                  nrd_hub_reply *reply, nrd_hub_fault *fault)
{
    tell(fault, nrd_hub_fetch(a, part, progress, user, reply));
}

__attribute__((visibility("default"))) const nrd_hub_ops nrd_hub_ops_1 = {
    .get = get,
    .measure = measure,
    .fetch = fetch,
};
