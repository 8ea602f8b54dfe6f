/* SPDX-License-Identifier: Apache-2.0
 * The table of prompts that wait, and what both kinds of requests do with it.
 *
 * An entry is checked against the request that wants it before it leaves the table: a request that is refused has taken
 * nothing. The first token is chosen where the prompt was computed; where it ends the text, nothing but the token is kept. */
#include "executor/handover.h"

#include "base/clock.h"
#include "base/dtype.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/siphash.h"
#include "engine/run/parcel.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

enum { ID_BYTES = 16, SAMPLED_BYTES = 4096, VERSION = 1 };

/* The bytes of context_phase_params, of this machine's order: they never leave the process but as they are. */
typedef struct params {
    char magic[4];
    uint32_t version;
    uint8_t id[ID_BYTES];
} params;
_Static_assert(sizeof(params) == NRD_EXEC_PARAMS_BYTES, "requests and responses have room for them");
static const char magic[4] = {'N', 'R', 'D', 'C'};

struct nrd_handover {
    nrd_handover *next;
    nrd_exec *from;
    uint8_t id[ID_BYTES];
    int64_t due_ns;
    uint64_t request; /* its number there, for the log */
    uint64_t model;   /* a digest of what must be the same model */
    nrd_kv_shape shape;
    nrd_prefix_key key; /* adapter and salt */
    int32_t *prompt, n_prompt;
    uint64_t *extra; /* [n_prompt] or NULL */
    int32_t token;   /* the first choice, */
    double cum_log_prob;
    bool has_log_prob;
    float log_prob;
    int32_t n_top;
    int32_t top_ids[NRD_MAX_TOP_LOGPROBS];
    float top_log_probs[NRD_MAX_TOP_LOGPROBS];
    float *logits; /* [vocab] that it was made from, or NULL */
    nrd_kv_parcel parcel; /* empty: the token ended the text there */
    uint64_t bytes, transfer_us;
};

static pthread_mutex_t table_mu = PTHREAD_MUTEX_INITIALIZER;
static nrd_handover *table; /* newest first; guarded by table_mu, as x->handovers of all executors */

static void entry_free(nrd_handover *h)
{
    if (h) {
        nrd_kv_parcel_fini(&h->parcel);
        free(h->prompt);
        free(h->extra);
        free(h->logits);
        free(h);
    }
}

/* Takes an entry out of the table. With the lock held. */
static void unlink_entry(nrd_handover **at)
{
    nrd_handover *h = *at;
    *at = h->next;
    h->next = NULL;
    h->from->handovers.n_kept--;
    h->from->handovers.n_tokens -= h->n_prompt;
}

/* ---- what must agree ---- */

/* Architecture, sizes, and the first bytes of some weights: a finer name of a model than its shape, and quick to compute. */
static uint64_t model_digest(const nrd_exec *x)
{
    static const char *const names[] = {"transformer.vocab_embedding.weight", "transformer.layers.%d.attention.qkv.weight",
                                        "transformer.layers.%d.attention.dense.weight", "transformer.ln_f.weight"};
    const nrd_model_spec *m = x->spec;
    const int32_t sizes[] = {m->vocab, m->hidden, m->n_layers};
    uint64_t h = nrd_hash_bytes(nrd_hash_bytes(0, m->architecture, strlen(m->architecture)), sizes, sizeof sizes);

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char name[128];
        snprintf(name, sizeof name, names[i], m->n_layers - 1);
        const nrd_weight *w = nrd_engine_weight(x->engine, name);
        if (w && w->data) {
            h = nrd_hash_u64(h, (uint64_t)w->dtype << 32 | w->layout);
            h = nrd_hash_bytes(h, w->data, w->data_bytes < SAMPLED_BYTES ? (size_t)w->data_bytes : SAMPLED_BYTES);
        }
    }
    return h;
}

static nrd_error *disagrees(const char *what)
{
    return nrd_errorf(NRD_ERR_INVALID_ARG, "context_phase_params: %s", what);
}

/* How the engines are divided: the rest of a shape, and of a model's digest, is rank 0's share. */
static nrd_error *check_split(const nrd_kv_shape *there, const nrd_kv_shape *here)
{
    return there->tp_size == here->tp_size && there->pp_size == here->pp_size
               ? NULL
               : nrd_errorf(NRD_ERR_UNSUPPORTED,
                            "context_phase_params: the context model has tp_size %d and pp_size "
                            "%d, this one %d and "
                            "%d: a prompt goes from each rank to the one of its number, so both "
                            "engines must be built alike",
                            there->tp_size, there->pp_size, here->tp_size, here->pp_size);
}

