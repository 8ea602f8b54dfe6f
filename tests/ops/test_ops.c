/* SPDX-License-Identifier: Apache-2.0
 * Every operation of a device against the C reference: one table of shapes x types for all devices.
 *
 *   test_ops [--device cpu|cuda] [--isa NAME] [--threads N] [--small] [FAMILY...]
 *   test_ops --speed [--peak GB/s GFLOP/s] ...
 * Fresh random data for every case (NEREID_TEST_SEED=n repeats a run); outputs hold NaN bits before each call, so
 * that an element nobody wrote is an error. On the CPU each instruction set that runs here, with one and three
 * threads, unless one is named. --small leaves out large shapes (for memory checkers). --speed times the table's
 * shapes of real models instead, beside the limits that the device measures or that are given. */
#include "ops/harness.h"

#include "base/str.h"

static const struct family {
    const char *name;
    void (*check)(void), (*speed)(void);
} families[] = {
    {"embed", check_embed, speed_embed},
    {"cache", check_cache, NULL},
    {"norm", check_norm, speed_rows},
    {"act", check_act, NULL},
    {"packed", check_packed, NULL},
    {"linear", check_linear, speed_linear},
    {"gated", check_gated, speed_gated},
    {"joined", check_joined, speed_joined},
    {"matmul", check_matmul, NULL},
    {"attention", check_attention, speed_attention},
    {"shared", check_shared, NULL},
    {"latent", check_latent, speed_latent},
    {"sample", check_sample, speed_sample},
    {"head", check_head, speed_head},
    {"lora", check_lora, speed_lora},
    {"moe", check_moe, speed_moe},
    {"recurrent", check_recurrent, speed_recurrent},
    {"altup", check_altup, NULL},
    {"graph", check_graph, NULL},
};
enum { N_FAMILIES = sizeof families / sizeof *families };

typedef struct options {
    const char *device, *isa;
    long long threads;
    bool speed, wanted[N_FAMILIES], some;
    double gbytes, gops;
} options;

static int usage(const char *of)
{
    fprintf(
        stderr,
        "test_ops: %s\nusage: test_ops [--device cpu|cuda] [--isa NAME] [--threads N] [--small]\n"
        "                [--speed [--peak GB/s GFLOP/s]] [FAMILY...]\nfamilies:",
        of);
    for (int i = 0; i < N_FAMILIES; i++) {
        fprintf(stderr, " %s", families[i].name);
    }
    fputc('\n', stderr);
    return 2;
}

static bool choose_family(options *o, const char *name)
{
    bool found = false;
    for (int i = 0; i < N_FAMILIES; i++) {
        if (strcmp(name, families[i].name) == 0 || strcmp(name, "all") == 0) {
            o->wanted[i] = found = o->some = true;
        }
    }
    return found;
}

static void run(const options *o)
{
    int seen = 0, seen_failed = 0, all, failed;

    for (int i = 0; i < N_FAMILIES; i++) {
        const struct family *f = &families[i];
        if (o->some && !o->wanted[i]) {
            continue;
        }
        if (o->speed) {
            if (f->speed) {
                f->speed();
            }
            continue;
        }
        f->check();
        verdicts(&all, &failed);
        printf("[%s] %s: %d comparisons, %d failed\n",
               failed > seen_failed ? "  FAILED  " : "       OK ", f->name, all - seen,
               failed - seen_failed);
        fflush(stdout);
        seen = all;
        seen_failed = failed;
    }
}

int main(int argc, char **argv)
{
    options o = {.device = "cpu", .isa = ""};
    int all, failed;

    setvbuf(stdout, NULL, _IOLBF, BUFSIZ); /* a run that is stopped has told what it did, also into a file */
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--small") == 0) {
            small_only = true;
        } else if (strcmp(argv[i], "--speed") == 0) {
            o.speed = true;
        } else if (strcmp(argv[i], "--device") == 0 && i + 1 < argc) {
            o.device = argv[++i];
        } else if (strcmp(argv[i], "--isa") == 0 && i + 1 < argc) {
            o.isa = argv[++i];
        } else if (strcmp(argv[i], "--threads") == 0 && i + 1 < argc &&
                   nrd_parse_i64(argv[i + 1], &o.threads)) {
            i++;
        } else if (strcmp(argv[i], "--peak") == 0 && i + 2 < argc) {
            o.gbytes = strtod(argv[++i], NULL);
            o.gops = strtod(argv[++i], NULL);
        } else if (!choose_family(&o, argv[i])) {
            return usage(argv[i]);
        }
    }
    targets_open(o.device, o.isa, (int32_t)o.threads, o.speed);
    if (n_targets == 0) { /* each was named as left out */
        return 0;
    }
    seed_set();
    if (o.speed) {
        peaks_set(o.gbytes, o.gops);
    }
    run(&o);
    targets_close();
    verdicts(&all, &failed);
    if (!o.speed) {
        printf("%s: %d comparisons, %d failed\n", failed ? "FAILED" : "ok", all, failed);
    }
    return failed != 0;
}
