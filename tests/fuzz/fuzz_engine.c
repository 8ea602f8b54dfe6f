/* SPDX-License-Identifier: Apache-2.0
 * Any bytes as an engine file beside a fixed config.json, or (first byte odd) as that config.json.
 * Checksums are made right again, so that what lies behind them is reached. */
#include "json_swap.h"
#include "model/engine_file.h"

#include "base/mem.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static const char config[] =
    "{\"pretrained_config\":{\"architecture\":\"LlamaForCausalLM\",\"dtype\":\"float32\","
    "\"vocab_size\":320,\"hidden_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":4,"
    "\"intermediate_size\":128,\"max_position_embeddings\":128,\"hidden_act\":\"silu\"},"
    "\"build_config\":{\"max_batch_size\":8}}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    nrd_engine *e = NULL;
    volatile unsigned sum = 0;

    if (n < 1) {
        return 0;
    }
    bool is_config = data[0] & 1;
    uint8_t *file = nrd_aligned_zalloc(64, n - 1);
    if (!file) {
        return 0;
    }
    memcpy(file, data + 1, n - 1);
    nrd_engine_reseal(file, is_config ? 0 : n - 1);
    nrd_error *err = nrd_engine_open_memory(&e, is_config ? (const char *)data + 1 : config,
                                            is_config ? n - 1 : sizeof config - 1, file, n - 1, 0,
                                            (data[0] & 2) != 0);
    nrd_error_free(err);
    for (size_t i = 0; e && i < nrd_engine_n_weights(e); i++) {
        const char *name;
        const nrd_weight *w = nrd_engine_weight_at(e, i, &name);
        sum += (unsigned)strlen(name);
        for (uint64_t k = 0; k < w->data_bytes; k++) {
            sum += ((const uint8_t *)w->data)[k];
        }
    }
    nrd_engine_close(e);
    free(file);
    (void)sum;
    return 0;
}
