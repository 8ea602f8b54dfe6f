/* SPDX-License-Identifier: Apache-2.0
 * The routes of the page: its files, which are compiled into the program, with their content
 * security policy and conditional requests; and GET /ui/stats, whose text stats.c makes. Set up
 * once by the program before the HTTP service listens. */
#include "frontends/ui/ui.h"

#include "base/clock.h"
#include "base/hash.h"
#include "base/mem.h"
#include "frontends/http/compress.h"
#include "frontends/ui/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Several viewers, or several windows of one, share a snapshot. */
#define FRESH_NS (200ull * 1000000ull)

/* Nothing from elsewhere, nothing inline but attached pictures, no frame around it. */
#define GUARDS                                                                                     \
    "X-Content-Type-Options: nosniff\r\n"                                                          \
    "Referrer-Policy: no-referrer\r\n"                                                             \
    "Cross-Origin-Resource-Policy: same-origin\r\n"
#define PAGE_GUARDS                                                                                \
    GUARDS "Content-Security-Policy: default-src 'self'; img-src 'self' data:; base-uri 'none'; object-src 'none'; "     \
           "form-action 'none'; frame-ancestors 'none'\r\n"

typedef struct form { /* of a file, on the wire */
    const char *data;
    size_t n;
    char etag[NRD_UI_ETAG_BYTES]; /* with its quotes */
} form;

struct nrd_ui {
    nrd_http_api *api;     /* borrows until free */
    uint64_t since_ns;
    form plain[NRD_UI_N_FILES];
    form packed[NRD_UI_N_FILES]; /* gzip; data points into `gzip` */
    nrd_str gzip[NRD_UI_N_FILES];
    pthread_mutex_t mu;
    nrd_str stats;     /* guarded by mu */
    uint64_t stats_ns; /* guarded by mu: when it was made; 0: never */
};

static void reply_file(nrd_ui *ui, nrd_http_request *req, size_t i)
{
    const nrd_view *accept = nrd_http_find_field(&req->head, "Accept-Encoding");
    const nrd_view *known = nrd_http_find_field(&req->head, "If-None-Match");
    const bool gzip = nrd_http_accept_encoding(accept) == NRD_ENCODING_GZIP;
    const form *f = gzip ? &ui->packed[i] : &ui->plain[i];
    nrd_str extra = {0};

    nrd_str_printf(&extra, PAGE_GUARDS "Cache-Control: no-cache\r\nETag: %s\r\nVary: Accept-Encoding\r\n",
                   f->etag);
    nrd_str_puts(&extra, gzip ? "Content-Encoding: gzip\r\n" : "");
    if (extra.no_memory) { /* a page without its guards must not be shown */
        nrd_http_reply_error(req, 503, "out of memory");
        nrd_str_fini(&extra);
        return;
    }
    /* The quotes are part of the tag, so a tag within a list or behind W/ is found as it is. */
    if (known && (nrd_view_is(*known, "*") ||
                  memmem(known->p, known->n, f->etag, strlen(f->etag)) != NULL)) {
        nrd_http_reply(req, 304, NULL, extra.data, NULL, 0);
    } else {
        nrd_http_reply(req, 200, nrd_ui_files[i].type, extra.data, f->data, f->n);
    }
    nrd_str_fini(&extra);
}

static void on_page(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    (void)route;
    reply_file(user, req, 0);
}

static void on_file(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    for (size_t i = 1; i < NRD_UI_N_FILES; i++) {
        if (!strcmp(nrd_ui_files[i].name, route->model)) {
            reply_file(user, req, i);
            return;
        }
    }
    nrd_http_reply_error(req, 404, "the page has no file of this name");
}

/* What browsers ask for beside a page that names no icon, as that of /openapi.json or /metrics. */
static void on_icon(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    (void)route;
    for (size_t i = 1; i < NRD_UI_N_FILES; i++) {
        if (!strcmp(nrd_ui_files[i].name, "icon.svg")) {
            reply_file(user, req, i);
            return;
        }
    }
}

static void on_stats(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    nrd_ui *ui = user;
    nrd_error *err = NULL;
    nrd_str text = {0};

    (void)route;
    pthread_mutex_lock(&ui->mu);
    uint64_t now = nrd_now_ns();
    if (ui->stats_ns == 0 || now - ui->stats_ns >= FRESH_NS) {
        nrd_str_clear(&ui->stats);
        err = nrd_ui_put_stats(&ui->stats, ui->api, ui->since_ns);
        ui->stats_ns = err || ui->stats.no_memory ? 0 : now;
    }
    if (!err) {
        nrd_str_put(&text, &ui->stats);
    }
    pthread_mutex_unlock(&ui->mu);
    if (err) {
        nrd_http_fail(req, err);
    } else {
        nrd_http_reply_str(req, 200, "application/json", GUARDS "Cache-Control: no-store\r\n", &text);
    }
    nrd_str_fini(&text);
}

#define READ (NRD_HTTP_ON_GET | NRD_HTTP_ON_HEAD)
static const nrd_http_route_row routes[] = {
    {"", READ, NULL, on_page, nrd_http_refuse_method},
    {"favicon.ico", READ, NULL, on_icon, nrd_http_refuse_method},
    {"ui/stats", READ, "statistics", on_stats, NULL},
    {"ui/{m}", READ, NULL, on_file, nrd_http_refuse_method},
};

static void name_form(form *f, const char *data, size_t n, const char *suffix)
{
    f->data = data;
    f->n = n;
    snprintf(f->etag, sizeof f->etag, "\"%016llx%s\"",
             (unsigned long long)nrd_hash_bytes(0, data, n), suffix);
}

nrd_error *nrd_ui_new(nrd_ui **out, nrd_http_api *api)
{
    nrd_error *err = NULL;
    nrd_ui *ui = NULL;

    *out = NULL;
    NRD_NEW_GOTO(ui, 1, err, fail);
    pthread_mutex_init(&ui->mu, NULL);
    ui->api = api;
    ui->since_ns = nrd_now_ns();
    for (size_t i = 0; i < NRD_UI_N_FILES; i++) {
        const nrd_ui_file *f = &nrd_ui_files[i];
        struct iovec part = {(void *)(uintptr_t)f->begin, (size_t)(f->end - f->begin)};
        name_form(&ui->plain[i], f->begin, part.iov_len, "");
        NRD_TRY_GOTO(nrd_http_deflate(&ui->gzip[i], NRD_ENCODING_GZIP, &part, 1), err, fail);
        name_form(&ui->packed[i], ui->gzip[i].data, ui->gzip[i].len, "-z");
    }
    NRD_TRY_GOTO(nrd_http_router_add(nrd_http_api_router(api), routes, sizeof routes / sizeof *routes,
                                     ui, NULL), err, fail);
    *out = ui;
    return NULL;

fail:
    nrd_ui_free(ui);
    return err;
}

void nrd_ui_free(nrd_ui *ui)
{
    if (!ui) {
        return;
    }
    for (size_t i = 0; i < NRD_UI_N_FILES; i++) {
        nrd_str_fini(&ui->gzip[i]);
    }
    nrd_str_fini(&ui->stats);
    pthread_mutex_destroy(&ui->mu);
    free(ui);
}
