/* SPDX-License-Identifier: Apache-2.0
 * Events go into two halves by turns. What a reader may count on: head.used of the half says how far whole
 * events reach, and is written after them. */
#include "engine/record.h"

#include "base/error.h"
#include "base/hash.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

enum { MAX_RECORDS = 16, N_LAST = 32, PSEUDONYM_BITS = 27 };

struct nrd_record {
    nrd_record_head *head; /* the mapping: head, then both halves */
    uint32_t *halves[2];
    size_t map_bytes;
    const nrd_kv *kv;
    nrd_sched_tap tap;
    uint64_t key[4];
    uint32_t n_seqs;
    uint32_t at; /* next word of the event being written */
    uint32_t *words;
    nrd_record_add last[N_LAST]; /* the last requests, by number modulo N_LAST */
};

/* For the signal handler: never moved, an entry is NULL or whole. */
static _Atomic(nrd_record *) records[MAX_RECORDS];

/* ---- events ---- */

/* Room for an event of n words behind its first; false: it would never fit. */
static bool begin(nrd_record *r, nrd_record_kind kind, size_t n)
{
    nrd_record_head *h = r->head;
    if (n + 1 > h->half_words || n > NRD_RECORD_MAX_EVENT) {
        return false;
    }
    if (h->used[h->current] + n + 1 > h->half_words) {
        const uint32_t next = 1 - h->current;
        h->used[next] = 0;
        h->n_turns++;
        atomic_signal_fence(memory_order_seq_cst);
        h->current = next;
    }
    r->words = r->halves[h->current] + h->used[h->current];
    r->words[0] = (uint32_t)kind << 24 | (uint32_t)n;
    r->at = 1;
    return true;
}

static void put(nrd_record *r, const void *from, size_t bytes)
{
    memcpy(r->words + r->at, from, bytes);
    r->at += (uint32_t)(bytes / 4);
}

static void end(nrd_record *r)
{
    atomic_signal_fence(memory_order_seq_cst);
    r->head->used[r->head->current] += r->at;
}

/* An event that no half can hold (a prompt longer than it): from here on nothing can be replayed. */
static void too_large(nrd_record *r)
{
    r->head->n_turns += 2;
}

/* ---- pseudonyms ---- */

static uint64_t rotate(uint64_t x, int n)
{
    return x << n | x >> (64 - n);
}

/* The round of SipHash (Aumasson, Bernstein 2012). */
static void round_of(uint64_t v[4])
{
    v[0] += v[1];
    v[1] = rotate(v[1], 13) ^ v[0];
    v[0] = rotate(v[0], 32);
    v[2] += v[3];
    v[3] = rotate(v[3], 16) ^ v[2];
    v[0] += v[3];
    v[3] = rotate(v[3], 21) ^ v[0];
    v[2] += v[1];
    v[1] = rotate(v[1], 17) ^ v[2];
    v[2] = rotate(v[2], 32);
}

static uint32_t pseudonym(uint64_t state[4], int32_t token, uint64_t extra)
{
    const uint64_t word = (uint64_t)(uint32_t)token;
    state[3] ^= word;
    round_of(state);
    round_of(state);
    state[0] ^= word;
    if (extra) {
        state[3] ^= extra;
        round_of(state);
        round_of(state);
        state[0] ^= extra;
    }
    return (uint32_t)((state[0] ^ state[1] ^ state[2] ^ state[3]) >> (64 - PSEUDONYM_BITS));
}

/* ---- what the scheduler tells ---- */

