/* SPDX-License-Identifier: Apache-2.0
 * Products whose weights are others for a picture's embeddings (CogVLM; Wang et al., 2023). Those of a picture stand side by side in a step: it
 * is cut into stretches of tokens that take the same weights, with a product for each. A step without pictures is one product, as anywhere. */
#include "base/mem.h"
#include "engine/run/blocks.h"
#include "engine/run/operations.h"

nrd_error *nrd_run_init_stretches(nrd_runner *r)
{
    nrd_error *err = NULL;

    if (r->spec->picture_rows > 0) {
        NRD_NEW_GOTO(r->stretches, r->cfg.max_tokens, err, fail);
    }
fail:
    return err;
}

void nrd_run_find_pictures(nrd_runner *r, const nrd_batch *b)
{
    const int32_t *ids = nrd_batch_host_ids(b);
    bool any = false;

    r->n_stretches = 0;
    for (int32_t i = 0; r->stretches && b->from_tables && i < b->view.n_tokens; i++) {
        const bool of_picture = nrd_batch_is_of_picture(b, ids[i]);
        nrd_stretch *last = r->n_stretches > 0 ? &r->stretches[r->n_stretches - 1] : NULL;
        if (!last || last->of_picture != of_picture) {
            last = &r->stretches[r->n_stretches++];
            *last = (nrd_stretch){.first = i, .of_picture = of_picture};
        }
        last->n++;
        any = any || of_picture;
    }
    r->n_stretches = any ? r->n_stretches : 0;
}

nrd_error *nrd_run_split_product(nrd_runner *r, const nrd_product *p, const nrd_product *of_picture, const void *x, int32_t n_tokens, void *y)
{
    if (of_picture->n == 0 || r->n_stretches == 0) {
        return nrd_run_product(r, p, x, n_tokens, y, r->act, 0);
    }
    for (int32_t i = 0; i < r->n_stretches; i++) {
        const nrd_stretch *s = &r->stretches[i];
        const size_t first = (size_t)s->first;
        nrd_linear_args a = nrd_run_product_args(r, s->of_picture ? of_picture : p, (const uint8_t *)x + first * p->in_row_bytes, s->n,
                                                 (uint8_t *)y + first * (size_t)p->rows * r->act_bytes, r->act, 0);
        a.x_row_scale = a.x_row_scale ? a.x_row_scale + first : NULL;
        NRD_TRY(r->dev->ops->linear(r->stream, &a));
    }
    return NULL;
}
