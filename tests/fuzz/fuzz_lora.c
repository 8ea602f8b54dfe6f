/* SPDX-License-Identifier: Apache-2.0
 * LoRA adapters. First byte: 0 a PEFT folder with adapter_model.safetensors, 1 with adapter_model.bin, 2 a
 * folder of NumPy arrays, 3 rows as a request brings them; then the files (parts.h). An adapter that is
 * taken has rows of modules and lengths that the model has, all of whose numbers can be read. */
#include "base/json.h"
#include "json_swap.h"
#include "model/arch.h"
#include "model/lora.h"
#include "parts.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char config[] =
    "{\"architecture\":\"LlamaForCausalLM\",\"dtype\":\"float32\",\"vocab_size\":320,\"hidden_size\":16,"
    "\"num_hidden_layers\":1,\"num_attention_heads\":2,\"num_key_value_heads\":1,\"intermediate_size\":32,"
    "\"max_position_embeddings\":128,\"hidden_act\":\"silu\"}";

static void check(const nrd_model_spec *spec, const nrd_lora *l)
{
    for (int32_t i = 0; i < l->n_rows; i++) {
        const nrd_lora_row *r = &l->rows[i];
        int64_t in, out;
        if (r->layer < 0 || r->layer >= spec->n_layers || !nrd_lora_module_dims(spec, r->layer, r->module, &in, &out) || r->in != in ||
            r->out != out || r->rank < 1 || r->rank > l->max_rank) {
            abort();
        }
        const size_t each = r->dtype == NRD_DTYPE_F32 ? 4 : 2;
        fuzz_sum(r->a, (size_t)(r->rank * in) * each);
        fuzz_sum(r->b, (size_t)(r->rank * out) * each);
        if (r->has_gain) {
            fuzz_sum(nrd_lora_gain(r, r->b), 2 * (size_t)out * sizeof(float));
        }
    }
}

/* Two bytes of width and number of rows each, then the rows. */
static nrd_error *from_rows(nrd_lora **out, const nrd_model_spec *spec, const nrd_lora_limits *lim,
                            const fuzz_part *p)
{
    if (p->n < 8) {
        return NULL;
    }
    const int64_t rows = p->p[0] % 17, width = p->p[1] * 16 + p->p[2] % 16, config_width = p->p[3] % 6;
    const size_t weight_bytes = (size_t)(rows * width) * 4, config_bytes = (size_t)(rows * config_width) * 4;
    uint8_t *weights = calloc(1, weight_bytes + 1), *numbers = calloc(1, config_bytes + 1);
    if (!weights || !numbers) {
        abort();
    }
    const size_t n = p->n - 4 < config_bytes ? p->n - 4 : config_bytes;
    memcpy(numbers, p->p + 4, n);
    memcpy(weights, p->p + 4 + n, p->n - 4 - n < weight_bytes ? p->n - 4 - n : weight_bytes);
    nrd_error *err = nrd_lora_from_rows(out, spec, lim, weights, NRD_DTYPE_F32, rows, width,
                                        (const int32_t *)(void *)numbers, config_width);
    free(weights);
    free(numbers);
    return err;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[3][2] = {{"adapter_config.json", "adapter_model.safetensors"},
                                            {"adapter_config.json", "adapter_model.bin"},
                                            {"model.lora_config.npy", "model.lora_weights.npy"}};
    static nrd_model_spec spec;
    const nrd_lora_limits lim = {.max_rank = 8};
    nrd_json_doc *doc = NULL;
    fuzz_part part[2] = {{0}};
    nrd_lora *l = NULL;
    nrd_error *err;

    if (!spec.n_layers &&
        (nrd_json_parse(&doc, config, sizeof config - 1, NULL) || nrd_arch_from_checkpoint(&spec, nrd_json_root(doc)))) {
        abort();
    }
    nrd_json_doc_free(doc);
    if (size < 1 || size > 1 << 18) {
        return 0;
    }
    const unsigned kind = data[0] % 4;
    const size_t n = fuzz_split(data + 1, size - 1, part, 2);
    if (kind == 3) {
        err = from_rows(&l, &spec, &lim, &part[0]);
    } else {
        for (unsigned k = 0; k < 3; k++) {
            for (unsigned i = 0; i < 2; i++) {
                fuzz_write(names[k][i], NULL);
            }
        }
        fuzz_write(names[kind][0], &part[0]);
        fuzz_write(names[kind][1], n > 1 ? &part[1] : NULL);
        err = nrd_lora_open(&l, &spec, &lim, fuzz_folder());
    }
    if (!err && l) {
        check(&spec, l);
    }
    nrd_error_free(err);
    nrd_lora_free(l);
    return 0;
}
