/* SPDX-License-Identifier: Apache-2.0
 * Encoder-decoder models: the encoder's pass before a sequence's first decoder step, and what the decoder's layers
 * read of it (Vaswani et al., 2017).
 *
 * The encoder is a runner of its own engine; its layers' keys and values live for one pass, so all layers share one
 * cache. Of its normed states each decoder layer makes keys and values once for a sequence. They lie in the decoder's
 * own cache, in the first blocks of the sequence (nrd_seq_request.n_cross): so they are counted, shared by beams and
 * freed as the rest of it is, and a sequence that was paused gets them anew.
 *
 * An encoder that hears reads features instead of tokens (convolve.c); what follows of it is the same.
 *
 * Rows of a sequence's prompt table are what the encoder reads, too: pictures stand in its input (BLIP-2).
 *
 * Inputs of several sequences go through in one ragged batch, as many as its memory takes. */
#include "base/mem.h"
#include "engine/run/extra_product.h"
#include "engine/run/network.h"
#include "engine/run/operations.h"
#include "engine/run/steps.h"

#include <string.h>

enum { MAX_INPUTS = 64 };

struct nrd_run_encoder {
    nrd_runner *runner;
    uint8_t *host, *mem; /* the arrays of a pass, twice; equal where the host is the device */
    int32_t max_tokens, stride, cross_stride;
    const nrd_seq *inputs[MAX_INPUTS]; /* of the pass that is packed */
    bool has_prompts; /* some of its tokens are rows of prompt tables */
};

/* Places in the arrays of a pass. */
typedef struct places {
    size_t prompts, ids, positions, token_seq, q_start, ctx, table, cross_table, cross_positions, end;
} places;

static places places_of(const nrd_run_encoder *x)
{
    const size_t tokens = (size_t)x->max_tokens * sizeof(int32_t), inputs = MAX_INPUTS * sizeof(int32_t);
    const size_t ids = (size_t)x->max_tokens * sizeof(void *);
    places p = {.prompts = 0, .ids = ids, .positions = ids + tokens, .token_seq = ids + 2 * tokens, .q_start = ids + 3 * tokens};
    p.ctx = p.q_start + inputs + sizeof(int32_t);
    p.table = p.ctx + inputs;
    p.cross_table = p.table + inputs * (size_t)x->stride;
    p.cross_positions = p.cross_table + inputs * (size_t)x->cross_stride;
    p.end = p.cross_positions + tokens;
    return p;
}

static int32_t *at(uint8_t *base, size_t offset)
{
    return (int32_t *)(void *)(base + offset);
}

static nrd_error *check_pair(const nrd_runner *r)
{
    const nrd_model_spec *m = r->spec, *e = r->cfg.encoder ? nrd_engine_spec(r->cfg.encoder) : NULL;

    if (!e) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "this engine is a decoder (%s) that reads the states of an encoder, and "
                          "no encoder's engine is given", m->architecture);
    }
    if (!e->for_decoder || e->hidden != m->hidden || e->vocab != m->vocab) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "the engine given as the encoder (%s, hidden_size %d, vocab_size %d) is not "
                          "that of this decoder (hidden_size %d, vocab_size %d)", e->architecture, e->hidden, e->vocab,
                          m->hidden, m->vocab);
    }
    if (r->cfg.max_encoder_input < 1 || r->cfg.max_encoder_input > r->cfg.max_tokens) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "an encoder's input of %d tokens does not go into a step of %d "
                          "(max_num_tokens)", r->cfg.max_encoder_input, r->cfg.max_tokens);
    }
    return NULL;
}

static nrd_error *alloc_arrays(nrd_runner *r, nrd_run_encoder *x)
{
    const size_t bytes = places_of(x).end;
    void *p = NULL;

    NRD_TRY(r->dev->ops->alloc(r->dev, &p, NRD_MEM_HOST, bytes, "batch"));
    x->host = x->mem = p;
    if (!r->shared) {
        NRD_TRY(nrd_run_alloc(r, &p, bytes, 1, "batch"));
        x->mem = p;
    }
    return NULL;
}