static nrd_error *check_shape(const nrd_kv_shape *there, const nrd_kv_shape *here)
{
    if (there->host_is_device != here->host_is_device) {
        return disagrees("the context model and this one run on different kinds of devices");
    }
    if (there->dtype != here->dtype) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "context_phase_params: the context model has a cache of %s, this one of %s",
                          nrd_dtype_name(there->dtype), nrd_dtype_name(here->dtype));
    }
    if (there->block_tokens != here->block_tokens) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "context_phase_params: blocks of the context model's cache have %d tokens, this one's %d",
                          there->block_tokens, here->block_tokens);
    }
    if (there->window != here->window || there->n_sink != here->n_sink) {
        return disagrees("max_attention_window_size or sink_token_length is not that of the context model");
    }
    return there->n_layers != here->n_layers || there->layers != here->layers
               ? disagrees("layers of the context model's cache differ from this one's in heads, sizes or scales")
               : NULL;
}

/* Whether a request is the one whose prompt this is. */
static nrd_error *check_entry(const nrd_handover *h, const nrd_exec_request_state *r, const nrd_exec_request *in)
{
    const nrd_seq *q = &r->seqs[0];
    nrd_kv_shape here;

    nrd_runner_kv_shape(r->exec->runner, &here);
    NRD_TRY(check_split(&h->shape, &here));
    if (h->model != model_digest(r->exec)) {
        return disagrees("they are of another model");
    }
    NRD_TRY(check_shape(&h->shape, &here));
    if (h->n_prompt != r->n_prompt || memcmp(h->prompt, r->prompt, (size_t)r->n_prompt * sizeof *h->prompt) != 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "input_ids (%d tokens) are not those of the context_only request (%d tokens)",
                          r->n_prompt, h->n_prompt);
    }
    if (h->key.a != q->req.content.key.a || h->key.b != q->req.content.key.b) {
        return disagrees("the context_only request had another LoRA adapter or cache_salt");
    }
    if ((h->extra != NULL) != (r->extra != NULL) ||
        (h->extra && memcmp(h->extra, r->extra, (size_t)r->n_prompt * sizeof *h->extra) != 0)) {
        return disagrees("the context_only request had another prompt table, or other pictures");
    }
    if (in->return_log_probs && !h->has_log_prob) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "return_log_probs must be asked for in the context_only request too");
    }
    if (in->n_top_logprobs > h->n_top) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "n_top_logprobs is %d, the context_only request asked for %d", in->n_top_logprobs,
                          h->n_top);
    }
    return in->return_generation_logits && !h->logits
               ? nrd_errorf(NRD_ERR_INVALID_ARG, "return_generation_logits must be asked for in the context_only request too")
               : NULL;
}

static bool is_on_several_hosts(const nrd_exec *x)
{
    bool any = false;
    for (int32_t i = 1; x->ranks && i < x->spec->tp_size * x->spec->pp_size; i++) {
        any = any || nrd_ranks_far_host(x->ranks, i) != NULL;
    }
    return any;
}

nrd_error *nrd_handover_check(const nrd_exec *x, const nrd_exec_request *in)
{
    const bool gives = in->kind == NRD_REQUEST_CONTEXT_ONLY, takes = in->kind == NRD_REQUEST_GENERATION_ONLY;
    const struct {
        bool is_so;
        const char *what;
    } refused[] = {
        {is_on_several_hosts(x), "an engine whose ranks are on several hosts"},
        {x->encoder != NULL, "an encoder-decoder model"},
        {nrd_spec_is_recurrent(x->spec), "a model with layers that have a recurrent state"},
        {x->sched_lim.is_static, "gpt_model_type V1"},
        {in->pooling != NRD_POOLING_NONE, "pooling"},
        {in->sampling.beam_width > 1, "beam_width > 1"},
        {in->sampling.num_return_sequences > 1, "num_return_sequences > 1"},
        {in->n_draft_input_ids > 0, "draft_input_ids"},
        {in->n_images > 0 && x->lim.max_picture_states > 0, "pictures that layers read"},
    };

    if ((int)in->kind < NRD_REQUEST_CONTEXT_AND_GENERATION || in->kind > NRD_REQUEST_GENERATION_ONLY) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "kind is %d, expected 0 to 2", (int)in->kind);
    }
    if (in->context_phase_params && !takes) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "context_phase_params need the request type generation_only");
    }
    if (takes && !in->context_phase_params) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "request type generation_only needs context_phase_params, which the answer to a "
                          "context_only request has");
    }
    for (size_t i = 0; i < sizeof refused / sizeof *refused && (gives || takes); i++) {
        if (refused[i].is_so) {
            return nrd_errorf(NRD_ERR_UNSUPPORTED, "request type %s is not supported with %s",
                              gives ? "context_only" : "generation_only", refused[i].what);
        }
    }
    return NULL;
}

