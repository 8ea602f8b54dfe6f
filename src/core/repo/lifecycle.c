/* Which versions of which models serve. Orders (load, unload, poll) keep their books under
 * order_mu, which they give back while a version is being made: different models load at the same
 * time, and who wants a model that is being loaded waits for it (entry.loader). The table that
 * requests read is guarded by mu, which is held for look-ups and swaps only. order_mu comes before
 * mu.
 *
 * A version goes LOADING - READY - UNLOADING - UNAVAILABLE ("unloaded"), or LOADING - UNAVAILABLE
 * with the reason. While a new copy of a version loads, the old one keeps serving. An ensemble is
 * loaded after the models it names, and goes when one of them goes. A version whose backend says that
 * it cannot serve any more goes READY - UNAVAILABLE with the reason, and may be loaded again.
 *
 * With model namespacing each repository is a namespace and models of equal names live side by
 * side. A step of an ensemble means the model beside it, else the only one of that name; a request
 * can name only what is unique. Without it there is one namespace, "". */
#include "core/core.h"
#include "core/repo/agent.h"
#include "core/repo/scan.h"

#include "base/file.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct version {
    int64_t number;
    nrd_model_state state;
    char *reason;       /* owned; NULL = none */
    nrd_model *model;   /* shared; NULL unless READY */
    nrd_model *leaving; /* borrowed: unloading, for the reaper's note */
    bool failed;        /* it served until it, or what it needs, failed: the reason says why */
} version;

typedef struct entry {
    char *name, *dir;
    char *space; /* namespace: its repository, or "" */
    version *versions; /* rising */
    size_t n_versions;
    bool wanted;           /* was asked for and not unloaded since */
    bool by_name;          /* loaded under its own name, not only as a step of an ensemble */
    struct loader *loader; /* the thread that loads it; guarded by order_mu; NULL: none */
    char *error;           /* why there is no version at all; NULL = none */
    char **steps;          /* models that an ensemble names */
    char **step_spaces;    /* and their namespaces */
    size_t n_steps;
    uint64_t signature;
    bool present;  /* in a repository at the last look for the index */
    char *scratch; /* folder made for overriding files; removed with the model */
} entry;

/* A thread that loads models, and the model that it waits for. */
typedef struct loader {
    entry *waits_for; /* guarded by order_mu */
} loader;

static _Thread_local loader this_thread;

typedef struct mapped {
    struct mapped *next;
    char *name, *dir, *repository;
} mapped;

struct nrd_repo {
    nrd_server *server;
    pthread_mutex_t order_mu;
    pthread_cond_t order_cond; /* some model is no longer being loaded */
    bool closing;              /* guarded by order_mu: nothing is loaded any more */
    nrd_strings paths;         /* guarded by order_mu */
    mapped *mapping;           /* guarded by order_mu */
    pthread_mutex_t mu;        /* guards what follows */
    entry **entries;           /* by name */
    size_t n_entries;
    pthread_cond_t gone; /* a version's `leaving` was cleared */
};

static const char *const state_names[] = {"UNKNOWN", "READY", "UNAVAILABLE", "LOADING",
                                          "UNLOADING"};

/* ---- the table ---- */

