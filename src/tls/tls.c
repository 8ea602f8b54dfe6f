/* SPDX-License-Identifier: Apache-2.0 */
#include "tls/tls.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/plugin.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { N_FILES = 3 };

struct nrd_tls {
    const nrd_tls_ops *ops;
    char *files[N_FILES];       /* certificate, key, certificates that sign clients or NULL; owns */
    struct stat seen[N_FILES];  /* at the last look */
    pthread_mutex_t mu;
    void *context;              /* guarded by mu */
};

static nrd_plugin plugin =
    NRD_PLUGIN(.file = "nereid_tls.so", .symbol = NRD_TLS_SYMBOL, .need = "TLS needs",
               .built_with = "libssl-dev and libevent-dev");

nrd_error *nrd_tls_load(const nrd_tls_ops **out)
{
    const void *table = NULL;
    nrd_error *err = nrd_plugin_open(&plugin, &table);
    *out = table;
    return err;
}

static void look(const nrd_tls *t, struct stat out[N_FILES])
{
    for (int i = 0; i < N_FILES; i++) {
        if (!t->files[i] || stat(t->files[i], &out[i]) != 0) {
            memset(&out[i], 0, sizeof out[i]);
        }
    }
}

static bool is_same(const struct stat *a, const struct stat *b)
{
    return a->st_ino == b->st_ino && a->st_dev == b->st_dev && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

static nrd_error *read_files(const nrd_tls *t, void **out)
{
    char why[512] = "";
    *out = t->ops->context_new(t->files[0], t->files[1], t->files[2], why, sizeof why);
    return *out ? NULL : nrd_errorf(NRD_ERR_INVALID_ARG, "TLS: %s", why);
}

nrd_error *nrd_tls_new(nrd_tls **out, const char *cert, const char *key, const char *client_ca)
{
    nrd_error *err = NULL;
    nrd_tls *t = NULL;

    *out = NULL;
    NRD_NEW_GOTO(t, 1, err, fail);
    pthread_mutex_init(&t->mu, NULL);
    NRD_TRY_GOTO(nrd_tls_load(&t->ops), err, fail);
    t->files[0] = nrd_xstrdup(cert);
    t->files[1] = nrd_xstrdup(key);
    t->files[2] = client_ca && client_ca[0] ? nrd_xstrdup(client_ca) : NULL;
    look(t, t->seen);
    NRD_TRY_GOTO(read_files(t, &t->context), err, fail);
    *out = t;
    return NULL;

fail:
    nrd_tls_free(t);
    return err;
}

void nrd_tls_free(nrd_tls *t)
{
    if (!t) {
        return;
    }
    if (t->context) {
        t->ops->context_free(t->context);
    }
    for (int i = 0; i < N_FILES; i++) {
        free(t->files[i]);
    }
    pthread_mutex_destroy(&t->mu);
    free(t);
}

nrd_error *nrd_tls_reload(nrd_tls *t, bool force, bool *out_changed)
{
    struct stat now[N_FILES];
    bool changed = force;
    void *fresh, *old;

    *out_changed = false;
    look(t, now);
    for (int i = 0; i < N_FILES; i++) {
        changed = changed || !is_same(&now[i], &t->seen[i]);
    }
    if (!changed) {
        return NULL;
    }
    /* Also after an error: the same files would give it again. A file of the pair that is replaced
     * later is a new change. */
    memcpy(t->seen, now, sizeof now);
    NRD_TRY(read_files(t, &fresh));
    pthread_mutex_lock(&t->mu);
    old = t->context;
    t->context = fresh;
    pthread_mutex_unlock(&t->mu);
    t->ops->context_free(old);
    *out_changed = true;
    return NULL;
}

const nrd_tls_ops *nrd_tls_functions(const nrd_tls *t)
{
    return t->ops;
}

void *nrd_tls_conn_new(nrd_tls *t, int fd)
{
    pthread_mutex_lock(&t->mu); /* conn_new only counts and allocates */
    void *conn = t->ops->conn_new(t->context, fd);
    pthread_mutex_unlock(&t->mu);
    return conn;
}
