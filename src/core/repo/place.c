/* SPDX-License-Identifier: Apache-2.0 */
#include "core/repo/place.h"

#include "core/agent.h"
#include "core/repo/scan.h"

#include "base/file.h"
#include "base/hash.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/plugin.h"
#include "base/str.h"
#include "cloud/plugin.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

enum { MAX_NAME = 1024, MAX_PART = 255 };
#define MAX_BYTES ((uint64_t)16 << 40) /* of one model: more is a mistake in a list */

struct nrd_files {
    atomic_int refs;
    char *dir;
    bool is_copy;
};

/* ---- the plug-in ---- */

static nrd_plugin plugin =
    NRD_PLUGIN(.file = "nereid_cloud.so", .symbol = NRD_CLOUD_SYMBOL,
               .need = "repositories in S3, Google Cloud Storage and Azure need",
               .built_with = "libcurl4-openssl-dev, libexpat1-dev and libssl-dev",
               .beside = &plugin);

static nrd_error *cloud(const nrd_cloud_ops **out)
{
    const void *table = NULL;
    nrd_error *err = nrd_plugin_open(&plugin, &table);
    *out = table;
    return err;
}

static nrd_error *as_error(const nrd_cloud_fault *fault)
{
    return fault->code ? nrd_errorf((nrd_error_code)fault->code, "%s", fault->text) : NULL;
}

bool nrd_place_is_remote(const char *path)
{
    return nrd_str_has_prefix(path, "s3://") || nrd_str_has_prefix(path, "gs://") || nrd_str_has_prefix(path, "as://");
}

/* ---- lists ---- */

typedef struct object {
    char *name, *etag;
    uint64_t size;
} object;

typedef struct object_list {
    object *items;
    size_t n;
    size_t most; /* that are wanted; one more is an error where is_limit */
    bool is_limit;
    uint64_t bytes;
    nrd_error *err;
} object_list;

static void list_fini(object_list *l)
{
    for (size_t i = 0; i < l->n; i++) {
        free(l->items[i].name);
        free(l->items[i].etag);
    }
    free(l->items);
}

static bool keep_object(void *user, const char *name, uint64_t size, const char *etag)
{
    object_list *l = user;

    if (l->n >= l->most) {
        if (l->is_limit) {
            l->err = nrd_errorf(NRD_ERR_INVALID_ARG, "more than %zu objects", l->most);
        }
        return false;
    }
    if (!nrd_size_add(l->bytes, size, &l->bytes) || l->bytes > MAX_BYTES) {
        l->err = nrd_errorf(NRD_ERR_INVALID_ARG, "objects of more than %llu bytes together",
                            (unsigned long long)MAX_BYTES);
        return false;
    }
    if ((l->n & (l->n - 1)) == 0) { /* 0, 1, 2, 4, … */
        object *grown = realloc(l->items, (l->n ? l->n * 2 : 1) * sizeof *grown);
        l->err = grown ? NULL : nrd_error_no_memory();
        l->items = grown ? grown : l->items;
    }
    if (l->err) {
        return false;
    }
    l->items[l->n++] = (object){.name = strdup(name), .etag = strdup(etag), .size = size};
    if (!l->items[l->n - 1].name || !l->items[l->n - 1].etag) {
        l->err = nrd_error_no_memory();
    }
    return !l->err;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const object *)a)->name, ((const object *)b)->name);
}

/* All objects below an address, sorted; the caller ends the list also on errors. */
static nrd_error *list_objects(object_list *out, const char *dir)
{
    const nrd_cloud_ops *ops = NULL;
    nrd_cloud_fault fault = {0};

    *out = (object_list){.most = NRD_LIMIT_REMOTE_OBJECTS, .is_limit = true};
    NRD_TRY(cloud(&ops));
    ops->objects(dir, keep_object, out, &fault);
    NRD_TRY(nrd_error_wrap(out->err, "%s", dir));
    NRD_TRY(as_error(&fault));
    if (out->n) {
        qsort(out->items, out->n, sizeof *out->items, by_name);
    }
    return NULL;
}

static uint64_t sign_objects(const object_list *l)
{
    uint64_t h = 1;
    for (size_t i = 0; i < l->n; i++) {
        h = nrd_hash_bytes(h, l->items[i].name, strlen(l->items[i].name));
        h = nrd_hash_bytes(h, l->items[i].etag, strlen(l->items[i].etag));
        h = nrd_hash_u64(h, l->items[i].size);
    }
    return h;
}

