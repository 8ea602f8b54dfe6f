/* SPDX-License-Identifier: Apache-2.0 */
#include "base/cache_entry.h"

#include "base/env.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/running.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

enum { MAX_CONFIG = 1 << 20, KEPT_FREE_PERCENT = 5 };
static const uint64_t KEPT_FREE_BYTES = 2000000000; /* of large disks, where 5 % would be more than anybody else needs at once */

/* ---- who uses one ---- */

typedef struct held {
    dev_t dev;
    ino_t ino;
    int fd;
} held;

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static held *all_held; /* [n_held] guarded by mu */
static size_t n_held;

/* Takes fd. Without memory it is held and not passed on. */
static void note(int fd, const struct stat *st)
{
    bool is_there = false;

    pthread_mutex_lock(&mu);
    for (size_t i = 0; i < n_held; i++) {
        is_there = is_there || (all_held[i].dev == st->st_dev && all_held[i].ino == st->st_ino);
    }
    held *grown = is_there ? NULL : realloc(all_held, (n_held + 1) * sizeof *grown);
    if (grown) {
        all_held = grown;
        all_held[n_held++] = (held){st->st_dev, st->st_ino, fd};
    }
    pthread_mutex_unlock(&mu);
    if (is_there) {
        close(fd);
    }
}

bool nrd_cache_entry_hold(const char *entry)
{
    struct stat mine, now;
    const int fd = open(entry, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0) {
        return errno != ENOENT && errno != ENOTDIR; /* EMFILE, for instance, does not take the folder away */
    }
    (void)flock(fd, LOCK_SH); /* waits only while somebody renames it */
    if (fstat(fd, &mine) != 0 || stat(entry, &now) != 0 || mine.st_dev != now.st_dev || mine.st_ino != now.st_ino) {
        close(fd);
        return false;
    }
    note(fd, &mine);
    return true;
}

void nrd_cache_entries_pass_on(void)
{
    pthread_mutex_lock(&mu);
    for (size_t i = 0; i < n_held; i++) {
        (void)fcntl(all_held[i].fd, F_SETFD, 0);
    }
    pthread_mutex_unlock(&mu);
}

/* The folder, locked for this caller alone; -1: somebody holds it, or it is not there. */
static int lock_alone(const char *entry)
{
    int fd = open(entry, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);

    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        close(fd);
        fd = -1;
    }
    return fd;
}

char *nrd_cache_entry_take(const char *entry)
{
    nrd_str tmp = {0};
    char *taken = NULL;
    const int fd = lock_alone(entry);

    nrd_str_printf(&tmp, "%s.tmp.%ld", entry, (long)getpid()); /* base/leftovers.h finds it, should we end before it is gone */
    if (fd >= 0 && !tmp.no_memory && rename(entry, tmp.data) == 0) {
        taken = nrd_str_steal(&tmp);
    }
    if (fd >= 0) {
        close(fd);
    }
    nrd_str_fini(&tmp);
    return taken;
}

static bool is_held(const char *entry)
{
    const int fd = lock_alone(entry);
    const bool is_held = fd < 0 && nrd_path_is_dir(entry);

    if (fd >= 0) {
        close(fd);
    }
    return is_held;
}

static void add_config(nrd_str *in_use, const char *repo, const char *model)
{
    nrd_str path = {0};
    char *text = NULL;
    size_t n = 0;

    nrd_str_printf(&path, "%s/%s/config.pbtxt", repo, model);
    nrd_error_free(nrd_file_read(&text, &n, nrd_str_cstr(&path), MAX_CONFIG));
    nrd_str_puts(in_use, text ? text : "");
    free(text);
    nrd_str_fini(&path);
}

static void on_server(void *user, long pid, const char *json)
{
    nrd_str *in_use = user;
    nrd_json_doc *doc = NULL;
    nrd_error *err = nrd_json_parse(&doc, json, strlen(json), NULL);
    const nrd_json *all = err ? NULL : nrd_json_get(nrd_json_root(doc), "repositories");

    (void)pid;
    for (size_t i = 0; i < nrd_json_len(all); i++) {
        const char *repo = nrd_json_str(nrd_json_at(all, i), "");
        char **names = NULL;
        size_t n = 0;
        nrd_str_printf(in_use, "%s\n", repo);
        nrd_error_free(nrd_dir_list(&names, &n, repo));
        for (size_t k = 0; k < n; k++) {
            add_config(in_use, repo, names[k]);
        }
        nrd_names_free(names, n);
    }
    nrd_error_free(err);
    nrd_json_doc_free(doc);
}

void nrd_cache_in_use(nrd_str *out)
{
    nrd_running_each(on_server, out);
}

bool nrd_cache_is_in_use(const nrd_str *in_use, const char *path)
{
    char *real = realpath(path, NULL);
    const bool is_used = in_use->no_memory || strstr(nrd_str_cstr(in_use), real ? real : path) || is_held(path);

    free(real);
    return is_used;
}

/* ---- how much they may take ---- */

