/* SPDX-License-Identifier: Apache-2.0
 * The table of families: looking rows up, what follows from a family's traits, sizes of weights, and
 * the refusal of a family that has no row. The readers of configurations are arch_hf.c, arch_gguf.c
 * and arch_trtllm.c; the rows are in model/families. */
#include "model/arch.h"

#include "base/str.h"
#include "model/families/family.h"
#include "model/spec_recurrent.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define ROW(name) &nrd_arch_##name,
static const nrd_arch *const archs[] = {NRD_FAMILIES(ROW)};
#undef ROW
enum { N_ARCHS = (int)(sizeof archs / sizeof archs[0]) };

const nrd_arch *nrd_arch_at(int i)
{
    return i >= 0 && i < N_ARCHS ? archs[i] : NULL;
}

const nrd_arch *nrd_arch_by_model_type(const char *model_type)
{
    for (int i = 0; i < N_ARCHS; i++) {
        if (!strcmp(archs[i]->model_type, model_type)) {
            return archs[i];
        }
    }
    return NULL;
}

const nrd_arch *nrd_arch_encoder_of(const nrd_arch *decoder)
{
#define ROW(decoder, encoder) {&nrd_arch_##decoder, &nrd_arch_##encoder},
    static const nrd_arch *const pairs[][2] = {NRD_ENCODERS(ROW)};
#undef ROW
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        if (pairs[i][0] == decoder) {
            return pairs[i][1];
        }
    }
    return NULL;
}

nrd_model_spec nrd_arch_mtp_spec(const nrd_model_spec *model)
{
    nrd_model_spec s = *model;

    s.mtp = true;
    s.n_layers = 1;
    s.tied_embeddings = true; /* no LM head of its own */
    s.lm_head_bias = false;
    s.classifier = (nrd_classifier_spec){0};
    s.n_projections = 0;
    s.recurrent = (nrd_recurrent_spec){0};
    memset(s.layer_is_recurrent, 0, sizeof s.layer_is_recurrent);
    s.layer_is_dense[0] = 0;
    s.layer_is_sliding[0] = 0;
    s.layer_has_no_rope[0] = 0;
    s.tp_size = s.pp_size = s.moe.ep_size = 1;
    return s;
}

