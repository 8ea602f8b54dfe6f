/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/run/tower.h"

#include "base/mem.h"
#include "engine/run/tower_internal.h"
#include "engine/run/operations.h"
#include "engine/run/steps.h"

#include <stdlib.h>

/* ---- memory ---- */

/* Bytes that a token's inputs of products take at most, in the types that these want. */
static size_t widest_input(const nrd_tower *t)
{
    const size_t side = (size_t)(t->s.any_size ? t->s.merge : t->s.shuffle ? t->s.shuffle : 1), n = side * side; /* tokens that the last
                                                                                                      * products read together */
    size_t last = nrd_tower_more(t->project1.product.in_row_bytes, t->project2.product.in_row_bytes);
    last = nrd_tower_more(last, nrd_tower_more(t->merge.product.in_row_bytes, t->gate_up.product.in_row_bytes));
    for (int32_t i = 0; i < t->s.n_deep; i++) {
        const nrd_tower_merger *m = &t->deep[i];
        last = nrd_tower_more(last, nrd_tower_more(m->product1.product.in_row_bytes, m->product2.product.in_row_bytes));
    }
    size_t bytes = nrd_tower_more(t->patch.product.in_row_bytes, (last + n - 1) / n);

    for (int32_t i = 0; i < nrd_tower_n_layers(t); i++) {
        const nrd_tower_layer *y = &t->layers[i];
        bytes = nrd_tower_more(bytes, nrd_tower_more(y->qkv.product.in_row_bytes, y->dense.product.in_row_bytes));
        bytes = nrd_tower_more(bytes, nrd_tower_more(y->up.product.in_row_bytes, y->down.product.in_row_bytes));
    }
    return bytes;
}

static nrd_error *alloc_all(nrd_tower *t)
{
    nrd_runner *r = t->r;
    const size_t n = (size_t)t->most, hidden = (size_t)t->s.hidden, heads = (size_t)t->s.n_heads * (size_t)t->head_dim,
                 out = (size_t)r->spec->hidden, act = r->act_bytes, in = widest_input(t);
    const size_t mlp = nrd_tower_more((size_t)t->s.inter * (t->s.gated ? 2 : 1), 2 * (size_t)t->s.projector_inter);
    const size_t inter = nrd_tower_more(nrd_tower_more(mlp, heads), nrd_tower_more(hidden, out));
    const size_t patches = n - (size_t)t->n_class, patch = (size_t)t->patch.product.cols;
    const struct {
        void **to;
        size_t count, bytes;
    } rows[] = {
        {&t->pixels, patches * patch, act},
        {&t->x, n * hidden, act},
        {&t->delta, n * nrd_tower_more(hidden, out), act},
        {&t->normed, n, nrd_tower_more((t->s.post_normed ? nrd_tower_more(hidden, out) : hidden) * act, in)},
        {&t->qkv, n * heads * 3, act},
        {&t->att, n, nrd_tower_more(heads * act, in)},
        {&t->up, n * inter, act},
        {&t->mid, n, nrd_tower_more(inter * act, in)},
        {&t->in.rows, n, in},
    };
    nrd_error *err = NULL;
    void *p = NULL;

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        NRD_TRY(nrd_run_alloc(r, rows[i].to, rows[i].count, rows[i].bytes, NRD_TOWER_POOL));
    }
    NRD_TRY(nrd_run_alloc(r, &p, n, sizeof *t->scale, NRD_TOWER_POOL));
    t->scale = t->in.row_scale = p;
    NRD_NEW_GOTO(t->staged, patches * patch * act, err, fail);
    NRD_TRY(t->s.read_by_layers ? nrd_tower_mllama_init(t) : t->s.any_size ? nrd_tower_grid_init(t) : nrd_tower_fixed_init(t));
    const size_t merged = t->s.any_size || t->s.shuffle ? nrd_tower_more((size_t)t->project1.product.cols, (size_t)t->merge.product.cols) : 0;
    const size_t widest = nrd_tower_more(nrd_tower_more(heads * 3, inter), nrd_tower_more(patch, merged));
    const int32_t n_seqs = nrd_run_max_rows(r) > t->most_windows ? nrd_run_max_rows(r) : t->most_windows;
    return nrd_run_advised(r->dev->ops->reserve(r->stream, t->most, n_seqs, (int32_t)widest, t->most, 1), "workspace");
fail:
    return err;
}

/* ---- creation ---- */

/* Without layers of the kind that the others share. */
static bool is_special(const nrd_tower *t)
{
    return t->s.bare || t->s.swin.n_stages > 0;
}

