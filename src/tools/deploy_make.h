/* SPDX-License-Identifier: Apache-2.0
 * tools/deploy_make.h - the rows of a matrix, made one after the other.
 *
 * Purpose   A row is a checkpoint (which rows of one model and precision share), an engine and a repository:
 *             OUTPUT/checkpoints/MODEL_PRECISION_tpT_ppP
 *             OUTPUT/engines/MODEL_PRECISION_tpT_ppP_islI_oslO_bsB
 *             OUTPUT/ensemble_models/…            the repository, of the engine's name
 *             OUTPUT/logs/….log                   what the steps said
 *             OUTPUT/.ready/KIND/NAME.json        what a folder was made of, written when it is whole
 *           A folder is ready when that file says what would be made now. It is made beside its place, by
 *           `nereid` in a process of its own, and renamed: what was interrupted is made again.
 * Owner     One thread. Another process with the same OUTPUT is refused.
 * Errors    Of a row: what the step said last. A step that failed is not tried again for the rows that share it.
 */
#ifndef NRD_TOOLS_DEPLOY_MAKE_H
#define NRD_TOOLS_DEPLOY_MAKE_H

#include "tools/deploy_matrix.h"

#include <stdbool.h>

typedef struct nrd_deploy_row {
    size_t model, precision; /* indices of the matrix */
    int32_t batch_size;
    nrd_deploy_lengths lengths;
} nrd_deploy_row;

typedef struct nrd_deploy_maker nrd_deploy_maker;

/* Borrows the matrix until free. UNAVAILABLE: somebody else works in its output folder. is_dry: nothing is
 * written, not even folders. */
nrd_error *nrd_deploy_maker_new(nrd_deploy_maker **out, const nrd_deploy_matrix *m,
                                bool is_dry) NRD_MUST_USE;
void nrd_deploy_maker_free(nrd_deploy_maker *k); /* NULL is fine */

/* MODEL_PRECISION_tpT_ppP_islI_oslO_bsB; owned by the caller. */
char *nrd_deploy_row_name(const nrd_deploy_maker *k, const nrd_deploy_row *row);
/* Which steps the row lacks, "convert, build, repository"; NULL: it is ready. Constant text. */
const char *nrd_deploy_missing(const nrd_deploy_maker *k, const nrd_deploy_row *row);
/* Makes what is missing. */
nrd_error *nrd_deploy_make(nrd_deploy_maker *k, const nrd_deploy_row *row) NRD_MUST_USE;
/* Bytes of the row's engine; 0: there is none. */
uint64_t nrd_deploy_engine_bytes(const nrd_deploy_maker *k, const nrd_deploy_row *row);

#endif