int64_t nrd_dim_of(const nrd_model_spec *s, nrd_dim dim)
{
    const int64_t q = (int64_t)s->n_heads * s->head_dim, kv = (int64_t)s->n_kv_heads * s->head_dim;
    switch (dim) {
    case NRD_DIM_ONE:
        return 1;
    case NRD_DIM_KV_RANGE:
        return 2 * (int64_t)s->n_kv_heads;
    case NRD_DIM_EMBED:
        return s->embed_width > 0 ? s->embed_width : s->hidden;
    case NRD_DIM_HIDDEN:
        return s->hidden;
    case NRD_DIM_TWO_HIDDEN:
        return 2 * (int64_t)s->hidden;
    case NRD_DIM_QKV:
        return q + 2 * kv;
    case NRD_DIM_Q:
        return q;
    case NRD_DIM_KV:
        return kv;
    case NRD_DIM_INTER:
        return s->inter;
    case NRD_DIM_VOCAB:
        return s->vocab;
    case NRD_DIM_VOCAB_PART:
        return ((int64_t)s->vocab + s->tp_size - 1) / s->tp_size;
    case NRD_DIM_Q_NORM:
        return s->qk_norm_wide || s->qk_norm_apart ? q : s->head_dim;
    case NRD_DIM_K_NORM:
        return s->qk_norm_wide || s->qk_norm_apart ? kv : s->head_dim;
    case NRD_DIM_POSITIONS:
        return s->max_positions;
    case NRD_DIM_TOKEN_TYPES:
        return s->n_token_types;
    case NRD_DIM_REL_BUCKETS:
        return s->rel_buckets;
    case NRD_DIM_LABELS:
        return s->classifier.difference ? 2 : s->classifier.n_labels;
    case NRD_DIM_PROJECTION_1:
        return s->projections[0].size;
    case NRD_DIM_PROJECTION_2:
        return s->projections[1].size;
    case NRD_DIM_ROPE_HALF:
        return s->rope.rotary_dim / 2;
    case NRD_DIM_HEADS:
        return s->n_heads;
    case NRD_DIM_EXPERTS:
        return s->moe.n_experts;
    case NRD_DIM_EXPERT_INTER:
        return s->moe.inter;
    case NRD_DIM_SHARED_INTER:
        return s->moe.shared_inter;
    case NRD_DIM_VALUES:
        return (int64_t)s->n_heads * nrd_spec_value_dim(s);
    case NRD_DIM_Q_INPUT:
        return s->latent.q_rank > 0 ? s->latent.q_rank : s->hidden;
    case NRD_DIM_Q_RANK:
        return s->latent.q_rank;
    case NRD_DIM_KV_RANK:
        return s->latent.kv_rank;
    case NRD_DIM_LATENT:
        return nrd_spec_kv_dim(s, 0);
    case NRD_DIM_KEYS:
        return (int64_t)s->n_heads * s->latent.nope_dim;
    case NRD_DIM_RECURRENT_IN:
        return nrd_recurrent_in(s);
    case NRD_DIM_RECURRENT_CHANNELS:
        return nrd_recurrent_channels(s);
    case NRD_DIM_RECURRENT_KERNEL:
        return s->recurrent.kernel;
    case NRD_DIM_RECURRENT_INNER:
        return nrd_recurrent_inner(s);
    case NRD_DIM_RECURRENT_HEADS:
        return s->recurrent.n_heads;
    case NRD_DIM_RECURRENT_HEAD:
        return s->recurrent.head_dim;
    case NRD_DIM_ALTUP_STATES:
        return s->altup.n_states;
    case NRD_DIM_ALTUP_PAIRS:
        return (int64_t)s->altup.n_states * s->altup.n_states;
    case NRD_DIM_LAUREL:
        return s->altup.laurel_rank;
    case NRD_DIM_PER_LAYER:
        return s->altup.per_layer;
    case NRD_DIM_PER_LAYER_ALL:
        return (int64_t)s->altup.per_layer * s->n_layers;
    case NRD_DIM_PER_LAYER_VOCAB:
        return s->altup.per_layer_vocab;
    case NRD_DIM_CONV1:
        return 3 * (int64_t)s->n_mels;
    case NRD_DIM_CONV2:
        return 3 * (int64_t)s->hidden;
    case NRD_DIM_RECURRENT_NORM:
        return s->recurrent.kind == NRD_RECURRENT_DELTA ? s->recurrent.head_dim : nrd_recurrent_inner(s);
    case NRD_DIM_RECURRENT_STATE:
        return s->recurrent.n_state;
    case NRD_DIM_RECURRENT_DT:
        return s->recurrent.dt_rank;
    case NRD_DIM_RECURRENT_BC:
        return 2 * (int64_t)s->recurrent.n_state;
    }
    return 0;
}

