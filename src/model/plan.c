/* SPDX-License-Identifier: Apache-2.0
 * The list of tensors that a checkpoint or an engine will hold, and how each is made. The family's
 * weight rules (model/families) are applied to every layer of this rank: find the source tensors, take the
 * rank's share, choose the type. A checkpoint of our own needs no rules: its tensors are taken as
 * they are. Sources are found in plan_sources.c and divided in plan_shares.c, which adds them (plan_list.c); how rows are made of them is told in
 * plan_read.c. Called by model/build.c, which writes files. */
#include "model/plan_internal.h"

#include "base/dtype.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/str.h"
#include "model/families/family.h"
#include "model/needs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- making tensors ---- */

static nrd_dtype part_dtype(nrd_plan *p, const nrd_plan_job *j, const nrd_src_tensor *t)
{
    const uint32_t flags = j->flags;
    nrd_dtype src = t ? nrd_plan_own_type(p, j->need, t) : p->spec.dtype;
    int64_t cols = nrd_dim_of(&p->spec, j->need->cols);
    if (nrd_need_shard(j->need, &p->spec) == NRD_SHARD_COLS) {
        cols /= j->need->is_stacked ? nrd_spec_moe_tp(&p->spec) : p->spec.tp_size;
    }
    if (flags & NRD_RULE_LINEAR) {
        return nrd_plan_linear_dtype(p, j->name, src, cols);
    }
    /* 1 + w would lose bits of a small w in 16 bits; the factors of a rope are always float32 */
    if ((flags & NRD_RULE_ADD_ONE) || !strcmp(j->name, "rope_factors") || nrd_plan_is_always_f32(j->name)) {
        return NRD_DTYPE_F32;
    }
    if (j->need->cols == NRD_DIM_ONE && nrd_dtype_is_block(src)) {
        return NRD_DTYPE_F32;
    }
    if (nrd_plan_is_map(j->name)) {
        return nrd_plan_map_dtype(p, src);
    }
    return nrd_plan_plain_dtype(p, src);
}

/* A rule with what follows from the table of needs, from the family and from the kind of the source. */
static nrd_plan_job job_of(const nrd_plan *p, const nrd_weight_rule *r, int32_t layer, int32_t out_layer)
{
    nrd_plan_job j = {.rule = r, .need = nrd_need_of(r->dst), .flags = r->flags, .layer = layer, .out_layer = out_layer};
    nrd_source_kind kind = nrd_source_get_kind(p->src);

    NRD_ASSERT(j.need, "a rule makes a weight of the table of needs");
    bool embedding = !strcmp(r->dst, "transformer.vocab_embedding.weight");
    bool norm = j.need->cols == NRD_DIM_ONE && strstr(r->dst, "ln_f.weight");
    norm = norm || strstr(r->dst, "layernorm.weight");
    if (j.need->is_linear || (embedding && p->spec.tied_embeddings)) { /* the LM head multiplies by it */
        j.flags |= NRD_RULE_LINEAR;
    }
    if (norm && kind == NRD_SOURCE_HF && (nrd_source_arch(p->src)->traits & T_NORM_PLUS_ONE)) {
        j.flags |= NRD_RULE_ADD_ONE;
    }
    if (p->spec.unit_head && !strcmp(r->dst, "lm_head.weight")) {
        j.flags |= NRD_RULE_UNIT_ROWS;
    }
    if (kind == NRD_SOURCE_DUMMY) {
        j.flags &= NRD_RULE_LINEAR | NRD_RULE_ONES | NRD_RULE_SINUSOIDS | NRD_RULE_FAIRSEQ_SINUSOIDS;
    }
    if (j.need->is_layered) {
        snprintf(j.name, sizeof j.name, NRD_LAYER_PREFIX "%s", out_layer, r->dst);
    } else {
        snprintf(j.name, sizeof j.name, "%s", r->dst);
    }
    return j;
}

static bool is_planned(const nrd_plan *p, const char *name)
{
    for (size_t i = p->n; i-- > 0;) {
        if (!strcmp(p->tensors[i].name, name)) {
            return true;
        }
    }
    return false;
}