/* Index of the first entry of that name, or of where it would stand. */
static size_t first_locked(const nrd_repo *r, const char *name)
{
    size_t low = 0, high = r->n_entries;

    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (strcmp(r->entries[middle]->name, name) < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static entry *find_locked(nrd_repo *r, const char *space, const char *name)
{
    for (size_t i = first_locked(r, name);
         i < r->n_entries && strcmp(r->entries[i]->name, name) == 0; i++) {
        if (strcmp(r->entries[i]->space, space) == 0) {
            return r->entries[i];
        }
    }
    return NULL;
}

static entry *find_or_add_locked(nrd_repo *r, const char *space, const char *name)
{
    entry *e = find_locked(r, space, name);
    const size_t i = first_locked(r, name);

    if (e) {
        return e;
    }
    e = nrd_xcalloc(1, sizeof *e);
    e->name = nrd_xstrdup(name);
    e->space = nrd_xstrdup(space);
    r->entries = nrd_xrealloc(r->entries, (r->n_entries + 1) * sizeof *r->entries);
    memmove(r->entries + i + 1, r->entries + i, (r->n_entries - i) * sizeof *r->entries);
    r->entries[i] = e;
    r->n_entries++;
    return e;
}

static version *version_locked(entry *e, int64_t number, bool add)
{
    size_t i = 0;
    while (i < e->n_versions && e->versions[i].number < number) {
        i++;
    }
    if (i < e->n_versions && e->versions[i].number == number) {
        return &e->versions[i];
    }
    if (!add) {
        return NULL;
    }
    e->versions = nrd_xrealloc(e->versions, (e->n_versions + 1) * sizeof *e->versions);
    memmove(e->versions + i + 1, e->versions + i, (e->n_versions - i) * sizeof *e->versions);
    e->n_versions++;
    e->versions[i] = (version){.number = number};
    return &e->versions[i];
}

static void set_state_locked(version *v, nrd_model_state state, const char *reason)
{
    char *copy = reason ? nrd_xstrdup(reason) : NULL; /* it may be the old one */
    v->state = state;
    v->failed = v->failed && state != NRD_MODEL_READY;
    free(v->reason);
    v->reason = copy;
}

static bool is_ready_locked(const entry *e)
{
    for (size_t i = 0; e && i < e->n_versions; i++) {
        if (e->versions[i].state == NRD_MODEL_READY) {
            return true;
        }
    }
    return false;
}

static bool is_ready(nrd_repo *r, const char *space, const char *name)
{
    pthread_mutex_lock(&r->mu);
    bool ready = is_ready_locked(find_locked(r, space, name));
    pthread_mutex_unlock(&r->mu);
    return ready;
}

/* "Invalid argument: text", the form in which reasons are shown. */
static char *with_code(const nrd_error *err)
{
    return nrd_xasprintf("%s: %s",
                         TRITONSERVER_ErrorCodeString((TRITONSERVER_Error *)(uintptr_t)err),
                         nrd_error_message(err));
}

static void free_steps(entry *e)
{
    for (size_t i = 0; i < e->n_steps; i++) {
        free(e->steps[i]);
        free(e->step_spaces[i]);
    }
    free(e->steps);
    free(e->step_spaces);
    e->steps = e->step_spaces = NULL;
    e->n_steps = 0;
}

nrd_error *nrd_repo_new(nrd_repo **out, nrd_server *s)
{
    nrd_repo *r = nrd_xcalloc(1, sizeof *r);
    r->server = s;
    pthread_mutex_init(&r->mu, NULL);
    pthread_mutex_init(&r->order_mu, NULL);
    pthread_cond_init(&r->order_cond, NULL);
    pthread_cond_init(&r->gone, NULL);
    for (size_t i = 0; i < s->opt.repositories.n; i++) {
        nrd_strings_add(&r->paths, s->opt.repositories.items[i]);
    }
    *out = r;
    return NULL;
}

void nrd_repo_free(nrd_repo *r)
{
    if (!r) {
        return;
    }
    for (size_t i = 0; i < r->n_entries; i++) {
        entry *e = r->entries[i];
        for (size_t k = 0; k < e->n_versions; k++) {
            free(e->versions[k].reason);
        }
        free_steps(e);
        free(e->versions);
        free(e->error);
        free(e->scratch);
        free(e->dir);
        free(e->space);
        free(e->name);
        free(e);
    }
    free(r->entries);
    for (mapped *m = r->mapping, *next; m; m = next) {
        next = m->next;
        free(m->name);
        free(m->dir);
        free(m->repository);
        free(m);
    }
    nrd_strings_fini(&r->paths);
    pthread_mutex_destroy(&r->mu);
    pthread_cond_destroy(&r->order_cond);
    pthread_cond_destroy(&r->gone);
    pthread_mutex_destroy(&r->order_mu);
    free(r);
}

/* ---- unloading ---- */

/* Called by the reaper when a model that was serving is gone. */
static void model_gone(void *user, nrd_model *m)
{
    nrd_repo *r = user;

    NRD_LOG_INFO("successfully unloaded '%s' version %" PRId64, m->name, m->version);
    pthread_mutex_lock(&r->mu);
    entry *e = find_locked(r, m->space, m->name);
    version *v = e ? version_locked(e, m->version, false) : NULL;
    if (v && v->leaving == m) {
        v->leaving = NULL;
        pthread_cond_broadcast(&r->gone);
        if (v->state == NRD_MODEL_UNLOADING) {
            set_state_locked(v, NRD_MODEL_UNAVAILABLE, v->reason ? v->reason : "unloaded");
        }
    }
    pthread_mutex_unlock(&r->mu);
}

/* Takes every version that `keep` does not name out of service. `failed`: because what it needs did. */
static void retire(nrd_repo *r, entry *e, const int64_t *keep, size_t n_keep, const char *reason,
                   bool failed)
{
    nrd_model **gone = NULL;
    size_t n = 0;

    pthread_mutex_lock(&r->mu);
    gone = nrd_xcalloc(e->n_versions + 1, sizeof *gone);
    for (size_t i = 0; i < e->n_versions; i++) {
        version *v = &e->versions[i];
        bool kept = false;
        for (size_t k = 0; k < n_keep; k++) {
            kept = kept || keep[k] == v->number;
        }
        if (!kept && v->model) {
            gone[n++] = v->model;
            v->leaving = v->model;
            v->model = NULL;
            v->failed = failed;
            set_state_locked(v, NRD_MODEL_UNLOADING, reason);
        } else if (!kept && (reason || v->failed) && v->state == NRD_MODEL_UNAVAILABLE) {
            v->failed = failed;
            set_state_locked(v, NRD_MODEL_UNAVAILABLE, reason ? reason : "unloaded");
        }
    }
    pthread_mutex_unlock(&r->mu);
    for (size_t i = 0; i < n; i++) {
        nrd_model_retire(gone[i]);
    }
    free(gone);
}

/* ---- loading ---- */

static nrd_error *load_entry(nrd_repo *r, entry *e, const char *dir, const char *override_json);

/* A folder of a repository that may be a model. */
typedef struct place {
    char *name, *dir, *space;
} place;

typedef struct places {
    place *items;
    size_t n;
} places;

static void places_add(nrd_repo *r, places *list, const char *name, char *dir, const char *repository)
{
    list->items = nrd_xrealloc(list->items, (list->n + 1) * sizeof *list->items);
    list->items[list->n++] =
        (place){.name = nrd_xstrdup(name),
                .dir = dir, /* taken */
                .space = nrd_xstrdup(r->server->opt.namespacing ? repository : "")};
}

static void places_fini(places *list)
{
    for (size_t i = 0; i < list->n; i++) {
        free(list->items[i].name);
        free(list->items[i].dir);
        free(list->items[i].space);
    }
    free(list->items);
    *list = (places){0};
}

/* Where models of that name lie: one place in each repository with namespacing; without it one at
 * most, since a name that is not unique means none. */
static places find_places(nrd_repo *r, const char *name)
{
    places found = {0};

    for (mapped *m = r->mapping; m; m = m->next) {
        if (strcmp(m->name, name) == 0) {
            places_add(r, &found, name, nrd_xstrdup(m->dir), m->repository);
        }
    }
    for (size_t i = 0; i < r->paths.n; i++) {
        char *dir = nrd_path_join(r->paths.items[i], name);
        if (nrd_path_is_dir(dir)) {
            places_add(r, &found, name, dir, r->paths.items[i]);
        } else {
            free(dir);
        }
    }
    if (found.n > 1 && !r->server->opt.namespacing) {
        NRD_LOG_ERROR("failed to poll model '%s': not unique across all model repositories", name);
        places_fini(&found);
    }
    return found;
}

/* What a step of an ensemble in namespace `space` means: the model beside it, else the only one.
 * NULL: there is none, or several. */
static const place *pick(const places *found, const char *space)
{
    for (size_t i = 0; i < found->n; i++) {
        if (strcmp(found->items[i].space, space) == 0) {
            return &found->items[i];
        }
    }
    return found->n == 1 ? &found->items[0] : NULL;
}

/* Waits until nobody loads the model; order_mu is held. False: whoever does waits, perhaps through
 * others, for this thread. */
static bool wait_idle(nrd_repo *r, entry *e)
{
    while (e->loader) {
        for (const loader *l = e->loader; l; l = l->waits_for ? l->waits_for->loader : NULL) {
            if (l == &this_thread) {
                return false;
            }
        }
        this_thread.waits_for = e;
        pthread_cond_wait(&r->order_cond, &r->order_mu);
        this_thread.waits_for = NULL;
    }
    return true;
}

static entry *find_or_add(nrd_repo *r, const char *space, const char *name)
{
    pthread_mutex_lock(&r->mu);
    entry *e = find_or_add_locked(r, space, name);
    pthread_mutex_unlock(&r->mu);
    return e;
}

static void remember_steps(nrd_repo *r, entry *e, const nrd_config *cfg)
{
    pthread_mutex_lock(&r->mu);
    free_steps(e);
    if (nrd_config_is_ensemble(cfg)) {
        const Inference__ModelEnsembling *en = cfg->ensemble_scheduling;
        e->steps = nrd_xcalloc(en->n_step + 1, sizeof *e->steps);
        e->step_spaces = nrd_xcalloc(en->n_step + 1, sizeof *e->step_spaces);
        for (size_t i = 0; i < en->n_step; i++) {
            e->steps[e->n_steps] = nrd_xstrdup(en->step[i]->model_name);
            e->step_spaces[e->n_steps++] = nrd_xstrdup(e->space);
        }
    }
    pthread_mutex_unlock(&r->mu);
}

/* Loads the model that a step names, if it is not there yet. */
static nrd_error *load_step(nrd_repo *r, const entry *e, const char *step, const char *space,
                            const char *dir)
{
    entry *other;

    if (is_ready(r, space, step)) {
        return NULL;
    }
    other = find_or_add(r, space, step);
    if (!wait_idle(r, other)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "circular dependency between ensembles: %s -> %s",
                          e->name, step);
    }
    nrd_error *err = is_ready(r, space, step) ? NULL : load_entry(r, other, dir, NULL);
    if (err) {
        nrd_error *full = nrd_errorf(NRD_ERR_INVALID_ARG,
                                     "ensemble '%s' depends on '%s' which has no loaded version. "
                                     "Model '%s' loading failed with error: %s",
                                     e->name, step, step, nrd_error_message(err));
        nrd_error_free(err);
        return full;
    }
    return NULL;
}

static void set_step_space(nrd_repo *r, entry *e, size_t i, const char *space, nrd_config *cfg)
{
    Inference__ModelEnsembling__Step *step = cfg->ensemble_scheduling->step[i];

    pthread_mutex_lock(&r->mu);
    free(e->step_spaces[i]);
    e->step_spaces[i] = nrd_xstrdup(space);
    pthread_mutex_unlock(&r->mu);
    if (step->model_namespace != protobuf_c_empty_string) {
        free(step->model_namespace);
    }
    step->model_namespace = space[0] ? nrd_xstrdup(space) : (char *)protobuf_c_empty_string;
}

/* Finds and loads what an ensemble names; writes the namespaces into its configuration. */
static nrd_error *load_steps(nrd_repo *r, entry *e, nrd_config *cfg)
{
    for (size_t i = 0; i < e->n_steps; i++) {
        const char *step = e->steps[i];
        nrd_error *err = NULL;
        if (!r->server->opt.namespacing && is_ready(r, "", step)) {
            continue; /* it may have come with a load order and lie in no repository */
        }
        places found = find_places(r, step);
        const place *p = pick(&found, e->space);
        if (!p) {
            err = nrd_errorf(NRD_ERR_INVALID_ARG,
                             "ensemble %s contains models that are not available or ambiguous: %s",
                             e->name, step);
        } else {
            set_step_space(r, e, i, p->space, cfg);
            err = load_step(r, e, step, p->space, p->dir);
        }
        places_fini(&found);
        if (err) {
            return err;
        }
    }
    return NULL;
}

static nrd_error *read_config(nrd_repo *r, const char *name, const char *dir,
                              const char *override_json, nrd_config **out, nrd_agents **out_agents)
{
    nrd_config *cfg = NULL;
    nrd_error *err = NULL;

    *out = NULL;
    *out_agents = NULL;
    NRD_TRY(nrd_config_load(&cfg, r->server, name, dir, override_json));
    NRD_TRY_GOTO(nrd_agents_load(out_agents, r->server, cfg, dir), err, fail);
    dir = *out_agents ? nrd_agents_dir(*out_agents) : dir;
    NRD_TRY_GOTO(nrd_config_autofill(r->server, cfg, dir), err, fail);
    NRD_TRY_GOTO(nrd_config_normalize(cfg), err, fail);
    NRD_TRY_GOTO(nrd_config_validate(cfg), err, fail);
    *out = cfg;
    return NULL;

fail:
    nrd_agents_unref(*out_agents);
    *out_agents = NULL;
    inference__model_config__free_unpacked(cfg, NULL);
    return err;
}

static nrd_error *load_version(nrd_repo *r, entry *e, int64_t number, const char *dir,
                               const nrd_config *cfg, nrd_model **out)
{
    nrd_error *err = NULL;

    for (uint32_t attempt = 0;; attempt++) {
        size_t n = inference__model_config__get_packed_size(cfg);
        uint8_t *packed = nrd_xmalloc(n + 1);
        inference__model_config__pack(cfg, packed);
        nrd_config *copy = inference__model_config__unpack(NULL, n, packed);
        free(packed);
        pthread_mutex_unlock(&r->order_mu); /* others may load other models meanwhile */
        err = nrd_model_new(out, r->server, e->space, e->name, number, dir, copy);
        pthread_mutex_lock(&r->order_mu);
        if (!err || attempt >= r->server->opt.load_retries) {
            break;
        }
        NRD_LOG_WARN("loading '%s' version %" PRId64 " again after: %s", e->name, number,
                     nrd_error_message(err));
        nrd_error_free(err);
    }
    if (!err) {
        (*out)->on_destroy = model_gone;
        (*out)->on_destroy_user = r;
    }
    return err;
}

/* A version that failed first gives back its memory, of which a GPU has too little for two. Its
 * requests have been answered, so that this takes moments; the limit is for a device that hangs. */
static void wait_failed_gone(nrd_repo *r, entry *e)
{
    enum { MAX_SECONDS = 30 };
    struct timespec until;
    bool left = true;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += MAX_SECONDS;
    pthread_mutex_unlock(&r->order_mu); /* the reaper takes it */
    pthread_mutex_lock(&r->mu);
    while (left) {
        left = false;
        for (size_t i = 0; i < e->n_versions; i++) {
            left = left || (e->versions[i].failed && e->versions[i].leaving);
        }
        left = left && pthread_cond_timedwait(&r->gone, &r->mu, &until) == 0;
    }
    pthread_mutex_unlock(&r->mu);
    pthread_mutex_lock(&r->order_mu);
}

/* All versions of the policy or none; on error the versions that served before still do. */
static nrd_error *load_versions(nrd_repo *r, entry *e, const char *dir, const nrd_config *cfg,
                                nrd_agents *agents)
{
    int64_t *numbers = NULL;
    size_t n = 0, done = 0;
    nrd_model **fresh = NULL;
    nrd_error *err = NULL;

    NRD_TRY(nrd_scan_versions(&numbers, &n, e->name, dir, cfg->version_policy));
    if (n == 0) {
        free(numbers);
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "at least one version must be available under the version policy of "
                          "model '%s'",
                          e->name);
    }
    wait_failed_gone(r, e);
    fresh = nrd_xcalloc(n, sizeof *fresh);
    for (size_t i = 0; i < n; i++) {
        pthread_mutex_lock(&r->mu);
        version *v = version_locked(e, numbers[i], true);
        if (!v->model) {
            set_state_locked(v, NRD_MODEL_LOADING, NULL);
        }
        pthread_mutex_unlock(&r->mu);
        NRD_LOG_INFO("loading: %s:%" PRId64, e->name, numbers[i]);
    }
    for (done = 0; done < n && !err; done++) {
        err = load_version(r, e, numbers[done], dir, cfg, &fresh[done]);
        if (err) {
            char *reason = with_code(err);
            NRD_LOG_ERROR("failed to load '%s' version %" PRId64 ": %s", e->name, numbers[done],
                          reason);
            pthread_mutex_lock(&r->mu);
            for (size_t i = 0; i < n; i++) {
                version *v = version_locked(e, numbers[i], true);
                if (!v->model) {
                    set_state_locked(v, NRD_MODEL_UNAVAILABLE, i == done ? reason : "unloaded");
                }
            }
            pthread_mutex_unlock(&r->mu);
            nrd_error *full = nrd_errorf(nrd_error_get_code(err),
                                         "version %" PRId64 " is at UNAVAILABLE state: %s;\n",
                                         numbers[done], reason);
            nrd_error_free(err);
            err = full;
            free(reason);
        }
    }
    for (size_t i = 0; i < n; i++) {
        if (fresh[i]) {
            fresh[i]->agents = nrd_agents_ref(agents);
        }
    }
    err = err ? err : nrd_agents_loaded(agents);
    if (err) {
        for (size_t i = 0; i < n; i++) {
            if (fresh[i]) {
                fresh[i]->on_destroy = NULL; /* never served: no note in the table */
                nrd_model_unref(fresh[i]);
            }
        }
    } else {
        pthread_mutex_lock(&r->mu);
        for (size_t i = 0; i < n; i++) {
            version *v = version_locked(e, numbers[i], true);
            nrd_model *old = v->model;
            v->model = fresh[i];
            set_state_locked(v, NRD_MODEL_READY, NULL);
            fresh[i] = old; /* given back below, outside the lock */
        }
        pthread_mutex_unlock(&r->mu);
        for (size_t i = 0; i < n; i++) {
            if (fresh[i]) {
                nrd_model_retire(fresh[i]);
            }
        }
        retire(r, e, numbers, n, NULL, false);
        NRD_LOG_INFO("successfully loaded '%s'", e->name);
    }
    free(fresh);
    free(numbers);
    return err;
}

