/* SPDX-License-Identifier: Apache-2.0
 * Checks of a normalized configuration, in the words that users know. */
#include "core/config/config.h"
#include "core/types.h"

#include "base/error.h"
#include "base/file.h"
#include "base/limits.h"

#include <string.h>

/* Features that are not built are refused by name rather than ignored. */
static nrd_error *refuse_missing_features(const nrd_config *cfg)
{
    return cfg->runtime[0] ? nrd_errorf(NRD_ERR_UNSUPPORTED,
                                        "runtime is not supported by this server, set for %s",
                                        cfg->name)
                           : NULL;
}

static nrd_error *check_queue_policy(const nrd_config *cfg, const Inference__ModelQueuePolicy *p)
{
    if (p && cfg->dynamic_batching->preserve_ordering &&
        p->timeout_action == INFERENCE__MODEL_QUEUE_POLICY__TIMEOUT_ACTION__DELAY) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "Queue policy can not have DELAY as timeout action when "
                          "'preserve_ordering' is true for %s",
                          cfg->name);
    }
    return NULL;
}

static nrd_error *check_dynamic_batching(const nrd_config *cfg)
{
    const Inference__ModelDynamicBatching *db = cfg->dynamic_batching;
    uint64_t levels = db->priority_levels;

    for (size_t i = 0; i < db->n_preferred_batch_size; i++) {
        if (db->preferred_batch_size[i] <= 0) {
            return nrd_errorf(NRD_ERR_INVALID_ARG,
                              "dynamic batching preferred size must be positive for %s", cfg->name);
        }
        if (db->preferred_batch_size[i] > cfg->max_batch_size) {
            return nrd_errorf(NRD_ERR_INVALID_ARG,
                              "dynamic batching preferred size must be <= max batch size for %s",
                              cfg->name);
        }
    }
    if (levels != 0) {
        if (db->default_priority_level == 0 || db->default_priority_level > levels) {
            return nrd_errorf(NRD_ERR_INVALID_ARG,
                              "default priority level must be in range [1, %llu] for %s",
                              (unsigned long long)levels, cfg->name);
        }
        for (size_t i = 0; i < db->n_priority_queue_policy; i++) {
            uint64_t key = db->priority_queue_policy[i]->key;
            if (key == 0 || key > levels) {
                return nrd_errorf(NRD_ERR_INVALID_ARG,
                                  "priority queue policy must have priority level in range [1, "
                                  "%llu] for %s",
                                  (unsigned long long)levels, cfg->name);
            }
        }
    }
    if (db->preserve_ordering && levels > 1) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "Only one priority level is allowed when 'preserve_ordering' is true for "
                          "%s",
                          cfg->name);
    }
    NRD_TRY(check_queue_policy(cfg, db->default_queue_policy));
    for (size_t i = 0; i < db->n_priority_queue_policy; i++) {
        NRD_TRY(check_queue_policy(cfg, db->priority_queue_policy[i]->value));
    }
    return NULL;
}

/* ---- ensembles ---- */

static bool has_output_tensor(const Inference__ModelEnsembling *e, const char *tensor)
{
    for (size_t i = 0; i < e->n_step; i++) {
        for (size_t k = 0; k < e->step[i]->n_output_map; k++) {
            if (strcmp(e->step[i]->output_map[k]->value, tensor) == 0) {
                return true;
            }
        }
    }
    return false;
}

static bool has_input_tensor(const Inference__ModelEnsembling *e, const char *tensor)
{
    for (size_t i = 0; i < e->n_step; i++) {
        for (size_t k = 0; k < e->step[i]->n_input_map; k++) {
            if (strcmp(e->step[i]->input_map[k]->value, tensor) == 0) {
                return true;
            }
        }
    }
    return false;
}

static bool is_ensemble_input(const nrd_config *cfg, const char *tensor)
{
    for (size_t i = 0; i < cfg->n_input; i++) {
        if (strcmp(cfg->input[i]->name, tensor) == 0) {
            return true;
        }
    }
    return false;
}

