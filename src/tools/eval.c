/* SPDX-License-Identifier: Apache-2.0
 * nereid eval: how well a model predicts given text or tokens. */
#include "tools/model_path.h"
#include "tools/tools.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "nereid/executor.h"
#include "nereid/ranks.h"
#include "text/tokenizer.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const char usage[] =
    "Usage: nereid eval PATH -f FILE [options]                   perplexity of a text\n"
    "       nereid eval PATH --tokens IN --out OUT [options]     log probabilities of tokens\n\n"
    "IN holds {\"id\": …, \"tokens\": [...]} a line; OUT gets {\"id\", \"logprobs\", \"top\"}: "
    "entry i is\n"
    "about token i given those before it (null and [] for the first).\n";

enum { MAX_LINE_BYTES = 64 << 20, MAX_TEXT_BYTES = 1 << 30, MAX_TOP = 1024 };

typedef struct {
    const char *file, *tokens, *out, *tokenizer_dir;
    int32_t top, window;
    nrd_exec_options exec;
    uint64_t lora_id; /* 0: no adapter */
} options;

typedef struct scores { /* of one list of tokens */
    float *log_probs, *top_log_probs;
    int32_t *top_ids;
} scores;

static nrd_error *score(nrd_exec *x, uint64_t lora_id, const int32_t *ids, int32_t n, int32_t top, scores *out)
{
    nrd_error *err = NULL;
    *out = (scores){0};
    NRD_NEW_GOTO(out->log_probs, n, err, fail);
    NRD_NEW_GOTO(out->top_ids, (size_t)n * (size_t)top, err, fail);
    NRD_NEW_GOTO(out->top_log_probs, (size_t)n * (size_t)top, err, fail);
    err = nrd_exec_score_lora(x, lora_id, ids, n, top, out->log_probs, out->top_ids, out->top_log_probs);
fail:
    return err;
}

static void scores_fini(scores *s)
{
    free(s->log_probs);
    free(s->top_ids);
    free(s->top_log_probs);
}

static void put_line(FILE *f, const nrd_json *id, int32_t n, int32_t top, const scores *s)
{
    nrd_str line = {0};
    nrd_str_puts(&line, "{\"id\": ");
    if (id) {
        nrd_json_put(&line, id, -1);
    } else {
        nrd_str_puts(&line, "null");
    }
    nrd_str_puts(&line, ", \"logprobs\": [null");
    for (int32_t i = 1; i < n; i++) {
        nrd_str_puts(&line, ", ");
        nrd_json_put_float(&line, s->log_probs[i]);
    }
    nrd_str_puts(&line, "], \"top\": [[]");
    for (int32_t i = 1; i < n; i++) {
        nrd_str_puts(&line, ", [");
        for (int32_t k = 0; k < top; k++) {
            size_t at = (size_t)i * (size_t)top + (size_t)k;
            nrd_str_printf(&line, "%s[%d, ", k ? ", " : "", s->top_ids[at]);
            nrd_json_put_float(&line, s->top_log_probs[at]);
            nrd_str_putc(&line, ']');
        }
        nrd_str_putc(&line, ']');
    }
    nrd_str_puts(&line, "]}\n");
    fwrite(line.data, 1, line.len, f);
    nrd_str_fini(&line);
}

