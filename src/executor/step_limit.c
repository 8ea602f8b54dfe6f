/* SPDX-License-Identifier: Apache-2.0
 * What steps took, by their work. */
#include "executor/step_limit.h"

#include <math.h>

enum {
    LEFT_OUT = 4, /* first steps of a class: kernels are loaded, graphs recorded */
    ENOUGH = 12,
    FORGETS = 16, /* a long step counts less with each that follows */
    PAIRS_OF_HIDDEN = 6, /* the products of a layer of usual form are 24 hidden^2 operations for a token, a pair 4 hidden */
};

double nrd_step_work(const nrd_plan *p, int32_t hidden)
{
    double pairs = 0;

    for (int32_t i = 0; i < p->n_entries; i++) {
        const nrd_plan_entry *e = &p->entries[i];
        pairs += (double)e->n * (double)(e->start + e->n);
    }
    return pairs + (double)PAIRS_OF_HIDDEN * hidden * p->n_tokens;
}

static int class_of(double work)
{
    const int k = work < 2 ? 0 : ilogb(work);
    return k < NRD_STEP_CLASSES ? k : NRD_STEP_CLASSES - 1;
}

void nrd_step_limit_hear(nrd_step_limit *l, double work, int64_t ns)
{
    const int k = class_of(work);

    if (l->classes[k].n < ENOUGH) {
        l->classes[k].n++;
    }
    if (l->classes[k].n <= LEFT_OUT) {
        return;
    }
    if (l->classes[k].least_work <= 0 || work < l->classes[k].least_work) {
        l->classes[k].least_work = work;
    }
    l->classes[k].most_ns -= l->classes[k].most_ns / FORGETS;
    if (ns > l->classes[k].most_ns) {
        l->classes[k].most_ns = ns;
    }
}

int64_t nrd_step_limit_ms(const nrd_step_limit *l, double work, int64_t most_ms)
{
    double ms = (double)most_ms;

    for (int k = 0; k < NRD_STEP_CLASSES; k++) {
        if (l->classes[k].n < ENOUGH) {
            continue;
        }
        const double share = work > l->classes[k].least_work ? work / l->classes[k].least_work : 1;
        const double bound = NRD_STEP_LIMIT_FACTOR * share * (double)l->classes[k].most_ns * 1e-6;
        ms = bound < ms ? bound : ms;
    }
    if (ms < NRD_STEP_LIMIT_FLOOR_MS) {
        ms = NRD_STEP_LIMIT_FLOOR_MS < most_ms ? NRD_STEP_LIMIT_FLOOR_MS : (double)most_ms;
    }
    return (int64_t)ms;
}
