/* SPDX-License-Identifier: Apache-2.0
 * An ensemble against the models it uses: their inputs, outputs, types and batch sizes. */
#include "core/sched/ensemble_check.h"

#include "core/context.h"
#include "core/model.h"
#include "core/model_internal.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>

typedef struct seen {
    const char *tensor, *model;
    Inference__DataType type;
} seen;

static const char *type_name(Inference__DataType t)
{
    const ProtobufCEnumValue *v =
        protobuf_c_enum_descriptor_get_value(&inference__data_type__descriptor, (int)t);
    return v ? v->name : "TYPE_INVALID";
}

static nrd_error *note(seen *list, size_t *n, const char *ens, const char *t, const char *model,
                       Inference__DataType type)
{
    for (size_t i = 0; i < *n; i++) {
        if (strcmp(list[i].tensor, t) == 0) {
            if (list[i].type != type) {
                return nrd_errorf(
                    NRD_ERR_INVALID_ARG,
                    "in ensemble %s, ensemble tensor %s: inconsistent data type: %s is "
                    "inferred from model %s while %s is inferred from model %s",
                    ens, t, type_name(list[i].type), list[i].model, type_name(type), model);
            }
            return NULL;
        }
    }
    list[(*n)++] = (seen){t, model, type};
    return NULL;
}

static nrd_error *check_step(const nrd_config *cfg, const Inference__ModelEnsembling__Step *s,
                             nrd_model *m, seen *list, size_t *n)
{
    if (m->config->max_batch_size > 0 && m->config->max_batch_size < cfg->max_batch_size) {
        return nrd_errorf(
            NRD_ERR_INVALID_ARG,
            "ensemble %s allows maximum batch size %d, but it contains model %s which "
            "only allows maximum batch size to be %d",
            cfg->name, cfg->max_batch_size, m->name, m->config->max_batch_size);
    }
    for (size_t k = 0; k < s->n_input_map; k++) {
        const Inference__ModelInput *in = nrd_model_input(m, s->input_map[k]->key);
        if (!in) {
            return nrd_errorf(NRD_ERR_INVALID_ARG,
                              "in ensemble %s, ensemble tensor %s is mapping to non-existing input "
                              "%s in model %s",
                              cfg->name, s->input_map[k]->value, s->input_map[k]->key, m->name);
        }
        NRD_TRY(note(list, n, cfg->name, s->input_map[k]->value, s->model_name, in->data_type));
    }
    for (size_t k = 0; k < s->n_output_map; k++) {
        const Inference__ModelOutput *o = nrd_model_output(m, s->output_map[k]->key);
        if (!o) {
            return nrd_errorf(
                NRD_ERR_INVALID_ARG,
                "in ensemble %s, ensemble tensor %s is mapped from non-existing output "
                "%s in model %s",
                cfg->name, s->output_map[k]->value, s->output_map[k]->key, m->name);
        }
        NRD_TRY(note(list, n, cfg->name, s->output_map[k]->value, s->model_name, o->data_type));
    }
    for (size_t i = 0; i < m->config->n_input; i++) {
        bool is_mapped = m->config->input[i]->optional;
        for (size_t k = 0; k < s->n_input_map && !is_mapped; k++) {
            is_mapped = strcmp(s->input_map[k]->key, m->config->input[i]->name) == 0;
        }
        if (!is_mapped) {
            return nrd_errorf(NRD_ERR_INVALID_ARG,
                              "in ensemble %s, input %s in model %s is not mapped to any ensemble "
                              "tensors",
                              cfg->name, m->config->input[i]->name, m->name);
        }
    }
    return NULL;
}

static nrd_error *mark_decoupled(nrd_config *cfg, bool decoupled)
{
    if (!cfg->model_transaction_policy) {
        cfg->model_transaction_policy = malloc(sizeof *cfg->model_transaction_policy);
        if (!cfg->model_transaction_policy) {
            return nrd_error_no_memory();
        }
        inference__model_transaction_policy__init(cfg->model_transaction_policy);
    }
    cfg->model_transaction_policy->decoupled = decoupled;
    return NULL;
}

nrd_error *nrd_ensemble_check(nrd_context *ctx, nrd_config *cfg)
{
    const Inference__ModelEnsembling *en = cfg->ensemble_scheduling;
    size_t cap = cfg->n_input + cfg->n_output, n = 0;
    bool decoupled = false;
    nrd_error *err = NULL;
    seen *list;

    for (size_t i = 0; i < en->n_step; i++) {
        cap += en->step[i]->n_input_map + en->step[i]->n_output_map;
    }
    list = calloc(cap + 1, sizeof *list);
    if (!list) {
        return nrd_error_no_memory();
    }
    for (size_t i = 0; i < cfg->n_input && !err; i++) {
        err = note(list, &n, cfg->name, cfg->input[i]->name, cfg->name, cfg->input[i]->data_type);
    }
    for (size_t i = 0; i < cfg->n_output && !err; i++) {
        err = note(list, &n, cfg->name, cfg->output[i]->name, cfg->name, cfg->output[i]->data_type);
    }
    for (size_t i = 0; i < en->n_step && !err; i++) {
        nrd_model *m = NULL;
        int64_t version = en->step[i]->model_version ? en->step[i]->model_version : -1;
        err = ctx->catalog.get_step(&m, ctx->catalog.repo, en->step[i]->model_namespace,
                                    en->step[i]->model_name, version);
        if (err && nrd_error_get_code(err) == NRD_ERR_NO_MEMORY) {
            break;
        }
        if (err) {
            nrd_error_free(err);
            err = nrd_errorf(NRD_ERR_INVALID_ARG,
                             "ensemble '%s' depends on '%s' which has no loaded version.",
                             cfg->name, en->step[i]->model_name);
            break;
        }
        err = check_step(cfg, en->step[i], m, list, &n);
        decoupled = decoupled || m->decoupled;
        nrd_model_unref(m);
    }
    free(list);
    return err ? err : mark_decoupled(cfg, decoupled);
}
