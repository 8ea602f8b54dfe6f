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
#include "tools/eval/compare.h"
#include "tools/eval/needle.h"
#include "tools/eval/tasks.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const char usage[] =
    "Usage: nereid eval PATH -f FILE [options]                   perplexity of a text\n"
    "       nereid eval PATH --compare OTHER -f FILE [options]   two models: perplexity, divergence, worst tokens\n"
    "       nereid eval PATH --task FILE [options]               questions with several answers (lm_eval --log_samples)\n"
    "       nereid eval PATH --needle LENGTHS [options]          one sentence in long texts\n"
    "       nereid eval PATH --tokens IN --out OUT [options]     log probabilities of tokens\n\n"
    "IN holds {\"id\": …, \"tokens\": [...]} a line; OUT gets {\"id\", \"logprobs\", \"top\"}: "
    "entry i is\n"
    "about token i given those before it (null and [] for the first).\n";

enum { MAX_LINE_BYTES = 64 << 20, MAX_TEXT_BYTES = 1 << 30, MAX_TOP = 1024, COMPARED_WINDOW = 2048 };

typedef struct {
    const char *file, *tokens, *out, *compare, *compare_lora, *task, *needle;
    int32_t top, window, worst, limit, samples;
    int64_t seed;
    bool json;
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
    printf(o->json ? "{\"perplexity\": %.6g, \"tokens\": %lld, \"window\": %zu, \"tokens_per_s\": %.6g}\n"
                   : "perplexity %.4f  (%lld tokens in windows of %zu, %.1f tokens/s)\n",
           exp(-sum / (double)n_scored), (long long)n_scored, window, (double)n_scored / seconds);
done:
    nrd_ids_fini(&ids);
    free(text);
    nrd_tokenizer_close(t);
    return err;
}

/* ---- questions, needles ---- */

static void print_share(const char *name, int64_t n, int64_t of, int64_t told, int64_t told_of)
{
    const double p = (double)n / (double)of;
    printf("%-9s %.4f ± %.4f", name, p, of > 1 ? sqrt(p * (1 - p) / (double)(of - 1)) : 0.0);
    if (told_of > 0) {
        printf("   in the file %.4f", (double)told / (double)told_of);
    }
    putchar('\n');
}

static nrd_error *eval_task(const nrd_eval_model *m, const options *o)
{
    nrd_eval_task t;

    NRD_TRY(nrd_eval_task_run(m, o->task, o->limit, &t));
    const double n = (double)t.n, told = t.n_told > 0 ? (double)t.n_told : 1, off = t.n_answers > 0 ? (double)t.n_answers : 1;
    if (o->json) {
        printf("{\"questions\": %lld, \"acc\": %.6g, \"acc_norm\": %.6g", (long long)t.n, (double)t.right / n,
               (double)t.right_norm / n);
        if (t.n_told > 0) {
            printf(", \"file\": {\"questions\": %lld, \"acc\": %.6g, \"acc_norm\": %.6g, \"same_choice\": %.6g, "
                   "\"log_prob_off_mean\": %.6g, \"log_prob_off_max\": %.6g}", (long long)t.n_told, (double)t.told_right / told,
                   (double)t.told_right_norm / told, (double)t.same / told, t.off_sum / off, t.off_most);
        }
        puts("}");
        return NULL;
    }
    printf("%lld questions\n", (long long)t.n);
    print_share("acc", t.right, t.n, t.told_right, t.n_told);
    print_share("acc_norm", t.right_norm, t.n, t.told_right_norm, t.n_told);
    if (t.n_told > 0) {
        printf("same choice as in the file %.2f %%; log likelihoods off by %.4f, at most %.4f\n", 100 * (double)t.same / told,
               t.off_sum / off, t.off_most);
    }
    return NULL;
}

static void print_needle(const nrd_needle *n, bool json, bool first)
{
    if (json) {
        printf("%s{\"length\": %d, \"samples\": %d, \"found\": %d, \"log_prob\": %.6g}", first ? "[" : ", ", n->length,
               n->n_samples, n->n_found, n->log_prob);
        return;
    }
    printf("%8d tokens: found %d of %d, %.4f nats a token", n->length, n->n_found, n->n_samples, n->log_prob);
    for (int32_t i = 0, any = 0; i < n->n_samples; i++) {
        if (!n->found[i]) {
            printf("%s%d %%", any++ ? ", " : "; not at ", n->n_samples > 1 ? 100 * i / (n->n_samples - 1) : 0);
        }
    }
    putchar('\n');
    fflush(stdout);
}

