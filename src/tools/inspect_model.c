/* SPDX-License-Identifier: Apache-2.0
 * What nereid inspect prints of a model, an engine and a tokenizer. */
#include "tools/inspect.h"

#include "base/dtype.h"
#include "model/arch.h"
#include "model/engine.h"
#include "model/source.h"
#include "model/spec_recurrent.h"
#include "text/tokenizer.h"
#include "tools/tools.h"

#include <stdio.h>
#include <string.h>

/* ---- bytes by type ---- */

typedef struct {
    uint64_t bytes, elements, n;
} share;

typedef struct {
    share types[NRD_DTYPE_COUNT_];
    uint64_t bytes, elements, n;
} mix;

static void mix_add(mix *m, nrd_dtype t, uint64_t elements, uint64_t bytes)
{
    share *s = &m->types[(unsigned)t < NRD_DTYPE_COUNT_ ? t : NRD_DTYPE_NONE];
    s->bytes += bytes;
    s->elements += elements;
    s->n++;
    m->bytes += bytes;
    m->elements += elements;
    m->n++;
}

static void print_mix(const mix *m)
{
    char size[32];
    printf("parameters    %.2f million in %llu tensors, %s, %.2f bits each\n",
           (double)m->elements / 1e6, (unsigned long long)m->n, nrd_human_bytes(m->bytes, size),
           m->elements ? 8.0 * (double)m->bytes / (double)m->elements : 0);
    printf("types         ");
    bool first = true;
    for (int t = 0; t < NRD_DTYPE_COUNT_; t++) {
        const share *s = &m->types[t];
        if (s->n) {
            printf("%s%s %.1f %% (%llu tensors)", first ? "" : ", ", nrd_dtype_name((nrd_dtype)t),
                   m->bytes ? 100.0 * (double)s->bytes / (double)m->bytes : 0,
                   (unsigned long long)s->n);
            first = false;
        }
    }
    printf("\n");
}

/* ---- the model ---- */

static void print_rope(const char *label, const nrd_rope_spec *r)
{
    static const char *const scalings[] = {"",
                                           ", linear scaling",
                                           ", llama3 scaling",
                                           ", yarn scaling",
                                           ", factors from a tensor",
                                           ", dynamic scaling",
                                           ", long-sequence factors",
                                           ", a share of the pairs"};
    if (r->kind != NRD_ROPE_NONE) {
        printf("%-13s rotary over %d, base %g, %s pairs%s", label, r->rotary_dim, r->base,
               r->kind == NRD_ROPE_INTERLEAVED ? "interleaved" : "split", scalings[r->scaling]);
        printf(r->scaling && r->scaling != NRD_ROPE_SCALING_FACTORS ? " by %g\n" : "\n", r->factor);
    }
}

static void print_layers(const nrd_model_spec *s)
{
    char size[32];
    printf("layers        %d of hidden size %d", s->n_layers, s->hidden);
    if (memchr(s->layer_has_no_mlp, 0, (size_t)s->n_layers)) {
        printf(", %s MLP of %d (%s)", s->gated_mlp ? "gated" : "plain", s->inter, nrd_act_name(s->act));
        printf(s->shared_kv_inter > 0 ? ", of %d in the last %d layers" : "", s->shared_kv_inter, s->n_shared_kv);
    }
    printf("\n");
    if (nrd_spec_has_altup(s)) {
        printf("states        %d of a token (AltUp)\n", s->altup.n_states);
    }
    if (nrd_spec_has_layer_inputs(s)) {
        printf("embeddings    a second one, %d numbers for each layer\n", s->altup.per_layer);
    }
    if (nrd_spec_is_recurrent(s)) {
        printf("states        in %d layers, %s a sequence\n", nrd_spec_state_layers(s),
               nrd_human_bytes(nrd_recurrent_bytes(s), size));
    }
}

/* What each rank has, where that differs: layers of stages, experts of those that share the list. */
static void print_ranks(const nrd_model_spec *s)
{
    const int32_t n = s->tp_size * s->pp_size;
    const bool divides_list = s->has_experts && s->moe.ep_size > 1;

    if (n == 1) {
        return;
    }
    printf("ranks         %d: tp %d, pp %d", n, s->tp_size, s->pp_size);
    if (divides_list) {
        printf(", of experts tp %d, ep %d", nrd_spec_moe_tp(s), s->moe.ep_size);
    }
    printf("\n");
    for (int32_t r = 0; (s->pp_size > 1 || divides_list) && r < n; r++) {
        const int32_t layer = nrd_spec_first_layer(s, r);
        printf("  rank %-3d    layers %d to %d", r, layer, layer + s->n_layers / s->pp_size - 1);
        if (s->pp_size > 1) {
            printf("%s", nrd_spec_is_first(s, r) ? ", embedding" : nrd_spec_is_last(s, r) ? ", LM head" : "");
        }
        if (divides_list) {
            const int32_t first = nrd_spec_first_expert(s, r);
            printf(", experts %d to %d", first, first + nrd_spec_own_experts(s, r) - 1);
        }
        if (divides_list && nrd_spec_moe_tp(s) > 1) {
            printf(" (part %d of %d)", nrd_spec_moe_tp_rank(s, r) + 1, nrd_spec_moe_tp(s));
        }
        printf("\n");
    }
}

