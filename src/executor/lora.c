/* SPDX-License-Identifier: Apache-2.0
 * Adapters of the executor API: from what a request or a folder brings to the engine's cache. Folders that
 * were loaded under an id are remembered and read again where the cache let their adapter go. */
#include "executor/internal.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "engine/lora_gain.h"

#include <stdatomic.h>
#include <string.h>

typedef struct folder {
    uint64_t id;
    char *dir; /* owned */
} folder;

struct nrd_lora_folders {
    pthread_mutex_t mu;
    folder *all; /* guarded by mu */
    size_t n, cap;
    atomic_uint_least64_t host_ns; /* that adapters took to come to host memory */
};

static void on_change(void *user)
{
    nrd_exec *x = user;
    pthread_mutex_lock(&x->mu);
    x->adapter_news = true;
    pthread_cond_signal(&x->in_cv);
    pthread_mutex_unlock(&x->mu);
}

nrd_error *nrd_exec_lora_open(nrd_exec *x)
{
    const nrd_build_limits *b = nrd_engine_limits(x->engine);
    nrd_error *err = NULL;
    int32_t asked = x->cfg.lora_cache_max_adapter_size, built = b->max_lora_rank;
    int32_t rank = asked > 0 && (built <= 0 || asked < built) ? asked : built > 0 ? built : NRD_LORA_DEFAULT_RANK;
    nrd_lora_cache_config c = {
        .dev = x->dev,
        .spec = x->spec,
        .limits = {.max_rank = rank < NRD_LORA_MAX_RANK ? rank : NRD_LORA_MAX_RANK, .modules = b->lora_modules},
        .optimal_rank = x->cfg.lora_cache_optimal_adapter_size,
        .mem_fraction = x->cfg.lora_cache_gpu_memory_fraction,
        .host_bytes = x->cfg.lora_cache_host_memory_bytes,
        .on_change = on_change,
        .user = x,
    };
    NRD_NEW_GOTO(x->folders, 1, err, fail);
    pthread_mutex_init(&x->folders->mu, NULL);
    NRD_TRY(nrd_lora_cache_new(&x->adapters, &c));
    if (x->cfg.enable_lora || b->lora_plugin) {
        NRD_TRY(nrd_lora_cache_prepare(x->adapters));
        nrd_exec_log(x, 2, "LoRA adapters: rank up to %d", c.limits.max_rank);
    }
fail:
    return err;
}

void nrd_exec_lora_close(nrd_exec *x)
{
    nrd_lora_cache_free(x->adapters);
    x->adapters = NULL;
    if (!x->folders) {
        return;
    }
    for (size_t i = 0; i < x->folders->n; i++) {
        free(x->folders->all[i].dir);
    }
    free(x->folders->all);
    pthread_mutex_destroy(&x->folders->mu);
    free(x->folders);
    x->folders = NULL;
}

/* ---- folders ---- */

/* A copy of the folder of an id, which the caller frees; NULL: none, or no memory. */
static char *folder_of(nrd_lora_folders *f, uint64_t id)
{
    char *dir = NULL;
    pthread_mutex_lock(&f->mu);
    for (size_t i = 0; i < f->n && !dir; i++) {
        dir = f->all[i].id == id ? strdup(f->all[i].dir) : NULL;
    }
    pthread_mutex_unlock(&f->mu);
    return dir;
}

static bool forget_folder(nrd_lora_folders *f, uint64_t id)
{
    bool found = false;
    pthread_mutex_lock(&f->mu);
    for (size_t i = 0; i < f->n && !found; i++) {
        if (f->all[i].id == id) {
            free(f->all[i].dir);
            f->all[i] = f->all[--f->n];
            found = true;
        }
    }
    pthread_mutex_unlock(&f->mu);
    return found;
}

