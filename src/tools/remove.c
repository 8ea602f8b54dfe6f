/* SPDX-License-Identifier: Apache-2.0
 * nereid rm: models out of the cache. */
#include "tools/tools.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "hub/cache.h"
#include "hub/inventory.h"
#include "hub/remove.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "Usage: nereid rm NAME... [options]\n"
    "Removes models from the cache: ORG/NAME with all types and revisions, ORG/NAME:QUANT or ORG/NAME/FILE.gguf a\n"
    "file, ORG/NAME@REVISION a revision, https://… a file of another address (nereid list).\n";

enum { MAX_NAMES = 64 };

typedef struct options {
    bool yes, json;
} options;

#define OPT(...) NRD_OPT_ROW(options, __VA_ARGS__)
static const nrd_opt rows[] = {
    OPT(FLAG, "yes", "-y", yes, NULL, NULL, "do not ask"),
    OPT(FLAG, "json", NULL, json, NULL, NULL, "print an object: what was removed, and bytes"),
};
const nrd_tool_table nrd_rm_table = NRD_TOOL_TABLE("rm", usage, rows, MAX_NAMES);

typedef struct removal {
    const nrd_hub_settings *s;
    const options *o;
    nrd_str removed; /* members of a JSON list */
    uint64_t bytes;
} removal;

static bool is_meant(const nrd_hub_entry *e, const nrd_hub_id *id, const char *repo_dir, const char *commit,
                     const char *path)
{
    if (id->url[0] || id->quant[0] || id->file[0]) {
        return path && !strcmp(e->path, path);
    }
    return e->repo_dir && !strcmp(e->repo_dir, repo_dir) && (!commit[0] || !strcmp(e->commit, commit));
}

static nrd_error *remove_meant(const removal *r, const nrd_hub_inventory *all, const bool *meant, const char *whole)
{
    if (whole) {
        return nrd_hub_remove_repo(r->s, whole);
    }
    for (size_t i = 0; i < all->n; i++) {
        if (meant[i]) {
            NRD_TRY(nrd_hub_remove_entry(r->s, &all->v[i]));
        }
    }
    return NULL;
}

/* Asks, removes and counts. whole: a folder of the cache instead of single entries, or NULL. */
static nrd_error *ask_and_remove(removal *r, const char *name, const nrd_hub_inventory *all, const bool *meant,
                                 const char *whole)
{
    uint64_t bytes = whole ? nrd_hub_tree_bytes(whole) : 0;
    char size[32];
    bool yes = r->o->yes;
    nrd_error *err = NULL;

    for (size_t i = 0; i < all->n && !whole; i++) {
        bytes += meant[i] ? all->v[i].bytes : 0;
    }
    if (!yes) {
        char *question = nrd_xasprintf("Remove %s (%s)", name, nrd_human_bytes(bytes, size));
        err = nrd_tool_confirm(&yes, question);
        free(question);
    }
    if (!err && yes) {
        err = remove_meant(r, all, meant, whole);
    }
    if (!err && yes) {
        r->bytes += bytes;
        nrd_str_puts(&r->removed, r->removed.len ? ", " : "");
        nrd_json_put_cstr(&r->removed, name);
        if (!r->o->json) {
            printf("removed %s, %s\n", name, nrd_human_bytes(bytes, size));
        }
    }
    return err;
}

static nrd_error *remove_name(removal *r, const char *name)
{
    nrd_hub_inventory all;
    nrd_hub_id id;
    char commit[NRD_HUB_COMMIT + 1] = "";
    size_t n = 0;
    nrd_error *err = NULL;

    NRD_TRY(nrd_hub_id_parse(&id, name, r->s->endpoint));
    char *repo_dir = nrd_hub_repo_dir(r->s, id.repo), *path = nrd_hub_cached(r->s, &id);
    const bool is_part = id.url[0] || id.quant[0] || id.file[0] || strchr(name, '@');
    const bool has_commit = !strchr(name, '@') || nrd_hub_cached_commit(repo_dir, id.rev, commit);
    nrd_hub_inventory_read(&all, r->s);
    bool *meant = nrd_xcalloc(all.n + 1, sizeof *meant);
    for (size_t i = 0; i < all.n && has_commit; i++) {
        meant[i] = is_meant(&all.v[i], &id, repo_dir, commit, path);
        n += meant[i];
    }
    if (n == 0 && (is_part || !nrd_path_is_dir(repo_dir))) {
        err = nrd_errorf(NRD_ERR_NOT_FOUND, "'%s' is not in the cache: nereid list tells what is there", name);
    } else {
        err = ask_and_remove(r, name, &all, meant, is_part ? NULL : repo_dir);
    }
    free(meant);
    nrd_hub_inventory_fini(&all);
    free(path);
    free(repo_dir);
    return err;
}

int nrd_tool_rm(int argc, char **argv)
{
    options o = {.yes = false};
    nrd_hub_settings s = {0};
    removal r = {.s = &s, .o = &o};
    const char *names[MAX_NAMES];
    size_t n = 0;
    int status = nrd_tool_parse(&nrd_rm_table, argc, argv, &o, names, &n);

    if (status >= 0) {
        return status;
    }
    if (n == 0) {
        fputs("nereid rm: NAME is missing (see --help)\n", stderr);
        return 2;
    }
    nrd_error *err = nrd_hub_settings_read(&s);
    for (size_t i = 0; i < n && !err; i++) {
        err = remove_name(&r, names[i]);
    }
    if (o.json) {
        printf("{\"removed\": [%s], \"bytes\": %llu}\n", nrd_str_cstr(&r.removed), (unsigned long long)r.bytes);
    }
    nrd_str_fini(&r.removed);
    nrd_hub_settings_fini(&s);
    return nrd_tool_finish("rm", err);
}
