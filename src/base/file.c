/* SPDX-License-Identifier: Apache-2.0
 * Files, folders and paths: whole files read with a limit, read-only mappings, files written under
 * a temporary name and renamed when complete. Used by loaders, the builder and the server. */
#include "base/file.h"

#include "base/foreign.h"
#include "base/mem.h"
#include "base/str.h"
#include "base/unfinished.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

struct nrd_file_writer {
    FILE *f;
    char *path, *tmp;
};

#define MAKE_ROOM "remove what is not needed there (nereid prune removes old engines and models), or take a folder on another disk"

nrd_error *nrd_file_error(const char *what, const char *path)
{
    const int e = errno;
    const bool is_full = e == ENOSPC || e == EDQUOT;
    const nrd_error_code code = e == ENOENT || e == ENOTDIR ? NRD_ERR_NOT_FOUND : is_full ? NRD_ERR_UNAVAILABLE : NRD_ERR_INTERNAL;

    return nrd_errorf(code, "cannot %s '%s': %s%s", what, path, strerror(e), is_full ? ": " MAKE_ROOM : "");
}

/* Of what is not there yet it is that of the nearest folder above. *out_at: the path that was found, owned; NULL: none. */
static void find_file_system(const char *path, struct statvfs *out, char **out_at)
{
    char *at = strdup(path);

    while (at && statvfs(at, out) != 0) {
        char *slash = strrchr(at, '/');
        if (errno != ENOENT || at[0] == '\0' || !strcmp(at, "/") || !strcmp(at, ".")) {
            free(at);
            at = NULL;
        } else if (slash) {
            slash[slash == at] = '\0';
        } else {
            memcpy(at, ".", 2); /* a name has a byte at least */
        }
    }
    *out_at = at;
}

nrd_error *nrd_file_check_room(const char *path, uint64_t bytes)
{
    struct statvfs v;
    char *at = NULL;
    nrd_error *err = NULL;

    find_file_system(path, &v, &at); /* what is wrong with a path is said by who writes */
    if (at && v.f_blocks > 0 && bytes > (uint64_t)v.f_bavail * v.f_frsize) {
        err = nrd_errorf(NRD_ERR_UNAVAILABLE, "no room for '%s': it takes %.1f MB, and '%s' has %.1f MB free: " MAKE_ROOM, path,
                         (double)bytes / 1e6, at, (double)v.f_bavail * (double)v.f_frsize / 1e6);
    }
    free(at);
    return err;
}

nrd_error *nrd_map_open(nrd_map *out, const char *path)
{
    struct stat st;
    memset(out, 0, sizeof *out);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return nrd_file_error("open", path);
    }
    if (fstat(fd, &st)) {
        nrd_error *err = nrd_file_error("stat", path);
        close(fd);
        return err;
    }
    if (!S_ISREG(st.st_mode)) {
        close(fd);
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'%s' is not a regular file", path);
    }
    if (st.st_size == 0) {
        close(fd);
        out->data = (const uint8_t *)"";
        return NULL;
    }
    void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    nrd_error *err = p == MAP_FAILED ? nrd_file_error("map", path) : NULL;
    close(fd);
    if (!err && (err = nrd_foreign_add(&out->watch, p, (size_t)st.st_size)) != NULL) {
        munmap(p, (size_t)st.st_size);
    }
    if (!err) {
        out->data = p;
        out->size_bytes = (size_t)st.st_size;
    }
    return err;
}

bool nrd_map_is_lost(const nrd_map *m)
{
    return nrd_foreign_is_lost(m->watch);
}

void nrd_map_close(nrd_map *m)
{
    if (m->size_bytes) {
        nrd_foreign_remove(m->watch);
        munmap((void *)(uintptr_t)m->data, m->size_bytes);
    }
    memset(m, 0, sizeof *m);
}