static nrd_error *eval_needle(const nrd_eval_model *m, const options *o)
{
    nrd_error *err = NULL;
    char *text = NULL, *end = NULL;
    size_t len = 0;
    nrd_needle n;

    if (o->file) {
        NRD_TRY(nrd_file_read(&text, &len, o->file, MAX_TEXT_BYTES));
    }
    for (const char *at = o->needle; !err && *at; at = *end == ',' ? end + 1 : end) {
        const long length = strtol(at, &end, 10);
        if (end == at || length < 1 || length > INT32_MAX || (*end && *end != ',')) {
            err = nrd_errorf(NRD_ERR_INVALID_ARG, "--needle '%s': expected lengths in tokens, with ',' between", o->needle);
            break;
        }
        n = (nrd_needle){.length = (int32_t)length, .n_samples = o->samples};
        const char *hay = text ? text : nrd_qtext_calibration;
        err = nrd_error_wrap(nrd_needle_run(m, hay, text ? len : strlen(hay), (uint64_t)o->seed, &n), "--needle");
        if (!err) {
            print_needle(&n, o->json, at == o->needle);
        }
    }
    if (o->json && !err) {
        puts("]");
    }
    free(text);
    return err;
}

static nrd_error *eval_with_tokenizer(nrd_exec *x, const options *o, const char *tokenizer_path)
{
    nrd_tokenizer *t = NULL;
    nrd_exec_info info = {.size = sizeof info};

    NRD_TRY(nrd_tokenizer_open(&t, tokenizer_path));
    nrd_exec_get_info(x, &info);
    const nrd_eval_model m = {.exec = x, .tokenizer = t, .lora_id = o->lora_id, .max_tokens = info.max_seq_len};
    nrd_error *err = o->task ? eval_task(&m, o) : eval_needle(&m, o);
    nrd_tokenizer_close(t);
    return err;
}

/* ---- models ---- */

static nrd_error *open_exec(const options *o, const nrd_model_path *m, nrd_exec **x)
{
    nrd_exec_config c;

    nrd_exec_config_init(&c);
    NRD_TRY(nrd_exec_options_apply(&o->exec, &c));
    c.tokenizer_dir = m->tokenizer; /* a draft model's is compared with it */
    c.enable_chunked_context = true;
    c.max_batch_size = c.max_batch_size ? c.max_batch_size : 1;
    c.max_beam_width = 1;
    c.max_num_tokens = c.max_num_tokens ? c.max_num_tokens : 1024;
    return nrd_exec_open(x, m->engine, &c);
}

static nrd_error *open_texts(nrd_qtexts *out, const options *o, const char *tokenizer_path, size_t window, nrd_tokenizer **t)
{
    NRD_TRY(nrd_tokenizer_open(t, tokenizer_path));
    return nrd_qtexts_open(out, *t, o->file, NULL, SIZE_MAX, window, 0);
}

static bool same_ids(const nrd_qtexts *a, const nrd_qtexts *b)
{
    return a->ids.n == b->ids.n && memcmp(a->ids.ids, b->ids.ids, a->ids.n * sizeof *a->ids.ids) == 0;
}

/* One model after the other, since both might not fit. Both cut the text before either reads it, which takes long. */
static nrd_error *compare(const char *path, options *o)
{
    nrd_error *err = NULL;
    nrd_model_path m[2] = {{0}};
    nrd_exec *x = NULL;
    nrd_tokenizer *t[2] = {NULL};
    nrd_qtexts texts[2] = {{.n = 0}};
    nrd_qmeasure measured = {0};
    nrd_str said = {0};
    const char *paths[2] = {path, o->compare}, *adapters[2] = {o->exec.lora_dir, o->compare_lora};
    nrd_exec_info info = {.size = sizeof info};
    size_t window = (size_t)(o->window > 1 ? o->window : COMPARED_WINDOW);
    uint64_t lora_id = 0;

    for (int i = 0; i < 2; i++) {
        NRD_TRY_GOTO(nrd_exec_options_open(&o->exec, paths[i], &m[i]), err, done);
    }
    NRD_TRY_GOTO(open_exec(o, &m[0], &x), err, done);
    nrd_exec_get_info(x, &info);
    window = window > (size_t)info.max_seq_len ? (size_t)info.max_seq_len : window;
    for (int i = 0; i < 2; i++) {
        NRD_TRY_GOTO(open_texts(&texts[i], o, o->exec.tokenizer_dir ? o->exec.tokenizer_dir : m[i].tokenizer, window, &t[i]), err, done);
    }
    if (!same_ids(&texts[0], &texts[1])) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "--compare: '%s' cuts the text into other tokens than '%s'", paths[1], paths[0]);
        goto done;
    }
    NRD_TRY_GOTO(nrd_qmeasure_init(&measured, &texts[0]), err, done);
    for (int i = 0; i < 2; i++) {
        o->exec.lora_dir = adapters[i];
        NRD_TRY_GOTO(x ? NULL : open_exec(o, &m[i], &x), err, done);
        NRD_TRY_GOTO(nrd_exec_options_adapter(&o->exec, x, &lora_id), err, done);
        NRD_TRY_GOTO(nrd_qmeasure_read(&measured, x, lora_id, i == 1, i ? "second" : "first"), err, done);
        nrd_exec_close(x);
        x = NULL;
    }
    NRD_TRY_GOTO(nrd_eval_comparison(&measured, t[0], paths[0], paths[1], o->worst, o->json, &said), err, done);
    fputs(nrd_str_cstr(&said), stdout);
