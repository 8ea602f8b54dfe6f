/* SPDX-License-Identifier: Apache-2.0 */
#include "base/progress.h"

#include "base/clock.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct nrd_progress {
    const char *unit; /* NULL: bytes */
    uint64_t total, done, skipped, start_ns, drawn_ns;
    bool tty;
    char label[];
};

enum { BAR_WIDTH = 28 };
#define TTY_NS 100000000u
#define LINE_NS 10000000000u

static void draw(nrd_progress *p, bool last)
{
    char bar[BAR_WIDTH + 1];
    double secs = (double)(nrd_now_ns() - p->start_ns) / 1e9;
    double part = p->total ? (double)p->done / (double)p->total : 1;
    double rate = secs > 0 ? (double)(p->done - p->skipped) / secs : 0;
    int fill = (int)(part * BAR_WIDTH);

    for (int i = 0; i < BAR_WIDTH; i++) {
        bar[i] = i < fill ? '#' : '.';
    }
    bar[BAR_WIDTH] = '\0';
    fprintf(stderr, "%s%-24s [%s] %3.0f%%  ", p->tty ? "\r" : "", p->label, bar, part * 100);
    if (p->unit) {
        fprintf(stderr, "%llu %s  %.*f %s/s", (unsigned long long)p->done, p->unit, rate < 10 ? 2 : 0, rate, p->unit);
    } else {
        fprintf(stderr, "%.1f MB  %.1f MB/s", (double)p->done / 1e6, rate / 1e6);
    }
    if (last) {
        fprintf(stderr, "  %.2f s%s\n", secs, p->tty ? "\033[K" : "");
    } else {
        double left = rate > 0 && p->total > p->done ? (double)(p->total - p->done) / rate : 0;
        fprintf(stderr, "  %.0f s left%s", left, p->tty ? "\033[K" : "\n");
    }
    fflush(stderr);
}

nrd_progress *nrd_progress_new(const char *label, uint64_t total_bytes)
{
    const size_t n = strlen(label) + 1;
    nrd_progress *p = calloc(1, sizeof *p + n);
    if (!p) {
        return NULL;
    }
    memcpy(p->label, label, n);
    p->total = total_bytes;
    p->start_ns = p->drawn_ns = nrd_now_ns();
    p->tty = isatty(STDERR_FILENO) == 1;
    return p;
}

nrd_progress *nrd_progress_new_of(const char *label, uint64_t total, const char *unit)
{
    nrd_progress *p = nrd_progress_new(label, total);
    if (p) {
        p->unit = unit;
    }
    return p;
}

void nrd_progress_add(nrd_progress *p, uint64_t bytes)
{
    if (!p) {
        return;
    }
    p->done += bytes;
    uint64_t now = nrd_now_ns();
    if (now - p->drawn_ns > (p->tty ? TTY_NS : LINE_NS)) {
        p->drawn_ns = now;
        draw(p, false);
    }
}

void nrd_progress_skip(nrd_progress *p, uint64_t bytes)
{
    if (p) {
        p->skipped += bytes;
        nrd_progress_add(p, bytes);
    }
}

void nrd_progress_done(nrd_progress *p)
{
    if (!p) {
        return;
    }
    draw(p, true);
    free(p);
}
