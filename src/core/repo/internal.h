/* SPDX-License-Identifier: Apache-2.0
 * core/repo/internal.h - which versions of which models serve: what the files of this folder share.
 *
 * Purpose   A version goes LOADING - READY - UNLOADING - UNAVAILABLE ("unloaded"), or LOADING -
 *           UNAVAILABLE with the reason. While a new copy of a version loads, the old one keeps
 *           serving. An ensemble is loaded after the models it names, and goes when one of them
 *           goes. A version whose backend says that it cannot serve any more goes READY -
 *           UNAVAILABLE with the reason, and may be loaded again.
 *
 *           With model namespacing each repository is a namespace and models of equal names live
 *           side by side. A step of an ensemble means the model beside it, else the only one of
 *           that name; a request can name only what is unique. Without it there is one, "".
 * Owner     Loading, unloading and polling change their tables under control_mu, which they release
 *           while a version is being made: different models load at the same time, and a second
 *           request for the same model waits (entry.loader). The table that requests read is
 *           guarded by mu, which is held for look-ups and swaps only. control_mu comes before mu.
 *           `_locked` is called with mu held, the rest without; "control": with control_mu held.
 * Errors    For users: INVALID_ARG, NOT_FOUND, UNAVAILABLE with Triton's words.
 * Lifetime  Entries stay as long as the repository; versions may move when one is added.
 */
#ifndef NRD_CORE_REPO_INTERNAL_H
#define NRD_CORE_REPO_INTERNAL_H

#include "core/agent.h"
#include "core/options.h"
#include "core/repo/repository.h"
#include "core/strings.h"

#include <pthread.h>

typedef struct nrd_repo_version {
    int64_t number;
    nrd_model_state state;
    char *reason;       /* owned, nrd_repo_reason_free; NULL = none */
    nrd_model *model;   /* shared; NULL unless READY */
    nrd_model *leaving; /* borrowed: unloading, for the finalizer's note */
    bool is_to_retire;  /* `leaving` has this version's share still: nrd_repo_retire gives it back */
    bool failed;        /* it served until it, or what it needs, failed: the reason says why */
} nrd_repo_version;

/* Models that an ensemble names, and their namespaces. */
typedef struct nrd_repo_steps {
    char **names, **namespaces;
    size_t n;
} nrd_repo_steps;

typedef struct nrd_repo_entry {
    char *name, *dir;
    char *title;                /* the name in logs and tables: with namespacing "SPACE::NAME" */
    char *namespace;            /* its repository, or "" */
    nrd_repo_version *versions; /* rising */
    size_t n_versions;
    bool wanted;  /* was asked for and not unloaded since */
    bool tried;   /* some version was about to be loaded: its configuration could be read */
    bool by_name; /* loaded under its own name, not only as a step of an ensemble */
    struct nrd_repo_loader
        *loader;            /* the thread that loads it; guarded by control_mu; NULL: none */
    char *error;          /* why there is no version at all, as a reason; NULL = none */
    nrd_repo_steps steps; /* of what serves; if nothing does, of what was loaded last */
    uint64_t signature;
    bool present;       /* in a repository at the last look for the index */
    char *override_dir; /* folder made for overriding files; removed with the model */
} nrd_repo_entry;

struct nrd_repo {
    nrd_context *ctx; /* borrowed */
    pthread_mutex_t control_mu;
    pthread_cond_t control_cond;     /* some model is no longer being loaded */
    bool closing;                    /* guarded by control_mu: nothing is loaded any more */
    bool starting;                   /* guarded by control_mu: what failed once is not loaded again */
    nrd_strings paths;               /* guarded by control_mu */
    struct nrd_repo_mapped *mapping; /* guarded by control_mu */
    pthread_mutex_t mu;              /* guards what follows */
    nrd_repo_entry **entries;        /* by name; only the holder of control_mu changes the list */
    size_t n_entries;
    pthread_cond_t gone; /* a version's `leaving` was cleared */
};

/* ---- table.c: the table ---- */

/* Index of the first entry of that name, or of where it would stand. */
size_t nrd_repo_first_locked(const nrd_repo *r, const char *name);
nrd_repo_entry *nrd_repo_find_locked(nrd_repo *r, const char *namespace,
                                     const char *name); /* or NULL */
nrd_error *nrd_repo_find_or_add(nrd_repo_entry **out, nrd_repo *r, const char *namespace,
                                const char *name) NRD_MUST_USE; /* control; borrowed */
