/* SPDX-License-Identifier: Apache-2.0
 * tools/deploy_matrix.h - what `nereid deploy` makes: models × precisions × batch sizes × pairs of lengths.
 *
 * Purpose   The matrix from a JSON file and from options, checked before anything is made.
 *             {"models": ["NAME=PATH", {"name": …, "path": …, "tokenizer_dir": …, "tp_size": 1, "pp_size": 1}],
 *              "precisions": ["fp16", "q4_k", {"name": "mine", "convert": ["--qformat", "fp8"]}],
 *              "batch_sizes": [1, 8], "lengths": [[2048, 1024], "128,20"], "set": ["NAME:VALUE"],
 *              "build": ["--max_num_tokens=8192"], "device": "auto", "output_dir": "."}
 *           PATH is whatever `nereid convert` takes, or the name of a model.
 * Owner     One thread. Texts belong to the matrix until fini.
 * Units     Lengths in tokens. At most NRD_DEPLOY_MAX entries in each list.
 * Errors    INVALID_ARG names the entry, what was expected and what came.
 */
#ifndef NRD_TOOLS_DEPLOY_MATRIX_H
#define NRD_TOOLS_DEPLOY_MATRIX_H

#include "base/error.h"
#include "base/mem.h"

#include <stddef.h>
#include <stdint.h>

enum { NRD_DEPLOY_MAX = 64, NRD_DEPLOY_MAX_NUMBER = 1 << 24, NRD_DEPLOY_MAX_RANKS = 1024 };

typedef struct nrd_deploy_model {
    const char *name, *path, *tokenizer; /* tokenizer: a folder; NULL: the model's own */
    int32_t tp_size, pp_size;            /* 0: as `ranks` of the matrix */
} nrd_deploy_model;

typedef struct nrd_deploy_precision {
    const char *name;
    const char **convert; /* options of nereid convert */
    size_t n_convert;
} nrd_deploy_precision;

typedef struct nrd_deploy_lengths {
    int32_t input, output;
} nrd_deploy_lengths;

typedef struct nrd_deploy_matrix {
    nrd_arena text;
    nrd_deploy_model models[NRD_DEPLOY_MAX];
    nrd_deploy_precision precisions[NRD_DEPLOY_MAX];
    int32_t batch_sizes[NRD_DEPLOY_MAX];
    nrd_deploy_lengths lengths[NRD_DEPLOY_MAX];
    const char *sets[NRD_DEPLOY_MAX], *builds[NRD_DEPLOY_MAX];
    size_t n_models, n_precisions, n_batch_sizes, n_lengths, n_sets, n_builds;
    const char *device, *output_dir; /* NULL: not given */
    int32_t tp_size, pp_size;        /* of models that do not say; 0: not given */
} nrd_deploy_matrix;

void nrd_deploy_matrix_init(nrd_deploy_matrix *m); /* empty */
void nrd_deploy_matrix_fini(nrd_deploy_matrix *m);

/* Adds what the file has. */
nrd_error *nrd_deploy_matrix_read(nrd_deploy_matrix *m, const char *path) NRD_MUST_USE;
nrd_error *nrd_deploy_matrix_parse(nrd_deploy_matrix *m, const char *text, size_t n) NRD_MUST_USE;
/* Adds to the list `key` of the file what a command line says: entries parted by commas, pairs of lengths by
 * blanks; the whole text is one entry of models, set and build. */
nrd_error *nrd_deploy_matrix_add(nrd_deploy_matrix *m, const char *key,
                                 const char *text) NRD_MUST_USE;
/* Lists and values that `given` has take the place of those of m; what is set and built is added. Texts are
 * borrowed from `given` until m ends. */
void nrd_deploy_matrix_override(nrd_deploy_matrix *m, const nrd_deploy_matrix *given);
/* Fills in what was not given, and looks whether every row can be named and tried. */
nrd_error *nrd_deploy_matrix_finish(nrd_deploy_matrix *m) NRD_MUST_USE;

#endif
