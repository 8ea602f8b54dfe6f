/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/quantize/modules.h"

#include "base/mem.h"
#include "base/str.h"
#include "model/needs.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LAYERS "transformer.layers."

/* The layer in a name of the plan, and what follows; -1 and the name itself: of no layer. */
static int32_t layer_of(const char *name, const char **out_rest)
{
    char *end = NULL;
    *out_rest = name;
    if (!nrd_str_has_prefix(name, LAYERS)) {
        return -1;
    }
    const long layer = strtol(name + strlen(LAYERS), &end, 10);
    *out_rest = *end == '.' ? end + 1 : end;
    return (int32_t)layer;
}

/* has_q_rank: queries of latent attention come out of a vector of their own. */
static int input_of(const char *rest, int32_t expert, bool has_q_rank)
{
    if (has_q_rank && nrd_str_has_prefix(rest, "attention.q_b.")) {
        return NRD_QINPUT_NONE;
    }
    if (nrd_str_has_prefix(rest, "mlp.experts.")) {
        return nrd_qinput_of_expert(expert, nrd_str_has_prefix(rest, "mlp.experts.proj.") ? NRD_PRODUCT_DOWN : NRD_PRODUCT_UP);
    }
    if (nrd_str_has_prefix(rest, "attention.dense.") || nrd_str_has_prefix(rest, NRD_RECURRENT "out.")) {
        return NRD_PRODUCT_DENSE;
    }
    if (nrd_str_has_prefix(rest, NRD_RECURRENT "x_") || nrd_str_has_prefix(rest, NRD_RECURRENT "dt.")) {
        return NRD_QINPUT_NONE; /* what they read is not told */
    }
    if (nrd_str_has_prefix(rest, "attention.") || nrd_str_has_prefix(rest, NRD_RECURRENT)) {
        return NRD_PRODUCT_QKV;
    }
    if (nrd_str_has_prefix(rest, "mlp.fc.") || nrd_str_has_prefix(rest, "mlp.gate.") ||
        nrd_str_has_prefix(rest, "mlp.shared.fc.") || nrd_str_has_prefix(rest, "mlp.shared.gate.")) {
        return NRD_PRODUCT_UP;
    }
    return nrd_str_has_prefix(rest, "mlp.proj.") || nrd_str_has_prefix(rest, "mlp.shared.proj.") ? NRD_PRODUCT_DOWN
                                                                                            : NRD_QINPUT_NONE;
}

static const nrd_plan_tensor *planned(const nrd_qmodules *q, int32_t layer, const char *rest)
{
    char name[128];
    snprintf(name, sizeof name, LAYERS "%d.%s", layer, rest);
    for (size_t i = 0; i < nrd_plan_n_tensors(q->plan); i++) {
        const nrd_plan_tensor *t = nrd_plan_at(q->plan, i);
        if (!strcmp(t->name, name)) {
            return t;
        }
    }
    return NULL;
}

/* ---- modules ---- */

static bool matches(const char *patterns, const char *name)
{
    char one[256];
    for (const char *at = patterns; at && *at;) {
        const size_t n = strcspn(at, ",");
        const bool has_wild = n < sizeof one && strcspn(at, "*?[") < n;
        snprintf(one, sizeof one, has_wild ? "%.*s" : "*%.*s*", (int)n, at);
        if (n > 0 && !fnmatch(one, name, 0)) {
            return true;
        }
        at += n + (at[n] == ',');
    }
    return false;
}

static nrd_error *check_tensor(const nrd_src_tensor *src)
{
    if (src->packed || !(src->dtype == NRD_DTYPE_F32 || src->dtype == NRD_DTYPE_F16 || src->dtype == NRD_DTYPE_BF16)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "tensor '%s' has type %s; weights are quantized from float32, float16 or "
                          "bfloat16", src->name, src->packed ? "of a quantized folder" : src->type_name);
    }
    return NULL;
}

static bool is_turned(const nrd_plan_tensor *t)
{
    return (t->flags & NRD_RULE_TRANSPOSE) != 0;
}

static char *module_name(const nrd_src_tensor *src)
{
    const size_t n = strlen(src->name);
    return nrd_xstrndup(src->name, nrd_str_has_suffix(src->name, ".weight") ? n - strlen(".weight") : n);
}

