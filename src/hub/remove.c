/* SPDX-License-Identifier: Apache-2.0 */
#include "hub/remove.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "hub/cache.h"
#include "hub/choose.h"
#include "hub/record.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { N_OPEN = 16 };

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *where)
{
    (void)st;
    (void)kind;
    (void)where;
    return remove(path);
}

nrd_error *nrd_hub_remove_tree(const char *dir)
{
    if (nftw(dir, remove_one, N_OPEN, FTW_DEPTH | FTW_PHYS) != 0 && errno != ENOENT) {
        return nrd_errorf(NRD_ERR_INTERNAL, "cannot remove '%s': %s", dir, strerror(errno));
    }
    return NULL;
}

static _Thread_local uint64_t sum;

static int add_size(const char *path, const struct stat *st, int kind, struct FTW *where)
{
    (void)path;
    (void)where;
    sum += kind == FTW_F ? (uint64_t)st->st_size : 0;
    return 0;
}

uint64_t nrd_hub_tree_bytes(const char *dir)
{
    sum = 0;
    (void)nftw(dir, add_size, N_OPEN, FTW_PHYS);
    return sum;
}

/* ---- blobs that nothing links to ---- */

/* Names of blobs that a snapshot links to, one a line. */
static void read_links(nrd_str *out, const char *dir, int depth)
{
    char **names = NULL, target[PATH_MAX];
    size_t n = 0;

    nrd_error_free(nrd_dir_list(&names, &n, dir));
    for (size_t i = 0; i < n; i++) {
        struct stat st;
        char *path = nrd_path_join(dir, names[i]);
        if (lstat(path, &st) == 0 && S_ISDIR(st.st_mode) && depth < 8) {
            read_links(out, path, depth + 1);
        } else {
            const ssize_t len = readlink(path, target, sizeof target - 1);
            if (len > 0) {
                target[len] = '\0';
                nrd_str_printf(out, "\n%s\n", nrd_path_base(target));
            }
        }
        free(path);
    }
    nrd_names_free(names, n);
}

/* Somebody fetches it just now. */
static bool is_locked(const nrd_hub_settings *s, const char *repo_dir, const char *blob)
{
    char *path = nrd_xasprintf("%s/.locks/%s/%.*s.lock", s->cache, nrd_path_base(repo_dir), (int)strcspn(blob, "."), blob);
    const int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    const bool is_taken = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0;
    if (fd >= 0) {
        close(fd);
    }
    free(path);
    return is_taken;
}

static void remove_unlinked(const nrd_hub_settings *s, const char *repo_dir)
{
    char *blobs = nrd_path_join(repo_dir, "blobs"), *snapshots = nrd_path_join(repo_dir, "snapshots"), **names = NULL;
    nrd_str links = {0};
    size_t n = 0;

    read_links(&links, snapshots, 0);
    nrd_error_free(nrd_dir_list(&names, &n, blobs));
    for (size_t i = 0; i < n; i++) {
        char *line = nrd_xasprintf("\n%s\n", names[i]), *path = nrd_path_join(blobs, names[i]);
        if (!strstr(nrd_str_cstr(&links), line) && !is_locked(s, repo_dir, names[i])) {
            (void)unlink(path);
        }
        free(line);
        free(path);
    }
    nrd_names_free(names, n);
    nrd_str_fini(&links);
    free(blobs);
    free(snapshots);
}

/* ---- models ---- */

/* Folders that are empty now, up to the one of snapshots. */
static void remove_empty(const char *path, const char *stop)
{
    char *dir = nrd_path_dir(path);
    while (strcmp(dir, stop) != 0 && strlen(dir) > strlen(stop) && rmdir(dir) == 0) {
        char *up = nrd_path_dir(dir);
        free(dir);
        dir = up;
    }
    free(dir);
}

static bool in_one_folder(const char *a, const char *b)
{
    const size_t n = (size_t)(nrd_path_base(a) - a);
    return n == (size_t)(nrd_path_base(b) - b) && !strncmp(a, b, n);
}

