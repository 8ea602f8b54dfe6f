/* SPDX-License-Identifier: Apache-2.0 */
#include "base/leftovers.h"

#include "base/file.h"
#include "base/str.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { QUIET_SECS = 60 };

/* "<name>.tmp.<pid>" of a program that is gone. */
static bool is_leftover(const char *name)
{
    const char *tmp = NULL;
    for (const char *p = name; (p = strstr(p, ".tmp.")) != NULL; p++) {
        tmp = p;
    }
    long long pid = 0;
    return tmp && nrd_parse_i64(tmp + 5, &pid) && pid > 0 && pid < 1 << 30 &&
           kill((pid_t)pid, 0) != 0 && errno == ESRCH;
}

static time_t last_written(const char *path)
{
    struct stat st;
    char **names = NULL;
    size_t n = 0;
    time_t last = stat(path, &st) == 0 ? st.st_mtime : 0;

    if (nrd_path_is_dir(path)) {
        nrd_error_free(nrd_dir_list(&names, &n, path));
        for (size_t i = 0; i < n; i++) {
            char *file = NULL;
            nrd_error_free(nrd_path_make(&file, path, names[i]));
            last = file && stat(file, &st) == 0 && st.st_mtime > last ? st.st_mtime : last;
            free(file);
        }
        nrd_names_free(names, n);
    }
    return last;
}

/* Writers lock their files (base/file.c), those of other containers too, whose processes have other numbers here. Folders, and files
 * that cannot be locked, are taken for written where something was for the last minute. */
static bool is_written(const char *path)
{
    const int fd = nrd_path_is_dir(path) ? -1 : open(path, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    const bool is_free = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0, is_held = fd >= 0 && !is_free && errno == EWOULDBLOCK;
    if (fd >= 0) {
        close(fd);
    }
    return is_held || (!is_free && time(NULL) - last_written(path) <= QUIET_SECS);
}

void nrd_leftovers_sweep(const char *dir)
{
    char **names = NULL;
    size_t n = 0;
    nrd_error_free(nrd_dir_list(&names, &n, dir)); /* a folder that is not there has none */
    for (size_t i = 0; i < n; i++) {
        char *path = NULL;
        nrd_error_free(nrd_path_make(&path, dir, names[i]));
        if (path && is_leftover(names[i]) && !is_written(path)) {
            if (nrd_path_is_dir(path)) {
                nrd_dir_remove(path);
            } else {
                unlink(path);
            }
        }
        free(path);
    }
    nrd_names_free(names, n);
}

nrd_error *nrd_leftovers_make_dir(char *name, int *out_lock)
{
    *out_lock = -1;
    if (!mkdtemp(name)) {
        return nrd_errorf(NRD_ERR_INTERNAL, "cannot make a folder '%s': %s", name, strerror(errno));
    }
    *out_lock = open(name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*out_lock >= 0) {
        (void)flock(*out_lock, LOCK_SH | LOCK_NB); /* it is too new for a sweep: nobody else has it */
    }
    return NULL;
}

/* Removed while it is locked, so that of two sweeps one does it. */
static void sweep_dir(const char *path)
{
    struct stat st;
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

    if (fd >= 0 && fstat(fd, &st) == 0 && st.st_uid == geteuid() && (st.st_mode & 077) == 0 &&
        time(NULL) - last_written(path) > QUIET_SECS && flock(fd, LOCK_EX | LOCK_NB) == 0) {
        nrd_dir_remove(path);
    }
    if (fd >= 0) {
        close(fd);
    }
}

void nrd_leftovers_sweep_dirs(const char *name)
{
    static const char any[] = "XXXXXX";
    const char *base = nrd_path_base(name);
    const size_t len = strlen(base), n_same = len - (sizeof any - 1);
    char **names = NULL, *dir = NULL;
    size_t n = 0;
    nrd_error *err = nrd_path_make_dir(&dir, name);

    nrd_error_free(err ? err : nrd_dir_list(&names, &n, dir));
    for (size_t i = 0; i < n; i++) {
        char *path = NULL;
        if (strlen(names[i]) == len && !strncmp(names[i], base, n_same)) {
            nrd_error_free(nrd_path_make(&path, dir, names[i]));
        }
        if (path) {
            sweep_dir(path);
        }
        free(path);
    }
    nrd_names_free(names, n);
    free(dir);
}