static void fill_add(const nrd_record *r, const nrd_seq *q, nrd_record_add *a)
{
    const nrd_seq_request *in = &q->req;
    const nrd_kv_retention *keep = in->content.retention;
    uint64_t key[4] = {r->key[0], r->key[1], r->key[2] ^ in->content.key.a, r->key[3] ^ in->content.key.b};

    round_of(key);
    round_of(key);
    round_of(key);
    const uint64_t group = in->group ? nrd_hash_u64(r->key[0], in->group) | 1 : 0; /* no address, no id of a client */
    const uint64_t flow = in->flow ? nrd_hash_u64(r->key[1], in->flow) | 1 : 0;
    *a = (nrd_record_add){
        .seq = q->sched.record_no,
        .leader = in->leader ? in->leader->sched.record_no : (uint32_t)NRD_RECORD_NONE,
        .request = (uint32_t)in->id,
        .index = (uint32_t)in->index,
        .group = {(uint32_t)group, (uint32_t)(group >> 32)},
        .flow = {(uint32_t)flow, (uint32_t)(flow >> 32)},
        .priority = in->priority,
        .width = in->width,
        .n_prompt = in->n_prompt,
        .max_total = in->max_total,
        .flags = (in->no_reuse ? NRD_RECORD_NO_REUSE : 0u) | (in->no_sample ? NRD_RECORD_NO_SAMPLE : 0u) |
                 (in->may_jump ? NRD_RECORD_MAY_JUMP : 0u) | (in->picture_rows > 0 ? NRD_RECORD_PICTURES : 0u) |
                 (in->handed == NRD_HANDED_TOKEN ? NRD_RECORD_HANDED_TOKEN : 0u) |
                 (in->handed == NRD_HANDED_BLOCKS ? NRD_RECORD_HANDED_BLOCKS : 0u) |
                 (q->dec.needs_host ? NRD_RECORD_NEEDS_HOST : 0u) |
                 (q->dec.keeps_counts ? NRD_RECORD_KEEPS_COUNTS : 0u) |
                 (q->dec.guide ? NRD_RECORD_GUIDED : 0u) | (q->run.adapter ? NRD_RECORD_ADAPTER : 0u) |
                 (q->spec.proposer ? NRD_RECORD_DRAFTS : 0u),
        .n_retention = keep ? keep->n_ranges : -1,
        .temperature = in->sampling.temperature,
        .top_p = in->sampling.top_p,
        .repetition_penalty = in->sampling.repetition_penalty,
        .top_k = in->sampling.top_k,
        .n_stop = in->stop.n,
        .n_bad = in->bad.n,
        .n_top = in->n_top,
    };
    memcpy(a->key, key, sizeof a->key);
}

static void on_added(void *user, nrd_seq *q)
{
    nrd_record *r = user;
    const nrd_kv_retention *keep = q->req.content.retention;
    const size_t n_keep = keep ? 4 + (size_t)keep->n_ranges * 5 : 0;
    nrd_record_add a;

    q->sched.record_no = r->n_seqs++;
    q->sched.is_guided = q->dec.guide != NULL;
    fill_add(r, q, &a);
    r->last[a.seq % N_LAST] = a;
    if (!begin(r, NRD_RECORD_ADD, sizeof a / 4 + n_keep + (size_t)q->req.n_prompt)) {
        too_large(r);
        return;
    }
    put(r, &a, sizeof a);
    if (keep) {
        const uint64_t ms = (uint64_t)keep->decode_duration_ms;
        put(r, (const uint32_t[4]){(uint32_t)keep->n_prompt, (uint32_t)keep->decode_priority, (uint32_t)ms, (uint32_t)(ms >> 32)}, 16);
        for (int32_t i = 0; i < keep->n_ranges; i++) {
            const nrd_kv_range *k = &keep->ranges[i];
            const uint64_t d = (uint64_t)k->duration_ms;
            put(r, (const uint32_t[5]){(uint32_t)k->start, (uint32_t)k->end, (uint32_t)k->priority, (uint32_t)d, (uint32_t)(d >> 32)}, 20);
        }
    }
    memcpy(q->sched.record_state, r->key, sizeof r->key);
    const nrd_kv_content *c = &q->req.content;
    for (int32_t i = 0; i < q->req.n_prompt; i++) {
        r->words[r->at++] = pseudonym(q->sched.record_state, q->dec.tokens[i],
                                      c->extra && i < c->n_extra ? c->extra[i] : 0);
    }
    end(r);
}

/* n 0: words may be NULL. */
static void put_words(nrd_record *r, nrd_record_kind kind, const uint32_t *words, size_t n)
{
    if (begin(r, kind, n)) {
        if (n > 0) {
            put(r, words, n * 4);
        }
        end(r);
    }
}

static void on_ended(void *user, const nrd_seq *q)
{
    put_words(user, NRD_RECORD_END, &q->sched.record_no, 1);
}

static bool on_held(void *user, const nrd_seq *q, bool is_held)
{
    put_words(user, NRD_RECORD_HELD, (const uint32_t[2]){q->sched.record_no, is_held}, 2);
    return is_held;
}