/* Of rules for the same weight of sources that differ, the first whose tensor is there; of halves, one with the rows of both. */
static bool is_left_out(nrd_plan *p, const nrd_plan_job *j)
{
    if (!(j->rule->flags & NRD_RULE_IF_THERE)) {
        return false;
    }
    if (nrd_source_get_kind(p->src) == NRD_SOURCE_DUMMY) {
        return is_planned(p, j->name);
    }
    const nrd_src_tensor *t = nrd_plan_lookup(p, j->rule->src[0], j->layer);
    const bool whole = t && t->n_dims == 2 && (j->rule->flags & (NRD_RULE_FIRST_HALF | NRD_RULE_SECOND_HALF)) &&
                       t->dims[0] == nrd_plan_whole_rows(p, j->need);
    return !t || whole || is_planned(p, j->name);
}

static bool applies(const nrd_plan *p, const nrd_plan_job *j)
{
    /* who asks for weights takes the embedding where there is no head */
    if (j->need->is_layered && !nrd_need_is_in(j->need, &p->spec, j->layer - p->source_layer)) {
        return false;
    }
    return strcmp(j->rule->dst, "lm_head.weight") ? nrd_when_holds(&p->spec, j->need->when)
                                                  : !p->spec.tied_embeddings;
}

/* Whether the weights of q, k and v of a layer differ in type, so that no single tensor holds them. */
static nrd_error *split_qkv(nrd_plan *p, const nrd_weight_rule *rules, int32_t layer, bool *out)
{
    *out = false;
    for (; rules->dst; rules++) {
        nrd_plan_job j = job_of(p, rules, layer, layer);
        if (j.need->shard != NRD_SHARD_QKV || j.need->cols == NRD_DIM_ONE || !applies(p, &j) || is_left_out(p, &j)) {
            continue;
        }
        NRD_TRY(nrd_plan_find_sources(p, &j));
        for (int i = 0; i < j.n_src; i++) {
            j.dtype[i] = part_dtype(p, &j, j.src[i]);
        }
        *out = j.n_src > 1 && !nrd_plan_is_one_type(&j);
    }
    return NULL;
}

/* Which constant stands for a weight that a dummy source has not got. */
static nrd_fill dummy_fill(const nrd_plan_job *j)
{
    if (strstr(j->name, "." NRD_RECURRENT "A")) { /* a state that a positive A lets grow would soon be infinite */
        return NRD_FILL_ZERO;
    }
    return j->need->cols != NRD_DIM_ONE ? NRD_FILL_RANDOM : strstr(j->name, ".bias") ? NRD_FILL_ZERO : NRD_FILL_ONE;
}

static nrd_error *apply_rule(nrd_plan *p, nrd_plan_job *j)
{
    bool dummy = nrd_source_get_kind(p->src) == NRD_SOURCE_DUMMY;

    if (dummy || nrd_plan_constant_of(j) != NRD_FILL_NONE) {
        j->n_src = 1;
    } else {
        NRD_TRY(nrd_plan_find_sources(p, j));
    }
    for (int i = 0; i < j->n_src; i++) {
        j->dtype[i] = part_dtype(p, j, j->src[i] ? j->src[i] : j->src[0]);
    }
    size_t first = p->n;
    NRD_TRY(nrd_plan_add_shares(p, j));
    if (!strcmp(j->rule->dst, "attention.qkv.weight") && j->src[0]) {
        NRD_TRY(nrd_plan_add_kv_range(p, j->src[0]->name, j->out_layer));
    }
    for (size_t i = first; dummy && i < p->n; i++) {
        for (int k = 0; k < p->tensors[i].n_parts; k++) {
            nrd_plan_part *part = &p->tensors[i].parts[k];
            part->fill = part->fill == NRD_FILL_NONE ? dummy_fill(j) : part->fill;
        }
    }
    return NULL;
}

