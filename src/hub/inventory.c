/* SPDX-License-Identifier: Apache-2.0 */
#include "hub/inventory.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "hub/cache.h"
#include "hub/choose.h"
#include "hub/record.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

static void add(nrd_hub_inventory *all, nrd_hub_entry e)
{
    if (all->n == all->cap) {
        all->cap = all->cap ? 2 * all->cap : 16;
        all->v = nrd_xrealloc(all->v, all->cap * sizeof *all->v);
    }
    all->v[all->n++] = e;
}

/* Sizes and times of the files that are wanted. */
static void measure(nrd_hub_entry *e, const char *dir, char *const *names, size_t n, const bool *wanted)
{
    for (size_t i = 0; i < n; i++) {
        struct stat st;
        char *path = wanted[i] ? nrd_path_join(dir, names[i]) : NULL;
        if (path && stat(path, &st) == 0) {
            e->bytes += (uint64_t)st.st_size;
            e->modified = st.st_mtime > e->modified ? st.st_mtime : e->modified;
        }
        free(path);
    }
}

/* "", or "@REV" where the revision is not the usual one. */
static const char *mark(char out[300], const char *rev)
{
    snprintf(out, 300, "%s%s", strcmp(rev, "main") ? "@" : "", strcmp(rev, "main") ? rev : "");
    return out;
}

typedef struct snapshot {
    const nrd_hub_settings *s;
    const char *repo, *repo_dir, *rev, *commit;
    char *dir, **names;
    size_t n;
} snapshot;

/* What `id` means in this snapshot. false: nothing. */
static bool add_chosen(nrd_hub_inventory *all, const snapshot *p, const nrd_hub_id *id, char *name)
{
    bool *wanted = nrd_xcalloc(p->n + 1, sizeof *wanted);
    const char *model = NULL;
    nrd_error *err = nrd_hub_choose(id, (const char *const *)p->names, p->n, wanted, &model);
    const bool is_found = !err;

    if (is_found) {
        nrd_hub_entry e = {.name = name, .path = model ? nrd_path_join(p->dir, model) : nrd_xstrdup(p->dir),
                           .repo_dir = nrd_xstrdup(p->repo_dir)};
        snprintf(e.commit, sizeof e.commit, "%s", p->commit);
        measure(&e, p->dir, p->names, p->n, wanted);
        e.is_ours = nrd_hub_record_has(p->s, p->repo_dir, p->commit, model ? model : "config.json", &e.used);
        e.used = e.used ? e.used : e.modified;
        add(all, e);
    } else {
        free(name);
    }
    nrd_error_free(err);
    free(wanted);
    return is_found;
}

static bool has_name(const nrd_hub_inventory *all, const char *name)
{
    for (size_t i = 0; i < all->n; i++) {
        if (!strcmp(all->v[i].name, name)) {
            return true;
        }
    }
    return false;
}

static void add_gguf(nrd_hub_inventory *all, const snapshot *p, const char *file)
{
    nrd_hub_id id = {.repo = ""};
    char type[32], at[300];
    char *name;

    nrd_hub_type_of_name(file, type);
    snprintf(id.repo, sizeof id.repo, "%s", p->repo);
    snprintf(id.file, sizeof id.file, "%s", file);
    name = type[0] ? nrd_xasprintf("%s:%s%s", p->repo, type, mark(at, p->rev)) : NULL;
    if (!name || has_name(all, name)) { /* two of one type: by their files */
        free(name);
        name = nrd_xasprintf("%s/%s%s", p->repo, file, mark(at, p->rev));
    }
    (void)add_chosen(all, p, &id, name);
}

static void add_snapshot(nrd_hub_inventory *all, const nrd_hub_settings *s, const char *repo, const char *repo_dir,
                         const char *rev, const char *commit)
{
    snapshot p = {.s = s, .repo = repo, .repo_dir = repo_dir, .rev = rev, .commit = commit,
                  .dir = nrd_xasprintf("%s/snapshots/%s", repo_dir, commit)};
    nrd_hub_id folder = {.repo = ""};
    char at[300];
    bool has_weights = false;

    nrd_hub_files_below(p.dir, &p.names, &p.n);
    for (size_t i = 0; i < p.n; i++) {
        size_t len = strlen(p.names[i]);
        const bool is_gguf = len > 5 && !strcasecmp(p.names[i] + len - 5, ".gguf");
        has_weights = has_weights || (!is_gguf && !strchr(p.names[i], '/') &&
                                      (nrd_str_has_suffix(p.names[i], ".safetensors") || nrd_str_has_suffix(p.names[i], ".bin")));
        if (is_gguf && nrd_hub_is_weights(p.names[i]) && nrd_hub_is_first_part(p.names[i])) {
            add_gguf(all, &p, p.names[i]);
        }
    }
    snprintf(folder.repo, sizeof folder.repo, "%s", repo);
    if (has_weights) {
        (void)add_chosen(all, &p, &folder, nrd_xasprintf("%s%s", repo, mark(at, rev)));
    }
    nrd_names_free(p.names, p.n);
    free(p.dir);
}