/* ---- of requests ---- */

static nrd_error *reserve(nrd_exec_request_state *r)
{
    nrd_exec *x = r->exec;
    const int64_t room = x->cfg.max_tokens_in_buffer > 0 ? x->cfg.max_tokens_in_buffer
                                                         : (int64_t)x->info.n_kv_blocks * x->info.tokens_per_block;
    nrd_error *err = NULL;

    if (r->n_prompt > room) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "request type context_only: input_ids has %d tokens, max_tokens_in_buffer is %" PRId64,
                          r->n_prompt, room);
    }
    pthread_mutex_lock(&table_mu);
    if (x->handovers.n_tokens + r->n_prompt > room) {
        err = nrd_errorf(NRD_ERR_UNAVAILABLE, "prompts of %" PRId64 " tokens wait to be taken by generation_only requests, and the "
                         "limit (max_tokens_in_buffer) is %" PRId64 ": please try again later", x->handovers.n_tokens, room);
    } else {
        x->handovers.n_tokens += r->n_prompt;
        r->handover_tokens = r->n_prompt;
    }
    pthread_mutex_unlock(&table_mu);
    return err;
}

/* Finds the entry and, if it is the request's, takes it out. */
static nrd_error *claim(const params *p, nrd_exec_request_state *r, const nrd_exec_request *in)
{
    nrd_error *err = NULL;

    pthread_mutex_lock(&table_mu);
    nrd_handover **at = &table;
    while (*at && memcmp((*at)->id, p->id, ID_BYTES) != 0) {
        at = &(*at)->next;
    }
    if (!*at) {
        err = nrd_errorf(NRD_ERR_NOT_FOUND, "context_phase_params: nothing waits under them in this process: the prompt was taken, or "
                         "timed out (kv_transfer_timeout_ms), or its model was unloaded");
    } else {
        err = check_entry(*at, r, in);
    }
    if (!err) {
        r->handover = *at;
        unlink_entry(at);
        r->exec->handovers.n_taken++;
        r->exec->handovers.n_bytes += r->handover->bytes;
        r->exec->handovers.transfer_us += r->handover->transfer_us;
    }
    pthread_mutex_unlock(&table_mu);
    return err;
}

nrd_error *nrd_handover_join(nrd_exec_request_state *r, const nrd_exec_request *in)
{
    params p;

    r->gives = in->kind == NRD_REQUEST_CONTEXT_ONLY;
    if (in->kind != NRD_REQUEST_GENERATION_ONLY) {
        return r->gives ? reserve(r) : NULL;
    }
    if (in->n_context_phase_params != sizeof p) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "context_phase_params has %zu bytes, expected %zu", in->n_context_phase_params,
                          sizeof p);
    }
    memcpy(&p, in->context_phase_params, sizeof p);
    if (memcmp(p.magic, magic, sizeof magic) != 0 || p.version != VERSION) {
        return disagrees("these bytes do not come from a context_only request of this server");
    }
    NRD_TRY(claim(&p, r, in));
    nrd_seq *q = &r->seqs[0];
    if (r->handover->parcel.data) {
        q->req.handed = NRD_HANDED_BLOCKS;
        q->run.parcel = &r->handover->parcel;
    } else {
        q->req.handed = NRD_HANDED_TOKEN;
    }
    return NULL;
}

void nrd_handover_leave(nrd_exec_request_state *r)
{
    if (r->handover_tokens > 0) {
        pthread_mutex_lock(&table_mu);
        r->exec->handovers.n_tokens -= r->handover_tokens;
        pthread_mutex_unlock(&table_mu);
        r->handover_tokens = 0;
    }
    entry_free(r->handover);
    r->handover = NULL;
}

