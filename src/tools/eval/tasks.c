/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/eval/tasks.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/number.h"
#include "base/progress.h"
#include "base/utf8.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LINE_BYTES = 64 << 20, MAX_ANSWERS = 1024 };

typedef struct answer {
    const nrd_json *context, *text;
    double log_prob, told; /* told: what the file says */
    double n_chars;
    bool is_greedy, told_greedy, has_told;
} answer;

typedef struct question {
    answer *answers;
    size_t n;
    size_t right; /* which one; SIZE_MAX: there is one alone */
    nrd_str space; /* answers of "choices" with a space before each */
} question;

static double characters(const char *s, size_t n)
{
    double count = 0;
    uint32_t cp;
    for (size_t i = n > 0 && s[0] == ' '; i < n; i += nrd_utf8_next(s + i, n - i, &cp)) {
        count++;
    }
    return count > 0 ? count : 1;
}

/* A number, or a text that is one. */
static bool number_of(const nrd_json *v, double *out)
{
    if (nrd_json_is(v, NRD_JSON_STRING)) {
        const char *text = nrd_json_str(v, "");
        char *end = NULL;
        *out = nrd_number_read(text, &end);
        return *text && end && !*end;
    }
    *out = nrd_json_num(v, NAN);
    return !isnan(*out);
}

static bool is_true(const nrd_json *v)
{
    return nrd_json_bool(v, false) || !strcmp(nrd_json_str(v, ""), "True");
}

/* The i-th of a list, or the member `name`i of an object. */
static const nrd_json *item(const nrd_json *list, const char *name, size_t i)
{
    char key[40];
    if (nrd_json_is(list, NRD_JSON_ARRAY)) {
        return nrd_json_at(list, i);
    }
    snprintf(key, sizeof key, "%s%zu", name, i);
    return nrd_json_get(list, key);
}

static nrd_error *take_argument(const nrd_json *arguments, size_t i, answer *a)
{
    const nrd_json *pair = item(arguments, "gen_args_", i);
    a->context = item(pair, "arg_", 0);
    a->text = item(pair, "arg_", 1);
    if (nrd_json_is(a->text, NRD_JSON_OBJECT)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "\"arguments\": a task that generates text; tasks of log likelihoods are scored");
    }
    if (!nrd_json_is(a->context, NRD_JSON_STRING) || !nrd_json_is(a->text, NRD_JSON_STRING)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "\"arguments\" %zu: expected a context and a continuation", i);
    }
    return NULL;
}

/* [[[log likelihood, is greedy]], …] or the same without the innermost list. */
static void take_told(const nrd_json *told, size_t i, answer *a)
{
    const nrd_json *pair = nrd_json_at(told, i);
    if (nrd_json_is(nrd_json_at(pair, 0), NRD_JSON_ARRAY)) {
        pair = nrd_json_at(pair, 0);
    }
    a->has_told = number_of(nrd_json_at(pair, 0), &a->told);
    a->told_greedy = is_true(nrd_json_at(pair, 1));
}

static nrd_error *take_gold(const nrd_json *line, const char *key, question *q)
{
    double gold;
    if (!number_of(nrd_json_get(line, key), &gold) || gold < 0 || gold >= (double)q->n || gold != floor(gold)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "\"%s\": expected the number of an answer, below %zu", key, q->n);
    }
    q->right = (size_t)gold;
    return NULL;
}

static nrd_error *read_question(const nrd_json *line, question *q)
{
    nrd_error *err = NULL;
    const nrd_json *arguments = nrd_json_get(line, "arguments"), *choices = nrd_json_get(line, "choices");
    const nrd_json *told = nrd_json_get(line, "resps"), *query = nrd_json_get(line, "query");

    q->right = SIZE_MAX;
    q->n = arguments ? nrd_json_len(arguments) : nrd_json_len(choices);
    if (q->n < 1 || q->n > MAX_ANSWERS || (!arguments && !nrd_json_is(query, NRD_JSON_STRING))) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "expected \"arguments\" (samples of lm_eval), or \"query\", \"choices\" and "
                          "\"gold\", with 1 to %d answers", MAX_ANSWERS);
    }
    NRD_NEW_GOTO(q->answers, q->n, err, done);
    for (size_t i = 0; i < q->n; i++) {
        answer *a = &q->answers[i];
        if (arguments) {
            NRD_TRY_GOTO(take_argument(arguments, i, a), err, done);
            take_told(told, i, a);
            continue;
        }
        *a = (answer){.context = query, .text = nrd_json_at(choices, i)};
        if (!nrd_json_is(a->text, NRD_JSON_STRING)) {
            err = nrd_errorf(NRD_ERR_INVALID_ARG, "\"choices\" %zu: expected a text", i);
            goto done;
        }
    }
    if (q->n > 1) {
        err = take_gold(line, arguments ? "target" : "gold", q);
    }
