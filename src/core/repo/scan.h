/* SPDX-License-Identifier: Apache-2.0
 * core/repo/scan.h - what lies in model repositories: model folders, versions, changes.
 * Stateless, any thread. Errors: NOT_FOUND, INVALID_ARG with the folder's name. */
#ifndef NRD_CORE_REPO_SCAN_H
#define NRD_CORE_REPO_SCAN_H

#include "base/error.h"
#include "core/objects.h"

#include <stddef.h>
#include <stdint.h>

/* Names of the sub-folders that may be models, sorted; free with nrd_names_free. */
nrd_error *nrd_scan_models(char ***out_names, size_t *out_n, const char *repository) NRD_MUST_USE;

/* The versions that the policy picks, rising. May be none. Caller frees. */
nrd_error *nrd_scan_versions(int64_t **out, size_t *out_n, const char *name, const char *dir,
                             const Inference__ModelVersionPolicy *policy) NRD_MUST_USE;

/* A number that changes when any file of the folder is added, removed, resized or touched. */
nrd_error *nrd_scan_signature(uint64_t *out, const char *dir) NRD_MUST_USE;

#endif
