/* SPDX-License-Identifier: Apache-2.0
 * Bodies of /v1/embeddings (first byte 0), /tokenize (1) and /detokenize (2). Inputs hold ids of the model
 * only, answers are JSON, and what is read twice is the same. */
#include "frontends/openai/embeddings.c"
#include "frontends/openai/mixed_ids.c"
#include "frontends/openai/tokenize.c"
#include "oai_model.h"

/* The names of models are those of /v1 here, and no answer is written. */
const nrd_oai_form nrd_oai_form_ollama_chat = {.is_chat = true};

const nrd_oai_form *nrd_oai_form_of(const nrd_http_request *req)
{
    (void)req;
    return NULL;
}

nrd_error *nrd_oai_ollama_find(nrd_openai *o, const nrd_json *name, nrd_oai_model **out)
{
    return nrd_oai_find_model(o, nrd_json_str(name, ""), out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint64_t embed(const nrd_json *root)
{
    embed_request *r = calloc(1, sizeof *r);
    uint64_t sum = 1;
    if (!r) {
        abort();
    }
    r->refs = 1;
    nrd_error *err = read_body(r, NULL, root);
    for (size_t i = 0; i < r->n_inputs; i++) {
        const nrd_ids *ids = &r->inputs[i].ids;
        for (size_t k = 0; k < ids->n; k++) {
            if (ids->ids[k] < 0 || ids->ids[k] >= nrd_tokenizer_vocab_size(model.tokenizer)) {
                abort();
            }
            sum = sum * 31 + (uint64_t)ids->ids[k];
        }
        if (!err && ids->n == 0) {
            abort();
        }
    }
    if (!err && (r->n_inputs < 1 || r->n_inputs > OAI_MAX_INPUTS || r->dimensions < 0)) {
        abort();
    }
    sum = err ? 0 : sum;
    nrd_error_free(err);
    unref(r);
    return sum;
}

static uint64_t ask(nrd_json_doc *doc, bool back)
{
    nrd_oai_question q = {.doc = doc};
    nrd_json_doc *answer = NULL;
    nrd_error *err = back ? detokenize(&q) : tokenize(&q);
    uint64_t sum = 1;
    if (!err) {
        if (nrd_json_parse(&answer, q.out.data, q.out.len, NULL)) {
            abort();
        }
        for (size_t i = 0; i < q.out.len; i++) {
            sum = sum * 31 + (unsigned char)q.out.data[i];
        }
    }
    sum = err ? 0 : sum;
    nrd_error_free(err);
    nrd_json_doc_free(answer);
    nrd_str_fini(&q.out);
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    nrd_json_doc *doc = NULL;
    uint64_t sum[2];
    open_model_once();
    model.pooling = "last";
    if (size < 1 || size > 16384) {
        return 0;
    }
    nrd_error *err = nrd_json_parse(&doc, (const char *)data + 1, size - 1, NULL);
    if (!err && nrd_json_is(nrd_json_root(doc), NRD_JSON_OBJECT)) { /* as nrd_oai_body asks */
        for (int i = 0; i < 2; i++) {
            sum[i] = data[0] % 3 == 0 ? embed(nrd_json_root(doc)) : ask(doc, data[0] % 3 == 2);
        }
        if (sum[0] != sum[1]) {
            abort();
        }
    }
    nrd_error_free(err);
    nrd_json_doc_free(doc);
    return 0;
}
