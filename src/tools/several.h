/* SPDX-License-Identifier: Apache-2.0
 * tools/several.h - several models for one server: what each takes, and the file that names them.
 * Owner: one thread. Errors: the path concerned. */
#ifndef NRD_TOOLS_SEVERAL_H
#define NRD_TOOLS_SEVERAL_H

#include "base/error.h"
#include "base/str.h"
#include "nereid/device.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { NRD_SEVERAL_MAX = 64 };

typedef struct nrd_several_model { /* all owned */
    char *name;  /* what clients say */
    char *path;  /* what was named, or where it lies in the cache */
    char *repo;  /* its folder of models */
    char *load;  /* the one that stands for all of them */
    char *parts; /* the others, with commas */
    uint64_t weight_bytes, cache_bytes; /* of memory */
    bool fetched; /* from the hub, by a pull */
    char *record; /* the file that remembers a pull (hub/served.h); NULL: none does */
} nrd_several_model;

typedef struct nrd_several {
    nrd_several_model models[NRD_SEVERAL_MAX];
    size_t n;
    uint64_t memory_bytes; /* that they may take together */
} nrd_several;

void nrd_several_model_fini(nrd_several_model *m);
void nrd_several_fini(nrd_several *s);

/* "NAME=PATH", else a path or the name of a model. *out_name NULL: none was given. Both the caller's. */
void nrd_several_split(const char *word, char **out_name, char **out_path);
/* Names are there, differ, also as folders, and can be in URLs. */
nrd_error *nrd_several_check_names(const nrd_several *s) NRD_MUST_USE;
/* What an engine takes on this device. *tokens: of its KV cache; 0 becomes the most useful number where `memory` bytes
 * are for all models: four sequences of full length, fewer where they would have more than a quarter of
 * it, one at least. An encoder keeps none. */
nrd_error *nrd_several_measure(nrd_several_model *m, const char *engine, nrd_device *dev, uint64_t memory, int64_t *tokens)
    NRD_MUST_USE;
/* A repository that was given: measures the engine that one of its models names, and writes it with names of its own. */
nrd_error *nrd_several_prepare_repository(nrd_several_model *m, nrd_device *dev, uint64_t memory) NRD_MUST_USE;
/* What a server is told of a model that was pulled: {"model": {…}, "repository": FOLDER, "fetched": BOOL, "record": FILE}. */
void nrd_several_put_made(nrd_str *out, const nrd_several_model *m);
/* The text of --models-file. pulled: models that clients brought to servers before. pull: the command that prepares one more
 * model, n_pull words. */
nrd_error *nrd_several_write(const nrd_several *s, const nrd_several *pulled, const char *file, char *const *pull, size_t n_pull)
    NRD_MUST_USE;

#endif
