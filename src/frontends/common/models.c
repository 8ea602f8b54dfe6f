/* SPDX-License-Identifier: Apache-2.0
 * The table of what is known of models: their inputs and their configuration. An entry is read from
 * the core at the first request after a load and is shared by count; it is replaced when the core
 * counts a newer load. Called by the handlers of generate, of /v1 and of the page. */
#include "frontends/common/models.h"

#include "base/mem.h"
#include "base/siphash.h"
#include "frontends/common/error.h"
#include "frontends/common/message.h"
#include "nereid/server.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#pragma weak nrd_server_load_number /* another core may lack it */

#define N_BUCKETS 256
#define MAX_IN_BUCKET (NRD_MODELS_MAX / N_BUCKETS)
#define TRIES 3 /* a model that is loaded again while it is read is read again */

struct nrd_models {
    TRITONSERVER_Server *core;
    pthread_mutex_t mu;
    nrd_model_info *buckets[N_BUCKETS]; /* guarded by mu; newest first */
};

nrd_error *nrd_models_new(nrd_models **out, TRITONSERVER_Server *core)
{
    nrd_models *m = *out = calloc(1, sizeof *m);
    if (!m) {
        return nrd_error_no_memory();
    }
    m->core = core;
    pthread_mutex_init(&m->mu, NULL);
    return NULL;
}

void nrd_models_free(nrd_models *m)
{
    if (!m) {
        return;
    }
    for (size_t i = 0; i < N_BUCKETS; i++) {
        while (m->buckets[i]) {
            nrd_model_info *info = m->buckets[i];
            m->buckets[i] = info->next;
            nrd_model_info_unref(info);
        }
    }
    pthread_mutex_destroy(&m->mu);
    free(m);
}

void nrd_model_info_unref(const nrd_model_info *shared)
{
    nrd_model_info *info = (nrd_model_info *)(uintptr_t)shared;
    if (info && atomic_fetch_sub(&info->refs, 1) == 1) {
        nrd_json_doc_free(info->config_doc);
        nrd_json_doc_free(info->metadata_doc);
        free(info->inputs);
        free(info->dims);
        free(info->name);
        free(info);
    }
}

const nrd_model_input *nrd_model_info_input(const nrd_model_info *info, const char *name)
{
    for (size_t i = 0; i < info->n_inputs; i++) {
        if (strcmp(info->inputs[i].name, name) == 0) {
            return &info->inputs[i];
        }
    }
    return NULL;
}

/* ---- reading ---- */

static nrd_error *read_inputs(nrd_model_info *info)
{
    const nrd_json *list = nrd_json_get(nrd_json_root(info->metadata_doc), "inputs");
    nrd_error *err = NULL;
    size_t n_dims = 0, at = 0;

    for (size_t i = 0; i < nrd_json_len(list); i++) {
        n_dims += nrd_json_len(nrd_json_get(&list->child[i], "shape"));
    }
    info->n_inputs = nrd_json_len(list);
    NRD_NEW_GOTO(info->inputs, info->n_inputs + 1, err, out);
    NRD_NEW_GOTO(info->dims, n_dims + 1, err, out);
    for (size_t i = 0; i < info->n_inputs; i++) {
        const nrd_json *one = &list->child[i], *shape = nrd_json_get(one, "shape");
        nrd_model_input *in = &info->inputs[i];
        in->name = nrd_json_get_str(one, "name", "");
        in->type = TRITONSERVER_StringToDataType(nrd_json_get_str(one, "datatype", ""));
        in->n_dims = nrd_json_len(shape);
        in->dims = &info->dims[at];
        for (size_t d = 0; d < in->n_dims; d++) {
            info->dims[at++] = nrd_json_int(&shape->child[d], 0);
        }
    }
out:
    return err;
}

static uint64_t load_number(const nrd_models *m, const char *name, int64_t version)
{
    return nrd_server_load_number ? nrd_server_load_number(m->core, name, version) : 0;
}

/* *out->load stays 0 when the model changed meanwhile. */
static nrd_error *read_model(const nrd_models *m, const char *name, int64_t version,
                             nrd_model_info **out)
{
    TRITONSERVER_Message *message = NULL;
    nrd_error *err = NULL;
    nrd_model_info *info = NULL;
    const uint64_t load = load_number(m, name, version);

    *out = NULL;
    NRD_NEW_GOTO(info, 1, err, fail);
    atomic_init(&info->refs, 1);
    info->version = version;
    info->name = strdup(name);
    if (!info->name) {
        err = nrd_error_no_memory();
        goto fail;
    }
    TRITONSERVER_Error *e = TRITONSERVER_ServerModelMetadata(m->core, name, version, &message);
    NRD_TRY_GOTO(nrd_from_message(&info->metadata_doc, e, message), err, fail);
    message = NULL;
    e = TRITONSERVER_ServerModelConfig(m->core, name, version, 1, &message);
    NRD_TRY_GOTO(nrd_from_message(&info->config_doc, e, message), err, fail);
    NRD_TRY_GOTO(read_inputs(info), err, fail);
    info->config = nrd_json_root(info->config_doc);
    info->load = load_number(m, name, version) == load ? load : 0;
    *out = info;
    return NULL;

fail:
    nrd_model_info_unref(info);
    return err;
}

/* ---- the table ---- */

static nrd_model_info **bucket_of(nrd_models *m, const char *name)
{
    return &m->buckets[nrd_siphash_bytes(name, strlen(name)) % N_BUCKETS];
}

static bool is_same(const nrd_model_info *info, const char *name, int64_t version)
{
    return info->version == version && strcmp(info->name, name) == 0;
}

static const nrd_model_info *find(nrd_models *m, const char *name, int64_t version, uint64_t load)
{
    const nrd_model_info *found = NULL;
    pthread_mutex_lock(&m->mu);
    for (nrd_model_info *info = *bucket_of(m, name); info && !found; info = info->next) {
        if (info->load == load && is_same(info, name, version)) {
            atomic_fetch_add(&info->refs, 1);
            found = info;
        }
    }
    pthread_mutex_unlock(&m->mu);
    return found;
}

/* Takes the place of what was known of the model, or of the oldest in a full bucket. */
static void keep(nrd_models *m, nrd_model_info *info)
{
    nrd_model_info *gone = NULL;
    size_t n = 0;

    atomic_fetch_add(&info->refs, 1);
    pthread_mutex_lock(&m->mu);
    nrd_model_info **first = bucket_of(m, info->name);
    info->next = *first;
    *first = info;
    for (nrd_model_info **at = &info->next; *at;) {
        if (is_same(*at, info->name, info->version) || ++n >= MAX_IN_BUCKET) {
            nrd_model_info *old = *at;
            *at = old->next;
            old->next = gone;
            gone = old;
        } else {
            at = &(*at)->next;
        }
    }
    pthread_mutex_unlock(&m->mu);
    while (gone) {
        nrd_model_info *next = gone->next;
        nrd_model_info_unref(gone);
        gone = next;
    }
}

nrd_error *nrd_models_get(nrd_models *m, const char *name, int64_t version,
                          const nrd_model_info **out)
{
    const uint64_t load = load_number(m, name, version);
    nrd_model_info *info = NULL;

    *out = load ? find(m, name, version, load) : NULL;
    for (int i = 0; i < TRIES && !*out; i++) {
        NRD_TRY(read_model(m, name, version, &info));
        if (info->load) {
            keep(m, info);
        } else if (i + 1 < TRIES && nrd_server_load_number) {
            nrd_model_info_unref(info);
            continue;
        }
        *out = info;
    }
    return NULL;
}
