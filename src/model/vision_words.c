/* SPDX-License-Identifier: Apache-2.0
 * Tokens that stand around a picture's rows: what a tokenizer makes of the words that the processors of Idefics3 and SmolVLM write. They
 * are looked up when a model is converted, and kept with the tower's configuration. */
#include "base/mem.h"
#include "model/vision_internal.h"
#include "text/tokenizer.h"

#include <stdio.h>
#include <string.h>

#define KEY "image_words"
#define IMAGE "<image>"
#define EDGE "<fake_token_around_image>"

/* ---- writing ---- */

/* The ids of `word` where `before` and `behind` stand around it, which are one token each, or empty. */
static nrd_error *put_ids(const nrd_tokenizer *t, const char *before, const char *word, const char *behind, nrd_str *out)
{
    nrd_ids ids = {0};
    nrd_error *err = NULL;
    char text[128];

    const int n = snprintf(text, sizeof text, "%s%s%s", before, word, behind);
    NRD_TRY_GOTO(nrd_tokenizer_encode(t, text, (size_t)n, NRD_ENCODE_PARSE_SPECIAL, &ids), err, done);
    const size_t first = *before ? 1 : 0, end = *behind ? 1 : 0;
    if (ids.n > 0 && ((*before && ids.ids[0] != nrd_tokenizer_token_id(t, before, strlen(before))) ||
                      (*behind && ids.ids[ids.n - 1] != nrd_tokenizer_token_id(t, behind, strlen(behind))))) {
        err = nrd_errorf(NRD_ERR_UNSUPPORTED, "the tokenizer does not keep '" IMAGE "' and '" EDGE "' apart from '%s'", word);
        goto done;
    }
    if (ids.n <= first + end || ids.n - first - end > NRD_VISION_MAX_WORD) {
        err = nrd_errorf(NRD_ERR_UNSUPPORTED, "the tokenizer makes %zu tokens of '%s'; 1 to %d can stand around a picture",
                         ids.n - (ids.n < first + end ? ids.n : first + end), word, (int)NRD_VISION_MAX_WORD);
        goto done;
    }
    for (size_t i = first; i < ids.n - end; i++) {
        nrd_str_printf(out, "%s%d", i == first ? "[" : ", ", ids.ids[i]);
    }
    nrd_str_putc(out, ']');
done:
    nrd_ids_fini(&ids);
    return err;
}

/* Words end at these two: text beside them is encoded for itself. */
static nrd_error *check_tokens(const nrd_vision_spec *s, const nrd_tokenizer *t)
{
    if (nrd_tokenizer_token_id(t, IMAGE, strlen(IMAGE)) != s->image_token) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'image_token_id' is %d, and '" IMAGE "' of the tokenizer is %d", s->image_token,
                          nrd_tokenizer_token_id(t, IMAGE, strlen(IMAGE)));
    }
    if (nrd_tokenizer_token_id(t, EDGE, strlen(EDGE)) < 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "the tokenizer has no token '" EDGE "', which stands around pictures");
    }
    return NULL;
}

static nrd_error *put_all(const nrd_vision_spec *s, const nrd_tokenizer *t, nrd_str *out)
{
    const int32_t side = s->layouts[0].wide;

    nrd_str_puts(out, ", \"" KEY "\": {\"tiles\": [");
    for (int32_t i = 0; i < side * side; i++) {
        char word[64];
        snprintf(word, sizeof word, EDGE "<row_%d_col_%d>", i / side + 1, i % side + 1);
        nrd_str_puts(out, i ? ", " : "");
        NRD_TRY(put_ids(t, "", word, IMAGE, out));
    }
    nrd_str_puts(out, "], \"line\": ");
    NRD_TRY(put_ids(t, IMAGE, "\n", EDGE, out));
    nrd_str_puts(out, ", \"last_line\": ");
    NRD_TRY(put_ids(t, IMAGE, "\n\n", EDGE, out));
    nrd_str_puts(out, ", \"whole\": ");
    NRD_TRY(put_ids(t, "", EDGE "<global-img>", IMAGE, out));
    nrd_str_puts(out, ", \"end\": ");
    NRD_TRY(put_ids(t, IMAGE, EDGE, "", out));
    nrd_str_putc(out, '}');
    return nrd_str_error(out);
}

nrd_error *nrd_vision_put_words(const nrd_vision_spec *s, const char *path, nrd_str *out)
{
    nrd_tokenizer *t = NULL;

    NRD_TRY(nrd_tokenizer_open(&t, path));
    nrd_error *err = check_tokens(s, t);
    err = err ? err : put_all(s, t, out);
    nrd_tokenizer_close(t);
    return nrd_error_wrap(err, "%s", path);
}

/* ---- reading ---- */

static nrd_error *read_word(nrd_vision_word *out, const nrd_json *list)
{
    const size_t n = nrd_json_is(list, NRD_JSON_ARRAY) ? nrd_json_len(list) : 0;

    if (n < 1 || n > NRD_VISION_MAX_WORD) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'" KEY "' must have lists of 1 to %d tokens", (int)NRD_VISION_MAX_WORD);
    }
    for (size_t i = 0; i < n; i++) {
        const int64_t id = nrd_json_int(nrd_json_at(list, i), -1);
        if (id < 0 || id > INT32_MAX) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "'" KEY "' has what is no token");
        }
        out->ids[i] = (int32_t)id;
    }
    out->n = (int32_t)n;
    return NULL;
}

nrd_error *nrd_vision_read_words(nrd_vision_words *out, const nrd_json *config)
{
    const nrd_json *all = nrd_json_get(config, KEY), *tiles = nrd_json_get(all, "tiles");
    const size_t n = nrd_json_is(tiles, NRD_JSON_ARRAY) ? nrd_json_len(tiles) : 0;
    int32_t side = 1;

    *out = (nrd_vision_words){0};
    if (!all) {
        return NULL;
    }
    while ((size_t)(side * side) < n && side * side < NRD_VISION_MAX_TILES) {
        side++;
    }
    if ((size_t)(side * side) != n || n > NRD_VISION_MAX_TILES) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'" KEY "' has %zu tiles, expected a square, at most %d", n, (int)NRD_VISION_MAX_TILES);
    }
    for (size_t i = 0; i < n; i++) {
        NRD_TRY(read_word(&out->tiles[i], nrd_json_at(tiles, i)));
    }
    NRD_TRY(read_word(&out->line, nrd_json_get(all, "line")));
    NRD_TRY(read_word(&out->last_line, nrd_json_get(all, "last_line")));
    NRD_TRY(read_word(&out->whole, nrd_json_get(all, "whole")));
    NRD_TRY(read_word(&out->end, nrd_json_get(all, "end")));
    out->side = side;
    return NULL;
}

/* ---- counting ---- */

int32_t nrd_vision_words_around(const nrd_vision_spec *s, nrd_vision_grid grid)
{
    const nrd_vision_words *w = &s->words;
    const int32_t high = grid.tiles.high, wide = grid.tiles.wide;
    int32_t n = w->whole.n + w->end.n;

    if (!s->named) {
        return 0;
    }
    for (int32_t i = 0; i < high * wide; i++) {
        n += w->tiles[i / wide * w->side + i % wide].n;
    }
    return n + (high > 0 ? (high - 1) * w->line.n + w->last_line.n : 0);
}
