/* SPDX-License-Identifier: Apache-2.0
 * From a request of the executor API to the sequences that the scheduler runs.
 *
 * What is wrong is refused first (request_check.c); begin and fill copy everything that is needed later, so that the caller's memory may go. A request owns its sequences with their tokens,
 * tables, guides and phrases until the scheduler has given all of them back. */
#include "executor/handover.h"

#include "base/clock.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/siphash.h"
#include "engine/decode/beam.h"
#include "engine/decode/decode.h"
#include "engine/speculate/proposer.h"
#include "engine/speculate/verify.h"

#include <string.h>

void nrd_exec_request_init(nrd_exec_request *r)
{
    *r = (nrd_exec_request){
        .size = sizeof *r,
        .end_id = -1,
        .pad_id = -1,
        .priority = 0.5f,
        .draft_acceptance_threshold = -1,
        .retention_decode_priority = NRD_KV_PRIORITY_DEFAULT,
        .retention_decode_duration_ms = -1,
        .max_first_time = -1,
        .no_speech_id = -1,
        .reasoning_budget = -1,
        .sampling =
            {
                .beam_width = 1,
                .num_return_sequences = 1,
                .top_p_min = 1e-6f,
                .top_p_decay = 1,
                .top_p_reset_id = -1,
                .temperature = 1,
                .repetition_penalty = 1,
                .early_stopping = 1,
            },
    };
}

/* Adds what the model itself bans. `room`: two numbers for each of them, behind the ids and ends of `bad`, which move. */
static void ban(const nrd_model_spec *m, int32_t *room, nrd_phrase_list *bad)
{
    const int32_t n_ids = bad->n > 0 ? bad->ends[bad->n - 1] : 0, n = m->n_banned_ids;
    int32_t *ids = room - n_ids - bad->n, *ends = ids + n_ids + n;

    memmove(ends, ids + n_ids, (size_t)bad->n * sizeof *ends);
    for (int32_t i = 0; i < n; i++) {
        ids[n_ids + i] = m->banned_ids[i];
        ends[bad->n + i] = n_ids + i + 1;
    }
    *bad = (nrd_phrase_list){.ids = ids, .ends = ends, .n = bad->n + n};
}

static nrd_error *copy_phrases(nrd_exec_request_state *r, const nrd_exec_request *in,
                               nrd_phrase_list *stop, nrd_phrase_list *bad)
{
    const nrd_phrases *src[2] = {&in->stop_words, &in->bad_words};
    nrd_phrase_list *dst[2] = {stop, bad};
    nrd_error *err = NULL;
    size_t n = 0;

    for (int i = 0; i < 2; i++) {
        n += src[i]->n > 0 ? (size_t)(src[i]->n + src[i]->ends[src[i]->n - 1]) : 0;
    }
    const nrd_model_spec *m = r->exec->spec;
    n += 2 * (size_t)m->n_banned_ids;
    NRD_NEW_GOTO(r->phrase_ids, n, err, fail);
    int32_t *at = r->phrase_ids;
    for (int i = 0; i < 2; i++) {
        *dst[i] = (nrd_phrase_list){0};
        if (src[i]->n == 0) {
            continue;
        }
        size_t n_ids = (size_t)src[i]->ends[src[i]->n - 1];
        memcpy(at, src[i]->ids, n_ids * sizeof *at);
        memcpy(at + n_ids, src[i]->ends, (size_t)src[i]->n * sizeof *at);
        *dst[i] = (nrd_phrase_list){.ids = at, .ends = at + n_ids, .n = src[i]->n};
        at += n_ids + (size_t)src[i]->n;
    }
    if (m->n_banned_ids > 0) {
        ban(m, at, bad);
    }
fail:
    return err;
}

static nrd_error *copy_retention(nrd_exec_request_state *r, const nrd_exec_request *in)
{
    nrd_error *err = NULL;
    NRD_NEW_GOTO(r->ranges, in->n_retention_ranges, err, fail);
    for (int32_t i = 0; i < in->n_retention_ranges; i++) {
        const nrd_kv_retention_range *g = &in->retention_ranges[i];
        r->ranges[i] = (nrd_kv_range){.start = g->start,
                                      .end = g->end,
                                      .priority = g->priority,
                                      .duration_ms = g->duration_ms};
    }
    r->retention = (nrd_kv_retention){
        .ranges = r->ranges,
        .n_ranges = in->n_retention_ranges,
        .n_prompt = in->n_input_ids,
        .decode_priority = in->retention_decode_priority,
        .decode_duration_ms = in->retention_decode_duration_ms,
    };
fail:
    return err;
}

