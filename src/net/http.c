/* SPDX-License-Identifier: Apache-2.0 */
#include "net/http.h"

#include "base/mem.h"

#include <curl/curl.h>
#include <pthread.h>
#include <string.h>
#include <strings.h>
#include <time.h>

enum { CONNECT_MS = 10000, STALL_SECS = 30, MAX_ERROR_BODY = 16384, MAX_FIELD = 4096 };

struct nrd_http_handle {
    CURL *curl;
    const nrd_http_ask *ask;
    nrd_http_reply *reply;
    char why[CURL_ERROR_SIZE];
    bool is_stopped; /* by the sink */
};

static void start_curl(void)
{
    (void)curl_global_init(CURL_GLOBAL_DEFAULT);
}

nrd_error *nrd_http_handle_new(nrd_http_handle **out)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    nrd_http_handle *h = calloc(1, sizeof *h);

    pthread_once(&once, start_curl);
    *out = NULL;
    if (h) {
        h->curl = curl_easy_init();
    }
    if (!h || !h->curl) {
        free(h);
        return nrd_error_no_memory();
    }
    *out = h;
    return NULL;
}

void nrd_http_handle_free(nrd_http_handle *h)
{
    if (h) {
        curl_easy_cleanup(h->curl);
        free(h);
    }
}

void nrd_http_reply_fini(nrd_http_reply *reply)
{
    nrd_str_fini(&reply->body);
}

static size_t take_body(char *data, size_t one, size_t n, void *user)
{
    nrd_http_handle *h = user;
    nrd_http_reply *r = h->reply;
    long status = 0;

    (void)one; /* 1 */
    curl_easy_getinfo(h->curl, CURLINFO_RESPONSE_CODE, &status);
    r->status = status;
    const bool is_good = status >= 200 && status < 300;
    if (is_good && h->ask->sink) {
        h->is_stopped = !h->ask->sink(h->ask->user, data, n);
        return h->is_stopped ? 0 : n;
    }
    const size_t most = is_good ? h->ask->max_body : MAX_ERROR_BODY;
    const size_t room = r->body.len < most ? most - r->body.len : 0;
    r->is_cut = r->is_cut || n > room;
    nrd_str_append(&r->body, data, n < room ? n : room);
    return is_good && r->is_cut ? 0 : n;
}

static void take_range(nrd_http_reply *r, const char *value)
{
    char *end = NULL;
    const char *slash = strchr(value, '/');

    if (strncasecmp(value, "bytes ", 6) == 0 && slash) {
        r->first = strtoull(value + 6, &end, 10);
        r->total = strtoull(slash + 1, &end, 10);
    }
}

static size_t take_field(char *data, size_t one, size_t n, void *user)
{
    nrd_http_handle *h = user;
    char line[MAX_FIELD];
    const size_t len = n < sizeof line ? n : sizeof line - 1;

    (void)one;
    memcpy(line, data, len);
    line[len] = '\0';
    line[strcspn(line, "\r\n")] = '\0';
    char *colon = strchr(line, ':');
    if (colon) {
        *colon = '\0';
        const char *value = colon + 1 + strspn(colon + 1, " \t");
        if (strcasecmp(line, "content-range") == 0) {
            take_range(h->reply, value);
        }
        if (h->ask->field) {
            h->ask->field(h->ask->field_user, line, value);
        }
    }
    return n;
}

static void set_options(nrd_http_handle *h, const nrd_http_ask *ask, struct curl_slist *fields)
{
    CURL *c = h->curl;

    curl_easy_reset(c);
    curl_easy_setopt(c, CURLOPT_URL, ask->url);
#if LIBCURL_VERSION_NUM >= 0x075500
    curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
#else
    curl_easy_setopt(c, CURLOPT_PROTOCOLS, (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
#endif
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c, CURLOPT_PATH_AS_IS, 1L); /* it is signed as it is */
    curl_easy_setopt(c, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT_MS, ask->connect_ms ? ask->connect_ms : (long)CONNECT_MS);
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_TIME, ask->stall_secs ? ask->stall_secs : (long)STALL_SECS);
    curl_easy_setopt(c, CURLOPT_BUFFERSIZE, 256L * 1024L);
    curl_easy_setopt(c, CURLOPT_HTTPHEADER, fields);
    curl_easy_setopt(c, CURLOPT_ERRORBUFFER, h->why);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, take_body);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, h);
    curl_easy_setopt(c, CURLOPT_HEADERFUNCTION, take_field);
    curl_easy_setopt(c, CURLOPT_HEADERDATA, h);
    if (ask->post) {
        curl_easy_setopt(c, CURLOPT_POSTFIELDS, ask->post);
    }
    if (ask->ca_file) {
        curl_easy_setopt(c, CURLOPT_CAINFO, ask->ca_file);
    }
}

nrd_error *nrd_http_do(nrd_http_handle *h, const nrd_http_ask *ask, nrd_http_reply *reply)
{
    struct curl_slist *fields = NULL;
    nrd_error *err = NULL;

    memset(reply, 0, sizeof *reply);
    reply->first = reply->total = UINT64_MAX;
    for (const char *const *f = ask->fields; f && *f; f++) {
        struct curl_slist *grown = curl_slist_append(fields, *f);
        if (!grown) {
            curl_slist_free_all(fields);
            return nrd_error_no_memory();
        }
        fields = grown;
    }
    h->ask = ask;
    h->reply = reply;
    h->why[0] = '\0';
    h->is_stopped = false;
    set_options(h, ask, fields);
    const CURLcode code = curl_easy_perform(h->curl);
    curl_easy_getinfo(h->curl, CURLINFO_RESPONSE_CODE, &reply->status);
    curl_slist_free_all(fields);
    if (code != CURLE_OK && reply->is_cut) {
        err = nrd_errorf(NRD_ERR_UNAVAILABLE, "the answer is larger than %zu bytes", ask->max_body);
    } else if (code != CURLE_OK && !h->is_stopped) {
        err = nrd_errorf(NRD_ERR_UNAVAILABLE, "%s", h->why[0] ? h->why : curl_easy_strerror(code));
    }
    return err ? err : nrd_str_error(&reply->body);
}

void nrd_http_pause(unsigned attempt)
{
    const long ms = 100L << (attempt < 5 ? attempt : 5);
    const struct timespec t = {ms / 1000, ms % 1000 * 1000000L};
    nanosleep(&t, NULL);
}
