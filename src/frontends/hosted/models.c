/* SPDX-License-Identifier: Apache-2.0 */
#include "frontends/hosted/models.h"

#include "frontends/http/handlers.h"

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

enum { MAX_JOBS = 16, MAX_CONFIG = 1 << 20, UNLOAD_SECS = 350 }; /* SageMaker waits 360 seconds */

typedef struct entry {
    struct entry *next;
    char *name, *target, *repository; /* owned */
    bool is_busy;                     /* being loaded or unloaded */
} entry;

struct nrd_hosted_models {
    TRITONSERVER_Server *server;
    pthread_mutex_t mu;
    entry *first; /* guarded by mu */
    atomic_int n_jobs;
};

/* A load or unload: runs on a thread of its own, is answered on the request's loop. */
typedef struct job {
    nrd_http_task task;
    nrd_hosted_models *models;
    nrd_http_request *req; /* shares */
    entry *e;              /* busy, ours until the end */
    char *url;             /* of a load; NULL: an unload */
    nrd_error *err;
} job;

nrd_error *nrd_hosted_models_new(nrd_hosted_models **out, TRITONSERVER_Server *server)
{
    nrd_hosted_models *m = calloc(1, sizeof *m);

    *out = m;
    if (!m) {
        return nrd_error_no_memory();
    }
    m->server = server;
    pthread_mutex_init(&m->mu, NULL);
    return NULL;
}

static void entry_free(entry *e)
{
    if (e) {
        free(e->name);
        free(e->target);
        free(e->repository);
        free(e);
    }
}

void nrd_hosted_models_free(nrd_hosted_models *m)
{
    if (m) {
        for (entry *e = m->first, *next; e; e = next) {
            next = e->next;
            entry_free(e);
        }
        pthread_mutex_destroy(&m->mu);
        free(m);
    }
}

static entry *find_locked(nrd_hosted_models *m, const char *name)
{
    entry *e = m->first;
    while (e && strcmp(e->name, name) != 0) {
        e = e->next;
    }
    return e;
}

static void remove_entry(nrd_hosted_models *m, entry *gone)
{
    pthread_mutex_lock(&m->mu);
    entry **p = &m->first;
    while (*p && *p != gone) {
        p = &(*p)->next;
    }
    if (*p) {
        *p = gone->next;
    }
    pthread_mutex_unlock(&m->mu);
    entry_free(gone);
}

/* ---- answers ---- */

static void reply_text(nrd_http_request *req, nrd_str *text)
{
    nrd_error *err = nrd_str_error(text);
    if (err) {
        nrd_http_fail(req, err);
    } else {
        nrd_http_reply(req, 200, NRD_HTTP_JSON, NULL, text->data, text->len);
    }
    nrd_str_fini(text);
}

static void put_entry(nrd_str *out, const entry *e)
{
    nrd_str_puts(out, "{\"modelName\":");
    nrd_json_put_cstr(out, e->name);
    nrd_str_puts(out, ",\"modelUrl\":");
    nrd_json_put_cstr(out, e->repository);
    nrd_str_putc(out, '}');
}

/* 507 tells SageMaker to unload others first. */
static void reply_error(nrd_http_request *req, nrd_error *err)
{
    static const char *const words[] = {"out of memory", "no memory", "OOM", "MemoryError", "OUT_OF_MEMORY", "OutOfMemory",
                                        "allocate memory", "ALLOC_FAILED", "No space left on device"};
    const nrd_error_code code = nrd_error_get_code(err);
    int status = code == NRD_ERR_ALREADY_EXISTS ? 409 : code == NRD_ERR_NOT_FOUND ? 404 : 400;

    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        status = code == NRD_ERR_NO_MEMORY || strcasestr(nrd_error_message(err), words[i]) ? 507 : status;
    }
    nrd_http_reply_error(req, status, nrd_error_message(err));
    nrd_error_free(err);
}

static void reply_missing(nrd_http_request *req, const char *name)
{
    reply_error(req, nrd_errorf(NRD_ERR_NOT_FOUND, "model '%s' is not loaded", name));
}

void nrd_hosted_models_list(nrd_hosted_models *m, nrd_http_request *req)
{
    nrd_str text = {0};

    nrd_str_puts(&text, "{\"models\":[");
    pthread_mutex_lock(&m->mu);
    bool any = false;
    for (const entry *e = m->first; e; e = e->next) {
        bool ready = false;
        nrd_error_free(nrd_from_triton(TRITONSERVER_ServerModelIsReady(m->server, e->target, -1, &ready)));
        if (ready && !e->is_busy) {
            nrd_str_puts(&text, any ? "," : "");
            put_entry(&text, e);
            any = true;
        }
    }
    pthread_mutex_unlock(&m->mu);
    nrd_str_puts(&text, "]}");
    reply_text(req, &text);
}

