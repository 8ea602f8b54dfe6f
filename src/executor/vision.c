/* SPDX-License-Identifier: Apache-2.0
 * The vision tower of an executor: opened with the engine, run where a request with pictures is taken in. */
#include "base/dtype.h"
#include "base/mem.h"
#include "executor/internal.h"

#include <stdio.h>
#include <string.h>

/* What tokens of pictures see is sent to the other ranks: a bit for each pair of tokens of a step, 32 MB. */
enum { MAX_RANKS_TOKENS = 16384 };

static nrd_error *check_word(const nrd_vision_word *w, int32_t vocab)
{
    for (int32_t i = 0; i < w->n; i++) {
        if (w->ids[i] >= vocab) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "vision tower: the token %d stands around pictures, and the vocabulary has %d", w->ids[i],
                              vocab);
        }
    }
    return NULL;
}

static nrd_error *check_words(const nrd_vision_spec *s, int32_t vocab)
{
    const nrd_vision_words *w = &s->words;

    if (w->side == 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "vision tower: the tokens that stand around pictures are missing; build the engine again");
    }
    for (int32_t i = 0; i < w->side * w->side; i++) {
        NRD_TRY(check_word(&w->tiles[i], vocab));
    }
    NRD_TRY(check_word(&w->line, vocab));
    NRD_TRY(check_word(&w->last_line, vocab));
    NRD_TRY(check_word(&w->whole, vocab));
    return check_word(&w->end, vocab);
}

/* Where layers read pictures, and something else of the engine does not go with that. */
static void settle_layers(nrd_exec *x)
{
    const nrd_exec_method method = x->speculative.method;
    const char *why = NULL;

    if (!nrd_spec_reads_pictures(x->spec)) {
        why = x->spec->pp_size > 1 ? "the engine has pipeline stages (pp_size)"
                                   : "the engine was built without the layers that read them: build it again";
    } else if (method != NRD_EXEC_NO_METHOD && method != NRD_EXEC_NGRAM) {
        why = "a draft model or heads guess tokens; of speculative decoding only n-grams go with them";
    } else if (x->cfg.kv_dtype == NRD_DTYPE_I8 ||
               (x->cfg.kv_dtype == NRD_DTYPE_NONE && nrd_engine_limits(x->engine)->kv_dtype == NRD_DTYPE_I8)) {
        why = "kv_cache_dtype int8 has no scales for their states";
    } else if (x->cfg.n_max_attention_window > 0) {
        why = "max_attention_window would forget their states";
    }
    snprintf(x->no_pictures, sizeof x->no_pictures, "%s", why ? why : "");
}

nrd_error *nrd_exec_vision_read(nrd_exec *x, const char *engine_dir)
{
    NRD_TRY(nrd_vision_open(&x->vision, engine_dir, x->spec->hidden));
    if (x->vision && nrd_vision_get_spec(x->vision)->read_by_layers) {
        settle_layers(x);
    }
    return NULL;
}

nrd_error *nrd_exec_vision_open(nrd_exec *x)
{
    if (x->no_pictures[0]) {
        nrd_exec_log(x, 1, "pictures are refused: %s", x->no_pictures);
        nrd_vision_close(x->vision);
        x->vision = NULL;
    }
    if (!x->vision) {
        return NULL;
    }
    const nrd_vision_spec *s = nrd_vision_get_spec(x->vision);
    if (s->breaks && (s->break_token >= x->spec->vocab || s->end_token >= x->spec->vocab)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "vision tower: lines end with the tokens %d and %d, and the vocabulary has %d",
                          s->break_token, s->end_token, x->spec->vocab);
    }
    if (s->framed && (s->start_token >= x->spec->vocab || s->end_token >= x->spec->vocab)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "vision tower: pictures stand between the tokens %d and %d, and the vocabulary has %d",
                          s->start_token, s->end_token, x->spec->vocab);
    }
    NRD_TRY(s->named ? check_words(s, x->spec->vocab) : NULL);
    NRD_TRY(nrd_tower_new(&x->tower, x->runner, x->vision, x->lim.max_input_len));
    x->info.picture_row_size = nrd_vision_row_parts(s) * x->spec->hidden;
    x->info.weight_bytes += nrd_tower_bytes(x->tower);
    x->picture_cache = nrd_picture_cache_new(x->cfg.picture_cache_bytes);
    if (!x->picture_cache) {
        return nrd_error_no_memory();
    }
    nrd_exec_log(x, 2, "vision tower: %.0f MB of weights, a picture is %s%d tokens", (double)nrd_tower_bytes(x->tower) / 1e6,
                 nrd_vision_varies(nrd_vision_get_spec(x->vision)) ? "at most " : "", nrd_vision_most_tokens(nrd_vision_get_spec(x->vision)));
    return NULL;
}

