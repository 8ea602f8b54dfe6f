/* SPDX-License-Identifier: Apache-2.0
 * nereid tokenize | detokenize PATH: lines in, lines out. */
#include "tools/tools.h"

#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "text/tokenizer.h"

#include <stdio.h>
#include <string.h>

typedef struct options {
    bool json, parse_special, no_bos, skip_special;
} options;

static const char tokenize_usage[] =
    "Usage: nereid tokenize PATH [options] < text\n"
    "Prints the token ids of every input line. PATH is a folder with a tokenizer, tokenizer.json,\n"
    "tokenizer.model or a GGUF file.\n";

static const char detokenize_usage[] =
    "Usage: nereid detokenize PATH [options] < ids\n"
    "Prints the text of every line of token ids. PATH as for nereid tokenize.\n";

#define OPT(...) NRD_OPT_ROW(options, __VA_ARGS__)
static const nrd_opt tokenize_rows[] = {
    OPT(FLAG, "json", NULL, json, NULL, NULL, "lines are {\"text\": …} in and {\"ids\": […]} out"),
    OPT(FLAG, "parse_special", NULL, parse_special, NULL, NULL,
        "text like <|im_start|> becomes the special token"),
    OPT(FLAG, "no_bos", NULL, no_bos, NULL, NULL, "leave out what the tokenizer adds (BOS, EOS)"),
};
const nrd_tool_table nrd_tokenize_table = NRD_TOOL_TABLE("tokenize", tokenize_usage, tokenize_rows, 1);

static const nrd_opt detokenize_rows[] = {
    OPT(FLAG, "json", NULL, json, NULL, NULL, "lines are {\"ids\": […]} in and {\"text\": …} out"),
    OPT(FLAG, "skip_special", NULL, skip_special, NULL, NULL, "leave special tokens out"),
};
const nrd_tool_table nrd_detokenize_table =
    NRD_TOOL_TABLE("detokenize", detokenize_usage, detokenize_rows, 1);

static nrd_error *encode_line(const nrd_tokenizer *t, const options *o, const char *line, size_t n,
                              nrd_ids *ids, nrd_str *out)
{
    uint32_t flags = (o->parse_special ? NRD_ENCODE_PARSE_SPECIAL : 0u) |
                     (o->no_bos ? 0u : NRD_ENCODE_ADD_SPECIAL);
    nrd_json_doc *doc = NULL;
    nrd_error *err = NULL;

    if (o->json) {
        NRD_TRY(nrd_json_parse(&doc, line, n, NULL));
        const nrd_json *text = nrd_json_get(nrd_json_root(doc), "text");
        if (!nrd_json_is(text, NRD_JSON_STRING)) {
            nrd_json_doc_free(doc);
            return nrd_errorf(NRD_ERR_INVALID_ARG, "expected {\"text\": \"…\"}");
        }
        line = text->str;
        n = text->n;
    }
    ids->n = 0;
    err = nrd_tokenizer_encode(t, line, n, flags, ids);
    nrd_json_doc_free(doc);
    nrd_str_puts(out, o->json ? "{\"ids\":[" : "");
    for (size_t i = 0; !err && i < ids->n; i++) {
        nrd_str_printf(out, "%s%d", i ? (o->json ? "," : " ") : "", ids->ids[i]);
    }
    nrd_str_puts(out, o->json ? "]}" : "");
    return err;
}

static nrd_error *read_ids(const options *o, const char *line, size_t n, nrd_ids *ids)
{
    nrd_json_doc *doc = NULL;
    ids->n = 0;
    if (o->json) {
        NRD_TRY(nrd_json_parse(&doc, line, n, NULL));
        const nrd_json *list = nrd_json_get(nrd_json_root(doc), "ids");
        for (size_t i = 0; i < nrd_json_len(list); i++) {
            nrd_ids_push(ids, (int32_t)nrd_json_int(nrd_json_at(list, i), -1));
        }
        bool ok = nrd_json_is(list, NRD_JSON_ARRAY);
        nrd_json_doc_free(doc);
        return ok ? NULL : nrd_errorf(NRD_ERR_INVALID_ARG, "expected {\"ids\": […]}");
    }
    for (const char *p = line; *p;) {
        char *end = NULL;
        long id = strtol(p, &end, 10);
        if (end == p) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "expected token ids, got '%.20s'", p);
        }
        nrd_ids_push(ids, id < INT32_MIN || id > INT32_MAX ? -1 : (int32_t)id);
        p = end + strspn(end, " \t,");
    }
    return NULL;
}

static nrd_error *decode_line(const nrd_tokenizer *t, const options *o, const char *line, size_t n,
                              nrd_ids *ids, nrd_str *out)
{
    nrd_str text = {0};
    NRD_TRY(read_ids(o, line, n, ids));
    nrd_tokenizer_decode(t, ids->ids, ids->n, o->skip_special ? NRD_DECODE_SKIP_SPECIAL : 0, &text);
    if (o->json) {
        nrd_str_puts(out, "{\"text\":");
        nrd_json_put_string(out, nrd_str_cstr(&text), text.len);
        nrd_str_putc(out, '}');
    } else {
        nrd_str_append(out, nrd_str_cstr(&text), text.len);
    }
    nrd_str_fini(&text);
    return NULL;
}

static int run(const nrd_tool_table *table, int argc, char **argv)
{
    const bool encode = table == &nrd_tokenize_table;
    options o = {0};
    nrd_tokenizer *t = NULL;
    nrd_ids ids = {0};
    nrd_str out = {0};
    const char *path = NULL;
    char *line = NULL;
    size_t cap = 0, line_no = 0;
    ssize_t n;

    int status = nrd_tool_parse(table, argc, argv, &o, &path, NULL);
    if (status >= 0) {
        return status;
    }
    if (!path) {
        fprintf(stderr, "nereid %s: PATH is missing (see --help)\n", table->verb);
        return 2;
    }
    nrd_error *err = nrd_tokenizer_open(&t, path);
    while (!err && (n = getline(&line, &cap, stdin)) >= 0) {
        line_no++;
        if (n && line[n - 1] == '\n') {
            line[--n] = '\0';
        }
        nrd_str_clear(&out);
        err = encode ? encode_line(t, &o, line, (size_t)n, &ids, &out)
                     : decode_line(t, &o, line, (size_t)n, &ids, &out);
        nrd_str_putc(&out, '\n');
        if (!err) {
            fwrite(out.data, 1, out.len, stdout);
        }
        err = nrd_error_wrap(err, "line %zu", line_no);
    }
    status = nrd_tool_finish(table->verb, err);
    status = fflush(stdout) ? 1 : status;
    free(line);
    nrd_ids_fini(&ids);
    nrd_str_fini(&out);
    nrd_tokenizer_close(t);
    return status;
}

int nrd_tool_tokenize(int argc, char **argv)
{
    return run(&nrd_tokenize_table, argc, argv);
}

int nrd_tool_detokenize(int argc, char **argv)
{
    return run(&nrd_detokenize_table, argc, argv);
}
