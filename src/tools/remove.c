/* SPDX-License-Identifier: Apache-2.0
 * nereid rm: models out of the cache. */
#include "tools/made.h"
#include "tools/tools.h"

#include "base/cache_entry.h"
#include "base/file.h"
#include "base/json.h"
#include "base/made_from.h"
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
    "file, ORG/NAME@REVISION a revision, https://… a file of another address (nereid list); with each the engines,\n"
    "tokenizers and repositories that were made of it, but for those of running servers.\n";

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

/* ---- what was made of it ---- */

/* The model at this path, without links, goes: an entry that is meant, and of which no other that stays has the file. */
static bool goes(const nrd_hub_inventory *all, const bool *meant, const char *whole, const char *model)
{
    char *repo = whole ? realpath(whole, NULL) : NULL;
    const size_t n = repo ? strlen(repo) : 0;
    bool found = n > 0 && !strncmp(model, repo, n) && model[n] == '/', stays = false;

    free(repo);
    for (size_t i = 0; i < all->n && !whole; i++) {
        char *real = realpath(all->v[i].path, NULL);
        if (real && !strcmp(real, model)) {
            found = found || meant[i];
            stays = stays || !meant[i];
        }
        free(real);
    }
    return found && !stays;
}

/* Engines, tokenizers and repositories of the models that go; what a program uses stays. */
static void find_made(nrd_made_list *made, const removal *r, const nrd_hub_inventory *all, const bool *meant, const char *whole)
{
    nrd_str in_use = {0};
    size_t n = 0;

    nrd_made_list_read(made, r->s->own);
    nrd_cache_in_use(&in_use);
    for (size_t i = 0; i < made->n; i++) {
        nrd_made m = made->v[i];
        char *model = nrd_made_from_read(m.path);
        if (model && goes(all, meant, whole, model) && !nrd_cache_is_in_use(&in_use, m.path)) {
            made->v[n++] = m;
        } else {
            free(m.name);
            free(m.path);
        }
        free(model);
    }
    made->n = n;
    nrd_str_fini(&in_use);
}

/* ---- what goes ---- */

/* What an entry takes alone: a vision tower that others need stays, too. */
static nrd_error *remove_entry(const removal *r, const nrd_hub_entry *e, uint64_t *freed)
{
    char *blobs = e->repo_dir ? nrd_path_join(e->repo_dir, "blobs") : NULL;
    const uint64_t before = blobs ? nrd_hub_tree_bytes(blobs) : e->bytes;
    nrd_error *err = nrd_hub_remove_entry(r->s, e);

    *freed += before - (blobs ? nrd_hub_tree_bytes(blobs) : 0);
    free(blobs);
    return err;
}

/* freed: bytes, of models alone. */
static nrd_error *remove_meant(const removal *r, const nrd_hub_inventory *all, const bool *meant, const char *whole,
                               const nrd_made_list *made, uint64_t *freed)
{
    *freed = whole ? nrd_hub_tree_bytes(whole) : 0;
    for (size_t i = 0; i < made->n; i++) {
        NRD_TRY(nrd_made_remove(made->v[i].path));
    }
    if (whole) {
        return nrd_hub_remove_repo(r->s, whole);
    }
    for (size_t i = 0; i < all->n; i++) {
        if (meant[i]) {
            NRD_TRY(remove_entry(r, &all->v[i], freed));
        }
    }
    return NULL;
}

static void tell(removal *r, const char *name, uint64_t bytes)
{
    char size[32];
    r->bytes += bytes;
    nrd_str_puts(&r->removed, r->removed.len ? ", " : "");
    nrd_json_put_cstr(&r->removed, name);
    if (!r->o->json) {
        printf("removed %s, %s\n", name, nrd_human_bytes(bytes, size));
    }
}

static nrd_error *ask(bool *out_yes, const char *name, uint64_t bytes, const nrd_made_list *made)
{
    char size[32];
    nrd_str question = {0};
    uint64_t more = 0;

    for (size_t i = 0; i < made->n; i++) {
        more += made->v[i].bytes;
    }
    nrd_str_printf(&question, "Remove %s (%s)", name, nrd_human_bytes(bytes, size));
    if (made->n > 0) {
        nrd_str_printf(&question, " and what was made of it (%s):", nrd_human_bytes(more, size));
    }
    for (size_t i = 0; i < made->n; i++) {
        nrd_str_printf(&question, " %s", made->v[i].name);
    }
    nrd_error *err = nrd_tool_confirm(out_yes, nrd_str_cstr(&question));
    nrd_str_fini(&question);
    return err;
}

/* Asks, removes and counts. whole: a folder of the cache instead of single entries, or NULL. */
static nrd_error *ask_and_remove(removal *r, const char *name, const nrd_hub_inventory *all, const bool *meant,
                                 const char *whole)
{
    uint64_t bytes = whole ? nrd_hub_tree_bytes(whole) : 0;
    bool yes = r->o->yes;
    nrd_made_list made;
    nrd_error *err = NULL;

    find_made(&made, r, all, meant, whole);
    for (size_t i = 0; i < all->n && !whole; i++) {
        bytes += meant[i] ? all->v[i].bytes : 0;
    }
    if (!yes) {
        err = ask(&yes, name, bytes, &made);
    }
    if (!err && yes) {
        err = remove_meant(r, all, meant, whole, &made, &bytes);
    }
    if (!err && yes) {
        tell(r, name, bytes);
        for (size_t i = 0; i < made.n; i++) {
            tell(r, made.v[i].name, made.v[i].bytes);
        }
    }
    nrd_made_list_fini(&made);
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