/* NULL: it is not there. Borrowed until a version is added. */
nrd_repo_version *nrd_repo_version_locked(nrd_repo_entry *e, int64_t number);
nrd_error *nrd_repo_add_version_locked(nrd_repo_entry *e, int64_t number) NRD_MUST_USE; /* if it is not there */
/* Texts that say why. Without memory for one it is another, which says so: never NULL. */
char *nrd_repo_reason_new(const char *fmt, ...) NRD_PRINTF(1, 2);
void nrd_repo_reason_free(char *reason); /* NULL is fine */
/* `reason` is copied, and may be the version's own; NULL: none. */
void nrd_repo_set_state_locked(nrd_repo_version *v, nrd_model_state state, const char *reason);
bool nrd_repo_entry_is_ready_locked(const nrd_repo_entry *e); /* a version is; NULL: no */
bool nrd_repo_is_ready(nrd_repo *r, const char *namespace, const char *name);
/* Why a version of it failed, borrowed; NULL: none did. */
const char *nrd_repo_failure_locked(const nrd_repo_entry *e);
void nrd_repo_steps_fini(nrd_repo_steps *s);

/* ---- locations.c: where models lie ---- */

/* A folder of a repository that may be a model. */
typedef struct nrd_location {
    char *name, *dir, *namespace;
} nrd_location;

typedef struct nrd_locations {
    nrd_location *items;
    size_t n;
} nrd_locations;

/* Takes `dir` always (NULL: there was no memory for it); `repository` becomes the namespace, if there are any. */
nrd_error *nrd_locations_add(nrd_repo *r, nrd_locations *list, const char *name, char *dir,
                             const char *repository) NRD_MUST_USE;
void nrd_locations_fini(nrd_locations *list);
/* Where models of that name lie: one folder in each repository with namespacing; without it one at
 * most, since a name that is not unique means none. `out` is set always. Control. */
nrd_error *nrd_locations_find(nrd_repo *r, const char *name, nrd_locations *out) NRD_MUST_USE;
/* What a step of an ensemble in namespace `namespace` means: the model beside it, else the only
 * one. Borrowed; NULL: there is none, or several. */
const nrd_location *nrd_locations_pick(const nrd_locations *found, const char *namespace);
/* Adds what is in all repositories; without namespacing a name must be unique, else none of its
 * folders counts. *out_unique tells whether all are. `out` is the caller's also on errors. Control.
 */
nrd_error *nrd_locations_scan(nrd_repo *r, nrd_locations *out, bool *out_unique) NRD_MUST_USE;
/* Forgets the folders mapped from repository `path` (NULL: from all). True: there were some.
 * Control.
 */
bool nrd_locations_unmap(nrd_repo *r, const char *path);

/* ---- load.c: loading ---- */

/* Waits until no thread loads the model any more. False: the loading thread waits for this one,
 * directly or through others, so that waiting would never end. Control, which is released while
 * waiting. */
bool nrd_repo_wait_idle(nrd_repo *r, nrd_repo_entry *e);
/* Loads the versions of the model in folder `dir`, and before them what an ensemble names. All or
 * none: on errors, which are kept with the entry, the versions that served before still do.
 * override_json: in place of config.pbtxt, or NULL. Control, given back meanwhile. */
nrd_error *nrd_repo_load_entry(nrd_repo *r, nrd_repo_entry *e, const char *dir,
                               const char *override_json) NRD_MUST_USE;

/* Of an error that says why a load failed: INVALID_ARG, as published servers have it, or NO_MEMORY. */
nrd_error_code nrd_repo_load_code(const nrd_error *why);

/* ---- retire.c: going out of service ---- */

/* Takes every version that `keep` does not name out of service. `failed`: because what it needs
 * did. reason: shown from now on; NULL: "unloaded". Control. */
void nrd_repo_retire(nrd_repo *r, nrd_repo_entry *e, const int64_t *keep, size_t n_keep,
                     const char *reason, bool failed);
/* on_destroy of models that served (user: the nrd_repo): the finalizer is about to free `m`. */
void nrd_repo_model_gone(void *user, nrd_model *m);

/* ---- dependents.c: ensembles follow the models that they are made of ---- */

/* After `e` came or went: ensembles that use it follow. Control, given back meanwhile. */
void nrd_repo_update_dependents(nrd_repo *r, const nrd_repo_entry *e);

/* ---- check.c: what a load or unload request must keep to ---- */

nrd_error *nrd_repo_check_explicit(nrd_repo *r) NRD_MUST_USE; /* the control mode allows requests */
nrd_error *nrd_repo_check_name(const char *name) NRD_MUST_USE;

#endif
