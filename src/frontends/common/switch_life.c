/* SPDX-License-Identifier: Apache-2.0
 * How a switcher begins and ends, and which models it has. */
#include "frontends/common/switcher_internal.h"

#include "base/clock.h"
#include "base/limits.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

void nrd_switcher_on_change(nrd_switcher *s, void (*fn)(void *arg), void *arg)
{
    pthread_mutex_lock(&s->change_mu);
    s->on_change = fn;
    s->change_arg = arg;
    pthread_mutex_unlock(&s->change_mu);
}

static nrd_error *copy_spec(nrd_switch_model *m, const nrd_switch_spec *spec)
{
    nrd_error *err = NULL;
    m->name = strdup(spec->name);
    m->load = strdup(spec->load);
    m->file_bytes = spec->file_bytes;
    NRD_NEW_GOTO(m->aliases, spec->n_aliases + 1, err, fail);
    for (size_t i = 0; i < spec->n_aliases; i++) {
        m->aliases[i] = strdup(spec->aliases[i]);
        if (!m->aliases[i]) {
            return nrd_error_no_memory();
        }
        m->n_aliases++;
    }
    return m->name && m->load ? NULL : nrd_error_no_memory();
fail:
    return err;
}

static void free_model(nrd_switch_model *m)
{
    for (size_t k = 0; k < m->n_aliases; k++) {
        free(m->aliases[k]);
    }
    free(m->aliases);
    free(m->name);
    free(m->load);
    memset(m, 0, sizeof *m);
}

/* Behind all others. */
static nrd_error *put_model_locked(nrd_switcher *s, const nrd_switch_spec *spec)
{
    const size_t i = s->n;
    nrd_switch_model *m = &s->models[i];
    nrd_error *err = copy_spec(m, spec);

    if (err) {
        free_model(m);
        return err;
    }
    m->i = i;
    m->keep_ns = s->cfg.keep_ns;
    s->slots[i] = (nrd_switch_slot){.bytes = spec->bytes, .pinned = spec->pinned};
    s->n = i + 1;
    return NULL;
}

nrd_error *nrd_switcher_add(nrd_switcher *s, const nrd_switch_spec *spec)
{
    nrd_switch_model *old = NULL;
    nrd_error *err = NULL;

    pthread_mutex_lock(&s->mu);
    for (size_t i = 0; i < s->n && !err; i++) {
        nrd_switch_model *m = &s->models[i];
        const bool is_one = !strcmp(m->name, spec->name), is_load = !strcmp(m->load, spec->load);
        if (is_one && is_load && m->forgotten && s->slots[i].state == NRD_SWITCH_ABSENT) {
            old = m;
        } else if (is_one || is_load) {
            err = nrd_errorf(NRD_ERR_UNAVAILABLE, "a model `%s` is here already", m->name);
        }
    }
    if (!err && old) {
        nrd_switch_slot_of(s, old)->bytes = spec->bytes;
        old->file_bytes = spec->file_bytes;
        old->asleep = old->was_ready = false;
        old->forgotten = false;
    } else if (!err && s->n == NRD_LIMIT_SWITCHED_MODELS) {
        err = nrd_errorf(NRD_ERR_UNAVAILABLE, "this server has had %d models, which is the most", (int)NRD_LIMIT_SWITCHED_MODELS);
    } else if (!err) {
        err = put_model_locked(s, spec);
    }
    pthread_mutex_unlock(&s->mu);
    return err;
}

nrd_error *nrd_switcher_forget(nrd_switcher *s, nrd_switch_model *m)
{
    nrd_error *err = NULL;
    pthread_mutex_lock(&s->mu);
    if (!m->asleep || nrd_switch_slot_of(s, m)->state != NRD_SWITCH_ABSENT) {
        err = nrd_errorf(NRD_ERR_UNAVAILABLE, "The model `%s` is in use", m->name);
    } else {
        m->forgotten = true;
    }
    pthread_mutex_unlock(&s->mu);
    return err;
}

nrd_error *nrd_switcher_new(nrd_switcher **out, const nrd_switch_config *cfg, const nrd_switch_spec *specs, size_t n)
{
    nrd_error *err = NULL;
    nrd_switcher *s = NULL;

    *out = NULL;
    if (n == 0 || n > NRD_LIMIT_SWITCHED_MODELS) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%zu models, expected 1 to %d", n, (int)NRD_LIMIT_SWITCHED_MODELS);
    }
    NRD_NEW_GOTO(s, 1, err, fail);
    s->cfg = *cfg;
    s->end = &s->first;
    pthread_mutex_init(&s->mu, NULL);
    pthread_mutex_init(&s->change_mu, NULL);
    nrd_cond_init_steady(&s->plan_cond);
    pthread_cond_init(&s->work_cond, NULL);
    NRD_NEW_GOTO(s->models, NRD_LIMIT_SWITCHED_MODELS, err, fail);
    NRD_NEW_GOTO(s->slots, NRD_LIMIT_SWITCHED_MODELS, err, fail);
    for (size_t i = 0; i < n; i++) {
        NRD_TRY_GOTO(put_model_locked(s, &specs[i]), err, fail); /* nobody else has it yet */
    }
    s->has_planner = pthread_create(&s->planner, NULL, nrd_switch_planner, s) == 0;
    s->has_worker = s->has_planner && pthread_create(&s->worker, NULL, nrd_switch_worker, s) == 0;
    if (!s->has_worker) {
        err = nrd_errorf(NRD_ERR_UNAVAILABLE, "cannot start the threads that load models");
        goto fail;
    }
    *out = s;
    return NULL;

fail:
    if (s) {
        s->cfg.ops.free_user = NULL; /* the caller's still */
    }
    nrd_switcher_free(s);
    return err;
}

void nrd_switcher_stop(nrd_switcher *s)
{
    nrd_switch_tickets ended = {0};
    nrd_error *err = nrd_switch_stopping_error();

    pthread_mutex_lock(&s->mu);
    s->stopping = true;
    nrd_switch_fail_locked(s, NULL, err, &ended);
    pthread_mutex_unlock(&s->mu);
    nrd_switch_tell(&ended);
    nrd_error_free(err);
}

void nrd_switcher_free(nrd_switcher *s)
{
    if (!s) {
        return;
    }
    nrd_switcher_stop(s);
    pthread_mutex_lock(&s->mu);
    s->quit = true;
    pthread_cond_signal(&s->plan_cond);
    pthread_cond_signal(&s->work_cond);
    pthread_mutex_unlock(&s->mu);
    if (s->has_worker) {
        pthread_join(s->worker, NULL);
    }
    if (s->has_planner) {
        pthread_join(s->planner, NULL);
    }
    for (size_t i = 0; i < s->n; i++) {
        free_model(&s->models[i]);
    }
    pthread_mutex_destroy(&s->mu);
    pthread_mutex_destroy(&s->change_mu);
    pthread_cond_destroy(&s->plan_cond);
    pthread_cond_destroy(&s->work_cond);
    if (s->cfg.ops.free_user) {
        s->cfg.ops.free_user(s->cfg.ops.user);
    }
    free(s->models);
    free(s->slots);
    free(s);
}
