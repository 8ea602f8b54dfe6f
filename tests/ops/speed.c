/* SPDX-License-Identifier: Apache-2.0
 * How long a call takes, beside the limits of the machine.
 *
 * Where steps can be recorded, a graph of the calls is launched again and again: the median of seven. Else calls run
 * for a fifth of a second, the best of many runs of about a millisecond each, so that some of them fall between the
 * slices that a busy machine gives to others; with one thread, in time that the process spent on a processor. */
#include "ops/harness.h"

#include "base/clock.h"

#include <stdarg.h>
#include <time.h>

static double peak_bytes, peak_ops[N_PEAKS];

void peaks_set(double gbytes, double gops)
{
    const target *t = &targets[0];
    nrd_device_info info;
    nrd_device_limits most = {0};

    t->ops->get_info(t->dev, &info);
    if (t->ops->limits && !(gbytes > 0 && gops > 0)) {
        ok(t->ops->limits(t->dev, &most));
    }
    peak_bytes = gbytes > 0 ? gbytes * 1e9 : most.read_bytes_per_s;
    peak_ops[PEAK_FLOAT] = gops > 0 ? gops * 1e9 : most.float_ops_per_s;
    peak_ops[PEAK_EIGHT] = gops > 0 ? gops * 1e9 : most.eight_bit_ops_per_s;
    /* the matrix unit takes x as two bfloat16 */
    peak_ops[PEAK_BF16] = most.bf16_ops_per_s > 0 ? most.bf16_ops_per_s / 2 : peak_ops[PEAK_FLOAT];
    printf("%s: read %.1f GB/s, float %.0f, 8 bits %.0f GFLOP/s", info.name, peak_bytes * 1e-9,
           peak_ops[PEAK_FLOAT] * 1e-9, peak_ops[PEAK_EIGHT] * 1e-9);
    printf(most.bf16_ops_per_s > 0 ? ", bfloat16 %.0f GFLOP/s\n" : "\n",
           most.bf16_ops_per_s * 1e-9);
}

static double cpu_seconds(const target *t)
{
    struct timespec now;
    clock_gettime(t->threads == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static double best_of_calls(const target *t, void (*call)(const target *, int, void *), void *user)
{
    double best = 1e9;
    int inner = 1, at = 0;
    const uint64_t begin = nrd_now_ns();

    for (int r = 0; r < 4 || (r < 300 && nrd_now_ns() - begin < 200000000u); r++) {
        for (int i = 0; i < inner; i++) {
            call(t, at++, user);
        }
        const double from = cpu_seconds(t);
        sync(t);
        const double s = cpu_seconds(t) - from;
        best = r > 0 && s / inner < best ? s / inner : best;
        inner *= s < 0.5e-3 && inner < 256 ? 2 : 1;
    }
    return best;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

double measure(const target *t, void (*call)(const target *, int, void *), void *user, int calls)
{
    enum { ROUNDS = 7, LAUNCHES = 3 };
    double s[ROUNDS];
    nrd_graph *g;

    if (!t->ops->graph_begin) {
        return best_of_calls(t, call, user);
    }
    call(t, 0, user);
    sync(t);
    ok(t->ops->graph_begin(t->s));
    for (int i = 0; i < calls; i++) {
        call(t, i, user);
    }
    ok(t->ops->graph_end(t->s, &g));
    ok(t->ops->graph_launch(t->s, g));
    sync(t);
    for (int r = 0; r < ROUNDS; r++) {
        const uint64_t from = nrd_now_ns();
        for (int k = 0; k < LAUNCHES; k++) {
            ok(t->ops->graph_launch(t->s, g));
        }
        sync(t);
        s[r] = (double)(nrd_now_ns() - from) * 1e-9 / (LAUNCHES * calls);
    }
    t->ops->graph_free(g);
    qsort(s, ROUNDS, sizeof *s, by_value);
    return s[ROUNDS / 2];
}

void speed_row(double seconds, work w, const char *fmt, ...)
{
    const double floor_s = fmax(w.bytes / peak_bytes, w.ops / peak_ops[w.peak]);
    char what[160];
    va_list args;

    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    printf("%-44s %9.2f us  %8.2f GB/s  %9.1f GFLOP/s  %5.1f %% of floor %8.2f us\n", what,
           seconds * 1e6, w.bytes / seconds * 1e-9, w.ops / seconds * 1e-9, 100 * floor_s / seconds,
           floor_s * 1e6);
    fflush(stdout);
}