void nrd_exec_vision_close(nrd_exec *x)
{
    nrd_picture_cache_free(x->picture_cache);
    nrd_tower_free(x->tower);
    nrd_vision_close(x->vision);
}

/* Prompts with pictures whose tokens see what follows are computed in one step, beside a token of each other sequence. */
static int32_t longest_prompt(const nrd_exec *x)
{
    if (x->encoder) {
        return x->lim.max_encoder_input;
    }
    const int32_t room = x->lim.max_num_tokens - nrd_exec_max_entries(x);
    int32_t n = x->lim.max_input_len - nrd_exec_encoder_room(x);
    if (nrd_vision_get_spec(x->vision)->sees_prompt && x->spec->sliding_window > 0 && x->spec->sliding_window < n) {
        n = x->spec->sliding_window; /* behind it transformers sees the whole prompt, where the window here would end */
    }
    return nrd_vision_get_spec(x->vision)->both_ways && room < n ? room : n;
}

bool nrd_exec_picture_get_stats(nrd_exec *x, nrd_exec_picture_stats *out)
{
    nrd_picture_cache_stats s;
    const uint32_t size = out->size;

    if (!x->picture_cache) {
        return false;
    }
    nrd_picture_cache_get_stats(x->picture_cache, &s);
    const nrd_exec_picture_stats full = {.size = size, .n_hits = s.n_hits, .n_misses = s.n_misses, .bytes = s.bytes};
    memcpy(out, &full, size < sizeof full ? size : sizeof full);
    return true;
}

/* What speaks of a prompt's places, or hands rows on, does not go with places that are a picture's. */
static nrd_error *check_layers(const nrd_exec_request *r)
{
    const struct {
        bool used;
        const char *name;
    } fields[] = {
        {r->pooling != NRD_POOLING_NONE, "pooling"},
        {r->return_context_logits, "return_context_logits"},
        {r->return_prompt_log_probs, "return_prompt_log_probs"},
        {r->prompt_embedding_table != NULL, "prompt_embedding_table"},
        {r->n_retention_ranges > 0, "retention ranges"},
    };
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        if (fields[i].used) {
            return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s is not supported with pictures of this model, which its layers read", fields[i].name);
        }
    }
    return NULL;
}

/* An encoder that reads a picture and nothing else; a tokenizer's begin and end around its place change nothing. */
static nrd_error *check_alone(const nrd_exec *x, nrd_exec_request *r)
{
    const nrd_vision_spec *s = nrd_vision_get_spec(x->vision);
    int32_t n = r->n_input_ids;

    if (n > 1 && r->input_ids[0] == x->spec->bos_id && x->spec->bos_id != s->image_token) {
        r->input_ids++;
        n--;
    }
    n -= n > 0 && r->input_ids[n - 1] == x->spec->eos_id && x->spec->eos_id != s->image_token;
    for (int32_t i = 0; i < n; i++) {
        if (r->input_ids[i] != s->image_token) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "the encoder of this model (%s) reads one picture and no text: place %d of the prompt is token "
                              "%d, expected %d; what is asked stands on the picture", x->spec->architecture, i, r->input_ids[i], s->image_token);
        }
    }
    if (r->n_images != 1) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "the encoder of this model (%s) reads one picture, and the request brings %d",
                          x->spec->architecture, r->n_images);
    }
    r->n_input_ids = n;
    return NULL;
}