int nrd_qmodules_bits(const nrd_src_tensor *t)
{
    const uint64_t n = nrd_src_tensor_numbers(t);
    return n > 0 ? (int)(8 * t->data_bytes / n) : 0;
}

/* Once, also where several weights are made of a tensor. */
static void keep(nrd_qmodules *q, const nrd_src_tensor *src, const char *why, bool is_linear)
{
    char *name = src ? module_name(src) : NULL;
    for (size_t i = 0; i < q->n_kept && name; i++) {
        if (!strcmp(q->kept[i].name, name)) {
            free(name);
            name = NULL;
        }
    }
    if (name) {
        q->kept = nrd_xrealloc(q->kept, (q->n_kept + 1) * sizeof *q->kept);
        q->kept[q->n_kept++] = (nrd_qkept){name, nrd_qmodules_bits(src), why, is_linear};
    }
}

/* Why a linear module stays; NULL: it is quantized. */
static const char *why_kept(const char *rest, const char *name, bool is_head, bool with_head, const char *exclude)
{
    return strstr(rest, "router.")      ? "a router is not quantized"
           : strstr(rest, "per_layer.") ? "inputs of each layer are not quantized"
           : matches(exclude, name)     ? "excluded by --exclude"
           : is_head && !with_head      ? "the LM head stays without --quantize_lm_head"
                                           : NULL;
}

static nrd_error *add_module(nrd_qmodules *q, const nrd_source *s, const nrd_plan_tensor *t, const nrd_src_tensor *src,
                             int32_t layer, int input, const char *why_stays)
{
    const bool turned = is_turned(t);
    if (nrd_qmodules_find(q, src)) {
        return NULL; /* of a weight that is made of halves */
    }
    if (layer >= 0 && input < NRD_PRODUCTS) {
        q->layers[layer].n_readers[input]++;
    }
    if (why_stays) {
        keep(q, src, why_stays, true);
        return NULL;
    }
    NRD_TRY(check_tensor(src));
    if (nrd_source_find(s, 0, src->name) != src) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "tensor '%s' has all experts in one; the format that is written has a module "
                          "for each", src->name);
    }
    q->modules = nrd_xrealloc(q->modules, (q->n + 1) * sizeof *q->modules);
    q->modules[q->n++] = (nrd_qmodule){src, turned, src->dims[turned], src->dims[!turned], module_name(src), layer, input};
    return NULL;
}

/* Embeddings and convolutions: one matrix or a stack. */
static void keep_others(nrd_qmodules *q, const nrd_plan_tensor *t)
{
    const bool is_head = strstr(t->name, "vocab_embedding") && nrd_plan_spec(q->plan)->tied_embeddings;
    const char *why = is_head ? "the embedding is the LM head, too" : strstr(t->name, "embedding") ? "embeddings stay" : "no linear module";
    for (int p = 0; p < t->n_parts; p++) {
        const nrd_plan_part *part = &t->parts[p];
        for (int32_t e = 0; e < (part->stack ? t->n_stacked : 1); e++) {
            keep(q, part->stack ? part->stack[e] : part->src, why, false);
        }
    }
}

static nrd_error *add_planned(nrd_qmodules *q, const nrd_source *s, const nrd_plan_tensor *t, const char *exclude,
                              bool with_head)
{
    const char *rest;
    const int32_t layer = layer_of(t->name, &rest);
    const nrd_need *need = nrd_need_of(rest);
    const bool is_head = !strcmp(t->name, "lm_head.weight");

    if (!t->is_vector && (nrd_str_has_prefix(rest, "attention.k_b.") || nrd_str_has_prefix(rest, "attention.v_b."))) {
        keep(q, t->parts[0].src, "keys and values are not multiplied as one", true); /* a linear module for others; here keys and values of its own, which are not multiplied as one */
    }
    if (t->is_vector) {
        return NULL;
    }
    if (!need || !need->is_linear) {
        keep_others(q, t);
        return NULL;
    }
    for (int p = 0; p < t->n_parts; p++) {
        const nrd_plan_part *part = &t->parts[p];
        for (int32_t e = 0; e < (part->stack ? t->n_stacked : 1); e++) {
            const nrd_src_tensor *src = part->stack ? part->stack[e] : part->src;
            if (!src) {
                continue; /* padding */
            }
            NRD_TRY(add_module(q, s, t, src, layer, input_of(rest, e, nrd_plan_spec(q->plan)->latent.q_rank > 0),
                               why_kept(rest, src->name, is_head, with_head, exclude)));
        }
    }
    return NULL;
}