static nrd_error *load_entry(nrd_repo *r, entry *e, const char *dir, const char *override_json)
{
    nrd_config *cfg = NULL;
    nrd_agents *agents = NULL;
    nrd_error *err;
    const char *name = e->name; /* entries stay as long as the repository */

    if (!wait_idle(r, e)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "model '%s' is being loaded by the one that asks for it", name);
    }
    if (r->closing) {
        return nrd_errorf(NRD_ERR_UNAVAILABLE, "Server is stopping, no model is loaded any more");
    }
    e->loader = &this_thread;
    pthread_mutex_lock(&r->mu);
    e->wanted = true;
    if (e->dir != dir) {
        free(e->dir);
        e->dir = nrd_xstrdup(dir);
    }
    e->signature = nrd_scan_signature(dir);
    pthread_mutex_unlock(&r->mu);
    err = read_config(r, name, dir, override_json, &cfg, &agents);
    if (!err) {
        remember_steps(r, e, cfg);
        err = load_steps(r, e, cfg);
    }
    bool polled = err != NULL; /* failed before any version was tried */
    if (!err) {
        err = load_versions(r, e, agents ? nrd_agents_dir(agents) : dir, cfg, agents);
    }
    nrd_agents_unref(agents); /* the versions have shares */
    if (cfg) {
        inference__model_config__free_unpacked(cfg, NULL);
    }
    e->loader = NULL;
    pthread_cond_broadcast(&r->order_cond);
    pthread_mutex_lock(&r->mu);
    free(e->error);
    e->error = err ? with_code(err) : NULL;
    pthread_mutex_unlock(&r->mu);
    if (polled) {
        NRD_LOG_ERROR("Poll failed for model directory '%s': %s", name, nrd_error_message(err));
    }
    return err;
}

