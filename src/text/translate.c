/* SPDX-License-Identifier: Apache-2.0 */
#include "text/translate.h"

#include "text/internal.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum { MAX_LANGUAGE_BYTES = 64, SHOWN_LANGUAGES = 8 };

/* The language that a token stands for: "fra" of ">>fra<<", "fr" of "__fr__", "fra_Latn" as it is. */
static bool language_of(const nrd_tokenizer *t, int32_t id, nrd_tok_text *out)
{
    size_t n = 0;
    const char *s = nrd_tokenizer_token(t, id, &n);
    const char *const open = t->languages == LANGUAGES_IN_TEXT ? ">>" : "__", *const close = t->languages == LANGUAGES_IN_TEXT ? "<<" : "__";

    if (s && n > 4 && !memcmp(s, open, 2) && !memcmp(s + n - 2, close, 2)) {
        *out = (nrd_tok_text){s + 2, (uint32_t)(n - 4)};
        return true;
    }
    *out = (nrd_tok_text){s, (uint32_t)n};
    return s && t->languages != LANGUAGES_IN_TEXT && nrd_tokenizer_is_special(t, id) && n > 0 && isalpha((unsigned char)s[0]);
}

/* The token of a language; -1: there is none. */
static int32_t language_id(const nrd_tokenizer *t, const char *name)
{
    char wrapped[MAX_LANGUAGE_BYTES + 8];
    nrd_tok_text found;
    const size_t n = strlen(name);

    if (n == 0 || n > MAX_LANGUAGE_BYTES) {
        return -1;
    }
    snprintf(wrapped, sizeof wrapped, t->languages == LANGUAGES_IN_TEXT ? ">>%s<<" : "__%s__", name);
    int32_t id = nrd_tokenizer_token_id(t, wrapped, strlen(wrapped));
    id = id >= 0 ? id : nrd_tokenizer_token_id(t, name, n);
    return id >= 0 && language_of(t, id, &found) ? id : -1;
}

static nrd_error *no_language(const nrd_tokenizer *t, const char *field, const char *name)
{
    nrd_str some = {0};
    int32_t n = 0;
    nrd_tok_text language;

    for (int32_t id = 0; id < nrd_tokenizer_vocab_size(t); id++) {
        if (language_of(t, id, &language) && n++ < SHOWN_LANGUAGES) {
            nrd_str_printf(&some, "%s%.*s", n > 1 ? ", " : "", (int)language.n, language.s);
        }
    }
    nrd_error *err = n == 0 ? nrd_errorf(NRD_ERR_INVALID_ARG, "%s '%.64s': this model names no languages", field, name)
                            : nrd_errorf(NRD_ERR_INVALID_ARG, "%s '%.64s' is none of the %d languages of this model: %s%s", field, name, n,
                                         nrd_str_cstr(&some), n > SHOWN_LANGUAGES ? ", …" : "");
    nrd_str_fini(&some);
    return err;
}

/* Source in its place, around what stands between. */
static nrd_error *set_source(nrd_tokenizer *t, int32_t language)
{
    const int32_t behind[] = {t->eos_id, language};
    const bool in_front = t->languages == LANGUAGES_FRONT;

    NRD_TRY(nrd_tok_set_affix(t, false, &language, in_front));
    return nrd_tok_set_affix(t, true, behind, in_front ? 1 : 2);
}

nrd_error *nrd_tok_take_languages(nrd_tokenizer *t, const nrd_json *config)
{
    static const struct {
        const char *class;
        nrd_tok_languages languages;
        const char *source; /* where the file names none */
    } classes[] = {{"NllbTokenizer", LANGUAGES_FRONT, "eng_Latn"},
                   {"MBart50Tokenizer", LANGUAGES_FRONT, "en_XX"},
                   {"MBartTokenizer", LANGUAGES_END, "en_XX"}};
    const char *class = nrd_json_get_str(config, "tokenizer_class", ""), *source = "en";

    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++) {
        if (nrd_str_has_prefix(class, classes[i].class)) {
            t->languages = classes[i].languages;
            source = classes[i].source;
        }
    }
    if (t->languages == LANGUAGES_NONE) {
        return NULL;
    }
    if (nrd_json_get_bool(config, "legacy_behaviour", false)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "tokenizer_config.json: 'legacy_behaviour' is not supported");
    }
    if (t->languages == LANGUAGES_IN_TEXT) {
        return NULL;
    }
    source = nrd_json_get_str(config, "src_lang", source);
    const int32_t id = language_id(t, source);
    return id >= 0 && t->eos_id >= 0 ? set_source(t, id) : NULL;
}

static nrd_error *encode_marked(const nrd_tokenizer *t, const char *text, size_t n, const nrd_translation *languages, nrd_ids *out)
{
    if (languages->source) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "source_lang: this model is not told what it reads; its file's name says it");
    }
    if (languages->target) {
        const int32_t id = language_id(t, languages->target);
        if (id < 0) {
            return no_language(t, "target_lang", languages->target);
        }
        nrd_ids_push(out, id);
    }
    return nrd_tokenizer_encode(t, text, n, NRD_ENCODE_ADD_SPECIAL | NRD_ENCODE_PARSE_SPECIAL, out);
}

static nrd_error *begin(const nrd_tokenizer *t, const char *target, nrd_ids *out)
{
    const int32_t id = language_id(t, target);

    if (id < 0) {
        return no_language(t, "target_lang", target);
    }
    if (t->languages == LANGUAGES_FRONT) {
        if (t->start_id < 0) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "target_lang: neither generation_config.json nor config.json has a "
                              "decoder_start_token_id");
        }
        nrd_ids_push(out, t->start_id);
    }
    nrd_ids_push(out, id);
    return nrd_ids_error(out);
}

nrd_error *nrd_tokenizer_encode_translation(const nrd_tokenizer *t, const char *text, size_t n, const nrd_translation *languages,
                                            nrd_ids *out, nrd_ids *out_begin)
{
    const uint32_t special = NRD_ENCODE_PARSE_SPECIAL;

    if (t->languages == LANGUAGES_NONE && (languages->source || languages->target)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s: this model's tokenizer knows no languages",
                          languages->source ? "source_lang" : "target_lang");
    }
    if (t->languages == LANGUAGES_IN_TEXT) {
        return encode_marked(t, text, n, languages, out);
    }
    if (t->languages != LANGUAGES_NONE && t->eos_id < 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "the tokenizer's files name no eos_token, which stands behind a text to translate");
    }
    if (languages->target) {
        NRD_TRY(begin(t, languages->target, out_begin));
    }
    if (!languages->source) {
        return nrd_tokenizer_encode(t, text, n, NRD_ENCODE_ADD_SPECIAL | special, out);
    }
    const int32_t source = language_id(t, languages->source);
    if (source < 0) {
        return no_language(t, "source_lang", languages->source);
    }
    if (t->languages == LANGUAGES_FRONT) {
        nrd_ids_push(out, source);
    }
    NRD_TRY(nrd_tokenizer_encode(t, text, n, special, out));
    nrd_ids_push(out, t->eos_id);
    if (t->languages == LANGUAGES_END) {
        nrd_ids_push(out, source);
    }
    return nrd_ids_error(out);
}