static int by_layer(const void *a, const void *b)
{
    const nrd_qmodule *x = a, *y = b;
    const uint32_t l = (uint32_t)x->layer, k = (uint32_t)y->layer; /* -1 is last */
    return l != k ? (l > k) - (l < k) : strcmp(x->name, y->name);
}

/* ---- what makes an input ---- */

static nrd_qmaker whole(const nrd_plan_tensor *t)
{
    if (!t || t->n_parts != 1 || !t->parts[0].src || t->parts[0].src->packed || t->parts[0].stack || t->parts[0].group_rows) {
        return (nrd_qmaker){0};
    }
    return (nrd_qmaker){t->parts[0].src, t->parts[0].row0, t->parts[0].n_rows, (t->flags & NRD_RULE_ADD_ONE) != 0,
                        t->is_vector, is_turned(t), 0};
}

/* Of stacked queries, keys and values one of them: 0, 1 or 2. alone: the tensor of that alone, where they are not stacked. */
static nrd_qmaker part_of(const nrd_model_spec *m, const nrd_plan_tensor *t, const nrd_plan_tensor *alone, int which)
{
    const int64_t q = (int64_t)m->n_heads * m->head_dim, kv = (int64_t)m->n_kv_heads * m->head_dim;
    const int64_t before[3] = {0, q, q + kv};
    if (alone) {
        return whole(alone);
    }
    if (!t || (t->flags & NRD_RULE_GROUPED_QKV) || (t->n_parts != 3 && t->n_parts != 1)) {
        return (nrd_qmaker){0};
    }
    const nrd_plan_part *part = &t->parts[t->n_parts == 3 ? which : 0];
    if (!part->src || part->group_rows) {
        return (nrd_qmaker){0};
    }
    return (nrd_qmaker){part->src, part->row0 + (t->n_parts == 1 ? before[which] : 0), which ? kv : q, false, t->is_vector,
                        is_turned(t), 0};
}

/* With a bias beside the weight both are divided; where one of them is not plain neither is. */
static void set_makers(nrd_qlayer *y, nrd_exec_product input, nrd_qmaker weight, nrd_qmaker bias, bool has_bias)
{
    if (weight.src && (!has_bias || bias.src)) {
        y->makers[input][0] = weight;
        y->makers[input][1] = has_bias ? bias : (nrd_qmaker){0};
    }
}