void nrd_hosted_models_show(nrd_hosted_models *m, nrd_http_request *req, const char *name)
{
    nrd_str text = {0};

    pthread_mutex_lock(&m->mu);
    const entry *e = find_locked(m, name);
    const bool found = e && !e->is_busy;
    if (found) {
        put_entry(&text, e);
    }
    pthread_mutex_unlock(&m->mu);
    if (found) {
        reply_text(req, &text);
    } else {
        reply_missing(req, name);
    }
}

char *nrd_hosted_models_target(nrd_hosted_models *m, nrd_http_request *req, const char *name)
{
    pthread_mutex_lock(&m->mu);
    const entry *e = find_locked(m, name);
    const bool found = e && !e->is_busy;
    char *target = found ? strdup(e->target) : NULL;
    pthread_mutex_unlock(&m->mu);
    if (!found) {
        reply_missing(req, name);
    } else if (!target) {
        reply_error(req, nrd_error_no_memory());
    }
    return target;
}

/* ---- loading ---- */

/* false also where its configuration cannot be read. Errors: NO_MEMORY. */
static nrd_error *is_ensemble(bool *out, const char *dir)
{
    char *path = NULL, *text = NULL;
    size_t n = 0;
    nrd_error *err = nrd_path_make(&path, dir, "config.pbtxt");
    bool found = false;

    err = err ? err : nrd_file_read(&text, &n, path, MAX_CONFIG);
    for (const char *p = text; p && !found && (p = strstr(p, "platform")) != NULL; p += 8) {
        const char *after = p + 8 + strspn(p + 8, " \t\r\n:");
        found = strncmp(after, "\"ensemble\"", 10) == 0;
    }
    free(text);
    free(path);
    *out = found;
    if (err && nrd_error_get_code(err) == NRD_ERR_NO_MEMORY) {
        return err;
    }
    nrd_error_free(err);
    return NULL;
}

/* The folders of a repository that SageMaker unpacked: the ensemble, or the only model, gets the target's
 * name, the others keep theirs. */
static nrd_error *map_folders(const char *url, const char *target, TRITONSERVER_Parameter ***out, size_t *out_n)
{
    char **names = NULL;
    size_t n = 0, n_dirs = 0, chosen = SIZE_MAX;

    *out = NULL;
    *out_n = 0;
    nrd_error *err = nrd_dir_list(&names, &n, url);
    for (size_t i = 0; i < n && !err; i++) {
        char *dir = NULL;
        bool is_chosen = chosen == SIZE_MAX;
        err = nrd_path_make(&dir, url, names[i]);
        if (!err && names[i][0] != '.' && nrd_path_is_dir(dir)) {
            char *name = names[i];
            names[i] = names[n_dirs];
            names[n_dirs] = name;
            err = is_chosen ? NULL : is_ensemble(&is_chosen, dir);
            chosen = is_chosen ? n_dirs : chosen;
            n_dirs++;
        }
        free(dir);
    }
    err = err || n_dirs ? err : nrd_errorf(NRD_ERR_INVALID_ARG, "'%s' has no folder of a model", url);
    TRITONSERVER_Parameter **list = calloc(n_dirs + 1, sizeof(TRITONSERVER_Parameter *));
    err = err || list ? err : nrd_error_no_memory();
    for (size_t i = 0; i < n_dirs && !err; i++) {
        list[i] = TRITONSERVER_ParameterNew(names[i], TRITONSERVER_PARAMETER_STRING, i == chosen ? target : names[i]);
        err = list[i] ? NULL : nrd_error_no_memory();
    }
    nrd_names_free(names, n);
    *out = list;
    *out_n = n_dirs;
    return err;
}

static nrd_error *find_repository(job *j, TRITONSERVER_Parameter ***out, size_t *out_n)
{
    entry *e = j->e;
    char *config = NULL;

    *out = NULL;
    *out_n = 0;
    NRD_TRY(nrd_path_make(&config, j->url, "config.pbtxt"));
    const bool is_model = nrd_path_exists(config);
    free(config);
    if (!nrd_path_is_dir(j->url)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'%s' is no folder", j->url);
    }
    if (!is_model) {
        e->repository = strdup(j->url);
        return e->repository ? map_folders(j->url, e->target, out, out_n) : nrd_error_no_memory();
    }
    NRD_TRY(nrd_path_make_dir(&e->repository, j->url)); /* the folder itself is the model */
    *out = calloc(1, sizeof(TRITONSERVER_Parameter *));
    if (*out) {
        (*out)[0] = TRITONSERVER_ParameterNew(nrd_path_base(j->url), TRITONSERVER_PARAMETER_STRING, e->target);
    }
    *out_n = 1;
    return *out && (*out)[0] ? NULL : nrd_error_no_memory();
}

