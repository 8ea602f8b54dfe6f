/* SPDX-License-Identifier: Apache-2.0 */
#include "base/leftovers.h"

#include "base/file.h"
#include "base/str.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MAX_NOTED = 24, QUIET_SECS = 60 };

/* The thread that takes a path out of its slot owns it, and a signal frees nothing: so what a slot
 * holds may be read under the lock, which a signal does not take. */
static _Atomic(char *) noted[MAX_NOTED];
static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;

void nrd_leftover_note(const char *path)
{
    char *copy = strdup(path);
    bool done = !copy; /* without memory it is a leftover of a program that is ended, as beyond MAX_NOTED */

    pthread_mutex_lock(&mu);
    for (int i = 0; i < MAX_NOTED && !done; i++) {
        char *none = NULL;
        done = atomic_compare_exchange_strong(&noted[i], &none, copy);
    }
    pthread_mutex_unlock(&mu);
    if (!done) {
        free(copy);
    }
}

void nrd_leftover_forget(const char *path)
{
    pthread_mutex_lock(&mu);
    for (int i = 0; i < MAX_NOTED; i++) {
        char *p = atomic_load(&noted[i]);
        if (p && !strcmp(p, path)) {
            if (atomic_compare_exchange_strong(&noted[i], &p, NULL)) {
                free(p);
            }
            break;
        }
    }
    pthread_mutex_unlock(&mu);
}

static void on_signal(int sig)
{
    for (int i = MAX_NOTED - 1; i >= 0; i--) {
        const char *p = atomic_exchange(&noted[i], NULL);
        if (p && unlink(p) != 0) {
            rmdir(p);
        }
    }
    raise(sig); /* SA_RESETHAND: now it ends the program */
}

void nrd_leftovers_remove_on_signals(void)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction act = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};

    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        struct sigaction old;
        if (sigaction(signals[i], NULL, &old) == 0 && old.sa_handler != SIG_IGN) {
            sigaction(signals[i], &act, NULL);
        }
    }
}

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

/* Reads names with the system call: opendir takes memory, and what is left behind a load that had none has to go too. */
static void remove_folder(int at, const char *name, int levels)
{
    _Alignas(struct dirent64) char buf[4096];
    const int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | (at == AT_FDCWD ? 0 : O_NOFOLLOW));
    bool again = fd >= 0;

    while (again) { /* a file system may leave names out while others go */
        again = false;
        for (ssize_t n; (n = getdents64(fd, buf, sizeof buf)) > 0;) {
            for (ssize_t i = 0; i < n;) {
                const struct dirent64 *e = (const struct dirent64 *)(void *)(buf + i);
                i += e->d_reclen;
                if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) {
                    continue;
                }
                if (unlinkat(fd, e->d_name, 0) == 0) { /* links too: what is not gone is a folder */
                    again = true;
                } else if (levels > 1) {
                    remove_folder(fd, e->d_name, levels - 1);
                }
            }
        }
        again = again && lseek(fd, 0, SEEK_SET) == 0;
    }
    if (fd >= 0) {
        close(fd);
    }
    unlinkat(at, name, AT_REMOVEDIR);
}

void nrd_folder_remove(const char *dir)
{
    remove_folder(AT_FDCWD, dir, 2);
}

void nrd_leftovers_sweep(const char *dir)
{
    char **names = NULL;
    size_t n = 0;
    nrd_error_free(nrd_dir_list(&names, &n, dir)); /* a folder that is not there has none */
    for (size_t i = 0; i < n; i++) {
        char *path = NULL;
        nrd_error_free(nrd_path_make(&path, dir, names[i]));
        if (path && is_leftover(names[i]) && time(NULL) - last_written(path) > QUIET_SECS) {
            if (nrd_path_is_dir(path)) {
                nrd_folder_remove(path);
            } else {
                unlink(path);
            }
        }
        free(path);
    }
    nrd_names_free(names, n);
}