nrd_error *nrd_run_encoder_init(nrd_runner *r)
{
    const int32_t bt = r->cfg.block_tokens;
    nrd_error *err = NULL;
    nrd_runner_config rc = {
        .kv_dtype = NRD_DTYPE_NONE,
        .compute_f32 = r->cfg.compute_f32,
        .deterministic = r->cfg.deterministic,
        .max_tokens = r->cfg.max_encoder_input,
        .max_entries = 1,
        .max_top = 1,
        .max_context = r->cfg.max_encoder_input,
        .block_tokens = bt,
        .no_graphs = true,
        .no_overlap = true,
    };

    NRD_TRY(check_pair(r));
    NRD_NEW_GOTO(r->encoder, 1, err, fail);
    nrd_run_encoder *x = r->encoder;
    x->max_tokens = rc.max_tokens;
    x->stride = x->cross_stride = (rc.max_tokens + bt - 1) / bt;
    NRD_TRY_GOTO(nrd_error_wrap(nrd_run_open(&x->runner, r->dev, r->cfg.encoder, &rc), "encoder"), err, fail);
    if (nrd_engine_spec(r->cfg.encoder)->n_mels > 0) {
        NRD_TRY_GOTO(nrd_error_wrap(nrd_run_convolve_init(x->runner), "encoder"), err, fail);
    }
    NRD_TRY_GOTO(nrd_run_alloc_shared_kv(x->runner, x->stride + MAX_INPUTS), err, fail);
    err = alloc_arrays(r, x);
fail:
    return err;
}

void nrd_run_encoder_fini(nrd_runner *r)
{
    nrd_run_encoder *x = r->encoder;

    if (!x) {
        return;
    }
    if (x->mem != x->host) {
        nrd_run_free(r, x->mem);
    }
    nrd_run_free_host(r, x->host);
    nrd_run_close(x->runner);
    free(x);
    r->encoder = NULL;
}

/* Where the embedding of a token is that is a row of its sequence's prompt table. */
static const void *row_of(const nrd_runner *r, const nrd_seq_run *run, int32_t token)
{
    const int32_t row = token - r->spec->vocab;
    return run->prompt_table && row >= 0 && row < run->n_prompt_rows
               ? run->prompt_table + (size_t)row * (size_t)r->spec->hidden * r->act_bytes
               : NULL;
}

/* Takes up the input of a sequence as number i of a pass. */
static void pack(const nrd_runner *r, nrd_run_encoder *x, const nrd_plan_entry *e, int32_t i, int32_t first, int32_t *n_blocks)
{
    const places p = places_of(x);
    const nrd_seq_request *q = &e->seq->req;
    const int32_t bt = r->cfg.block_tokens, n_cross = q->n_cross / bt;
    int32_t *table = at(x->host, p.table) + (size_t)i * (size_t)x->stride;
    int32_t *cross = at(x->host, p.cross_table) + (size_t)i * (size_t)x->cross_stride;

    const void **prompts = (const void **)(void *)(x->host + p.prompts);

    x->inputs[i] = e->seq;
    x->has_prompts = (i > 0 && x->has_prompts) || e->seq->run.prompt_table;
    memcpy(at(x->host, p.ids) + first, e->seq->dec.tokens, (size_t)q->n_encoder * sizeof(int32_t));
    for (int32_t k = 0; k < q->n_encoder; k++) {
        prompts[first + k] = row_of(r, &e->seq->run, e->seq->dec.tokens[k]);
        at(x->host, p.positions)[first + k] = k;
        at(x->host, p.cross_positions)[first + k] = q->cross_order ? q->cross_order[k] : k;
        at(x->host, p.token_seq)[first + k] = i;
    }
    at(x->host, p.q_start)[i] = first;
    at(x->host, p.q_start)[i + 1] = first + q->n_encoder;
    at(x->host, p.ctx)[i] = q->n_encoder;
    for (int32_t k = 0; k < x->stride; k++) {
        table[k] = k < n_cross ? (*n_blocks)++ : -1;
    }
    for (int32_t k = 0; k < x->cross_stride; k++) {
        cross[k] = k < n_cross ? e->seq->sched.tables[e->beam].blocks[k] : -1;
    }
}

