/* SPDX-License-Identifier: Apache-2.0
 * Configurations of the inner models, and the shapes that they declare. */
#include "backends/bls/steps.h"

#include <string.h>

void nrd_bls_steps_init(nrd_bls_steps *s, TRITONSERVER_Server *server, const char *llm_name,
                        const char *draft_name, const char *encoders_name)
{
    memset(s, 0, sizeof *s);
    pthread_mutex_init(&s->mu, NULL);
    s->server = server;
    s->names[NRD_BLS_PRE] = "preprocessing";
    s->names[NRD_BLS_LLM] = llm_name;
    s->names[NRD_BLS_POST] = "postprocessing";
    s->names[NRD_BLS_DRAFT] = draft_name;
    s->names[NRD_BLS_ENCODERS] = encoders_name;
}

void nrd_bls_steps_fini(nrd_bls_steps *s)
{
    for (int i = 0; i < NRD_BLS_N_STEPS; i++) {
        nrd_tb_inner_config_free(s->configs[i]);
    }
    pthread_mutex_destroy(&s->mu);
}

TRITONSERVER_Error *nrd_bls_steps_get(nrd_bls_steps *s, nrd_bls_step step, const nrd_tb_config **out)
{
    nrd_tb_config *c = NULL;

    pthread_mutex_lock(&s->mu);
    *out = s->configs[step];
    pthread_mutex_unlock(&s->mu);
    if (*out) {
        return NULL;
    }
    NRD_TB_TRY(nrd_tb_inner_config(&c, s->server, s->names[step]));
    pthread_mutex_lock(&s->mu);
    nrd_tb_config *unused = s->configs[step] ? c : NULL; /* another request was faster */
    s->configs[step] = unused ? s->configs[step] : c;
    *out = s->configs[step];
    pthread_mutex_unlock(&s->mu);
    nrd_tb_inner_config_free(unused);
    return NULL;
}

static const nrd_json *find_dims(const nrd_tb_config *config, const char *name)
{
    const nrd_json *inputs = nrd_json_get(config->root, "input");
    for (size_t i = 0; i < nrd_json_len(inputs); i++) {
        const nrd_json *t = nrd_json_at(inputs, i);
        if (!strcmp(nrd_json_get_str(t, "name", ""), name)) {
            return nrd_json_get(t, "dims");
        }
    }
    return NULL;
}

uint32_t nrd_bls_wire_shape(const nrd_tb_config *config, const char *name, const int64_t *shape,
                            uint32_t n_dims, int64_t *out)
{
    const nrd_json *dims = find_dims(config, name);
    const uint32_t n_batch = config->max_batch_size > 0 ? 1 : 0;
    const size_t n = nrd_json_len(dims);
    int64_t n_elements = 1, wanted = 1;

    n_dims = n_dims < NRD_TB_MAX_DIMS ? n_dims : NRD_TB_MAX_DIMS;
    for (uint32_t i = 0; i < n_dims; i++) {
        out[i] = shape[i];
        n_elements *= i < n_batch ? 1 : shape[i];
    }
    if (!dims || n_dims == n + n_batch || n_dims < n_batch || n + n_batch > NRD_TB_MAX_DIMS) {
        return n_dims;
    }
    for (size_t i = 0; i < n; i++) {
        int64_t d = nrd_json_int(nrd_json_at(dims, i), -1);
        if (d <= 0) {
            return n_dims;
        }
        wanted *= d;
    }
    if (wanted != n_elements) {
        return n_dims;
    }
    for (size_t i = 0; i < n; i++) {
        out[n_batch + i] = nrd_json_int(nrd_json_at(dims, i), -1);
    }
    return (uint32_t)n + n_batch;
}
