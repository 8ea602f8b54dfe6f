/* SPDX-License-Identifier: Apache-2.0 */
#include "hub/cache.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "hub/choose.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_DEPTH = 4, MAX_REF = 128, MAX_INDEX = 64 << 20 };
#define PREFIX "models--"

/* ---- names ---- */

char *nrd_hub_repo_dir(const nrd_hub_settings *s, const char *repo)
{
    const char *slash = strchr(repo, '/');
    return slash ? nrd_xasprintf("%s/" PREFIX "%.*s--%s", s->cache, (int)(slash - repo), repo, slash + 1)
                 : nrd_xasprintf("%s/" PREFIX "%s", s->cache, repo);
}

char *nrd_hub_repo_of_dir(const char *name)
{
    if (!nrd_str_has_prefix(name, PREFIX) || !name[strlen(PREFIX)]) {
        return NULL;
    }
    char *repo = nrd_xstrdup(name + strlen(PREFIX)), *sep = strstr(repo, "--");
    if (sep) {
        *sep = '/';
        memmove(sep + 1, sep + 2, strlen(sep + 2) + 1);
    }
    return repo;
}

char *nrd_hub_url_file(const nrd_hub_settings *s, const char *url)
{
    const char *host = strstr(url, "://");
    host = host ? host + 3 : url;
    char *path = nrd_xstrndup(host, strcspn(host, "?#"));
    char *file = nrd_path_stays_inside(path) && strlen(path) <= NRD_HUB_MAX_PATH
                     ? nrd_xasprintf("%s/files/%s", s->own, path) : NULL;
    free(path);
    return file;
}

/* ---- what is there ---- */

typedef struct names {
    char **v;
    size_t n, cap;
} names;

static void add_name(names *all, char *name)
{
    if (all->n == all->cap) {
        all->cap = all->cap ? 2 * all->cap : 32;
        all->v = nrd_xrealloc(all->v, all->cap * sizeof *all->v);
    }
    all->v[all->n++] = name;
}

static void collect(names *all, const char *dir, const char *below, int depth)
{
    char **v = NULL;
    size_t n = 0;

    nrd_error_free(nrd_dir_list(&v, &n, dir));
    for (size_t i = 0; i < n && all->n < NRD_HUB_MAX_FILES; i++) {
        char *path = nrd_path_join(dir, v[i]);
        char *name = nrd_xasprintf("%s%s%s", below, *below ? "/" : "", v[i]);
        struct stat st;
        const bool is_there = stat(path, &st) == 0; /* also: a link that leads somewhere */
        if (is_there && S_ISDIR(st.st_mode) && depth < MAX_DEPTH) {
            collect(all, path, name, depth + 1);
        } else if (is_there && S_ISREG(st.st_mode)) {
            add_name(all, name);
            name = NULL;
        }
        free(name);
        free(path);
    }
    nrd_names_free(v, n);
}

void nrd_hub_files_below(const char *dir, char ***out_names, size_t *out_n)
{
    names all = {.n = 0};
    collect(&all, dir, "", 0);
    *out_names = all.v;
    *out_n = all.n;
}

bool nrd_hub_cached_commit(const char *repo_dir, const char *rev, char out[NRD_HUB_COMMIT + 1])
{
    char *path = nrd_xasprintf("%s/refs/%s", repo_dir, rev), *text = NULL;
    size_t n = 0;

    nrd_error_free(nrd_file_read(&text, &n, path, MAX_REF));
    free(path);
    if (text) {
        text[strcspn(text, " \r\n")] = '\0';
    }
    const char *commit = text ? text : rev;
    const bool is_found = nrd_hub_is_hash(commit, NRD_HUB_COMMIT);
    if (is_found) {
        memcpy(out, commit, NRD_HUB_COMMIT + 1);
    }
    free(text);
    return is_found;
}

/* Every file that the index of a checkpoint in parts names. */
static bool has_all_parts(const char *dir, const char *index_name)
{
    const nrd_json_limits limits = {.max_bytes = MAX_INDEX, .max_depth = 8};
    nrd_json_doc *doc = NULL;
    char *path = nrd_path_join(dir, index_name);
    bool all = true;

    if (nrd_path_exists(path)) {
        nrd_error *err = nrd_json_parse_file(&doc, path, &limits);
        const nrd_json *map = err ? NULL : nrd_json_get(nrd_json_root(doc), "weight_map");
        all = !err;
        nrd_error_free(err);
        for (size_t i = 0; all && nrd_json_is(map, NRD_JSON_OBJECT) && i < map->n; i++) {
            const char *name = nrd_json_str(&map->child[i], "");
            const bool is_repeated = i > 0 && !strcmp(name, nrd_json_str(&map->child[i - 1], ""));
            char *part = nrd_path_join(dir, name);
            all = is_repeated || (nrd_path_stays_inside(name) && nrd_path_exists(part));
            free(part);
        }
    }
    nrd_json_doc_free(doc);
    free(path);
    return all;
}

