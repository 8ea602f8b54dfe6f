/* SPDX-License-Identifier: Apache-2.0
 * Who may execute next, when instances share named resources.
 *
 * An instance that has a batch asks for everything its group's rate_limiter names and gets all of
 * it or waits. Of those that could start, the one with the smallest executions x priority goes
 * first, so a group of priority 2 runs half as often as one of priority 1. A resource is counted
 * per device unless it is global; how much there is of it was given with the server's options, else
 * it is the most that any instance asks for.
 *
 * Lock: mu guards everything. It is a leaf: nothing is called while it is held. */
#include "core/sched/rate_limiter.h"

#include "core/instance_internal.h"
#include "core/options.h"

#include "base/error.h"
#include "base/mem.h"
#include "base/str.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { GLOBAL_DEVICE = -1 }; /* the key of resources that all devices share */

typedef struct resource {
    struct resource *next;
    char *name;
    int32_t device;
    uint64_t used;
} resource;

typedef struct waiter {
    struct waiter *next;
    const nrd_instance *inst;
    uint64_t score;
} waiter;

struct nrd_limiter {
    pthread_mutex_t mu;
    pthread_cond_t cond;
    resource *resources;
    waiter *waiting;
    const nrd_instance **members; /* loaded instances with needs */
    size_t n_members;
    const nrd_setting *given; /* borrowed from the server's options: scope device, key, value */
};

nrd_limiter *nrd_limiter_new(const nrd_setting *given)
{
    nrd_limiter *l = calloc(1, sizeof *l);
    if (!l) {
        return NULL;
    }
    pthread_mutex_init(&l->mu, NULL);
    pthread_cond_init(&l->cond, NULL);
    l->given = given;
    return l;
}

void nrd_limiter_free(nrd_limiter *l)
{
    if (!l) {
        return;
    }
    for (resource *r = l->resources, *next; r; r = next) {
        next = r->next;
        free(r->name);
        free(r);
    }
    free(l->members);
    pthread_cond_destroy(&l->cond);
    pthread_mutex_destroy(&l->mu);
    free(l);
}

static int32_t device_of(const nrd_instance *i, const Inference__ModelRateLimiter__Resource *need)
{
    return need->global ? GLOBAL_DEVICE : i->device_id;
}

/* Every need of an instance that was added has its resource. */
static resource *resource_locked(const nrd_limiter *l, const char *name, int32_t device)
{
    resource *r = l->resources;
    while (r && (r->device != device || strcasecmp(r->name, name) != 0)) {
        r = r->next;
    }
    return r;
}

static nrd_error *make_resource_locked(nrd_limiter *l, const char *name, int32_t device)
{
    if (resource_locked(l, name, device)) {
        return NULL;
    }
    resource *r = calloc(1, sizeof *r);
    if (!r || !(r->name = strdup(name))) {
        free(r);
        return nrd_error_no_memory();
    }
    r->device = device;
    r->next = l->resources;
    l->resources = r;
    return NULL;
}

/* How much there is: as given for the device, as given for all, else the largest need. */
static uint64_t total_locked(const nrd_limiter *l, const char *name, int32_t device, bool *is_given)
{
    char key[16];
    unsigned long long v = 0;
    uint64_t most = 0;
    const char *text = NULL, *for_all = NULL;

    snprintf(key, sizeof key, "%d", device);
    for (const nrd_setting *g = l->given; g; g = g->next) { /* names: upper and lower case alike */
        if (strcasecmp(g->key, name) == 0) {
            text = strcmp(g->scope, key) == 0 ? g->value : text;
            for_all = strcmp(g->scope, "all") == 0 ? g->value : for_all;
        }
    }
    text = text ? text : for_all;
    *is_given = text && nrd_parse_u64(text, &v);
    if (*is_given) {
        return v;
    }
    for (size_t i = 0; i < l->n_members; i++) {
        const Inference__ModelRateLimiter *rl = l->members[i]->group->rate_limiter;
        for (size_t k = 0; k < rl->n_resources; k++) {
            if (strcasecmp(rl->resources[k]->name, name) == 0 &&
                device_of(l->members[i], rl->resources[k]) == device &&
                rl->resources[k]->count > most) {
                most = rl->resources[k]->count;
            }
        }
    }
    return most;
}