/* Their own extra ids, in place of none or beside those of the text around them. */
static nrd_error *take_pictures(nrd_exec_request_state *r, const nrd_exec_request *in)
{
    nrd_error *err = NULL;

    if (!in->images_prepared) {
        return NULL;
    }
    r->pictures = nrd_pictures_ref(in->images_prepared);
    if (r->exec->encoder) { /* whose states are never reused */
        return NULL;
    }
    NRD_NEW_GOTO(r->extra, r->n_prompt, err, fail);
    memcpy(r->extra, r->pictures->extra, (size_t)r->n_prompt * sizeof *r->extra);
    if (r->pictures->axes) {
        NRD_NEW_GOTO(r->axes, (size_t)r->n_prompt * NRD_ROPE_AXES, err, fail);
        memcpy(r->axes, r->pictures->axes, (size_t)r->n_prompt * NRD_ROPE_AXES * sizeof *r->axes);
        r->axes_shift = r->pictures->axes_shift;
    }
    if (r->pictures->states) {
        NRD_NEW_GOTO(r->states, r->pictures->n, err, fail);
        memcpy(r->states, r->pictures->states, (size_t)r->pictures->n * sizeof *r->states);
        r->n_states = r->pictures->n;
    }
fail:
    return err;
}

static nrd_sampling convert_sampling(const nrd_sampling_config *s)
{
    return (nrd_sampling){
        .top_k = s->top_k,
        .top_p = s->top_p > 0 ? s->top_p : 0,
        .top_p_min = s->top_p_min,
        .top_p_decay = s->top_p_decay,
        .top_p_reset_id = s->top_p_reset_id,
        .min_p = s->min_p,
        .temperature = s->temperature,
        .seed = s->random_seed,
        .min_length = s->min_length,
        .repetition_penalty = s->repetition_penalty,
        .presence_penalty = s->presence_penalty,
        .frequency_penalty = s->frequency_penalty,
        .length_penalty = s->length_penalty,
        .diversity_rate = s->beam_search_diversity_rate,
        .early_stopping = s->early_stopping,
        .no_repeat_ngram_size = s->no_repeat_ngram_size,
    };
}

/* Buffers of one sequence whose sizes and flags are set. */
static nrd_error *seq_buffers(nrd_exec *x, nrd_exec_request_state *r, nrd_seq *q)
{
    nrd_error *err = NULL;
    int32_t max_new = q->req.max_total - q->req.n_prompt;
    int32_t bt = nrd_kv_block_tokens(x->kv);

    NRD_NEW_GOTO(q->dec.tokens, q->req.max_total, err, fail);
    memcpy(q->dec.tokens, r->prompt, (size_t)r->n_prompt * sizeof *q->dec.tokens);
    NRD_NEW_GOTO(q->sched.slots, q->req.width, err, fail);
    NRD_NEW_GOTO(q->sched.tables, q->req.width, err, fail);
    for (int32_t b = 0; b < q->req.width; b++) {
        NRD_TRY_GOTO(nrd_kv_table_init(&q->sched.tables[b], (q->req.max_total + bt - 1) / bt + 1),
                     err, fail);
    }
    if (q->req.want_log_probs && q->req.width == 1) {
        NRD_NEW_GOTO(q->dec.log_probs, max_new, err, fail);
    }
    if (q->req.n_top > 0) {
        NRD_NEW_GOTO(q->dec.top_ids, (size_t)max_new * (size_t)q->req.n_top, err, fail);
        NRD_NEW_GOTO(q->dec.top_log_probs, (size_t)max_new * (size_t)q->req.n_top, err, fail);
    }
    if (q->req.width > 1) {
        NRD_TRY_GOTO(
            nrd_beams_new(&q->dec.beams, q->req.width, r->prompt, r->n_prompt, q->req.max_total),
            err, fail);
    }
    q->req.content.tokens = q->dec.tokens;
fail:
    return err;
}