static void print_spec(const nrd_model_spec *s)
{
    char size[32];
    int32_t n_sliding = 0;
    for (int32_t i = 0; i < s->n_layers; i++) {
        n_sliding += s->layer_is_sliding[i] != 0;
    }
    printf("architecture  %s (%s), %s%s%s\n", s->architecture, s->model_type,
           nrd_dtype_name(s->dtype), *s->quant_algo ? ", quantized " : "", s->quant_algo);
    print_layers(s);
    if (s->has_experts) {
        const nrd_moe_spec *m = &s->moe;
        int32_t n_dense = 0;
        for (int32_t i = 0; i < s->n_layers; i++) {
            n_dense += s->layer_is_dense[i] != 0;
        }
        printf("experts       %d of %d, each of %d", m->top_k, m->n_experts, m->inter);
        if (m->shared_inter) {
            printf(", shared of %d%s", m->shared_inter, m->shared_gate ? " with a gate" : "");
        }
        if (m->n_groups > 1) {
            printf(", from %d of %d groups", m->top_groups, m->n_groups);
        }
        printf(n_dense ? ", none in %d layers\n" : "\n", n_dense);
    }
    if (nrd_spec_kv_layers(s) == 0) {
        printf("attention     none");
    } else if (nrd_spec_is_latent(s)) {
        printf("attention     %d heads of %d, latent rows of %d + %d for keys and values", s->n_heads, s->head_dim,
               s->latent.kv_rank, s->latent.rope_dim);
    } else {
        printf("attention     %d heads of %d, %d for keys and values", s->n_heads, s->head_dim, s->n_kv_heads);
    }
    if (n_sliding) {
        printf(", %d layers see %d tokens", n_sliding, s->sliding_window);
    }
    if (s->full_head_dim > 0) {
        printf(", the others have heads of %d, %d for keys and values", s->full_head_dim, s->full_kv_heads);
    }
    if (s->n_shared_kv > 0) {
        printf(", the last %d read those of others", s->n_shared_kv);
    }
    printf("\nvocabulary    %d tokens%s, %d positions%s\n", s->vocab,
           s->tied_embeddings ? ", LM head tied" : "", s->max_positions,
           s->learned_positions ? " (learned)" : "");
    print_rope("positions", &s->rope);
    print_rope("  sliding", &s->rope_local);
    printf("tokens        bos %d, eos %d, pad %d, stop", s->bos_id, s->eos_id, s->pad_id);
    for (int32_t i = 0; i < s->n_stop_ids; i++) {
        printf(" %d", s->stop_ids[i]);
    }
    printf("\n");
    print_ranks(s);
    /* keys and values of one token in 16 bits, all ranks together */
    uint64_t kv = (uint64_t)nrd_spec_all_kv_numbers(s) * 2;
    printf("cache         %s a token in 16 bits\n", nrd_human_bytes(kv, size));
}

static void print_row(const char *name, nrd_dtype dtype, const char *type, const int64_t *dims,
                      int n_dims, uint64_t bytes)
{
    char shape[96] = "", size[32];
    size_t at = 0;
    for (int i = 0; i < n_dims; i++) {
        at += (size_t)snprintf(shape + at, sizeof shape - at, "%s%lld", i ? " x " : "",
                               (long long)dims[i]);
    }
    printf("  %-60s %-9s %-18s %s\n", name, dtype == NRD_DTYPE_NONE ? type : nrd_dtype_name(dtype),
           shape, nrd_human_bytes(bytes, size));
}

nrd_plan *nrd_inspect_plan(const nrd_source *s, int32_t rank)
{
    const nrd_plan_options opt = {.keep_packed = true};
    nrd_plan *plan = NULL;
    bool any = false;

    for (size_t i = 0; i < nrd_source_n_tensors(s, rank) && !any; i++) {
        any = nrd_source_tensor_at(s, rank, i)->packed != NULL;
    }
    nrd_error *err = any ? nrd_plan_make(&plan, s, &opt, rank) : NULL;
    nrd_error_free(err); /* of a folder that cannot be run the types are those of its tensors */
    return plan;
}

