/* SPDX-License-Identifier: Apache-2.0
 * tools/load/connection.h - the options of verbs that ask a server: where, as whom, which model.
 *
 * Purpose   One table of options and the client's configuration that they make.
 * Owner     The main thread.
 * Errors    INVALID_ARG names the option.
 * Lifetime  init, rows of a struct that begins with nrd_connection, fini.
 */
#ifndef NRD_TOOLS_LOAD_CONNECTION_H
#define NRD_TOOLS_LOAD_CONNECTION_H

#include "base/options.h"
#include "tools/load/http_client.h"

typedef struct nrd_connection {
    const char *model, *path, *ca_cert, *sampling;
    double timeout_s;
    nrd_str headers; /* owns */
} nrd_connection;

#define NRD_CONNECTION_DEFAULTS {.model = "ensemble", .timeout_s = 600}

/* --model --path --header --ca_cert --sampling --timeout. `type` begins with an nrd_connection called `connection`. */
#define NRD_CONNECTION_OPTION_ROWS(type)                                                           \
    NRD_OPT_ROW(type, STR, "model", "-m --model_name", connection.model, "NAME", "ensemble",       \
                "that is asked"),                                                                  \
    NRD_OPT_ROW(type, STR, "path", "--endpoint", connection.path, "PATH", NULL,                    \
                "another one than the API's own"),                                                 \
    {.name = "header", .form = NRD_OPT_CUSTOM, .parse = nrd_connection_add_header,                 \
     .arg = "\"NAME: VALUE\"", .alias = "-H",                                                      \
     .help = "sent with each request, as Authorization; several times: several"},                  \
    NRD_OPT_ROW(type, STR, "ca_cert", NULL, connection.ca_cert, "FILE", NULL,                      \
                "certificate that the server's must be signed by, instead of the system's"),       \
    NRD_OPT_ROW(type, STR, "sampling", "--extra_body", connection.sampling, "MEMBERS", NULL,       \
                "of the request's JSON, as '\"temperature\": 0.7, \"top_p\": 0.6'"),               \
    {.name = "timeout", .form = NRD_OPT_CUSTOM, .parse = nrd_connection_set_timeout,               \
     .arg = "SECONDS", .def = "600", .help = "a request has failed when nothing came for so long"}

/* Of the rows; values: the struct that begins with an nrd_connection. */
nrd_error *nrd_connection_add_header(void *values, const char *name, const char *value) NRD_MUST_USE;
nrd_error *nrd_connection_set_timeout(void *values, const char *name, const char *value) NRD_MUST_USE;

/* Borrows url, path and the options; the callbacks are the caller's. */
nrd_client_config nrd_connection_config(const nrd_connection *c, const char *url, const char *path);
void nrd_connection_fini(nrd_connection *c);

#endif
