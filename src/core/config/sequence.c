/* SPDX-License-Identifier: Apache-2.0
 * Checks of sequence_batching, in the words that users know. */
#include "core/config/config.h"

#include "base/error.h"

#include <string.h>

typedef Inference__ModelSequenceBatching__Control control;

static const char *const kind_names[] = {"CONTROL_SEQUENCE_START", "CONTROL_SEQUENCE_READY",
                                         "CONTROL_SEQUENCE_END", "CONTROL_SEQUENCE_CORRID"};

static nrd_error *check_names(const nrd_config *cfg)
{
    const Inference__ModelSequenceBatching *sb = cfg->sequence_batching;

    for (size_t i = 0; i < sb->n_control_input; i++) {
        if (sb->control_input[i]->name[0] == '\0') {
            return nrd_errorf(NRD_ERR_INVALID_ARG,
                              "sequence batching control tensor must have a name for %s",
                              cfg->name);
        }
        for (size_t k = 0; k < i; k++) {
            if (strcmp(sb->control_input[k]->name, sb->control_input[i]->name) == 0) {
                return nrd_errorf(NRD_ERR_INVALID_ARG,
                                  "sequence batching control tensor '%s' is specified for multiple "
                                  "control kinds for %s",
                                  sb->control_input[i]->name, cfg->name);
            }
        }
    }
    return NULL;
}

static nrd_error *check_flag(const nrd_config *cfg, const control *c, const char *kind)
{
    const struct {
        const char *name;
        size_t n;
    } values[] = {{"int32_false_true", c->n_int32_false_true},
                  {"fp32_false_true", c->n_fp32_false_true},
                  {"bool_false_true", c->n_bool_false_true}};
    int given = 0;

    for (int i = 0; i < 3; i++) {
        given += values[i].n > 0;
    }
    if (given == 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "sequence batching must specify either 'int32_false_true', "
                          "'fp32_false_true' or 'bool_false_true' for %s for %s",
                          kind, cfg->name);
    }
    if (given > 1) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "sequence batching specifies more than one from 'int32_false_true', "
                          "'fp32_false_true' and 'bool_false_true' for %s for %s",
                          kind, cfg->name);
    }
    for (int i = 0; i < 3; i++) {
        if (values[i].n > 0 && values[i].n != 2) {
            return nrd_errorf(NRD_ERR_INVALID_ARG,
                              "sequence batching control '%s' must have exactly 2 entries for %s "
                              "for %s",
                              values[i].name, kind, cfg->name);
        }
    }
    return NULL;
}

static nrd_error *check_id(const nrd_config *cfg, const control *c, const char *kind)
{
    if (c->n_int32_false_true || c->n_fp32_false_true || c->n_bool_false_true) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "sequence batching must not specify either 'int32_false_true', "
                          "'fp32_false_true' or 'bool_false_true' for %s for %s",
                          kind, cfg->name);
    }
    switch (c->data_type) {
    case INFERENCE__DATA_TYPE__TYPE_UINT64:
    case INFERENCE__DATA_TYPE__TYPE_INT64:
    case INFERENCE__DATA_TYPE__TYPE_UINT32:
    case INFERENCE__DATA_TYPE__TYPE_INT32:
    case INFERENCE__DATA_TYPE__TYPE_STRING:
        return NULL;
    default:
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "unexpected data type for control %s for %s. Allowed data types are "
                          "TYPE_UINT64, TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING",
                          kind, cfg->name);
    }
}

static nrd_error *check_kind(const nrd_config *cfg,
                             Inference__ModelSequenceBatching__Control__Kind kind)
{
    const Inference__ModelSequenceBatching *sb = cfg->sequence_batching;
    const bool is_id =
        kind == INFERENCE__MODEL_SEQUENCE_BATCHING__CONTROL__KIND__CONTROL_SEQUENCE_CORRID;
    bool seen = false;

    for (size_t i = 0; i < sb->n_control_input; i++) {
        for (size_t k = 0; k < sb->control_input[i]->n_control; k++) {
            const control *c = sb->control_input[i]->control[k];
            if (c->kind != kind) {
                continue;
            }
            if (seen) {
                return nrd_errorf(NRD_ERR_INVALID_ARG,
                                  "sequence batching specifies multiple %s tensors for %s",
                                  kind_names[kind], cfg->name);
            }
            seen = true;
            NRD_TRY(is_id ? check_id(cfg, c, kind_names[kind])
                          : check_flag(cfg, c, kind_names[kind]));
        }
    }
    return NULL;
}

nrd_error *nrd_config_validate_sequence(const nrd_config *cfg)
{
    enum { MAX_CANDIDATES = 1 << 20 };
    const Inference__ModelSequenceBatching *sb = cfg->sequence_batching;

    if (cfg->response_cache && cfg->response_cache->enable) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "Response Cache does not currently support model %s with sequence "
                          "batching scheduler. Please disable the response cache.",
                          cfg->name);
    }
    NRD_TRY(check_names(cfg));
    NRD_TRY(
        check_kind(cfg, INFERENCE__MODEL_SEQUENCE_BATCHING__CONTROL__KIND__CONTROL_SEQUENCE_START));
    NRD_TRY(
        check_kind(cfg, INFERENCE__MODEL_SEQUENCE_BATCHING__CONTROL__KIND__CONTROL_SEQUENCE_END));
    NRD_TRY(
        check_kind(cfg, INFERENCE__MODEL_SEQUENCE_BATCHING__CONTROL__KIND__CONTROL_SEQUENCE_READY));
    NRD_TRY(check_kind(cfg,
                       INFERENCE__MODEL_SEQUENCE_BATCHING__CONTROL__KIND__CONTROL_SEQUENCE_CORRID));
    if (sb->strategy_choice_case == INFERENCE__MODEL_SEQUENCE_BATCHING__STRATEGY_CHOICE_OLDEST) {
        for (size_t i = 0; i < sb->oldest->n_preferred_batch_size; i++) {
            if (sb->oldest->preferred_batch_size[i] <= 0) {
                return nrd_errorf(NRD_ERR_INVALID_ARG,
                                  "sequence batching preferred batch size must be positive for %s",
                                  cfg->name);
            }
            if (sb->oldest->preferred_batch_size[i] > cfg->max_batch_size) {
                return nrd_errorf(NRD_ERR_INVALID_ARG,
                                  "sequence batching preferred batch size must be <= max batch "
                                  "size for %s",
                                  cfg->name);
            }
        }
        if (sb->oldest->max_candidate_sequences > MAX_CANDIDATES) {
            return nrd_errorf(NRD_ERR_INVALID_ARG,
                              "at most %d candidate sequences are supported for %s",
                              (int)MAX_CANDIDATES, cfg->name);
        }
    }
    if (sb->strategy_choice_case == INFERENCE__MODEL_SEQUENCE_BATCHING__STRATEGY_CHOICE_DIRECT &&
        !(sb->direct->minimum_slot_utilization >= 0 && sb->direct->minimum_slot_utilization <= 1)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "sequence batching minimum slot utilization must be in range (0.0, 1.0] "
                          "for %s",
                          cfg->name);
    }
    for (size_t i = 0; i < cfg->n_parameters; i++) {
        if (strcmp(cfg->parameters[i]->key, "TRITON_BATCH_STRATEGY_PATH") == 0) {
            return nrd_errorf(NRD_ERR_INVALID_ARG,
                              "TRITON_BATCH_STRATEGY_PATH cannot be specified with sequence "
                              "batcher, using default batching strategy");
        }
    }
    return NULL;
}