/* Whether an ensemble uses the model, or would if it were loaded now. Both locks are held. */
static bool concerns_locked(nrd_repo *r, const entry *user, const entry *e)
{
    for (size_t k = 0; k < user->n_steps; k++) {
        if (strcmp(user->steps[k], e->name) != 0) {
            continue;
        }
        if (strcmp(user->step_spaces[k], e->space) == 0) {
            return true;
        }
        places found = find_places(r, e->name);
        const place *p = pick(&found, user->space);
        const bool would = p && strcmp(p->space, e->space) == 0;
        places_fini(&found);
        return would;
    }
    return false;
}

/* Whether what the ensemble means by `name` is ready. */
static bool is_usable(nrd_repo *r, const entry *user, const char *name)
{
    if (!r->server->opt.namespacing) {
        return is_ready(r, "", name);
    }
    places found = find_places(r, name);
    const place *p = pick(&found, user->space);
    const bool usable = p && is_ready(r, p->space, name);
    places_fini(&found);
    return usable;
}

/* Why a version of it failed; NULL: none did. */
static const char *failure_locked(const entry *e)
{
    for (size_t i = e->n_versions; i-- > 0;) {
        if (e->versions[i].failed && e->versions[i].reason) {
            return e->versions[i].reason;
        }
    }
    return NULL;
}

/* After `e` came or went: ensembles that use it follow. */
static void follow(nrd_repo *r, const entry *e, int depth)
{
    enum { MAX_NESTING = 32 };
    entry **users = NULL;
    size_t n = 0;

    if (depth > MAX_NESTING) {
        return;
    }
    pthread_mutex_lock(&r->mu);
    users = nrd_xcalloc(r->n_entries + 1, sizeof(entry *));
    for (size_t i = 0; i < r->n_entries; i++) {
        if (r->entries[i]->wanted && concerns_locked(r, r->entries[i], e)) {
            users[n++] = r->entries[i];
        }
    }
    pthread_mutex_unlock(&r->mu);
    for (size_t i = 0; i < n; i++) {
        bool usable = is_usable(r, users[i], e->name);
        pthread_mutex_lock(&r->mu);
        bool busy = users[i]->loader != NULL;
        char *dir = users[i]->dir ? nrd_xstrdup(users[i]->dir) : NULL;
        pthread_mutex_unlock(&r->mu);
        if (!busy && usable && dir) {
            nrd_error *err = load_entry(r, users[i], dir, NULL); /* checks the shapes again */
            if (err) {
                NRD_LOG_ERROR("failed to load '%s': %s", users[i]->name, nrd_error_message(err));
                nrd_error_free(err);
            }
            follow(r, users[i], depth + 1);
        } else if (!busy && !usable && is_ready(r, users[i]->space, users[i]->name)) {
            pthread_mutex_lock(&r->mu);
            const char *why = failure_locked(e);
            const bool failed = why != NULL;
            char *reason =
                failed ? nrd_xasprintf("ensemble '%s' depends on '%s', which failed: %s",
                                       users[i]->name, e->name, why)
                       : nrd_xasprintf("Invalid argument: ensemble '%s' depends on '%s' which has "
                                       "no loaded version.",
                                       users[i]->name, e->name);
            pthread_mutex_unlock(&r->mu);
            retire(r, users[i], NULL, 0, reason, failed);
            free(reason);
            follow(r, users[i], depth + 1);
        }
        free(dir);
    }
    free(users);
}

/* ---- failing ---- */

void nrd_repo_fail(nrd_repo *r, nrd_model *m, const char *reason)
{
    pthread_mutex_lock(&r->mu);
    entry *e = find_locked(r, m->space, m->name);
    version *v = e ? version_locked(e, m->version, false) : NULL;
    const bool served = v && v->model == m;
    if (served) {
        v->leaving = m;
        v->model = NULL;
        v->failed = true;
        set_state_locked(v, NRD_MODEL_UNAVAILABLE, reason);
    }
    pthread_mutex_unlock(&r->mu);
    if (served) {
        NRD_LOG_ERROR("model '%s' version %" PRId64 " failed: %s", m->name, m->version, reason);
        m->failed = true;
        bool queued = nrd_queue_push(r->server->dead_models, m);
        NRD_ASSERT(queued, "the reaper outlives every model");
    }
}

