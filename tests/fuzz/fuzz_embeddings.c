/* SPDX-License-Identifier: Apache-2.0
 * Bodies of /v1/embeddings (first byte 0), /tokenize (1), /detokenize (2), /v1/rerank (3, 4: of a reranker and of a model
 * without labels), /v1/score (5) and /classify (6), and plus 7 with Qwen3-Reranker's prompt. Inputs hold ids of the model only, answers are JSON, and what is read
 * twice is the same. */
#include "frontends/openai/mixed_ids.c"
#include "frontends/openai/pooled.h"
#include "frontends/openai/tokenize.c"
#include "json_swap.h"
#include "oai_model.h"

nrd_error *nrd_oai_ollama_find(nrd_openai *o, nrd_http_request *req, const nrd_json *name, nrd_oai_model **out)
{
    (void)req;
    return nrd_oai_find_model(o, nrd_json_str(name, ""), out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The answer to these inputs, where every one gets the numbers 0.25, -1.5 and so on. */
static uint64_t answer_of(nrd_pooled *r)
{
    const size_t n = !strcmp(r->pooling, "labels") ? nrd_json_len(model.labels) : 3;
    nrd_json_doc *answer = NULL;
    nrd_error *err = NULL;

    for (size_t i = 0; i < r->n_inputs && !err; i++) {
        nrd_pooled_input *in = &r->inputs[i];
        in->vector = calloc(n, sizeof *in->vector);
        in->n = n;
        for (size_t k = 0; in->vector && k < n; k++) {
            in->vector[k] = (float)(i + k) * -1.75f + 0.25f;
        }
        err = r->kind->keep(in);
    }
    if (err) { /* a length that the model's vectors have not */
        nrd_error_free(err);
        return 7;
    }
    r->kind->put(r);
    err = nrd_json_parse(&answer, r->out.data, r->out.len, NULL);
    if (err || r->out.len > r->kind->answer_bytes(r) + 4096 + 64 * r->n_inputs) {
        abort();
    }
    nrd_json_doc_free(answer);
    return r->n_inputs;
}

static uint64_t read_pooled(const nrd_pooled_kind *kind, const nrd_json *root)
{
    nrd_pooled *r = calloc(1, kind->bytes);
    uint64_t sum = 1;
    if (!r) {
        abort();
    }
    r->kind = kind;
    r->refs = 1;
    nrd_error *err = kind->read(r, root);
    for (size_t i = 0; i < r->n_inputs; i++) {
        const nrd_ids *ids = &r->inputs[i].ids;
        for (size_t k = 0; k < ids->n; k++) {
            if (ids->ids[k] < 0 || ids->ids[k] >= nrd_tokenizer_vocab_size(model.tokenizer)) {
                abort();
            }
            sum = sum * 31 + (uint64_t)ids->ids[k];
        }
        if (!err && r->inputs[i].second_from > ids->n) {
            abort();
        }
    }
    if (!err && (r->n_inputs < 1 || r->n_inputs > OAI_MAX_INPUTS || !r->pooling)) {
        abort();
    }
    if (!err) {
        sum = sum * 31 + answer_of(r);
    }
    sum = err ? 0 : sum;
    nrd_error_free(err);
    nrd_pooled_unref(r);
    return sum;
}

static nrd_openai front; /* of which messages ask nothing but that it is there */

static uint64_t ask(nrd_json_doc *doc, bool back)
{
    nrd_oai_question q = {.o = &front, .doc = doc};
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
    static const nrd_pooled_kind *const kinds[] = {&nrd_pooled_embeddings, NULL, NULL, &nrd_pooled_rerank,
                                                   &nrd_pooled_rerank, &nrd_pooled_score, &nrd_pooled_labels};
    static nrd_json_doc *one_label, *labels; /* for ever */
    nrd_json_doc *doc = NULL;
    uint64_t sum[2];
    if (!labels && (nrd_json_parse(&one_label, "[\"a\"]", 5, NULL) || nrd_json_parse(&labels, "[\"a\",\"b\"]", 9, NULL))) {
        abort();
    }
    model.function = "softmax";
    model.pair_function = "sigmoid";
    open_model_once();
    model.pooling = "last";
    model.max_tokens = 40;
    if (size < 1 || size > 16384) {
        return 0;
    }
    nrd_error *err = nrd_json_parse(&doc, (const char *)data + 1, size - 1, NULL);
    if (!err && nrd_json_is(nrd_json_root(doc), NRD_JSON_OBJECT)) { /* as nrd_oai_body asks */
        for (int i = 0; i < 2; i++) {
            const int kind = data[0] % 7;
            model.prompt = data[0] / 7 % 2 ? "qwen3" : "";
            model.labels = kind == 3 || kind == 5 ? nrd_json_root(one_label) : kind == 6 ? nrd_json_root(labels) : NULL;
            sum[i] = kind == 1 || kind == 2 ? ask(doc, kind == 2) : read_pooled(kinds[kind], nrd_json_root(doc));
        }
        if (sum[0] != sum[1]) {
            abort();
        }
    }
    nrd_error_free(err);
    nrd_json_doc_free(doc);
    return 0;
}
