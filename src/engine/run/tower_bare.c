/* SPDX-License-Identifier: Apache-2.0
 * No tower: patches of a picture that keeps its shape go through one product, which makes rows of them for a decoder (Fuyu), or for an
 * encoder, with learned states of their rows and columns (Pix2Struct). */
#include "base/mem.h"
#include "engine/run/tower_internal.h"
#include "engine/run/operations.h"

#include <stdlib.h>

nrd_error *nrd_tower_bare_load(nrd_tower *t)
{
    return nrd_tower_load_product(t, t->s.seated ? "embeddings.patch_projection" : "vision_embed_tokens", &t->patch);
}

nrd_error *nrd_tower_bare_init(nrd_tower *t)
{
    nrd_runner *r = t->r;
    const nrd_product *p = &t->patch.product;
    const size_t n = (size_t)t->most, patch = (size_t)p->cols;
    nrd_error *err = NULL;
    void *scale = NULL;

    NRD_TRY(nrd_run_alloc(r, &t->pixels, n * patch, r->act_bytes, NRD_TOWER_POOL));
    NRD_TRY(nrd_run_alloc(r, &t->delta, n * (size_t)r->spec->hidden, r->act_bytes, NRD_TOWER_POOL));
    NRD_TRY(nrd_run_alloc(r, &t->in.rows, n, p->in_row_bytes, NRD_TOWER_POOL));
    NRD_TRY(nrd_run_alloc(r, &scale, n, sizeof *t->scale, NRD_TOWER_POOL));
    t->scale = t->in.row_scale = scale;
    NRD_NEW_GOTO(t->staged, n * patch * r->act_bytes, err, fail);
    if (t->s.seated) {
        NRD_TRY(nrd_run_alloc(r, &t->x, n * (size_t)t->s.hidden, r->act_bytes, NRD_TOWER_POOL));
        NRD_NEW_GOTO(t->spread, n * (size_t)t->s.hidden * r->act_bytes, err, fail);
    }
    return nrd_run_advised(r->dev->ops->reserve(r->stream, t->most, nrd_run_max_rows(r), (int32_t)p->cols, t->most, 1), "workspace");
fail:
    return err;
}

/* Pixels by patches, as the product's weights lie: row, column, channel. */
static void cut(const nrd_tower *t, const float *pixels, nrd_vision_grid grid, float *row)
{
    const size_t p = (size_t)t->s.patch_size, wide = (size_t)grid.width, width = wide * p, plane = (size_t)grid.height * p * width;

    for (size_t i = 0; i < wide * (size_t)grid.height; i++) {
        const float *corner = pixels + i / wide * p * width + i % wide * p;
        for (size_t y = 0; y < p; y++) {
            for (size_t x = 0; x < 3 * p; x++) {
                row[x] = corner[x % 3 * plane + y * width + x / 3];
            }
            nrd_tower_row(t, row, 3 * p, t->staged + (i * p + y) * 3 * p * t->r->act_bytes);
        }
    }
}

/* x = states of the patches' rows and columns, then with what the product made of them beside. */
static nrd_error *seat(nrd_tower *t, nrd_vision_grid grid)
{
    const nrd_weight *rows = nrd_vision_weight(t->from, "embeddings.row_embedder.weight");
    const nrd_weight *columns = nrd_vision_weight(t->from, "embeddings.column_embedder.weight");
    const size_t hidden = (size_t)t->s.hidden, bytes = hidden * t->r->act_bytes;
    nrd_error *err = NULL;
    float *sum = NULL;

    NRD_NEW_GOTO(sum, 2 * hidden, err, done);
    for (int32_t i = 0; i < t->n; i++) {
        nrd_weight_row(rows, 1 + i / grid.width, sum);
        nrd_weight_row(columns, 1 + i % grid.width, sum + hidden);
        for (size_t c = 0; c < hidden; c++) {
            sum[c] += sum[hidden + c];
        }
        nrd_tower_row(t, sum, hidden, t->spread + (size_t)i * bytes);
    }
    NRD_TRY_GOTO(nrd_run_upload(t->r, t->x, t->spread, (size_t)t->n * bytes), err, done);
    err = nrd_tower_norm(t, true, NULL, NULL, false, NULL);
done:
    free(sum);
    return err;
}

nrd_error *nrd_tower_bare_run(nrd_tower *t, const float *pixels, nrd_vision_grid grid, void *rows)
{
    nrd_runner *r = t->r;
    nrd_error *err = NULL;
    float *row = NULL;

    t->n = grid.height * grid.width;
    NRD_ASSERT(t->n > 0 && t->n <= t->most, "pictures are fitted into the box");
    NRD_NEW_GOTO(row, 3 * (size_t)t->s.patch_size, err, done);
    cut(t, pixels, grid, row);
    NRD_TRY_GOTO(nrd_run_upload(r, t->pixels, t->staged, (size_t)t->n * (size_t)t->patch.product.cols * r->act_bytes), err, done);
    NRD_TRY_GOTO(nrd_extra_multiply(r, &t->patch.product, &t->in, t->pixels, t->n, t->delta, r->act, 0), err, done);
    NRD_TRY_GOTO(t->s.seated ? seat(t, grid) : NULL, err, done);
    NRD_TRY_GOTO(r->dev->ops->copy(r->stream, rows, t->s.seated ? t->x : t->delta, (size_t)t->n * (size_t)r->spec->hidden * r->act_bytes), err, done);
    err = r->dev->ops->stream_sync(r->stream);
done:
    free(row);
    return err;
}