void nrd_repo_bury(nrd_repo *r, nrd_model *m)
{
    pthread_mutex_lock(&r->order_mu);
    pthread_mutex_lock(&r->mu);
    const entry *e = find_locked(r, m->space, m->name);
    pthread_mutex_unlock(&r->mu);
    if (e && !r->closing) {
        follow(r, e, 0);
    }
    pthread_mutex_unlock(&r->order_mu);
    nrd_model_retire(m);
}

/* ---- scanning all repositories ---- */

/* Finds what is there; without namespacing a name must be unique, else none of its folders counts.
 * *out_unique tells whether all are. */
static nrd_error *scan_all(nrd_repo *r, places *out, bool *out_unique)
{
    *out_unique = true;
    for (mapped *m = r->mapping; m; m = m->next) {
        places_add(r, out, m->name, nrd_xstrdup(m->dir), m->repository);
    }
    for (size_t i = 0; i < r->paths.n; i++) {
        char **names = NULL;
        size_t n = 0;
        NRD_TRY(nrd_scan_models(&names, &n, r->paths.items[i]));
        for (size_t k = 0; k < n; k++) {
            places_add(r, out, names[k], nrd_path_join(r->paths.items[i], names[k]),
                       r->paths.items[i]);
        }
        nrd_names_free(names, n);
    }
    bool *twice = nrd_xcalloc(out->n + 1, sizeof *twice);
    for (size_t i = 0; i < out->n; i++) {
        for (size_t k = 0; k < i; k++) {
            if (strcmp(out->items[i].name, out->items[k].name) == 0 &&
                strcmp(out->items[i].space, out->items[k].space) == 0) {
                twice[i] = twice[k] = true;
            }
        }
    }
    size_t kept = 0;
    for (size_t i = 0; i < out->n; i++) {
        place p = out->items[i];
        if (!twice[i]) {
            out->items[kept++] = p;
            continue;
        }
        NRD_LOG_ERROR("failed to poll model '%s': not unique across all model repositories",
                      p.name);
        *out_unique = false;
        free(p.name);
        free(p.dir);
        free(p.space);
    }
    out->n = kept;
    free(twice);
    return NULL;
}

static bool load_place(nrd_repo *r, const place *p)
{
    nrd_error *err;
    entry *e = find_or_add(r, p->space, p->name);

    (void)wait_idle(r, e); /* at the start nobody waits for this thread */
    pthread_mutex_lock(&r->mu);
    bool done = is_ready_locked(e) || e->error; /* as part of an ensemble */
    bool failed = e->error && !is_ready_locked(e);
    e->by_name = true;
    pthread_mutex_unlock(&r->mu);
    if (done) {
        return !failed;
    }
    err = load_entry(r, e, p->dir, NULL);
    if (err) {
        nrd_error_free(err); /* logged, and kept with the entry */
        return false;
    }
    return true;
}

static nrd_error *check_path(const char *path)
{
    static const struct {
        const char *prefix, *store;
    } remote[] = {{"s3://", "Amazon S3"}, {"gs://", "Google Cloud Storage"}, {"as://", "Azure"}};

    for (size_t i = 0; i < sizeof remote / sizeof remote[0]; i++) {
        if (nrd_str_has_prefix(path, remote[i].prefix)) {
            return nrd_errorf(NRD_ERR_UNSUPPORTED,
                              "model repository '%s': repositories in %s are not supported by this "
                              "server, copy it to a local folder",
                              path, remote[i].store);
        }
    }
    return nrd_path_is_dir(path) ? NULL
                                 : nrd_errorf(NRD_ERR_INVALID_ARG,
                                              "repository path is not a valid directory: %s", path);
}

typedef struct startup {
    nrd_repo *repo;
    const places *list;
    size_t next; /* guarded by order_mu, as the rest */
    bool ok;
} startup;

static void *load_some(void *arg)
{
    startup *st = arg;

    pthread_mutex_lock(&st->repo->order_mu);
    while (st->next < st->list->n) {
        const place *p = &st->list->items[st->next++];
        st->ok = load_place(st->repo, p) && st->ok;
    }
    pthread_mutex_unlock(&st->repo->order_mu);
    return NULL;
}

/* Loads the models with as many threads as the options say. */
static bool load_all(nrd_repo *r, const places *list)
{
    startup st = {.repo = r, .list = list, .ok = true};
    const size_t wish = r->server->opt.load_threads ? r->server->opt.load_threads : 1;
    const size_t n = wish < list->n ? wish : list->n;
    pthread_t *threads = nrd_xcalloc(n + 1, sizeof *threads);
    size_t started = 0;

    while (started + 1 < n && pthread_create(&threads[started], NULL, load_some, &st) == 0) {
        pthread_setname_np(threads[started], "load");
        started++;
    }
    load_some(&st); /* this thread is one of them */
    for (size_t i = 0; i < started; i++) {
        pthread_join(threads[i], NULL);
    }
    free(threads);
    return st.ok;
}

nrd_error *nrd_repo_load_startup(nrd_repo *r)
{
    const nrd_options *opt = &r->server->opt;
    places list = {0};
    bool all = opt->control_mode != TRITONSERVER_MODEL_CONTROL_EXPLICIT, ok = true;
    nrd_error *err = NULL;

    for (size_t i = 0; i < opt->startup_models.n; i++) {
        if (strcmp(opt->startup_models.items[i], "*") == 0) {
            if (opt->startup_models.n > 1) {
                return nrd_errorf(NRD_ERR_INVALID_ARG,
                                  "Wildcard model name '*' must be the ONLY startup model if "
                                  "specified at all.");
            }
            all = true;
        }
    }
    pthread_mutex_lock(&r->order_mu);
    for (size_t i = 0; i < r->paths.n && !err; i++) {
        err = check_path(r->paths.items[i]);
    }
    if (!err && all) {
        err = scan_all(r, &list, &ok);
    }
    for (size_t i = 0; i < opt->startup_models.n && !err && !all; i++) {
        const char *name = opt->startup_models.items[i];
        places found = find_places(r, name);
        if (found.n == 0) {
            NRD_LOG_ERROR("failed to load model '%s': not found in any model repository", name);
            (void)find_or_add(r, "", name); /* shown in the table of models */
            ok = false;
        }
        for (size_t k = 0; k < found.n; k++) {
            places_add(r, &list, name, nrd_xstrdup(found.items[k].dir), found.items[k].space);
        }
        places_fini(&found);
    }
    pthread_mutex_unlock(&r->order_mu);
    if (!err) {
        ok = load_all(r, &list) && ok;
    }
    places_fini(&list);
    if (!err && !ok) {
        err = nrd_errorf(NRD_ERR_INTERNAL, "failed to load all models");
    }
    return err;
}

