/* SPDX-License-Identifier: Apache-2.0
 * frontends/common/models.h - what the models look like, read from the core once for each load.
 *
 * Purpose   A request that names keys instead of tensors is read with the model's metadata; the
 *           OpenAI endpoints look into configurations. Both are documents of the core, the same
 *           until the model is loaded again.
 * Owner     Any thread; the table has a lock of its own, under which the core is not asked.
 * Errors    Those of the core, in its words: a model that is not known or not ready.
 * Lifetime  An entry is shared: it stays as long as it is held, also when the model is gone.
 *           The table keeps at most NRD_MODELS_MAX of them. With a core that does not count loads
 *           (nereid/server.h) nothing is kept.
 */
#ifndef NRD_FRONTENDS_COMMON_MODELS_H
#define NRD_FRONTENDS_COMMON_MODELS_H

#include "base/json.h"
#include "triton/core/tritonserver.h"

#include <stdatomic.h>

#define NRD_MODELS_MAX 1024

typedef struct nrd_models nrd_models;

typedef struct nrd_model_input {
    const char *name;
    TRITONSERVER_DataType type;
    size_t n_dims;
    const int64_t *dims; /* -1: any size */
} nrd_model_input;

typedef struct nrd_model_info {
    uint64_t load;          /* its number; 0: not known */
    const nrd_json *config; /* root of the configuration's JSON */
    size_t n_inputs;
    nrd_model_input *inputs;

    /* private to models.c */
    struct nrd_model_info *next;
    char *name;
    int64_t version;
    nrd_json_doc *config_doc, *metadata_doc;
    int64_t *dims; /* of all inputs */
    atomic_int refs;
} nrd_model_info;

/* Borrows core until free. */
nrd_error *nrd_models_new(nrd_models **out, TRITONSERVER_Server *core) NRD_MUST_USE;
void nrd_models_free(nrd_models *m); /* NULL is fine */

/* version -1: the newest that is ready. The caller gives *out back with nrd_model_info_unref. */
nrd_error *nrd_models_get(nrd_models *m, const char *name, int64_t version,
                          const nrd_model_info **out) NRD_MUST_USE;
void nrd_model_info_unref(const nrd_model_info *info); /* NULL is fine */
/* NULL: no such input. */
const nrd_model_input *nrd_model_info_input(const nrd_model_info *info, const char *name);

#endif
