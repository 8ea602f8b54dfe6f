/* SPDX-License-Identifier: Apache-2.0 */
#include "hub/plugin/ask.h"

#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

enum { MAX_REDIRECTIONS = 8, MAX_WAIT_SECS = 60 };

/* ---- addresses ---- */

typedef struct address {
    char *scheme, *host, *port, *user;
} address;

static void address_fini(address *a)
{
    curl_free(a->scheme);
    curl_free(a->host);
    curl_free(a->port);
    curl_free(a->user);
}

static bool address_read(address *out, const char *url)
{
    CURLU *u = curl_url();
    *out = (address){0};
    const bool is_read = u && curl_url_set(u, CURLUPART_URL, url, 0) == CURLUE_OK &&
                         curl_url_get(u, CURLUPART_SCHEME, &out->scheme, 0) == CURLUE_OK &&
                         curl_url_get(u, CURLUPART_HOST, &out->host, 0) == CURLUE_OK &&
                         curl_url_get(u, CURLUPART_PORT, &out->port, CURLU_DEFAULT_PORT) == CURLUE_OK;
    if (is_read) {
        (void)curl_url_get(u, CURLUPART_USER, &out->user, 0); /* stays NULL without one */
    }
    curl_url_cleanup(u);
    return is_read;
}

static bool is_here(const address *a)
{
    return !strcasecmp(a->host, "localhost") || !strcmp(a->host, "127.0.0.1") || !strcmp(a->host, "[::1]");
}

static bool is_local_http(const address *a)
{
    return !strcasecmp(a->scheme, "http") && is_here(a);
}

/* May `url` be asked, where `origin` was meant? *out_same: it is the same host. */
static nrd_error *check_address(const char *url, const char *origin, bool *out_same)
{
    address a = {0}, o = {0};
    nrd_error *err = NULL;

    *out_same = false;
    if (!address_read(&a, url) || !address_read(&o, origin)) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "'%.300s' is no address", url);
    } else if (a.user) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "the address at %s has a user's name in it: not allowed", a.host);
    } else if (strcasecmp(a.scheme, "https") != 0 && !(is_local_http(&a) && is_local_http(&o))) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "%s sends on to %s://%s, which is not encrypted: only https is followed",
                         o.host, a.scheme, a.host);
    } else {
        *out_same = !strcasecmp(a.scheme, o.scheme) && !strcasecmp(a.host, o.host) && !strcmp(a.port, o.port);
    }
    address_fini(&a);
    address_fini(&o);
    return err;
}

/* `location` as it is meant at `url`, into url. */
static nrd_error *go_on(char url[2049], const char *location)
{
    CURLU *u = curl_url();
    char *next = NULL;
    nrd_error *err = NULL;

    if (!u || curl_url_set(u, CURLUPART_URL, url, 0) != CURLUE_OK ||
        curl_url_set(u, CURLUPART_URL, location, 0) != CURLUE_OK ||
        curl_url_get(u, CURLUPART_URL, &next, 0) != CURLUE_OK || strlen(next) > 2048) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "the server sends on to '%.300s', which is no address", location);
    } else {
        snprintf(url, 2049, "%s", next);
    }
    curl_free(next);
    curl_url_cleanup(u);
    return err;
}

/* ---- the head of an answer ---- */

typedef struct reading {
    nrd_hub_head *head;
    nrd_hub_reply *reply;
} reading;

static void copy(char *to, size_t room, const char *value)
{
    size_t n = strnlen(value, room - 1);
    memcpy(to, value, n);
    to[n] = '\0';
}

/* Text of a stranger, which goes to a terminal. */
static void copy_plain(char *to, size_t room, const char *value)
{
    copy(to, room, value);
    for (char *c = to; *c; c++) {
        *c = (unsigned char)*c < 0x20 || *c == 0x7f ? ' ' : *c;
    }
}

static void copy_etag(nrd_hub_head *head, const char *value)
{
    copy(head->etag, sizeof head->etag, *value == '"' ? value + 1 : ""); /* W/"…": nearly the same */
    head->etag[strcspn(head->etag, "\"")] = '\0';
}

/* Of several links the one with rel="next". */
static void copy_next(char *to, size_t room, const char *value)
{
    for (const char *p = strchr(value, '<'); p; p = strchr(p + 1, '<')) {
        const char *end = strchr(p, '>');
        const char *stop = end ? end + strcspn(end, ",") : NULL;
        const char *rel = end ? strstr(end, "rel=\"next\"") : NULL;
        if (rel && rel < stop && (size_t)(end - p) <= room) {
            copy(to, (size_t)(end - p), p + 1);
            return;
        }
    }
}

static uint64_t number(const char *value)
{
    unsigned long long n = 0;
    return nrd_parse_u64(value, &n) ? n : UINT64_MAX;
}