nrd_error *nrd_repo_poll(nrd_repo *r)
{
    places list = {0};
    nrd_error *err;
    bool unique;

    if (r->server->opt.control_mode != TRITONSERVER_MODEL_CONTROL_POLL) {
        return nrd_errorf(NRD_ERR_UNAVAILABLE, "polling is disabled");
    }
    pthread_mutex_lock(&r->order_mu);
    err = scan_all(r, &list, &unique);
    for (size_t i = 0; i < list.n && !err; i++) {
        const place *p = &list.items[i];
        entry *e = find_or_add(r, p->space, p->name);
        pthread_mutex_lock(&r->mu);
        bool same = e->wanted && e->signature == nrd_scan_signature(p->dir);
        pthread_mutex_unlock(&r->mu);
        if (!same) {
            nrd_error *load_err = load_entry(r, e, p->dir, NULL);
            if (load_err) {
                NRD_LOG_ERROR("failed to load model '%s': %s", p->name,
                              nrd_error_message(load_err));
                nrd_error_free(load_err);
            }
            follow(r, e, 0);
        }
    }
    for (size_t i = 0; !err && i < r->n_entries; i++) { /* only orders change the list */
        entry *e = r->entries[i];
        bool there = false;
        for (size_t k = 0; k < list.n; k++) {
            there = there || (strcmp(list.items[k].name, e->name) == 0 &&
                              strcmp(list.items[k].space, e->space) == 0);
        }
        if (!there && e->wanted) {
            e->wanted = false;
            retire(r, e, NULL, 0, NULL, false);
            follow(r, e, 0);
        }
    }
    pthread_mutex_unlock(&r->order_mu);
    places_fini(&list);
    return err;
}

/* ---- explicit control ---- */

static nrd_error *check_explicit(nrd_repo *r)
{
    if (r->server->opt.control_mode != TRITONSERVER_MODEL_CONTROL_EXPLICIT) {
        return nrd_errorf(NRD_ERR_UNAVAILABLE,
                          "explicit model load / unload is not allowed if polling is enabled");
    }
    return NULL;
}

bool nrd_repo_has_failed(nrd_repo *r, const char *name)
{
    bool failed = false;

    pthread_mutex_lock(&r->mu);
    for (size_t i = 0; i < r->n_entries; i++) {
        const entry *e = r->entries[i];
        failed = failed || ((!name || strcmp(e->name, name) == 0) && failure_locked(e));
    }
    pthread_mutex_unlock(&r->mu);
    return failed;
}

static nrd_error *check_name(const char *name)
{
    if (!name || name[0] == '\0') {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "Model name cannot be empty. Please enter a valid name to deploy.");
    }
    if (strcmp(name, "..") == 0 || strcmp(name, ".") == 0 || strchr(name, '/')) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "invalid model name '%s', model name must not contain path traversal "
                          "characters",
                          name);
    }
    return NULL;
}

/* A relative path without ".." below the model's folder, such as "1/model.py". */
static bool is_safe_path(const char *p)
{
    if (*p == '\0' || *p == '/') {
        return false;
    }
    while (p) {
        if (strncmp(p, "..", 2) == 0 && (p[2] == '/' || p[2] == '\0')) {
            return false;
        }
        p = strchr(p, '/');
        p = p ? p + 1 : NULL;
    }
    return true;
}

/* Puts the files given with a load order into a fresh folder, which takes the model's place. */
static nrd_error *write_files(char **out_dir, const nrd_param *const *params, size_t n)
{
    char tmpl[] = "/tmp/folderXXXXXX";
    nrd_error *err = NULL;

    if (!mkdtemp(tmpl)) {
        return nrd_errorf(NRD_ERR_INTERNAL, "cannot make a folder for overriding model files");
    }
    for (size_t i = 0; i < n && !err; i++) {
        const nrd_param *p = params[i];
        if (!nrd_str_has_prefix(p->name, "file:")) {
            continue;
        }
        const char *rel = p->name + 5 + strspn(p->name + 5, "/"); /* of the model's folder */
        if (p->type != TRITONSERVER_PARAMETER_BYTES) {
            err = nrd_errorf(NRD_ERR_INVALID_ARG,
                             "File parameter '%s' must have bytes type for its value", p->name);
        } else if (!is_safe_path(rel)) {
            err = nrd_errorf(NRD_ERR_INVALID_ARG,
                             "Invalid file parameter '%s', the path must stay within model "
                             "directory.",
                             p->name);
        } else {
            char *path = nrd_path_join(tmpl, rel), *dir = nrd_path_dir(path);
            err = nrd_mkdirs(dir);
            if (!err) {
                err = nrd_file_write(path, p->bytes, p->n_bytes);
            }
            free(dir);
            free(path);
        }
    }
    if (err) {
        nrd_remove_tree(tmpl);
        return err;
    }
    *out_dir = nrd_xstrdup(tmpl);
    return NULL;
}

static void drop_scratch_locked(entry *e)
{
    if (e->scratch) {
        nrd_remove_tree(e->scratch);
        free(e->scratch);
        e->scratch = NULL;
    }
}

/* One model of a load order. `scratch`: the folder made for it, or NULL. */
static nrd_error *load_ordered(nrd_repo *r, const place *p, const char *json, const char *scratch)
{
    entry *e = find_or_add(r, p->space, p->name);
    nrd_error *err = load_entry(r, e, p->dir, json);

    pthread_mutex_lock(&r->mu);
    e->by_name = true;
    if (scratch && !err) {
        drop_scratch_locked(e);
        e->scratch = nrd_xstrdup(scratch);
    }
    pthread_mutex_unlock(&r->mu);
    if (err) {
        nrd_error *full = nrd_errorf(NRD_ERR_INVALID_ARG, "load failed for model '%s': %s", p->name,
                                     nrd_error_message(err));
        nrd_error_free(err);
        err = full;
        if (scratch) {
            nrd_remove_tree(scratch);
        }
    }
    follow(r, e, 0);
    return err;
}

nrd_error *nrd_repo_load(nrd_repo *r, const char *name, const nrd_param *const *params,
                         size_t n_params)
{
    const char *json = NULL;
    bool has_files = false;
    nrd_error *err = NULL;

    if (!nrd_repo_has_failed(r, name)) { /* what failed may come back in every mode */
        NRD_TRY(check_explicit(r));
    }
    NRD_TRY(check_name(name));
    for (size_t i = 0; i < n_params; i++) {
        if (strcmp(params[i]->name, "config") == 0) {
            if (params[i]->type != TRITONSERVER_PARAMETER_STRING) {
                return nrd_errorf(NRD_ERR_INVALID_ARG,
                                  "Config parameter 'config' must have string type for its value");
            }
            json = params[i]->str;
        } else if (nrd_str_has_prefix(params[i]->name, "file:")) {
            has_files = true;
        } else {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "Unrecognized load parameter '%s'",
                              params[i]->name);
        }
    }
    if (has_files && !json) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "Load parameter 'config' must be specified for model file override");
    }
    pthread_mutex_lock(&r->order_mu);
    places found = {0};
    char *scratch = NULL;
    if (has_files) {
        err = write_files(&scratch, params, n_params);
        if (!err) {
            places_add(r, &found, name, nrd_xstrdup(scratch), "");
        }
    } else {
        found = find_places(r, name);
        if (found.n == 0) {
            err = nrd_errorf(NRD_ERR_INTERNAL,
                             "failed to load '%s', failed to poll from model repository", name);
        }
    }
    for (size_t i = 0; i < found.n; i++) { /* several: with namespacing all of that name */
        nrd_error *one = load_ordered(r, &found.items[i], json, scratch);
        if (err) {
            nrd_error_free(one);
        } else {
            err = one;
        }
    }
    pthread_mutex_unlock(&r->order_mu);
    places_fini(&found);
    free(scratch);
    return err;
}