/* A vision tower beside a model that stays. */
static bool is_shared(const char *const *names, const bool *going, size_t n, size_t i)
{
    if (nrd_hub_is_weights(names[i]) || !nrd_str_has_suffix(names[i], ".gguf")) {
        return false;
    }
    for (size_t k = 0; k < n; k++) {
        if (!going[k] && nrd_hub_is_weights(names[k]) && in_one_folder(names[i], names[k])) {
            return true;
        }
    }
    return false;
}

/* Of a GGUF file its parts and the tower that no other needs, of a folder all that is no GGUF file. */
static void remove_links(const nrd_hub_entry *e, const char *snapshot, const char *stop)
{
    char **names = NULL;
    size_t n = 0;
    const bool is_folder = !strcmp(e->path, snapshot);
    const char *file = is_folder ? NULL : e->path + strlen(snapshot) + 1, *model = NULL;
    nrd_hub_id id = {.repo = "a/b"};

    nrd_hub_files_below(snapshot, &names, &n);
    bool *going = nrd_xcalloc(n + 1, sizeof *going);
    if (file) {
        snprintf(id.file, sizeof id.file, "%s", file);
        nrd_error_free(nrd_hub_choose(&id, (const char *const *)names, n, going, &model));
    }
    for (size_t i = 0; i < n && is_folder; i++) {
        going[i] = !nrd_hub_is_weights(names[i]);
    }
    for (size_t i = 0; i < n; i++) {
        char *path = nrd_path_join(snapshot, names[i]);
        if (going[i] && !is_shared((const char *const *)names, going, n, i)) {
            (void)unlink(path);
            remove_empty(path, stop);
        }
        free(path);
    }
    free(going);
    nrd_names_free(names, n);
}

nrd_error *nrd_hub_remove_repo(const nrd_hub_settings *s, const char *repo_dir)
{
    char *locks = nrd_xasprintf("%s/.locks/%s", s->cache, nrd_path_base(repo_dir)), **commits = NULL;
    char *snapshots = nrd_path_join(repo_dir, "snapshots");
    size_t n = 0;
    int lock = -1;
    nrd_error *err = nrd_hub_lock(&lock, s, repo_dir, "nereid", nrd_path_base(repo_dir));

    nrd_error_free(nrd_dir_list(&commits, &n, snapshots));
    for (size_t i = 0; i < n && !err; i++) {
        nrd_hub_record_drop(s, repo_dir, commits[i]);
    }
    err = err ? err : nrd_hub_remove_tree(repo_dir);
    err = err ? err : nrd_hub_remove_tree(locks);
    if (lock >= 0) {
        close(lock);
    }
    nrd_names_free(commits, n);
    free(snapshots);
    free(locks);
    return err;
}

static nrd_error *remove_file(const char *path)
{
    return unlink(path) == 0 || errno == ENOENT
               ? NULL : nrd_errorf(NRD_ERR_INTERNAL, "cannot remove '%s': %s", path, strerror(errno));
}

nrd_error *nrd_hub_remove_entry(const nrd_hub_settings *s, const nrd_hub_entry *e)
{
    if (!e->repo_dir) {
        return remove_file(e->path);
    }
    char *snapshots = nrd_path_join(e->repo_dir, "snapshots"), *snapshot = nrd_path_join(snapshots, e->commit);
    char **left = NULL;
    size_t n_left = 0;
    int lock = -1;
    nrd_error *err = nrd_hub_lock(&lock, s, e->repo_dir, "nereid", e->name);

    if (!err) {
        remove_links(e, snapshot, snapshots);
        remove_unlinked(s, e->repo_dir);
        if (!nrd_path_exists(snapshot)) {
            nrd_hub_record_drop(s, e->repo_dir, e->commit);
        }
    }
    if (lock >= 0) {
        close(lock);
    }
    char *blobs = nrd_path_join(e->repo_dir, "blobs");
    nrd_hub_files_below(blobs, &left, &n_left);
    if (!err && n_left == 0) {
        err = nrd_hub_remove_repo(s, e->repo_dir);
    }
    nrd_names_free(left, n_left);
    free(blobs);
    free(snapshots);
    free(snapshot);
    return err;
}