static nrd_error *check_step(const nrd_config *cfg, size_t i)
{
    const Inference__ModelEnsembling *e = cfg->ensemble_scheduling;
    const Inference__ModelEnsembling__Step *s = e->step[i];
    const char *missing = s->model_name[0] == '\0' ? "model_name"
                          : s->n_input_map == 0    ? "input_map"
                          : s->n_output_map == 0   ? "output_map"
                                                   : NULL;
    if (missing) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "must specify '%s' in step %zu of ensemble '%s'",
                          missing, i, cfg->name);
    }
    for (size_t k = 0; k < s->n_output_map; k++) {
        int writers = is_ensemble_input(cfg, s->output_map[k]->value);
        for (size_t j = 0; j < e->n_step; j++) {
            for (size_t l = 0; l < e->step[j]->n_output_map; l++) {
                writers += strcmp(e->step[j]->output_map[l]->value, s->output_map[k]->value) == 0;
            }
        }
        if (writers > 1) {
            return nrd_errorf(NRD_ERR_INVALID_ARG,
                              "ensemble tensor '%s' can appear in an output map only once for "
                              "ensemble '%s' step %zu",
                              s->output_map[k]->value, cfg->name, i);
        }
    }
    for (size_t k = 0; k < s->n_input_map; k++) {
        for (size_t j = 0; j < k; j++) {
            if (strcmp(s->input_map[k]->key, s->input_map[j]->key) == 0) {
                return nrd_errorf(NRD_ERR_INVALID_ARG,
                                  "input '%s' in model '%s' is mapped to multiple ensemble tensors "
                                  "for ensemble '%s' step %zu",
                                  s->input_map[k]->key, s->model_name, cfg->name, i);
            }
        }
    }
    return NULL;
}

static nrd_error *check_ensemble(const nrd_config *cfg)
{
    const Inference__ModelEnsembling *e = cfg->ensemble_scheduling;
    const char *bad = cfg->n_instance_group ? "instance group should not be specified"
                      : cfg->optimization   ? "optimization should not be specified"
                      : cfg->n_model_warmup ? "model_warmup can not be specified"
                                            : NULL;

    if (strcmp(cfg->platform, "ensemble") != 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "ensemble scheduling cannot be set for model '%s' whose platform is not "
                          "ensemble",
                          cfg->name);
    }
    if (bad) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s for ensemble '%s'", bad, cfg->name);
    }
    if (e->n_step == 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "must specify 'step' for ensemble '%s'", cfg->name);
    }
    for (size_t i = 0; i < e->n_step; i++) {
        NRD_TRY(check_step(cfg, i));
    }
    for (size_t i = 0; i < cfg->n_input; i++) {
        if (!has_input_tensor(e, cfg->input[i]->name)) {
            return nrd_errorf(NRD_ERR_INVALID_ARG,
                              "ensemble input '%s' for ensemble %s is not used",
                              cfg->input[i]->name, cfg->name);
        }
    }
    for (size_t i = 0; i < cfg->n_output; i++) {
        if (!has_output_tensor(e, cfg->output[i]->name)) {
            return nrd_errorf(NRD_ERR_INVALID_ARG,
                              "ensemble output '%s' for ensemble %s is not used",
                              cfg->output[i]->name, cfg->name);
        }
    }
    for (size_t i = 0; i < e->n_step; i++) {
        for (size_t k = 0; k < e->step[i]->n_input_map; k++) {
            const char *t = e->step[i]->input_map[k]->value;
            if (!is_ensemble_input(cfg, t) && !has_output_tensor(e, t)) {
                return nrd_errorf(NRD_ERR_INVALID_ARG,
                                  "ensemble tensor '%s' in ensemble '%s' is read but not written",
                                  t, cfg->name);
            }
        }
    }
    return NULL;
}

/* ---- whole configurations ---- */

static nrd_error *check_path(const nrd_config *cfg, const char *field, const char *path)
{
    if (path[0] == '\0' || nrd_path_stays_inside(path)) {
        return NULL;
    }
    return nrd_errorf(NRD_ERR_INVALID_ARG,
                      "'%s' must be a relative path without '..', within the model's folder, for %s",
                      field, cfg->name);
}

static nrd_error *check_state_paths(const nrd_config *cfg)
{
    const Inference__ModelSequenceBatching *sb =
        cfg->scheduling_choice_case == INFERENCE__MODEL_CONFIG__SCHEDULING_CHOICE_SEQUENCE_BATCHING
            ? cfg->sequence_batching
            : NULL;

    for (size_t i = 0; sb && i < sb->n_state; i++) {
        for (size_t k = 0; k < sb->state[i]->n_initial_state; k++) {
            const Inference__ModelSequenceBatching__InitialState *in = sb->state[i]->initial_state[k];
            if (in->state_data_case ==
                INFERENCE__MODEL_SEQUENCE_BATCHING__INITIAL_STATE__STATE_DATA_DATA_FILE) {
                NRD_TRY(check_path(cfg, "initial_state.data_file", in->data_file));
            }
        }
    }
    return NULL;
}

