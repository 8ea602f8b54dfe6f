/* SPDX-License-Identifier: Apache-2.0
 * tokenizer.model: SentencePiece's protobuf, read by hand with every length checked. */
#include "text/internal.h"

#include <string.h>

enum { /* SentencePiece.Type */
    SP_NORMAL = 1,
    SP_UNKNOWN = 2,
    SP_CONTROL = 3,
    SP_USER_DEFINED = 4,
    SP_UNUSED = 5,
    SP_BYTE = 6,
};

typedef struct reader {
    const uint8_t *p, *end;
} reader;

typedef struct field {
    uint32_t number, wire;
    uint64_t value;    /* varint, fixed32, fixed64 */
    const uint8_t *data; /* length-delimited */
    size_t n;
} field;

static nrd_error *broken(const char *what)
{
    return nrd_errorf(NRD_ERR_INVALID_ARG, "SentencePiece model: %s", what);
}

static bool read_varint(reader *r, uint64_t *out)
{
    uint64_t v = 0;
    for (int shift = 0; shift < 64 && r->p < r->end; shift += 7) {
        uint8_t b = *r->p++;
        v |= (uint64_t)(b & 0x7f) << shift;
        if (!(b & 0x80)) {
            *out = v;
            return true;
        }
    }
    return false;
}

/* Reads a field; at the end of the message *more is false. */
static nrd_error *next_field(reader *r, field *f, bool *more)
{
    uint64_t key, len;
    *more = r->p < r->end;
    if (!*more) {
        return NULL;
    }
    if (!read_varint(r, &key) || key >> 3 == 0 || key >> 3 > 0x1fffffff) {
        return broken("a field has no valid number");
    }
    memset(f, 0, sizeof *f);
    f->number = (uint32_t)(key >> 3);
    f->wire = key & 7;
    if (f->wire == 0) {
        return read_varint(r, &f->value) ? NULL : broken("a number is cut off");
    }
    if (f->wire == 2) {
        if (!read_varint(r, &len) || len > (uint64_t)(r->end - r->p)) {
            return broken("a field is longer than what is left");
        }
        f->data = r->p;
        f->n = (size_t)len;
        r->p += len;
        return NULL;
    }
    size_t width = f->wire == 5 ? 4 : f->wire == 1 ? 8 : 0;
    if (width == 0 || (size_t)(r->end - r->p) < width) {
        return broken("a field has an unknown wire type or is cut off");
    }
    for (size_t i = 0; i < width; i++) {
        f->value |= (uint64_t)r->p[i] << (8 * i);
    }
    r->p += width;
    return NULL;
}

typedef struct spm { /* what trainer and normalizer say */
    int64_t model_type, unk_id, bos_id, eos_id, pad_id;
    bool byte_fallback, whitespace_as_suffix;
    bool add_dummy_prefix, remove_extra, escape;
    const uint8_t *charsmap;
    size_t charsmap_n;
} spm;

/* The id of the piece that is so many in the file; -1: it is left out. */
static int32_t id_of(nrd_tokenizer *t, int32_t place, const field *text, bool is_control, nrd_tok_piece_ids ids)
{
    if (ids == PIECES_OF_FAIRSEQ) {
        static const char *const first[] = {"<s>", "<pad>", "</s>", "<unk>"};
        for (int32_t i = 0; i < 4; i++) {
            if (is_control && text->n == strlen(first[i]) && !memcmp(text->data, first[i], text->n)) {
                return i;
            }
        }
        return place + 1;
    }
    if (ids == PIECES_OF_VOCABULARY) {
        const int32_t id = nrd_strmap_get(&t->by_token, t->tokens, (const char *)text->data, text->n);
        if (id >= 0) {
            t->flags[id] &= (uint8_t)~TOK_OUTPUT;
        }
        return id >= 0 ? id : is_control ? -1 : t->n_vocab;
    }
    return place;
}