static void find_makers(const nrd_qmodules *q, int32_t i)
{
    const nrd_model_spec own = nrd_spec_of_layer(nrd_plan_spec(q->plan), i), *m = &own;
    nrd_qlayer *y = &q->layers[i];
    const nrd_plan_tensor *norm = planned(q, i, "input_layernorm.weight"), *bias = planned(q, i, "input_layernorm.bias");
    const nrd_plan_tensor *mlp_norm = planned(q, i, "post_layernorm.weight");
    const nrd_plan_tensor *mlp_bias = planned(q, i, "post_layernorm.bias"), *gate = planned(q, i, "mlp.gate.weight");
    const nrd_plan_tensor *gate_bias = planned(q, i, "mlp.gate.bias"), *v_bias = planned(q, i, "attention.v.bias");
    const nrd_plan_tensor *qkv_bias = planned(q, i, "attention.qkv.bias");

    for (int p = 0; p < NRD_PRODUCTS; p++) {
        y->reads_as[p] = p;
    }
    if (nrd_spec_layer_has_experts(m, i)) { /* router and experts read the norm, too */
        if (!m->sum_norms && !(m->parallel && !mlp_norm)) {
            set_makers(y, NRD_PRODUCT_QKV, whole(norm), whole(bias), bias != NULL);
        }
    } else if (!m->sum_norms) {
        set_makers(y, NRD_PRODUCT_QKV, whole(norm), whole(bias), bias != NULL);
        set_makers(y, NRD_PRODUCT_UP, whole(mlp_norm), whole(mlp_bias), mlp_bias != NULL);
        if (m->parallel && !mlp_norm) {
            y->reads_as[NRD_PRODUCT_UP] = NRD_PRODUCT_QKV;
            y->n_readers[NRD_PRODUCT_QKV] += y->n_readers[NRD_PRODUCT_UP];
        }
    }
    if (m->inner_norms) { /* what stands before them they take off again */
        const nrd_plan_tensor *inner_bias = planned(q, i, "mlp.inner_layernorm.bias");
        set_makers(y, NRD_PRODUCT_DOWN, whole(planned(q, i, "mlp.inner_layernorm.weight")), whole(inner_bias), inner_bias != NULL);
    } else if (m->gated_mlp) { /* act(fc) * gate: what gate is divided by, the product is */
        set_makers(y, NRD_PRODUCT_DOWN, whole(gate), whole(gate_bias), gate_bias != NULL);
    }
    if (m->v_norm || m->inner_norms) { /* a norm takes the scale off again */
        return;
    }
    set_makers(y, NRD_PRODUCT_DENSE, part_of(m, planned(q, i, "attention.qkv.weight"), planned(q, i, "attention.v.weight"), 2),
               part_of(m, qkv_bias, v_bias, 2), qkv_bias || v_bias);
}

/* A bias that is not there counts as one that takes the scale; one whose rows lie otherwise than expected does not. */
static bool has_bias(const nrd_plan_tensor *stacked, const nrd_plan_tensor *alone, int which)
{
    if (alone) {
        return alone->parts[0].src != NULL;
    }
    return stacked && (stacked->n_parts != 3 || stacked->parts[which].src);
}

static void add_maker(nrd_qmakers *m, nrd_qmaker one)
{
    m->list[m->n++] = one;
    m->n_rows = m->n_rows < one.first + one.n_rows ? one.first + one.n_rows : m->n_rows;
}

/* A norm's weights or biases, which may be a tensor a head. */
static void add_norm(nrd_qmakers *m, const nrd_plan_tensor *t)
{
    const nrd_plan_part *p = t && t->n_parts == 1 ? &t->parts[0] : NULL;
    if (!p || !p->stack || p->src->packed) {
        add_maker(m, whole(t));
        return;
    }
    for (int64_t at = 0; at < p->n_rows; at += p->stack_rows) {
        add_maker(m, (nrd_qmaker){p->stack[at / p->stack_rows], 0, p->stack_rows, (t->flags & NRD_RULE_ADD_ONE) != 0, true, false, at});
    }
}

/* A tensor that the plan sees otherwise than the file has it (norms of heads as one vector) is taken as the file has it. Where one cannot
 * take a scale, none does. */
static void take_whole_tensors(const nrd_source *s, nrd_qmakers *m)
{
    for (int i = 0; i < m->n; i++) {
        nrd_qmaker *one = &m->list[i];
        const nrd_src_tensor *t = one->src ? nrd_source_find(s, 0, one->src->name) : NULL;
        if (!t || t->data != one->src->data || t->data_bytes != one->src->data_bytes) {
            m->n = 0;
            return;
        }
        one->src = t;
    }
}

/* Whether another layer reads the keys of this one. */
static bool is_shared(const nrd_model_spec *m, int32_t layer)
{
    bool any = false;
    for (int32_t i = m->n_layers - m->n_shared_kv; i < m->n_layers; i++) {
        any = any || (nrd_spec_layer_has_attention(m, i) && nrd_spec_kv_source(m, i) == layer);
    }
    return any;
}

/* What makes queries and keys, of which other layers' queries must know nothing. Numbers are kept within a range before the rotation (clip_qkv), or normed: then only what
 * stands behind can take a scale. */
