/* SPDX-License-Identifier: Apache-2.0
 * tools/inspect.h - printing what is in models, tokenizers and model repositories.
 *
 * Purpose   `nereid inspect` finds out what PATH is and calls one of these, which print to stdout.
 * Owner     The main thread.
 * Errors    What opening the files says. A configuration: "FILE:LINE: <reason>".
 */
#ifndef NRD_TOOLS_INSPECT_H
#define NRD_TOOLS_INSPECT_H

#include "base/error.h"
#include "model/plan.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct nrd_inspect_options {
    bool tensors; /* a line for every tensor of `rank` */
    bool verify;  /* checksums of an engine */
    bool families; /* the table of families instead */
    bool json;     /* an object instead of lines */
    int32_t rank;
} nrd_inspect_options;

/* Finds out what PATH is, and prints it. */
nrd_error *nrd_inspect(const char *path, const nrd_inspect_options *o) NRD_MUST_USE;
/* The same as one JSON object. */
nrd_error *nrd_inspect_json(const char *path, const nrd_inspect_options *o) NRD_MUST_USE;
nrd_error *nrd_inspect_source(const char *path, const nrd_inspect_options *o) NRD_MUST_USE;
nrd_error *nrd_inspect_engine(const char *path, const nrd_inspect_options *o) NRD_MUST_USE;
/* A rank's plan, where some of its weights may be kept in another type than their folder's; else NULL, also for what has no plan. */
nrd_plan *nrd_inspect_plan(const nrd_source *s, int32_t rank);
/* A tensor in the type that it is kept in, with its bytes; plan may be NULL. */
nrd_src_tensor nrd_inspect_tensor(const nrd_plan *plan, const nrd_src_tensor *t);
nrd_error *nrd_inspect_tokenizer(const char *path) NRD_MUST_USE;

/* The table of families, as docs/models.md holds it. */
void nrd_inspect_families(void);

/* A model's folder, with a config.pbtxt; a folder of such folders. */
bool nrd_inspect_is_served_model(const char *path);
bool nrd_inspect_is_repository(const char *path);
/* With the engine and the tokenizer that its parameters name. */
nrd_error *nrd_inspect_served_model(const char *path, const nrd_inspect_options *o) NRD_MUST_USE;
/* All its models. Of several errors the last is returned, the others are printed to stderr. */
nrd_error *nrd_inspect_repository(const char *path, const nrd_inspect_options *o) NRD_MUST_USE;

#endif