static void seq_fini(nrd_seq *q)
{
    for (int32_t b = 0; q->sched.tables && b < q->req.width; b++) {
        nrd_kv_table_fini(&q->sched.tables[b]);
    }
    free(q->sched.tables);
    free(q->sched.slots);
    free(q->dec.tokens);
    free(q->dec.log_probs);
    free(q->dec.top_ids);
    free(q->dec.top_log_probs);
    nrd_beams_free(q->dec.beams);
    nrd_guide_state_free(q->dec.guide);
    nrd_proposer_free(q->spec.proposer);
    nrd_proposer_free(q->spec.then);
}

void nrd_exec_request_free(nrd_exec_request_state *r)
{
    if (!r) {
        return;
    }
    for (int32_t i = 0; r->seqs && i < r->n_seqs; i++) {
        seq_fini(&r->seqs[i]);
    }
    for (int32_t i = 0; r->generation_logits && i < r->n_seqs; i++) {
        free(r->generation_logits[i].data);
    }
    nrd_exec_deadline_remove(r);
    nrd_handover_leave(r);
    nrd_exec_drop_adapter(r);
    if (r->bias.n > 0) {
        nrd_runner_bias_free(r->exec->runner, &r->bias);
    }
    nrd_exec_prompt_table_free(r);
    nrd_pictures_unref(r->pictures);
    free(r->states);
    free(r->generation_logits);
    free(r->context_logits);
    free(r->prompt_scores);
    free(r->embedding);
    free(r->sums);
    free(r->seqs);
    free(r->n_sent);
    free(r->prompt);
    free(r->features);
    free(r->cross_order);
    free(r->cross_seen);
    free(r->extra);
    free(r->axes);
    free(r->ranges);
    free(r->reasoning);
    free(r->phrase_ids);
    free(r->bias_values);
    free(r->bias_ids);
    free(r->guide_type);
    free(r->guide_text);
    nrd_guide_unref(r->guide);
    nrd_error_free(r->guide_err);
    nrd_exec_spare_free(r);
    free(r);
}

static nrd_error *begin(nrd_exec_request_state **out, nrd_exec *x, const int32_t *ids, int32_t n,
                        int32_t n_seqs)
{
    nrd_error *err = NULL;
    nrd_exec_request_state *r = NULL;
    *out = NULL;
    NRD_NEW_GOTO(r, 1, err, fail);
    r->exec = x;
    r->n_prompt = n;
    r->n_seqs = r->n_open = n_seqs;
    NRD_NEW_GOTO(r->prompt, n, err, fail);
    memcpy(r->prompt, ids, (size_t)n * sizeof *ids);
    NRD_NEW_GOTO(r->seqs, n_seqs, err, fail);
    NRD_NEW_GOTO(r->n_sent, n_seqs, err, fail);
    NRD_TRY_GOTO(nrd_exec_spare_new(r), err, fail);
    r->perf.arrival_ns = (int64_t)nrd_now_ns();
    *out = r;
    return NULL;

fail:
    nrd_exec_request_free(r);
    return err;
}

/* Worlds of blocks that must not be shared: those of other adapters, by their content, and of other salts.
 * The salt is a secret of its users: 128 bits. */
static nrd_prefix_key key_of(const nrd_exec_request_state *r, const nrd_exec_request *in)
{
    uint64_t adapter[2] = {0, 0}, sum[2];
    if (r->adapter) {
        nrd_adapter_hash(r->adapter, adapter);
    }
    if (!in->cache_salt) {
        return (nrd_prefix_key){adapter[0], adapter[1] & ~(uint64_t)1};
    }
    nrd_siphash h;
    nrd_siphash_init(&h, nrd_siphash_process_key());
    nrd_siphash_add(&h, adapter, sizeof adapter);
    nrd_siphash_add(&h, in->cache_salt, strlen(in->cache_salt));
    nrd_siphash_end(&h, sum);
    return (nrd_prefix_key){sum[0], sum[1] | 1u}; /* no world without a salt has this */
}

/* Forced tokens have no logits, and it is not checked whether they are forbidden. */
static bool may_jump(const nrd_seq *q)
{
    return q->dec.guide && q->req.width == 1 && !q->req.want_log_probs && q->req.n_top == 0 &&
           !q->run.want_logit_rows && q->req.bad.n == 0 && q->req.first_time <= 0 &&
           q->req.sampling.no_repeat_ngram_size <= 0;
}