static nrd_error *read_piece(nrd_tokenizer *t, int32_t place, const field *message, nrd_tok_piece_ids ids)
{
    static const uint8_t flags[] = {
        [SP_NORMAL] = TOK_IN_MODEL,
        [SP_UNKNOWN] = TOK_IN_MODEL | TOK_CONTROL,
        [SP_CONTROL] = TOK_IN_MODEL | TOK_CONTROL,
        [SP_USER_DEFINED] = TOK_IN_MODEL | TOK_USER,
        [SP_UNUSED] = TOK_IN_MODEL | TOK_CONTROL,
        [SP_BYTE] = TOK_IN_MODEL | TOK_BYTE,
    };
    reader r = {message->data, message->data + message->n};
    field f, text = {0};
    uint64_t type = SP_NORMAL;
    float score = 0;
    bool more;

    for (;;) {
        NRD_TRY(next_field(&r, &f, &more));
        if (!more) {
            break;
        }
        if (f.number == 1 && f.wire == 2) {
            text = f;
        } else if (f.number == 2 && f.wire == 5) {
            uint32_t bits = (uint32_t)f.value;
            memcpy(&score, &bits, sizeof score);
        } else if (f.number == 3 && f.wire == 0) {
            type = f.value;
        }
    }
    if (text.n == 0 || type < SP_NORMAL || type > SP_BYTE || score != score) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "SentencePiece model: piece %d is not valid", place);
    }
    const int32_t id = id_of(t, place, &text, type == SP_UNKNOWN || type == SP_CONTROL, ids);
    if (id < 0) {
        return NULL;
    }
    NRD_TRY(nrd_tok_set(t, id, (const char *)text.data, text.n, flags[type]));
    NRD_TRY(nrd_tok_set_score(t, id, (double)score));
    if (type == SP_UNKNOWN) {
        t->unk_id = id;
    }
    if (type == SP_UNKNOWN || type == SP_CONTROL || (type == SP_USER_DEFINED)) {
        return nrd_tok_add_added(t, &(nrd_tok_added_token){.id = id,
                                                           .normalized = type == SP_USER_DEFINED,
                                                           .special = type != SP_USER_DEFINED});
    }
    return NULL;
}

static nrd_error *read_trainer(spm *m, const field *message)
{
    reader r = {message->data, message->data + message->n};
    field f;
    bool more;
    for (;;) {
        NRD_TRY(next_field(&r, &f, &more));
        if (!more) {
            return NULL;
        }
        int32_t id = (int32_t)(uint32_t)f.value; /* negative ids are 64-bit varints */
        switch (f.wire == 0 ? f.number : 0) {
        case 3:
            m->model_type = (int64_t)f.value;
            break;
        case 24:
            m->whitespace_as_suffix = f.value != 0;
            break;
        case 35:
            m->byte_fallback = f.value != 0;
            break;
        case 40:
            m->unk_id = id;
            break;
        case 41:
            m->bos_id = id;
            break;
        case 42:
            m->eos_id = id;
            break;
        case 43:
            m->pad_id = id;
            break;
        default:
            break;
        }
    }
}

static nrd_error *read_normalizer(spm *m, const field *message)
{
    reader r = {message->data, message->data + message->n};
    field f;
    bool more;
    for (;;) {
        NRD_TRY(next_field(&r, &f, &more));
        if (!more) {
            return NULL;
        }
        if (f.number == 2 && f.wire == 2) {
            m->charsmap = f.data;
            m->charsmap_n = f.n;
        } else if (f.wire == 0) {
            m->add_dummy_prefix = f.number == 3 ? f.value != 0 : m->add_dummy_prefix;
            m->remove_extra = f.number == 4 ? f.value != 0 : m->remove_extra;
            m->escape = f.number == 5 ? f.value != 0 : m->escape;
        }
    }
}