/* Of layers with a state. */
static bool recurrent_holds(const nrd_model_spec *s, nrd_when when)
{
    switch ((int)when) {
    case NRD_WHEN_RECURRENT:
        return nrd_spec_is_recurrent(s);
    case NRD_WHEN_RECURRENT_CONV_BIAS:
        return s->recurrent.conv_bias;
    case NRD_WHEN_RECURRENT_PROJ_BIAS:
        return s->recurrent.proj_bias;
    case NRD_WHEN_RECURRENT_HEADS:
        return nrd_spec_is_recurrent(s) && s->recurrent.kind != NRD_RECURRENT_SHORT_CONV &&
               s->recurrent.kind != NRD_RECURRENT_RG_LRU;
    case NRD_WHEN_RECURRENT_RATES:
        return s->recurrent.kind == NRD_RECURRENT_MAMBA2 || s->recurrent.kind == NRD_RECURRENT_DELTA;
    case NRD_WHEN_GATED_NORM:
        return (s->recurrent.kind == NRD_RECURRENT_MAMBA2 && !s->recurrent.no_norm) || s->recurrent.kind == NRD_RECURRENT_DELTA;
    case NRD_WHEN_SSM:
        return s->recurrent.kind == NRD_RECURRENT_MAMBA2 || s->recurrent.kind == NRD_RECURRENT_MAMBA;
    case NRD_WHEN_MAMBA:
        return s->recurrent.kind == NRD_RECURRENT_MAMBA;
    case NRD_WHEN_MAMBA_NORMS:
        return s->recurrent.kind == NRD_RECURRENT_MAMBA && s->recurrent.dt_bc_norms;
    case NRD_WHEN_MAMBA_C_NORM:
        return s->recurrent.kind == NRD_RECURRENT_MAMBA && s->recurrent.dt_bc_norms && s->recurrent.c_norm;
    case NRD_WHEN_DELTA:
        return s->recurrent.kind == NRD_RECURRENT_DELTA;
    case NRD_WHEN_RECURRENT_GATE:
        return s->recurrent.kind == NRD_RECURRENT_DELTA || s->recurrent.kind == NRD_RECURRENT_RG_LRU;
    case NRD_WHEN_RECURRENT_GATE_BIAS:
        return s->recurrent.kind == NRD_RECURRENT_RG_LRU && s->recurrent.proj_bias;
    case NRD_WHEN_RG_LRU:
        return s->recurrent.kind == NRD_RECURRENT_RG_LRU;
    default:
        return false;
    }
}

/* Of what stands behind the network instead of an LM head. */
static bool head_holds(const nrd_model_spec *s, nrd_when when)
{
    switch ((int)when) {
    case NRD_WHEN_PROJECTION_1:
        return s->n_projections > 0;
    case NRD_WHEN_PROJECTION_1_BIAS:
        return s->n_projections > 0 && s->projections[0].bias;
    case NRD_WHEN_PROJECTION_2:
        return s->n_projections > 1;
    case NRD_WHEN_PROJECTION_2_BIAS:
        return s->n_projections > 1 && s->projections[1].bias;
    case NRD_WHEN_CLASSIFIER:
        return s->classifier.n_labels > 0;
    case NRD_WHEN_CLASSIFIER_BIAS:
        return s->classifier.n_labels > 0 && s->classifier.bias;
    case NRD_WHEN_CLASSIFIER_DENSE:
        return s->classifier.n_labels > 0 && s->classifier.dense;
    case NRD_WHEN_CLASSIFIER_DENSE_BIAS:
        return s->classifier.n_labels > 0 && s->classifier.dense && s->classifier.dense_bias;
    case NRD_WHEN_CLASSIFIER_NORM:
        return s->classifier.n_labels > 0 && s->classifier.norm;
    case NRD_WHEN_CLASSIFIER_NORM_BIAS:
        return s->classifier.n_labels > 0 && s->classifier.norm && s->classifier.norm_bias;
    default:
        return false;
    }
}

/* Of attention. */
static bool attention_holds(const nrd_model_spec *s, nrd_when when)
{
    switch ((int)when) {
    case NRD_WHEN_QKV:
        return !nrd_spec_is_latent(s);
    case NRD_WHEN_QKV_BIAS:
        return s->qkv_bias && !nrd_spec_is_latent(s);
    case NRD_WHEN_LATENT:
        return nrd_spec_is_latent(s);
    case NRD_WHEN_LATENT_Q:
        return s->latent.q_rank > 0;
    case NRD_WHEN_DENSE_BIAS:
        return s->dense_bias;
    case NRD_WHEN_QK_NORM:
        return s->qk_norm;
    case NRD_WHEN_QK_NORM_BIAS:
        return s->qk_norm && s->qk_norm_bias;
    case NRD_WHEN_SINK_LOGITS:
        return s->sink_logits;
    case NRD_WHEN_ATTN_GATE:
        return s->attn_gate;
    case NRD_WHEN_SHARED_KV:
        return s->n_shared_kv > 0;
    case NRD_WHEN_REL_BIAS:
        return s->rel_buckets > 0;
    case NRD_WHEN_CROSS:
        return s->cross_attention;
    case NRD_WHEN_CROSS_NORM_BIAS:
        return s->cross_attention && s->norm_bias;
    case NRD_WHEN_CROSS_Q_BIAS:
        return s->cross_attention && s->qkv_bias;
    case NRD_WHEN_CROSS_DENSE_BIAS:
        return s->cross_attention && s->dense_bias;
    case NRD_WHEN_PICTURES:
        return nrd_spec_reads_pictures(s);
    case NRD_WHEN_PICTURE_ROWS:
        return s->picture_rows > 0;
    case NRD_WHEN_INNER_NORMS:
        return s->inner_norms;
    case NRD_WHEN_INNER_NORM_BIAS:
        return s->inner_norms && s->norm_bias;
    default:
        return false;
    }
}

