/* SPDX-License-Identifier: Apache-2.0
 * Makes and ends what the protocols share (front.h). */
#include "frontends/common/front.h"

#include "base/mem.h"
#include "base/str.h"
#include "frontends/common/error.h"
#include "frontends/common/infer.h"
#include "frontends/common/switch_core.h"

#include <stdlib.h>

nrd_error *nrd_front_new(nrd_front **out, TRITONSERVER_Server *core, const nrd_options *o,
                         nrd_tracer *tracer)
{
    nrd_error *err = NULL;
    nrd_front *f = NULL;

    *out = NULL;
    NRD_NEW_GOTO(f, 1, err, fail);
    f->core = core;
    f->options = o;
    f->tracer = tracer;
    f->limit.max = (size_t)o->max_inflight_requests;
    if (o->http_use_ssl || o->http_use_ssl_mutual) {
        NRD_TRY_GOTO(nrd_tls_new(&f->tls, o->http_server_cert, o->http_server_key,
                                 o->http_use_ssl_mutual ? o->http_root_cert : NULL),
                     err, fail);
    }
    NRD_TRY_GOTO(nrd_keys_new(&f->keys, o), err, fail);
    NRD_TRY_GOTO(nrd_quotas_new(&f->quotas, f->keys), err, fail);
    NRD_TRY_GOTO(nrd_shm_new(&f->shm, o->allow_client_shm), err, fail);
    NRD_TRY_GOTO(nrd_models_new(&f->models, core), err, fail);
    NRD_TRY_GOTO(nrd_workers_new(&f->workers, (size_t)o->worker_threads), err, fail);
    NRD_TRY_GOTO(nrd_infer_allocator_new(&f->allocator), err, fail);
    NRD_TRY_GOTO(nrd_switch_core_new(&f->switcher, &f->puller, core, o), err, fail);
    *out = f;
    return NULL;

fail:
    nrd_front_free(f);
    return err;
}

void nrd_front_stop(nrd_front *f)
{
    if (f) {
        nrd_workers_stop(f->workers);
    }
}

void nrd_front_free(nrd_front *f)
{
    if (!f) {
        return;
    }
    if (f->allocator) {
        nrd_error_free(nrd_from_triton(TRITONSERVER_ResponseAllocatorDelete(f->allocator)));
    }
    nrd_puller_free(f->puller);
    nrd_switcher_free(f->switcher);
    nrd_workers_free(f->workers);
    nrd_models_free(f->models);
    nrd_shm_free(f->shm);
    nrd_quotas_free(f->quotas);
    nrd_keys_free(f->keys);
    nrd_tls_free(f->tls);
    free(f);
}

nrd_error *nrd_parse_version(const char *text, long long least, const char *note, int64_t *out)
{
    long long v = -1;
    if (text && text[0] && (!nrd_parse_i64(text, &v) || v < least)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "failed to get model version from specified version string '%s'%s, "
                          "version should be an integral value > 0",
                          text, note);
    }
    *out = v;
    return NULL;
}
