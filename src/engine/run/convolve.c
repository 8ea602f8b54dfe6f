/* SPDX-License-Identifier: Apache-2.0
 * The two convolutions of an encoder that hears (Radford et al., 2022): over three frames each, the second with steps of two,
 * both with GELU behind, and learned positions.
 *
 * A convolution is a product whose row t is three neighbouring rows in one. They lie one behind the other with a row of zeros
 * on both sides, so the row is a piece of memory that begins at the first of them: embed() gathers such pieces as it gathers
 * rows of prompt tables. Where the pieces begin never changes, so the lists are uploaded once. */
#include "base/dtype.h"
#include "base/mem.h"
#include "engine/run/network.h"
#include "engine/run/operations.h"

#include <string.h>

#define POOL "activations"
enum { KERNEL = 3 };

/* Pieces of `table.cols` numbers, and where each begins. */
typedef struct pieces {
    const void **starts;
    nrd_weight table; /* its one row is never read: ids begin behind it */
} pieces;

struct nrd_run_convolve {
    int32_t max_frames, max_states;
    uint8_t *frames;  /* [1 + max_frames + 1, n_mels] */
    uint8_t *between; /* [1 + max_frames + 1, hidden], behind the first convolution */
    void *rows;       /* [max_frames, KERNEL * n_mels] or [max_states, KERNEL * hidden]: what a product reads */
    void *input;      /* the same in the product's own type */
    void *product;    /* [max_frames, hidden] */
    uint8_t *states;  /* [max_states, hidden], behind the second */
    uint8_t *staged;  /* as frames, host; frames itself where the host is the device */
    pieces in1, in2, out;
    int32_t *ones, *positions; /* ids that are no row of the table; 0, 1, … */
};

static size_t row_bytes(const nrd_runner *r, int32_t n)
{
    return (size_t)n * r->act_bytes;
}

/* n pieces of `width` numbers from `base` on, `step` bytes apart. */
static nrd_error *make_pieces(nrd_runner *r, const uint8_t *base, size_t step, int32_t n, int32_t width, pieces *out)
{
    nrd_error *err = NULL;
    const void **host = NULL;
    void *p = NULL;

    NRD_NEW_GOTO(host, n, err, done);
    for (int32_t i = 0; i < n; i++) {
        host[i] = base + (size_t)i * step;
    }
    NRD_TRY_GOTO(nrd_run_alloc(r, &p, (size_t)n, sizeof *host, "batch"), err, done);
    out->starts = p;
    out->table = (nrd_weight){.dtype = r->act, .rows = 1, .cols = width, .data = base, .scale = 1,
                              .data_bytes = row_bytes(r, width)};
    err = nrd_run_upload(r, p, host, (size_t)n * sizeof *host);
done:
    free(host);
    return err;
}

static nrd_error *make_numbers(nrd_runner *r, int32_t first, int32_t step, int32_t n, int32_t **out)
{
    nrd_error *err = NULL;
    int32_t *host = NULL;
    void *p = NULL;

    NRD_NEW_GOTO(host, n, err, done);
    for (int32_t i = 0; i < n; i++) {
        host[i] = first + i * step;
    }
    NRD_TRY_GOTO(nrd_run_alloc(r, &p, (size_t)n, sizeof *host, "batch"), err, done);
    *out = p;
    err = nrd_run_upload(r, p, host, (size_t)n * sizeof *host);
done:
    free(host);
    return err;
}

static nrd_error *alloc_rows(nrd_runner *r, nrd_run_convolve *c)
{
    const nrd_model_spec *m = r->spec;
    const size_t frames = (size_t)c->max_frames, states = (size_t)c->max_states;
    const size_t wide1 = frames * row_bytes(r, KERNEL * m->n_mels), wide2 = states * row_bytes(r, KERNEL * m->hidden);
    const size_t in1 = frames * r->w.conv1.in_row_bytes, in2 = states * r->w.conv2.in_row_bytes;
    void *p = NULL;

    NRD_TRY(nrd_run_alloc(r, &p, frames + 2, row_bytes(r, m->n_mels), POOL));
    c->frames = p;
    NRD_TRY(nrd_run_alloc(r, &p, frames + 2, row_bytes(r, m->hidden), POOL));
    c->between = p;
    NRD_TRY(nrd_run_alloc(r, &c->rows, wide1 > wide2 ? wide1 : wide2, 1, POOL));
    NRD_TRY(nrd_run_alloc(r, &c->input, in1 > in2 ? in1 : in2, 1, POOL));
    NRD_TRY(nrd_run_alloc(r, &c->product, frames, row_bytes(r, m->hidden), POOL));
    NRD_TRY(nrd_run_alloc(r, &p, states, row_bytes(r, m->hidden), POOL));
    c->states = p;
    c->staged = c->frames;
    if (!r->shared) {
        NRD_TRY(r->dev->ops->alloc(r->dev, &p, NRD_MEM_HOST, (frames + 2) * row_bytes(r, m->n_mels), "batch"));
        c->staged = p;
    }
    NRD_TRY(make_pieces(r, c->frames, row_bytes(r, m->n_mels), c->max_frames, KERNEL * m->n_mels, &c->in1));
    NRD_TRY(make_pieces(r, c->between, 2 * row_bytes(r, m->hidden), c->max_states, KERNEL * m->hidden, &c->in2));
    NRD_TRY(make_pieces(r, c->states, row_bytes(r, m->hidden), c->max_states, m->hidden, &c->out));
    NRD_TRY(make_numbers(r, 1, 0, c->max_frames, &c->ones));
    NRD_TRY(make_numbers(r, 0, 1, c->max_states, &c->positions));
    NRD_TRY(r->dev->ops->fill(r->stream, c->between, 0, row_bytes(r, m->hidden)));
    return r->dev->ops->stream_sync(r->stream);
}

