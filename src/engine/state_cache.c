/* SPDX-License-Identifier: Apache-2.0
 * Two tables that point at each other, and a list of what is free. There are few snapshots, since each is large:
 * the longest unused is looked for among all. */
#include "engine/state_cache.h"

#include "base/mem.h"

#include <stdlib.h>

enum { FREE = -1, TAKEN = -2 }; /* instead of a block */

typedef struct snapshot {
    int32_t block; /* that has it, FREE or TAKEN */
    int32_t next;  /* of the free list; -1: end */
    bool used;     /* a sequence went on from it */
    uint64_t tick; /* of the last use */
} snapshot;

struct nrd_states {
    int32_t n_states, n_blocks, n_kept, free_head;
    snapshot *states;
    int32_t *of_block; /* [n_blocks]; -1: none */
    uint64_t tick;
};

nrd_error *nrd_states_new(nrd_states **out, int32_t n_states, int32_t n_blocks)
{
    nrd_error *err = NULL;
    nrd_states *s = NULL;

    *out = NULL;
    if (n_states <= 0 || n_blocks <= 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "snapshots of states: their number and that of blocks must be > 0, got %d and %d",
                          n_states, n_blocks);
    }
    NRD_NEW_GOTO(s, 1, err, fail);
    NRD_NEW_GOTO(s->states, n_states, err, fail);
    NRD_NEW_GOTO(s->of_block, n_blocks, err, fail);
    s->n_states = n_states;
    s->n_blocks = n_blocks;
    s->free_head = -1;
    for (int32_t i = n_states - 1; i >= 0; i--) {
        s->states[i] = (snapshot){.block = FREE, .next = s->free_head};
        s->free_head = i;
    }
    for (int32_t b = 0; b < n_blocks; b++) {
        s->of_block[b] = -1;
    }
    *out = s;
    return NULL;

fail:
    nrd_states_free(s);
    return err;
}

void nrd_states_free(nrd_states *s)
{
    if (s) {
        free(s->states);
        free(s->of_block);
        free(s);
    }
}

static void to_free(nrd_states *s, int32_t state)
{
    s->states[state] = (snapshot){.block = FREE, .next = s->free_head};
    s->free_head = state;
}

int32_t nrd_states_take(nrd_states *s)
{
    if (s->free_head < 0) {
        int32_t oldest = -1;
        for (int32_t i = 0; i < s->n_states; i++) {
            const bool kept = s->states[i].block >= 0;
            oldest = kept && (oldest < 0 || s->states[i].tick < s->states[oldest].tick) ? i : oldest;
        }
        if (oldest < 0) {
            return -1;
        }
        nrd_states_drop(s, s->states[oldest].block);
    }
    const int32_t state = s->free_head;
    s->free_head = s->states[state].next;
    s->states[state].block = TAKEN;
    return state;
}

bool nrd_states_keep(nrd_states *s, int32_t state, int32_t block)
{
    NRD_ASSERT(s->states[state].block == TAKEN && block >= 0 && block < s->n_blocks, "a taken one, for a block");
    if (s->of_block[block] >= 0) {
        to_free(s, state);
        return false;
    }
    s->states[state] = (snapshot){.block = block, .next = -1, .tick = ++s->tick};
    s->of_block[block] = state;
    s->n_kept++;
    return true;
}

void nrd_states_give_back(nrd_states *s, int32_t state)
{
    NRD_ASSERT(s->states[state].block == TAKEN, "one that was taken");
    to_free(s, state);
}

int32_t nrd_states_of(const nrd_states *s, int32_t block)
{
    return s->of_block[block];
}

void nrd_states_use(nrd_states *s, int32_t state)
{
    s->states[state].tick = ++s->tick;
    s->states[state].used = true;
}

void nrd_states_drop(nrd_states *s, int32_t block)
{
    const int32_t state = s->of_block[block];
    if (state >= 0) {
        s->of_block[block] = -1;
        s->n_kept--;
        to_free(s, state);
    }
}

void nrd_states_drop_unused(nrd_states *s, int32_t block)
{
    const int32_t state = s->of_block[block];
    if (state >= 0 && !s->states[state].used) {
        nrd_states_drop(s, block);
    }
}

void nrd_states_move(nrd_states *s, int32_t from, int32_t to)
{
    const int32_t state = s->of_block[from];
    NRD_ASSERT(s->of_block[to] < 0, "a block that was no node has none");
    s->of_block[from] = -1;
    s->of_block[to] = state;
    if (state >= 0) {
        s->states[state].block = to;
    }
}

int32_t nrd_states_n_kept(const nrd_states *s)
{
    return s->n_kept;
}

void nrd_states_check(const nrd_states *s, int32_t n_taken)
{
    int32_t n_free = 0, n_kept = 0, taken = 0;
    for (int32_t i = s->free_head; i >= 0; i = s->states[i].next) {
        NRD_ASSERT(s->states[i].block == FREE, "the free list has free ones");
        n_free++;
    }
    for (int32_t i = 0; i < s->n_states; i++) {
        const int32_t block = s->states[i].block;
        NRD_ASSERT(block < 0 || s->of_block[block] == i, "block and snapshot know each other");
        n_kept += block >= 0;
        taken += block == TAKEN;
    }
    NRD_ASSERT(n_free + n_kept + taken == s->n_states && n_kept == s->n_kept && taken == n_taken,
               "every snapshot is accounted for");
}
