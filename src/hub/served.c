/* SPDX-License-Identifier: Apache-2.0 */
#include "hub/served.h"

#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "hub/cache.h"
#include "hub/id.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_RECORD = 16 << 10 };

static char *folder_of(const nrd_hub_settings *s)
{
    return nrd_path_join(s->own, "served");
}

/* Two caches may have the same model: the hash tells them apart. */
static char *path_of(const nrd_hub_settings *s, const char *name)
{
    uint64_t h = nrd_hash_bytes(1, name, strlen(name));
    h = nrd_hash_bytes(h, s->cache, strlen(s->cache));
    return nrd_xasprintf("%s/served/%016llx.json", s->own, (unsigned long long)h);
}

static nrd_error *read_record(const char *path, nrd_json_doc **out)
{
    const nrd_json_limits limits = {.max_bytes = MAX_RECORD, .max_depth = 2, .max_nodes = 16};
    return nrd_json_parse_file(out, path, &limits);
}

static nrd_error *write_record(const nrd_hub_settings *s, const char *path, const char *name, bool fetched)
{
    nrd_str text = {0};
    char *dir = folder_of(s);

    nrd_str_puts(&text, "{\"name\": ");
    nrd_json_put_cstr(&text, name);
    nrd_str_puts(&text, ", \"cache\": ");
    nrd_json_put_cstr(&text, s->cache);
    nrd_str_printf(&text, ", \"fetched\": %s}\n", fetched ? "true" : "false");
    nrd_error *err = nrd_mkdirs(dir);
    err = err ? err : nrd_str_error(&text);
    err = err ? err : nrd_file_write(path, nrd_str_cstr(&text), text.len);
    nrd_str_fini(&text);
    free(dir);
    return err;
}

/* Where the model of a record lies; NULL: it is not for this cache, or is not there. */
static char *find(const nrd_hub_settings *s, const nrd_json *record)
{
    const char *name = nrd_json_get_str(record, "name", "");
    nrd_hub_id id;

    if (strcmp(nrd_json_get_str(record, "cache", ""), s->cache) != 0) {
        return NULL;
    }
    char *text = nrd_xasprintf("hf:%s", name);
    nrd_error *err = nrd_hub_id_parse(&id, text, s->endpoint);
    char *path = err || id.url[0] ? NULL : nrd_hub_cached(s, &id);
    nrd_error_free(err);
    free(text);
    return path;
}

nrd_error *nrd_hub_served_add(const nrd_hub_settings *s, const char *name, bool *fetched, char **out_record)
{
    nrd_json_doc *doc = NULL;
    char *path = path_of(s, name);

    nrd_error *err = nrd_path_exists(path) ? read_record(path, &doc) : NULL;
    if (!err && doc) {
        *fetched = nrd_json_get_bool(nrd_json_root(doc), "fetched", *fetched);
    } else {
        nrd_error_free(err); /* it was damaged: written anew */
        err = write_record(s, path, name, *fetched);
    }
    nrd_json_doc_free(doc);
    if (err) {
        free(path);
        return err;
    }
    *out_record = path;
    return NULL;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const nrd_hub_served *)a)->name, ((const nrd_hub_served *)b)->name);
}

void nrd_hub_served_read(nrd_hub_served_list *out, const nrd_hub_settings *s)
{
    char *dir = folder_of(s), **names = NULL;
    size_t n = 0;

    *out = (nrd_hub_served_list){0};
    nrd_error_free(nrd_path_is_dir(dir) ? nrd_dir_list(&names, &n, dir) : NULL);
    out->v = nrd_xcalloc(n + 1, sizeof *out->v);
    for (size_t i = 0; i < n; i++) {
        nrd_json_doc *doc = NULL;
        char *record = nrd_path_join(dir, names[i]);
        nrd_error *err = nrd_str_has_suffix(names[i], ".json") ? read_record(record, &doc) : NULL;
        const nrd_json *root = nrd_json_root(doc);
        char *path = root ? find(s, root) : NULL;
        if (path) {
            out->v[out->n++] = (nrd_hub_served){.name = nrd_xstrdup(nrd_json_get_str(root, "name", "")), .path = path,
                                                .record = record, .fetched = nrd_json_get_bool(root, "fetched", false)};
        } else {
            free(record);
        }
        nrd_error_free(err);
        nrd_json_doc_free(doc);
    }
    qsort(out->v, out->n, sizeof *out->v, by_name);
    nrd_names_free(names, n);
    free(dir);
}

void nrd_hub_served_fini(nrd_hub_served_list *all)
{
    for (size_t i = 0; i < all->n; i++) {
        free(all->v[i].name);
        free(all->v[i].path);
        free(all->v[i].record);
    }
    free(all->v);
    *all = (nrd_hub_served_list){0};
}