static nrd_error *copy_guide(nrd_exec_request_state *r, const nrd_exec_request *in)
{
    r->is_guided = in->guide_type != NULL;
    if (!in->guide_type) {
        return NULL;
    }
    r->guide_type = strdup(in->guide_type);
    r->guide_text = strdup(in->guide ? in->guide : "");
    return r->guide_type && r->guide_text ? NULL : nrd_error_no_memory();
}

/* Sequence i of a request, whose lists were copied before. */
static void describe_seq(nrd_exec_request_state *r, const nrd_exec_request *in, int32_t i, int32_t max_total,
                         nrd_phrase_list stop, nrd_phrase_list bad)
{
    const nrd_model_spec *m = r->exec->spec;
    const bool wants_context = (in->return_context_logits || in->return_prompt_log_probs) && i == 0, wants_speech = r->no_speech_id >= 0 && i == 0;
    const bool all_states = in->pooling == NRD_POOLING_MEAN;
    nrd_seq *q = &r->seqs[i];

    *q = (nrd_seq){
        .req =
            {
                .index = i,
                .group = in->group ? in->group : r->n_seqs > 1 ? (uint64_t)(uintptr_t)r : 0,
                .flow = in->flow,
                .owner = r,
                .priority = in->priority,
                .width = in->sampling.beam_width,
                .n_prompt = r->n_prompt,
                .n_cross = r->n_cross,
                .n_encoder = r->n_encoder,
                .pictures = r->states,
                .n_pictures = r->n_states,
                .picture_rows = r->pictures ? r->pictures->both_ways : 0,
                .cross_order = r->cross_order,
                .cross_seen = r->cross_seen,
                .n_cross_seen = r->n_cross_seen,
                .features = r->features,
                .n_frames = r->features ? in->n_encoder_frames : 0,
                .max_total = max_total,
                .end_id = in->end_id,
                .unmasked_scores = in->generate_scores,
                .n_counted = in->generate_scores && r->n_cross > 0 ? r->n_prompt - r->n_cross - 1 : 0,
                .forced_end = in->forced_end && in->max_new_tokens > 1,
                .ends_behind_draft = in->ends_behind_draft && in->n_draft_input_ids > 0,
                .sampling = convert_sampling(&in->sampling),
                .stop = stop,
                .bad = bad,
                .reasoning = r->reasoning,
                .may_jump = r->reasoning != NULL,
                .first_time = in->first_time_id,
                .max_first_time = in->max_first_time,
                .second_from = m->n_token_types > 1 ? in->second_from : 0,
                .no_reuse = wants_context || all_states || in->pooling == NRD_POOLING_FIRST || m->encoder ||
                            r->exec->encoder || (r->pictures && r->pictures->both_ways == NRD_PICTURE_ROWS_PROMPT),
                .no_sample = in->pooling != NRD_POOLING_NONE,
                .want_log_probs = in->return_log_probs,
                .n_top = in->n_top_logprobs,
                .leader = i > 0 && !r->exec->encoder ? &r->seqs[0] : NULL,
                .content = {.key = key_of(r, in),
                            .extra = r->extra,
                            .n_extra = r->extra ? r->n_prompt : 0,
                            .retention = &r->retention},
            },
        .run =
            {
                .want_context_rows = wants_context,
                .context_row = wants_speech ? r->n_cross + in->no_speech_at : 0,
                .axes = r->axes,
                .axes_shift = r->axes_shift,
                .want_states = all_states,
                .want_last_state = in->pooling == NRD_POOLING_LAST,
                .want_first_state = in->pooling == NRD_POOLING_FIRST,
                .want_logit_rows = r->want_generation_logits,
            },
    };
}