/* The LM head of a model whose head is its embedding, divided over tensor-parallel ranks. */
static const nrd_weight_rule *tied_head(const nrd_weight_rule *rules, nrd_weight_rule *out)
{
    for (; rules->dst; rules++) {
        if (!strcmp(rules->dst, "transformer.vocab_embedding.weight") && !(rules->flags & NRD_RULE_TIMES)) {
            *out = *rules;
            out->dst = "lm_head.weight";
            return out;
        }
    }
    return NULL;
}

static bool on_this_stage(const nrd_plan *p, const nrd_weight_rule *r)
{
    bool first = p->pp_rank == 0, last = p->pp_rank == p->spec.pp_size - 1;
    if (!strcmp(r->dst, "transformer.vocab_embedding.weight")) {
        return first || (last && p->spec.tied_embeddings);
    }
    if (!strcmp(r->dst, "transformer.position_embedding.weight") || nrd_str_has_prefix(r->dst, "transformer.per_layer") ||
        nrd_str_has_prefix(r->dst, "transformer.altup.") ||
        nrd_str_has_prefix(r->dst, "transformer.ln_embed") || nrd_str_has_prefix(r->dst, "transformer.embed_projection") || nrd_str_has_prefix(r->dst, NRD_CLASSIFIER) ||
        nrd_str_has_prefix(r->dst, NRD_PROJECTION)) {
        return first;
    }
    return !strcmp(r->dst, "rope_factors") || last;
}

typedef enum { RULES_FRONT, RULES_LAYER, RULES_BACK } rule_group;

static rule_group group_of(const nrd_weight_rule *r)
{
    const nrd_need *n = nrd_need_of(r->dst);
    bool back = nrd_str_has_prefix(r->dst, "transformer.ln_f") ||
                nrd_str_has_prefix(r->dst, "lm_head") || nrd_str_has_prefix(r->dst, NRD_CLASSIFIER) ||
                nrd_str_has_prefix(r->dst, NRD_PROJECTION);
    return n && n->is_layered ? RULES_LAYER : back ? RULES_BACK : RULES_FRONT;
}

/* The rules of one group; `layer` counts from this stage's first. */
static nrd_error *apply_rules(nrd_plan *p, const nrd_weight_rule *rules, int32_t layer,
                              rule_group group, bool split_head)
{
    const int32_t first = p->source_layer + p->spec.n_layers / p->spec.pp_size * p->pp_rank;
    if (group == RULES_LAYER && nrd_source_get_kind(p->src) != NRD_SOURCE_DUMMY) {
        NRD_TRY(split_qkv(p, rules, first + layer, &p->qkv_is_split));
    }
    for (const nrd_weight_rule *r = rules; r->dst; r++) {
        nrd_plan_job j = job_of(p, r, first + layer, layer);
        if (group_of(r) != group || !applies(p, &j) || (group != RULES_LAYER && !on_this_stage(p, r)) ||
            (split_head && !strcmp(r->dst, "lm_head.weight")) || is_left_out(p, &j)) {
            continue;
        }
        NRD_TRY(apply_rule(p, &j));
    }
    return NULL;
}

/* A classifier whose rows are those of one or two tokens in the LM head. */
static nrd_error *add_token_rows(nrd_plan *p, const nrd_weight_rule *rules)
{
    const nrd_classifier_spec *c = &p->spec.classifier;
    const bool tied = nrd_source_spec(p->src)->tied_embeddings;
    nrd_plan_tensor t = {.cols = p->spec.hidden, .n_parts = c->difference ? 2 : 1};

    while (rules->dst && strcmp(rules->dst, tied ? "transformer.vocab_embedding.weight" : "lm_head.weight") != 0) {
        rules++;
    }
    if (!rules->dst || (rules->flags & NRD_RULE_TRANSPOSE) || nrd_source_get_kind(p->src) == NRD_SOURCE_DUMMY) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s: scores from tokens of this model's LM head", nrd_source_path(p->src));
    }
    if (p->pp_rank > 0) {
        return NULL;
    }
    nrd_plan_job j = job_of(p, rules, -1, -1);
    NRD_TRY(nrd_plan_find_sources(p, &j));
    t.dtype = nrd_plan_plain_dtype(p, j.src[0]->dtype);
    for (int i = 0; i < t.n_parts; i++) {
        t.parts[i] = (nrd_plan_part){.src = j.src[0], .row0 = c->token_ids[i], .n_rows = 1};
    }
    return nrd_plan_add(p, &t, NRD_CLASSIFIER "out.weight");
}