static nrd_error *one_line(nrd_exec *x, const options *o, const char *text, size_t len, FILE *out)
{
    nrd_error *err = NULL;
    nrd_json_doc *doc = NULL;
    int32_t *ids = NULL;
    scores s = {0};
    nrd_exec_info info = {.size = sizeof info};

    NRD_TRY_GOTO(nrd_json_parse(&doc, text, len, NULL), err, done);
    const nrd_json *tokens = nrd_json_get(nrd_json_root(doc), "tokens");
    size_t n = nrd_json_len(tokens);
    if (!nrd_json_is(tokens, NRD_JSON_ARRAY) || n < 1 || n > INT32_MAX) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "\"tokens\" must be a list of at least one id");
        goto done;
    }
    NRD_NEW_GOTO(ids, n, err, done);
    for (size_t i = 0; i < n; i++) {
        int64_t id = nrd_json_int(nrd_json_at(tokens, i), -1);
        if (id < 0 || id > INT32_MAX) {
            err = nrd_errorf(NRD_ERR_INVALID_ARG, "token %zu is no token id", i);
            goto done;
        }
        ids[i] = (int32_t)id;
    }
    nrd_exec_get_info(x, &info);
    int32_t top = o->top < info.vocab ? o->top : info.vocab;
    NRD_TRY_GOTO(score(x, o->lora_id, ids, (int32_t)n, top, &s), err, done);
    put_line(out, nrd_json_get(nrd_json_root(doc), "id"), (int32_t)n, top, &s);
done:
    scores_fini(&s);
    free(ids);
    nrd_json_doc_free(doc);
    return err;
}

static nrd_error *eval_tokens(nrd_exec *x, const options *o)
{
    nrd_error *err = NULL;
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    int64_t number = 0;
    FILE *in = fopen(o->tokens, "r");
    nrd_file_writer *w = NULL;

    if (!in) {
        return nrd_errorf(NRD_ERR_NOT_FOUND, "cannot read '%s': %s", o->tokens, strerror(errno));
    }
    NRD_TRY_GOTO(nrd_file_writer_open(&w, o->out), err, done);
    while ((n = getline(&line, &cap, in)) >= 0) {
        number++;
        if (strspn(line, " \t\r\n") == (size_t)n) {
            continue;
        }
        if (n > MAX_LINE_BYTES) {
            err = nrd_errorf(NRD_ERR_INVALID_ARG, "line is longer than %d bytes", MAX_LINE_BYTES);
        } else {
            err = one_line(x, o, line, (size_t)n, nrd_file_writer_stream(w));
        }
        if (err) {
            err = nrd_error_wrap(err, "%s line %lld", o->tokens, (long long)number);
            goto done;
        }
    }
    err = nrd_file_writer_commit(w);
    w = NULL;
done:
    nrd_file_writer_abort(w);
    free(line);
    fclose(in);
    return err;
}

/* Windows one after the other, each predicted from its own beginning. */
static nrd_error *eval_text(nrd_exec *x, const options *o, const char *tokenizer_path)
{
    nrd_error *err = NULL;
    nrd_tokenizer *t = NULL;
    char *text = NULL;
    size_t len = 0;
    nrd_ids ids = {0};
    nrd_exec_info info = {.size = sizeof info};
    double sum = 0;
    int64_t n_scored = 0;
    uint64_t start = nrd_now_ns();

    NRD_TRY_GOTO(nrd_tokenizer_open(&t, tokenizer_path), err, done);
    NRD_TRY_GOTO(nrd_file_read(&text, &len, o->file, MAX_TEXT_BYTES), err, done);
    NRD_TRY_GOTO(nrd_tokenizer_encode(t, text, len, NRD_ENCODE_ADD_SPECIAL, &ids), err, done);
    nrd_exec_get_info(x, &info);
    size_t window =
        (size_t)(o->window > 1 && o->window < info.max_seq_len ? o->window : info.max_seq_len);
    int32_t bos = nrd_tokenizer_bos_id(t);
    bool has_bos = bos >= 0 && ids.n > 0 && ids.ids[0] == bos;
    for (size_t at = 0; at < ids.n;) {
        nrd_ids part = {0};
        scores s = {0};
        if (at > 0 && has_bos) {
            nrd_ids_push(&part, bos);
        }
        size_t n = ids.n - at < window - part.n ? ids.n - at : window - part.n;
        nrd_ids_append(&part, ids.ids + at, n);
        at += n;
        if (part.n > 1) {
            err = score(x, o->lora_id, part.ids, (int32_t)part.n, 0, &s);
        }
        for (size_t i = 1; !err && i < part.n; i++) {
            sum += (double)s.log_probs[i];
            n_scored++;
        }
        scores_fini(&s);
        nrd_ids_fini(&part);
        if (err) {
            goto done;
        }
    }
    if (n_scored == 0) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "'%s' holds fewer than two tokens", o->file);
        goto done;
    }
    double seconds = (double)(nrd_now_ns() - start) / 1e9;
    printf("perplexity %.4f  (%lld tokens in windows of %zu, %.1f tokens/s)\n",
           exp(-sum / (double)n_scored), (long long)n_scored, window, (double)n_scored / seconds);