/* Steps of an ensemble go with it, except those that were loaded under their own names. */
static void unload_entry(nrd_repo *r, entry *e, bool dependents, bool as_step)
{
    nrd_strings steps = {0}, spaces = {0};

    if (!wait_idle(r, e)) {
        NRD_LOG_ERROR("model '%s' is being loaded by the one that unloads it", e->name);
        return;
    }
    pthread_mutex_lock(&r->mu);
    if (as_step && e->by_name) {
        pthread_mutex_unlock(&r->mu);
        return;
    }
    for (size_t i = 0; dependents && i < e->n_steps; i++) {
        nrd_strings_add(&steps, e->steps[i]);
        nrd_strings_add(&spaces, e->step_spaces[i]);
    }
    e->wanted = false;
    e->by_name = false;
    drop_scratch_locked(e);
    pthread_mutex_unlock(&r->mu);
    retire(r, e, NULL, 0, NULL, false);
    follow(r, e, 0);
    for (size_t i = 0; i < steps.n; i++) {
        pthread_mutex_lock(&r->mu);
        entry *step = find_locked(r, spaces.items[i], steps.items[i]);
        pthread_mutex_unlock(&r->mu);
        if (step) {
            unload_entry(r, step, true, true);
        }
    }
    nrd_strings_fini(&steps);
    nrd_strings_fini(&spaces);
}

nrd_error *nrd_repo_unload(nrd_repo *r, const char *name, bool dependents)
{
    NRD_TRY(check_explicit(r));
    NRD_TRY(check_name(name));
    pthread_mutex_lock(&r->order_mu);
    for (size_t i = 0; i < r->n_entries; i++) { /* only orders change the list */
        if (strcmp(r->entries[i]->name, name) == 0) {
            unload_entry(r, r->entries[i], dependents, false);
        }
    }
    pthread_mutex_unlock(&r->order_mu);
    return NULL;
}

void nrd_repo_unload_all(nrd_repo *r)
{
    pthread_mutex_lock(&r->order_mu);
    r->closing = true;
    for (size_t i = 0; i < r->n_entries; i++) {
        (void)wait_idle(r, r->entries[i]); /* this thread loads nothing */
    }
    for (size_t i = 0; i < r->n_entries; i++) {
        pthread_mutex_lock(&r->mu);
        r->entries[i]->wanted = false;
        if (r->entries[i]->scratch) {
            nrd_remove_tree(r->entries[i]->scratch);
        }
        pthread_mutex_unlock(&r->mu);
        retire(r, r->entries[i], NULL, 0, NULL, false);
    }
    pthread_mutex_unlock(&r->order_mu);
}

nrd_error *nrd_repo_register(nrd_repo *r, const char *path, const nrd_param *const *mapping,
                             size_t n)
{
    nrd_error *err = NULL;

    NRD_TRY(check_explicit(r));
    if (strstr(path, "://")) {
        NRD_TRY(check_path(path));
    }
    if (!nrd_path_is_dir(path)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "failed to register '%s', repository not found",
                          path);
    }
    pthread_mutex_lock(&r->order_mu);
    for (size_t i = 0; i < r->paths.n && !err; i++) {
        if (strcmp(r->paths.items[i], path) == 0) {
            err = nrd_errorf(NRD_ERR_ALREADY_EXISTS,
                             "model repository '%s' has already been registered", path);
        }
    }
    for (size_t i = 0; i < n && !err; i++) {
        if (mapping[i]->type != TRITONSERVER_PARAMETER_STRING || check_name(mapping[i]->str)) {
            err = nrd_errorf(NRD_ERR_INVALID_ARG,
                             "failed to register '%s', invalid mapping of folder '%s'", path,
                             mapping[i]->name);
        }
    }
    if (!err) {
        for (size_t i = 0; i < n; i++) {
            mapped *m = nrd_xcalloc(1, sizeof *m);
            m->name = nrd_xstrdup(mapping[i]->str);
            m->dir = nrd_path_join(path, mapping[i]->name);
            m->repository = nrd_xstrdup(path);
            m->next = r->mapping;
            r->mapping = m;
        }
        if (n == 0) { /* with a mapping only the mapped folders are models */
            nrd_strings_add(&r->paths, path);
        }
        NRD_LOG_INFO("Model repository registered: %s", path);
    }
    pthread_mutex_unlock(&r->order_mu);
    return err;
}

nrd_error *nrd_repo_unregister(nrd_repo *r, const char *path)
{
    bool found = false;

    NRD_TRY(check_explicit(r));
    pthread_mutex_lock(&r->order_mu);
    for (size_t i = 0; i < r->paths.n; i++) {
        if (strcmp(r->paths.items[i], path) == 0) {
            free(r->paths.items[i]);
            r->paths.items[i] = r->paths.items[--r->paths.n];
            found = true;
            break;
        }
    }
    for (mapped **p = &r->mapping; *p;) {
        mapped *m = *p;
        if (strcmp(m->repository, path) == 0) {
            *p = m->next;
            free(m->name);
            free(m->dir);
            free(m->repository);
            free(m);
            found = true;
        } else {
            p = &m->next;
        }
    }
    pthread_mutex_unlock(&r->order_mu);
    if (!found) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "failed to unregister '%s', repository not found",
                          path);
    }
    NRD_LOG_INFO("Model repository unregistered: %s", path);
    return NULL;
}

/* ---- asking ---- */

/* The entry that a request means by a name alone. With namespacing those count whose models are
 * wanted, or, if none is, the first that ever had a version. */
static nrd_error *find_public_locked(entry **out, nrd_repo *r, const char *name)
{
    size_t n_wanted = 0;

    *out = NULL;
    for (size_t i = first_locked(r, name);
         i < r->n_entries && strcmp(r->entries[i]->name, name) == 0; i++) {
        entry *e = r->entries[i];
        if (e->n_versions == 0) {
            continue;
        }
        if (!*out || (e->wanted && n_wanted == 0)) {
            *out = e;
        }
        n_wanted += e->wanted;
    }
    if (n_wanted > 1) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "There are %zu identifiers of model '%s' in global map, model namespace "
                          "must be provided to resolve ambiguity.",
                          n_wanted, name);
    }
    return *out ? NULL
                : nrd_errorf(NRD_ERR_NOT_FOUND, "Request for unknown model: '%s' is not found",
                             name);
}

static nrd_error *failed_error(const entry *e, const char *reason)
{
    return nrd_errorf(NRD_ERR_UNAVAILABLE, "model '%s' is not available: %s", e->name, reason);
}

