/* SPDX-License-Identifier: Apache-2.0
 * Layers of a decoder that read pictures instead of the tokens before them (Llama 3.2 Vision; Llama team, 2024): attention
 * whose keys and values are a picture's states, without positions, and an MLP, each multiplied by a number of its own.
 *
 * As an encoder's (encoder.c), keys and values lie in the first blocks of their sequence (nrd_seq_request.n_cross): there the layer
 * behind has nothing of its own, so that both use one cache. They are made once for a sequence, from rows of its prompt
 * table. Where the prefix cache has these blocks, it has what is in them.
 *
 * With several ranks each has its heads and its part of the MLP; states are rank 0's, which gives them to the others.
 *
 * Tokens before the first picture, and those of sequences without one, get nothing from these layers. A step in which nobody has a
 * picture passes them by. */
#include "base/mem.h"
#include "engine/run/blocks.h"
#include "engine/run/operations.h"
#include "engine/run/steps.h"

#include <stdlib.h>
#include <string.h>

/* Places of the cache that a picture's states go to, as numbers: the first one, how many, and the blocks that they are in. */
enum { PLACE_FIRST, PLACE_STATES, PLACE_BLOCKS, PLACE_HEAD };

struct nrd_run_pictures {
    float **gates;  /* [2 * n_layers]: for attention and MLP of each layer, [max_tokens] of its number; NULL where it has none */
    int32_t *first; /* 0, max_tokens */
    int32_t *host, *mem; /* [positions, token_seq: max_tokens; q_start: 2; ctx_len: 1; table]; equal where the host is the device */
    int32_t max_blocks; /* of a sequence's states */
    int32_t *place;     /* [PLACE_HEAD + max_blocks] those of a picture */
};

/* ---- memory ---- */

static nrd_error *check(const nrd_runner *r)
{
    const nrd_device_ops *ops = r->dev->ops;

    if (!ops->has_feature || !ops->has_feature(r->dev, NRD_FEATURE_EXPERTS) || !ops->has_feature(r->dev, NRD_FEATURE_REL_BIAS)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "layers that read pictures are not computed by this device; use --device cpu");
    }
    return NULL;
}

static nrd_error *fill_gate(nrd_runner *r, float value, float *room, float **out)
{
    const size_t n = (size_t)r->cfg.max_tokens;
    void *p = NULL;

    NRD_TRY(nrd_run_alloc(r, &p, n, sizeof **out, "activations"));
    *out = p;
    for (size_t i = 0; i < n; i++) {
        room[i] = value;
    }
    return nrd_run_upload(r, p, room, n * sizeof *room);
}

static nrd_error *fill_gates(nrd_runner *r, nrd_run_pictures *x)
{
    nrd_error *err = NULL;
    float *room = NULL;

    NRD_NEW_GOTO(x->gates, (size_t)r->spec->n_layers * 2, err, done);
    NRD_NEW_GOTO(room, r->cfg.max_tokens, err, done);
    for (int32_t i = 0; i < r->spec->n_layers; i++) {
        const nrd_picture_layer *y = &r->w.layers[i].picture;
        if (y->q.n > 0) {
            NRD_TRY_GOTO(fill_gate(r, y->attn_gate, room, &x->gates[2 * i]), err, done);
            NRD_TRY_GOTO(fill_gate(r, y->mlp_gate, room, &x->gates[2 * i + 1]), err, done);
        }
    }
done:
    free(room);
    return err;
}

static size_t n_numbers(const nrd_runner *r, const nrd_run_pictures *x)
{
    return 2 * (size_t)r->cfg.max_tokens + 3 + (size_t)x->max_blocks;
}