static void take_field(void *user, const char *name, const char *value)
{
    reading *r = user;
    long long secs = -1;

    if (!strcasecmp(name, "location")) {
        copy(r->head->location, sizeof r->head->location, strlen(value) < sizeof r->head->location ? value : "");
    } else if (!strcasecmp(name, "etag")) {
        copy_etag(r->head, value);
    } else if (!strcasecmp(name, "content-length")) {
        r->head->length = number(value);
    } else if (!strcasecmp(name, "x-error-code")) {
        copy_plain(r->reply->code, sizeof r->reply->code, value);
    } else if (!strcasecmp(name, "x-error-message")) {
        copy_plain(r->reply->message, sizeof r->reply->message, value);
    } else if (!strcasecmp(name, "link")) {
        copy_next(r->reply->next, sizeof r->reply->next, value);
    } else if (!strcasecmp(name, "retry-after") && nrd_parse_i64(value, &secs) && secs >= 0 && secs < 1000000) {
        r->reply->wait_secs = (long)secs;
    }
}

/* ---- asking ---- */

static nrd_error *ask_once(nrd_http_handle *h, const nrd_hub_question *q, bool is_origin, nrd_hub_answer *a,
                           nrd_hub_reply *reply)
{
    char authorization[4200], range[80], match[300];
    const char *fields[5] = {"User-Agent: nereid"};
    size_t n = 1;
    reading r = {.head = &a->head, .reply = reply};

    if (is_origin && q->access->token[0]) {
        snprintf(authorization, sizeof authorization, "Authorization: Bearer %s", q->access->token);
        fields[n++] = authorization;
    }
    if (q->has_range) {
        snprintf(range, sizeof range, "Range: bytes=%llu-%llu", (unsigned long long)q->first, (unsigned long long)q->last);
        fields[n++] = range;
    }
    if (q->etag && q->etag[0]) {
        snprintf(match, sizeof match, "If-Match: \"%s\"", q->etag);
        fields[n++] = match;
    }
    *reply = (nrd_hub_reply){.wait_secs = -1};
    a->head = (nrd_hub_head){.length = UINT64_MAX};
    const nrd_http_ask ask = {.url = a->url, .fields = fields, .sink = q->sink, .user = q->user, .field = take_field,
                              .field_user = &r, .max_body = q->max_body, .stall_secs = q->access->stall_secs,
                              .ca_file = q->access->ca_file[0] ? q->access->ca_file : NULL};
    nrd_error *err = nrd_http_do(h, &ask, &a->http);
    reply->status = a->http.status;
    a->again = err && !a->http.is_cut;
    return err;
}

static nrd_error *judge(nrd_hub_answer *a, const nrd_hub_reply *reply)
{
    const long s = a->http.status;
    if (s >= 200 && s < 300) {
        return NULL;
    }
    a->again = (s == 429 && reply->wait_secs <= MAX_WAIT_SECS) || s == 408 || s >= 500;
    return nrd_errorf(s == 404 ? NRD_ERR_NOT_FOUND : NRD_ERR_UNAVAILABLE, "HTTP status %ld%s%s", s,
                      reply->message[0] ? ": " : "", reply->message);
}

nrd_error *nrd_hub_ask(nrd_http_handle *h, const nrd_hub_question *q, nrd_hub_answer *answer, nrd_hub_reply *reply)
{
    memset(answer, 0, sizeof *answer);
    *reply = (nrd_hub_reply){.wait_secs = -1};
    copy(answer->url, sizeof answer->url, q->url);
    for (int i = 0; i <= MAX_REDIRECTIONS; i++) {
        bool is_origin = false;
        nrd_http_reply_fini(&answer->http);
        memset(&answer->http, 0, sizeof answer->http);
        NRD_TRY(check_address(answer->url, q->access->origin, &is_origin));
        NRD_TRY(ask_once(h, q, is_origin, answer, reply));
        const long s = answer->http.status;
        if ((s != 301 && s != 302 && s != 303 && s != 307 && s != 308) || !answer->head.location[0]) {
            return judge(answer, reply);
        }
        NRD_TRY(go_on(answer->url, answer->head.location));
    }
    return nrd_errorf(NRD_ERR_UNAVAILABLE, "more than %d redirections", MAX_REDIRECTIONS);
}

void nrd_hub_wait(const nrd_hub_reply *reply, unsigned attempt)
{
    if (reply->wait_secs > 0) {
        const struct timespec t = {.tv_sec = reply->wait_secs <= MAX_WAIT_SECS ? reply->wait_secs : MAX_WAIT_SECS};
        nanosleep(&t, NULL);
    } else {
        nrd_http_pause(attempt);
    }
}
