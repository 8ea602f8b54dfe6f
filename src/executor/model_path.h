/* SPDX-License-Identifier: Apache-2.0
 * executor/model_path.h - from what a user names to an engine folder.
 *
 * Purpose   PATH may be an engine folder, a folder with the engines encoder/ and decoder/, a GGUF file, a
 *           Hugging Face or a checkpoint folder. What is no engine yet is built once into
 *           $NEREID_CACHE/engines, whoever needs it; small models (under NRD_SMALL_MODEL_BYTES) into a
 *           temporary folder that goes with the nrd_model_path, unless they are in the cache. The date of a
 *           cached folder is its last use; the process holds what it uses, and a new engine may take the place
 *           of those that were not used longest (base/cache_entry.h).
 * Owner     One thread for each nrd_model_path; several may open at once.
 * Errors    NOT_FOUND, and what building says.
 */
#ifndef NRD_EXECUTOR_MODEL_PATH_H
#define NRD_EXECUTOR_MODEL_PATH_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

enum { NRD_SMALL_MODEL_BYTES = 64 << 20 };

/* Of a new engine. Ranks: 0 is one, and of an engine that is there what it has. */
typedef struct nrd_engine_asked {
    int32_t tp_size, pp_size;
    int32_t moe_ep_size; /* of the tp_size ranks, how many share the list of experts */
    const char *mmproj;  /* of a GGUF file: that of its vision tower, "none", or NULL: what lies beside it (model/mmproj.h) */
    bool needs_tokenizer; /* without one nothing is built, which may take minutes */
    const char *tokenizer_dir; /* NULL: the model's own */
} nrd_engine_asked;

typedef struct nrd_model_path {
    char *engine;    /* folder to open */
    char *tokenizer; /* where a tokenizer should be: PATH as given, or the engine's folder */
    bool is_temporary;
    int lock; /* of a temporary one: held until it is closed (base/leftovers.h) */
} nrd_model_path;

/* device: the --device option, NULL for auto; a new engine's weights are packed for it.
 * INVALID_ARG where PATH is an engine of other ranks than asked for. */
NRD_API nrd_error *nrd_model_path_open(nrd_model_path *out, const char *path, const char *device,
                                       nrd_engine_asked asked) NRD_MUST_USE;
NRD_API void nrd_model_path_close(nrd_model_path *m);

/* The engine of what is none yet, in the cache also where it is small: for programs that go on without us.
 * *out_engine is owned by the caller. */
nrd_error *nrd_model_path_keep(char **out_engine, const char *path, const char *device, nrd_engine_asked asked)
    NRD_MUST_USE;

/* Fills a folder that is empty with an engine. */
typedef nrd_error *nrd_engine_maker(void *user, const char *dir);
/* The engine of the model at `path` in folder `entry`: made beside it and renamed where it is not there, so that several processes
 * may do so at once and one that is ended leaves nothing. */
nrd_error *nrd_model_path_make(const char *entry, const char *path, nrd_engine_asked asked, nrd_engine_maker *make, void *user)
    NRD_MUST_USE;
/* What people call the model at `path`, for names of folders: its file or folder, of the hub's cache the
 * repository. Owned by the caller; NULL: no memory. */
char *nrd_model_path_label(const char *path);

/* Into a hash that names an engine: the file of the vision tower that it gets. */
nrd_error *nrd_model_path_hash_mmproj(uint64_t *h, const char *mmproj, const char *path) NRD_MUST_USE;

/* Opens and closes a device that is named (not NULL, auto or cpu): is it there, does it work? */
nrd_error *nrd_model_path_check_device(const char *name) NRD_MUST_USE;

/* Whose layouts an engine for `device` gets: "cpu" or "rows", which a GPU converts while it loads. */
const char *nrd_build_layouts(const char *device);

#endif