nrd_error *nrd_run_pictures_init(nrd_runner *r)
{
    const int32_t ends[] = {0, r->cfg.max_tokens};
    nrd_run_pictures *x = NULL;
    nrd_error *err = NULL;
    void *p = NULL;

    NRD_TRY(check(r));
    NRD_NEW_GOTO(r->pictures, 1, err, fail);
    x = r->pictures;
    x->max_blocks = (r->cfg.max_picture_states + r->cfg.block_tokens - 1) / r->cfg.block_tokens;
    NRD_NEW_GOTO(x->place, PLACE_HEAD + (size_t)x->max_blocks, err, fail);
    NRD_TRY(fill_gates(r, x));
    NRD_TRY(nrd_run_alloc(r, &p, 2, sizeof *x->first, "activations"));
    x->first = p;
    NRD_TRY(nrd_run_upload(r, p, ends, sizeof ends));
    NRD_TRY(r->dev->ops->alloc(r->dev, &p, NRD_MEM_HOST, n_numbers(r, x) * sizeof *x->host, "batch"));
    x->host = x->mem = p;
    if (!r->shared) {
        NRD_TRY(nrd_run_alloc(r, &p, n_numbers(r, x), sizeof *x->mem, "batch"));
        x->mem = p;
    }
fail:
    return err;
}

void nrd_run_pictures_fini(nrd_runner *r)
{
    nrd_run_pictures *x = r->pictures;

    if (!x) {
        return;
    }
    for (int32_t i = 0; x->gates && i < 2 * r->spec->n_layers; i++) {
        nrd_run_free(r, x->gates[i]);
    }
    free(x->gates);
    free(x->place);
    nrd_run_free(r, x->first);
    if (x->mem != x->host) {
        nrd_run_free(r, x->mem);
    }
    nrd_run_free_host(r, x->host);
    free(x);
    r->pictures = NULL;
}

/* ---- keys and values ---- */

/* What the entry's first blocks lack of a picture; out NULL: counts the numbers, of which there are none where nothing is lacking. */
static size_t list_places(const nrd_runner *r, const nrd_plan_entry *e, const nrd_seq_picture *x, int32_t *out)
{
    const int32_t bt = r->cfg.block_tokens, first = e->start > x->place ? e->start : x->place, n = x->place + x->n - first;
    const int32_t n_blocks = n > 0 ? (first + n - 1) / bt - first / bt + 1 : 0;

    if (n <= 0) {
        return 0;
    }
    if (out) {
        out[PLACE_FIRST] = first;
        out[PLACE_STATES] = n;
        out[PLACE_BLOCKS] = n_blocks;
        memcpy(out + PLACE_HEAD, e->seq->sched.tables[e->beam].blocks + first / bt, (size_t)n_blocks * sizeof *out);
    }
    return PLACE_HEAD + (size_t)n_blocks;
}

size_t nrd_run_pictures_list(const nrd_runner *r, const nrd_plan *p, int32_t *out)
{
    size_t n = 0;

    for (int32_t i = 0; r->pictures && i < p->n_entries; i++) {
        const nrd_plan_entry *e = &p->entries[i];
        for (int32_t k = 0; nrd_entry_has_encoder(e) && k < e->seq->req.n_pictures; k++) {
            n += list_places(r, e, &e->seq->req.pictures[k], out ? out + n : NULL);
        }
    }
    return n;
}

/* The view of these states, as tokens of one sequence. */
static nrd_error *view_of(nrd_runner *r, const int32_t *place, nrd_batch_view *out)
{
    const size_t max = (size_t)r->cfg.max_tokens;
    const int32_t first = place[PLACE_FIRST], n = place[PLACE_STATES], block = first / r->cfg.block_tokens;
    nrd_run_pictures *x = r->pictures;
    int32_t *h = x->host;

    for (int32_t i = 0; i < n; i++) {
        h[i] = first + i;
        h[max + (size_t)i] = 0;
    }
    h[2 * max] = 0;
    h[2 * max + 1] = n;
    h[2 * max + 2] = first + n;
    for (int32_t i = 0; i < x->max_blocks; i++) {
        const bool has = i >= block && i < block + place[PLACE_BLOCKS];
        h[2 * max + 3 + (size_t)i] = has ? place[PLACE_HEAD + i - block] : -1;
    }
    *out = (nrd_batch_view){
        .n_tokens = n,
        .n_seqs = 1,
        .max_q_len = n,
        .max_ctx_len = first + n,
        .positions = x->mem,
        .token_seq = x->mem + max,
        .q_start = x->mem + 2 * max,
        .ctx_len = x->mem + 2 * max + 2,
        .block_table = x->mem + 2 * max + 3,
        .block_table_stride = x->max_blocks,
    };
    return x->mem != x->host ? r->dev->ops->copy(r->stream, x->mem, x->host, n_numbers(r, x) * sizeof *x->host) : NULL;
}