/* Every revision that has a name, then snapshots that have none. */
static void add_repo(nrd_hub_inventory *all, const nrd_hub_settings *s, const char *repo, const char *repo_dir)
{
    char *refs = nrd_path_join(repo_dir, "refs"), *snapshots = nrd_path_join(repo_dir, "snapshots");
    char **revs = NULL, **commits = NULL;
    size_t n_revs = 0, n = 0;

    nrd_hub_files_below(refs, &revs, &n_revs);
    nrd_error_free(nrd_dir_list(&commits, &n, snapshots));
    bool *seen = nrd_xcalloc(n + 1, sizeof *seen);
    for (size_t i = 0; i < n_revs; i++) {
        char commit[NRD_HUB_COMMIT + 1];
        for (size_t k = 0; nrd_hub_cached_commit(repo_dir, revs[i], commit) && k < n; k++) {
            if (!strcmp(commits[k], commit)) {
                seen[k] = true;
                add_snapshot(all, s, repo, repo_dir, revs[i], commit);
            }
        }
    }
    for (size_t k = 0; k < n; k++) {
        if (!seen[k] && nrd_hub_is_hash(commits[k], NRD_HUB_COMMIT)) {
            add_snapshot(all, s, repo, repo_dir, commits[k], commits[k]);
        }
    }
    free(seen);
    nrd_names_free(revs, n_revs);
    nrd_names_free(commits, n);
    free(refs);
    free(snapshots);
}

static void add_files(nrd_hub_inventory *all, const nrd_hub_settings *s)
{
    char *dir = nrd_path_join(s->own, "files"), **names = NULL;
    size_t n = 0;

    nrd_hub_files_below(dir, &names, &n);
    for (size_t i = 0; i < n; i++) {
        struct stat st;
        char *path = nrd_path_join(dir, names[i]);
        const size_t len = strlen(names[i]);
        if (len > 5 && !strcasecmp(names[i] + len - 5, ".gguf") && stat(path, &st) == 0) {
            add(all, (nrd_hub_entry){.name = nrd_xasprintf("http%s://%s", nrd_hub_is_loopback(names[i]) ? "" : "s", names[i]),
                                     .path = nrd_xstrdup(path), .bytes = (uint64_t)st.st_size, .modified = st.st_mtime,
                                     .used = st.st_atime > st.st_mtime ? st.st_atime : st.st_mtime, .is_ours = true});
        }
        free(path);
    }
    nrd_names_free(names, n);
    free(dir);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const nrd_hub_entry *)a)->name, ((const nrd_hub_entry *)b)->name);
}

void nrd_hub_inventory_read(nrd_hub_inventory *out, const nrd_hub_settings *s)
{
    char **names = NULL;
    size_t n = 0;

    *out = (nrd_hub_inventory){.n = 0};
    nrd_error_free(nrd_dir_list(&names, &n, s->cache)); /* a cache that is not there has none */
    for (size_t i = 0; i < n; i++) {
        char *repo = nrd_hub_repo_of_dir(names[i]), *dir = repo ? nrd_path_join(s->cache, names[i]) : NULL;
        if (repo) {
            add_repo(out, s, repo, dir);
        }
        free(repo);
        free(dir);
    }
    nrd_names_free(names, n);
    add_files(out, s);
    if (out->n > 1) {
        qsort(out->v, out->n, sizeof *out->v, by_name);
    }
}

void nrd_hub_inventory_fini(nrd_hub_inventory *all)
{
    for (size_t i = 0; i < all->n; i++) {
        free(all->v[i].name);
        free(all->v[i].path);
        free(all->v[i].repo_dir);
    }
    free(all->v);
    *all = (nrd_hub_inventory){.n = 0};
}
