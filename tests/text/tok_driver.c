/* SPDX-License-Identifier: Apache-2.0
 * tok_driver tokenize|translate|detokenize|stream|save|bench PATH [--parse-special] [--no-bos] [--skip-special]
 *
 * tokenize    JSON lines {"text": …} -> {"ids": […]}
 * translate   {"text": …, "source": …, "target": …} -> {"ids": […], "begin": […]}, or {"error": …}
 * detokenize  {"ids": […]} -> {"text": …}
 * stream      the same through nrd_detok, one id at a time
 * save        writes PATH's tokenizer into the folder given as the next argument
 * bench       encodes standard input, one document a line, and prints seconds and megabytes
 */
#include "base/clock.h"
#include "base/json.h"
#include "text/tokenizer.h"
#include "text/translate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void die(nrd_error *err)
{
    if (err) {
        fprintf(stderr, "%s\n", nrd_error_message(err));
        exit(1);
    }
}

static void put_ids(const char *name, const nrd_ids *ids, nrd_str *out)
{
    nrd_str_printf(out, "\"%s\":[", name);
    for (size_t i = 0; i < ids->n; i++) {
        nrd_str_printf(out, i ? ",%d" : "%d", ids->ids[i]);
    }
    nrd_str_putc(out, ']');
}

static void encode_line(const nrd_tokenizer *t, uint32_t flags, const nrd_json *in, nrd_str *out)
{
    const nrd_json *text = nrd_json_get(in, "text");
    nrd_ids ids = {0};
    die(nrd_tokenizer_encode(t, nrd_json_str(text, ""), text ? text->n : 0, flags, &ids));
    nrd_str_putc(out, '{');
    put_ids("ids", &ids, out);
    nrd_str_putc(out, '}');
    nrd_ids_fini(&ids);
}

static void translate_line(const nrd_tokenizer *t, const nrd_json *in, nrd_str *out)
{
    const nrd_json *text = nrd_json_get(in, "text");
    const nrd_translation languages = {nrd_json_get_str(in, "source", NULL), nrd_json_get_str(in, "target", NULL)};
    nrd_ids ids = {0}, begin = {0};
    nrd_error *err = nrd_tokenizer_encode_translation(t, nrd_json_str(text, ""), text ? text->n : 0, &languages, &ids, &begin);
    nrd_str_putc(out, '{');
    if (err) {
        nrd_str_puts(out, "\"error\":");
        nrd_json_put_cstr(out, nrd_error_message(err));
    } else {
        put_ids("ids", &ids, out);
        nrd_str_putc(out, ',');
        put_ids("begin", &begin, out);
    }
    nrd_str_putc(out, '}');
    nrd_error_free(err);
    nrd_ids_fini(&ids);
    nrd_ids_fini(&begin);
}

static void decode_line(const nrd_tokenizer *t, uint32_t flags, bool stream, const nrd_json *in,
                        nrd_str *out)
{
    const nrd_json *list = nrd_json_get(in, "ids");
    nrd_ids ids = {0};
    nrd_str text = {0};
    for (size_t i = 0; i < nrd_json_len(list); i++) {
        nrd_ids_push(&ids, (int32_t)nrd_json_int(nrd_json_at(list, i), -1));
    }
    if (stream) {
        nrd_detok *d = nrd_detok_new(t, flags);
        for (size_t i = 0; i < ids.n; i++) {
            nrd_str piece = {0};
            nrd_detok_push(d, ids.ids[i], &piece);
            nrd_str_append(&text, nrd_str_cstr(&piece), piece.len);
            nrd_str_fini(&piece);
        }
        nrd_detok_flush(d, &text);
        nrd_detok_free(d);
    } else {
        nrd_tokenizer_decode(t, ids.ids, ids.n, flags, &text);
    }
    nrd_str_puts(out, "{\"text\":");
    nrd_json_put_string(out, nrd_str_cstr(&text), text.len);
    nrd_str_putc(out, '}');
    nrd_str_fini(&text);
    nrd_ids_fini(&ids);
}

static void bench(const nrd_tokenizer *t, uint32_t flags)
{
    nrd_str all = {0};
    char buf[65536];
    nrd_ids ids = {0};
    for (size_t n; (n = fread(buf, 1, sizeof buf, stdin)) > 0;) {
        nrd_str_append(&all, buf, n);
    }
    for (int pass = 0; pass < 3; pass++) {
        uint64_t start = nrd_now_ns();
        size_t n_ids = 0;
        for (size_t at = 0; at < all.len;) {
            const char *nl = memchr(all.data + at, '\n', all.len - at);
            size_t end = nl ? (size_t)(nl - all.data) : all.len;
            ids.n = 0;
            die(nrd_tokenizer_encode(t, all.data + at, end - at, flags, &ids));
            n_ids += ids.n;
            at = end + 1;
        }
        double s = (double)(nrd_now_ns() - start) / 1e9;
        printf("{\"seconds\":%.6f,\"bytes\":%zu,\"ids\":%zu,\"mb_per_s\":%.2f}\n", s, all.len, n_ids,
               (double)all.len / 1e6 / s);
    }
    nrd_ids_fini(&ids);
    nrd_str_fini(&all);
}

int main(int argc, char **argv)
{
    nrd_tokenizer *t = NULL;
    uint32_t enc = NRD_ENCODE_ADD_SPECIAL, dec = 0;
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;

    if (argc < 3) {
        fprintf(stderr, "usage: tok_driver tokenize|translate|detokenize|stream|save|bench PATH [flags]\n");
        return 2;
    }
    for (int i = 3; i < argc; i++) {
        enc |= strcmp(argv[i], "--parse-special") == 0 ? NRD_ENCODE_PARSE_SPECIAL : 0;
        enc &= strcmp(argv[i], "--no-bos") == 0 ? ~(uint32_t)NRD_ENCODE_ADD_SPECIAL : ~0u;
        dec |= strcmp(argv[i], "--skip-special") == 0 ? NRD_DECODE_SKIP_SPECIAL : 0;
    }
    uint64_t start = nrd_now_ns();
    die(nrd_tokenizer_open(&t, argv[2]));
    if (getenv("TOK_TIME")) {
        fprintf(stderr, "open %.1f ms\n", (double)(nrd_now_ns() - start) / 1e6);
    }
    if (strcmp(argv[1], "save") == 0) {
        die(argc > 3 ? nrd_tokenizer_save(t, argv[3]) : NULL);
        nrd_tokenizer_close(t);
        return 0;
    }
    if (strcmp(argv[1], "bench") == 0) {
        bench(t, enc);
        nrd_tokenizer_close(t);
        return 0;
    }
    while ((n = getline(&line, &cap, stdin)) > 0) {
        nrd_json_doc *doc = NULL;
        nrd_str out = {0};
        die(nrd_json_parse(&doc, line, (size_t)n, NULL));
        if (strcmp(argv[1], "tokenize") == 0) {
            encode_line(t, enc, nrd_json_root(doc), &out);
        } else if (strcmp(argv[1], "translate") == 0) {
            translate_line(t, nrd_json_root(doc), &out);
        } else {
            decode_line(t, dec, strcmp(argv[1], "stream") == 0, nrd_json_root(doc), &out);
        }
        puts(nrd_str_cstr(&out));
        nrd_str_fini(&out);
        nrd_json_doc_free(doc);
    }
    free(line);
    nrd_tokenizer_close(t);
    return 0;
}