/* A configuration may come with a load request: it names files of its model, no others. */
static nrd_error *check_paths(const nrd_config *cfg)
{
    NRD_TRY(check_path(cfg, "default_model_filename", cfg->default_model_filename));
    for (size_t i = 0; i < cfg->n_cc_model_filenames; i++) {
        NRD_TRY(check_path(cfg, "cc_model_filenames", cfg->cc_model_filenames[i]->value));
    }
    for (size_t i = 0; i < cfg->n_output; i++) {
        NRD_TRY(check_path(cfg, "label_filename", cfg->output[i]->label_filename));
    }
    for (size_t i = 0; i < cfg->n_model_warmup; i++) {
        const Inference__ModelWarmup *w = cfg->model_warmup[i];
        for (size_t k = 0; k < w->n_inputs; k++) {
            const Inference__ModelWarmup__Input *in = w->inputs[k]->value;
            if (in && in->input_data_type_case ==
                          INFERENCE__MODEL_WARMUP__INPUT__INPUT_DATA_TYPE_INPUT_DATA_FILE) {
                NRD_TRY(check_path(cfg, "input_data_file", in->input_data_file));
            }
        }
    }
    return check_state_paths(cfg);
}

nrd_error *nrd_config_validate(const nrd_config *cfg)
{
    if (cfg->name[0] == '\0') {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "model configuration must specify 'name'");
    }
    if (cfg->platform[0] && strcmp(cfg->platform, "ensemble") != 0 && cfg->backend[0] == '\0') {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "unexpected platform type '%s' for %s",
                          cfg->platform, cfg->name);
    }
    if (strcmp(cfg->platform, "ensemble") == 0 && cfg->backend[0]) {
        return nrd_errorf(
            NRD_ERR_INVALID_ARG,
            "Ensemble model '%s' must have platform type 'ensemble' and empty backend "
            "type",
            cfg->name);
    }
    if (cfg->platform[0] == '\0' && cfg->backend[0] == '\0') {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "must specify 'platform' or 'backend' for '%s'",
                          cfg->name);
    }
    if (cfg->max_batch_size < 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'max_batch_size' must be non-negative value for %s",
                          cfg->name);
    }
    if (!cfg->version_policy || cfg->version_policy->policy_choice_case ==
                                    INFERENCE__MODEL_VERSION_POLICY__POLICY_CHOICE__NOT_SET) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "must specify 'version policy' for %s", cfg->name);
    }
    if (cfg->scheduling_choice_case ==
        INFERENCE__MODEL_CONFIG__SCHEDULING_CHOICE_DYNAMIC_BATCHING) {
        NRD_TRY(check_dynamic_batching(cfg));
    }
    if (cfg->scheduling_choice_case ==
        INFERENCE__MODEL_CONFIG__SCHEDULING_CHOICE_SEQUENCE_BATCHING) {
        NRD_TRY(nrd_config_validate_sequence(cfg));
    }
    if (nrd_config_is_ensemble(cfg)) {
        NRD_TRY(check_ensemble(cfg));
    } else if (strcmp(cfg->platform, "ensemble") == 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "ensemble scheduling must be set for ensemble %s whose platform is "
                          "ensemble",
                          cfg->name);
    }
    if (cfg->response_cache && cfg->response_cache->enable && cfg->model_transaction_policy &&
        cfg->model_transaction_policy->decoupled) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "Response Cache does not currently support model %s with 'decoupled' "
                          "transaction policy. Please disable the response cache.",
                          cfg->name);
    }
    NRD_TRY(check_paths(cfg));
    return refuse_missing_features(cfg);
}

static nrd_error *check_n_instances(const nrd_config *cfg)
{
    uint64_t n = 0;

    for (size_t i = 0; i < cfg->n_instance_group; i++) {
        const Inference__ModelInstanceGroup *g = cfg->instance_group[i];
        const bool each_gpu = g->kind == INFERENCE__MODEL_INSTANCE_GROUP__KIND__KIND_GPU;
        n += (uint64_t)(g->count > 0 ? g->count : 0) * (each_gpu ? g->n_gpus : 1);
    }
    return n > NRD_LIMIT_INSTANCES
               ? nrd_errorf(NRD_ERR_INVALID_ARG,
                            "the instance groups of model %s have %llu instances (count), a model may "
                            "have %d",
                            cfg->name, (unsigned long long)n, NRD_LIMIT_INSTANCES)
               : NULL;
}

