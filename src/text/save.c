/* SPDX-License-Identifier: Apache-2.0
 * Writing a tokenizer as the files of a Hugging Face folder. */
#include "text/internal.h"

#include "base/base64.h"
#include "base/file.h"

#include <string.h>

static void put_bool(nrd_str *o, const char *key, bool v)
{
    nrd_str_printf(o, "\"%s\":%s", key, v ? "true" : "false");
}

static void put_text(nrd_str *o, const char *key, const char *s, size_t n)
{
    nrd_str_printf(o, "\"%s\":", key);
    nrd_json_put_string(o, s, n);
}

static void put_pattern(nrd_str *o, const nrd_tok_pattern *p)
{
    nrd_str_printf(o, "\"pattern\":{\"%s\":", p->kind == PATTERN_STRING ? "String" : "Regex");
    nrd_json_put_string(o, p->text, p->n);
    nrd_str_putc(o, '}');
}

/* Several steps are one Sequence, one is itself, none is null. */
static void begin_list(nrd_str *o, size_t n, const char *list)
{
    if (n == 0) {
        nrd_str_puts(o, "null");
    } else if (n > 1) {
        nrd_str_printf(o, "{\"type\":\"Sequence\",\"%s\":[", list);
    }
}

static void end_list(nrd_str *o, size_t n)
{
    if (n > 1) {
        nrd_str_puts(o, "]}");
    }
}

