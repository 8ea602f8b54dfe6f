/* SPDX-License-Identifier: Apache-2.0
 * What /proc says of threads. */
#include "executor/ranks/pulse.h"

#include "base/str.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { STATUS_BYTES = 4096, LATE_MS = 1000 };

typedef struct status {
    char name[32], state;
    uint64_t n_switches; /* how often it was given a processor */
} status;

/* The text behind `key`, at the beginning of a line; NULL: there is none. */
static const char *value_of(const char *text, const char *key)
{
    const size_t n = strlen(key);

    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (!strncmp(line, key, n)) {
            return line + n + strspn(line + n, " \t");
        }
    }
    return NULL;
}

/* false: it has ended, or the system does not say. */
static bool read_status(int32_t process, int32_t thread, status *out)
{
    char path[64], text[STATUS_BYTES];
    long long wanted = 0, forced = 0;

    snprintf(path, sizeof path, "/proc/%d/task/%d/status", (int)process, (int)thread);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    const ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0) {
        close(fd);
    }
    text[n > 0 ? n : 0] = '\0';
    const char *name = value_of(text, "Name:"), *state = value_of(text, "State:");
    const char *first = value_of(text, "voluntary_ctxt_switches:"), *second = value_of(text, "nonvoluntary_ctxt_switches:");
    if (!name || !state || !first || !second || sscanf(first, "%19lld", &wanted) != 1 || sscanf(second, "%19lld", &forced) != 1) {
        return false;
    }
    snprintf(out->name, sizeof out->name, "%.*s", (int)strcspn(name, "\n"), name);
    out->state = *state;
    out->n_switches = (uint64_t)wanted + (uint64_t)forced;
    return true;
}

/* It has a processor or waits for one, or for a disk, which brings pages of weights. */
static bool would_run(const status *s)
{
    return s->state == 'R' || s->state == 'D';
}

bool nrd_pulse_would_run(int32_t process, int32_t thread)
{
    status s;
    return read_status(process, thread, &s) && would_run(&s);
}

static bool computes(const char *name)
{
    return !strncmp(name, "nrd-cpu-", 8) || !strncmp(name, "nrd-guides", 10) || !strncmp(name, "nrd-lora", 8);
}

/* Those that the thread of the steps may wait for; of another engine's in this process nobody can tell. */
static bool others_run(nrd_pulse *p)
{
    DIR *d = opendir("/proc/self/task");
    const struct dirent *e;
    uint64_t n = 0;
    bool any = d == NULL;

    while (!any && (e = readdir(d)) != NULL) {
        long long id = 0;
        status s;
        if (!nrd_parse_i64(e->d_name, &id) || id == p->thread || !read_status(getpid(), (int32_t)id, &s) || !computes(s.name)) {
            continue;
        }
        any = would_run(&s);
        n += s.n_switches;
    }
    if (d) {
        closedir(d);
    }
    any = any || n != p->seen_others;
    p->seen_others = n;
    return any;
}

static bool runs(nrd_pulse *p)
{
    status s;

    if (!read_status(getpid(), p->thread, &s)) {
        return true;
    }
    const bool did = s.n_switches != p->seen;
    p->seen = s.n_switches;
    return did || would_run(&s) || others_run(p);
}

int64_t nrd_pulse_look(nrd_pulse *p, int64_t now_ms)
{
    const int64_t since = p->looked_ms > 0 ? now_ms - p->looked_ms : 0;

    p->looked_ms = now_ms;
    p->still_ms = runs(p) ? 0 : p->still_ms + (since < LATE_MS ? since : LATE_MS);
    return p->still_ms;
}