nrd_error *nrd_exec_prepare_images(nrd_exec *x, nrd_exec_request *r)
{
    nrd_pictures *p = NULL;

    if (x->vision && nrd_vision_get_spec(x->vision)->alone && !r->images_prepared) {
        NRD_TRY(check_alone(x, r));
    }
    if (x->vision && nrd_vision_get_spec(x->vision)->sees_prompt && !r->images_prepared && r->n_images == 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "this model (%s before a tower whose prompts see themselves) takes no prompt without a picture",
                          x->spec->architecture);
    }
    if ((r->n_images == 0 && r->n_videos == 0) || r->images_prepared) {
        return NULL;
    }
    if (x->no_pictures[0]) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "pictures are not taken by this engine (%s): %s", x->spec->architecture, x->no_pictures);
    }
    if (!x->vision) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "this model (%s) has no vision tower: it takes no pictures", x->spec->architecture);
    }
    if (r->prompt_embedding_table && (r->images || r->n_videos > 0)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "pictures and videos beside a prompt_embedding_table are not supported");
    }
    if (!r->prompt_embedding_table && !r->images && r->image_sizes) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "image_sizes needs a prompt_embedding_table with the rows of the pictures");
    }
    if (nrd_vision_get_spec(x->vision)->both_ways && x->ranks && x->lim.max_num_tokens > MAX_RANKS_TOKENS) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "pictures of this model, whose tokens see all of their picture, need a max_num_tokens of at "
                          "most %d over several ranks, it is %d", (int)MAX_RANKS_TOKENS, x->lim.max_num_tokens);
    }
    if (nrd_vision_get_spec(x->vision)->read_by_layers) {
        NRD_TRY(check_layers(r));
    }
    NRD_TRY(nrd_pictures_new(&p, nrd_vision_get_spec(x->vision), r, x->info.vocab, longest_prompt(x), x->info.tokens_per_block));
    if (p->n_cross > x->lim.max_picture_states) {
        const int32_t n_cross = p->n_cross;
        nrd_pictures_unref(p);
        return nrd_errorf(NRD_ERR_INVALID_ARG, "the states of %d pictures take %d places, expected at most %d: less than max_num_tokens (%d)",
                          r->n_images, n_cross, x->lim.max_picture_states, x->lim.max_num_tokens);
    }
    if (p->n_cross > 0 && !x->lim.chunked_context && p->n_ids > x->lim.max_num_tokens) {
        const int32_t n_ids = p->n_ids;
        nrd_pictures_unref(p);
        return nrd_error_because(nrd_errorf(NRD_ERR_INVALID_ARG, "the prompt takes %d places with its pictures, and max_num_tokens is %d "
                                            "without chunked context", n_ids, x->lim.max_num_tokens), NRD_LLM_PROMPT_TOO_LONG);
    }
    if (r->prompt_embedding_table && r->prompt_vocab_size != p->n_rows) {
        const int32_t n_rows = p->n_rows;
        nrd_pictures_unref(p);
        return nrd_errorf(NRD_ERR_INVALID_ARG, "prompt_embedding_table has %d rows, and pictures of these image_sizes become %d",
                          r->prompt_vocab_size, n_rows);
    }
    r->images_prepared = p;
    r->input_ids = p->ids + p->n_cross; /* places of states are none of the caller's */
    r->n_input_ids = p->n_ids - p->n_cross;
    r->prompt_table_extra_ids = NULL; /* of the prompt without rows */
    return NULL;
}

void nrd_exec_release_images(nrd_exec *x, nrd_exec_request *r)
{
    (void)x;
    if (r->images_prepared) {
        r->input_ids = NULL;
        r->n_input_ids = 0;
    }
    nrd_pictures_unref(r->images_prepared);
    r->images_prepared = NULL;
}

nrd_error *nrd_exec_vision_run(nrd_exec_request_state *r)
{
    nrd_exec *x = r->exec;
    nrd_error *err = NULL;
    size_t row_bytes = 0, at = 0;

    if (!r->pictures || r->table) {
        goto done;
    }
    const uint64_t parts = (uint64_t)nrd_vision_row_parts(nrd_vision_get_spec(x->vision));
    nrd_dtype_bytes(nrd_runner_embedding_dtype(x->runner), parts * (uint64_t)x->spec->hidden, &row_bytes);
    if (!nrd_size_mul((size_t)r->pictures->n_rows, row_bytes, &r->table_bytes)) {
        return nrd_error_no_memory();
    }
    NRD_NEW_GOTO(r->table, r->table_bytes, err, done);
    r->n_table_rows = r->pictures->n_rows;
    for (int32_t i = 0; i < r->pictures->n; i++) {
        const nrd_picture *y = &r->pictures->pictures[i];
        const size_t bytes = (size_t)y->n_rows * row_bytes;
        if (!nrd_picture_cache_find(x->picture_cache, y->hash, r->table + at, bytes)) {
            NRD_TRY_GOTO(nrd_tower_run(x->tower, y->pixels, y->grid, r->table + at), err, done);
            nrd_picture_cache_put(x->picture_cache, y->hash, r->table + at, bytes);
        }
        at += bytes;
    }
done:
    nrd_pictures_unref(r->pictures);
    r->pictures = NULL;
    return err;
}
