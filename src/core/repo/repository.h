/* SPDX-License-Identifier: Apache-2.0
 * core/repo/repository.h - which versions of which models serve.
 *
 * Owner     The server. Any thread.
 * Errors    For users: INVALID_ARG, NOT_FOUND, UNAVAILABLE with Triton's words.
 */
#ifndef NRD_CORE_REPO_REPOSITORY_H
#define NRD_CORE_REPO_REPOSITORY_H

#include "base/error.h"
#include "base/str.h"
#include "core/objects.h"
#include "core/types.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum {
    NRD_MODEL_UNKNOWN,
    NRD_MODEL_READY,
    NRD_MODEL_UNAVAILABLE,
    NRD_MODEL_LOADING,
    NRD_MODEL_UNLOADING,
} nrd_model_state;

nrd_error *nrd_repo_new(nrd_repo **out, nrd_context *ctx) NRD_MUST_USE;
void nrd_repo_free(nrd_repo *r);
/* Each path that the options name must be a folder, here or in a cloud store; before the start, on its thread. */
nrd_error *nrd_repo_check_paths(nrd_repo *r) NRD_MUST_USE;
/* INTERNAL: some models could not be loaded, which the server may live with. */
nrd_error *nrd_repo_load_startup(nrd_repo *r) NRD_MUST_USE;
nrd_error *nrd_repo_poll(nrd_repo *r) NRD_MUST_USE;
nrd_error *nrd_repo_load(nrd_repo *r, const char *name, const nrd_param *const *params,
                         size_t n_params) NRD_MUST_USE;
nrd_error *nrd_repo_unload(nrd_repo *r, const char *name, bool dependents) NRD_MUST_USE;
void nrd_repo_unload_all(nrd_repo *r);
/* From now on the model is UNAVAILABLE with this reason, if it is the one that serves; it may be
 * loaded again. Any thread, also of the model: the finalizer then takes what depends on it out of
 * service (nrd_repo_remove_failed, which takes the repository's share of the model). */
void nrd_repo_fail(nrd_repo *r, nrd_model *m, const char *reason);
void nrd_repo_remove_failed(nrd_repo *r, nrd_model *m);
/* Waits until no version of that model is leaving; false: one still is after timeout_ns. */
bool nrd_repo_wait_gone(nrd_repo *r, const char *name, uint64_t timeout_ns);
bool nrd_repo_has_failed(nrd_repo *r, const char *name); /* that model; NULL: any */
nrd_error *nrd_repo_register(nrd_repo *r, const char *path, const nrd_param *const *mapping,
                             size_t n) NRD_MUST_USE;
nrd_error *nrd_repo_unregister(nrd_repo *r, const char *path) NRD_MUST_USE;
/* Shares the model. version -1: the highest ready one. */
nrd_error *nrd_repo_get(nrd_model **out, nrd_repo *r, const char *name,
                        int64_t version) NRD_MUST_USE;
/* The model that a step of an ensemble means; `namespace` is its namespace, "" without namespacing.
 */
nrd_error *nrd_repo_get_step(nrd_model **out, nrd_repo *r, const char *namespace, const char *name,
                             int64_t version) NRD_MUST_USE;
bool nrd_repo_all_ready(nrd_repo *r);
nrd_error *nrd_repo_index_json(nrd_repo *r, bool ready_only, nrd_str *out) NRD_MUST_USE;
void nrd_repo_print_models(nrd_repo *r);
/* Calls fn for every model that is loaded, with a share of its own for the call, no lock held.
 * NO_MEMORY: for none. */
nrd_error *nrd_repo_each(nrd_repo *r, const char *name_or_null,
                         void (*fn)(void *user, nrd_model *m), void *user) NRD_MUST_USE;
/* The same with room that is kept from call to call, so that one that comes often takes no memory: zeroed
 * at first, one thread's, its models freed by free(). */
typedef struct nrd_repo_room {
    nrd_model **models;
    size_t cap;
} nrd_repo_room;
nrd_error *nrd_repo_each_in(nrd_repo *r, const char *name_or_null, nrd_repo_room *room,
                            void (*fn)(void *user, nrd_model *m), void *user) NRD_MUST_USE;

#endif