nrd_error *nrd_cache_read_size(const char *text, const char *dir, uint64_t *out_bytes)
{
    static const struct {
        const char *name;
        uint64_t bytes;
    } units[] = {{"GB", 1000000000}, {"G", 1000000000}, {"MB", 1000000}, {"M", 1000000}, {"TB", 1000000000000},
                 {"T", 1000000000000}, {"KB", 1000}, {"K", 1000}, {"B", 1}, {"", 1}};
    const size_t digits = strspn(text, "0123456789");
    struct statvfs v;
    char number[13] = "";
    long long n = 0;

    if (digits < sizeof number) {
        memcpy(number, text, digits);
    }
    const bool is_number = nrd_parse_i64(number, &n);
    for (size_t i = 0; is_number && i < sizeof units / sizeof *units; i++) {
        if (!strcasecmp(text + digits, units[i].name) && !__builtin_mul_overflow((uint64_t)n, units[i].bytes, out_bytes)) {
            return NULL;
        }
    }
    if (is_number && n <= 100 && !strcmp(text + digits, "%")) {
        *out_bytes = statvfs(dir, &v) == 0 && v.f_blocks ? (uint64_t)n * (v.f_blocks / 100 * v.f_frsize) : UINT64_MAX;
        return NULL;
    }
    return nrd_errorf(NRD_ERR_INVALID_ARG, "expected a number with GB or MB, as 50GB, or of percent, as 20%%, got '%s'", text);
}

uint64_t nrd_cache_max_bytes(const char *dir)
{
    static const char usual[] = "25%";
    uint64_t bytes = 0;
    nrd_error *err = nrd_cache_read_size(nrd_env(NRD_CACHE_MAX_SIZE, usual), dir, &bytes);

    if (err) {
        NRD_LOG_WARN(NRD_CACHE_MAX_SIZE ": %s; it is %s", nrd_error_message(err), usual);
        nrd_error_free(err);
        nrd_error_free(nrd_cache_read_size(usual, dir, &bytes));
    }
    return bytes ? bytes : UINT64_MAX;
}

typedef struct entry {
    char *path; /* owned */
    uint64_t bytes;
    time_t used;
} entry;

static int by_use(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    return (x->used > y->used) - (x->used < y->used);
}

/* Of an engine: files, and folders with files. */
static uint64_t bytes_of(const char *dir, int levels)
{
    char **names = NULL;
    size_t n = 0;
    uint64_t sum = 0;

    nrd_error_free(nrd_dir_list(&names, &n, dir));
    for (size_t i = 0; i < n; i++) {
        struct stat st;
        char *path = NULL;
        nrd_error_free(nrd_path_make(&path, dir, names[i]));
        if (path && lstat(path, &st) == 0) {
            sum += S_ISREG(st.st_mode) ? (uint64_t)st.st_size : S_ISDIR(st.st_mode) && levels > 0 ? bytes_of(path, levels - 1) : 0;
        }
        free(path);
    }
    nrd_names_free(names, n);
    return sum;
}

static entry *list(const char *dir, size_t *out_n)
{
    char **names = NULL;
    size_t n = 0;

    *out_n = 0;
    nrd_error_free(nrd_dir_list(&names, &n, dir));
    entry *all = calloc(n + 1, sizeof *all);
    for (size_t i = 0; all && i < n; i++) {
        struct stat st;
        char *path = NULL;
        nrd_error_free(nrd_path_make(&path, dir, names[i]));
        if (path && !strstr(names[i], ".tmp.") && lstat(path, &st) == 0 && S_ISDIR(st.st_mode)) {
            all[(*out_n)++] = (entry){.path = path, .bytes = bytes_of(path, 1), .used = st.st_mtime};
        } else {
            free(path);
        }
    }
    nrd_names_free(names, n);
    if (*out_n > 1) {
        qsort(all, *out_n, sizeof *all, by_use);
    }
    return all;
}

/* Whether the disk is to have more free; what cannot be asked has enough. */
static bool is_full(const char *dir, uint64_t more_bytes)
{
    struct statvfs v;

    if (statvfs(dir, &v) != 0 || v.f_blocks == 0) {
        return false;
    }
    const uint64_t share = v.f_blocks / 100 * KEPT_FREE_PERCENT * v.f_frsize;
    return v.f_bavail * v.f_frsize < more_bytes + (share < KEPT_FREE_BYTES ? share : KEPT_FREE_BYTES);
}

void nrd_cache_trim(const char *dir, uint64_t max_bytes, uint64_t more_bytes)
{
    size_t n = 0;
    uint64_t sum = 0;
    nrd_str in_use = {0};
    entry *all = max_bytes < UINT64_MAX ? list(dir, &n) : NULL;

    for (size_t i = 0; i < n; i++) {
        sum += all[i].bytes;
    }
    bool full = n > 0 && is_full(dir, more_bytes);
    if (sum > max_bytes || full) {
        nrd_cache_in_use(&in_use);
    }
    for (size_t i = 0; i < n; i++) {
        const bool goes = (sum > max_bytes || full) && !nrd_cache_is_in_use(&in_use, all[i].path);
        char *taken = goes ? nrd_cache_entry_take(all[i].path) : NULL;
        if (taken) {
            nrd_dir_remove(taken);
            if (sum > max_bytes) {
                NRD_LOG_WARN("removed '%s' (%.1f MB), which was not used longest: engines may take %.1f MB (" NRD_CACHE_MAX_SIZE ")",
                             all[i].path, (double)all[i].bytes / 1e6, (double)max_bytes / 1e6);
            } else {
                NRD_LOG_WARN("removed '%s' (%.1f MB), which was not used longest: the disk is nearly full (" NRD_CACHE_MAX_SIZE
                             "=0 keeps all)", all[i].path, (double)all[i].bytes / 1e6);
            }
            sum -= all[i].bytes;
            full = full && is_full(dir, more_bytes);
        }
        free(taken);
        free(all[i].path);
    }
    free(all);
    nrd_str_fini(&in_use);
}