/* The rules of a layer of this stage, which may be wider than others. */
static nrd_error *apply_layer(nrd_plan *p, const nrd_weight_rule *rules, int32_t layer, bool split_head)
{
    const nrd_model_spec all = p->spec;
    const size_t first = p->n;

    if (nrd_spec_is_mixed(&all)) {
        p->spec = nrd_spec_of_layer(&all, nrd_spec_first_layer(&all, p->rank) + layer);
    }
    nrd_error *err = apply_rules(p, rules, layer, RULES_LAYER, split_head);
    if (!err) {
        err = nrd_plan_add_inputs(p, first, layer);
    }
    p->spec = all;
    return err;
}

static nrd_error *plan_from_rules(nrd_plan *p)
{
    const nrd_arch *a = nrd_source_arch(p->src);
    bool hf_names = nrd_source_get_kind(p->src) != NRD_SOURCE_GGUF;
    const nrd_weight_rule *rules = hf_names ? a->hf_rules : a->gguf_rules;
    int32_t per_stage = p->spec.n_layers / p->spec.pp_size;
    nrd_weight_rule head;
    /* With several ranks the head is divided and can no longer be the embedding, unless that is as well. */
    const bool split_head = p->spec.tied_embeddings && p->spec.tp_size > 1 && p->spec.embed_width == 0 &&
                            (!p->spec.parallel_embedding || p->spec.embedding_by_columns);

    if (split_head) {
        p->spec.tied_embeddings = false;
    }
    if (p->spec.mtp) {
        NRD_TRY(apply_rules(p, hf_names ? nrd_hf_mtp_rules : nrd_gguf_mtp_rules, 0, RULES_FRONT, split_head));
    }
    /* In the order of use, so that loading reads the file from front to back. */
    NRD_TRY(apply_rules(p, rules, -1, RULES_FRONT, split_head));
    for (int32_t i = 0; i < per_stage; i++) {
        NRD_TRY(apply_layer(p, rules, i, split_head));
    }
    NRD_TRY(apply_rules(p, rules, -1, RULES_BACK, split_head));
    if (p->spec.n_projections > 0) {
        NRD_TRY(apply_rules(p, nrd_hf_projection_rules, -1, RULES_BACK, split_head));
    }
    if (p->spec.classifier.from_tokens) {
        NRD_TRY(add_token_rows(p, rules));
    } else if (hf_names && !p->spec.encoder) {
        NRD_TRY(apply_rules(p, nrd_hf_score_rules, -1, RULES_BACK, split_head));
    }
    if (split_head && p->pp_rank == p->spec.pp_size - 1) {
        nrd_plan_job j = job_of(p, tied_head(rules, &head), -1, 0);
        NRD_TRY(apply_rule(p, &j));
    }
    return NULL;
}

