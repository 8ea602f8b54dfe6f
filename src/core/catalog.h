/* SPDX-License-Identifier: Apache-2.0
 * core/catalog.h - finding models by name.
 *
 * Purpose   What requests and ensembles need of the repository, which is made of models and
 *           therefore stands above them: functions of it that the server puts here.
 * Owner     The server. Any thread.
 * Errors    NOT_FOUND, UNAVAILABLE with Triton's words.
 */
#ifndef NRD_CORE_CATALOG_H
#define NRD_CORE_CATALOG_H

#include "base/error.h"
#include "core/objects.h"

#include <stdint.h>

typedef struct nrd_catalog {
    /* Shares the model. version -1: the highest ready one. */
    nrd_error *(*get)(nrd_model **out, nrd_repo *r, const char *name, int64_t version);
    /* The model that a step of an ensemble means; `namespace` is its namespace, "" without
     * namespacing. */
    nrd_error *(*get_step)(nrd_model **out, nrd_repo *r, const char *namespace, const char *name,
                           int64_t version);
    /* From now on the model is UNAVAILABLE with this reason, if it is the one that serves. */
    void (*fail)(nrd_repo *r, nrd_model *m, const char *reason);
    nrd_repo *repo; /* their last but one argument */
} nrd_catalog;

#endif