/* ---- folders ---- */

nrd_error *nrd_place_has_folder(bool *out, const char *path)
{
    const nrd_cloud_ops *ops = NULL;
    nrd_cloud_fault fault = {0};
    object_list l = {.most = 1};

    *out = false;
    if (!nrd_place_is_remote(path)) {
        *out = nrd_path_is_dir(path);
        return NULL;
    }
    NRD_TRY(cloud(&ops));
    ops->objects(path, keep_object, &l, &fault);
    *out = l.n > 0;
    list_fini(&l);
    if (l.err && nrd_error_get_code(l.err) == NRD_ERR_NO_MEMORY) {
        *out = false;
        return l.err;
    }
    nrd_error_free(l.err); /* one object that is too large is there all the same */
    return as_error(&fault);
}

nrd_error *nrd_place_check(const char *path)
{
    bool is_there = false;

    if (nrd_place_is_remote(path)) {
        NRD_TRY(nrd_place_has_folder(&is_there, path));
        if (!is_there) {
            NRD_LOG_WARN("model repository '%s' has no objects", path);
        }
        return NULL;
    }
    if (!nrd_path_exists(path)) { /* code and words are Triton's */
        return nrd_errorf(NRD_ERR_INTERNAL, "failed to stat file %s", path);
    }
    return nrd_path_is_dir(path) ? NULL
                                 : nrd_errorf(NRD_ERR_INVALID_ARG, "repository path is not a valid directory: %s", path);
}

nrd_error *nrd_place_models(char ***out_names, size_t *out_n, const char *repository)
{
    const nrd_cloud_ops *ops = NULL;
    nrd_cloud_fault fault = {0};
    object_list l = {.most = NRD_LIMIT_REMOTE_OBJECTS, .is_limit = true};

    *out_names = NULL;
    *out_n = 0;
    if (!nrd_place_is_remote(repository)) {
        return nrd_scan_models(out_names, out_n, repository);
    }
    NRD_TRY(cloud(&ops));
    ops->folders(repository, keep_object, &l, &fault);
    nrd_error *err = l.err ? nrd_error_wrap(l.err, "%s", repository) : as_error(&fault);
    char **names = err ? NULL : calloc(l.n + 1, sizeof *names);
    err = !err && !names ? nrd_error_no_memory() : err;
    for (size_t i = 0; i < l.n && !err; i++) {
        if (l.items[i].name[0] != '.' && !strchr(l.items[i].name, '/')) { /* as on this machine */
            names[*out_n] = l.items[i].name; /* the list's, until now */
            l.items[i].name = NULL;
            (*out_n)++;
        }
    }
    *out_names = names;
    list_fini(&l);
    return err;
}

nrd_error *nrd_place_signature(uint64_t *out, const char *dir)
{
    object_list l;

    if (!nrd_place_is_remote(dir)) {
        return nrd_scan_signature(out, dir);
    }
    nrd_error *err = list_objects(&l, dir);
    *out = err ? 0 : sign_objects(&l);
    list_fini(&l);
    return err;
}

/* ---- copies ---- */

static nrd_error *check_name(const char *dir, const char *name)
{
    size_t part = 0;
    bool ok = nrd_path_stays_inside(name) && strlen(name) <= MAX_NAME;

    for (const unsigned char *p = (const unsigned char *)name; *p && ok; p++) {
        part = *p == '/' ? 0 : part + 1;
        ok = *p >= ' ' && *p != 127 && part <= MAX_PART && !(*p == '/' && p[1] == '/') &&
             !(p[0] == '.' && part == 1 && (p[1] == '/' || !p[1]));
    }
    return ok ? NULL
              : nrd_errorf(NRD_ERR_INVALID_ARG,
                           "%s: the name of object '%s' is no path of a file within the model's folder", dir, name);
}

static nrd_error *check_room(const char *dir, const char *local, uint64_t bytes)
{
    struct statvfs v;

    if (statvfs(local, &v) == 0 && (uint64_t)v.f_bavail * v.f_frsize < bytes) {
        return nrd_errorf(NRD_ERR_UNAVAILABLE, "%s: its files have %" PRIu64 " bytes, '%s' has room for %" PRIu64, dir,
                          bytes, local, (uint64_t)v.f_bavail * v.f_frsize);
    }
    return NULL;
}

