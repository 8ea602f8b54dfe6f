/* SPDX-License-Identifier: Apache-2.0 */
#include "cloud/token.h"

#include "base/env.h"
#include "base/json.h"
#include "base/mem.h"
#include "cloud/sign.h"

#include <pthread.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum { MAX_FILE = 1 << 20, MAX_ANSWER = 1 << 16, EARLY_SECS = 120, METADATA_MS = 1000 };
#define SCOPE "https://www.googleapis.com/auth/devstorage.read_only"
#define TOKEN_URI "https://oauth2.googleapis.com/token"

struct nrd_cloud_token {
    nrd_cloud_token *next; /* of all */
    struct timespec changed;
    nrd_json_doc *file; /* NULL: the machine's */
    char *path;
    pthread_mutex_t mu;
    char *value;        /* guarded by mu; NULL: none yet, or none at all */
    time_t until;       /* guarded by mu */
    bool is_nobody;     /* guarded by mu: the machine has no service account */
};

static struct {
    pthread_mutex_t mu;
    nrd_cloud_token *first; /* guarded by mu */
} all = {.mu = PTHREAD_MUTEX_INITIALIZER};

static void token_free(nrd_cloud_token *t)
{
    nrd_json_doc_free(t->file);
    pthread_mutex_destroy(&t->mu);
    free(t->path);
    free(t);
}

static nrd_error *token_new(nrd_cloud_token **out, const char *path)
{
    const nrd_json_limits limits = {.max_bytes = MAX_FILE, .max_depth = 8};
    nrd_error *err = NULL;
    nrd_cloud_token *t = calloc(1, sizeof *t);

    *out = NULL;
    if (!t) {
        return nrd_error_no_memory();
    }
    pthread_mutex_init(&t->mu, NULL);
    NRD_DUP_GOTO(t->path, path, err, fail);
    if (path[0]) {
        NRD_TRY_GOTO(nrd_error_wrap(nrd_json_parse_file(&t->file, path, &limits), "Google's credentials"), err, fail);
        const char *type = nrd_json_get_str(nrd_json_root(t->file), "type", "");
        if (strcmp(type, "service_account") != 0 && strcmp(type, "authorized_user") != 0) {
            err = nrd_errorf(NRD_ERR_INVALID_ARG,
                             "Google's credentials '%s': the type must be service_account or authorized_user, got '%s'",
                             path, type);
            goto fail;
        }
    }
    *out = t;
    return NULL;

fail:
    token_free(t);
    return err;
}

nrd_error *nrd_cloud_token_get(nrd_cloud_token **out, const char *path)
{
    struct stat st = {0};
    nrd_error *err = NULL;

    (void)stat(path, &st); /* what is not there is said when it is read */
    pthread_mutex_lock(&all.mu);
    nrd_cloud_token *t = all.first;
    while (t && (strcmp(t->path, path) != 0 || memcmp(&t->changed, &st.st_mtim, sizeof t->changed) != 0)) {
        t = t->next;
    }
    if (!t) {
        err = token_new(&t, path);
        if (!err) {
            t->changed = st.st_mtim;
            t->next = all.first;
            all.first = t;
        }
    }
    pthread_mutex_unlock(&all.mu);
    *out = t;
    return err;
}

static void put_form(nrd_str *out, const char *name, const char *value)
{
    nrd_str_printf(out, "%s%s=", out->len ? "&" : "", name);
    nrd_sign_escape(out, value, false);
}

/* The form that a token is asked for with. */
static nrd_error *make_form(nrd_str *form, const nrd_json *file, const char *uri)
{
    nrd_str signed_text = {0};
    nrd_error *err = NULL;

    if (strcmp(nrd_json_get_str(file, "type", ""), "authorized_user") == 0) {
        put_form(form, "grant_type", "refresh_token");
        put_form(form, "client_id", nrd_json_get_str(file, "client_id", ""));
        put_form(form, "client_secret", nrd_json_get_str(file, "client_secret", ""));
        put_form(form, "refresh_token", nrd_json_get_str(file, "refresh_token", ""));
    } else {
        err = nrd_sign_token(&signed_text, nrd_json_get_str(file, "client_email", ""),
                             nrd_json_get_str(file, "private_key", ""), uri, SCOPE, time(NULL));
        put_form(form, "grant_type", "urn:ietf:params:oauth:grant-type:jwt-bearer");
        put_form(form, "assertion", nrd_str_cstr(&signed_text));
    }
    nrd_str_fini(&signed_text);
    return err ? err : nrd_str_error(form);
}

