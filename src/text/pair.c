/* SPDX-License-Identifier: Apache-2.0
 * One text or two as a model reads them: with the special tokens of the post-processor around them, cut where they are
 * too long. What follows tokenizer.json's TemplateProcessing, and how texts are cut, is as in Hugging Face's tokenizers
 * library. */
#include "text/internal.h"

#include <string.h>

/* ---- building ---- */

static nrd_error *copy(const nrd_ids *from, int32_t **out, size_t *n)
{
    nrd_error *err = NULL;
    int32_t *ids;

    NRD_TRY(nrd_ids_error(from));
    for (size_t i = 0; i < from->n; i++) {
        if (from->ids[i] < 0 || from->ids[i] >= TOK_MAX_ID) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "the post-processor adds token id %d", from->ids[i]);
        }
    }
    NRD_NEW_GOTO(ids, from->n, err, fail);
    if (from->n > 0) {
        memcpy(ids, from->ids, from->n * sizeof *ids);
    }
    free(*out);
    *out = ids;
    *n = from->n;
fail:
    return err;
}

nrd_error *nrd_tok_set_pair(nrd_tokenizer *t, const nrd_ids parts[3], size_t n_first)
{
    for (int i = 0; i < 3; i++) {
        NRD_TRY(copy(&parts[i], &t->pair[i], &t->n_pair[i]));
    }
    t->has_pair = true;
    t->n_pair_first = n_first < parts[1].n ? n_first : parts[1].n;
    t->pair_has_types = n_first != TOK_NO_TYPES;
    return NULL;
}

typedef struct reader {
    nrd_ids parts[3];
    int at;           /* 0 before the first text, 1 between, 2 behind the second */
    bool has_one;     /* a token of type 1 was met */
    size_t n_first;   /* tokens between the texts before that */
    bool is_strange;  /* what no caller can say by one place */
} reader;

static void read_type(reader *r, const nrd_json *item)
{
    const int64_t type = nrd_json_get_int(item, "type_id", 0);

    r->is_strange = r->is_strange || type < 0 || type > 1 || (r->has_one && type == 0) || (type == 1 && r->at == 0);
    if (type == 1 && !r->has_one) {
        r->has_one = true;
        r->n_first = r->parts[1].n;
    }
}

static nrd_error *read_special(reader *r, const nrd_json *special, const nrd_json *specials)
{
    const char *name = nrd_json_get_str(special, "id", "");
    const nrd_json *ids = nrd_json_get(nrd_json_get(specials, name), "ids");

    if (nrd_json_len(ids) == 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "TemplateProcessing: special token '%s' has no ids", name);
    }
    read_type(r, special);
    for (size_t i = 0; i < nrd_json_len(ids); i++) {
        const int64_t id = nrd_json_int(nrd_json_at(ids, i), -1);
        nrd_ids_push(&r->parts[r->at], id < 0 || id >= TOK_MAX_ID ? -1 : (int32_t)id);
    }
    return NULL;
}

static void read_text(reader *r, const nrd_json *text)
{
    const char *wanted = r->at == 0 ? "A" : "B";

    r->is_strange = r->is_strange || r->at > 1 || strcmp(nrd_json_get_str(text, "id", ""), wanted) != 0;
    read_type(r, text);
    r->at += r->at < 2;
}

nrd_error *nrd_tok_load_pair(nrd_tokenizer *t, const nrd_json *list, const nrd_json *specials)
{
    nrd_error *err = NULL;
    reader r = {0};

    for (size_t i = 0; i < nrd_json_len(list) && !err; i++) {
        const nrd_json *item = nrd_json_at(list, i), *special = nrd_json_get(item, "SpecialToken");
        if (special) {
            err = read_special(&r, special, specials);
        } else {
            read_text(&r, nrd_json_get(item, "Sequence"));
        }
    }
    t->pair_is_strange = nrd_json_len(list) > 0 && (r.is_strange || r.at != 2);
    if (!err && nrd_json_len(list) > 0 && !t->pair_is_strange) {
        err = nrd_tok_set_pair(t, r.parts, r.has_one ? r.n_first : TOK_NO_TYPES);
    }
    for (int i = 0; i < 3; i++) {
        nrd_ids_fini(&r.parts[i]);
    }
    return err;
}

/* ---- use ---- */

size_t nrd_tokenizer_n_special(const nrd_tokenizer *t, bool pair)
{
    const size_t single = t->n_prefix + t->n_suffix;
    return !pair ? single : t->has_pair ? t->n_pair[0] + t->n_pair[1] + t->n_pair[2] : 2 * single;
}

nrd_error *nrd_tokenizer_frame(const nrd_tokenizer *t, const nrd_ids *a, const nrd_ids *b, nrd_ids *out,
                               size_t *out_second_from)
{
    *out_second_from = 0;
    if (!b) {
        nrd_ids_append(out, t->prefix, t->n_prefix);
        nrd_ids_append(out, a->ids, a->n);
        nrd_ids_append(out, t->suffix, t->n_suffix);
        return nrd_ids_error(out);
    }
    if (t->pair_is_strange) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "this model's tokenizer joins pairs of texts in a way that is not supported");
    }
    nrd_ids_append(out, t->has_pair ? t->pair[0] : t->prefix, t->has_pair ? t->n_pair[0] : t->n_prefix);
    nrd_ids_append(out, a->ids, a->n);
    if (t->has_pair) {
        *out_second_from = t->pair_has_types ? out->n + t->n_pair_first : 0;
        nrd_ids_append(out, t->pair[1], t->n_pair[1]);
    } else {
        nrd_ids_append(out, t->suffix, t->n_suffix);
        nrd_ids_append(out, t->prefix, t->n_prefix);
    }
    nrd_ids_append(out, b->ids, b->n);
    nrd_ids_append(out, t->has_pair ? t->pair[2] : t->suffix, t->has_pair ? t->n_pair[2] : t->n_suffix);
    return nrd_ids_error(out);
}

void nrd_tokenizer_cut_longest(size_t *n_a, size_t *n_b, size_t room)
{
    size_t *small = *n_a <= *n_b ? n_a : n_b, *large = small == n_a ? n_b : n_a;

    if (*small + *large <= room) {
        return;
    }
    if (*small <= room && room - *small >= *small) {
        *large = room - *small;
        return;
    }
    *small = room / 2;
    *large = room - *small;
}