static nrd_error *add_ready(nrd_plan *p, const nrd_src_tensor *t)
{
    nrd_plan_tensor out = {.n_parts = 1, .is_vector = t->n_dims == 1};
    if (t->n_dims < 1 || t->n_dims > 2) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: tensor '%s' has %d dimensions, expected 1 "
                          "or 2", nrd_source_path(p->src), t->name, t->n_dims);
    }
    if (nrd_str_has_suffix(t->name, ".per_channel_scale")) {
        return NULL; /* comes with its weight */
    }
    bool tied = p->spec.tied_embeddings && strstr(t->name, "vocab_embedding");
    if (!out.is_vector && (!strstr(t->name, "_embedding.") || tied)) {
        out.flags = NRD_RULE_LINEAR;
    }
    const nrd_need *need = nrd_need_of_full(t->name);
    if (need && need->is_layered && !need->is_linear) {
        out.flags = 0;
    }
    out.n_stacked = need && need->is_stacked && !out.is_vector ? nrd_spec_own_experts(&p->spec, p->rank) : 0;
    out.cols = out.is_vector ? 1 : t->dims[1];
    out.parts[0] = (nrd_plan_part){.src = t, .n_rows = t->dims[0]};
    const nrd_dtype own = nrd_plan_own_type(p, need, t);
    out.dtype = own;
    if (nrd_plan_has_row_scales(t->dtype) && !nrd_str_has_suffix(t->name, ".weight")) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s: '%s' has type %s; only weights can have it",
                          nrd_source_path(p->src), t->name, nrd_dtype_name(t->dtype));
    }
    if (nrd_plan_is_always_f32(t->name)) {
        out.dtype = NRD_DTYPE_F32;
    } else if (!nrd_plan_has_row_scales(own)) {
        out.dtype = out.flags & NRD_RULE_LINEAR ? nrd_plan_linear_dtype(p, t->name, own, out.cols) : nrd_plan_plain_dtype(p, own);
    } else if (p->opt.quantize != NRD_DTYPE_NONE && p->opt.quantize != t->dtype) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s: '%s' is already %s; quantize the original "
                          "model instead", nrd_source_path(p->src), t->name,
                          nrd_dtype_name(t->dtype));
    }
    return nrd_plan_add(p, &out, t->name);
}

static int by_place(const void *a, const void *b)
{
    const nrd_src_tensor *x = *(const nrd_src_tensor *const *)a, *y = *(const nrd_src_tensor *const *)b;
    const int order = (x->data > y->data) - (x->data < y->data);
    return order ? order : strcmp(x->name, y->name); /* those that are made of several parts */
}

/* Of a layer behind the rank's last: the configuration counts fewer than the file has. */
static bool is_behind_last(const nrd_plan *p, const char *name)
{
    static const char layers[] = "transformer.layers.";
    char *end = NULL;
    const long layer = nrd_str_has_prefix(name, layers) ? strtol(name + strlen(layers), &end, 10) : -1;

    return end && *end == '.' && layer >= p->spec.n_layers / p->spec.pp_size;
}

/* A checkpoint is already what a rank needs; only types may change. Taken in the order of the file. */
static nrd_error *plan_from_checkpoint(nrd_plan *p)
{
    nrd_error *err = NULL;
    const nrd_src_tensor **order = NULL;
    size_t n = nrd_source_n_tensors(p->src, p->rank);

    NRD_NEW_GOTO(order, n, err, done);
    NRD_NEW_GOTO(p->unused, n, err, done);
    for (size_t i = 0; i < n; i++) {
        order[i] = nrd_source_tensor_at(p->src, p->rank, i);
    }
    qsort(order, n, sizeof *order, by_place);
    for (size_t i = 0; i < n && !err; i++) {
        if (is_behind_last(p, order[i]->name)) {
            p->unused[p->n_unused++] = order[i]->name;
        } else {
            err = add_ready(p, order[i]);
        }
    }
    for (int32_t i = 0; i < p->spec.n_layers / p->spec.pp_size && !err; i++) {
        err = nrd_plan_add_inputs(p, 0, i);
    }
done:
    free(order);
    return err;
}

static const char *algo_of(nrd_dtype t)
{
    switch (t) {
    case NRD_DTYPE_I8:
        return "W8A16";
    case NRD_DTYPE_F8_E4M3:
        return "FP8";
    default:
        return nrd_dtype_is_quant(t) ? "GGUF" : "";
    }
}

static void set_quant_algo(nrd_plan *p)
{
    const char *algo = "";
    for (size_t i = 0; i < p->n; i++) {
        if ((p->tensors[i].flags & NRD_RULE_LINEAR) && *algo_of(p->tensors[i].dtype)) {
            algo = algo_of(p->tensors[i].dtype);
            if (!strstr(p->tensors[i].name, "lm_head") && !strstr(p->tensors[i].name, "_embedding")) {
                break; /* a layer's weight says more than the head */
            }
        }
    }
    if (!strcmp(algo, "W8A16") && p->opt.quantize == NRD_DTYPE_NONE && nrd_source_int8_inputs(p->src)) {
        algo = NRD_ALGO_W8A8;
    }
    snprintf(p->spec.quant_algo, sizeof p->spec.quant_algo, "%s", algo);
}

