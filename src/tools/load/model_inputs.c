/* SPDX-License-Identifier: Apache-2.0
 * A model's metadata: see model_inputs.h. */
#include "tools/load/model_inputs.h"

#include "base/clock.h"
#include "base/json.h"
#include "tools/load/http_client.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    const nrd_grpc_ops *grpc;
    const char *const *names;
    size_t n;
    uint32_t has;
    bool is_read, is_over;
    nrd_str why; /* what the server or the connection says against it */
} question;

static void on_input(void *arg, const char *name)
{
    question *q = arg;
    for (size_t i = 0; i < q->n; i++) {
        q->has |= !strcmp(name, q->names[i]) ? (uint32_t)1 << i : 0;
    }
}

static void read_json(question *q, const char *data, size_t n)
{
    const nrd_json_limits limits = {.max_depth = 16, .max_nodes = 65536};
    nrd_json_doc *doc = NULL;
    nrd_error *err = nrd_json_parse(&doc, data, n, &limits);
    if (err) {
        nrd_str_puts(&q->why, nrd_error_message(err));
        nrd_error_free(err);
        return;
    }
    const nrd_json *root = nrd_json_root(doc), *inputs = nrd_json_get(root, "inputs");
    for (size_t i = 0; i < nrd_json_len(inputs); i++) {
        on_input(q, nrd_json_get_str(nrd_json_at(inputs, i), "name", ""));
    }
    q->is_read = nrd_json_is(inputs, NRD_JSON_ARRAY);
    nrd_str_puts(&q->why, nrd_json_get_str(root, "error", ""));
    nrd_json_doc_free(doc);
}

static void on_piece(void *tag, int status, const char *data, size_t n)
{
    question *q = tag;
    (void)status; /* an error's body is read for its words */
    if (!q->grpc) {
        read_json(q, data, n);
        return;
    }
    const char *why = q->grpc->read_metadata(data, n, on_input, q);
    nrd_str_puts(&q->why, why ? why : "");
    q->is_read = !why;
}

static void on_end(void *tag, int status, const char *why)
{
    question *q = tag;
    q->is_over = true;
    q->is_read &= status == NRD_CLIENT_FINE && !why;
    if (why && q->why.len == 0) {
        nrd_str_puts(&q->why, why);
    }
}

nrd_error *nrd_load_find_inputs(const nrd_api *a, const nrd_client_config *server, const char *const *names, size_t n,
                                uint32_t *out_has)
{
    const nrd_client_ops *carrier = a->grpc ? &a->grpc->calls : &nrd_http_carrier;
    question q = {.grpc = a->grpc, .names = names, .n = n};
    nrd_client_config c = *server;
    nrd_str path = {0};
    char why[256] = "", *message = NULL;
    size_t n_message = 0;
    void *client = NULL;

    *out_has = 0;
    nrd_str_printf(&path, a->grpc ? "/inference.GRPCInferenceService/ModelMetadata" : "/v2/models/%s", a->model);
    c.path = nrd_str_cstr(&path);
    c.gets = true;
    c.streams = false;
    c.piece = on_piece;
    c.end = on_end;
    message = a->grpc ? a->grpc->metadata(a->model, &n_message) : NULL;
    nrd_error *err = a->grpc && !message ? nrd_error_no_memory() : nrd_str_error(&path);
    if (err) {
        /* nothing is asked */
    } else if (!carrier->open(&client, &c, why, sizeof why)) {
        err = nrd_errorf(NRD_ERR_UNAVAILABLE, "%s", why);
    } else {
        carrier->post(client, &q, message ? message : "", n_message);
        while (!q.is_over) {
            carrier->wait(client, nrd_now_ns() + 100000000);
        }
        if (!q.is_read) {
            err = nrd_errorf(NRD_ERR_UNAVAILABLE, "%s: the inputs of model '%s' are not known: %s", c.url, a->model,
                             q.why.len ? nrd_str_cstr(&q.why) : "the answer is no model's metadata");
        }
        *out_has = q.has;
    }
    if (client) {
        carrier->free(client);
    }
    free(message);
    nrd_str_fini(&path);
    nrd_str_fini(&q.why);
    return err;
}