static nrd_error *load(job *j)
{
    TRITONSERVER_Parameter **mapping = NULL;
    TRITONSERVER_Server *server = j->models->server;
    size_t n = 0;
    nrd_error *err = find_repository(j, &mapping, &n);

    if (!err) {
        err = nrd_from_triton(TRITONSERVER_ServerRegisterModelRepository(
            server, j->e->repository, (const TRITONSERVER_Parameter **)mapping, (uint32_t)n));
    }
    if (!err) {
        err = nrd_from_triton(TRITONSERVER_ServerLoadModel(server, j->e->target));
        if (err) {
            nrd_error_free(nrd_from_triton(TRITONSERVER_ServerUnregisterModelRepository(server, j->e->repository)));
        }
    }
    for (size_t i = 0; mapping && i < n; i++) {
        TRITONSERVER_ParameterDelete(mapping[i]);
    }
    free(mapping);
    return err;
}

/* ---- unloading ---- */

/* Some version of the model still serves, or is on its way out. */
static bool is_there(TRITONSERVER_Server *server, const char *name)
{
    TRITONSERVER_Message *index = NULL;
    nrd_json_doc *doc = NULL;
    const char *text = NULL;
    size_t n = 0;
    bool found = false;
    nrd_error *err = nrd_from_triton(TRITONSERVER_ServerModelIndex(server, 0, &index));

    err = err ? err : nrd_from_triton(TRITONSERVER_MessageSerializeToJson(index, &text, &n));
    err = err ? err : nrd_json_parse(&doc, text, n, NULL);
    const nrd_json *root = err ? NULL : nrd_json_root(doc);
    for (size_t i = 0; i < nrd_json_len(root); i++) {
        const nrd_json *m = nrd_json_at(root, i);
        const char *state = nrd_json_get_str(m, "state", "UNAVAILABLE");
        found = found || (strcmp(nrd_json_get_str(m, "name", ""), name) == 0 && strcmp(state, "UNAVAILABLE") != 0);
    }
    nrd_error_free(err);
    nrd_json_doc_free(doc);
    if (index) {
        nrd_error_free(nrd_from_triton(TRITONSERVER_MessageDelete(index)));
    }
    return found;
}

static nrd_error *unload(job *j)
{
    const struct timespec pause = {0, 50 * 1000 * 1000};
    const time_t until = time(NULL) + UNLOAD_SECS;
    TRITONSERVER_Server *server = j->models->server;

    NRD_TRY(nrd_from_triton(TRITONSERVER_ServerUnloadModelAndDependents(server, j->e->target)));
    while (is_there(server, j->e->target) && time(NULL) < until) {
        nanosleep(&pause, NULL);
    }
    return nrd_from_triton(TRITONSERVER_ServerUnregisterModelRepository(server, j->e->repository));
}

/* ---- jobs ---- */

static void answer(nrd_http_task *task)
{
    job *j = (job *)(void *)task;
    nrd_http_request *req = j->req;

    if (j->err) {
        reply_error(req, j->err);
    } else {
        nrd_http_reply(req, 200, NRD_HTTP_JSON, NULL, NULL, 0);
    }
    nrd_http_request_unref(req);
    free(j->url);
    free(j);
}

static void *run(void *arg)
{
    job *j = arg;
    const bool is_load = j->url != NULL;

    j->err = is_load ? load(j) : unload(j);
    if (is_load == (j->err != NULL)) {
        remove_entry(j->models, j->e);
    } else {
        pthread_mutex_lock(&j->models->mu);
        j->e->is_busy = false;
        pthread_mutex_unlock(&j->models->mu);
    }
    atomic_fetch_sub(&j->models->n_jobs, 1);
    j->task.run = answer;
    nrd_http_post(j->req->loop, &j->task);
    return NULL;
}