static nrd_error *list_unused(nrd_plan *p)
{
    nrd_error *err = NULL;
    size_t n = nrd_source_n_tensors(p->src, 0);

    NRD_NEW_GOTO(p->unused, n, err, fail);
    for (size_t i = 0; i < n; i++) {
        if (!p->used[i] && !nrd_source_is_mtp(p->src, nrd_source_tensor_at(p->src, 0, i)->name)) {
            p->unused[p->n_unused++] = nrd_source_tensor_at(p->src, 0, i)->name;
        }
    }
fail:
    return err;
}

/* Sums of uniform numbers are near enough to a normal distribution of deviation 0.02, the usual
 * initialisation; what matters is that no kernel meets only zeros. */
static nrd_error *fill_pool(nrd_plan *p)
{
    nrd_error *err = NULL;
    NRD_NEW_GOTO(p->pool, NRD_PLAN_POOL, err, fail);
    for (uint64_t i = 0; i < NRD_PLAN_POOL; i++) {
        uint64_t u = nrd_hash_u64(nrd_source_seed(p->src), i);
        double sum = (double)(u & 0xffff) + (double)(u >> 16 & 0xffff) + (double)(u >> 32 & 0xffff) +
                     (double)(u >> 48);
        p->pool[i] = (float)((sum / 65535.0 - 2.0) * 1.7320508 * 0.02);
    }
fail:
    return err;
}

/* A checkpoint is already divided; what the caller asked for must be that. */
static nrd_error *choose_ranks(nrd_plan *p)
{
    const nrd_plan_options *o = &p->opt;
    nrd_model_spec *s = &p->spec;

    if (nrd_source_get_kind(p->src) != NRD_SOURCE_CHECKPOINT) {
        s->tp_size = o->tp_size ? o->tp_size : 1;
        s->pp_size = o->pp_size ? o->pp_size : 1;
        s->moe.ep_size = o->moe_ep_size ? o->moe_ep_size : 1;
        s->parallel_embedding = o->parallel_embedding && s->tp_size > 1;
        s->embedding_by_columns = s->parallel_embedding && o->embedding_by_columns;
        return NULL;
    }
    if ((o->tp_size && o->tp_size != s->tp_size) || (o->pp_size && o->pp_size != s->pp_size) ||
        (o->moe_ep_size && o->moe_ep_size != s->moe.ep_size)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s was converted for tp_size %d, pp_size %d and moe_ep_size %d; "
                          "another division needs the original model", nrd_source_path(p->src), s->tp_size, s->pp_size,
                          s->moe.ep_size);
    }
    if (o->parallel_embedding && s->tp_size > 1 && !s->parallel_embedding) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s was converted with the whole embedding in each rank: give --use_parallel_embedding to "
                          "nereid convert", nrd_source_path(p->src));
    }
    if (o->embedding_by_columns && s->parallel_embedding && !s->embedding_by_columns) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "%s was converted with an embedding divided by tokens: give "
                          "--embedding_sharding_dim 1 to "
                          "nereid convert",
                          nrd_source_path(p->src));
    }
    return NULL;
}

