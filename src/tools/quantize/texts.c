/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/quantize/texts.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_TEXT_BYTES = 1 << 30 };

static void add_window(nrd_qtexts *q, const int32_t *ids, size_t n, int32_t bos)
{
    if (n < 2) {
        return; /* nothing follows anything */
    }
    q->starts = nrd_xrealloc(q->starts, (q->n + 2) * sizeof *q->starts);
    q->starts[0] = 0;
    if (bos >= 0 && ids[0] != bos) {
        nrd_ids_push(&q->ids, bos);
    }
    nrd_ids_append(&q->ids, ids, n);
    q->starts[++q->n] = q->ids.n;
}

static nrd_error *add_text(nrd_qtexts *q, const nrd_tokenizer *t, const char *text, size_t len, size_t length, bool whole)
{
    nrd_ids ids = {0};
    nrd_error *err = nrd_tokenizer_encode(t, text, len, NRD_ENCODE_ADD_SPECIAL, &ids);
    err = err ? err : nrd_ids_error(&ids);
    const int32_t bos = ids.n > 0 && ids.ids[0] == nrd_tokenizer_bos_id(t) ? ids.ids[0] : -1; /* begins every window */
    for (size_t at = 0, n; at < ids.n && !err; at += n) {
        const size_t room = at > 0 && bos >= 0 ? length - 1 : length;
        n = ids.n - at < room ? ids.n - at : room;
        add_window(q, ids.ids + at, n, bos);
        if (!whole) {
            break; /* of a sample its beginning */
        }
    }
    nrd_ids_fini(&ids);
    return err;
}

/* The text of a line of data: under the names that data sets use. */
static const nrd_json *text_of(const nrd_json *line)
{
    static const char *const names[] = {"text", "content", "article", "prompt"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const nrd_json *v = nrd_json_get(line, names[i]);
        if (nrd_json_is(v, NRD_JSON_STRING)) {
            return v;
        }
    }
    return NULL;
}

static nrd_error *add_line(nrd_qtexts *q, const nrd_tokenizer *t, const char *line, size_t n, size_t length)
{
    nrd_json_doc *doc = NULL;
    NRD_TRY(nrd_json_parse(&doc, line, n, NULL));
    const nrd_json *text = text_of(nrd_json_root(doc));
    nrd_error *err = text ? add_text(q, t, text->str, text->n, length, false)
                          : nrd_errorf(NRD_ERR_INVALID_ARG, "expected {\"text\": \"…\"} (or content, article, prompt)");
    nrd_json_doc_free(doc);
    return err;
}

static nrd_error *add_lines(nrd_qtexts *q, const nrd_tokenizer *t, const char *text, size_t len, size_t length)
{
    size_t number = 1;
    for (const char *at = text, *end = text + len; at < end; number++) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        const size_t n = (size_t)((stop ? stop : end) - at);
        if (strspn(at, " \t\r\n") < n) {
            NRD_TRY(nrd_error_wrap(add_line(q, t, at, n, length), "line %zu", number));
        }
        at += n + 1;
    }
    return NULL;
}

/* Draws `keep` windows of all (Steele et al., splitmix64, for the numbers), in their order. */
static void draw(nrd_qtexts *q, size_t keep, uint64_t seed)
{
    size_t n = 0, end = 0, left = q->n;
    for (size_t i = 0; i < q->n; i++, left--) {
        uint64_t z = seed += 0x9e3779b97f4a7c15u;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        z ^= z >> 31;
        if (z % left >= keep - n) {
            continue;
        }
        const size_t len = q->starts[i + 1] - q->starts[i];
        memmove(q->ids.ids + end, q->ids.ids + q->starts[i], len * sizeof *q->ids.ids);
        q->starts[n++] = end;
        end += len;
    }
    q->n = n;
    q->ids.n = end;
    q->starts[n] = end;
}

nrd_error *nrd_qtexts_open(nrd_qtexts *q, const nrd_tokenizer *t, const char *path, const char *builtin,
                           size_t max_windows, size_t length, uint64_t seed)
{
    nrd_error *err = NULL;
    char *text = NULL;
    size_t len = 0;

    *q = (nrd_qtexts){0};
    if (!path) {
        err = add_text(q, t, builtin, strlen(builtin), length, true);
    } else {
        NRD_TRY(nrd_file_read(&text, &len, path, MAX_TEXT_BYTES));
        const bool lines = nrd_str_has_suffix(path, ".jsonl") || nrd_str_has_suffix(path, ".json");
        err = lines ? add_lines(q, t, text, len, length) : add_text(q, t, text, len, length, true);
        err = nrd_error_wrap(err, "%s", path);
    }
    err = err ? err : nrd_ids_error(&q->ids);
    if (!err && q->n == 0) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "'%s' holds no text of at least two tokens", path ? path : "the built-in text");
    }
    if (!err && q->n > max_windows) {
        draw(q, max_windows, seed);
    }
    if (err) {
        nrd_qtexts_close(q);
    }
    free(text);
    return err;
}

void nrd_qtexts_close(nrd_qtexts *q)
{
    nrd_ids_fini(&q->ids);
    free(q->starts);
    *q = (nrd_qtexts){0};
}

int32_t nrd_qtexts_longest(const nrd_qtexts *q)
{
    size_t most = 0;
    for (size_t i = 0; i < q->n; i++) {
        const size_t n = q->starts[i + 1] - q->starts[i];
        most = n > most ? n : most;
    }
    return (int32_t)most;
}