static nrd_error *fill(nrd_exec_request_state *r, const nrd_exec_request *in, int32_t max_total)
{
    nrd_exec *x = r->exec;
    nrd_error *err = NULL;
    nrd_phrase_list stop, bad;

    NRD_TRY(nrd_exec_lora_of(x, in, &r->adapter));
    r->client_id = in->client_id;
    r->is_cancelled = in->is_stopped;
    r->deadline_ns = in->deadline_ns > 0 ? in->deadline_ns : 0;
    r->start_by_ns = in->start_by_ns > 0 ? in->start_by_ns : 0;
    r->pooling = in->pooling;
    r->streaming = in->streaming && !in->pooling;
    r->echo_prompt = !in->exclude_input_in_output && !in->pooling;
    /* With beams the count of sequences only caps how many come back; 1 is the default: all. */
    r->n_return = in->sampling.num_return_sequences > 1 ? in->sampling.num_return_sequences
                                                        : in->sampling.beam_width;
    r->want_context_logits = in->return_context_logits;
    /* Streamed beams have none: every answer would have those of all tokens so far. */
    r->want_generation_logits = in->return_generation_logits && !(in->streaming && in->sampling.beam_width > 1);
    r->no_speech_id = in->no_speech_id;
    r->no_speech_prob = -1;
    NRD_TRY_GOTO(copy_guide(r, in), err, fail);
    NRD_TRY_GOTO(copy_phrases(r, in, &stop, &bad), err, fail);
    NRD_TRY_GOTO(copy_retention(r, in), err, fail);
    NRD_TRY_GOTO(nrd_exec_reasoning_copy(r, in), err, fail);
    NRD_TRY_GOTO(take_pictures(r, in), err, fail); /* before the table, whose rows tell theirs apart */
    NRD_TRY_GOTO(nrd_exec_prompt_table_copy(r, in), err, fail);
    NRD_TRY_GOTO(nrd_exec_mrope_copy(r, in), err, fail);
    NRD_TRY_GOTO(nrd_exec_encoder_copy(r, in), err, fail);
    NRD_TRY_GOTO(nrd_exec_cross_mask_copy(r, in), err, fail);
    NRD_TRY_GOTO(nrd_exec_bias_copy(r, in), err, fail);
    if (r->want_context_logits) {
        NRD_NEW_GOTO(r->context_logits, (size_t)r->n_prompt * (size_t)x->spec->vocab, err, fail);
    }
    if (in->return_prompt_log_probs) {
        NRD_TRY_GOTO(nrd_exec_scores_new(&r->prompt_scores, r->n_prompt, in->n_top_prompt_logprobs), err, fail);
    }
    if (in->pooling) {
        const int32_t sizes[] = {nrd_classifier_labels(x->classifier), nrd_projection_size(x->projection)};
        const int32_t larger = sizes[0] > sizes[1] ? sizes[0] : sizes[1];
        NRD_NEW_GOTO(r->embedding, larger > x->spec->hidden ? larger : x->spec->hidden, err, fail);
    }
    if (in->pooling == NRD_POOLING_MEAN) {
        NRD_NEW_GOTO(r->sums, x->spec->hidden, err, fail);
    }
    if (r->want_generation_logits) {
        NRD_NEW_GOTO(r->generation_logits, r->n_seqs, err, fail);
    }
    for (int32_t i = 0; i < r->n_seqs; i++) {
        nrd_seq *q = &r->seqs[i];
        describe_seq(r, in, i, max_total, stop, bad);
        NRD_TRY_GOTO(seq_buffers(x, r, q), err, fail);
        if (in->n_draft_input_ids > 0) {
            NRD_TRY_GOTO(nrd_proposer_of_request(&q->spec.proposer, in->draft_input_ids, in->n_draft_input_ids,
                                                 in->draft_logits, x->spec->vocab, in->draft_acceptance_threshold),
                         err, fail);
        }
        if (in->kind == NRD_REQUEST_CONTEXT_ONLY) {
            nrd_decode_prepare(q); /* one token, which nobody guesses */
        } else {
            NRD_TRY_GOTO(nrd_exec_speculative_prepare(x, in, q), err, fail);
        }
    }
fail:
    return err;
}

/* Which state a request wants that leaves it to the model, or wants its labels. */
static nrd_pooling pooling_of(const nrd_model_spec *m, nrd_pooling asked)
{
    static const nrd_pooling kinds[] = {[NRD_SPEC_POOL_FIRST] = NRD_POOLING_FIRST,
                                        [NRD_SPEC_POOL_MEAN] = NRD_POOLING_MEAN,
                                        [NRD_SPEC_POOL_LAST] = NRD_POOLING_LAST};

    return asked == NRD_POOLING_LABELS  ? kinds[m->classifier.pooling]
           : asked != NRD_POOLING_MODEL ? asked
                                        : kinds[m->pooling];
}