static nrd_error *remember_folder(nrd_lora_folders *f, uint64_t id, const char *dir)
{
    nrd_error *err = NULL;
    char *copy = strdup(dir);

    if (!copy) {
        return nrd_error_no_memory();
    }
    (void)forget_folder(f, id);
    pthread_mutex_lock(&f->mu);
    if (f->n == f->cap) {
        size_t cap = f->cap ? f->cap * 2 : 16;
        folder *all = realloc(f->all, cap * sizeof *all);
        if (all) {
            f->all = all;
            f->cap = cap;
        }
    }
    if (f->n < f->cap) {
        f->all[f->n++] = (folder){id, copy};
        copy = NULL;
    } else {
        err = nrd_error_no_memory();
    }
    pthread_mutex_unlock(&f->mu);
    free(copy);
    return err;
}

/* Takes l. */
static nrd_error *keep(nrd_exec *x, uint64_t id, nrd_lora *l, nrd_adapter **out)
{
    nrd_error *err = nrd_lora_gains(l, x->engine, x->spec);
    if (err) {
        nrd_lora_free(l);
        return err;
    }
    return nrd_lora_cache_put(x->adapters, id, l, out);
}

static nrd_error *read_folder(nrd_exec *x, uint64_t id, const char *dir, nrd_adapter **out)
{
    nrd_lora *l = NULL;
    const uint64_t start_ns = nrd_now_ns();
    NRD_TRY(nrd_lora_open(&l, x->spec, nrd_lora_cache_limits(x->adapters), dir));
    nrd_error *err = keep(x, id, l, out);
    atomic_fetch_add(&x->folders->host_ns, nrd_now_ns() - start_ns);
    return nrd_error_wrap(err, "%s", dir);
}

nrd_error *nrd_exec_lora_load(nrd_exec *x, uint64_t id, const char *dir)
{
    nrd_adapter *a = NULL;

    if (id == 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "a LoRA adapter's id must be above 0");
    }
    NRD_TRY(read_folder(x, id, dir, &a));
    nrd_error *err = remember_folder(x->folders, id, dir);
    nrd_lora_cache_unpin(x->adapters, a);
    return err;
}

bool nrd_exec_lora_has(nrd_exec *x, uint64_t id)
{
    char *dir = folder_of(x->folders, id);
    bool found = dir != NULL;

    free(dir);
    return found || nrd_lora_cache_has(x->adapters, id);
}

nrd_error *nrd_exec_lora_unload(nrd_exec *x, uint64_t id)
{
    bool named = forget_folder(x->folders, id), cached = nrd_lora_cache_remove(x->adapters, id);
    return named || cached ? NULL
                            : nrd_errorf(NRD_ERR_NOT_FOUND, "LoRA task %llu not found in cache", (unsigned long long)id);
}

nrd_error *nrd_exec_lora_prefetch(nrd_exec *x, const char *dir)
{
    char **names = NULL;
    size_t n = 0;
    int32_t n_loaded = 0;
    nrd_error *err = NULL;

    NRD_TRY(nrd_error_wrap(nrd_dir_list(&names, &n, dir), "lora_prefetch_dir"));
    for (size_t i = 0; i < n && !err; i++) {
        unsigned long long id = 0;
        char *path = NULL;
        err = nrd_path_make(&path, dir, names[i]);
        if (err || !nrd_path_is_dir(path)) {
            /* not an adapter's */
        } else if (!nrd_parse_u64(names[i], &id) || id == 0) {
            nrd_exec_log(x, 1, "lora_prefetch_dir: folder '%s' is left out: its name is no id above 0", names[i]);
        } else {
            err = nrd_error_wrap(nrd_exec_lora_load(x, id, path), "lora_prefetch_dir");
            n_loaded += err == NULL;
        }
        free(path);
    }
    nrd_names_free(names, n);
    if (!err) {
        nrd_exec_log(x, 2, "%d LoRA adapters of lora_prefetch_dir are in the cache", n_loaded);
    }
    return err;
}