/* rows: [n, hidden] states on the device. */
static nrd_error *fill_layer(nrd_runner *r, const nrd_batch_view *v, int32_t layer, const void *rows)
{
    const nrd_layer *y = &r->w.layers[layer];
    const void *in = NULL;
    nrd_rope_kv_args k = {
        .batch = v,
        .qkv = r->qkv,
        .act_dtype = r->act,
        .k_norm = y->picture.k_norm,
        .norm_eps = r->spec->norm_eps,
        .rope = NRD_ROPE_NONE,
        .rope_scale = 1,
        .kv = r->kv.layers[y->kv_layer],
    };

    NRD_TRY(nrd_run_plain_input(r, v->n_tokens, &y->picture.kv, rows, r->normed, &in));
    NRD_TRY(nrd_run_product(r, &y->picture.kv, in, v->n_tokens, r->qkv, r->act, 0));
    return r->dev->ops->rope_kv(r->stream, &k);
}

/* rows: the states, [n, hidden] on the device; NULL: the first rank has them. */
static nrd_error *fill_places(nrd_runner *r, const int32_t *place, const uint8_t *rows)
{
    const size_t bytes = (size_t)place[PLACE_STATES] * (size_t)r->spec->hidden * r->act_bytes;
    nrd_batch_view v;

    NRD_TRY(view_of(r, place, &v));
    if (r->comm) { /* it gives them to the others as a sum with nothing; x is nobody's before the first layer */
        NRD_TRY(rows ? r->dev->ops->copy(r->stream, r->x, rows, bytes) : r->dev->ops->fill(r->stream, r->x, 0, bytes));
        NRD_TRY(nrd_run_all_reduce(r, r->x, v.n_tokens));
        rows = r->x;
    }
    for (int32_t i = 0; i < r->spec->n_layers; i++) {
        NRD_TRY(r->w.layers[i].picture.q.n > 0 ? fill_layer(r, &v, i, rows) : NULL);
    }
    return r->dev->ops->stream_sync(r->stream); /* the arrays are filled again */
}

/* What the entry's first blocks lack of a picture. */
static nrd_error *fill_picture(nrd_runner *r, const nrd_plan_entry *e, const nrd_seq_picture *x)
{
    const size_t row = (size_t)r->spec->hidden * r->act_bytes;
    int32_t *place = r->pictures->place;

    if (list_places(r, e, x, place) == 0) {
        return NULL;
    }
    return fill_places(r, place, e->seq->run.prompt_table + (size_t)(x->row + place[PLACE_FIRST] - x->place) * row);
}

nrd_error *nrd_run_pictures_fill(nrd_runner *r, const nrd_plan *p)
{
    for (int32_t i = 0; i < p->n_entries; i++) {
        const nrd_plan_entry *e = &p->entries[i];
        for (int32_t k = 0; nrd_entry_has_encoder(e) && k < e->seq->req.n_pictures; k++) {
            NRD_ASSERT(e->seq->run.prompt_table, "pictures' states come with their request");
            NRD_TRY(fill_picture(r, e, &e->seq->req.pictures[k]));
        }
    }
    return NULL;
}

nrd_error *nrd_run_pictures_follow(nrd_runner *r, const int32_t *list, size_t n)
{
    for (size_t at = 0; at < n; at += PLACE_HEAD + (size_t)list[at + PLACE_BLOCKS]) {
        const int32_t *place = list + at;
        if (!r->pictures || n - at < PLACE_HEAD || place[PLACE_BLOCKS] < 0 || n - at - PLACE_HEAD < (size_t)place[PLACE_BLOCKS] ||
            place[PLACE_STATES] < 1 || place[PLACE_STATES] > r->cfg.max_tokens) {
            return nrd_errorf(NRD_ERR_INTERNAL, "places of pictures' states that are none");
        }
        NRD_TRY(fill_places(r, place, NULL));
    }
    return NULL;
}

/* ---- the layer ---- */