static nrd_error *find_cache_makers(const nrd_qmodules *q, const nrd_source *s, int32_t i)
{
    const nrd_model_spec own = nrd_spec_of_layer(nrd_plan_spec(q->plan), i), *m = &own;
    nrd_qlayer *y = &q->layers[i];
    const nrd_plan_tensor *qkv = planned(q, i, "attention.qkv.weight"), *qkv_bias = planned(q, i, "attention.qkv.bias");
    const nrd_plan_tensor *alone[2] = {planned(q, i, "attention.q.weight"), planned(q, i, "attention.k.weight")};
    const nrd_plan_tensor *bias[2] = {planned(q, i, "attention.q.bias"), planned(q, i, "attention.k.bias")};
    const nrd_plan_tensor *norm[2] = {planned(q, i, "attention.q_layernorm.weight"), planned(q, i, "attention.k_layernorm.weight")};
    const nrd_plan_tensor *norm_bias[2] = {planned(q, i, "attention.q_layernorm.bias"), planned(q, i, "attention.k_layernorm.bias")};
    const nrd_plan_tensor *dense = planned(q, i, "attention.dense.weight"), *first = qkv ? qkv : alone[0];
    const bool is_normed = m->qk_norm && !(m->qk_norm_turned && m->layer_has_no_rope[i]);
    nrd_qmakers *const makers[2] = {&y->queries, &y->keys};
    nrd_error *err = NULL;

    if (nrd_spec_is_latent(m) || !first || !first->parts[0].src) {
        return NULL;
    }
    const char *name = first->parts[0].src->name, *end = name + strlen(name);
    for (int dots = 0; end > name && dots < 2; dots += *end == '.') { /* ".q_proj.weight" is cut off */
        end--;
    }
    NRD_NEW_GOTO(y->attention, (size_t)(end - name) + 1, err, fail);
    memcpy(y->attention, name, (size_t)(end - name));
    y->dense = dense ? whole(dense).src : NULL;
    y->dense_turned = y->dense && is_turned(dense);
    y->dense = y->dense && nrd_source_find(s, 0, y->dense->name) == y->dense ? y->dense : NULL;
    for (int k = 0; k < 2 && !is_shared(m, i); k++) {
        NRD_NEW_GOTO(makers[k]->list, 2 * m->n_heads, err, fail); /* of each head weights and biases */
        if (is_normed) {
            add_norm(makers[k], norm[k]);
            if (norm_bias[k]) {
                add_norm(makers[k], norm_bias[k]);
            }
        } else if (!(m->clip_qkv > 0)) {
            add_maker(makers[k], part_of(m, qkv, alone[k], k));
            if (has_bias(qkv_bias, bias[k], k)) {
                add_maker(makers[k], part_of(m, qkv_bias, bias[k], k));
            }
        }
        take_whole_tensors(s, makers[k]);
    }
fail:
    return err;
}

/* ---- opening ---- */

/* Whether they are one tensor, which the plan may see as a vector. */
static bool is_same(const nrd_src_tensor *a, const nrd_src_tensor *b)
{
    return a == b || (a && a->data && a->name == b->name && a->data == b->data && a->data_bytes == b->data_bytes);
}

/* Whether a weight of the plan is made of a tensor, and in which layer. */
static bool is_planned(const nrd_qmodules *q, const nrd_src_tensor *src, int32_t *out_layer)
{
    const char *rest;
    for (size_t i = 0; i < nrd_plan_n_tensors(q->plan); i++) {
        const nrd_plan_tensor *t = nrd_plan_at(q->plan, i);
        for (int p = 0; p < t->n_parts; p++) {
            bool is_here = is_same(t->parts[p].src, src);
            const int64_t n = t->is_vector && t->parts[p].stack ? t->parts[p].n_rows / t->parts[p].stack_rows : t->n_stacked;
            for (int64_t e = 0; t->parts[p].stack && e < n && !is_here; e++) { /* experts, or norms of heads */
                is_here = t->parts[p].stack[e] == src;
            }
            if (is_here) {
                *out_layer = layer_of(t->name, &rest);
                return true;
            }
        }
    }
    return false;
}

/* Which layer each tensor belongs to. Matrices of what stands before the text model, a vision tower, are ignored: those who
 * follow config.json must know that they stay. */