static void put_charsmap(nrd_str *o, const nrd_tok_charsmap *m)
{
    nrd_str_puts(o, "{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"");
    nrd_base64_encode(m->blob, m->blob_n, o);
    nrd_str_puts(o, "\"}");
}

static void put_replace(nrd_str *o, bool regex, const char *from, const char *to)
{
    nrd_tok_pattern p = {.kind = regex ? PATTERN_REGEX : PATTERN_STRING,
                         .text = (char *)(uintptr_t)from,
                         .n = strlen(from)};
    nrd_str_puts(o, "{\"type\":\"Replace\",");
    put_pattern(o, &p);
    nrd_str_putc(o, ',');
    put_text(o, "content", to, strlen(to));
    nrd_str_putc(o, '}');
}

/* SentencePiece's one normalizer in the words of tokenizer.json. */
static void put_sentencepiece(nrd_str *o, const nrd_tok_norm_step *s)
{
    const char *separator = "";
    nrd_str_puts(o, "{\"type\":\"Sequence\",\"normalizers\":[");
    if (s->map.n_units) {
        put_charsmap(o, &s->map);
        separator = ",";
    }
    if (s->remove_extra_spaces) {
        nrd_str_puts(o, separator);
        put_replace(o, true, "\\A +| +\\z", "");
        nrd_str_putc(o, ',');
        put_replace(o, true, " {2,}", " ");
        separator = ",";
    }
    if (s->add_dummy_prefix) {
        nrd_str_printf(o, "%s{\"type\":\"Prepend\",\"prepend\":\"%s\"}", separator,
                       s->escape_spaces ? TOK_SPACE : " ");
        separator = ",";
    }
    if (s->escape_spaces) {
        nrd_str_puts(o, separator);
        put_replace(o, false, " ", TOK_SPACE);
    }
    nrd_str_puts(o, "]}");
}

static void put_norm(nrd_str *o, const nrd_tok_norm_step *s)
{
    static const char *const forms[] = {"NFC", "NFD", "NFKC", "NFKD"};
    switch (s->kind) {
    case NORM_FORM:
        nrd_str_printf(o, "{\"type\":\"%s\"}", forms[s->form]);
        break;
    case NORM_LOWERCASE:
        nrd_str_puts(o, "{\"type\":\"Lowercase\"}");
        break;
    case NORM_STRIP_ACCENTS:
        nrd_str_puts(o, "{\"type\":\"StripAccents\"}");
        break;
    case NORM_STRIP:
        nrd_str_puts(o, "{\"type\":\"Strip\",");
        put_bool(o, "strip_left", s->left);
        nrd_str_putc(o, ',');
        put_bool(o, "strip_right", s->right);
        nrd_str_putc(o, '}');
        break;
    case NORM_PREPEND:
        nrd_str_puts(o, "{\"type\":\"Prepend\",");
        put_text(o, "prepend", s->content, s->content_n);
        nrd_str_putc(o, '}');
        break;
    case NORM_REPLACE:
        nrd_str_puts(o, "{\"type\":\"Replace\",");
        put_pattern(o, &s->pat);
        nrd_str_putc(o, ',');
        put_text(o, "content", s->content, s->content_n);
        nrd_str_putc(o, '}');
        break;
    case NORM_PRECOMPILED:
        put_charsmap(o, &s->map);
        break;
    case NORM_SENTENCEPIECE:
        put_sentencepiece(o, s);
        break;
    case NORM_BERT_CLEAN:
    case NORM_STRIP_NONSPACING:
        nrd_str_puts(o, "{\"type\":\"BertNormalizer\",\"lowercase\":false,");
        put_bool(o, "clean_text", s->clean);
        nrd_str_putc(o, ',');
        put_bool(o, "handle_chinese_chars", s->split_ideographs);
        nrd_str_putc(o, ',');
        put_bool(o, "strip_accents", s->kind == NORM_STRIP_NONSPACING);
        nrd_str_putc(o, '}');
        break;
    }
}

static const char *prepend_name(nrd_tok_prepend_kind kind)
{
    return kind == PREPEND_ALWAYS ? "always" : kind == PREPEND_FIRST ? "first" : "never";
}

static void put_pre(nrd_str *o, const nrd_tok_pre_step *s)
{
    static const char *const behaviors[] = {"Removed", "Isolated", "MergedWithPrevious",
                                            "MergedWithNext", "Contiguous"};
    switch (s->kind) {
    case PRE_SPLIT:
        nrd_str_puts(o, "{\"type\":\"Split\",");
        put_pattern(o, &s->pat);
        nrd_str_printf(o, ",\"behavior\":\"%s\",", behaviors[s->behavior]);
        put_bool(o, "invert", s->invert);
        nrd_str_putc(o, '}');
        break;
    case PRE_BYTE_LEVEL:
        nrd_str_puts(o, "{\"type\":\"ByteLevel\",\"trim_offsets\":true,");
        put_bool(o, "add_prefix_space", s->add_prefix_space);
        nrd_str_putc(o, ',');
        put_bool(o, "use_regex", s->use_regex);
        nrd_str_putc(o, '}');
        break;
    case PRE_METASPACE:
        nrd_str_printf(o, "{\"type\":\"Metaspace\",\"prepend_scheme\":\"%s\",",
                       prepend_name(s->prepend));
        put_text(o, "replacement", s->replacement, strlen(s->replacement));
        nrd_str_putc(o, ',');
        put_bool(o, "split", s->split);
        nrd_str_putc(o, '}');
        break;
    case PRE_DIGITS:
        nrd_str_puts(o, "{\"type\":\"Digits\",");
        put_bool(o, "individual_digits", s->individual);
        nrd_str_putc(o, '}');
        break;
    case PRE_WHITESPACE:
        nrd_str_puts(o, "{\"type\":\"Whitespace\"}");
        break;
    case PRE_WHITESPACE_SPLIT:
        nrd_str_puts(o, "{\"type\":\"WhitespaceSplit\"}");
        break;
    case PRE_PUNCTUATION:
        nrd_str_printf(o, "{\"type\":\"Punctuation\",\"behavior\":\"%s\"}", behaviors[s->behavior]);
        break;
    }
}

static void put_dec(nrd_str *o, const nrd_tok_dec_step *s)
{
    switch (s->kind) {
    case DEC_BYTE_LEVEL:
        nrd_str_puts(o, "{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,"
                        "\"use_regex\":true}");
        break;
    case DEC_BYTE_FALLBACK:
        nrd_str_puts(o, "{\"type\":\"ByteFallback\"}");
        break;
    case DEC_FUSE:
        nrd_str_puts(o, "{\"type\":\"Fuse\"}");
        break;
    case DEC_REPLACE:
        nrd_str_puts(o, "{\"type\":\"Replace\",\"pattern\":{");
        put_text(o, "String", s->from, s->from_n);
        nrd_str_puts(o, "},");
        put_text(o, "content", s->to, s->to_n);
        nrd_str_putc(o, '}');
        break;
    case DEC_STRIP:
        nrd_str_puts(o, "{\"type\":\"Strip\",");
        put_text(o, "content", s->from, s->from_n);
        nrd_str_printf(o, ",\"start\":%zu,\"stop\":%zu}", s->start, s->stop);
        break;
    case DEC_WORDPIECE:
        nrd_str_puts(o, "{\"type\":\"WordPiece\",");
        put_text(o, "prefix", s->from, s->from_n);
        nrd_str_putc(o, ',');
        put_bool(o, "cleanup", s->cleanup);
        nrd_str_putc(o, '}');
        break;
    case DEC_WORD_END:
        nrd_str_puts(o, "{\"type\":\"BPEDecoder\",");
        put_text(o, "suffix", s->from, s->from_n);
        nrd_str_putc(o, '}');
        break;
    case DEC_METASPACE:
        nrd_str_printf(o, "{\"type\":\"Metaspace\",\"prepend_scheme\":\"%s\",\"split\":true,",
                       prepend_name(s->prepend));
        put_text(o, "replacement", s->from, s->from_n);
        nrd_str_putc(o, '}');
        break;
    }
}

static void put_added(const nrd_tokenizer *t, nrd_str *o)
{
    nrd_str_puts(o, "\"added_tokens\":[");
    for (size_t i = 0; i < t->n_added; i++) {
        const nrd_tok_added_token *a = &t->added[i];
        if (a->is_alias) {
            continue;
        }
        nrd_str_printf(o, "%s\n{\"id\":%d,", i ? "," : "", a->id);
        put_text(o, "content", t->tokens[a->id].s, t->tokens[a->id].n);
        nrd_str_putc(o, ',');
        put_bool(o, "single_word", a->single_word);
        nrd_str_putc(o, ',');
        put_bool(o, "lstrip", a->lstrip);
        nrd_str_putc(o, ',');
        put_bool(o, "rstrip", a->rstrip);
        nrd_str_putc(o, ',');
        put_bool(o, "normalized", a->normalized);
        nrd_str_putc(o, ',');
        put_bool(o, "special", a->special);
        nrd_str_putc(o, '}');
    }
    nrd_str_puts(o, "],\n");
}

static void put_special(const nrd_tokenizer *t, nrd_str *o, int32_t id, int type)
{
    const nrd_tok_text *token = &t->tokens[id];
    nrd_str_puts(o, "{\"SpecialToken\":{");
    put_text(o, "id", token->s, token->n);
    nrd_str_printf(o, ",\"type_id\":%d}}", type);
}

static void put_specials(const nrd_tokenizer *t, nrd_str *o, const int32_t *ids, size_t n, bool before)
{
    for (size_t i = 0; i < n; i++) {
        nrd_str_puts(o, before ? "" : ",");
        put_special(t, o, ids[i], 0);
        nrd_str_puts(o, before ? "," : "");
    }
}

static void put_pair(const nrd_tokenizer *t, nrd_str *o)
{
    const int second = t->pair_has_types;

    if (!t->has_pair) {
        put_specials(t, o, t->prefix, t->n_prefix, true);
        nrd_str_puts(o, "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}");
        put_specials(t, o, t->suffix, t->n_suffix, false);
        put_specials(t, o, t->prefix, t->n_prefix, false);
        nrd_str_puts(o, ",{\"Sequence\":{\"id\":\"B\",\"type_id\":0}}");
        put_specials(t, o, t->suffix, t->n_suffix, false);
        return;
    }
    put_specials(t, o, t->pair[0], t->n_pair[0], true);
    nrd_str_puts(o, "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}},");
    for (size_t i = 0; i < t->n_pair[1]; i++) {
        put_special(t, o, t->pair[1][i], second && i >= t->n_pair_first);
        nrd_str_putc(o, ',');
    }
    nrd_str_printf(o, "{\"Sequence\":{\"id\":\"B\",\"type_id\":%d}}", second);
    for (size_t i = 0; i < t->n_pair[2]; i++) {
        nrd_str_putc(o, ',');
        put_special(t, o, t->pair[2][i], second);
    }
}

/* Each special token that a template names, once. */
static void put_named(const nrd_tokenizer *t, nrd_str *o)
{
    const int32_t *lists[] = {t->prefix, t->suffix, t->pair[0], t->pair[1], t->pair[2]};
    const size_t counts[] = {t->n_prefix, t->n_suffix, t->n_pair[0], t->n_pair[1], t->n_pair[2]};
    nrd_ids done = {0};

    for (size_t k = 0; k < sizeof lists / sizeof lists[0]; k++) {
        for (size_t i = 0; i < counts[k]; i++) {
            const int32_t id = lists[k][i];
            bool again = false;
            for (size_t m = 0; m < done.n; m++) {
                again = again || done.ids[m] == id;
            }
            if (again) {
                continue;
            }
            nrd_str_puts(o, done.n > 0 ? "," : "");
            nrd_ids_push(&done, id);
            nrd_json_put_string(o, t->tokens[id].s, t->tokens[id].n);
            nrd_str_puts(o, ":{");
            put_text(o, "id", t->tokens[id].s, t->tokens[id].n);
            nrd_str_printf(o, ",\"ids\":[%d],\"tokens\":[", id);
            nrd_json_put_string(o, t->tokens[id].s, t->tokens[id].n);
            nrd_str_puts(o, "]}");
        }
    }
    if (done.no_memory) {
        nrd_str_spoil(o);
    }
    nrd_ids_fini(&done);
}

static void put_template(const nrd_tokenizer *t, nrd_str *o)
{
    nrd_str_puts(o, "\"post_processor\":");
    if (nrd_tokenizer_n_special(t, false) + nrd_tokenizer_n_special(t, true) == 0) {
        nrd_str_puts(o, "null,\n");
        return;
    }
    nrd_str_puts(o, "{\"type\":\"TemplateProcessing\",\"single\":[");
    put_specials(t, o, t->prefix, t->n_prefix, true);
    nrd_str_puts(o, "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}");
    put_specials(t, o, t->suffix, t->n_suffix, false);
    nrd_str_puts(o, "],\"pair\":[");
    put_pair(t, o);
    nrd_str_puts(o, "],\"special_tokens\":{");
    put_named(t, o);
    nrd_str_puts(o, "}},\n");
}

static void put_vocab(const nrd_tokenizer *t, nrd_str *o)
{
    const char *separator = "";
    nrd_str_puts(o, ",\n\"vocab\":{");
    for (int32_t id = 0; id < t->n_vocab; id++) {
        /* of equal tokens the first is the one in use */
        if ((t->flags[id] & TOK_IN_MODEL) &&
            nrd_strmap_get(&t->by_token, t->tokens, t->tokens[id].s, t->tokens[id].n) == id) {
            nrd_str_printf(o, "%s\n", separator);
            nrd_json_put_string(o, t->tokens[id].s, t->tokens[id].n);
            nrd_str_printf(o, ":%d", id);
            separator = ",";
        }
    }
    nrd_str_putc(o, '}');
}

static void put_wordpiece(const nrd_tokenizer *t, nrd_str *o)
{
    nrd_str_puts(o, "{\"type\":\"WordPiece\",");
    put_text(o, "unk_token", t->tokens[t->unk_id].s, t->tokens[t->unk_id].n);
    nrd_str_putc(o, ',');
    put_text(o, "continuing_subword_prefix", t->word_mark, strlen(t->word_mark));
    nrd_str_printf(o, ",\"max_input_chars_per_word\":%zu", t->max_word_chars);
    put_vocab(t, o);
    nrd_str_putc(o, '}');
}

static void put_bpe(const nrd_tokenizer *t, nrd_str *o)
{
    nrd_str_puts(o, "{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":");
    if (t->unk_id >= 0) {
        nrd_json_put_string(o, t->tokens[t->unk_id].s, t->tokens[t->unk_id].n);
    } else {
        nrd_str_puts(o, "null");
    }
    nrd_str_puts(o, ",\"continuing_subword_prefix\":null,");
    put_text(o, "end_of_word_suffix", t->word_end, strlen(t->word_end));
    nrd_str_putc(o, ',');
    put_bool(o, "fuse_unk", t->fuse_unk);
    nrd_str_putc(o, ',');
    put_bool(o, "byte_fallback", t->byte_fallback);
    nrd_str_putc(o, ',');
    put_bool(o, "ignore_merges", t->ignore_merges);
    put_vocab(t, o);
    nrd_str_puts(o, ",\n\"merges\":[");
    for (size_t i = 0; i < t->n_merges; i++) {
        const nrd_tok_text *l = &t->tokens[t->merges[i].left], *r = &t->tokens[t->merges[i].right];
        nrd_str_puts(o, i ? ",\n[" : "\n[");
        nrd_json_put_string(o, l->s, l->n);
        nrd_str_putc(o, ',');
        nrd_json_put_string(o, r->s, r->n);
        nrd_str_putc(o, ']');
    }
    nrd_str_puts(o, "]}");
}

static void put_unigram(const nrd_tokenizer *t, nrd_str *o)
{
    int32_t n = t->n_vocab;
    while (n > 0 && !(t->flags[n - 1] & TOK_IN_MODEL)) {
        n--;
    }
    nrd_str_puts(o, "{\"type\":\"Unigram\",");
    put_bool(o, "byte_fallback", t->byte_fallback);
    if (t->unk_id >= 0) {
        nrd_str_printf(o, ",\"unk_id\":%d,\"vocab\":[", t->unk_id);
    } else {
        nrd_str_puts(o, ",\"unk_id\":null,\"vocab\":[");
    }
    for (int32_t id = 0; id < n; id++) {
        nrd_str_puts(o, id ? ",\n[" : "\n[");
        nrd_json_put_string(o, t->tokens[id].s, t->tokens[id].n);
        nrd_str_putc(o, ',');
        nrd_json_put_double(o, t->scores ? t->scores[id] : 0);
        nrd_str_putc(o, ']');
    }
    nrd_str_puts(o, "]}");
}

static void put_tokenizer(const nrd_tokenizer *t, nrd_str *o)
{
    nrd_str_puts(o, "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\n");
    put_added(t, o);
    nrd_str_puts(o, "\"normalizer\":");
    begin_list(o, t->n_norm, "normalizers");
    for (size_t i = 0; i < t->n_norm; i++) {
        nrd_str_puts(o, i ? "," : "");
        put_norm(o, &t->norm[i]);
    }
    end_list(o, t->n_norm);
    nrd_str_puts(o, ",\n\"pre_tokenizer\":");
    begin_list(o, t->n_pre, "pretokenizers");
    for (size_t i = 0; i < t->n_pre; i++) {
        nrd_str_puts(o, i ? "," : "");
        put_pre(o, &t->pre[i]);
    }
    end_list(o, t->n_pre);
    nrd_str_puts(o, ",\n");
    put_template(t, o);
    nrd_str_puts(o, "\"decoder\":");
    begin_list(o, t->n_dec, "decoders");
    for (size_t i = 0; i < t->n_dec; i++) {
        nrd_str_puts(o, i ? "," : "");
        put_dec(o, &t->dec[i]);
    }
    end_list(o, t->n_dec);
    nrd_str_puts(o, ",\n\"model\":");
    if (t->model == MODEL_BPE) {
        put_bpe(t, o);
    } else if (t->model == MODEL_WORDPIECE) {
        put_wordpiece(t, o);
    } else {
        put_unigram(t, o);
    }
    nrd_str_puts(o, "}\n");
}

static void put_config(const nrd_tokenizer *t, nrd_str *o)
{
    const char *const names[] = {"bos_token", "eos_token", "pad_token", "unk_token"};
    const int32_t ids[] = {t->bos_id, t->eos_id, t->pad_id, t->unk_id};
    nrd_str_puts(o, "{\n\"tokenizer_class\": \"PreTrainedTokenizerFast\",\n"
                    "\"clean_up_tokenization_spaces\": false");
    for (int i = 0; i < 4; i++) {
        if (ids[i] >= 0) {
            nrd_str_puts(o, ",\n");
            put_text(o, names[i], t->tokens[ids[i]].s, t->tokens[ids[i]].n);
        }
    }
    for (int i = 0; i < TOK_N_FIM; i++) {
        if (t->fim[i] >= 0) {
            nrd_str_puts(o, ",\n");
            put_text(o, nrd_tok_fim_keys[i], t->tokens[t->fim[i]].s, t->tokens[t->fim[i]].n);
        }
    }
    if (t->chat_template && t->tool_template) {
        nrd_str_puts(o, ",\n\"chat_template\": [{\"name\": \"default\", ");
        put_text(o, "template", t->chat_template, strlen(t->chat_template));
        nrd_str_puts(o, "}, {\"name\": \"tool_use\", ");
        put_text(o, "template", t->tool_template, strlen(t->tool_template));
        nrd_str_puts(o, "}]");
    } else if (t->chat_template) {
        nrd_str_puts(o, ",\n");
        put_text(o, "chat_template", t->chat_template, strlen(t->chat_template));
    }
    nrd_str_puts(o, "\n}\n");
}

static void put_generation(const nrd_tokenizer *t, nrd_str *o)
{
    nrd_str_putc(o, '{');
    if (t->eos_id >= 0) {
        nrd_str_printf(o, "\n\"eos_token_id\": [%d", t->eos_id);
        for (size_t i = 0; i < t->stop_ids.n; i++) {
            nrd_str_printf(o, ", %d", t->stop_ids.ids[i]);
        }
        nrd_str_putc(o, ']');
    }
    if (t->bos_id >= 0) {
        nrd_str_printf(o, "%s\n\"bos_token_id\": %d", o->len > 1 ? "," : "", t->bos_id);
    }
    if (t->pad_id >= 0) {
        nrd_str_printf(o, "%s\n\"pad_token_id\": %d", o->len > 1 ? "," : "", t->pad_id);
    }
    nrd_tok_put_sampling(t, o);
    nrd_str_puts(o, "\n}\n");
}

static nrd_error *write_file(const char *dir, const char *name, const nrd_str *text)
{
    NRD_TRY(nrd_str_error(text));
    char *path = NULL;
    NRD_TRY(nrd_path_make(&path, dir, name));
    nrd_error *err = nrd_file_write(path, nrd_str_cstr(text), text->len);
    free(path);
    return err;
}

nrd_error *nrd_tokenizer_save(const nrd_tokenizer *t, const char *dir)
{
    nrd_str o = {0};
    nrd_error *err = NULL;

    if (t->n_known > 0) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "a tokenizer whose pieces and vocabulary are two files has no tokenizer.json");
    }
    NRD_TRY(nrd_mkdirs(dir));
    put_tokenizer(t, &o);
    NRD_TRY_GOTO(write_file(dir, "tokenizer.json", &o), err, done);
    nrd_str_clear(&o);
    put_config(t, &o);
    NRD_TRY_GOTO(write_file(dir, "tokenizer_config.json", &o), err, done);
    nrd_str_clear(&o);
    put_generation(t, &o);
    err = write_file(dir, "generation_config.json", &o);
done:
    nrd_str_fini(&o);
    return err;
}