nrd_error *nrd_limiter_add(nrd_limiter *l, const nrd_instance *inst)
{
    const Inference__ModelRateLimiter *rl = inst->group->rate_limiter;
    nrd_error *err = NULL;

    if (!l || !rl) {
        return NULL;
    }
    pthread_mutex_lock(&l->mu);
    for (size_t k = 0; k < rl->n_resources && !err; k++) {
        bool is_given = false;
        uint64_t total =
            total_locked(l, rl->resources[k]->name, device_of(inst, rl->resources[k]), &is_given);
        if (is_given && total < rl->resources[k]->count) {
            err = nrd_errorf(NRD_ERR_INVALID_ARG,
                             "Resource count for \"%s\" is limited to %llu which will prevent "
                             "scheduling of one or more model instances, the minimum required "
                             "count is %u",
                             rl->resources[k]->name, (unsigned long long)total,
                             rl->resources[k]->count);
        }
        err = err ? err
                  : make_resource_locked(l, rl->resources[k]->name, device_of(inst, rl->resources[k]));
    }
    if (!err) {
        const nrd_instance **list = realloc(l->members, (l->n_members + 1) * sizeof *list);
        if (list) {
            l->members = list;
            l->members[l->n_members++] = inst;
        } else {
            err = nrd_error_no_memory();
        }
    }
    pthread_mutex_unlock(&l->mu);
    return err;
}

void nrd_limiter_remove(nrd_limiter *l, const nrd_instance *inst)
{
    if (!l) {
        return;
    }
    pthread_mutex_lock(&l->mu);
    for (size_t i = 0; i < l->n_members; i++) {
        if (l->members[i] == inst) {
            l->members[i] = l->members[--l->n_members];
            break;
        }
    }
    pthread_cond_broadcast(&l->cond);
    pthread_mutex_unlock(&l->mu);
}

static bool fits_locked(nrd_limiter *l, const nrd_instance *inst)
{
    const Inference__ModelRateLimiter *rl = inst->group->rate_limiter;
    for (size_t k = 0; k < rl->n_resources; k++) {
        const Inference__ModelRateLimiter__Resource *need = rl->resources[k];
        bool is_given;
        int32_t device = device_of(inst, need);
        uint64_t total = total_locked(l, need->name, device, &is_given);
        if (resource_locked(l, need->name, device)->used + need->count > total) {
            return false;
        }
    }
    return true;
}

static bool is_next_locked(nrd_limiter *l, const waiter *me)
{
    if (!fits_locked(l, me->inst)) {
        return false;
    }
    for (const waiter *w = l->waiting; w; w = w->next) {
        if (w != me && w->score < me->score && fits_locked(l, w->inst)) {
            return false;
        }
    }
    return true;
}

static void charge_locked(nrd_limiter *l, const nrd_instance *inst, bool take)
{
    const Inference__ModelRateLimiter *rl = inst->group->rate_limiter;
    for (size_t k = 0; k < rl->n_resources; k++) {
        resource *r = resource_locked(l, rl->resources[k]->name, device_of(inst, rl->resources[k]));
        r->used = take ? r->used + rl->resources[k]->count : r->used - rl->resources[k]->count;
    }
}

void nrd_limiter_acquire(nrd_limiter *l, nrd_instance *inst)
{
    waiter me = {.inst = inst};

    if (!l || !inst->group->rate_limiter) {
        return;
    }
    pthread_mutex_lock(&l->mu);
    uint64_t priority = inst->group->rate_limiter->priority;
    me.score = inst->n_executions * (priority ? priority : 1);
    me.next = l->waiting;
    l->waiting = &me;
    while (!is_next_locked(l, &me)) {
        pthread_cond_wait(&l->cond, &l->mu);
    }
    waiter **p = &l->waiting;
    while (*p != &me) {
        p = &(*p)->next;
    }
    *p = me.next;
    charge_locked(l, inst, true);
    inst->n_executions++;
    pthread_cond_broadcast(&l->cond); /* with this one gone, another may be the next that fits */
    pthread_mutex_unlock(&l->mu);
}

void nrd_limiter_release(nrd_limiter *l, nrd_instance *inst)
{
    if (!l || !inst->group->rate_limiter) {
        return;
    }
    pthread_mutex_lock(&l->mu);
    charge_locked(l, inst, false);
    pthread_cond_broadcast(&l->cond);
    pthread_mutex_unlock(&l->mu);
}
