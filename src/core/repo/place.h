/* SPDX-License-Identifier: Apache-2.0
 * core/repo/place.h - folders of a model repository, wherever they lie.
 *
 * Purpose   The repository asks the same of a folder of this machine and of an address in S3, Google
 *           Cloud Storage or Azure (s3://, gs://, as://). The latter are answered by nereid_cloud.so, which
 *           is opened when the first such address is named; a model there is copied into a folder of this
 *           machine before it is loaded.
 * Owner     Any thread. Calls about addresses wait for the network.
 * Errors    UNSUPPORTED: no nereid_cloud.so; else as in cloud/plugin.h, with the name of the object.
 *           Names of objects that would leave the model's folder are INVALID_ARG.
 * Lifetime  A copy is removed when its last share is given back.
 */
#ifndef NRD_CORE_REPO_PLACE_H
#define NRD_CORE_REPO_PLACE_H

#include "base/error.h"
#include "core/objects.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

bool nrd_place_is_remote(const char *path);
/* It is there and may be read. */
nrd_error *nrd_place_check(const char *path) NRD_MUST_USE;
/* Names of the folders that may be models, sorted; free with nrd_names_free. */
nrd_error *nrd_place_models(char ***out_names, size_t *out_n, const char *repository) NRD_MUST_USE;
/* Whether there is such a folder, with something in it. */
nrd_error *nrd_place_has_folder(bool *out, const char *path) NRD_MUST_USE;
/* A number that changes when a file of the folder is added, removed or changed. */
nrd_error *nrd_place_signature(uint64_t *out, const char *dir) NRD_MUST_USE;

/* The folder's files on this machine: a copy, or the folder itself. out_signature: of what is there. */
nrd_error *nrd_files_get(nrd_files **out, uint64_t *out_signature, const char *dir) NRD_MUST_USE;
const char *nrd_files_dir(const nrd_files *f); /* borrowed */
nrd_files *nrd_files_ref(nrd_files *f);
void nrd_files_unref(nrd_files *f); /* NULL is fine */

#endif