static nrd_error *look_at_source(nrd_qmodules *q, const nrd_source *s)
{
    nrd_error *err = NULL;

    NRD_NEW_GOTO(q->source_layers, nrd_source_n_tensors(s, 0), err, done);
    for (size_t i = 0; i < nrd_source_n_tensors(s, 0); i++) {
        const nrd_src_tensor *t = nrd_source_tensor_at(s, 0, i);
        if (is_planned(q, t, &q->source_layers[i])) {
            continue;
        }
        q->source_layers[i] = -1;
        if (t->n_dims == 2 && nrd_str_has_suffix(t->name, ".weight")) {
            keep(q, t, "no part of the text model", true);
        }
    }
done:
    return err;
}

static nrd_error *check_exclude(const nrd_qmodules *q, const char *exclude)
{
    for (const char *at = exclude; at && *at;) {
        const size_t n = strcspn(at, ",");
        char *one = nrd_xstrndup(at, n);
        bool found = !strcmp(one, "lm_head");
        for (size_t i = 0; i < q->n_kept && !found; i++) {
            found = q->kept[i].is_linear && matches(one, q->kept[i].name);
        }
        nrd_error *err = found ? NULL
                               : nrd_errorf(NRD_ERR_INVALID_ARG, "--exclude: no linear module is called '%s'; this model has, "
                                            "for example, '%s'", one, q->n ? q->modules[0].name : "none");
        free(one);
        NRD_TRY(err);
        at += n + (at[n] == ',');
    }
    return NULL;
}

nrd_error *nrd_qmodules_open(nrd_qmodules *q, const nrd_source *src, const char *exclude, bool with_head)
{
    nrd_error *err = NULL;
    const nrd_plan_options plain = {0};

    *q = (nrd_qmodules){0};
    NRD_TRY(nrd_plan_make(&q->plan, src, &plain, 0));
    q->n_layers = nrd_plan_spec(q->plan)->n_layers;
    q->n_inputs = nrd_qinput_of_expert(nrd_plan_spec(q->plan)->moe.n_experts, NRD_PRODUCT_UP);
    NRD_NEW_GOTO(q->layers, q->n_layers, err, fail);
    for (size_t i = 0; i < nrd_plan_n_tensors(q->plan); i++) {
        NRD_TRY_GOTO(add_planned(q, src, nrd_plan_at(q->plan, i), exclude, with_head), err, fail);
    }
    NRD_TRY_GOTO(look_at_source(q, src), err, fail);
    NRD_TRY_GOTO(check_exclude(q, exclude), err, fail);
    if (q->n == 0) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, exclude ? "--exclude leaves no linear module to quantize" : "the model has no linear module to quantize");
        goto fail;
    }
    qsort(q->modules, q->n, sizeof *q->modules, by_layer);
    for (size_t i = 0; i < q->n; i++) {
        nrd_qlayer *y = q->modules[i].layer < 0 ? NULL : &q->layers[q->modules[i].layer];
        if (y) {
            y->first = y->n ? y->first : i;
            y->n++;
        }
    }
    for (int32_t i = 0; i < q->n_layers; i++) {
        find_makers(q, i);
        NRD_TRY_GOTO(find_cache_makers(q, src, i), err, fail);
    }
    return NULL;

fail:
    nrd_qmodules_close(q);
    return err;
}

void nrd_qmodules_close(nrd_qmodules *q)
{
    for (size_t i = 0; i < q->n; i++) {
        free(q->modules[i].name);
    }
    for (size_t i = 0; i < q->n_kept; i++) {
        free(q->kept[i].name);
    }
    for (int32_t i = 0; i < q->n_layers && q->layers; i++) {
        free(q->layers[i].attention);
        free(q->layers[i].queries.list);
        free(q->layers[i].keys.list);
    }
    free(q->modules);
    free(q->kept);
    free(q->layers);
    free(q->source_layers);
    nrd_plan_free(q->plan);
    *q = (nrd_qmodules){0};
}

const nrd_qmodule *nrd_qmodules_find(const nrd_qmodules *q, const nrd_src_tensor *src)
{
    for (size_t i = 0; i < q->n; i++) {
        if (q->modules[i].src == src) {
            return &q->modules[i];
        }
    }
    return NULL;
}
