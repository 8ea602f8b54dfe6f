/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/run/whole_head.h"

#define WHAT "LM head of another rank"

static nrd_error *add_rank(nrd_whole_head *h, nrd_runner *r, int32_t rank)
{
    nrd_engine **e = &h->engines[rank];

    NRD_TRY(nrd_engine_open(e, nrd_engine_dir(r->engine), rank, false));
    const nrd_weight *w = nrd_engine_weight(*e, "lm_head.weight");
    if (!w) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "the engine of rank %d has no lm_head.weight", rank);
    }
    return nrd_extra_product_add(r, w, nrd_engine_weight(*e, "lm_head.bias"), WHAT, &h->others);
}

nrd_error *nrd_whole_head_open(nrd_whole_head *h, nrd_runner *r, const nrd_product **out)
{
    const int32_t n = r->model->tp_size;

    *out = &r->w.lm_head;
    if (n == 1) {
        return NULL;
    }
    if (n > NRD_LINEAR_MAX_PARTS) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "these heads guess by the model's LM head, which can be put together of %d ranks: tp_size is %d; "
                          "use heads with an LM head of their own", (int)NRD_LINEAR_MAX_PARTS, n);
    }
    h->others.product = r->w.lm_head;
    for (int32_t rank = 1; rank < n; rank++) {
        NRD_TRY(add_rank(h, r, rank));
    }
    *out = &h->others.product;
    return NULL;
}

void nrd_whole_head_close(nrd_whole_head *h, nrd_runner *r)
{
    nrd_extra_product_unload(r, &h->others);
    for (int32_t i = 0; i < NRD_LINEAR_MAX_PARTS; i++) {
        nrd_engine_close(h->engines[i]);
    }
    *h = (nrd_whole_head){0};
}

uint64_t nrd_whole_head_bytes(const nrd_whole_head *h)
{
    return nrd_extra_product_bytes(&h->others);
}
