/* SPDX-License-Identifier: Apache-2.0
 * EAGLE heads. First byte: its lowest bit set for EAGLE-3, the next one for pytorch_model.bin instead of model.safetensors, the third
 * for any kind; then config.json and the weights (parts.h). Heads that are taken have the sizes that their model and their configuration say, all
 * numbers can be read, and every row of the LM head is a token of the model. */
#include "base/json.h"
#include "json_swap.h"
#include "model/arch.h"
#include "model/eagle_heads.h"
#include "weight.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char config[] =
    "{\"architecture\":\"LlamaForCausalLM\",\"dtype\":\"float32\",\"vocab_size\":320,\"hidden_size\":16,"
    "\"num_hidden_layers\":4,\"num_attention_heads\":2,\"num_key_value_heads\":1,\"intermediate_size\":32,"
    "\"max_position_embeddings\":128,\"hidden_act\":\"silu\"}";

static void check(const nrd_model_spec *model, const nrd_eagle_heads *e)
{
    const nrd_model_spec *m = nrd_eagle_heads_spec(e);
    const nrd_eagle_weights *w = nrd_eagle_heads_weights(e);
    const nrd_weight *const all[] = {&w->fc,     &w->fc_bias, &w->q,    &w->k,  &w->v,    &w->o,          &w->q_bias,     &w->k_bias,
                                     &w->v_bias, &w->o_bias,  &w->gate, &w->up, &w->down, &w->embed_norm, &w->state_norm, &w->mlp_norm,
                                     &w->final_norm, &w->embed, &w->lm_head};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        fuzz_read_weight(all[i]);
    }
    if (m->hidden != model->hidden || m->vocab < 1 || m->vocab > model->vocab || w->q.rows != (int64_t)m->n_heads * m->head_dim ||
        w->down.cols != m->inter) {
        abort();
    }
    for (int32_t i = 0; i < m->vocab; i++) {
        const int32_t token = nrd_eagle_heads_token(e, i);
        if (token < 0 || token >= model->vocab) {
            abort();
        }
    }
    for (int i = 0; nrd_eagle_heads_is_3(e) && i < NRD_EAGLE_STATES; i++) {
        if (nrd_eagle_heads_layers(e)[i] < 0 || nrd_eagle_heads_layers(e)[i] >= model->n_layers) {
            abort();
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[2] = {"model.safetensors", "pytorch_model.bin"};
    static nrd_model_spec spec;
    nrd_json_doc *doc = NULL;
    fuzz_part part[2] = {{0}};
    nrd_eagle_heads *e = NULL;

    if (!spec.n_layers &&
        (nrd_json_parse(&doc, config, sizeof config - 1, NULL) || nrd_arch_from_checkpoint(&spec, nrd_json_root(doc)))) {
        abort();
    }
    nrd_json_doc_free(doc);
    if (size < 1 || size > 1 << 18) {
        return 0;
    }
    const unsigned is_bin = data[0] >> 1 & 1;
    const size_t n = fuzz_split(data + 1, size - 1, part, 2);
    fuzz_write(names[!is_bin], NULL);
    fuzz_write("config.json", &part[0]);
    fuzz_write(names[is_bin], n > 1 ? &part[1] : NULL);
    nrd_error *err = nrd_eagle_heads_open(&e, fuzz_folder(), &spec, data[0] & 4 ? NRD_EAGLE_ANY : data[0] & 1 ? NRD_EAGLE_3 : NRD_EAGLE_1);
    if (!err) {
        check(&spec, e);
    }
    nrd_error_free(err);
    nrd_eagle_heads_close(e);
    return 0;
}