done:
    nrd_ids_fini(&ids);
    free(text);
    nrd_tokenizer_close(t);
    return err;
}

static nrd_error *run(const char *path, options *o)
{
    nrd_error *err = NULL;
    nrd_model_path m = {0};
    nrd_exec *x = NULL;
    nrd_exec_config c;

    nrd_ranks_enter();
    NRD_TRY_GOTO(nrd_exec_options_open(&o->exec, path, &m), err, done);
    nrd_exec_config_init(&c);
    NRD_TRY_GOTO(nrd_exec_options_apply(&o->exec, &c), err, done);
    c.tokenizer_dir = m.tokenizer; /* a draft model's is compared with it */
    c.enable_chunked_context = true;
    c.max_batch_size = c.max_batch_size ? c.max_batch_size : 1;
    c.max_beam_width = 1;
    c.max_num_tokens = c.max_num_tokens ? c.max_num_tokens : 1024;
    NRD_TRY_GOTO(nrd_exec_open(&x, m.engine, &c), err, done);
    NRD_TRY_GOTO(nrd_exec_options_adapter(&o->exec, x, &o->lora_id), err, done);
    if (o->tokens) {
        err = eval_tokens(x, o);
    } else {
        err = eval_text(x, o, o->tokenizer_dir ? o->tokenizer_dir : m.tokenizer);
    }
done:
    nrd_exec_close(x);
    nrd_model_path_close(&m);
    return err;
}

#define OPT(...) NRD_OPT_ROW(options, __VA_ARGS__)
static const nrd_opt rows[] = {
    OPT(STR, "file", "-f", file, "FILE", NULL, "text whose perplexity is wanted"),
    OPT(STR, "tokens", NULL, tokens, "IN", NULL, "JSON lines with token ids"),
    OPT(STR, "out", "-o", out, "OUT", NULL, "JSON lines with log probabilities"),
    OPT(INT, "top", NULL, top, "K", "0", "also the best K tokens at each position"),
    OPT(INT, "window", "-c", window, "N", "max_seq_len", "tokens of a window of text"),
    OPT(STR, "tokenizer_dir", NULL, tokenizer_dir, "DIR", NULL, "where PATH has none"),
    NRD_EXEC_OPTION_ROWS(options, exec),
};
const nrd_tool_table nrd_eval_table = NRD_TOOL_TABLE("eval", usage, rows, 1);

int nrd_tool_eval(int argc, char **argv)
{
    options o = {.window = 0};
    const char *path = NULL;
    size_t n = 0;
    int status =
        nrd_tool_parse(&nrd_eval_table, argc, argv, &o, &path, &n);
    if (status >= 0) {
        return status;
    }
    if (n != 1 || (o.tokens ? !o.out : !o.file)) {
        fputs("nereid eval: PATH and either -f FILE or --tokens IN --out OUT are needed (see "
              "--help)\n",
              stderr);
        return 2;
    }
    if (o.top < 0 || o.top > MAX_TOP) {
        fprintf(stderr, "nereid eval: --top must be in [0, %d]\n", MAX_TOP);
        return 2;
    }
    return nrd_tool_finish("eval", run(path, &o));
}