nrd_error *nrd_plan_make(nrd_plan **out, const nrd_source *src, const nrd_plan_options *opt,
                         int32_t rank)
{
    nrd_error *err = NULL;
    nrd_plan *p = NULL;
    bool checkpoint = nrd_source_get_kind(src) == NRD_SOURCE_CHECKPOINT;

    *out = NULL;
    NRD_NEW_GOTO(p, 1, err, fail);
    p->src = src;
    p->opt = *opt;
    p->spec = *nrd_source_spec(src);
    p->source_layer = nrd_source_first_layer(src);
    NRD_TRY_GOTO(choose_ranks(p), err, fail);
    if (opt->dtype != NRD_DTYPE_NONE && !nrd_plan_is_float(opt->dtype)) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "dtype must be float32, float16 or bfloat16, got %s",
                         nrd_dtype_name(opt->dtype));
        goto fail;
    }
    if (opt->dtype != NRD_DTYPE_NONE) {
        p->spec.dtype = opt->dtype;
    }
    NRD_TRY_GOTO(nrd_model_spec_check(&p->spec), err, fail);
    if (rank < 0 || rank >= p->spec.tp_size * p->spec.pp_size) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "rank %d is not below tp_size * pp_size = %d", rank,
                         p->spec.tp_size * p->spec.pp_size);
        goto fail;
    }
    p->rank = rank;
    p->tp_rank = rank % p->spec.tp_size;
    p->pp_rank = rank / p->spec.tp_size;
    if (checkpoint) {
        NRD_TRY_GOTO(plan_from_checkpoint(p), err, fail);
    } else {
        NRD_NEW_GOTO(p->used, nrd_source_n_tensors(src, 0), err, fail);
        NRD_TRY_GOTO(plan_from_rules(p), err, fail);
        NRD_TRY_GOTO(list_unused(p), err, fail);
    }
    if (nrd_source_get_kind(src) == NRD_SOURCE_DUMMY) {
        NRD_TRY_GOTO(fill_pool(p), err, fail);
    }
    if (!checkpoint || nrd_source_is_foreign(src) || opt->quantize != NRD_DTYPE_NONE) {
        set_quant_algo(p);
    }
    nrd_plan_note_unpacked(p);
    nrd_plan_note_inputs(p);
    if (*nrd_source_notes(src)) {
        nrd_str_printf(&p->notes, "%s%s", p->notes.len ? "; " : "", nrd_source_notes(src));
    }
    *out = p;
    return NULL;

fail:
    nrd_plan_free(p);
    return err;
}

void nrd_plan_free(nrd_plan *p)
{
    if (!p) {
        return;
    }
    free(p->tensors);
    free(p->unused);
    free(p->used);
    free(p->pool);
    nrd_arena_fini(&p->arena);
    nrd_str_fini(&p->notes);
    free(p);
}

const nrd_model_spec *nrd_plan_spec(const nrd_plan *p)
{
    return &p->spec;
}

int32_t nrd_plan_rank(const nrd_plan *p)
{
    return p->rank;
}

size_t nrd_plan_n_tensors(const nrd_plan *p)
{
    return p->n;
}

const nrd_plan_tensor *nrd_plan_at(const nrd_plan *p, size_t i)
{
    return &p->tensors[i];
}

uint64_t nrd_plan_total_bytes(const nrd_plan *p)
{
    return p->total_bytes;
}

size_t nrd_plan_unused(const nrd_plan *p, const char *const **out_names)
{
    *out_names = p->unused;
    return p->n_unused;
}

const char *nrd_plan_notes(const nrd_plan *p)
{
    return nrd_str_cstr(&p->notes);
}

static bool planned_shape(const void *plan, const char *name, int64_t *rows, int64_t *cols)
{
    const nrd_plan *p = plan;
    for (size_t i = 0; i < p->n; i++) {
        if (!strcmp(p->tensors[i].name, name)) {
            *rows = p->tensors[i].rows;
            *cols = p->tensors[i].cols;
            return true;
        }
    }
    return false;
}

nrd_error *nrd_plan_check_engine(const nrd_plan *p, nrd_dtype kv_dtype)
{
    nrd_error *err = nrd_needs_check(&p->spec, nrd_plan_rank(p), planned_shape, p);
    if (!err) {
        err = nrd_needs_kv_scales(&p->spec, nrd_plan_rank(p), kv_dtype, planned_shape, p);
    }
    return nrd_error_wrap(err, "%s", nrd_source_path(p->src));
}

nrd_error *nrd_plan_check(const nrd_plan *p)
{
    return nrd_source_check(p->src);
}