nrd_error *nrd_config_validate_groups(const nrd_config *cfg)
{
    int n_gpus = nrd_gpu_count();

    if (nrd_config_is_ensemble(cfg)) {
        return NULL;
    }
    for (size_t i = 0; i < cfg->n_instance_group; i++) {
        const Inference__ModelInstanceGroup *g = cfg->instance_group[i];
        const char *bad = NULL;
        if (g->kind == INFERENCE__MODEL_INSTANCE_GROUP__KIND__KIND_MODEL && g->n_gpus > 0) {
            bad = "has kind KIND_MODEL but specifies one or more GPUs";
        } else if (g->kind == INFERENCE__MODEL_INSTANCE_GROUP__KIND__KIND_CPU && g->n_gpus > 0) {
            bad = "has kind KIND_CPU but specifies one or more GPUs";
        } else if (g->kind == INFERENCE__MODEL_INSTANCE_GROUP__KIND__KIND_GPU && n_gpus == 0) {
            bad = "has kind KIND_GPU but no GPUs are available";
        } else if (g->kind == INFERENCE__MODEL_INSTANCE_GROUP__KIND__KIND_GPU && g->n_gpus == 0) {
            bad = "has kind KIND_GPU but specifies no GPUs";
        } else if (g->kind == INFERENCE__MODEL_INSTANCE_GROUP__KIND__KIND_AUTO) {
            bad = "has unexpected kind KIND_AUTO";
        }
        for (size_t k = 0; k < g->n_gpus && !bad; k++) {
            if (g->gpus[k] < 0 || g->gpus[k] >= n_gpus) {
                bad = "specifies invalid or unsupported gpu id";
            }
        }
        if (bad) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "instance group %s of model %s %s", g->name,
                              cfg->name, bad);
        }
    }
    return check_n_instances(cfg);
}

/* ---- inputs and outputs ---- */

typedef struct io_view {
    const char *kind, *name;
    Inference__DataType data_type;
    size_t n_dims;
    const int64_t *dims;
    const Inference__ModelTensorReshape *reshape;
} io_view;

static nrd_error *check_dims(const nrd_config *cfg, const io_view *io)
{
    uint64_t a = 1, b = 1;
    size_t va = 0, vb = 0;

    for (size_t i = 0; i < io->n_dims; i++) {
        if (io->dims[i] < 1 && io->dims[i] != -1) {
            return nrd_errorf(NRD_ERR_INVALID_ARG,
                              "%s '%s' dimension must be integer >= 1, or -1 to indicate a "
                              "variable-size dimension for %s",
                              io->kind, io->name, cfg->name);
        }
        va += io->dims[i] < 0;
        a *= io->dims[i] < 0 ? 1 : (uint64_t)io->dims[i];
    }
    if (!io->reshape) {
        return NULL;
    }
    if (io->reshape->n_shape == 0 && cfg->max_batch_size == 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "%s '%s' cannot have empty reshape for non-batching model as scalar "
                          "tensors are not supported for %s",
                          io->kind, io->name, cfg->name);
    }
    for (size_t i = 0; i < io->reshape->n_shape; i++) {
        int64_t d = io->reshape->shape[i];
        if (d < 1 && d != -1) {
            return nrd_errorf(
                NRD_ERR_INVALID_ARG,
                "%s '%s' reshape dimensions must be integer >= 1, or -1 to indicate a "
                "variable-size dimension for %s",
                io->kind, io->name, cfg->name);
        }
        vb += d < 0;
        b *= d < 0 ? 1 : (uint64_t)d;
    }
    if (va != vb) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "%s '%s' has different number of variable-size dimensions for dims and "
                          "reshape for %s",
                          io->kind, io->name, cfg->name);
    }
    if (a != b) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "%s '%s' has different size for dims and reshape for %s", io->kind,
                          io->name, cfg->name);
    }
    return NULL;
}

static nrd_error *check_io(const nrd_config *cfg, const io_view *io)
{
    if (io->name[0] == '\0') {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s must specify 'name' for %s", io->kind,
                          cfg->name);
    }
    if (io->data_type == INFERENCE__DATA_TYPE__TYPE_INVALID) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s '%s' must specify 'data_type' for %s", io->kind,
                          io->name, cfg->name);
    }
    if (io->n_dims == 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s '%s' must specify 'dims' for %s", io->kind,
                          io->name, cfg->name);
    }
    if (io->n_dims >= NRD_MAX_RANK || (io->reshape && io->reshape->n_shape >= NRD_MAX_RANK)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s '%s' has more than %d dimensions for %s",
                          io->kind, io->name, (int)NRD_MAX_RANK - 1, cfg->name);
    }
    return check_dims(cfg, io);
}