done:
    return err;
}

static nrd_error *score(const nrd_eval_model *m, bool add_space, question *q)
{
    for (size_t i = 0; i < q->n; i++) {
        answer *a = &q->answers[i];
        nrd_eval_continuation c;
        nrd_str *s = &q->space;

        nrd_str_clear(s);
        nrd_str_puts(s, add_space ? " " : "");
        nrd_str_append(s, a->text->str, a->text->n);
        NRD_TRY(nrd_str_error(s));
        NRD_TRY(nrd_error_wrap(nrd_eval_continue(m, a->context->str, a->context->n, s->data, s->len, &c), "answer %zu", i));
        a->log_prob = c.log_prob;
        a->is_greedy = c.is_greedy;
        a->n_chars = characters(s->data, s->len);
    }
    return NULL;
}

static size_t choose(const question *q, bool told, bool by_character)
{
    size_t best = 0;
    double most = -INFINITY;
    for (size_t i = 0; i < q->n; i++) {
        const answer *a = &q->answers[i];
        const double p = (told ? a->told : a->log_prob) / (by_character ? a->n_chars : 1);
        if (p > most) {
            most = p;
            best = i;
        }
    }
    return best;
}

static void count(const question *q, nrd_eval_task *out)
{
    const bool alone = q->right == SIZE_MAX;
    bool all_told = true;

    for (size_t i = 0; i < q->n; i++) {
        all_told = all_told && q->answers[i].has_told;
    }
    out->n++;
    out->right += alone ? q->answers[0].is_greedy : choose(q, false, false) == q->right;
    out->right_norm += alone ? q->answers[0].is_greedy : choose(q, false, true) == q->right;
    if (!all_told) {
        return;
    }
    out->n_told++;
    out->told_right += alone ? q->answers[0].told_greedy : choose(q, true, false) == q->right;
    out->told_right_norm += alone ? q->answers[0].told_greedy : choose(q, true, true) == q->right;
    out->same += alone ? q->answers[0].is_greedy == q->answers[0].told_greedy : choose(q, false, false) == choose(q, true, false);
    for (size_t i = 0; i < q->n; i++) {
        const double off = fabs(q->answers[i].log_prob - q->answers[i].told);
        out->n_answers++;
        out->off_sum += off;
        out->off_most = off > out->off_most ? off : out->off_most;
    }
}

static nrd_error *add_line(const nrd_eval_model *m, const nrd_json *line, nrd_eval_task *out)
{
    question q = {0};
    nrd_error *err = read_question(line, &q);

    err = err ? err : score(m, !nrd_json_get(line, "arguments"), &q);
    if (!err) {
        count(&q, out);
    }
    nrd_str_fini(&q.space);
    free(q.answers);
    return err;
}

static nrd_error *one_line(const nrd_eval_model *m, const char *text, size_t n, nrd_eval_task *out)
{
    nrd_json_doc *doc = NULL;

    if (n > MAX_LINE_BYTES) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "longer than %d bytes", MAX_LINE_BYTES);
    }
    const nrd_json_limits limits = {.special = true};
    NRD_TRY(nrd_json_parse(&doc, text, n, &limits));
    nrd_error *err = add_line(m, nrd_json_root(doc), out);
    nrd_json_doc_free(doc);
    return err;
}

nrd_error *nrd_eval_task_run(const nrd_eval_model *m, const char *path, int64_t limit, nrd_eval_task *out)
{
    nrd_error *err = NULL;
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    int64_t number = 0;
    FILE *in = fopen(path, "r");

    *out = (nrd_eval_task){0};
    if (!in) {
        return nrd_errorf(NRD_ERR_NOT_FOUND, "cannot read '%s': %s", path, strerror(errno));
    }
    nrd_progress *bar = nrd_progress_new_of("questions", limit > 0 ? (uint64_t)limit : 0, "questions");
    while (!err && (limit <= 0 || out->n < limit) && (n = getline(&line, &cap, in)) >= 0) {
        number++;
        if (strspn(line, " \t\r\n") != (size_t)n) {
            err = nrd_error_wrap(one_line(m, line, (size_t)n, out), "%s line %lld", path, (long long)number);
            nrd_progress_add(bar, 1);
        }
    }
    nrd_progress_done(bar);
    if (!err && out->n == 0) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "'%s' holds no questions", path);
    }
    free(line);
    fclose(in);
    return err;
}
