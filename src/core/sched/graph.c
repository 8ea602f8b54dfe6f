/* SPDX-License-Identifier: Apache-2.0
 * The graph of an ensemble: names of the configuration become numbers of steps and tensors. */
#include "core/sched/graph.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

/* UINT32_MAX: no memory. */
static uint32_t tensor_id(nrd_graph *g, const char *name)
{
    for (uint32_t i = 0; i < g->n_tensors; i++) {
        if (strcmp(g->tensors[i].name, name) == 0) {
            return i;
        }
    }
    nrd_graph_tensor *list = realloc(g->tensors, (g->n_tensors + 1) * sizeof *list);
    g->tensors = list ? list : g->tensors;
    char *copy = list ? strdup(name) : NULL;
    if (!copy) {
        return UINT32_MAX;
    }
    list[g->n_tensors] = (nrd_graph_tensor){.name = copy};
    return g->n_tensors++;
}

static nrd_error *add_reader(nrd_graph_tensor *t, uint32_t step_id)
{
    for (uint32_t i = 0; i < t->n_readers; i++) {
        if (t->readers[i] == step_id) {
            return NULL;
        }
    }
    uint32_t *list = realloc(t->readers, (t->n_readers + 1) * sizeof *list);
    if (!list) {
        return nrd_error_no_memory();
    }
    t->readers = list;
    t->readers[t->n_readers++] = step_id;
    return NULL;
}

void nrd_graph_free(nrd_graph *g)
{
    for (uint32_t i = 0; i < g->n_steps; i++) {
        nrd_graph_step *s = &g->steps[i];
        for (uint32_t k = 0; k < s->n_in; k++) {
            free(s->in[k].name);
        }
        for (uint32_t k = 0; k < s->n_out; k++) {
            free(s->out[k].name);
        }
        free(s->in);
        free(s->out);
        free(s->model);
        free(s->namespace);
    }
    for (uint32_t i = 0; i < g->n_tensors; i++) {
        free(g->tensors[i].readers);
        free(g->tensors[i].name);
    }
    free(g->tensors);
    free(g->steps);
}

/* The pins of one side of a step. */
static nrd_error *add_pin(nrd_graph *g, nrd_graph_pin *list, uint32_t *n, const char *name,
                          const char *tensor_name, uint32_t *out_tensor)
{
    const uint32_t t = tensor_id(g, tensor_name);
    char *copy = strdup(name);

    if (t == UINT32_MAX || !copy) {
        free(copy);
        return nrd_error_no_memory();
    }
    list[(*n)++] = (nrd_graph_pin){copy, t};
    *out_tensor = t;
    return NULL;
}

static nrd_error *add_step(nrd_graph *g, const Inference__ModelEnsembling__Step *cs)
{
    const uint32_t i = g->n_steps;
    nrd_graph_step *s = &g->steps[g->n_steps++];
    uint32_t t;

    s->model = strdup(cs->model_name);
    s->namespace = strdup(cs->model_namespace);
    s->version = cs->model_version ? cs->model_version : -1;
    s->in = calloc(cs->n_input_map + 1, sizeof *s->in);
    s->out = calloc(cs->n_output_map + 1, sizeof *s->out);
    if (!s->model || !s->namespace || !s->in || !s->out) {
        return nrd_error_no_memory();
    }
    for (size_t k = 0; k < cs->n_input_map; k++) {
        NRD_TRY(add_pin(g, s->in, &s->n_in, cs->input_map[k]->key, cs->input_map[k]->value, &t));
        NRD_TRY(add_reader(&g->tensors[t], i));
    }
    for (size_t k = 0; k < cs->n_output_map; k++) {
        NRD_TRY(
            add_pin(g, s->out, &s->n_out, cs->output_map[k]->key, cs->output_map[k]->value, &t));
    }
    return NULL;
}

nrd_error *nrd_graph_init(nrd_graph *g, const nrd_config *cfg)
{
    const Inference__ModelEnsembling *en = cfg->ensemble_scheduling;
    nrd_error *err = NULL;
    uint32_t t = 0;

    *g = (nrd_graph){0};
    for (size_t i = 0; i < cfg->n_input && t != UINT32_MAX; i++) {
        t = tensor_id(g, cfg->input[i]->name);
        if (t != UINT32_MAX) {
            g->tensors[t].input = cfg->input[i];
        }
    }
    for (size_t i = 0; i < cfg->n_output && t != UINT32_MAX; i++) {
        t = tensor_id(g, cfg->output[i]->name);
        if (t != UINT32_MAX) {
            g->tensors[t].output = cfg->output[i];
        }
    }
    if (t == UINT32_MAX) {
        err = nrd_error_no_memory();
        goto fail;
    }
    NRD_NEW_GOTO(g->steps, en->n_step, err, fail);
    for (size_t i = 0; i < en->n_step; i++) {
        NRD_TRY_GOTO(add_step(g, en->step[i]), err, fail);
    }
    return NULL;

fail:
    nrd_graph_free(g);
    return err;
}