static nrd_error *take_answer(nrd_cloud_token *t, const nrd_http_reply *reply, const char *uri)
{
    nrd_json_doc *doc = NULL;
    nrd_error *err = nrd_json_parse(&doc, nrd_str_cstr(&reply->body), reply->body.len, NULL);
    const nrd_json *root = err ? NULL : nrd_json_root(doc);
    const char *value = nrd_json_get_str(root, "access_token", "");

    if (err && nrd_error_get_code(err) == NRD_ERR_NO_MEMORY) {
        return err;
    }
    nrd_error_free(err);
    if (reply->status != 200 || !value[0] || strpbrk(value, "\r\n")) {
        err = nrd_errorf(NRD_ERR_INTERNAL, "no access token from '%s': HTTP status %ld %s: %s", uri, reply->status,
                         nrd_json_get_str(root, "error", ""), nrd_json_get_str(root, "error_description", ""));
    } else {
        char *copy = strdup(value);
        err = copy ? NULL : nrd_error_no_memory();
        if (copy) {
            free(t->value);
            t->value = copy;
            t->until = time(NULL) + (time_t)nrd_json_get_int(root, "expires_in", 0) - EARLY_SECS;
        }
    }
    nrd_json_doc_free(doc);
    return err;
}

static nrd_error *from_file(nrd_cloud_token *t, nrd_http_handle *h)
{
    const nrd_json *file = nrd_json_root(t->file);
    const char *uri = nrd_json_get_str(file, "token_uri", TOKEN_URI);
    nrd_http_reply reply = {0};
    nrd_str form = {0};
    nrd_error *err = make_form(&form, file, uri);

    if (!err) {
        const nrd_http_ask ask = {.url = uri, .post = nrd_str_cstr(&form), .max_body = MAX_ANSWER};
        err = nrd_error_wrap(nrd_cloud_http_do(h, ask, &reply), "no access token from '%s'", uri);
    }
    err = err ? err : take_answer(t, &reply, uri);
    nrd_http_reply_fini(&reply);
    nrd_str_fini(&form);
    return err ? nrd_error_wrap(err, "Google's credentials '%s'", t->path) : NULL;
}

/* The metadata server of Google's machines; elsewhere nobody answers. Errors: NO_MEMORY. */
static nrd_error *from_machine(nrd_cloud_token *t, nrd_http_handle *h)
{
    static const char *const fields[] = {"Metadata-Flavor: Google", NULL};
    nrd_str url = {0};
    nrd_str_printf(&url, "http://%s/computeMetadata/v1/instance/service-accounts/default/token",
                   nrd_env("GCE_METADATA_HOST", nrd_env("GCE_METADATA_ROOT", "metadata.google.internal")));
    const nrd_http_ask ask = {.url = nrd_str_cstr(&url), .fields = fields, .max_body = MAX_ANSWER,
                              .connect_ms = METADATA_MS};
    nrd_http_reply reply = {0};
    nrd_error *err = nrd_str_error(&url);

    err = err ? err : nrd_cloud_http_do(h, ask, &reply);
    err = err ? err : take_answer(t, &reply, ask.url);
    if (!err || nrd_error_get_code(err) != NRD_ERR_NO_MEMORY) {
        t->is_nobody = err != NULL;
        nrd_error_free(err);
        err = NULL;
    }
    nrd_http_reply_fini(&reply);
    nrd_str_fini(&url);
    return err;
}

nrd_error *nrd_cloud_token_put(nrd_cloud_token *t, nrd_http_handle *h, nrd_str *out, bool *out_has)
{
    nrd_error *err = NULL;

    pthread_mutex_lock(&t->mu); /* held while it is got: all wait for the same one */
    if (!t->is_nobody && (!t->value || time(NULL) >= t->until)) {
        err = t->file ? from_file(t, h) : from_machine(t, h);
    }
    *out_has = !err && !t->is_nobody;
    if (*out_has) {
        nrd_str_printf(out, "Bearer %s", t->value);
    }
    pthread_mutex_unlock(&t->mu);
    return err;
}