/* Of an MLP or of experts. */
static bool mlp_holds(const nrd_model_spec *s, nrd_when when)
{
    switch ((int)when) {
    case NRD_WHEN_MLP_BIAS:
        return s->mlp_bias;
    case NRD_WHEN_GATED:
        return s->gated_mlp;
    case NRD_WHEN_GATE_BIAS:
        return s->gated_mlp && s->mlp_bias;
    case NRD_WHEN_XIELU:
        return s->act == NRD_ACT_XIELU;
    case NRD_WHEN_EXPERTS:
        return s->has_experts;
    case NRD_WHEN_EXPERTS_BESIDE:
        return s->has_experts && s->moe.beside_mlp;
    case NRD_WHEN_EXPERTS_BEHIND:
        return s->has_experts && s->moe.beside_mlp && !s->moe.before_attention;
    case NRD_WHEN_EXPERTS_GATED:
        return s->has_experts && s->gated_mlp;
    case NRD_WHEN_SCORE_BIAS:
        return s->has_experts && s->moe.score_bias;
    case NRD_WHEN_SHARED:
        return s->has_experts && s->moe.shared_inter > 0;
    case NRD_WHEN_SHARED_GATED:
        return s->has_experts && s->moe.shared_inter > 0 && s->gated_mlp;
    case NRD_WHEN_SHARED_GATE:
        return s->has_experts && s->moe.shared_gate;
    case NRD_WHEN_EXPERT_BIAS:
        return s->has_experts && s->moe.bias;
    case NRD_WHEN_EXPERTS_SUM_BIAS:
        return s->has_experts && s->moe.sum_bias;
    default:
        return false;
    }
}

/* Of norms. */
static bool norm_holds(const nrd_model_spec *s, nrd_when when)
{
    switch ((int)when) {
    case NRD_WHEN_PRE_NORMS:
        return s->pre_norms;
    case NRD_WHEN_PRE_NORM_BIAS:
        return s->pre_norms && s->norm_bias;
    case NRD_WHEN_MLP_NORM:
        return s->pre_norms && !s->shared_norm;
    case NRD_WHEN_MLP_NORM_BIAS:
        return s->pre_norms && !s->shared_norm && s->norm_bias;
    case NRD_WHEN_NORM_BIAS:
        return s->norm_bias;
    case NRD_WHEN_EMBED_NORM:
        return s->embed_norm;
    case NRD_WHEN_EMBED_NORM_BIAS:
        return s->embed_norm && s->norm_bias;
    case NRD_WHEN_EMBED_PROJECTION:
        return s->embed_width > 0;
    case NRD_WHEN_FINAL_NORM:
        return !s->sum_norms && !s->mtp;
    case NRD_WHEN_FINAL_NORM_BIAS:
        return !s->sum_norms && s->norm_bias;
    case NRD_WHEN_POST_NORMS:
        return s->post_norms;
    default:
        return false;
    }
}

