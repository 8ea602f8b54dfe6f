/* SPDX-License-Identifier: Apache-2.0
 * A model's folder as Hugging Face has it, or a checkpoint of one rank. Input: config.json, the weights of either, tokenizer.json,
 * tokenizer_config.json, quant_cfg.json, and the files that say what is quantized where config.json does not (parts.h). Opening ends with a model or an error; every tensor of a model can be
 * read, also the rows of quantized ones, its configuration prints as JSON, and the tokenizer beside it encodes and
 * renders a chat. */
#include "base/dtype.h"
#include "base/json.h"
#include "base/mem.h"
#include "json_swap.h"
#include "model/plan.h"
#include "model/quant/quant.h"
#include "model/source.h"
#include "parts.h"
#include "text/template/chat.h"
#include "text/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The first and the last row, as the weight's own type and as plain numbers. */
static void read_rows(const nrd_src_tensor *t)
{
    const size_t bytes = (size_t)t->dims[1] * sizeof(float);
    char *row = nrd_xmalloc(bytes);
    float scale = 0;

    const nrd_dtype types[] = {t->dtype, NRD_DTYPE_F32};

    for (int64_t r = 0; r < t->dims[0]; r += t->dims[0] > 1 ? t->dims[0] - 1 : 1) {
        for (int i = 0; i < 2; i++) {
            nrd_error *err = nrd_quant_rows(t->packed, types[i], r, 1, row, &scale);
            if (!err) {
                fuzz_sum(row, (size_t)(t->dims[1] / nrd_dtype_block(types[i])) * nrd_dtype_block_bytes(types[i]));
            }
            nrd_error_free(err);
        }
    }
    free(row);
}

/* An MTP layer is planned, or refused. */
static void plan_mtp(const nrd_source *s)
{
    const nrd_source *mtp = nrd_source_mtp(s);
    nrd_plan *p = NULL;

    if (!mtp) {
        return;
    }
    if (!nrd_source_spec(mtp)->mtp || nrd_source_spec(mtp)->n_layers != 1 || nrd_source_first_layer(mtp) != nrd_source_spec(s)->n_layers) {
        abort();
    }
    nrd_error_free(nrd_plan_make(&p, mtp, &(nrd_plan_options){0}, 0));
    nrd_plan_free(p);
}

static void read_weights(void)
{
    nrd_source *s = NULL;
    nrd_str text = {0};
    nrd_json_doc *doc = NULL;
    nrd_error *err = nrd_source_open(&s, fuzz_folder());
    if (err) {
        nrd_error_free(err);
        return;
    }
    for (int32_t rank = 0; rank < nrd_source_n_ranks(s); rank++) {
        for (size_t i = 0; i < nrd_source_n_tensors(s, rank); i++) {
            const nrd_src_tensor *t = nrd_source_tensor_at(s, rank, i);
            if (t->packed) {
                read_rows(t);
            } else {
                fuzz_sum(t->data, t->data_bytes);
            }
            fuzz_sum(t->name, strlen(t->name));
            if (!nrd_source_find(s, rank, t->name)) {
                abort();
            }
        }
    }
    plan_mtp(s);
    nrd_model_spec_to_json(nrd_source_spec(s), &text);
    if (nrd_json_parse(&doc, text.data, text.len, NULL)) {
        abort();
    }
    nrd_json_doc_free(doc);
    nrd_str_fini(&text);
    nrd_source_close(s);
}

static nrd_error *render(const nrd_tokenizer *t)
{
    static const char messages[] = "[{\"role\":\"user\",\"content\":\"one two\"}]";
    nrd_json_doc *doc = NULL;
    nrd_chat *chat = NULL;
    nrd_str text = {0};
    nrd_error *err = nrd_json_parse(&doc, messages, sizeof messages - 1, NULL);
    if (!err && nrd_tokenizer_chat_template(t)) {
        err = nrd_chat_open(&chat, t, NULL);
    }
    if (!err && chat) {
        const nrd_chat_input in = {.messages = nrd_json_root(doc), .add_generation_prompt = true};
        err = nrd_chat_render(chat, &in, &text);
    }
    nrd_str_fini(&text);
    nrd_chat_free(chat);
    nrd_json_doc_free(doc);
    return err;
}

static void read_tokenizer(void)
{
    static const char text[] = "one two <s> \xc3\xa9 the";
    nrd_tokenizer *t = NULL;
    nrd_ids ids = {0};
    nrd_str back = {0};
    nrd_error *err = nrd_tokenizer_open(&t, fuzz_folder());
    if (!err) {
        err = nrd_tokenizer_encode(t, text, sizeof text - 1, 3, &ids);
    }
    if (!err) {
        nrd_tokenizer_decode(t, ids.ids, ids.n, 0, &back);
        err = render(t);
    }
    nrd_error_free(err);
    nrd_ids_fini(&ids);
    nrd_str_fini(&back);
    nrd_tokenizer_close(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"config.json", "model.safetensors", "tokenizer.json",
                                        "tokenizer_config.json", "quant_cfg.json", "hf_quant_config.json", "quanto_qmap.json"};
    enum { N_NAMES = (int)(sizeof names / sizeof names[0]) };
    fuzz_part part[N_NAMES] = {{0}};
    if (size > 1 << 18) {
        return 0;
    }
    const size_t n = fuzz_split(data, size, part, N_NAMES);
    for (size_t i = 0; i < N_NAMES; i++) {
        fuzz_write(names[i], i < n ? &part[i] : NULL);
        if (i == 1) {
            fuzz_write("rank0.safetensors", i < n ? &part[i] : NULL);
        }
    }
    read_weights();
    read_tokenizer();
    return 0;
}
