/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/quantize/speed.h"

#include "model/engine.h"

#include <string.h>

nrd_error *nrd_qspeed_token_bytes(uint64_t *out, const char *engine, bool on_cpu)
{
    nrd_engine *e = NULL;
    double bytes = 0;

    *out = 0;
    NRD_TRY(nrd_engine_open(&e, engine, 0, false));
    const nrd_model_spec *m = nrd_engine_spec(e);
    const bool has_head = nrd_engine_weight(e, "lm_head.weight") != NULL;
    const double share = m->moe.n_experts > 0 ? (double)m->moe.top_k / (double)m->moe.n_experts : 1;
    for (size_t i = 0; i < nrd_engine_n_weights(e); i++) {
        const char *name;
        const nrd_weight *w = nrd_engine_weight_at(e, i, &name);
        const bool is_rows = strstr(name, "_embedding.") != NULL;
        const bool is_head = !has_head && !strcmp(name, "transformer.vocab_embedding.weight");
        if (!is_rows || is_head) {
            const int unpacked = on_cpu && w->dtype == NRD_DTYPE_F8_E4M3 ? 2 : 1; /* to bfloat16, when it is loaded */
            bytes += (double)w->data_bytes * unpacked * (strstr(name, ".mlp.experts.") ? share : 1);
        }
    }
    *out = (uint64_t)bytes;
    nrd_engine_close(e);
    return NULL;
}