nrd_error *nrd_file_read(char **out, size_t *out_len, const char *path, size_t max_bytes)
{
    nrd_error *err = NULL;
    char *data = NULL;
    struct stat st;
    FILE *f = fopen(path, "rbe");

    *out = NULL;
    if (!f) {
        return nrd_file_error("open", path);
    }
    if (fstat(fileno(f), &st)) {
        err = nrd_file_error("stat", path);
        goto fail;
    }
    if (!S_ISREG(st.st_mode)) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "'%s' is not a regular file", path);
        goto fail;
    }
    if ((uint64_t)st.st_size > max_bytes) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "'%s' has %lld bytes, the limit is %zu", path,
                         (long long)st.st_size, max_bytes);
        goto fail;
    }
    NRD_NEW_GOTO(data, (size_t)st.st_size + 1, err, fail);
    size_t n = fread(data, 1, (size_t)st.st_size, f);
    if (ferror(f)) {
        err = nrd_file_error("read", path);
        goto fail;
    }
    fclose(f);
    *out = data;
    if (out_len) {
        *out_len = n;
    }
    return NULL;

fail:
    fclose(f);
    free(data);
    return err;
}

nrd_error *nrd_file_writer_open(nrd_file_writer **out, const char *path)
{
    nrd_error *err = NULL;
    nrd_file_writer *w = NULL;

    *out = NULL;
    NRD_NEW_GOTO(w, 1, err, fail);
    NRD_DUP_GOTO(w->path, path, err, fail);
    if (asprintf(&w->tmp, "%s.tmp.%d", path, (int)getpid()) < 0) {
        w->tmp = NULL;
        err = nrd_error_no_memory();
        goto fail;
    }
    nrd_unfinished_note(w->tmp);
    w->f = fopen(w->tmp, "wbe");
    if (!w->f) {
        err = nrd_file_error("create", w->path);
        goto fail;
    }
    (void)flock(fileno(w->f), LOCK_EX | LOCK_NB); /* so base/leftovers.h sees that somebody writes it */
    *out = w;
    return NULL;

fail:
    nrd_file_writer_abort(w);
    return err;
}

FILE *nrd_file_writer_stream(nrd_file_writer *w)
{
    return w->f;
}

nrd_error *nrd_file_writer_commit(nrd_file_writer *w)
{
    nrd_error *err = NULL;
    errno = EIO; /* of a write before this one, whose reason is gone */
    bool ok = fflush(w->f) == 0 && !ferror(w->f) && fsync(fileno(w->f)) == 0;
    if (!ok) {
        err = nrd_file_error("write", w->path);
        nrd_file_writer_abort(w);
        return err;
    }
    if (rename(w->tmp, w->path)) { /* while it is locked */
        err = nrd_file_error("rename to", w->path);
        nrd_file_writer_abort(w);
        return err;
    }
    fclose(w->f);
    nrd_unfinished_forget(w->tmp);
    free(w->tmp);
    free(w->path);
    free(w);
    return NULL;
}

void nrd_file_writer_abort(nrd_file_writer *w)
{
    if (!w) {
        return;
    }
    if (w->f) {
        fclose(w->f);
    }
    if (w->tmp) {
        unlink(w->tmp);
        nrd_unfinished_forget(w->tmp);
    }
    free(w->tmp);
    free(w->path);
    free(w);
}

nrd_error *nrd_file_write(const char *path, const void *data, size_t n)
{
    nrd_file_writer *w;
    NRD_TRY(nrd_file_writer_open(&w, path));
    if (fwrite(data, 1, n, w->f) != n) {
        nrd_error *err = nrd_file_error("write", path);
        nrd_file_writer_abort(w);
        return err;
    }
    return nrd_file_writer_commit(w);
}

bool nrd_path_exists(const char *path)
{
    return access(path, F_OK) == 0;
}

nrd_error *nrd_path_missing(const char *path)
{
    if (nrd_path_exists(path) || errno == ENOENT || errno == ENOTDIR) {
        return nrd_errorf(NRD_ERR_NOT_FOUND, "'%s' does not exist", path);
    }
    return nrd_file_error("open", path);
}