static nrd_error *check_sources(const nrd_config *cfg, char *const *names, size_t n,
                                const char *what, const char *kind)
{
    if (n != 1) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s kind '%s' expects 1 source input, got %zu", what,
                          kind, n);
    }
    for (size_t i = 0; i < cfg->n_input; i++) {
        if (strcmp(cfg->input[i]->name, names[0]) == 0) {
            return NULL;
        }
    }
    return nrd_errorf(NRD_ERR_INVALID_ARG, "unknown source input name '%s'", names[0]);
}

/* Tensors about whole batches, which backends make and take apart: the core checks names. */
static nrd_error *check_batch_io(const nrd_config *cfg)
{
    for (size_t i = 0; i < cfg->n_batch_input; i++) {
        const Inference__BatchInput *b = cfg->batch_input[i];
        const ProtobufCEnumValue *kind = protobuf_c_enum_descriptor_get_value(
            &inference__batch_input__kind__descriptor, b->kind);
        if (b->data_type != INFERENCE__DATA_TYPE__TYPE_INT32 &&
            b->data_type != INFERENCE__DATA_TYPE__TYPE_FP32) {
            return nrd_errorf(NRD_ERR_INVALID_ARG,
                              "batch input data type must be TYPE_INT32 or TYPE_FP32");
        }
        NRD_TRY(check_sources(cfg, b->source_input, b->n_source_input, "batch input",
                              kind ? kind->name : "?"));
    }
    for (size_t i = 0; i < cfg->n_batch_output; i++) {
        const Inference__BatchOutput *b = cfg->batch_output[i];
        NRD_TRY(check_sources(cfg, b->source_input, b->n_source_input, "batch output",
                              "BATCH_SCATTER_WITH_INPUT_SHAPE"));
        for (size_t k = 0; k < b->n_target_name; k++) {
            bool known = false;
            for (size_t o = 0; o < cfg->n_output; o++) {
                known = known || strcmp(cfg->output[o]->name, b->target_name[k]) == 0;
            }
            if (!known) {
                return nrd_errorf(NRD_ERR_INVALID_ARG, "unknown target output name '%s'",
                                  b->target_name[k]);
            }
            for (size_t j = 0; j < k; j++) {
                if (strcmp(b->target_name[j], b->target_name[k]) == 0) {
                    return nrd_errorf(NRD_ERR_INVALID_ARG,
                                      "target output name '%s' can only be specified once",
                                      b->target_name[k]);
                }
            }
        }
    }
    return NULL;
}

nrd_error *nrd_config_validate_io(const nrd_config *cfg)
{
    if (cfg->n_input > NRD_LIMIT_INPUTS || cfg->n_output > NRD_LIMIT_OUTPUTS) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "model %s has %zu inputs and %zu outputs, at most %d and %d are allowed",
                          cfg->name, cfg->n_input, cfg->n_output, NRD_LIMIT_INPUTS, NRD_LIMIT_OUTPUTS);
    }
    for (size_t i = 0; i < cfg->n_input; i++) {
        const Inference__ModelInput *in = cfg->input[i];
        io_view v = {"model input", in->name, in->data_type, in->n_dims, in->dims, in->reshape};
        NRD_TRY(check_io(cfg, &v));
        for (size_t k = 0; k < i; k++) {
            if (strcmp(cfg->input[k]->name, in->name) == 0) {
                return nrd_errorf(NRD_ERR_INVALID_ARG, "model input '%s' is declared twice for %s",
                                  in->name, cfg->name);
            }
        }
        if (in->format != INFERENCE__MODEL_INPUT__FORMAT__FORMAT_NONE && in->n_dims != 3) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "model input NHWC/NCHW require 3 dims for %s",
                              cfg->name);
        }
    }
    for (size_t i = 0; i < cfg->n_output; i++) {
        const Inference__ModelOutput *out = cfg->output[i];
        io_view v = {"model output", out->name, out->data_type,
                     out->n_dims,    out->dims, out->reshape};
        NRD_TRY(check_io(cfg, &v));
    }
    return check_batch_io(cfg);
}