/* delta = gate * up for tokens that see a picture, 0 for the others, whatever up has there. */
static nrd_error *scale(nrd_runner *r, const nrd_batch *b, float *gate)
{
    int32_t *place = (int32_t *)(uintptr_t)b->cross_place;
    const nrd_moe_sum_args a = {
        .n_tokens = b->view.n_tokens,
        .hidden = r->spec->hidden,
        .pairs = {.n_experts = 1, .top_k = 1, .expert = place, .weight = gate, .first = r->pictures->first, .token = place, .place = place},
        .y = r->up,
        .out = r->delta,
        .act_dtype = r->act,
    };
    NRD_TRY(r->dev->ops->moe_sum(r->stream, &a));
    NRD_TRY(nrd_run_mark(r, NRD_PROFILE_ACT, a.n_tokens, 2.0 * a.hidden * (double)r->act_bytes, 0));
    return nrd_run_sum_delta(r, a.n_tokens);
}

/* From qkv, which has the queries, to qkv, as the product behind it wants it. */
static nrd_error *attend(nrd_runner *r, const nrd_batch *b, int32_t layer)
{
    const nrd_model_spec *m = r->spec;
    const nrd_layer *y = &r->w.layers[layer];
    const nrd_product *next = &y->picture.dense;
    const nrd_norm_args heads = {
        .kind = NRD_NORM_RMS,
        .eps = m->norm_eps,
        .n_tokens = b->view.n_tokens * m->n_heads,
        .hidden = m->head_dim,
        .residual = r->qkv,
        .weight = y->picture.q_norm,
        .out = r->att,
        .out_dtype = r->act,
        .act_dtype = r->act,
    };
    const nrd_attention_args a = {
        .batch = &b->cross,
        .q = r->att,
        .q_stride = (int64_t)m->n_heads * m->head_dim,
        .out = r->qkv,
        .act_dtype = r->act,
        .out_dtype = next->in_dtype,
        .out_row_scale = next->in_row_scale ? r->row_scale : NULL,
        .n_heads = m->n_heads,
        .scale = m->attn_scale,
        .kv = r->kv.layers[y->kv_layer],
        .deterministic = r->cfg.deterministic,
    };

    NRD_TRY(r->dev->ops->norm(r->stream, &heads));
    NRD_TRY(nrd_run_mark(r, NRD_PROFILE_ROPE_KV, b->view.n_tokens, 2.0 * m->n_heads * m->head_dim * (double)r->act_bytes, 0));
    return r->dev->ops->attention(r->stream, &a);
}

nrd_error *nrd_run_picture_layer(nrd_runner *r, const nrd_batch *b, int32_t layer)
{
    const nrd_picture_layer *y = &r->w.layers[layer].picture;
    const int32_t n = b->view.n_tokens;
    nrd_act_args act = nrd_run_act_args(r, n, r->spec->inter, &y->down, r->row_scale);

    NRD_TRY(nrd_run_norm(r, n, layer > 0, NULL, y->attn_norm, NULL, &y->q, NULL, 0));
    NRD_TRY(nrd_run_product(r, &y->q, r->normed, n, r->qkv, r->act, 0));
    NRD_TRY(nrd_run_mark_product(r, NRD_PROFILE_QKV, &y->q, n, r->act));
    NRD_TRY(attend(r, b, layer));
    NRD_TRY(nrd_run_product(r, &y->dense, r->qkv, n, r->up, r->act, 0));
    NRD_TRY(nrd_run_mark_product(r, NRD_PROFILE_DENSE, &y->dense, n, r->act));
    NRD_TRY(scale(r, b, r->pictures->gates[2 * layer]));
    NRD_TRY(nrd_run_norm(r, n, true, NULL, y->mlp_norm, NULL, &y->up, NULL, 0));
    NRD_TRY(nrd_run_product(r, &y->up, r->normed, n, r->up, r->act, 0));
    NRD_TRY(nrd_run_mark_product(r, NRD_PROFILE_UP, &y->up, n, r->act));
    NRD_TRY(nrd_run_act(r, &act, &y->down));
    NRD_TRY(nrd_run_product(r, &y->down, r->mid, n, r->up, r->act, 0));
    NRD_TRY(nrd_run_mark_product(r, NRD_PROFILE_DOWN, &y->down, n, r->act));
    return scale(r, b, r->pictures->gates[2 * layer + 1]);
}
