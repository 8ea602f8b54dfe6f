/* SPDX-License-Identifier: Apache-2.0
 * Sequences of a batcher by their correlation ids, those that wait for a slot, and lists of requests. */
#include "core/sched/sequence_internal.h"

#include "base/hash.h"

#include <stdlib.h>
#include <string.h>

void nrd_sequence_list_move(nrd_request_list *to, nrd_request_list *from)
{
    while (from->head) {
        nrd_request_list_push(to, nrd_request_list_pop(from));
    }
}

bool nrd_sequence_list_has_cancelled(const nrd_request_list *l)
{
    for (const nrd_request *r = l->head; r; r = r->next) {
        if (nrd_request_is_cancelled(r)) {
            return true;
        }
    }
    return false;
}

void nrd_sequence_list_fail(nrd_request_list *l, nrd_error_code code, const char *message,
                            nrd_fail_reason reason)
{
    while (l->head) {
        nrd_request *r = nrd_request_list_pop(l);
        nrd_request_fail(r, nrd_errorf(code, "%s", message), reason);
    }
}

void nrd_sequence_list_fail_cancelled(nrd_request_list *l)
{
    nrd_sequence_list_fail(l, NRD_ERR_CANCELLED, "Request was cancelled", NRD_FAIL_CANCELED);
}

/* ---- sequences by correlation id ---- */

static uint64_t hash_of(const nrd_request *r)
{
    return r->corr_str ? nrd_hash_bytes(1, r->corr_str, strlen(r->corr_str))
                       : nrd_hash_u64(2, r->corr_id);
}

bool nrd_sequence_is_of(const nrd_sequence *q, const nrd_request *r)
{
    if (q->text || r->corr_str) {
        return q->text && r->corr_str && strcmp(q->text, r->corr_str) == 0;
    }
    return q->id == r->corr_id;
}

nrd_sequence *nrd_sequence_find_locked(const nrd_sequence_batcher *s, const nrd_request *r)
{
    nrd_sequence *q = s->buckets[hash_of(r) & (s->n_buckets - 1)];
    while (q && !nrd_sequence_is_of(q, r)) {
        q = q->next;
    }
    return q;
}

static void grow_locked(nrd_sequence_batcher *s)
{
    size_t n = s->n_buckets * 2;
    nrd_sequence **fresh = calloc(n, sizeof *fresh);

    if (!fresh) {
        return; /* slower, but as good */
    }
    for (size_t i = 0; i < s->n_buckets; i++) {
        for (nrd_sequence *q = s->buckets[i], *next; q; q = next) {
            next = q->next;
            q->next = fresh[q->hash & (n - 1)];
            fresh[q->hash & (n - 1)] = q;
        }
    }
    free(s->buckets);
    s->buckets = fresh;
    s->n_buckets = n;
}

nrd_sequence *nrd_sequence_begin_locked(nrd_sequence_batcher *s, const nrd_request *r)
{
    nrd_sequence *q = calloc(1, sizeof *q);
    char *text = q && r->corr_str ? strdup(r->corr_str) : NULL;

    if (!q || (r->corr_str && !text)) {
        free(q);
        return NULL;
    }
    if (s->n_sequences >= s->n_buckets) {
        grow_locked(s);
    }
    q->hash = hash_of(r);
    q->id = r->corr_str ? s->next_text_id++ : r->corr_id;
    q->text = text;
    q->next = s->buckets[q->hash & (s->n_buckets - 1)];
    s->buckets[q->hash & (s->n_buckets - 1)] = q;
    s->n_sequences++;
    return q;
}

void nrd_sequence_forget_locked(nrd_sequence_batcher *s, nrd_sequence *q)
{
    nrd_sequence **p = &s->buckets[q->hash & (s->n_buckets - 1)];

    while (*p != q) {
        p = &(*p)->next;
    }
    *p = q->next;
    s->n_sequences--;
    if (q->slot) {
        q->slot->owner = NULL;
    }
    if (q->waiting) {
        q->waiting->owner = NULL;
    }
    free(q->text);
    free(q);
}

/* ---- the backlog ---- */

void nrd_sequence_backlog_remove_locked(nrd_sequence_batcher *s, nrd_sequence_backlog *b)
{
    if (b->prev) {
        b->prev->next = b->next;
    } else {
        s->first = b->next;
    }
    if (b->next) {
        b->next->prev = b->prev;
    } else {
        s->last = b->prev;
    }
}

nrd_sequence_backlog *nrd_sequence_backlog_add_locked(nrd_sequence_batcher *s)
{
    nrd_sequence_backlog *b = calloc(1, sizeof *b);
    if (!b) {
        return NULL;
    }
    b->deadline_ns = UINT64_MAX;
    b->prev = s->last;
    if (s->last) {
        s->last->next = b;
    } else {
        s->first = b;
    }
    s->last = b;
    return b;
}