static nrd_error *take_version_locked(nrd_model **out, entry *e, int64_t number)
{
    if (number == -1) {
        for (size_t i = e->n_versions; i-- > 0 && !*out;) {
            *out = e->versions[i].model ? nrd_model_ref(e->versions[i].model) : NULL;
        }
        const char *why = failure_locked(e);
        return *out  ? NULL
               : why ? failed_error(e, why)
                     : nrd_errorf(NRD_ERR_NOT_FOUND,
                                 "Request for unknown model: '%s' has no available versions",
                                 e->name);
    }
    version *v = version_locked(e, number, false);
    if (!v) {
        return nrd_errorf(NRD_ERR_NOT_FOUND,
                          "Request for unknown model: '%s' version %" PRId64 " is not found",
                          e->name, number);
    }
    if (!v->model && v->failed && v->reason) {
        return failed_error(e, v->reason);
    }
    if (!v->model) {
        return nrd_errorf(NRD_ERR_UNAVAILABLE,
                          "Request for unknown model: '%s' version %" PRId64
                          " is not at ready state",
                          e->name, number);
    }
    *out = nrd_model_ref(v->model);
    return NULL;
}

nrd_error *nrd_repo_get(nrd_model **out, nrd_repo *r, const char *name, int64_t number)
{
    entry *e;

    *out = NULL;
    pthread_mutex_lock(&r->mu);
    nrd_error *err = find_public_locked(&e, r, name);
    err = err ? err : take_version_locked(out, e, number);
    pthread_mutex_unlock(&r->mu);
    return err;
}

nrd_error *nrd_repo_get_step(nrd_model **out, nrd_repo *r, const char *space, const char *name,
                             int64_t number)
{
    nrd_error *err;

    *out = NULL;
    pthread_mutex_lock(&r->mu);
    entry *e = find_locked(r, space, name);
    err = e && e->n_versions > 0
              ? take_version_locked(out, e, number)
              : nrd_errorf(NRD_ERR_NOT_FOUND, "Request for unknown model: '%s' is not found", name);
    pthread_mutex_unlock(&r->mu);
    return err;
}

bool nrd_repo_all_ready(nrd_repo *r)
{
    bool ready = true;

    pthread_mutex_lock(&r->mu);
    for (size_t i = 0; i < r->n_entries && ready; i++) {
        const entry *e = r->entries[i];
        ready = !e->wanted || (e->n_versions > 0 && (!e->error || is_ready_locked(e)));
        for (size_t k = 0; e->wanted && k < e->n_versions && ready; k++) {
            const version *v = &e->versions[k];
            ready = v->state == NRD_MODEL_READY ||
                    (v->reason && strcmp(v->reason, "unloaded") == 0) ||
                    v->state == NRD_MODEL_UNLOADING;
        }
    }
    pthread_mutex_unlock(&r->mu);
    return ready;
}

static void put_index_name(nrd_str *out, const char *name)
{
    nrd_str_puts(out, out->len > 1 ? ",{\"name\":" : "{\"name\":");
    nrd_json_put_cstr(out, name);
}

static void put_index_versions(const entry *e, bool ready_only, nrd_str *out)
{
    for (size_t k = 0; k < e->n_versions; k++) {
        const version *v = &e->versions[k];
        if (ready_only && v->state != NRD_MODEL_READY) {
            continue;
        }
        put_index_name(out, e->name);
        nrd_str_printf(out, ",\"version\":\"%" PRId64 "\",\"state\":\"%s\"", v->number,
                       state_names[v->state]);
        if (v->reason) {
            nrd_str_puts(out, ",\"reason\":");
            nrd_json_put_cstr(out, v->reason);
        }
        nrd_str_putc(out, '}');
    }
}

void nrd_repo_index_json(nrd_repo *r, bool ready_only, nrd_str *out)
{
    if (!ready_only) { /* what was never loaded appears with its name alone */
        places list = {0};
        bool unique;
        pthread_mutex_lock(&r->order_mu);
        nrd_error_free(scan_all(r, &list, &unique));
        for (size_t i = 0; i < r->n_entries; i++) {
            r->entries[i]->present = false;
        }
        for (size_t i = 0; i < list.n; i++) {
            find_or_add(r, list.items[i].space, list.items[i].name)->present = true;
        }
        pthread_mutex_unlock(&r->order_mu);
        places_fini(&list);
    }
    nrd_str_putc(out, '[');
    pthread_mutex_lock(&r->mu);
    for (size_t i = 0; i < r->n_entries; i++) { /* also what is no longer in a repository */
        const entry *e = r->entries[i];
        if (e->n_versions > 0) {
            put_index_versions(e, ready_only, out);
        } else if (!ready_only && e->present) {
            put_index_name(out, e->name);
            nrd_str_putc(out, '}');
        }
    }
    pthread_mutex_unlock(&r->mu);
    nrd_str_putc(out, ']');
}

void nrd_repo_print_models(nrd_repo *r)
{
    nrd_strings cells = {0};
    nrd_str table = {0};

    nrd_strings_add(&cells, "Model");
    nrd_strings_add(&cells, "Version");
    nrd_strings_add(&cells, "Status");
    pthread_mutex_lock(&r->mu);
    for (size_t i = 0; i < r->n_entries; i++) {
        const entry *e = r->entries[i];
        if (e->n_versions == 0) {
            char *why = e->error ? nrd_xasprintf("UNAVAILABLE: %s", e->error)
                                 : nrd_xstrdup("Not loaded: No model version was found");
            nrd_strings_add(&cells, e->name);
            nrd_strings_add(&cells, "-");
            nrd_strings_add(&cells, why);
            free(why);
        }
        for (size_t k = 0; k < e->n_versions; k++) {
            const version *v = &e->versions[k];
            char *number = nrd_xasprintf("%" PRId64, v->number);
            char *status = nrd_xasprintf("%s%s%s", state_names[v->state], v->reason ? ": " : "",
                                         v->reason ? v->reason : "");
            nrd_strings_add(&cells, e->name);
            nrd_strings_add(&cells, number);
            nrd_strings_add(&cells, status);
            free(number);
            free(status);
        }
    }
    pthread_mutex_unlock(&r->mu);
    nrd_table_put(&table, (const char *const *)cells.items, cells.n / 3, 3);
    NRD_LOG_INFO("\n%s", nrd_str_cstr(&table));
    nrd_str_fini(&table);
    nrd_strings_fini(&cells);
}

void nrd_repo_each(nrd_repo *r, const char *name_or_null, void (*fn)(void *user, nrd_model *m),
                   void *user)
{
    nrd_model **list = NULL;
    size_t n = 0;

    pthread_mutex_lock(&r->mu);
    for (size_t i = 0; i < r->n_entries; i++) {
        const entry *e = r->entries[i];
        if (name_or_null && strcmp(e->name, name_or_null) != 0) {
            continue;
        }
        for (size_t k = 0; k < e->n_versions; k++) {
            if (e->versions[k].model) {
                list = nrd_xrealloc(list, (n + 1) * sizeof *list);
                list[n++] = nrd_model_ref(e->versions[k].model);
            }
        }
    }
    pthread_mutex_unlock(&r->mu);
    for (size_t i = 0; i < n; i++) {
        fn(user, list[i]);
        nrd_model_unref(list[i]);
    }
    free(list);
}
