/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/eval/needle.h"

#include "base/hash.h"
#include "base/progress.h"

#include <stdio.h>
#include <string.h>

static const char *const places[] = {"Lisbon", "Nairobi", "Oslo", "Lima", "Kyoto", "Tallinn", "Accra", "Quebec"};
enum { N_PLACES = sizeof places / sizeof places[0], NUMBERS = 9000000, SMALLEST = 1000000 };

typedef struct parts {
    nrd_ids hay, needle, question, number;
} parts;

static nrd_error *encode(const nrd_tokenizer *t, const char *text, uint32_t flags, nrd_ids *out)
{
    out->n = 0;
    NRD_TRY(nrd_tokenizer_encode(t, text, strlen(text), flags, out));
    return nrd_ids_error(out);
}

static void parts_fini(parts *p)
{
    nrd_ids_fini(&p->hay);
    nrd_ids_fini(&p->needle);
    nrd_ids_fini(&p->question);
    nrd_ids_fini(&p->number);
}

static nrd_error *make_parts(const nrd_eval_model *m, uint64_t what, parts *p)
{
    const char *place = places[what % N_PLACES];
    const int number = SMALLEST + (int)(what / N_PLACES % NUMBERS);
    char text[200];

    snprintf(text, sizeof text, "\nThe secret number of %s is %d.\n", place, number);
    NRD_TRY(encode(m->tokenizer, text, 0, &p->needle));
    snprintf(text, sizeof text, "\n\nWhat is the secret number of %s? The secret number of %s is", place, place);
    NRD_TRY(encode(m->tokenizer, text, 0, &p->question));
    snprintf(text, sizeof text, " %d", number);
    return encode(m->tokenizer, text, 0, &p->number);
}

/* The text with its needle behind `at` of its tokens. */
static nrd_error *ask(const nrd_eval_model *m, const parts *p, size_t room, size_t at, nrd_ids *ids, nrd_needle *out, int32_t i)
{
    nrd_eval_continuation said;

    ids->n = 0;
    NRD_TRY(nrd_tokenizer_encode(m->tokenizer, "", 0, NRD_ENCODE_ADD_SPECIAL, ids)); /* what stands before any text */
    for (size_t done = 0; done < room; done++) {
        if (done == at) {
            nrd_ids_append(ids, p->needle.ids, p->needle.n);
        }
        nrd_ids_push(ids, p->hay.ids[done % p->hay.n]);
    }
    if (at >= room) {
        nrd_ids_append(ids, p->needle.ids, p->needle.n);
    }
    nrd_ids_append(ids, p->question.ids, p->question.n);
    nrd_ids_append(ids, p->number.ids, p->number.n);
    NRD_TRY(nrd_ids_error(ids));
    NRD_TRY(nrd_eval_last(m, ids->ids, ids->n, p->number.n, &said));
    out->found[i] = said.is_greedy;
    out->n_found += said.is_greedy;
    out->log_prob += said.log_prob / said.n_tokens / out->n_samples;
    return NULL;
}

nrd_error *nrd_needle_run(const nrd_eval_model *m, const char *hay, size_t n_hay, uint64_t seed, nrd_needle *out)
{
    nrd_error *err = NULL;
    parts p = {0};
    nrd_ids ids = {0};
    char label[40];
    nrd_progress *bar = NULL;

    out->n_found = 0;
    out->log_prob = 0;
    if (out->length > m->max_tokens) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "a text of %d tokens; the model takes %d", out->length, m->max_tokens);
    }
    NRD_TRY_GOTO(nrd_tokenizer_encode(m->tokenizer, hay, n_hay, 0, &p.hay), err, done);
    NRD_TRY_GOTO(nrd_ids_error(&p.hay), err, done);
    if (p.hay.n == 0) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "the text to search in is empty");
        goto done;
    }
    snprintf(label, sizeof label, "needle in %d", out->length);
    bar = nrd_progress_new_of(label, (uint64_t)out->n_samples, "texts");
    for (int32_t i = 0; i < out->n_samples; i++) {
        NRD_TRY_GOTO(make_parts(m, nrd_hash_u64(seed, (uint64_t)i), &p), err, done);
        const size_t around = p.needle.n + p.question.n + p.number.n + nrd_tokenizer_n_special(m->tokenizer, false);
        if ((size_t)out->length <= around) {
            err = nrd_errorf(NRD_ERR_INVALID_ARG, "a text of %d tokens has no room for the question, which takes %zu",
                             out->length, around);
            goto done;
        }
        const size_t room = (size_t)out->length - around, steps = out->n_samples > 1 ? (size_t)out->n_samples - 1 : 1;
        NRD_TRY_GOTO(ask(m, &p, room, room * (size_t)i / steps, &ids, out, i), err, done);
        nrd_progress_add(bar, 1);
    }
done:
    if (bar) {
        nrd_progress_done(bar);
    }
    nrd_ids_fini(&ids);
    parts_fini(&p);
    return err;
}