/* A checked request as a prompt; its first n_cross places are for the states of an encoder that reads n_encoder tokens. */
static nrd_error *make(nrd_exec_request_state **out, nrd_exec *x, const nrd_exec_request *in, int32_t n_cross,
                       int32_t n_encoder)
{
    const int32_t longest = x->lim.max_seq_len - nrd_exec_encoder_room(x) + n_cross;
    /* With beams num_return_sequences only caps how many come back; else it is a count. */
    int32_t n_seqs = in->sampling.beam_width > 1 ? 1 : in->sampling.num_return_sequences;
    int64_t total = (int64_t)in->n_input_ids + (in->pooling ? 0 : in->max_new_tokens - (in->forced_end && in->max_new_tokens > 1));
    nrd_exec_request_state *r = NULL;

    if (in->kind == NRD_REQUEST_CONTEXT_ONLY) {
        total = (int64_t)in->n_input_ids + 2; /* its one token is not the last one: that is for the other executor to say */
    }
    if (total > longest) {
        nrd_exec_log(x, 1, "prompt (%d) and max_new_tokens (%d) exceed max_seq_len (%d): cut",
                     in->n_input_ids - n_cross, in->max_new_tokens, longest - n_cross);
        total = longest;
    }
    int32_t worst =
        nrd_sched_worst_blocks(&x->sched_lim, nrd_kv_block_tokens(x->kv), in->n_input_ids,
                               (int32_t)total, in->sampling.beam_width);
    if (worst > x->info.n_kv_blocks) {
        return nrd_errorf(
            NRD_ERR_INVALID_ARG,
            "this request needs up to %d KV cache blocks of %d tokens, but there are %d "
            "(max_tokens_in_paged_kv_cache, kv_cache_free_gpu_mem_fraction)",
            worst, x->info.tokens_per_block, x->info.n_kv_blocks);
    }
    NRD_TRY(begin(&r, x, in->input_ids, in->n_input_ids, n_seqs));
    r->n_cross = n_cross;
    r->n_encoder = n_encoder;
    nrd_error *err = fill(r, in, (int32_t)total);
    err = err ? err : nrd_handover_join(r, in);
    if (err) {
        nrd_exec_request_free(r);
        return err;
    }
    *out = r;
    return NULL;
}

/* A request whose pictures are read. */
static nrd_error *new_read(nrd_exec_request_state **out, nrd_exec *x, nrd_exec_request full)
{
    nrd_exec_request_state *r = NULL;

    NRD_TRY(nrd_exec_request_check(x, &full));
    const bool wants_labels = full.pooling == NRD_POOLING_LABELS, wants_projection = full.pooling == NRD_POOLING_MODEL && x->projection;
    full.pooling = pooling_of(x->spec, full.pooling);
    int32_t *joined = NULL, n_cross = 0, n_encoder = 0;
    if (x->encoder) {
        n_encoder = nrd_exec_encoder_length(x, &full);
        NRD_TRY(nrd_exec_encoder_join(x, &full, &joined, &n_cross));
    }
    if (full.images_prepared && !x->encoder) {
        const nrd_pictures *p = full.images_prepared;
        n_cross = p->n_cross;
        full.input_ids = p->ids;
        full.n_input_ids = p->n_ids;
    }
    nrd_error *err = make(&r, x, &full, n_cross, n_encoder);
    free(joined);
    NRD_TRY(err);
    r->wants_labels = wants_labels;
    r->wants_projection = wants_projection;
    *out = r;
    return NULL;
}

nrd_error *nrd_exec_request_new(nrd_exec_request_state **out, nrd_exec *x,
                                const nrd_exec_request *in)
{
    nrd_exec_request full;

    *out = NULL;
    if (!in || in->size < offsetof(nrd_exec_request, sampling)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "request: size is not set (nrd_exec_request_init)");
    }
    nrd_exec_request_init(&full);
    memcpy(&full, in, in->size < sizeof full ? in->size : sizeof full);
    const bool is_prepared = full.images_prepared != NULL;
    NRD_TRY(nrd_exec_prepare_images(x, &full));
    nrd_error *err = new_read(out, x, full);
    if (!is_prepared) {
        nrd_exec_release_images(x, &full);
    }
    return err;
}