bool nrd_when_holds(const nrd_model_spec *s, nrd_when when)
{
    switch (when) {
    case NRD_WHEN_ALWAYS:
        return true;
    case NRD_WHEN_TOKENS:
        return s->n_mels == 0 && !s->mtp;
    case NRD_WHEN_ALTUP:
        return nrd_spec_has_altup(s);
    case NRD_WHEN_LAYER_INPUTS:
        return nrd_spec_has_layer_inputs(s);
    case NRD_WHEN_LAYER_SCALE:
        return s->layer_scale;
    case NRD_WHEN_MTP:
        return s->mtp;
    case NRD_WHEN_SOUND:
        return s->n_mels > 0;
    case NRD_WHEN_TOKEN_TYPES:
        return s->n_token_types > 0;
    case NRD_WHEN_UNTIED:
        return !s->tied_embeddings;
    case NRD_WHEN_LM_HEAD_BIAS:
        return s->lm_head_bias;
    case NRD_WHEN_POSITIONS:
        return s->learned_positions;
    case NRD_WHEN_ROPE_FACTORS:
        return s->rope.scaling == NRD_ROPE_SCALING_FACTORS;
    case NRD_WHEN_PICTURES:
    case NRD_WHEN_PICTURE_ROWS:
    case NRD_WHEN_INNER_NORMS:
    case NRD_WHEN_INNER_NORM_BIAS:
    case NRD_WHEN_QKV:
    case NRD_WHEN_QKV_BIAS:
    case NRD_WHEN_LATENT:
    case NRD_WHEN_LATENT_Q:
    case NRD_WHEN_DENSE_BIAS:
    case NRD_WHEN_QK_NORM:
    case NRD_WHEN_QK_NORM_BIAS:
    case NRD_WHEN_SINK_LOGITS:
    case NRD_WHEN_ATTN_GATE:
    case NRD_WHEN_SHARED_KV:
    case NRD_WHEN_REL_BIAS:
    case NRD_WHEN_CROSS:
    case NRD_WHEN_CROSS_NORM_BIAS:
    case NRD_WHEN_CROSS_Q_BIAS:
    case NRD_WHEN_CROSS_DENSE_BIAS:
        return attention_holds(s, when);
    case NRD_WHEN_MLP_BIAS:
    case NRD_WHEN_GATED:
    case NRD_WHEN_GATE_BIAS:
    case NRD_WHEN_XIELU:
    case NRD_WHEN_EXPERTS_BESIDE:
    case NRD_WHEN_EXPERTS_BEHIND:
    case NRD_WHEN_EXPERTS:
    case NRD_WHEN_EXPERTS_GATED:
    case NRD_WHEN_EXPERTS_SUM_BIAS:
    case NRD_WHEN_SCORE_BIAS:
    case NRD_WHEN_SHARED:
    case NRD_WHEN_SHARED_GATED:
    case NRD_WHEN_SHARED_GATE:
    case NRD_WHEN_EXPERT_BIAS:
        return mlp_holds(s, when);
    case NRD_WHEN_PRE_NORMS:
    case NRD_WHEN_PRE_NORM_BIAS:
    case NRD_WHEN_MLP_NORM:
    case NRD_WHEN_MLP_NORM_BIAS:
    case NRD_WHEN_NORM_BIAS:
    case NRD_WHEN_EMBED_NORM:
    case NRD_WHEN_EMBED_NORM_BIAS:
    case NRD_WHEN_EMBED_PROJECTION:
    case NRD_WHEN_FINAL_NORM:
    case NRD_WHEN_FINAL_NORM_BIAS:
    case NRD_WHEN_POST_NORMS:
        return norm_holds(s, when);
    case NRD_WHEN_RECURRENT:
    case NRD_WHEN_RECURRENT_CONV_BIAS:
    case NRD_WHEN_RECURRENT_PROJ_BIAS:
    case NRD_WHEN_RECURRENT_HEADS:
    case NRD_WHEN_RECURRENT_RATES:
    case NRD_WHEN_GATED_NORM:
    case NRD_WHEN_SSM:
    case NRD_WHEN_MAMBA:
    case NRD_WHEN_MAMBA_NORMS:
    case NRD_WHEN_MAMBA_C_NORM:
    case NRD_WHEN_DELTA:
    case NRD_WHEN_RECURRENT_GATE:
    case NRD_WHEN_RECURRENT_GATE_BIAS:
    case NRD_WHEN_RG_LRU:
        return recurrent_holds(s, when);
    case NRD_WHEN_PROJECTION_1:
    case NRD_WHEN_PROJECTION_1_BIAS:
    case NRD_WHEN_PROJECTION_2:
    case NRD_WHEN_PROJECTION_2_BIAS:
    case NRD_WHEN_CLASSIFIER:
    case NRD_WHEN_CLASSIFIER_BIAS:
    case NRD_WHEN_CLASSIFIER_DENSE:
    case NRD_WHEN_CLASSIFIER_DENSE_BIAS:
    case NRD_WHEN_CLASSIFIER_NORM:
    case NRD_WHEN_CLASSIFIER_NORM_BIAS:
        return head_holds(s, when);
    }
    return false;
}