char *nrd_hub_cached(const nrd_hub_settings *s, const nrd_hub_id *id)
{
    char commit[NRD_HUB_COMMIT + 1], **v = NULL, *found = NULL;
    const char *model = NULL;
    size_t n = 0;

    if (id->url[0]) {
        found = nrd_hub_url_file(s, id->url);
        if (found && !nrd_path_exists(found)) {
            free(found);
            found = NULL;
        }
        return found;
    }
    char *repo = nrd_hub_repo_dir(s, id->repo);
    if (nrd_hub_cached_commit(repo, id->rev, commit)) {
        char *dir = nrd_xasprintf("%s/snapshots/%s", repo, commit);
        nrd_hub_files_below(dir, &v, &n);
        bool *wanted = nrd_xcalloc(n + 1, sizeof *wanted);
        nrd_error *err = nrd_hub_choose(id, (const char *const *)v, n, wanted, &model);
        if (!err && model) {
            found = nrd_path_join(dir, model);
        } else if (!err && has_all_parts(dir, "model.safetensors.index.json") &&
                   has_all_parts(dir, "pytorch_model.bin.index.json")) {
            found = nrd_xstrdup(dir);
        }
        nrd_error_free(err);
        free(wanted);
        nrd_names_free(v, n);
        free(dir);
    }
    free(repo);
    return found;
}

/* ---- writing ---- */

nrd_error *nrd_hub_link(const char *repo_dir, const char *commit, const nrd_hub_file *f)
{
    char *path = nrd_xasprintf("%s/snapshots/%s/%s", repo_dir, commit, f->path), *dir = nrd_path_dir(path);
    char *tmp = nrd_xasprintf("%s.tmp.%ld", path, (long)getpid());
    nrd_str target = {0};
    nrd_error *err = nrd_mkdirs(dir);

    nrd_str_puts(&target, "../../");
    for (const char *p = strchr(f->path, '/'); p; p = strchr(p + 1, '/')) {
        nrd_str_puts(&target, "../");
    }
    nrd_str_printf(&target, "blobs/%s", f->hash);
    (void)unlink(tmp);
    if (!err && (symlink(nrd_str_cstr(&target), tmp) != 0 || rename(tmp, path) != 0)) {
        err = nrd_errorf(NRD_ERR_INTERNAL, "cannot make the link '%s': %s", path, strerror(errno));
    }
    nrd_str_fini(&target);
    free(tmp);
    free(dir);
    free(path);
    return err;
}

nrd_error *nrd_hub_set_ref(const char *repo_dir, const char *rev, const char *commit)
{
    if (!strcmp(rev, commit)) {
        return NULL;
    }
    char *path = nrd_xasprintf("%s/refs/%s", repo_dir, rev), *dir = nrd_path_dir(path);
    nrd_error *err = nrd_mkdirs(dir);
    err = err ? err : nrd_file_write(path, commit, strlen(commit));
    free(dir);
    free(path);
    return err;
}

nrd_error *nrd_hub_lock(int *out_fd, const nrd_hub_settings *s, const char *repo_dir, const char *name,
                        const char *what)
{
    char *dir = nrd_xasprintf("%s/.locks/%s", s->cache, nrd_path_base(repo_dir));
    char *path = nrd_xasprintf("%s/%s.lock", dir, name);
    nrd_error *err = nrd_mkdirs(dir);

    *out_fd = err ? -1 : open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (!err && *out_fd < 0) {
        err = nrd_errorf(NRD_ERR_INTERNAL, "cannot open '%s': %s", path, strerror(errno));
    }
    if (!err && flock(*out_fd, LOCK_EX | LOCK_NB) != 0) {
        if (what) {
            fprintf(stderr, "%s is being pulled by another program; waiting for it\n", what);
        }
        while (flock(*out_fd, LOCK_EX) != 0 && errno == EINTR) {
        }
    }
    free(path);
    free(dir);
    return err;
}
