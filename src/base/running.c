/* SPDX-License-Identifier: Apache-2.0 */
#include "base/running.h"

#include "base/env.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_PROC = 4096, MAX_TOLD = 64 << 10 };

/* Owned; NULL: there is none that is ours alone. */
static char *own_dir(void)
{
    const char *run = nrd_env("XDG_RUNTIME_DIR", NULL);
    char *dir = run ? nrd_path_join(run, "nereid") : nrd_xasprintf("/tmp/nereid-%ld", (long)getuid());
    struct stat st;

    if ((mkdir(dir, 0700) != 0 && errno != EEXIST) || lstat(dir, &st) != 0 || !S_ISDIR(st.st_mode) ||
        st.st_uid != getuid() || (st.st_mode & 077) != 0) {
        free(dir);
        return NULL;
    }
    return dir;
}

/* A small file of /proc, which has no size. */
static void read_proc(char *out, size_t room, long pid, const char *name)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%ld/%s", pid, name);
    FILE *f = fopen(path, "re");
    const size_t n = f ? fread(out, 1, room - 1, f) : 0;
    out[n] = '\0';
    if (f) {
        fclose(f);
    }
}

/* When the process began, in ticks since the machine did (proc(5), field 22 of stat); 0: there is none. */
static unsigned long long ticks_of(long pid)
{
    char text[MAX_PROC];
    read_proc(text, sizeof text, pid, "stat");
    const char *p = strrchr(text, ')'); /* a program's name may have blanks */
    for (int field = 2; p && field < 22; field++) {
        p = strchr(p + 1, ' ');
    }
    return p ? strtoull(p + 1, NULL, 10) : 0;
}

uint64_t nrd_running_memory(long pid)
{
    char text[MAX_PROC];
    read_proc(text, sizeof text, pid, "statm"); /* all pages, resident ones, … */
    const char *p = strchr(text, ' ');
    return p ? strtoull(p, NULL, 10) * (uint64_t)sysconf(_SC_PAGESIZE) : 0;
}

static char *told; /* the file of this process */

void nrd_running_tell(const char *json)
{
    char *dir = told ? NULL : own_dir(); /* at the start only: without memory the program ends there */
    if (dir) {
        told = nrd_xasprintf("%s/%ld-%llu.json", dir, (long)getpid(), ticks_of(getpid()));
    }
    if (told) {
        nrd_error_free(nrd_file_write(told, json, strlen(json)));
    }
    free(dir);
}

/* Needs no memory: a server that has none ends, too. */
void nrd_running_forget(void)
{
    if (told) {
        (void)unlink(told);
    }
    free(told);
    told = NULL;
}

void nrd_running_each(nrd_running_visit *visit, void *user)
{
    char *dir = own_dir(), **names = NULL;
    size_t n = 0;

    if (dir) {
        nrd_error_free(nrd_dir_list(&names, &n, dir));
    }
    for (size_t i = 0; i < n; i++) {
        char *path = nrd_path_join(dir, names[i]), *json = NULL, *end = NULL;
        const long pid = strtol(names[i], &end, 10);
        const unsigned long long ticks = *end == '-' ? strtoull(end + 1, NULL, 10) : 0;
        size_t len = 0;
        const bool is_whole = nrd_str_has_suffix(names[i], ".json"); /* else it is being written */
        if (is_whole && pid > 0 && ticks > 0 && ticks_of(pid) == ticks) {
            nrd_error_free(nrd_file_read(&json, &len, path, MAX_TOLD));
        } else if (is_whole && pid > 0 && ticks > 0) {
            (void)unlink(path);
        }
        if (json) {
            visit(user, pid, json);
        }
        free(json);
        free(path);
    }
    nrd_names_free(names, n);
    free(dir);
}
