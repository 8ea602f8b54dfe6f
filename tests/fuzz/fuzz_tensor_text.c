/* SPDX-License-Identifier: Apache-2.0
 * Bodies of /infer whose long arrays are cut out of the text. Input: a byte that picks the type, then
 * the body, in which each byte 0x01 stands for so many spaces that an array around them is cut. What is
 * left has the length of the whole; a body that is JSON stays JSON, its arrays have the values that the
 * tree gives; and what is no JSON is refused by one of the two readers. */
#include "base/json.h"
#include "frontends/common/tensor_json.h"
#include "frontends/common/tensor_text.h"
#include "frontends/http/api.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void unfold(const uint8_t *data, size_t size, nrd_str *out)
{
    static char spaces[NRD_TENSOR_TEXT_MIN];
    memset(spaces, ' ', sizeof spaces);
    for (size_t i = 0; i < size; i++) {
        if (data[i] == 1) {
            nrd_str_append(out, spaces, sizeof spaces);
        } else {
            nrd_str_putc(out, (char)data[i]);
        }
    }
}

/* The text and the tree of one array: equal bytes, or an error of both. */
static void compare(const nrd_tensor_slice *s, const nrd_json *tree, TRITONSERVER_DataType type)
{
    size_t bytes = 0;
    nrd_error *err = nrd_tensor_json_size(tree, type, nrd_json_len(tree), &bytes);
    if (err) {
        nrd_error_free(err);
        return;
    }
    char *a = malloc(bytes + 1), *b = malloc(bytes + 1);
    if (a && b) {
        nrd_error *of_tree = nrd_tensor_json_read(tree, "x", type, a, bytes);
        nrd_error *of_text = nrd_tensor_text_read(s, "x", type, b, bytes);
        if (!of_tree != !of_text || (!of_tree && memcmp(a, b, bytes) != 0)) {
            abort();
        }
        nrd_error_free(of_tree);
        nrd_error_free(of_text);
    }
    free(a);
    free(b);
}

static size_t count_numbers(const nrd_tensor_slice *s)
{
    size_t n = 0;
    bool inside = false;
    for (size_t i = 0; i < s->n; i++) {
        const bool is = strchr(",[] \t\r\n", s->text[i]) == NULL || s->text[i] == '\0';
        n += is && !inside;
        inside = is;
    }
    return n;
}

static bool reads(const nrd_tensor_slice *s)
{
    const size_t bytes = count_numbers(s) * sizeof(double);
    char *out = malloc(bytes + 1);
    nrd_error *err = out ? nrd_tensor_text_read(s, "x", TRITONSERVER_TYPE_FP64, out, bytes) : nrd_error_no_memory();
    const bool ok = !err;
    nrd_error_free(err);
    free(out);
    return ok;
}

static void check(const nrd_str *text, TRITONSERVER_DataType type)
{
    nrd_tensor_slice slices[NRD_TENSOR_TEXT_MAX];
    char *copy = malloc(text->len);
    nrd_json_doc *whole = NULL, *rest = NULL;
    nrd_claim claim = {0};
    const size_t n = copy ? nrd_tensor_text_cut(text->data, text->len, copy, slices) : 0;
    if (n == 0) {
        free(copy);
        return;
    }
    nrd_error *of_whole = nrd_http_parse_json(&whole, &claim, text->data, text->len);
    nrd_error *of_rest = nrd_http_parse_json(&rest, &claim, copy, text->len);
    bool all_read = true;
    nrd_claim_give_all(&claim);
    if (n > NRD_TENSOR_TEXT_MAX || (!of_whole && of_rest)) {
        abort();
    }
    for (size_t i = 0; i < n; i++) {
        const nrd_tensor_slice *s = &slices[i];
        if (s->text != text->data + s->offset || s->n > text->len - s->offset || s->n < 2 ||
            copy[s->offset] != '[' || copy[s->offset + s->n - 1] != ']') {
            abort();
        }
        if (whole) {
            const nrd_json *input = nrd_json_at(nrd_json_get(nrd_json_root(whole), "inputs"), s->input);
            compare(s, nrd_json_get(input, "data"), type);
        }
        all_read = all_read && reads(s);
    }
    if (of_whole && !of_rest && all_read) {
        abort();
    }
    nrd_error_free(of_whole);
    nrd_error_free(of_rest);
    nrd_json_doc_free(whole);
    nrd_json_doc_free(rest);
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    nrd_str text = {0};
    if (size < 2 || size > 4096 || data[0] % 16 == TRITONSERVER_TYPE_BYTES) {
        return 0;
    }
    unfold(data + 1, size - 1, &text);
    if (text.len < 1 << 20) {
        check(&text, (TRITONSERVER_DataType)(data[0] % 16));
    }
    nrd_str_fini(&text);
    return 0;
}