void nrd_exec_lora_get_stats(nrd_exec *x, nrd_exec_lora_stats *out)
{
    nrd_lora_stats s;
    uint32_t size = out->size;
    nrd_lora_cache_get_stats(x->adapters, &s);
    const nrd_exec_lora_stats full = {
        .size = size,
        .n_host = s.n_host,
        .n_device = s.n_device,
        .n_pinned = s.n_pinned,
        .n_pages = s.n_pages,
        .n_free_pages = s.n_free_pages,
        .host_bytes = s.host_bytes,
        .n_loaded = s.n_loaded,
        .n_evicted_host = s.n_evicted_host,
        .n_evicted_device = s.n_evicted_device,
        .n_hits = s.n_hits,
        .n_misses = s.n_misses,
        .n_stored = s.n_stored,
        .host_us = atomic_load(&x->folders->host_ns) / 1000u,
        .device_us = s.device_us,
    };
    memcpy(out, &full, size < sizeof full ? size : sizeof full);
}

/* ---- requests ---- */

static nrd_error *from_request(nrd_exec *x, const nrd_exec_request *in, nrd_adapter **out)
{
    nrd_lora *l = NULL;
    const uint64_t start_ns = nrd_now_ns();
    nrd_dtype t = in->lora_weights_dtype == NRD_DTYPE_NONE ? NRD_DTYPE_F16 : in->lora_weights_dtype;

    NRD_TRY(nrd_lora_from_rows(&l, x->spec, nrd_lora_cache_limits(x->adapters), in->lora_weights, t, in->lora_rows,
                               in->lora_width, in->lora_config, in->lora_config_width ? in->lora_config_width : 3));
    nrd_error *err = keep(x, in->lora_task_id, l, out);
    atomic_fetch_add(&x->folders->host_ns, nrd_now_ns() - start_ns);
    return nrd_error_wrap(err, "lora_task_id");
}

nrd_error *nrd_exec_prepare_lora(nrd_exec *x, nrd_exec_request *r)
{
    nrd_adapter *a = NULL;
    NRD_TRY(nrd_exec_lora_of(x, r, &a));
    r->lora_prepared = a;
    return NULL;
}

void nrd_exec_release_lora(nrd_exec *x, nrd_exec_request *r)
{
    if (r->lora_prepared) {
        nrd_lora_cache_unpin(x->adapters, r->lora_prepared);
        r->lora_prepared = NULL;
    }
}

nrd_error *nrd_exec_lora_of(nrd_exec *x, const nrd_exec_request *in, nrd_adapter **out)
{
    *out = in->lora_prepared;
    if (*out) {
        nrd_lora_cache_pin(x->adapters, *out);
        return NULL;
    }
    if (in->lora_task_id == 0) {
        return in->lora_weights || in->lora_config
                   ? nrd_errorf(NRD_ERR_INVALID_ARG, "lora_weights and lora_config need a lora_task_id above 0")
                   : NULL;
    }
    if ((in->lora_weights != NULL) != (in->lora_config != NULL)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s is given without %s", in->lora_weights ? "lora_weights" : "lora_config",
                          in->lora_weights ? "lora_config" : "lora_weights");
    }
    if (in->lora_weights) {
        return from_request(x, in, out);
    }
    nrd_error *err = nrd_lora_cache_get(x->adapters, in->lora_task_id, out);
    char *dir = err ? folder_of(x->folders, in->lora_task_id) : NULL;
    if (dir) {
        nrd_error_free(err);
        err = read_folder(x, in->lora_task_id, dir, out);
        free(dir);
    }
    return err;
}

void nrd_exec_drop_adapter(nrd_exec_request_state *r)
{
    if (!r->adapter) {
        return;
    }
    nrd_exec *x = r->exec;
    if (r->adapter_held) {
        nrd_lora_cache_drop(x->adapters, r->adapter);
    }
    nrd_lora_cache_unpin(x->adapters, r->adapter);
    r->adapter = NULL;
    pthread_mutex_lock(&x->mu);
    x->adapter_news = true; /* the loop looks at those held back on its next turn */
    pthread_mutex_unlock(&x->mu);
}