/* The states' keys and values of every layer, into the sequences' first blocks. */
static nrd_error *fill_cache(nrd_runner *r, const nrd_batch_view *v)
{
    const nrd_model_spec *m = r->spec;
    nrd_runner *e = r->encoder->runner;
    const nrd_product *first = &r->w.layers[0].cross_kv;
    nrd_norm_args a = {
        .kind = e->spec->norm,
        .eps = e->spec->norm_eps,
        .n_tokens = v->n_tokens,
        .hidden = m->hidden,
        .delta = e->delta,
        .residual = e->x,
        .weight = e->w.final_norm,
        .bias = e->w.final_norm_bias,
        .out = r->normed,
        .out_dtype = first->in_dtype,
        .out_row_scale = first->in_row_scale ? r->row_scale : NULL,
        .act_dtype = e->act,
    };

    const bool is_normed = e->spec->n_layers > 0;
    const nrd_extra_input in = {.rows = r->normed, .row_scale = r->row_scale};

    NRD_TRY(is_normed ? r->dev->ops->norm(r->stream, &a) : NULL);
    for (int32_t i = 0; i < m->n_layers; i++) {
        nrd_rope_kv_args k = {
            .batch = v,
            .qkv = r->qkv,
            .act_dtype = r->act,
            .rope = NRD_ROPE_NONE,
            .rope_scale = 1,
            .kv = r->kv.layers[i],
        };
        const nrd_product *kv = &r->w.layers[i].cross_kv;
        NRD_TRY(is_normed ? nrd_run_product(r, kv, r->normed, v->n_tokens, r->qkv, r->act, 0)
                          : nrd_extra_multiply(r, kv, &in, e->x, v->n_tokens, r->qkv, r->act, 0));
        NRD_TRY(r->dev->ops->rope_kv(r->stream, &k));
    }
    return r->dev->ops->stream_sync(r->stream); /* the arrays are filled again */
}

/* What the first layer reads, of inputs that are heard. */
static nrd_error *hear(nrd_run_encoder *x, int32_t n)
{
    for (int32_t i = 0, first = 0; i < n; i++) {
        const nrd_seq_request *q = &x->inputs[i]->req;
        NRD_TRY(nrd_run_convolve_frames(x->runner, q->features, q->n_frames, first));
        first += q->n_encoder;
    }
    return NULL;
}

/* n inputs that are packed, of so many tokens together. */
static nrd_error *run_pass(nrd_runner *r, int32_t n, int32_t n_tokens)
{
    nrd_run_encoder *x = r->encoder;
    nrd_runner *e = x->runner;
    const places p = places_of(x);
    nrd_batch b = {.dev = r->dev, .ids = at(x->mem, p.ids)};

    if (x->has_prompts && e->act != r->act) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "rows of a prompt table before an encoder whose type is another than its decoder's");
    }
    b.prompts = x->has_prompts ? (const void *const *)(const void *)(x->mem + p.prompts) : NULL;
    b.view = (nrd_batch_view){
        .n_tokens = n_tokens,
        .n_seqs = n,
        .positions = at(x->mem, p.positions),
        .token_seq = at(x->mem, p.token_seq),
        .q_start = at(x->mem, p.q_start),
        .ctx_len = at(x->mem, p.ctx),
        .block_table = at(x->mem, p.table),
        .block_table_stride = x->stride,
    };
    for (int32_t i = 0; i < n; i++) {
        const int32_t ctx = at(x->host, p.ctx)[i];
        b.view.max_ctx_len = ctx > b.view.max_ctx_len ? ctx : b.view.max_ctx_len;
    }
    b.view.max_q_len = b.view.max_ctx_len;
    if (x->mem != x->host) {
        NRD_TRY(r->dev->ops->copy(e->stream, x->mem, x->host, p.end));
    }
    if (e->convolve) {
        NRD_TRY(hear(x, n));
    }
    NRD_TRY(nrd_run_layers(e, &b));
    NRD_TRY(r->dev->ops->stream_sync(e->stream));
    b.view.positions = at(x->mem, p.cross_positions);
    b.view.block_table = at(x->mem, p.cross_table);
    b.view.block_table_stride = x->cross_stride;
    return fill_cache(r, &b.view);
}

nrd_error *nrd_run_encode(nrd_runner *r, const nrd_plan *p)
{
    nrd_run_encoder *x = r->encoder;
    int32_t n = 0, n_tokens = 0, n_blocks = 0;

    for (int32_t i = 0; i < p->n_entries; i++) {
        const nrd_plan_entry *e = &p->entries[i];
        const int32_t more = e->seq->req.n_encoder;
        if (!nrd_entry_has_encoder(e)) {
            continue;
        }
        NRD_ASSERT(e->start == 0 && more <= x->max_tokens, "an encoder's input is computed at once");
        if (n == MAX_INPUTS || n_tokens + more > x->max_tokens) {
            NRD_TRY(run_pass(r, n, n_tokens));
            n = n_tokens = n_blocks = 0;
        }
        pack(r, x, e, n++, n_tokens, &n_blocks);
        n_tokens += more;
    }
    return n > 0 ? run_pass(r, n, n_tokens) : NULL;
}