/* Makes the folders and says which files go where; paths are owned by the list. */
static nrd_error *plan(nrd_cloud_file *files, size_t *out_n, const object_list *l, const char *dir, const char *local)
{
    for (size_t i = 0; i < l->n; i++) {
        const object *o = &l->items[i];
        const size_t n = strlen(o->name);
        const bool is_folder = o->name[n - 1] == '/'; /* some programs mark folders so */
        char *name = strndup(o->name, is_folder ? n - 1 : n), *path = NULL, *folder = NULL;
        nrd_error *err = name ? check_name(dir, name) : nrd_error_no_memory();
        err = err ? err : nrd_path_make(&path, local, name);
        err = err ? err : is_folder ? nrd_path_make(&folder, local, name) : nrd_path_make_dir(&folder, path);
        err = err ? err : nrd_error_wrap(nrd_mkdirs(folder), "%s", dir);
        free(folder);
        free(name);
        if (err || is_folder) {
            free(path);
        } else {
            files[(*out_n)++] = (nrd_cloud_file){.name = o->name, .etag = o->etag, .path = path, .size = o->size};
        }
        NRD_TRY(err);
    }
    return NULL;
}

static nrd_error *copy(const char *local, const object_list *l, const char *dir)
{
    const nrd_cloud_ops *ops = NULL;
    nrd_cloud_file *files = calloc(l->n + 1, sizeof *files);
    nrd_cloud_fault fault = {0};
    size_t n = 0;
    nrd_error *err = files ? cloud(&ops) : nrd_error_no_memory();

    err = err ? err : check_room(dir, local, l->bytes);
    err = err ? err : plan(files, &n, l, dir, local);
    if (!err) {
        ops->copy(dir, files, n, &fault);
        err = as_error(&fault);
    }
    for (size_t i = 0; i < n; i++) {
        free((void *)(uintptr_t)files[i].path);
    }
    free(files);
    return err;
}

static nrd_error *get_copy(nrd_files *f, uint64_t *out_signature, const char *dir)
{
    const nrd_cloud_ops *ops = NULL;
    object_list l = {0};
    nrd_error *err = cloud(&ops);
    const char *mount = err ? NULL : ops->mount_dir(dir);

    NRD_TRY(err);
    NRD_TRY(nrd_path_make(&f->dir, mount ? mount : "/tmp", "folderXXXXXX"));
    if (!mkdtemp(f->dir)) { /* for this user only */
        return nrd_errorf(NRD_ERR_INTERNAL, "%s: cannot make a folder for its files in '%s'", dir, mount ? mount : "/tmp");
    }
    f->is_copy = true;
    err = list_objects(&l, dir);
    if (!err) {
        *out_signature = sign_objects(&l);
        NRD_LOG_VERBOSE(1, "copying %zu objects of %" PRIu64 " bytes from '%s' to '%s'", l.n, l.bytes, dir, f->dir);
        err = l.n ? copy(f->dir, &l, dir)
                  : nrd_errorf(NRD_ERR_NOT_FOUND, "%s: there is no object below this address", dir);
    }
    list_fini(&l);
    return err;
}

nrd_error *nrd_files_get(nrd_files **out, uint64_t *out_signature, const char *dir)
{
    nrd_files *f = calloc(1, sizeof *f);
    nrd_error *err = NULL;

    *out = NULL;
    *out_signature = 0;
    if (!f) {
        return nrd_error_no_memory();
    }
    atomic_init(&f->refs, 1);
    if (nrd_place_is_remote(dir)) {
        err = get_copy(f, out_signature, dir);
    } else {
        f->dir = strdup(dir);
        err = f->dir ? NULL : nrd_error_no_memory();
        nrd_error_free(nrd_scan_signature(out_signature, dir)); /* at worst polling loads it once more */
    }
    if (err) {
        nrd_files_unref(f);
        return err;
    }
    *out = f;
    return NULL;
}

const char *nrd_files_dir(const nrd_files *f)
{
    return f->dir;
}

nrd_files *nrd_files_ref(nrd_files *f)
{
    atomic_fetch_add(&f->refs, 1);
    return f;
}

void nrd_files_unref(nrd_files *f)
{
    if (f && atomic_fetch_sub(&f->refs, 1) == 1) {
        if (f->is_copy) {
            nrd_remove_tree(f->dir);
        }
        free(f->dir);
        free(f);
    }
}
