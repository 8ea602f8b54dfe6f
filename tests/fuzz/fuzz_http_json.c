/* SPDX-License-Identifier: Apache-2.0
 * Request heads, chunked bodies and the JSON of infer requests. First byte: what to feed. */
#include "frontends/common/tensor_json.h"
#include "frontends/common/tensor_text.h"
#include "frontends/http/parser.h"

#include <stdlib.h>
#include <string.h>

static void feed_head(const char *data, size_t n)
{
    nrd_http_head *h = malloc(sizeof *h);
    const char *why;
    size_t scanned = 0, head = nrd_http_find_head(data, n, &scanned);
    if (h && head && nrd_http_parse_head(h, data, head, &why) == 0) {
        char path[64];
        for (size_t i = 0; i < h->n_fields; i++) {
            if (h->fields[i].name.p < data || h->fields[i].value.p > data + head) {
                abort();
            }
        }
        nrd_http_unescape(h->path, path, sizeof path);
        if (h->chunked && h->has_length) {
            abort(); /* two lengths for one body */
        }
    }
    free(h);
}

/* The body must not depend on where the input is cut. */
static size_t join(const char *data, size_t n, size_t step, uint64_t *hash, int *result)
{
    nrd_http_chunks c = {0};
    nrd_http_chunks_result r = NRD_CHUNKS_MORE;
    size_t body = 0;
    *hash = 1;
    for (size_t at = 0; at < n && r == NRD_CHUNKS_MORE; at += step) {
        const char *p = data + at, *piece;
        size_t m = n - at < step ? n - at : step, piece_n;
        while ((r = nrd_http_chunks_next(&c, &p, &m, &piece, &piece_n)) == NRD_CHUNKS_DATA) {
            for (size_t i = 0; i < piece_n; i++) {
                *hash = *hash * 31 + (unsigned char)piece[i];
            }
            body += piece_n;
        }
    }
    *result = (int)r;
    return body;
}

static void feed_chunks(const char *data, size_t n)
{
    uint64_t a, b;
    int ra, rb;
    size_t na = join(data, n, n ? n : 1, &a, &ra), nb = join(data, n, 1, &b, &rb);
    if (na != nb || a != b || ra != rb) {
        abort();
    }
}

/* Numbers read straight from the text must be those that the tree gives. The array is made long
 * enough to be cut out of its document. */
static void compare_ways(const char *data, size_t n, const nrd_json *root,
                         TRITONSERVER_DataType type, size_t size)
{
    static const char head[] = "{\"inputs\":[{\"data\":[";
    nrd_tensor_slice slices[NRD_TENSOR_TEXT_MAX];
    nrd_str text = {0};
    if (n == 0 || data[0] != '[') {
        return;
    }
    nrd_str_puts(&text, head);
    for (size_t i = 0; i < NRD_TENSOR_TEXT_MIN; i++) {
        nrd_str_putc(&text, ' ');
    }
    nrd_str_append(&text, data + 1, n - 1);
    nrd_str_puts(&text, "}]}");
    char *other = malloc(size ? size : 1), *again = malloc(size ? size : 1);
    char *copy = malloc(text.len);
    if (other && again && copy && nrd_tensor_text_cut(text.data, text.len, copy, slices) == 1 &&
        slices[0].n == NRD_TENSOR_TEXT_MIN + n) {
        nrd_error *tree = nrd_tensor_json_read(root, "x", type, again, size);
        nrd_error *direct = nrd_tensor_text_read(&slices[0], "x", type, other, size);
        if (!tree != !direct || (!tree && memcmp(again, other, size) != 0)) {
            abort();
        }
        nrd_error_free(tree);
        nrd_error_free(direct);
    }
    free(other);
    free(again);
    free(copy);
    nrd_str_fini(&text);
}

static void feed_tensor(const char *data, size_t n, TRITONSERVER_DataType type)
{
    nrd_json_doc *doc = NULL;
    nrd_error *err = nrd_json_parse(&doc, data, n, NULL);
    size_t count = 0, size = 0;
    char *bytes = NULL;
    nrd_str text = {0};
    if (!err) {
        const nrd_json *root = nrd_json_root(doc);
        count = nrd_json_is(root, NRD_JSON_ARRAY) ? root->n : 1;
        err = nrd_tensor_json_size(root, type, count, &size);
    }
    if (!err && (bytes = malloc(size ? size : 1)) != NULL) {
        err = nrd_tensor_json_read(nrd_json_root(doc), "x", type, bytes, size);
    }
    if (!err && bytes) {
        err = nrd_tensor_json_write(&text, "x", type, bytes, size, count, true);
    }
    nrd_str_fini(&text);
    if (doc && type != TRITONSERVER_TYPE_BYTES) {
        compare_ways(data, n, nrd_json_root(doc), type, size);
    }
    nrd_error_free(err);
    free(bytes);
    nrd_json_doc_free(doc);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) {
        return 0;
    }
    const char *p = (const char *)data + 1;
    switch (data[0] % 4) {
    case 0:
        feed_head(p, size - 1);
        break;
    case 1:
        feed_chunks(p, size - 1);
        break;
    default:
        feed_tensor(p, size - 1, (TRITONSERVER_DataType)(data[0] / 4 % 16));
        break;
    }
    return 0;
}
