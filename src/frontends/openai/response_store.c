/* SPDX-License-Identifier: Apache-2.0
 * A table by id, and a list in the order of use. An answer that left both lives on while a later one,
 * or a request, refers to it. */
#include "frontends/openai/response_store.h"

#include "base/hash.h"
#include "base/mem.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_BUCKETS = 1024 };

struct nrd_response_store {
    pthread_mutex_t mu; /* guards all below */
    size_t max_count, max_bytes;
    size_t count, bytes;
    nrd_kept_response *newest, *oldest;
    nrd_kept_response *buckets[N_BUCKETS];
};

nrd_error *nrd_response_store_new(nrd_response_store **out, size_t max_count, size_t max_bytes)
{
    *out = calloc(1, sizeof **out);
    if (!*out) {
        return nrd_error_no_memory();
    }
    pthread_mutex_init(&(*out)->mu, NULL);
    (*out)->max_count = max_count;
    (*out)->max_bytes = max_bytes;
    return NULL;
}

static nrd_kept_response **bucket_of(nrd_response_store *s, const char *id)
{
    return &s->buckets[nrd_hash_bytes(0, id, strlen(id)) % N_BUCKETS];
}

/* Gives one reference back; what nobody has any more goes into a list of the dead, by `newer`. A
 * conversation of many answers ends in a loop, not in a recursion. Lock held. */
static void release(nrd_response_store *s, nrd_kept_response *r, nrd_kept_response **dead)
{
    while (r && --r->refs == 0) {
        nrd_kept_response *previous = r->previous;
        s->bytes -= r->bytes;
        r->newer = *dead;
        *dead = r;
        r = previous;
    }
}

static void free_dead(nrd_kept_response *dead)
{
    while (dead) {
        nrd_kept_response *next = dead->newer;
        nrd_str_fini(&dead->input);
        nrd_str_fini(&dead->answer);
        free(dead);
        dead = next;
    }
}

static void unlink_use(nrd_response_store *s, nrd_kept_response *r)
{
    *(r->newer ? &r->newer->older : &s->newest) = r->older;
    *(r->older ? &r->older->newer : &s->oldest) = r->newer;
    r->newer = r->older = NULL;
}

static void link_newest(nrd_response_store *s, nrd_kept_response *r)
{
    r->older = s->newest;
    *(s->newest ? &s->newest->newer : &s->oldest) = r;
    s->newest = r;
}

/* Lock held. */
static void drop(nrd_response_store *s, nrd_kept_response *r, nrd_kept_response **dead)
{
    nrd_kept_response **p = bucket_of(s, r->id);
    while (*p != r) {
        p = &(*p)->same_bucket;
    }
    *p = r->same_bucket;
    unlink_use(s, r);
    s->count--;
    release(s, r, dead);
}

void nrd_response_store_free(nrd_response_store *s)
{
    nrd_kept_response *dead = NULL;
    if (!s) {
        return;
    }
    while (s->oldest) {
        drop(s, s->oldest, &dead);
    }
    free_dead(dead);
    pthread_mutex_destroy(&s->mu);
    free(s);
}

/* Lock held. */
static nrd_kept_response *look_up(nrd_response_store *s, int key, const char *id)
{
    nrd_kept_response *r = *bucket_of(s, id);
    while (r && (r->key != key || strcmp(r->id, id) != 0)) {
        r = r->same_bucket;
    }
    return r;
}

nrd_kept_response *nrd_response_store_find(nrd_response_store *s, int key, const char *id)
{
    pthread_mutex_lock(&s->mu);
    nrd_kept_response *r = look_up(s, key, id);
    if (r) {
        unlink_use(s, r);
        link_newest(s, r);
        r->refs++;
    }
    pthread_mutex_unlock(&s->mu);
    return r;
}

void nrd_response_store_give_back(nrd_response_store *s, nrd_kept_response *r)
{
    nrd_kept_response *dead = NULL;
    if (r) {
        pthread_mutex_lock(&s->mu);
        release(s, r, &dead);
        pthread_mutex_unlock(&s->mu);
        free_dead(dead);
    }
}

nrd_error *nrd_response_store_add(nrd_response_store *s, int key, const char *id, nrd_kept_response *previous,
                                  nrd_str *input, nrd_str *answer)
{
    nrd_kept_response *dead = NULL, *r = calloc(1, sizeof *r);
    if (!r) {
        return nrd_error_no_memory();
    }
    snprintf(r->id, sizeof r->id, "%s", id);
    r->key = key;
    r->previous = previous;
    r->input = *input;
    r->answer = *answer;
    memset(input, 0, sizeof *input);
    memset(answer, 0, sizeof *answer);
    r->refs = 1;
    r->bytes = sizeof *r + r->input.cap + r->answer.cap;
    if (r->bytes > s->max_bytes) { /* it would drive out all others, and then go itself */
        free_dead(r);
        return NULL;
    }
    pthread_mutex_lock(&s->mu);
    if (previous) {
        previous->refs++;
    }
    nrd_kept_response **bucket = bucket_of(s, r->id);
    r->same_bucket = *bucket;
    *bucket = r;
    link_newest(s, r);
    s->count++;
    s->bytes += r->bytes;
    while (s->oldest && (s->count > s->max_count || s->bytes > s->max_bytes)) {
        drop(s, s->oldest, &dead);
    }
    pthread_mutex_unlock(&s->mu);
    free_dead(dead);
    return NULL;
}

bool nrd_response_store_remove(nrd_response_store *s, int key, const char *id)
{
    nrd_kept_response *dead = NULL;
    pthread_mutex_lock(&s->mu);
    nrd_kept_response *r = look_up(s, key, id);
    if (r) {
        drop(s, r, &dead);
    }
    pthread_mutex_unlock(&s->mu);
    free_dead(dead);
    return r != NULL;
}