/* ---- families without a row ---- */

enum { MAX_COMPARED = 48, N_NEAR = 3 };

/* How many letters to change, insert or leave out (Levenshtein), without case. */
static int distance(const char *a, const char *b)
{
    int row[MAX_COMPARED + 1], n = (int)strnlen(b, MAX_COMPARED);
    for (int k = 0; k <= n; k++) {
        row[k] = k;
    }
    for (int i = 0; a[i] && i < MAX_COMPARED; i++) {
        int above = row[0]++;
        for (int k = 1; k <= n; k++) {
            int change = above + ((a[i] | 32) != (b[k - 1] | 32));
            above = row[k];
            int add = (row[k] < row[k - 1] ? row[k] : row[k - 1]) + 1;
            row[k] = change < add ? change : add;
        }
    }
    return row[n];
}

static int common_prefix(const char *a, const char *b)
{
    int n = 0;
    while (a[n] && (a[n] | 32) == (b[n] | 32)) {
        n++;
    }
    return n;
}

/* Lower is nearer: names that begin alike are of one maker, whatever follows. */
static int farness(const char *name, const char *known)
{
    return distance(name, known) - 2 * common_prefix(name, known);
}

static void put_near(nrd_str *o, const char *name)
{
    bool taken[N_ARCHS] = {false};
    for (int n = 0; n < N_NEAR; n++) {
        int best = -1, least = 0;
        for (int i = 0; i < N_ARCHS; i++) {
            int far = farness(name, archs[i]->model_type);
            if (!taken[i] && (best < 0 || far < least)) {
                best = i;
                least = far;
            }
        }
        if (best < 0) {
            return;
        }
        taken[best] = true;
        nrd_str_printf(o, "%s%s", n ? ", " : "", archs[best]->model_type);
    }
}

/* Whether a configuration has one of these keys, and not as 0. */
static bool asks_for(const nrd_json *c, const char *keys)
{
    const nrd_json *v = nrd_hf_get(c, keys);
    return v && !(nrd_json_is(v, NRD_JSON_INT) && nrd_json_int(v, 1) == 0);
}

/* What keys of a config.json say about parts that no row can ask for. */
static void put_missing(nrd_str *o, const nrd_json *c)
{
    static const struct {
        const char *keys, *part;
    } parts[] = {
        {"index_topk|index_n_heads", "sparse attention"},
        {"ssm_state_size|state_size|mamba_d_state|linear_key_head_dim|time_step_rank|d_state|conv_kernel|rwkv_version",
         "recurrent layers"},
        {"vision_config|vision_tower|vision_tower_cfg|mm_vision_tower|img_processor", "vision tower"},
        {"qformer_config", "Q-Former before another model than OPT or T5"},
        {"cross_attention_layers", "layers that read a picture's states (cross attention)"},
        {"audio_config|num_mel_bins", "audio encoder"},
        {"hidden_size_per_layer_input", "embeddings of each layer"},
        {"altup_num_inputs", "several states of each token (AltUp)"},
        {"num_kv_shared_layers", "layers that share keys and values"},
        {"global_head_dim", "heads of different sizes"},
    };
    const nrd_json *text = nrd_json_get(c, "text_config");
    int n = 0;
    for (size_t i = 0; c && i < sizeof parts / sizeof parts[0]; i++) {
        if (asks_for(c, parts[i].keys) || asks_for(text, parts[i].keys)) {
            nrd_str_printf(o, "%s%s", n++ ? ", " : "; it needs what is not here: ", parts[i].part);
        }
    }
    if (c && !n) {
        nrd_str_puts(o, "; nothing in its configuration names a missing part, so a row of the table may be "
                        "all that is missing (docs/adding-a-model.md)");
    }
}