/* ---- loop thread ---- */

/* What is known of the first choice. */
static nrd_error *fill_choice(nrd_handover *h, const nrd_exec_request_state *r, const nrd_sched_event *e)
{
    const nrd_seq *q = e->seq;
    nrd_error *err = NULL;

    h->token = e->n_new > 0 ? q->dec.tokens[q->req.n_prompt] : q->req.end_id;
    h->cum_log_prob = q->dec.cum_log_prob;
    h->has_log_prob = q->req.want_log_probs;
    h->log_prob = q->dec.log_probs && e->n_new > 0 ? q->dec.log_probs[0] : 0;
    h->n_top = q->req.n_top;
    if (h->n_top > 0 && e->n_new > 0) {
        memcpy(h->top_ids, q->dec.top_ids, (size_t)h->n_top * sizeof *h->top_ids);
        memcpy(h->top_log_probs, q->dec.top_log_probs, (size_t)h->n_top * sizeof *h->top_log_probs);
    }
    if (r->generation_logits && r->generation_logits[0].data && !r->lacks_logits) {
        NRD_NEW_GOTO(h->logits, r->exec->spec->vocab, err, fail);
        memcpy(h->logits, r->generation_logits[0].data, (size_t)r->exec->spec->vocab * sizeof *h->logits);
    }
fail:
    return err;
}

static nrd_error *fill_prompt(nrd_handover *h, const nrd_exec_request_state *r)
{
    nrd_error *err = NULL;

    h->n_prompt = r->n_prompt;
    NRD_NEW_GOTO(h->prompt, r->n_prompt, err, fail);
    memcpy(h->prompt, r->prompt, (size_t)r->n_prompt * sizeof *h->prompt);
    if (r->extra) {
        NRD_NEW_GOTO(h->extra, r->n_prompt, err, fail);
        memcpy(h->extra, r->extra, (size_t)r->n_prompt * sizeof *h->extra);
    }
fail:
    return err;
}

/* Every rank copies its share. The others are told first, so that all copy at a time. */
static nrd_error *give_blocks(nrd_exec *x, const nrd_kv_table *t, int32_t n, nrd_kv_parcel *out)
{
    if (x->ranks) {
        NRD_TRY(nrd_parcel_place_new(&out->place));
        NRD_TRY(nrd_ranks_give_blocks(x->ranks, &out->place, t->blocks, n));
    }
    NRD_TRY(nrd_runner_give_blocks(x->runner, t, n, out));
    return x->ranks ? nrd_ranks_wait_given(x->ranks, &out->place) : NULL;
}

static nrd_error *fill_blocks(nrd_handover *h, nrd_exec_request_state *r, const nrd_seq *q)
{
    nrd_exec *x = r->exec;
    const int32_t bt = x->info.tokens_per_block, n = (r->n_prompt + bt - 1) / bt;
    const uint64_t before = nrd_now_ns();

    nrd_exec_enter_device(x);
    NRD_TRY(nrd_exec_leave_device(x, give_blocks(x, &q->sched.tables[0], n, &h->parcel)));
    h->transfer_us = (nrd_now_ns() - before) / 1000;
    h->bytes = (uint64_t)n * (x->info.kv_cache_bytes / (uint64_t)x->info.n_kv_blocks);
    return NULL;
}