bool nrd_path_is_dir(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

bool nrd_path_is_same(const char *a, const char *b)
{
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

bool nrd_path_stays_inside(const char *path)
{
    if (path[0] == '\0' || path[0] == '/') {
        return false;
    }
    while (path) {
        if (strncmp(path, "..", 2) == 0 && (path[2] == '/' || path[2] == '\0')) {
            return false;
        }
        path = strchr(path, '/');
        path = path ? path + 1 : NULL;
    }
    return true;
}

nrd_error *nrd_path_make(char **out, const char *dir, const char *name)
{
    bool slash = dir[0] == '\0' || nrd_str_has_suffix(dir, "/");
    if (asprintf(out, "%s%s%s", dir, slash ? "" : "/", name) < 0) {
        *out = NULL;
        return nrd_error_no_memory();
    }
    return NULL;
}

char *nrd_path_join(const char *dir, const char *name)
{
    char *path = NULL;
    nrd_error_free(nrd_path_make(&path, dir, name));
    return nrd_or_end(path);
}

const char *nrd_path_base(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

nrd_error *nrd_path_make_dir(char **out, const char *path)
{
    const char *slash = strrchr(path, '/');
    *out = !slash ? strdup(".") : slash == path ? strdup("/") : strndup(path, (size_t)(slash - path));
    return *out ? NULL : nrd_error_no_memory();
}

char *nrd_path_dir(const char *path)
{
    char *dir = NULL;
    nrd_error_free(nrd_path_make_dir(&dir, path));
    return nrd_or_end(dir);
}

nrd_error *nrd_path_make_exe_dir(char **out)
{
    char buf[4096];
    ssize_t n = readlink("/proc/self/exe", buf, sizeof buf - 1);
    buf[n > 0 ? n : 0] = '\0';
    return nrd_path_make_dir(out, buf);
}

char *nrd_path_exe_dir(void)
{
    char *dir = NULL;
    nrd_error_free(nrd_path_make_exe_dir(&dir));
    return nrd_or_end(dir);
}

nrd_error *nrd_mkdirs(const char *path)
{
    nrd_error *err = NULL;
    char *p = strdup(path);
    if (!p) {
        return nrd_error_no_memory();
    }
    for (char *s = p + 1; !err; s++) {
        if (*s == '/' || *s == '\0') {
            char c = *s;
            *s = '\0';
            if (mkdir(p, 0777) && errno != EEXIST) {
                err = nrd_file_error("create folder", p);
            }
            *s = c;
            if (c == '\0') {
                break;
            }
        }
    }
    if (!err && !nrd_path_is_dir(path)) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "'%s' is not a folder", path);
    }
    free(p);
    return err;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

nrd_error *nrd_dir_list(char ***out_names, size_t *out_n, const char *path)
{
    char **names = NULL;
    size_t n = 0, cap = 0;
    bool no_memory = false;
    struct dirent *e;
    DIR *d = opendir(path);

    *out_names = NULL;
    *out_n = 0;
    if (!d) {
        return nrd_file_error("open folder", path);
    }
    while (!no_memory && (errno = 0, e = readdir(d))) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) {
            continue;
        }
        if (n == cap) {
            char **grown = realloc(names, (cap ? cap * 2 : 16) * sizeof *names);
            no_memory = !grown;
            names = grown ? grown : names;
            cap = grown ? (cap ? cap * 2 : 16) : cap;
        }
        char *name = no_memory ? NULL : strdup(e->d_name);
        no_memory = !name;
        if (name) {
            names[n++] = name;
        }
    }
    nrd_error *err = no_memory ? nrd_error_no_memory() : errno ? nrd_file_error("read folder", path) : NULL;
    closedir(d);
    if (err) { /* a part of the names is no list */
        nrd_names_free(names, n);
        return err;
    }
    if (n) {
        qsort(names, n, sizeof *names, by_name);
    }
    *out_names = names;
    *out_n = n;
    return NULL;
}

void nrd_names_free(char **names, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        free(names[i]);
    }
    free(names);
}