nrd_error *nrd_arch_unknown(const char *kind, const char *name, const nrd_json *config)
{
    nrd_str near = {0}, missing = {0};

    put_near(&near, name);
    put_missing(&missing, config);
    nrd_error *err = nrd_errorf(NRD_ERR_UNSUPPORTED, "%s '%.80s' is not supported%s; nearest: %s (nereid inspect --families lists all)",
                                kind, name, nrd_str_cstr(&missing), nrd_str_cstr(&near));
    nrd_str_fini(&near);
    nrd_str_fini(&missing);
    return err;
}

/* ---- what follows from traits ---- */

void nrd_arch_of_family(nrd_model_spec *s, const nrd_arch *a)
{
    const uint64_t t = a->traits;
    snprintf(s->architecture, sizeof s->architecture, "%s", a->architecture);
    snprintf(s->model_type, sizeof s->model_type, "%s", a->model_type);
    s->norm = t & T_LAYER_NORM ? NRD_NORM_LAYER : NRD_NORM_RMS;
    s->norm_bias = (t & T_LAYER_NORM) && !(t & T_NO_NORM_BIAS);
    s->pre_norms = !(t & T_NO_PRE_NORMS);
    s->post_norms = (t & (T_POST_NORMS | T_NO_PRE_NORMS)) != 0;
    s->parallel = (t & T_PARALLEL) != 0;
    s->shared_norm = (t & T_SHARED_NORM) != 0;
    s->embed_norm = (t & T_EMBED_NORM) != 0;
    s->encoder = (t & T_ENCODER) != 0;
    s->pooling = s->encoder ? NRD_SPEC_POOL_FIRST : NRD_SPEC_POOL_LAST;
    s->sum_norms = (t & T_SUM_NORMS) != 0;
    s->qk_norm = (t & T_QK_NORM) != 0;
    s->qk_norm_wide = (t & T_QK_NORM_WIDE) != 0;
    s->gated_mlp = !(t & T_PLAIN_MLP);
    s->has_experts = (t & T_EXPERTS) != 0;
    s->act = t & T_GELU_TANH ? NRD_ACT_GELU_TANH : NRD_ACT_SILU;
    s->qkv_bias = (t & (T_ALL_BIASES | T_QKV_BIAS)) != 0;
    s->dense_bias = s->mlp_bias = (t & T_ALL_BIASES) != 0;
    s->lm_head_bias = (t & T_LM_HEAD_BIAS) != 0;
    s->learned_positions = (t & T_LEARNED_POSITIONS) != 0;
    s->alibi = (t & T_ALIBI) != 0;
}

void nrd_family_sliding(nrd_model_spec *s, const nrd_arch *a, int32_t pattern)
{
    const uint64_t any = T_WINDOW_ALL | T_WINDOW_ALTERNATES | T_WINDOW_PATTERN;
    for (int32_t i = 0; i < s->n_layers && s->sliding_window > 0 && (a->traits & any); i++) {
        bool on = (a->traits & T_WINDOW_ALL) || ((a->traits & T_WINDOW_ALTERNATES) && i % 2 == 0);
        if (a->traits & T_WINDOW_PATTERN) {
            on = (i + 1) % pattern != 0;
        }
        s->layer_is_sliding[i] = on;
    }
}

int32_t nrd_family_token_id(const nrd_model_spec *s, int64_t id)
{
    return id >= 0 && id < s->vocab ? (int32_t)id : -1;
}
