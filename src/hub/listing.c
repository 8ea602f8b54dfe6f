/* SPDX-License-Identifier: Apache-2.0 */
#include "hub/listing.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "hub/id.h"

#include <string.h>

enum { MAX_PART = 255, MAX_NODES = 1 << 20, MAX_DEPTH = 16 };

bool nrd_hub_is_hash(const char *text, size_t n)
{
    return strlen(text) == n && strspn(text, "0123456789abcdef") == n;
}

/* JSON's strings may hold NULs: they end names here, so what stands behind them must be nothing. */
static bool is_path(const nrd_json *node)
{
    const char *path = nrd_json_str(node, "");
    size_t part = 0;

    if (!nrd_json_is(node, NRD_JSON_STRING) || strlen(path) != node->n || node->n > NRD_HUB_MAX_PATH ||
        !nrd_path_stays_inside(path)) {
        return false;
    }
    for (const char *p = path; *p; p++) {
        const unsigned char c = (unsigned char)*p;
        part = c == '/' ? 0 : part + 1;
        if (c < 0x20 || c == 0x7f || c == '\\' || part > MAX_PART || (c == '/' && (p[1] == '/' || !p[1]))) {
            return false;
        }
    }
    return true;
}

/* For a terminal: of a stranger's text what is plain. */
static nrd_error *no_path(const char *name)
{
    char plain[100];
    size_t n = 0;
    for (; name[n] && n + 1 < sizeof plain; n++) {
        plain[n] = name[n] >= 0x20 && name[n] < 0x7f ? name[n] : '?';
    }
    plain[n] = '\0';
    return nrd_errorf(NRD_ERR_INVALID_ARG, "path '%s' is no name of a file inside the model", plain);
}

static nrd_error *read_size(uint64_t *out, const nrd_json *node, const char *path)
{
    const int64_t size = nrd_json_int(node, -1);
    if (size < 0 || (uint64_t)size > NRD_HUB_MAX_FILE_BYTES) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'%s': size is no number of 0 to %llu bytes", path,
                          (unsigned long long)NRD_HUB_MAX_FILE_BYTES);
    }
    *out = (uint64_t)size;
    return NULL;
}

static nrd_error *read_file(nrd_hub_file *out, const nrd_json *entry)
{
    const nrd_json *path = nrd_json_get(entry, "path"), *lfs = nrd_json_get(entry, "lfs");
    const char *name = nrd_json_str(path, "");

    if (!is_path(path)) {
        return no_path(name);
    }
    out->is_lfs = nrd_json_is(lfs, NRD_JSON_OBJECT);
    const char *hash = nrd_json_get_str(out->is_lfs ? lfs : entry, "oid", "");
    const size_t digits = out->is_lfs ? NRD_HUB_MAX_HASH : NRD_HUB_COMMIT;
    if (!nrd_hub_is_hash(hash, digits)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'%s': %s is no hash of %zu hexadecimal digits", name,
                          out->is_lfs ? "lfs.oid" : "oid", digits);
    }
    memcpy(out->hash, hash, digits + 1);
    NRD_TRY(read_size(&out->size, nrd_json_get(out->is_lfs ? lfs : entry, "size"), name));
    out->path = strdup(name);
    return out->path ? NULL : nrd_error_no_memory();
}

static nrd_error *add_file(nrd_hub_listing *l, const nrd_json *entry)
{
    nrd_hub_file file = {.size = 0};

    if (l->n >= NRD_HUB_MAX_FILES) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "more than %d files", NRD_HUB_MAX_FILES);
    }
    if (l->n == l->cap) {
        const size_t cap = l->cap ? 2 * l->cap : 64;
        nrd_hub_file *grown = realloc(l->files, cap * sizeof *grown);
        if (!grown) {
            return nrd_error_no_memory();
        }
        l->files = grown;
        l->cap = cap;
    }
    NRD_TRY(read_file(&file, entry));
    l->files[l->n++] = file;
    return NULL;
}

nrd_error *nrd_hub_listing_add(nrd_hub_listing *l, const char *json, size_t n)
{
    const nrd_json_limits limits = {.max_bytes = n + 1, .max_depth = MAX_DEPTH, .max_nodes = MAX_NODES};
    nrd_json_doc *doc = NULL;
    nrd_error *err = nrd_json_parse(&doc, json, n, &limits);
    const nrd_json *root = err ? NULL : nrd_json_root(doc);

    if (!err && !nrd_json_is(root, NRD_JSON_ARRAY)) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "expected a list of files, got %s", nrd_json_type_name(root));
    }
    for (size_t i = 0; !err && i < nrd_json_len(root); i++) {
        const nrd_json *entry = nrd_json_at(root, i);
        if (!strcmp(nrd_json_get_str(entry, "type", ""), "file")) {
            err = add_file(l, entry);
        }
    }
    nrd_json_doc_free(doc);
    return nrd_error_wrap(err, "the hub's list of files");
}

void nrd_hub_listing_fini(nrd_hub_listing *l)
{
    for (size_t i = 0; i < l->n; i++) {
        free(l->files[i].path);
    }
    free(l->files);
    *l = (nrd_hub_listing){0};
}

nrd_error *nrd_hub_read_commit(char out[NRD_HUB_COMMIT + 1], const char *json, size_t n)
{
    const nrd_json_limits limits = {.max_bytes = n + 1, .max_depth = MAX_DEPTH, .max_nodes = MAX_NODES};
    nrd_json_doc *doc = NULL;
    nrd_error *err = nrd_json_parse(&doc, json, n, &limits);

    if (!err) {
        const char *sha = nrd_json_get_str(nrd_json_root(doc), "sha", "");
        if (nrd_hub_is_hash(sha, NRD_HUB_COMMIT)) {
            memcpy(out, sha, NRD_HUB_COMMIT + 1);
        } else {
            err = nrd_errorf(NRD_ERR_INVALID_ARG, "sha is no commit of %d hexadecimal digits", NRD_HUB_COMMIT);
        }
    }
    nrd_json_doc_free(doc);
    return nrd_error_wrap(err, "the hub's description of the model");
}