nrd_error *nrd_run_convolve_init(nrd_runner *r)
{
    const nrd_model_spec *m = r->spec;
    const int32_t widest = KERNEL * (m->hidden > m->n_mels ? m->hidden : m->n_mels);
    nrd_error *err = NULL;

    if (r->w.conv1.in_row_scale || r->w.conv2.in_row_scale) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "convolutions with weights of 8 bits");
    }
    NRD_NEW_GOTO(r->convolve, 1, err, fail);
    r->convolve->max_states = r->cfg.max_tokens;
    r->convolve->max_frames = 2 * r->cfg.max_tokens;
    NRD_TRY(alloc_rows(r, r->convolve));
    return nrd_run_advised(r->dev->ops->reserve(r->stream, r->convolve->max_frames, nrd_run_max_rows(r), widest,
                                                r->cfg.max_context, 1),
                           "workspace");
fail:
    return err;
}

void nrd_run_convolve_fini(nrd_runner *r)
{
    nrd_run_convolve *c = r->convolve;

    if (!c) {
        return;
    }
    void *const mem[] = {c->frames, c->between,    c->rows,       c->input,      c->product,  c->states,
                         c->ones,   c->positions, c->in1.starts, c->in2.starts, c->out.starts};
    if (!r->shared) {
        nrd_run_free_host(r, c->staged);
    }
    for (size_t i = 0; i < sizeof mem / sizeof mem[0]; i++) {
        nrd_run_free(r, mem[i]);
    }
    free(c);
    r->convolve = NULL;
}

/* The frames between two rows of zeros, in the device's memory. */
static nrd_error *upload(nrd_runner *r, const float *features, int32_t n)
{
    nrd_run_convolve *c = r->convolve;
    const size_t row = row_bytes(r, r->spec->n_mels), count = (size_t)n * (size_t)r->spec->n_mels;

    memset(c->staged, 0, row);
    memset(c->staged + (size_t)(n + 1) * row, 0, row);
    if (r->act == NRD_DTYPE_F32) {
        memcpy(c->staged + row, features, count * sizeof *features);
    } else if (!nrd_quantize_row(r->act, features, c->staged + row, (int64_t)count)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "features as %s", nrd_dtype_name(r->act));
    }
    return c->staged == c->frames ? NULL : r->dev->ops->copy(r->stream, c->frames, c->staged, (size_t)(n + 2) * row);
}

/* out = the first n pieces; with `positions` their learned ones are added. */
static nrd_error *gather(nrd_runner *r, const pieces *p, int32_t n, bool positions, void *out)
{
    const nrd_run_convolve *c = r->convolve;
    const nrd_embed_args a = {
        .n_tokens = n,
        .hidden = (int32_t)p->table.cols,
        .ids = c->ones,
        .table = &p->table,
        .scale = 1,
        .pos_table = positions ? r->w.pos_embed : NULL,
        .positions = positions ? c->positions : NULL,
        .prompt_table = p->starts,
        .out = out,
        .out_dtype = r->act,
    };
    return r->dev->ops->embed(r->stream, &a);
}

/* out[n, hidden] = GELU of the product over n pieces. */
static nrd_error *convolution(nrd_runner *r, const nrd_product *p, const pieces *from, int32_t n, void *out)
{
    const nrd_run_convolve *c = r->convolve;
    const void *in = NULL;
    const nrd_act_args act = {
        .kind = NRD_ACT_GELU_ERF,
        .n_tokens = n,
        .inter = r->spec->hidden,
        .x = c->product,
        .act_dtype = r->act,
        .out = out,
        .out_dtype = r->act,
    };

    NRD_TRY(gather(r, from, n, false, c->rows));
    NRD_TRY(nrd_run_plain_input(r, n, p, c->rows, c->input, &in));
    NRD_TRY(nrd_run_product(r, p, in, n, c->product, r->act, 0));
    return r->dev->ops->act(r->stream, &act);
}

nrd_error *nrd_run_convolve_frames(nrd_runner *r, const float *features, int32_t n_frames, int32_t first)
{
    const nrd_run_convolve *c = r->convolve;
    const size_t hidden = row_bytes(r, r->spec->hidden);
    const int32_t n = (n_frames + 1) / 2;

    NRD_ASSERT(n_frames > 0 && n_frames <= c->max_frames, "requests are checked");
    NRD_TRY(upload(r, features, n_frames));
    NRD_TRY(r->dev->ops->fill(r->stream, c->between + (size_t)(n_frames + 1) * hidden, 0, hidden));
    NRD_TRY(convolution(r, &r->w.conv1, &c->in1, n_frames, c->between + hidden));
    NRD_TRY(convolution(r, &r->w.conv2, &c->in2, n, c->states));
    NRD_TRY(gather(r, &c->out, n, true, (uint8_t *)r->x + (size_t)first * hidden));
    return r->dev->ops->stream_sync(r->stream); /* the next input takes the same memory */
}