static uint32_t digest_of(const nrd_plan *p)
{
    uint64_t h = 0x9e3779b97f4a7c15u;
    for (int32_t i = 0; i < p->n_entries; i++) {
        const nrd_plan_entry *e = &p->entries[i];
        const uint32_t words[] = {e->seq->sched.record_no, (uint32_t)e->beam, (uint32_t)e->slot, (uint32_t)e->start,
                                  (uint32_t)e->n, (uint32_t)e->row, (uint32_t)e->n_draft, (uint32_t)e->n_generated,
                                  e->epoch << 3 | (uint32_t)e->from_slot << 2 | (uint32_t)e->init_counts << 1 |
                                      (uint32_t)e->is_context,
                                  (uint32_t)e->seq->sched.tables[e->beam].n_blocks};
        for (size_t k = 0; k < sizeof words / sizeof *words; k++) {
            h = (h ^ words[k]) * 0xff51afd7ed558ccdu;
            h ^= h >> 33;
        }
    }
    for (int32_t i = 0; i < p->n_copies; i++) {
        h = (h ^ (uint32_t)p->copies[i][0] ^ (uint64_t)(uint32_t)p->copies[i][1] << 32) * 0xff51afd7ed558ccdu;
        h ^= h >> 33;
    }
    return (uint32_t)h;
}

nrd_record_plan nrd_record_plan_of(const nrd_plan *p, const nrd_kv *cache)
{
    nrd_kv_stats kv;
    nrd_kv_get_stats(cache, &kv);
    const uint64_t now = (uint64_t)kv.now_ms;
    return (nrd_record_plan){
        .step = (uint32_t)p->step,
        .now_ms = {(uint32_t)now, (uint32_t)(now >> 32)},
        .n_entries = p->n_entries,
        .n_tokens = p->n_tokens,
        .n_context = p->n_context,
        .n_paused = p->n_paused,
        .n_held = p->n_held,
        .n_free = kv.n_free,
        .n_cached = kv.n_cached,
        .n_taken = (uint32_t)kv.n_alloc_total,
        .digest = digest_of(p),
    };
}

static void on_planned(void *user, const nrd_plan *p)
{
    nrd_record *r = user;
    const nrd_record_plan e = nrd_record_plan_of(p, r->kv);

    if (begin(r, NRD_RECORD_PLAN, sizeof e / 4)) {
        put(r, &e, sizeof e);
        end(r);
    }
}

static void on_committed(void *user, const nrd_plan *p, const nrd_step_result *result, const nrd_sched_event *events,
                         int32_t n_events)
{
    nrd_record *r = user;
    int32_t k = 0;

    if (!begin(r, NRD_RECORD_COMMIT, 1 + (size_t)p->n_rows)) {
        too_large(r);
        return;
    }
    r->words[r->at++] = (uint32_t)p->step;
    for (int32_t i = 0; i < p->n_entries; i++) {
        const nrd_plan_entry *e = &p->entries[i];
        nrd_sched_event ev = {.finish = NRD_SEQ_FINISH_NONE};
        uint32_t word = 0;
        if (e->beam == 0 && k < n_events && events[k].seq == e->seq) {
            ev = events[k++];
        }
        if (e->row < 0) {
            continue;
        }
        nrd_seq *q = e->seq;
        if (ev.n_new == 1 && q->req.width == 1) {
            word = pseudonym(q->sched.record_state, q->dec.tokens[q->dec.n_known - 1], 0);
        }
        const bool no_choice = result->no_choice && result->no_choice[e->row];
        r->words[r->at++] = word << 5 | (uint32_t)no_choice << 4 | (uint32_t)(ev.n_new == 1) << 3 | (uint32_t)ev.finish;
        for (int32_t d = 0; d < e->n_draft; d++) { /* nobody replays these */
            r->words[r->at++] = 0;
        }
    }
    end(r);
}

static void on_appended(void *user, nrd_seq *q, int32_t n, nrd_seq_finish finish)
{
    nrd_record *r = user;
    if (n == 0 && finish == NRD_SEQ_FINISH_NONE) {
        return;
    }
    if (!begin(r, NRD_RECORD_APPEND, 2 + (size_t)n)) {
        too_large(r);
        return;
    }
    r->words[r->at++] = q->sched.record_no;
    r->words[r->at++] = (uint32_t)finish;
    for (int32_t i = q->dec.n_known - n; i < q->dec.n_known; i++) {
        r->words[r->at++] = pseudonym(q->sched.record_state, q->dec.tokens[i], 0);
    }
    end(r);
}

static void on_forgotten(void *user)
{
    put_words(user, NRD_RECORD_FORGET, NULL, 0);
}

/* ---- life ---- */

