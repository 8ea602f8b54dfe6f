/* SPDX-License-Identifier: Apache-2.0
 * harness.h - what the families of operations share: devices under test, memory of a case, verdicts, clocks.
 *
 * Purpose   One table of operations x shapes x types for all devices. A family (linear.c, rows.c, ...) has the
 *           rows, their tolerances, bytes and operations; a case is made once, the C reference computes what it
 *           must give, and every target computes it too.
 * Owner     One thread.
 * Lifetime  All memory of a case, weights included, lives until case_end().
 * Errors    An error of the device ends the program; a wrong result is counted and printed.
 */
#ifndef NRD_TESTS_OPS_HARNESS_H
#define NRD_TESTS_OPS_HARNESS_H

#include "base/dtype.h"
#include "device/ops/ops.h"
#include "nereid/device.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- devices ---- */

/* A device as one set of options opens it: on the CPU an instruction set and a number of threads. */
typedef struct target {
    char name[40];
    nrd_device *dev;
    const nrd_device_ops *ops;
    nrd_stream *s;
    int32_t threads;
} target;
enum { MAX_TARGETS = 12 };
extern target targets[MAX_TARGETS];
extern int n_targets;

/* What the rows must know of a device beside what its interface says. */
typedef struct device_kind {
    const char *name;
    nrd_dtype acts[3]; /* types of activations */
    int n_acts;
    nrd_dtype eight; /* rows of activations of 8 bits */
    /* Every element is right within float32's rounding; else the result as a whole within its type's. */
    bool is_exact;
    bool
        rows_alone; /* a row's bits never depend on its neighbours; else where `deterministic` asks for it */
} device_kind;
extern const device_kind *kind;

/* Where a row of the table belongs. */
enum { ON_CPU = 1, ON_CUDA = 2, ON_ALL = 3, LARGE = 4 /* not with --small */ };
bool is_here(unsigned on);
extern bool small_only;

/* isa "", threads 0: all that are tested, or with `one` what the device takes itself. */
void targets_open(const char *device, const char *isa, int32_t threads, bool one);
void targets_close(void);
void ok(nrd_error *err); /* ends the program with the message */
void sync(const target *t);

/* ---- random numbers: NEREID_TEST_SEED repeats a run ---- */

void seed_set(void);
uint64_t rnd(void);
int32_t rnd_in(int32_t lo, int32_t hi); /* both included */
float rnd_unit(void);                   /* [0, 1) */
float rnd_normal(void);                 /* about normal, mean 0, deviation 1 */

/* ---- memory of a case ---- */

void *host(size_t bytes); /* zeroed, aligned to 64 */
float *host_normal(int64_t n, float scale);
/* n numbers as F32, F16 or BF16. */
void *host_as(nrd_dtype t, int64_t n, float scale);
void *dev_put(const target *t, const void *src, size_t bytes);
void *dev_out(const target *t, size_t bytes); /* NaN bits: what nobody writes is an error */
void *dev_pool(const target *t, nrd_dtype type,
               size_t bytes); /* random numbers, which repeat every MB */
void dev_get(const target *t, void *dst, const void *src, size_t bytes); /* waits */
/* Rows of an activation tensor (F8 with d_scale) as floats. */
float *dev_rows(const target *t, nrd_dtype type, const void *d, const float *d_scale, int64_t rows,
                int64_t cols);
float *rows_of(nrd_dtype type, const void *data, const float *scale, int64_t rows, int64_t cols);
void case_end(void);

/* A weight of random numbers in host memory. Of large ones the first 61 rows differ, a prime, so that no tile
 * repeats. */
nrd_weight weight_new(nrd_dtype t, int64_t rows, int64_t cols, float scale);
/* Of F8_B128: checkpoints have blocks of 128 rows, too; all get the scales of the first row of each. weight_new does it by turns. */
void square_blocks(const nrd_weight *w);
/* On the device, as linear() or embed() want it. */
nrd_weight weight_on(const target *t, const nrd_weight *w, bool is_linear);

/* Whether products of n tokens (or of an expert with at most n) may take a number of a block type and of x as bfloat16, those of
 * float16 as two: on the matrix unit of a CPU, unless they are asked to be deterministic. */
bool may_round(const target *t, nrd_dtype type, int32_t n, bool deterministic);
bool has_unit(const target *t); /* the matrix unit of a CPU */
bool is_block_type(nrd_dtype t);

/* ---- verdicts ---- */

/* What the next verdicts are about. */
void case_name(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* whole > 0: ||got - want|| / ||want||; else each element within absolute + relative |want|. */
typedef struct limit {
    double absolute, relative, whole;
} limit;
void compare(const target *t, const char *what, const float *got, const float *want, int64_t n,
             limit l);
void same_bytes(const target *t, const char *what, const void *got, const void *want, size_t bytes);
void verdict(const target *t, const char *what, bool is_right);
void verdicts(int *out_all, int *out_failed); /* so far */
/* Twice the rounding of a type that results are kept in. */
double rounding(nrd_dtype t);
double eight_step(const float *x, int64_t n); /* of rows of 8 bits around x */

/* ---- speed ---- */

enum { PEAK_FLOAT, PEAK_EIGHT, PEAK_BF16, N_PEAKS };
typedef struct work {
    double bytes, ops; /* the fewest: each input read once, each output written once */
    int peak;          /* what limits `ops` */
} work;
void peaks_set(double gbytes, double gops); /* 0: as the device measures itself */
/* Seconds of one call(i); i counts up, so that a call can walk through copies of its data. */
double measure(const target *t, void (*call)(const target *t, int i, void *user), void *user,
               int calls);
/* Prints time, rates and the share of the floor. */
void speed_row(double seconds, work w, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* ---- families ---- */

void check_linear(void);
void check_matmul(void);
void speed_linear(void);
void check_gated(void);
void speed_gated(void);
void check_joined(void);
void speed_joined(void);
void check_packed(void);
void check_norm(void);
void check_act(void);
void speed_rows(void);
void check_embed(void);
void speed_embed(void);
void check_cache(void);
void check_attention(void);
void check_shared(void);
void check_latent(void);
void speed_latent(void);
void speed_attention(void);
void check_sample(void);
void speed_sample(void);
void check_head(void);
void speed_head(void);
void check_head_far(const target *t); /* of a device with memory of its own */
void speed_head_far(const target *t);
void check_lora(void);
void speed_lora(void);
void check_moe(void);
void speed_moe(void);
void check_recurrent(void);
void speed_recurrent(void);
void check_altup(void);
void check_graph(void);

/* The formats of weights that every device reads; F8_E4M3, the last, only where `eight` is it. */
enum { N_WEIGHT_TYPES = 19, N_LINEAR_TYPES = 24 }; /* behind them types that only linear() of GPUs takes */
extern const nrd_dtype weight_types[N_LINEAR_TYPES];
bool has_weight(nrd_dtype t);

#endif