/* a * b * c, as much as fits. */
static uint64_t times(uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t ab, abc;
    return __builtin_mul_overflow(a, b, &ab) || __builtin_mul_overflow(ab, c, &abc) ? UINT64_MAX / 64 : abc;
}

static uint64_t at_least_0(int64_t n)
{
    return n > 0 ? (uint64_t)n : 0;
}

static uint64_t phrases_bytes(const nrd_phrases *p)
{
    return p->n > 0 && p->n <= NRD_EXEC_MAX_PHRASES && p->ends
               ? times(at_least_0(p->n) + at_least_0(p->ends[p->n - 1]), sizeof(int32_t), 1)
               : 0;
}

uint64_t nrd_exec_request_bytes(nrd_exec *x, const nrd_exec_request *in)
{
    nrd_exec_request full;

    if (!in || in->size < offsetof(nrd_exec_request, sampling)) {
        return 0;
    }
    nrd_exec_request_init(&full);
    memcpy(&full, in, in->size < sizeof full ? in->size : sizeof full);
    const nrd_exec_request *e = &full;
    const int32_t n_return = e->sampling.num_return_sequences, beams = e->sampling.beam_width;
    const uint64_t width = beams > 1 && beams <= x->lim.max_beam_width ? (uint64_t)beams : 1; /* else: refused */
    const uint64_t n_seqs = width > 1 || n_return < 1 || n_return > NRD_LIMIT_RETURN_SEQUENCES ? 1 : (uint64_t)n_return;
    const int32_t most = x->lim.max_input_len, n_table_most = nrd_engine_limits(x->engine)->max_prompt_embedding_table_size;
    const uint64_t n_prompt = at_least_0(e->n_input_ids < most ? e->n_input_ids : most);
    const uint64_t vocab = at_least_0(x->spec->vocab);
    uint64_t total = n_prompt + (e->pooling ? 0 : at_least_0(e->max_new_tokens));
    total = total > at_least_0(x->lim.max_seq_len) ? at_least_0(x->lim.max_seq_len) : total;
    const uint64_t n_new = total > n_prompt ? total - n_prompt : 0;
    const uint64_t n_top = e->n_top_logprobs > NRD_MAX_TOP_LOGPROBS ? 0 : at_least_0(e->n_top_logprobs);
    /* Each count of tokens twice: they are kept, and once more in answers. */
    uint64_t bytes = times(n_prompt, sizeof(int32_t) + sizeof(uint64_t), 1);
    bytes += times(n_seqs * width, total, 2 * sizeof(int32_t));
    bytes += times(n_seqs, sizeof(nrd_seq) + sizeof(nrd_exec_response_state), 1);
    if (e->return_log_probs) {
        bytes += times(n_seqs * width, n_new, 2 * sizeof(float));
    }
    bytes += times(n_seqs, n_new, 2 * n_top * (sizeof(int32_t) + sizeof(float)));
    if (e->return_context_logits && x->info.gather_context_logits) { /* handed on to the answer, not copied */
        bytes += times(n_prompt, vocab, sizeof(float));
    }
    if (e->return_prompt_log_probs && e->n_top_prompt_logprobs <= NRD_MAX_TOP_LOGPROBS) { /* as those */
        bytes += nrd_exec_scores_bytes(n_prompt, at_least_0(e->n_top_prompt_logprobs));
    }
    if (e->return_generation_logits && x->info.gather_generation_logits) { /* kept in a buffer that doubles; an answer has a copy */
        bytes += times(n_seqs * width * n_new, vocab, 2 * sizeof(float));
    }
    bytes += times(n_seqs, nrd_exec_speculative_bytes(x, (int32_t)total), 1);
    if (e->kind == NRD_REQUEST_CONTEXT_ONLY && x->info.n_kv_blocks > 0) { /* its blocks, kept for another executor */
        const uint64_t bt = (uint64_t)x->info.tokens_per_block;
        bytes += times((n_prompt + bt - 1) / bt, x->info.kv_cache_bytes / (uint64_t)x->info.n_kv_blocks, 1);
    }
    if (e->draft_input_ids && e->n_draft_input_ids <= x->info.max_draft_len) { /* copied for each sequence */
        const uint64_t n_draft = at_least_0(e->n_draft_input_ids);
        bytes += times(n_seqs, n_draft, sizeof(int32_t));
        if (e->draft_logits) {
            bytes += times(n_seqs * n_draft, vocab, sizeof(float));
            bytes += times(n_seqs, nrd_speculate_scratch_bytes(x->spec->vocab), 1);
        }
    }
    if (e->prompt_embedding_table && !e->image_sizes && e->prompt_vocab_size <= n_table_most) {
        bytes += times(at_least_0(e->prompt_vocab_size), at_least_0(x->spec->hidden), sizeof(float));
    }
    if ((e->n_images > 0 || e->n_videos > 0) && x->vision) {
        bytes += nrd_pictures_bytes(nrd_vision_get_spec(x->vision), e, x->spec->hidden, most);
    }
    if (e->encoder_input_features && nrd_exec_hears(x)) {
        bytes += times(at_least_0(e->n_encoder_frames), at_least_0(e->encoder_feature_size), sizeof(float));
    }
    if (e->cross_attention_mask) {
        bytes += times(at_least_0(e->n_cross_mask_rows) + at_least_0(e->n_cross_mask_cols), sizeof(int32_t), 1);
    }
    if (e->embedding_bias) {
        bytes += times(vocab, sizeof(float), 1);
    }
    if (e->lora_weights) { /* copied into the adapters' cache */
        bytes += times(at_least_0(e->lora_rows), at_least_0(e->lora_width), sizeof(float));
    }
    bytes += times(at_least_0(e->n_bias), sizeof(float) + sizeof(int32_t), 1);
    bytes += phrases_bytes(&e->stop_words) + phrases_bytes(&e->bad_words);
    return bytes + (e->guide ? strlen(e->guide) : 0);
}