static nrd_error *open_memory(nrd_record *r, const char *path)
{
    int fd = -1, flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE; /* all of it now: memory does not grow later */
    if (path) {
        fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
        /* Its blocks are there from now on: writing into the mapping cannot fail later. */
        const int status = fd < 0 ? errno : posix_fallocate(fd, 0, (off_t)r->map_bytes);
        if (status) {
            if (fd >= 0) {
                unlink(path); /* a part of a record is none */
                close(fd);
            }
            return nrd_errorf(NRD_ERR_UNAVAILABLE, "scheduler record '%s': %s", path, strerror(status));
        }
        flags = MAP_SHARED;
    }
    void *p = mmap(NULL, r->map_bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
    if (fd >= 0) {
        close(fd);
    }
    if (p == MAP_FAILED) {
        return nrd_error_no_memory();
    }
    r->head = p;
    return NULL;
}

nrd_error *nrd_record_new(nrd_record **out, const char *name, size_t bytes, const char *path,
                          const nrd_sched_limits *limits, const nrd_kv_config *kv_config, const nrd_kv *kv)
{
    nrd_error *err = NULL;
    nrd_record *r = NULL;

    *out = NULL;
    NRD_NEW_GOTO(r, 1, err, fail);
    const size_t half_words = bytes / 2 / 4;
    r->map_bytes = sizeof *r->head + 2 * half_words * 4;
    NRD_TRY_GOTO(open_memory(r, path), err, fail);
    *r->head = (nrd_record_head){
        .magic = NRD_RECORD_MAGIC,
        .version = NRD_RECORD_VERSION,
        .head_bytes = sizeof *r->head,
        .half_words = (uint32_t)half_words,
        .limits = *limits,
        .kv = *kv_config,
    };
    if (name) {
        memcpy(r->head->name, name, strnlen(name, sizeof r->head->name - 1));
    }
    r->halves[0] = (uint32_t *)(void *)(r->head + 1);
    r->halves[1] = r->halves[0] + half_words;
    r->kv = kv;
    if (getrandom(r->key, sizeof r->key, 0) != (ssize_t)sizeof r->key) {
        err = nrd_errorf(NRD_ERR_UNAVAILABLE, "no random key: %s", strerror(errno));
        goto fail;
    }
    r->tap = (nrd_sched_tap){
        .user = r,
        .added = on_added,
        .ended = on_ended,
        .held = on_held,
        .planned = on_planned,
        .committed = on_committed,
        .appended = on_appended,
        .forgotten = on_forgotten,
    };
    for (int i = 0; i < MAX_RECORDS; i++) {
        nrd_record *none = NULL;
        if (atomic_compare_exchange_strong(&records[i], &none, r)) {
            break; /* more than there is room for are not in crash reports */
        }
    }
    *out = r;
    return NULL;

fail:
    nrd_record_free(r);
    return err;
}

void nrd_record_free(nrd_record *r)
{
    if (!r) {
        return;
    }
    for (int i = 0; i < MAX_RECORDS; i++) {
        nrd_record *self = r;
        atomic_compare_exchange_strong(&records[i], &self, NULL);
    }
    if (r->head) {
        munmap(r->head, r->map_bytes);
    }
    free(r);
}

const nrd_sched_tap *nrd_record_tap(const nrd_record *r)
{
    return &r->tap;
}

/* ---- in a signal handler ---- */

static bool write_whole(int fd, const void *from, size_t n)
{
    for (const char *p = from; n > 0;) {
        const ssize_t k = write(fd, p, n);
        if (k < 0 && errno == EINTR) {
            continue;
        }
        if (k <= 0) {
            return false;
        }
        p += k;
        n -= (size_t)k;
    }
    return true;
}

int nrd_record_slots(void)
{
    return MAX_RECORDS;
}

void nrd_record_write(int fd, int slot)
{
    const nrd_record *r = atomic_load(&records[slot]);
    if (!r) {
        return;
    }
    nrd_record_head head = *r->head;
    const uint32_t first = head.n_turns > 0 ? 1 - head.current : head.current;
    head.packed = 1;
    bool ok = write_whole(fd, NRD_RECORD_MARK, sizeof NRD_RECORD_MARK - 1) && write_whole(fd, &head, sizeof head) &&
              write_whole(fd, r->halves[first], (size_t)head.used[first] * 4);
    if (ok && head.n_turns > 0) {
        (void)write_whole(fd, r->halves[1 - first], (size_t)head.used[1 - first] * 4);
    }
}

void nrd_record_write_requests(int fd, void (*put_line)(int fd, const char *name, const nrd_record_add *a))
{
    for (int i = 0; i < MAX_RECORDS; i++) {
        const nrd_record *r = atomic_load(&records[i]);
        const uint32_t n = r ? r->n_seqs : 0;
        for (uint32_t k = n > N_LAST ? n - N_LAST : 0; k < n; k++) {
            put_line(fd, r->head->name, &r->last[k % N_LAST]);
        }
    }
}
