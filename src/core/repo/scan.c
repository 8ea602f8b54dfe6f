/* SPDX-License-Identifier: Apache-2.0
 * Reads the folders of a repository: names of models, numbers of versions that the version policy
 * selects, and one signature of everything in a folder, by which polling finds changes. Called by
 * the files of core/repo while models are loaded, polled and listed. */
#include "core/repo/scan.h"

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/str.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

nrd_error *nrd_scan_models(char ***out_names, size_t *out_n, const char *repository)
{
    char **names = NULL;
    size_t n = 0, kept = 0;

    *out_names = NULL;
    *out_n = 0;
    NRD_TRY(nrd_dir_list(&names, &n, repository));
    for (size_t i = 0; i < n; i++) {
        char *path;
        nrd_error *err = nrd_path_make(&path, repository, names[i]);
        if (err) {
            nrd_names_free(names, n);
            return err;
        }
        if (names[i][0] != '.' && nrd_path_is_dir(path)) {
            char *keep = names[i];
            names[i] = names[kept];
            names[kept++] = keep;
        }
        free(path);
    }
    for (size_t i = kept; i < n; i++) {
        free(names[i]);
    }
    *out_names = names;
    *out_n = kept;
    return NULL;
}

static int rising(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static bool is_specified(const Inference__ModelVersionPolicy__Specific *p, int64_t v)
{
    for (size_t i = 0; i < p->n_versions; i++) {
        if (p->versions[i] == v) {
            return true;
        }
    }
    return false;
}

static bool has_version(const int64_t *v, size_t n, int64_t wanted)
{
    for (size_t i = 0; i < n; i++) {
        if (v[i] == wanted) {
            return true;
        }
    }
    return false;
}

nrd_error *nrd_scan_versions(int64_t **out, size_t *out_n, const char *name, const char *dir,
                             const Inference__ModelVersionPolicy *policy)
{
    char **names = NULL;
    size_t n = 0, kept = 0, skip = 0;
    int64_t *v;

    *out = NULL;
    *out_n = 0;
    NRD_TRY(nrd_scan_models(&names, &n, dir));
    v = calloc(n + 1, sizeof *v);
    if (!v) {
        nrd_names_free(names, n);
        return nrd_error_no_memory();
    }
    for (size_t i = 0; i < n; i++) {
        long long number;
        if (!nrd_parse_i64(names[i], &number) || number <= 0) {
            continue; /* other folders may lie beside the versions */
        }
        if (names[i][0] == '0') {
            NRD_LOG_WARN("ignore version directory '%s' which contains leading zeros in its "
                         "directory name",
                         names[i]);
            continue;
        }
        v[kept++] = number;
    }
    nrd_names_free(names, n);
    qsort(v, kept, sizeof *v, rising);
    if (policy->policy_choice_case == INFERENCE__MODEL_VERSION_POLICY__POLICY_CHOICE_SPECIFIC) {
        for (size_t i = 0; i < policy->specific->n_versions; i++) {
            if (!has_version(v, kept, policy->specific->versions[i])) {
                NRD_LOG_ERROR("version %lld is specified for model '%s', but the version directory "
                              "is not present",
                              (long long)policy->specific->versions[i], name);
            }
        }
        size_t k = 0;
        for (size_t i = 0; i < kept; i++) {
            if (is_specified(policy->specific, v[i])) {
                v[k++] = v[i];
            }
        }
        kept = k;
    } else if (policy->policy_choice_case ==
               INFERENCE__MODEL_VERSION_POLICY__POLICY_CHOICE_LATEST) {
        uint32_t latest = policy->latest->num_versions ? policy->latest->num_versions : 1;
        skip = kept > latest ? kept - latest : 0;
        memmove(v, v + skip, (kept - skip) * sizeof *v);
        kept -= skip;
    }
    *out = v;
    *out_n = kept;
    return NULL;
}

static nrd_error *sign_folder(uint64_t *inout, const char *dir, int depth)
{
    enum { MAX_DEPTH = 8 }; /* deeper files do not count: links may go in circles */
    char **names = NULL;
    size_t n = 0;
    nrd_error *err = nrd_dir_list(&names, &n, dir);

    if (err && access(dir, R_OK | X_OK) != 0) { /* it is gone, or never to be read: it does not count */
        nrd_error_free(err);
        return NULL;
    }
    for (size_t i = 0; i < n && !err; i++) {
        char *path = NULL;
        struct stat st;
        err = nrd_path_make(&path, dir, names[i]);
        if (path && stat(path, &st) == 0) {
            *inout = nrd_hash_bytes(*inout, names[i], strlen(names[i]));
            if (S_ISDIR(st.st_mode)) {
                err = depth < MAX_DEPTH ? sign_folder(inout, path, depth + 1) : NULL;
            } else {
                *inout = nrd_hash_u64(*inout, (uint64_t)st.st_size);
                *inout = nrd_hash_u64(*inout, (uint64_t)st.st_mtim.tv_sec * 1000000000u +
                                                  (uint64_t)st.st_mtim.tv_nsec);
            }
        }
        free(path);
    }
    nrd_names_free(names, n);
    return err;
}

nrd_error *nrd_scan_signature(uint64_t *out, const char *dir)
{
    *out = 1;
    return sign_folder(out, dir, 0);
}