done:
    nrd_exec_close(x);
    nrd_qmeasure_fini(&measured);
    nrd_str_fini(&said);
    for (int i = 0; i < 2; i++) {
        nrd_qtexts_close(&texts[i]);
        nrd_tokenizer_close(t[i]);
        nrd_model_path_close(&m[i]);
    }
    return err;
}

static nrd_error *run(const char *path, options *o)
{
    nrd_error *err = NULL;
    nrd_model_path m = {0};
    nrd_exec *x = NULL;

    nrd_ranks_enter();
    if (o->compare) {
        return compare(path, o);
    }
    NRD_TRY_GOTO(nrd_exec_options_open(&o->exec, path, &m), err, done);
    NRD_TRY_GOTO(open_exec(o, &m, &x), err, done);
    NRD_TRY_GOTO(nrd_exec_options_adapter(&o->exec, x, &o->lora_id), err, done);
    const char *tokenizer = o->exec.tokenizer_dir ? o->exec.tokenizer_dir : m.tokenizer;
    if (o->tokens) {
        err = eval_tokens(x, o);
    } else if (o->task || o->needle) {
        err = eval_with_tokenizer(x, o, tokenizer);
    } else {
        err = eval_text(x, o, tokenizer);
    }
done:
    nrd_exec_close(x);
    nrd_model_path_close(&m);
    return err;
}

#define OPT(...) NRD_OPT_ROW(options, __VA_ARGS__)
static const nrd_opt rows[] = {
    OPT(STR, "file", "-f", file, "FILE", NULL, "text whose perplexity is wanted, or in which a needle lies"),
    OPT(STR, "compare", NULL, compare, "OTHER", NULL, "another model with the same tokenizer"),
    OPT(STR, "compare_lora_dir", NULL, compare_lora, "DIR", NULL, "with --compare: a LoRA adapter for OTHER, as --lora_dir is for PATH"),
    OPT(INT, "worst", NULL, worst, "N", "10", "with --compare: tokens shown of which both say the most different things"),
    OPT(STR, "task", NULL, task, "FILE", NULL,
        "JSON lines: samples of lm_eval, or {\"query\", \"choices\", \"gold\"}"),
    OPT(INT, "limit", NULL, limit, "N", "all", "questions of it"),
    OPT(STR, "needle", NULL, needle, "LENGTHS", NULL, "tokens of a text, with ',' between: 8192,32768"),
    OPT(INT, "samples", NULL, samples, "N", "10", "texts of each length, the needle at another place in each"),
    OPT(I64, "seed", NULL, seed, "N", "1234", "what the needle says"),
    OPT(FLAG, "json", NULL, json, NULL, NULL, "the result as JSON"),
    OPT(STR, "tokens", NULL, tokens, "IN", NULL, "JSON lines with token ids"),
    OPT(STR, "out", "-o", out, "OUT", NULL, "JSON lines with log probabilities"),
    OPT(INT, "top", NULL, top, "K", "0", "also the best K tokens at each position"),
    OPT(INT, "window", "-c", window, "N", "max_seq_len", "tokens of a window of text"),
    OPT(STR, "tokenizer_dir", NULL, exec.tokenizer_dir, "DIR", NULL, "where PATH has none"),
    NRD_EXEC_OPTION_ROWS(options, exec),
};
const nrd_tool_table nrd_eval_table = NRD_TOOL_TABLE("eval", usage, rows, 1);

int nrd_tool_eval(int argc, char **argv)
{
    options o = {.worst = 10, .samples = 10, .seed = 1234};
    const char *path = NULL;
    size_t n = 0;
    int status =
        nrd_tool_parse(&nrd_eval_table, argc, argv, &o, &path, &n);
    if (status >= 0) {
        return status;
    }
    if (n != 1 || (o.tokens ? !o.out : !o.file && !o.task && !o.needle) || (o.compare && !o.file)) {
        fputs("nereid eval: PATH and one of -f FILE, --compare OTHER -f FILE, --task FILE, --needle LENGTHS, --tokens IN --out "
              "OUT are needed (see --help)\n", stderr);
        return 2;
    }
    o.exec.needs_tokenizer = !o.tokens;
    if (o.compare_lora && !o.compare) {
        fputs("nereid eval: --compare_lora_dir is for OTHER of --compare\n", stderr);
        return 2;
    }
    if (o.samples < 1 || o.samples > NRD_NEEDLE_MAX_SAMPLES || o.worst < 0) {
        fprintf(stderr, "nereid eval: --samples must be in [1, %d], --worst not below 0\n", NRD_NEEDLE_MAX_SAMPLES);
        return 2;
    }
    if (o.top < 0 || o.top > MAX_TOP) {
        fprintf(stderr, "nereid eval: --top must be in [0, %d]\n", MAX_TOP);
        return 2;
    }
    return nrd_tool_finish("eval", run(path, &o));
}