nrd_error *nrd_exec_request_new_score(nrd_exec_request_state **out, nrd_exec *x,
                                      uint64_t lora_task_id, const int32_t *ids, int32_t n,
                                      nrd_exec_scores *job)
{
    nrd_exec_request in;
    nrd_exec_request_state *r = NULL;

    *out = NULL;
    nrd_exec_request_init(&in);
    in.input_ids = ids;
    in.n_input_ids = n;
    in.lora_task_id = lora_task_id;
    if (x->encoder) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "probabilities of a text are not supported for encoder-decoder models (%s)",
                          x->spec->architecture);
    }
    if (n > x->lim.max_seq_len) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%d tokens exceed max_seq_len (%d)", n,
                          x->lim.max_seq_len);
    }
    NRD_TRY(begin(&r, x, ids, n, 1));
    nrd_error *err = fill(r, &in, n);
    if (err) {
        nrd_exec_request_free(r);
        return err;
    }
    r->score = job;
    r->seqs[0].req.no_sample = true;
    r->seqs[0].req.no_reuse = true;
    r->seqs[0].run.want_context_rows = true;
    r->seqs[0].run.context_from = job->first > 0 ? job->first - 1 : 0; /* which tells of the token behind it */
    *out = r;
    return NULL;
}

nrd_error *nrd_exec_request_upload(nrd_exec_request_state *r)
{
    NRD_TRY(nrd_exec_vision_run(r));
    NRD_TRY(nrd_exec_prompt_table_upload(r));
    if (r->n_bias > 0) {
        const nrd_token_bias from = {r->bias_values, r->bias_ids, r->n_bias};
        NRD_TRY(nrd_runner_bias_new(r->exec->runner, &from, &r->bias));
        free(r->bias_values);
        free(r->bias_ids);
        r->bias_values = NULL;
        r->bias_ids = NULL;
        r->n_bias = 0;
        for (int32_t i = 0; i < r->n_seqs; i++) {
            r->seqs[i].run.bias = r->bias;
        }
    }
    return NULL;
}

nrd_error *nrd_exec_request_bind_guide(nrd_exec_request_state *r)
{
    nrd_error *err = r->guide_err;

    r->guide_err = NULL;
    for (int32_t i = 0; r->guide && i < r->n_seqs && !err; i++) {
        nrd_seq *q = &r->seqs[i];
        q->dec.guide = nrd_guide_state_new(r->guide);
        if (!q->dec.guide) {
            err = nrd_error_no_memory();
            break;
        }
        q->req.may_jump = may_jump(q);
        nrd_decode_prepare(q);
    }
    nrd_guide_unref(r->guide);
    r->guide = NULL;
    return err;
}