static nrd_error *check(const nrd_tower *t)
{
    const nrd_device_ops *ops = t->r->dev->ops;
    const float scale = t->r->spec->embed_scale;

    if (!is_special(t) && (!ops->has_feature || !ops->has_feature(t->r->dev, NRD_FEATURE_ENCODER))) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "a vision tower needs the layers of an encoder, which the device has not; use --device "
                          "cpu");
    }
    if (t->s.any_size && !is_special(t) && !ops->has_feature(t->r->dev, NRD_FEATURE_ROPE_AXES)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "this vision tower needs positions on several axes, which the device has not; use "
                          "--device cpu");
    }
    if (!t->s.pool && !t->s.sees_prompt && !t->s.sandwiched && !t->s.latent && !t->s.alone && (scale < 0 || scale > 1 || (scale > 0 && scale < 1))) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "a vision tower before a decoder that scales its embeddings (%g) is not supported",
                          (double)scale);
    }
    return NULL;
}

nrd_error *nrd_tower_new(nrd_tower **out, nrd_runner *runner, const nrd_vision *from, int32_t max_rows)
{
    nrd_device_info info;
    nrd_error *err = NULL;
    nrd_tower *t = NULL;

    *out = NULL;
    NRD_NEW_GOTO(t, 1, err, fail);
    t->r = runner;
    t->from = from;
    t->s = *nrd_vision_get_spec(from);
    t->n_class = t->s.has_class ? 1 : 0;
    t->most = t->s.read_by_layers ? t->s.most_tiles * nrd_vision_n_padded(&t->s) : nrd_vision_n_states(&t->s);
    if (t->s.shuffle) { /* squares may lack patches, for which there must be room */
        t->most = t->n_class + nrd_vision_n_base_rows(&t->s) * t->s.shuffle * t->s.shuffle;
    }
    if (t->s.any_size && max_rows < t->most / (t->s.merge * t->s.merge)) {
        t->most = max_rows * t->s.merge * t->s.merge;
    }
    runner->dev->ops->get_info(runner->dev, &info);
    const int32_t step = info.host_is_device ? 16 : 64, dim = is_special(t) ? 0 : t->s.hidden / t->s.n_heads;
    t->head_dim = (dim + step - 1) / step * step;
    NRD_TRY_GOTO(check(t), err, fail);
    NRD_TRY_GOTO(t->s.n_deep ? nrd_run_take_deep_rows(runner, t->s.n_deep) : NULL, err, fail);
    NRD_TRY_GOTO(nrd_tower_load(t), err, fail);
    NRD_TRY_GOTO(t->s.bare ? nrd_tower_bare_init(t) : t->swin ? nrd_tower_swin_init(t) : alloc_all(t), err, fail);
    *out = t;
    return NULL;

fail:
    nrd_tower_free(t);
    return err;
}

void nrd_tower_free(nrd_tower *t)
{
    if (!t) {
        return;
    }
    nrd_tower_latent_free(t);
    nrd_tower_resampler_free(t);
    nrd_tower_queries_free(t);
    nrd_tower_swin_free(t);
    nrd_tower_unload(t);
    void *mem[] = {t->start, t->pixels, t->x, t->delta, t->normed, t->qkv, t->att, t->up, t->mid, t->in.rows, t->scale, t->arrays,
                   t->kv.base, t->inv_freq, t->pair_axis, t->taken};
    for (size_t i = 0; i < sizeof mem / sizeof mem[0]; i++) {
        nrd_run_free(t->r, mem[i]);
    }
    free(t->staged);
    free(t->host_arrays);
    free(t->order);
    free(t->rows);
    free(t->spread);
    free(t);
}

uint64_t nrd_tower_bytes(const nrd_tower *t)
{
    return t->bytes;
}

nrd_error *nrd_tower_run(nrd_tower *t, const float *pixels, nrd_vision_grid grid, void *rows)
{
    return t->s.read_by_layers ? nrd_tower_mllama_run(t, pixels, &grid.tiles, rows)
           : t->swin           ? nrd_tower_swin_run(t, pixels, rows)
           : t->s.bare         ? nrd_tower_bare_run(t, pixels, grid, rows)
           : t->s.any_size     ? nrd_tower_grid_run(t, pixels, grid, rows)
           : t->s.tiled        ? nrd_tower_tiles_run(t, pixels, grid, rows)
                               : nrd_tower_fixed_run(t, pixels, rows);
}
