/* SPDX-License-Identifier: Apache-2.0
 * Refuses a device that lacks a mode which the network asks for, before weights are loaded. */
#include "engine/run/network.h"
#include "engine/run/operations.h"
#include "model/features.h"

nrd_error *nrd_run_check_features(const nrd_runner *r)
{
    const nrd_device_ops *ops = r->dev->ops;
    const nrd_feature_row *f;
    nrd_device_info info;

    for (int i = 0; (f = nrd_feature_at(i)) != NULL; i++) {
        if (f->asks(r->spec) && !(ops->has_feature && ops->has_feature(r->dev, f->feature))) {
            ops->get_info(r->dev, &info);
            return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s models need %s, which '%s' has not; use the device \"cpu\"",
                              r->spec->model_type, f->name, info.name);
        }
    }
    return NULL;
}

nrd_error *nrd_run_check_whole_embedding(const nrd_runner *r)
{
    return r->model->parallel_embedding
               ? nrd_errorf(NRD_ERR_UNSUPPORTED, "guesses with the model's embedding need it whole in rank 0: build the engine without "
                            "--use_parallel_embedding")
               : NULL;
}