static nrd_error *add_decoder(nrd_tokenizer *t, const spm *m)
{
    nrd_tok_dec_step *step = NULL;
    NRD_TRY(nrd_tok_new_dec(t, DEC_REPLACE, &step));
    NRD_TRY(nrd_tok_text_copy(&step->from, &step->from_n, TOK_SPACE, 3));
    NRD_TRY(nrd_tok_text_copy(&step->to, &step->to_n, " ", 1));
    if (m->byte_fallback) {
        NRD_TRY(nrd_tok_new_dec(t, DEC_BYTE_FALLBACK, &step));
    }
    NRD_TRY(nrd_tok_new_dec(t, DEC_FUSE, &step));
    if (m->add_dummy_prefix || m->remove_extra) {
        NRD_TRY(nrd_tok_new_dec(t, DEC_STRIP, &step));
        NRD_TRY(nrd_tok_text_copy(&step->from, &step->from_n, " ", 1));
        step->start = m->remove_extra ? INT32_MAX : 1;
    }
    t->decode_per_char = true;
    t->decode_sentencepiece = true;
    return NULL;
}

/* An id that the trainer names counts only if such a control piece exists. */
static int32_t control_id(const nrd_tokenizer *t, int64_t id)
{
    return id >= 0 && id < t->n_vocab && (t->flags[id] & TOK_CONTROL) ? (int32_t)id : -1;
}

/* BOS, EOS and padding as the trainer says, and the affixes that families have. */
static nrd_error *settle_in_place(nrd_tokenizer *t, const spm *m)
{
    t->bos_id = control_id(t, m->bos_id);
    t->eos_id = control_id(t, m->eos_id);
    t->pad_id = control_id(t, m->pad_id);
    /* Without a tokenizer_config.json: what the families do, BOS for BPE, EOS for Unigram. */
    if (t->model == MODEL_BPE && t->bos_id >= 0) {
        NRD_TRY(nrd_tok_set_affix(t, false, &t->bos_id, 1));
    } else if (t->model == MODEL_UNIGRAM && t->eos_id >= 0) {
        NRD_TRY(nrd_tok_set_affix(t, true, &t->eos_id, 1));
    }
    return nrd_tok_finish(t);
}

nrd_error *nrd_tok_load_spm_bytes(nrd_tokenizer *t, const void *data, size_t n)
{
    return nrd_tok_load_spm(t, data, n, PIECES_IN_PLACE);
}

nrd_error *nrd_tok_load_spm(nrd_tokenizer *t, const void *data, size_t n, nrd_tok_piece_ids ids)
{
    spm m = {.model_type = 1, .bos_id = 1, .eos_id = 2, .pad_id = -1, .add_dummy_prefix = true,
             .remove_extra = true, .escape = true};
    reader r = {data, (const uint8_t *)data + n};
    nrd_tok_norm_step *step = NULL;
    field f;
    int32_t place = 0;
    bool more;

    t->scores_are_float = true;
    for (;;) {
        NRD_TRY(next_field(&r, &f, &more));
        if (!more) {
            break;
        }
        if (f.wire != 2) {
            continue;
        }
        if (f.number == 1) {
            NRD_TRY(read_piece(t, place++, &f, ids));
        } else if (f.number == 2) {
            NRD_TRY(read_trainer(&m, &f));
        } else if (f.number == 3) {
            NRD_TRY(read_normalizer(&m, &f));
        }
    }
    if (m.model_type != 1 && m.model_type != 2) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "SentencePiece model type %lld (word or char)",
                          (long long)m.model_type);
    }
    if (m.whitespace_as_suffix) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "SentencePiece treat_whitespace_as_suffix");
    }
    t->model = m.model_type == 1 ? MODEL_UNIGRAM : MODEL_BPE;
    t->byte_fallback = m.byte_fallback;
    t->fuse_unk = true;
    NRD_TRY(nrd_tok_new_norm(t, NORM_SENTENCEPIECE, &step));
    step->add_dummy_prefix = m.add_dummy_prefix;
    step->remove_extra_spaces = m.remove_extra;
    step->escape_spaces = m.escape;
    NRD_TRY(nrd_charsmap_init(&step->map, m.charsmap, m.charsmap_n));
    NRD_TRY(add_decoder(t, &m));
    if (t->model == MODEL_BPE) {
        NRD_TRY(nrd_tok_index_vocab(t));
        NRD_TRY(nrd_tok_merges_from_scores(t));
    }
    return ids == PIECES_IN_PLACE ? settle_in_place(t, &m) : NULL;
}