nrd_src_tensor nrd_inspect_tensor(const nrd_plan *plan, const nrd_src_tensor *t)
{
    nrd_src_tensor out = *t;
    size_t bytes;

    out.dtype = plan ? nrd_plan_kept_type(plan, t) : t->dtype;
    if (out.dtype != t->dtype && nrd_dtype_bytes(out.dtype, (uint64_t)t->dims[0] * (uint64_t)t->dims[1], &bytes)) {
        out.data_bytes = bytes;
    }
    return out;
}

nrd_error *nrd_inspect_source(const char *path, const nrd_inspect_options *o)
{
    nrd_source *s = NULL;
    mix m = {0};

    NRD_TRY(nrd_source_open(&s, path));
    printf("%s: %s\n", path, nrd_source_kind_name(s));
    print_spec(nrd_source_spec(s));
    for (int32_t r = 0; r < nrd_source_n_ranks(s); r++) {
        nrd_plan *plan = nrd_inspect_plan(s, r);
        for (size_t i = 0; i < nrd_source_n_tensors(s, r); i++) {
            const nrd_src_tensor t = nrd_inspect_tensor(plan, nrd_source_tensor_at(s, r, i));
            mix_add(&m, t.dtype, nrd_src_tensor_numbers(&t), t.data_bytes);
        }
        nrd_plan_free(plan);
    }
    print_mix(&m);
    nrd_plan *plan = o->tensors ? nrd_inspect_plan(s, o->rank) : NULL;
    for (size_t i = 0; o->tensors && i < nrd_source_n_tensors(s, o->rank); i++) {
        const nrd_src_tensor t = nrd_inspect_tensor(plan, nrd_source_tensor_at(s, o->rank, i));
        print_row(t.name, t.dtype, t.type_name, t.dims, t.n_dims, t.data_bytes);
    }
    nrd_plan_free(plan);
    nrd_source_close(s);
    return NULL;
}

nrd_error *nrd_inspect_engine(const char *path, const nrd_inspect_options *o)
{
    nrd_engine *e = NULL;
    mix m = {0};
    size_t packed = 0;

    NRD_TRY(nrd_engine_open(&e, path, o->rank, o->verify));
    const nrd_build_limits *l = nrd_engine_limits(e);
    printf("%s: engine, rank %d%s\n", path, o->rank, o->verify ? ", checksums are right" : "");
    print_spec(nrd_engine_spec(e));
    for (size_t i = 0; i < nrd_engine_n_weights(e); i++) {
        const nrd_weight *w = nrd_engine_weight_at(e, i, NULL);
        mix_add(&m, w->dtype, (uint64_t)w->rows * (uint64_t)w->cols,
                w->data_bytes + (w->scales ? (uint64_t)w->rows * 4 : 0));
        packed += w->layout != NRD_LAYOUT_ROWS;
    }
    print_mix(&m);
    printf("packed        %zu weights%s%s\n", packed, *nrd_engine_device(e) ? " for " : "",
           nrd_engine_device(e));
    printf(
        "limits        batch %d, input %d, sequence %d, tokens in a step %d, beams %d, draft %d\n",
        l->max_batch_size, l->max_input_len, l->max_seq_len, l->max_num_tokens, l->max_beam_width,
        l->max_draft_len);
    printf("KV cache      %s, blocks of %d tokens%s%s\n",
           l->kv_dtype == NRD_DTYPE_NONE ? "type of the device's choice"
                                         : nrd_dtype_name(l->kv_dtype),
           l->tokens_per_block, l->use_paged_context_fmha ? ", prefix reuse possible" : "",
           l->fp8_context_fmha ? ", prompts' attention in 8 bits" : "");
    for (size_t i = 0; o->tensors && i < nrd_engine_n_weights(e); i++) {
        const char *name;
        const nrd_weight *w = nrd_engine_weight_at(e, i, &name);
        int64_t dims[2] = {w->rows, w->cols};
        print_row(name, w->dtype, "", dims, w->cols == 1 ? 1 : 2, w->data_bytes);
    }
    nrd_engine_close(e);
    return NULL;
}

nrd_error *nrd_inspect_tokenizer(const char *path)
{
    nrd_tokenizer *t = NULL;
    size_t n_stops;

    NRD_TRY(nrd_tokenizer_open(&t, path));
    nrd_tokenizer_stop_ids(t, &n_stops);
    printf("tokenizer     %s, %d tokens, bos %d, eos %d, pad %d, unk %d, %zu stop ids, %s\n",
           nrd_tokenizer_kind(t), nrd_tokenizer_vocab_size(t), nrd_tokenizer_bos_id(t),
           nrd_tokenizer_eos_id(t), nrd_tokenizer_pad_id(t), nrd_tokenizer_unk_id(t), n_stops,
           nrd_tokenizer_chat_template(t) ? "with a chat template" : "no chat template");
    nrd_tokenizer_close(t);
    return NULL;
}