/* Takes url; e is busy and ours. */
static void start(nrd_hosted_models *m, nrd_http_request *req, entry *e, char *url)
{
    job *j = calloc(1, sizeof *j);
    pthread_attr_t attr;
    pthread_t thread;
    bool ok = j != NULL;

    if (ok) {
        *j = (job){.models = m, .req = req, .e = e, .url = url};
        nrd_http_request_ref(req);
        pthread_attr_init(&attr);
        pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
        ok = atomic_fetch_add(&m->n_jobs, 1) < MAX_JOBS && pthread_create(&thread, &attr, run, j) == 0;
        pthread_attr_destroy(&attr);
    }
    if (ok) {
        return;
    }
    if (url) {
        remove_entry(m, e);
    } else {
        pthread_mutex_lock(&m->mu);
        e->is_busy = false;
        pthread_mutex_unlock(&m->mu);
    }
    reply_error(req, nrd_errorf(NRD_ERR_UNAVAILABLE, "too many models are being loaded, at most %d", (int)MAX_JOBS));
    if (j) {
        atomic_fetch_sub(&m->n_jobs, 1);
        nrd_http_request_unref(req);
    }
    free(url);
    free(j);
}

static char *target_of(const nrd_http_request *req, const char *name)
{
    const nrd_view *v = nrd_http_find_field(&req->head, "X-Amzn-SageMaker-Target-Model");
    return v && v->n ? strndup(v->p, v->n) : strdup(name);
}

static nrd_error *check_url(const char *url)
{
    static const char *const closed[] = {"/dev/", "/proc/", "/sys/"};
    char *full = url[0] ? realpath(url, NULL) : NULL;
    nrd_error *err = url[0] == '/' && full
                         ? NULL
                         : nrd_errorf(NRD_ERR_INVALID_ARG, "\"url\" must be the path of a folder, got '%s'", url);
    for (size_t i = 0; i < sizeof closed / sizeof *closed && !err; i++) {
        if (nrd_str_has_prefix(full, closed[i])) {
            err = nrd_errorf(NRD_ERR_INVALID_ARG, "\"url\" cannot be below /dev, /proc or /sys, got '%s'", url);
        }
    }
    free(full);
    return err;
}

/* A new entry, busy, in the list. */
static nrd_error *add_entry(entry **out, nrd_hosted_models *m, const nrd_http_request *req, const char *name)
{
    entry *e = calloc(1, sizeof *e);
    nrd_error *err = NULL;

    if (e) {
        e->is_busy = true;
        e->name = strdup(name);
        e->target = target_of(req, name);
    }
    if (!e || !e->name || !e->target) {
        entry_free(e);
        return nrd_error_no_memory();
    }
    pthread_mutex_lock(&m->mu);
    for (const entry *o = m->first; o && !err; o = o->next) {
        if (strcmp(o->name, name) == 0 || strcmp(o->target, e->target) == 0) {
            err = nrd_errorf(NRD_ERR_ALREADY_EXISTS, "model '%s' is already loaded", name);
        }
    }
    if (!err) {
        e->next = m->first;
        m->first = e;
    }
    pthread_mutex_unlock(&m->mu);
    if (err) {
        entry_free(e);
        return err;
    }
    *out = e;
    return NULL;
}

void nrd_hosted_models_load(nrd_hosted_models *m, nrd_http_request *req)
{
    nrd_json_doc *doc = NULL;
    entry *e = NULL;
    char *copy = NULL;
    nrd_error *err = nrd_http_parse_json(&doc, &req->claim, req->body ? req->body : "", req->body_n);

    if (!err) {
        const nrd_json *root = nrd_json_root(doc);
        const char *name = nrd_json_get_str(root, "model_name", ""), *url = nrd_json_get_str(root, "url", "");
        err = name[0] ? check_url(url) : nrd_errorf(NRD_ERR_INVALID_ARG, "\"model_name\" is missing");
        copy = err ? NULL : strdup(url);
        err = err || copy ? err : nrd_error_no_memory();
        for (size_t n = copy ? strlen(copy) : 0; n > 1 && copy[n - 1] == '/'; n--) {
            copy[n - 1] = '\0';
        }
        err = err ? err : add_entry(&e, m, req, name);
    }
    nrd_json_doc_free(doc);
    if (err) {
        free(copy);
        reply_error(req, err);
        return;
    }
    NRD_LOG_INFO("Loading SageMaker TargetModel: %s", e->target);
    start(m, req, e, copy);
}

void nrd_hosted_models_unload(nrd_hosted_models *m, nrd_http_request *req, const char *name)
{
    pthread_mutex_lock(&m->mu);
    entry *e = find_locked(m, name);
    e = e && !e->is_busy ? e : NULL;
    if (e) {
        e->is_busy = true;
    }
    pthread_mutex_unlock(&m->mu);
    if (!e) {
        reply_missing(req, name);
        return;
    }
    NRD_LOG_INFO("Unloading SageMaker TargetModel: %s", e->target);
    start(m, req, e, NULL);
}