nrd_error *nrd_handover_keep(nrd_exec_request_state *r, const nrd_sched_event *e)
{
    nrd_exec *x = r->exec;
    nrd_error *err = NULL;
    nrd_handover *h = NULL;
    params p = {.version = VERSION};

    NRD_NEW_GOTO(h, 1, err, fail);
    h->from = x;
    h->request = r->id;
    h->model = model_digest(x);
    h->key = e->seq->req.content.key;
    nrd_runner_kv_shape(x->runner, &h->shape);
    NRD_TRY_GOTO(fill_prompt(h, r), err, fail);
    NRD_TRY_GOTO(fill_choice(h, r, e), err, fail);
    if (e->finish == NRD_SEQ_FINISH_NONE) {
        NRD_TRY_GOTO(fill_blocks(h, r, e->seq), err, fail);
    }
    if (getrandom(h->id, sizeof h->id, 0) != (ssize_t)sizeof h->id) {
        err = nrd_errorf(NRD_ERR_UNAVAILABLE, "context_only: the system has no random bytes");
        goto fail;
    }
    memcpy(p.magic, magic, sizeof magic);
    memcpy(p.id, h->id, sizeof p.id);
    memcpy(r->params, &p, sizeof p);
    r->n_params = sizeof p;
    h->due_ns = (int64_t)nrd_now_ns() +
                (x->cfg.kv_transfer_timeout_ms > 0 ? x->cfg.kv_transfer_timeout_ms : NRD_HANDOVER_TIMEOUT_MS) * 1000000;
    x->handover_due_ns = x->handover_due_ns ? x->handover_due_ns : h->due_ns;
    pthread_mutex_lock(&table_mu);
    h->next = table;
    table = h;
    x->handovers.n_kept++;
    x->handovers.n_given++;
    x->handovers.n_bytes += h->bytes;
    x->handovers.transfer_us += h->transfer_us;
    r->handover_tokens = 0; /* the entry has them now */
    pthread_mutex_unlock(&table_mu);
    return NULL;

fail:
    entry_free(h);
    return err;
}

void nrd_handover_begin(nrd_exec_request_state *r, nrd_sched_event *e)
{
    const nrd_handover *h = r->handover;
    nrd_seq *q = &r->seqs[0];
    const size_t n_top = (size_t)q->req.n_top, vocab = (size_t)r->exec->spec->vocab;

    *e = (nrd_sched_event){.seq = q};
    nrd_sched_append(r->exec->sched, &h->token, 1, e);
    q->dec.cum_log_prob = h->cum_log_prob;
    if (e->n_new > 0 && q->dec.log_probs) {
        q->dec.log_probs[0] = h->log_prob;
    }
    if (e->n_new > 0 && n_top > 0) {
        memcpy(q->dec.top_ids, h->top_ids, n_top * sizeof *h->top_ids);
        memcpy(q->dec.top_log_probs, h->top_log_probs, n_top * sizeof *h->top_log_probs);
    }
    if (e->n_new > 0 && r->generation_logits) {
        r->lacks_logits = !nrd_exec_buffer_reserve(&r->generation_logits[0], vocab * sizeof *h->logits);
        if (!r->lacks_logits) {
            memcpy(r->generation_logits[0].data, h->logits, vocab * sizeof *h->logits);
        }
    }
}

void nrd_handover_arrived(nrd_exec_request_state *r)
{
    r->seqs[0].run.parcel = NULL;
    entry_free(r->handover);
    r->handover = NULL;
}

/* All entries of an executor that are over by then, as a list. */
static nrd_handover *take_due(nrd_exec *x, int64_t now_ns)
{
    nrd_handover *due = NULL, **at = &table;

    x->handover_due_ns = 0;
    pthread_mutex_lock(&table_mu);
    while (*at) {
        nrd_handover *h = *at;
        if (h->from == x && h->due_ns <= now_ns) {
            unlink_entry(at);
            x->handovers.n_expired++;
            h->next = due;
            due = h;
            continue;
        }
        if (h->from == x && (x->handover_due_ns == 0 || h->due_ns < x->handover_due_ns)) {
            x->handover_due_ns = h->due_ns;
        }
        at = &h->next;
    }
    pthread_mutex_unlock(&table_mu);
    return due;
}

void nrd_handover_sweep(nrd_exec *x, int64_t now_ns)
{
    nrd_handover *due = take_due(x, now_ns);
    while (due) {
        nrd_handover *h = due;
        due = h->next;
        nrd_exec_log(x, 1, "context_only request %" PRIu64 ": nobody took its prompt (%d tokens) in time, it is freed", h->request,
                     h->n_prompt);
        entry_free(h);
    }
}

void nrd_handover_close(nrd_exec *x)
{
    nrd_handover *all = take_due(x, INT64_MAX);
    while (all) {
        nrd_handover *h = all;
        all = h->next;
        entry_free(h);
    }
}

void nrd_exec_handover_get_stats(nrd_exec *x, nrd_exec_handover_stats *out)
{
    const uint32_t size = out->size < sizeof *out ? out->size : sizeof *out;

    pthread_mutex_lock(&table_mu);
    nrd_exec_handover_stats now = x->handovers;
    pthread_mutex_unlock(&table_mu);
    now.size = size;
    memcpy(out, &now, size);
}
