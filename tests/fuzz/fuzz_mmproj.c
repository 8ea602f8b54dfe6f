/* SPDX-License-Identifier: Apache-2.0
 * Any bytes as the file of a GGUF model's vision tower, which is its decoder's vocabulary, too. What is told of it is JSON that the
 * reader of towers takes or refuses, and tensors have the sizes that they were asked for. */
#include "model/mmproj.h"
#include "model/vision_internal.h"

#include <stdlib.h>
#include <string.h>

typedef struct seen {
    const nrd_mmproj *m;
    const nrd_vision_spec *s;
    int n;
} seen;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Metadata may say sizes that no input of a few kilobytes has: those end at the first tensor that is missing or too small. */
static nrd_error *look(void *user, const char *name, int64_t rows, int64_t cols)
{
    seen *k = user;
    nrd_mmproj_tensor t;
    nrd_error *err = nrd_mmproj_make(k->m, k->s, name, rows, cols, &t);

    if (!err) {
        const size_t n = (size_t)(rows * (cols ? cols : 1));
        if (t.data_bytes != n * (t.dtype == NRD_DTYPE_F32 ? 4 : 2)) {
            abort();
        }
        volatile uint8_t last = n ? ((const uint8_t *)t.data)[t.data_bytes - 1] : 0;
        (void)last;
        k->n++;
    }
    free(t.own);
    return err;
}

static void describe(const nrd_mmproj *m, const nrd_gguf *words)
{
    nrd_model_spec decoder = {.hidden = 8, .vocab = 16, .norm_eps = 1e-5f};
    nrd_json_doc *config = NULL, *processor = NULL;
    nrd_str texts[2] = {{0}, {0}};
    nrd_vision_spec s;
    bool any = false;

    nrd_error *err = nrd_mmproj_describe(m, &decoder, words, &texts[0], &texts[1]);
    if (!err) {
        nrd_error *bad = nrd_json_parse(&config, texts[0].data, texts[0].len, NULL);
        if (bad || nrd_json_parse(&processor, texts[1].data, texts[1].len, NULL)) {
            abort();
        }
        err = nrd_vision_spec_read(&s, &any, nrd_json_root(config), nrd_json_root(processor));
        if (!err && any) {
            seen k = {.m = m, .s = &s};
            err = nrd_vision_visit(&s, decoder.hidden, look, &k);
        }
    }
    nrd_error_free(err);
    nrd_json_doc_free(config);
    nrd_json_doc_free(processor);
    nrd_str_fini(&texts[0]);
    nrd_str_fini(&texts[1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    nrd_gguf *g = NULL, *words = NULL;
    nrd_mmproj *m = NULL;
    nrd_error *err = nrd_gguf_open_memory(&g, data, size);

    err = err ? err : nrd_gguf_open_memory(&words, data, size);
    err = err ? err : nrd_mmproj_new(&m, g);
    if (err) {
        nrd_gguf_close(g);
    } else {
        describe(m, words);
        nrd_mmproj_close(m);
    }
    nrd_gguf_close(words);
    nrd_error_free(err);
    return 0;
}
