/* SPDX-License-Identifier: Apache-2.0
 * Tells who calibrates what goes into the products of a layer. Steps of such a runner wait before each of them. */
#include "engine/run/runner_internal.h"

nrd_error *nrd_run_check_inputs(const nrd_runner *r)
{
    nrd_device_info info;

    if (!r->cfg.on_input) {
        return NULL;
    }
    r->dev->ops->get_info(r->dev, &info);
    if (!info.host_is_device || r->cfg.rank.size > 1) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "on_product_input needs the device \"cpu\" and one rank; this is '%s' with %d",
                          info.name, r->cfg.rank.size > 1 ? r->cfg.rank.size : 1);
    }
    return NULL;
}

nrd_error *nrd_run_tell_input(nrd_runner *r, int32_t layer, int32_t position, const nrd_product *p, const void *x,
                              int32_t n_tokens)
{
    if (!r->cfg.on_input) {
        return NULL;
    }
    if (p->in_dtype != NRD_DTYPE_F32) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "on_product_input: the weights of layer %d are quantized", layer);
    }
    NRD_TRY(r->dev->ops->stream_sync(r->stream));
    r->cfg.on_input(r->cfg.user, layer, position, n_tokens, p->cols, x);
    return NULL;
}
