/* SPDX-License-Identifier: Apache-2.0
 * The block table of the KV cache: which block holds which tokens, and who refers to it.
 *
 * Life of a block: free -> held by the table of a sequence (counted; several sequences may hold one with
 * the same content) -> published, when all its tokens are computed: the prefix tree knows its content ->
 * cached, when no sequence holds it any more: its content can be found again, and the block can be
 * taken. Taken blocks leave the tree, the lowest priority and longest unused first, leaves before
 * their parents; where there is host memory their content moves there first and comes back when it
 * is found. */
#include "engine/kv_cache.h"

#include "base/mem.h"

#include <string.h>

typedef struct block {
    int32_t refs;
    int32_t n_near; /* children on the device */
    int32_t next, prev; /* free list (next only) or list of evictable leaves; -1: end */
    int32_t priority;
    bool evictable;     /* in a list of leaves */
    int64_t expires_ms; /* priority falls back to the default then; INT64_MAX: never */
    uint64_t tick;      /* of the last use */
} block;

typedef struct list {
    int32_t oldest, newest;
} list;

enum { DEVICE, HOST, N_POOLS };

struct nrd_kv {
    int32_t n_blocks, n_host, block_tokens, n_states;
    nrd_prefix *tree; /* NULL: no reuse */
    nrd_states *states; /* NULL: layers have none, or none are kept */
    block *blocks;    /* [n_blocks + n_host] */
    list leaves[N_POOLS][NRD_KV_PRIORITY_MAX + 1];
    int32_t free_head[N_POOLS], n_free[N_POOLS];
    int32_t n_cached; /* on the device */
    int32_t (*moves)[2]; /* [cap_moves] */
    int32_t n_moves, cap_moves;
    int32_t n_expiring; /* blocks with an expiry date */
    uint64_t tick;
    int64_t now_ms;
    int64_t n_alloc, n_reused, n_missed, n_evicted, n_offloaded, n_onboarded, n_unusable;
};

static int pool_of(const nrd_kv *kv, int32_t b)
{
    return b < kv->n_blocks ? DEVICE : HOST;
}

nrd_error *nrd_kv_new(nrd_kv **out, const nrd_kv_config *cfg)
{
    nrd_error *err = NULL;
    nrd_kv *kv = NULL;

    *out = NULL;
    if (cfg->n_blocks <= 0 || cfg->block_tokens <= 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "kv cache: block count and tokens per block must be > 0, got %d and %d",
                          cfg->n_blocks, cfg->block_tokens);
    }
    if (cfg->n_host_blocks < 0 || cfg->n_host_blocks > INT32_MAX / 4 - cfg->n_blocks ||
        (cfg->n_host_blocks > 0 && !cfg->reuse)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "kv cache: %d host blocks %s", cfg->n_host_blocks,
                          cfg->reuse ? "are too many" : "without reuse");
    }
    if (cfg->n_states < 0 || (cfg->n_states > 0 && !cfg->reuse)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "kv cache: %d snapshots of states %s", cfg->n_states,
                          cfg->reuse ? "are too few" : "without reuse");
    }
    int32_t total = cfg->n_blocks + cfg->n_host_blocks;
    NRD_NEW_GOTO(kv, 1, err, fail);
    NRD_NEW_GOTO(kv->blocks, total, err, fail);
    if (cfg->reuse) {
        NRD_TRY_GOTO(nrd_prefix_new(&kv->tree, total, cfg->block_tokens), err, fail);
    }
    if (cfg->n_states > 0) {
        NRD_TRY_GOTO(nrd_states_new(&kv->states, cfg->n_states, total), err, fail);
    }
    kv->n_blocks = cfg->n_blocks;
    kv->n_host = cfg->n_host_blocks;
    kv->n_states = cfg->n_states;
    kv->block_tokens = cfg->block_tokens;
    if (kv->n_host > 0) {
        kv->cap_moves = 2 * cfg->n_blocks;
        NRD_NEW_GOTO(kv->moves, kv->cap_moves, err, fail);
    }
    for (int pool = 0; pool < N_POOLS; pool++) {
        for (int p = 0; p <= NRD_KV_PRIORITY_MAX; p++) {
            kv->leaves[pool][p] = (list){-1, -1};
        }
        kv->free_head[pool] = -1;
    }
    for (int32_t b = total - 1; b >= 0; b--) {
        int pool = pool_of(kv, b);
        kv->blocks[b].next = kv->free_head[pool];
        kv->blocks[b].expires_ms = INT64_MAX;
        kv->free_head[pool] = b;
        kv->n_free[pool]++;
    }
    *out = kv;
    return NULL;

fail:
    nrd_kv_free(kv);
    return err;
}

void nrd_kv_free(nrd_kv *kv)
{
    if (kv) {
        nrd_prefix_free(kv->tree);
        nrd_states_free(kv->states);
        free(kv->blocks);
        free(kv->moves);
        free(kv);
    }
}

nrd_states *nrd_kv_states(const nrd_kv *kv)
{
    return kv->states;
}

int32_t nrd_kv_block_tokens(const nrd_kv *kv)
{
    return kv->block_tokens;
}

int32_t nrd_kv_n_available(const nrd_kv *kv)
{
    return kv->n_free[DEVICE] + kv->n_cached;
}

const int32_t (*nrd_kv_moves(const nrd_kv *kv, int32_t *out_n))[2]
{
    *out_n = kv->n_moves;
    return (const int32_t (*)[2])kv->moves;
}

void nrd_kv_moves_done(nrd_kv *kv)
{
    kv->n_moves = 0;
}

int32_t nrd_kv_max_moves(const nrd_kv *kv)
{
    return kv->cap_moves;
}

void nrd_kv_get_stats(const nrd_kv *kv, nrd_kv_stats *out)
{
    *out = (nrd_kv_stats){
        .n_blocks = kv->n_blocks,
        .n_free = kv->n_free[DEVICE],
        .n_cached = kv->n_cached,
        .n_held = kv->n_blocks - kv->n_free[DEVICE] - kv->n_cached,
        .n_alloc_total = kv->n_alloc,
        .n_reused_total = kv->n_reused,
        .n_missed_total = kv->n_missed,
        .n_evicted_total = kv->n_evicted,
        .n_host_blocks = kv->n_host,
        .n_offloaded_total = kv->n_offloaded,
        .n_onboarded_total = kv->n_onboarded,
        .n_unusable_total = kv->n_unusable,
        .now_ms = kv->now_ms,
    };
    if (kv->states) {
        out->n_states = kv->n_states;
        out->n_states_kept = nrd_states_n_kept(kv->states);
    }
}

nrd_error *nrd_kv_table_init(nrd_kv_table *t, int32_t cap)
{
    nrd_error *err = NULL;
    *t = (nrd_kv_table){0};
    NRD_NEW_GOTO(t->blocks, cap, err, fail);
    t->cap = cap;
fail:
    return err;
}

void nrd_kv_table_fini(nrd_kv_table *t)
{
    NRD_ASSERT(t->n_blocks == 0, "blocks must be released first");
    free(t->blocks);
    *t = (nrd_kv_table){0};
}

/* ---- lists of evictable leaves ---- */

static void leaf_unlink(nrd_kv *kv, int32_t b)
{
    block *x = &kv->blocks[b];
    list *l = &kv->leaves[pool_of(kv, b)][x->priority];
    if (x->prev >= 0) {
        kv->blocks[x->prev].next = x->next;
    } else {
        l->oldest = x->next;
    }
    if (x->next >= 0) {
        kv->blocks[x->next].prev = x->prev;
    } else {
        l->newest = x->prev;
    }
    x->evictable = false;
}

/* Sorted by last use. New entries are nearly always the newest, or (a parent whose last child just
 * went) among the oldest; walk from the end that is closer. */
static void leaf_link(nrd_kv *kv, int32_t b)
{
    block *x = &kv->blocks[b];
    list *l = &kv->leaves[pool_of(kv, b)][x->priority];
    int32_t after; /* link behind this one; -1: at the front */
    if (l->newest < 0 || kv->blocks[l->newest].tick <= x->tick) {
        after = l->newest;
    } else {
        int32_t at = l->oldest;
        after = -1;
        while (at >= 0 && kv->blocks[at].tick <= x->tick) {
            after = at;
            at = kv->blocks[at].next;
        }
    }
    x->prev = after;
    x->next = after >= 0 ? kv->blocks[after].next : l->oldest;
    if (x->prev >= 0) {
        kv->blocks[x->prev].next = b;
    } else {
        l->oldest = b;
    }
    if (x->next >= 0) {
        kv->blocks[x->next].prev = b;
    } else {
        l->newest = b;
    }
    x->evictable = true;
}

/* No sequence holds it, and no child is where it is (children of host blocks are host blocks). */
static bool is_evictable(const nrd_kv *kv, int32_t b)
{
    return kv->tree && nrd_prefix_has(kv->tree, b) && kv->blocks[b].refs == 0 &&
           (pool_of(kv, b) == DEVICE ? kv->blocks[b].n_near == 0
                                     : nrd_prefix_first_child(kv->tree, b) < 0);
}

/* Puts the block into or out of the lists as its state says. */
static void leaf_update(nrd_kv *kv, int32_t b)
{
    bool want = is_evictable(kv, b);
    if (want != kv->blocks[b].evictable) {
        if (want) {
            leaf_link(kv, b);
        } else {
            leaf_unlink(kv, b);
        }
    }
}

static void set_priority(nrd_kv *kv, int32_t b, int32_t priority, int64_t expires_ms)
{
    block *x = &kv->blocks[b];
    bool linked = x->evictable;
    if (linked) {
        leaf_unlink(kv, b);
    }
    kv->n_expiring += (expires_ms != INT64_MAX) - (x->expires_ms != INT64_MAX);
    x->priority = priority;
    x->expires_ms = expires_ms;
    if (linked) {
        leaf_link(kv, b);
    }
}

void nrd_kv_set_time(nrd_kv *kv, int64_t now_ms)
{
    kv->now_ms = now_ms;
    if (kv->n_expiring == 0) {
        return;
    }
    for (int32_t b = 0; b < kv->n_blocks + kv->n_host; b++) {
        if (kv->blocks[b].expires_ms <= now_ms) {
            set_priority(kv, b, NRD_KV_PRIORITY_DEFAULT, INT64_MAX);
        }
    }
}

/* ---- blocks ---- */

static void block_to_free(nrd_kv *kv, int32_t b)
{
    int pool = pool_of(kv, b);
    set_priority(kv, b, 0, INT64_MAX);
    kv->blocks[b].next = kv->free_head[pool];
    kv->blocks[b].prev = -1;
    kv->free_head[pool] = b;
    kv->n_free[pool]++;
}

static int32_t free_take(nrd_kv *kv, int pool)
{
    int32_t b = kv->free_head[pool];
    NRD_ASSERT(b >= 0 && kv->n_free[pool] > 0, "the caller has checked that a block is available");
    kv->free_head[pool] = kv->blocks[b].next;
    kv->n_free[pool]--;
    return b;
}

/* A child of `b` (-1: none) came to the device or went from it. */
static void count_near(nrd_kv *kv, int32_t b, int32_t change)
{
    if (b >= 0) {
        kv->blocks[b].n_near += change;
        leaf_update(kv, b);
    }
}

/* Takes a leaf out of the tree; its parent may become evictable. */
static void tree_remove_leaf(nrd_kv *kv, int32_t b)
{
    int32_t parent = nrd_prefix_parent(kv->tree, b);
    bool near = pool_of(kv, b) == DEVICE;
    if (kv->blocks[b].evictable) {
        leaf_unlink(kv, b);
    }
    nrd_prefix_remove(kv->tree, b);
    if (kv->states) {
        nrd_states_drop(kv->states, b);
    }
    if (kv->blocks[b].refs == 0) {
        kv->n_cached -= near;
        block_to_free(kv, b);
    }
    count_near(kv, parent, near ? -1 : 0);
}

/* Takes a node and all below it out of the tree, without recursion. */
static void tree_remove_subtree(nrd_kv *kv, int32_t top)
{
    int32_t b = top;
    for (;;) {
        int32_t child = nrd_prefix_first_child(kv->tree, b);
        if (child >= 0) {
            b = child;
            continue;
        }
        int32_t parent = nrd_prefix_parent(kv->tree, b);
        bool last = b == top;
        tree_remove_leaf(kv, b);
        if (last) {
            return;
        }
        b = parent;
    }
}

/* The first to go among the evictable; -1: there are none. */
static int32_t first_leaf(const nrd_kv *kv, int pool)
{
    for (int p = 0; p <= NRD_KV_PRIORITY_MAX; p++) {
        if (kv->leaves[pool][p].oldest >= 0) {
            return kv->leaves[pool][p].oldest;
        }
    }
    return -1;
}

/* Leaves a copy to the caller of nrd_kv_moves. */
static void ask_move(nrd_kv *kv, int32_t from, int32_t to)
{
    NRD_ASSERT(kv->n_moves < kv->cap_moves, "the caller has checked that there is room");
    kv->moves[kv->n_moves][0] = from;
    kv->moves[kv->n_moves++][1] = to;
}

/* The node `from` becomes the block `to` of the other pool, which is not free any more and has the
 * content or is about to get it; `from` is free afterwards. */
static void node_move(nrd_kv *kv, int32_t from, int32_t to)
{
    block *x = &kv->blocks[from], *y = &kv->blocks[to];
    int32_t parent = nrd_prefix_parent(kv->tree, from);

    if (x->evictable) {
        leaf_unlink(kv, from);
    }
    nrd_prefix_move(kv->tree, from, to);
    if (kv->states) {
        nrd_states_move(kv->states, from, to);
    }
    set_priority(kv, to, x->priority, x->expires_ms);
    y->tick = x->tick;
    y->n_near = x->n_near;
    x->n_near = x->refs = 0;
    block_to_free(kv, from);
    leaf_update(kv, to);
    count_near(kv, parent, pool_of(kv, to) == DEVICE ? 1 : -1);
}

/* Moves a cached leaf of the device to host memory; false: no place that is worth less. */
static bool offload(nrd_kv *kv, int32_t b)
{
    if (kv->n_moves >= kv->cap_moves / 2) { /* the other half is for what comes back */
        return false;
    }
    if (kv->n_free[HOST] == 0) {
        int32_t worst = first_leaf(kv, HOST);
        if (worst < 0 || kv->blocks[worst].priority > kv->blocks[b].priority) {
            return false;
        }
        tree_remove_leaf(kv, worst);
        kv->n_evicted++;
    }
    int32_t to = free_take(kv, HOST);
    kv->n_cached--;
    ask_move(kv, b, to);
    node_move(kv, b, to);
    kv->n_offloaded++;
    return true;
}

static void evict_one(nrd_kv *kv)
{
    int32_t leaf = first_leaf(kv, DEVICE);
    if (leaf >= 0) {
        if (!offload(kv, leaf)) {
            tree_remove_subtree(kv, leaf); /* with what lies below it in host memory */
            kv->n_evicted++;
        }
        return;
    }
    /* Only inner nodes are left: sequences dropped the beginning of their prefix (window) and
     * still hold what lies below. */
    int32_t best = -1;
    for (int32_t b = 0; b < kv->n_blocks; b++) {
        if (nrd_prefix_has(kv->tree, b) && kv->blocks[b].refs == 0 &&
            (best < 0 || kv->blocks[b].tick < kv->blocks[best].tick)) {
            best = b;
        }
    }
    NRD_ASSERT(best >= 0, "a cached block must exist");
    tree_remove_subtree(kv, best);
    kv->n_evicted++;
}

static int32_t block_take(nrd_kv *kv)
{
    if (kv->n_free[DEVICE] == 0) {
        evict_one(kv);
    }
    int32_t b = free_take(kv, DEVICE);
    kv->blocks[b].refs = 1;
    kv->n_alloc++;
    return b;
}

static void block_ref(nrd_kv *kv, int32_t b)
{
    block *x = &kv->blocks[b];
    if (x->refs == 0) {
        if (x->evictable) {
            leaf_unlink(kv, b);
        }
        kv->n_cached -= pool_of(kv, b) == DEVICE;
    }
    x->refs++;
    x->tick = ++kv->tick;
}

void nrd_kv_unref(nrd_kv *kv, int32_t b)
{
    block *x = &kv->blocks[b];
    NRD_ASSERT(x->refs > 0, "one unref per ref");
    if (--x->refs > 0) {
        return;
    }
    x->tick = ++kv->tick;
    if (kv->tree && nrd_prefix_has(kv->tree, b)) {
        kv->n_cached += pool_of(kv, b) == DEVICE;
        leaf_update(kv, b);
    } else {
        block_to_free(kv, b);
    }
}

/* ---- tables ---- */

static const uint64_t *extra_at(const nrd_kv_content *c, int32_t token, int32_t n)
{
    return c->extra && token + n <= c->n_extra ? c->extra + token : NULL;
}

void nrd_kv_find(const nrd_kv *kv, const nrd_kv_content *c, int32_t n_max, nrd_kv_match *out)
{
    int32_t bt = kv->block_tokens, parent = -1, n = 0;
    nrd_kv_match usable = {.partial_block = -1, .state = -1}; /* where there are states: up to the last snapshot */
    *out = usable;
    if (!kv->tree) {
        return;
    }
    for (; n + bt <= n_max; n += bt) {
        int32_t b = nrd_prefix_find(kv->tree, parent, &c->key, c->tokens + n, extra_at(c, n, bt));
        bool host = b >= 0 && pool_of(kv, b) == HOST;
        /* A host block that is being copied from stays where it is. */
        if (b < 0 || (host && (kv->blocks[b].refs > 0 ||
                               kv->n_moves + out->n_host >= kv->cap_moves / 2))) {
            break;
        }
        out->n_blocks++;
        out->n_host += host;
        out->n_cached += !host && kv->blocks[b].refs == 0;
        parent = b;
        if (kv->states && nrd_states_of(kv->states, b) >= 0) {
            usable = *out;
            usable.state = nrd_states_of(kv->states, b);
        }
    }
    out->n_matched = usable.n_matched = out->n_blocks;
    if (kv->states) {
        *out = usable;
        return;
    }
    if (n < n_max) {
        int32_t want = n_max - n < bt ? n_max - n : bt;
        out->partial_block = nrd_prefix_find_partial(kv->tree, parent, &c->key, c->tokens + n,
                                                     extra_at(c, n, want), want, &out->n_partial);
    }
}

void nrd_kv_attach(nrd_kv *kv, nrd_kv_table *t, const nrd_kv_content *c, const nrd_kv_match *m)
{
    int32_t bt = kv->block_tokens, parent = -1;
    NRD_ASSERT(t->n_blocks == 0 && m->n_blocks <= t->cap, "attach fills an empty table");
    for (int32_t i = 0; i < m->n_blocks; i++) {
        int32_t b = nrd_prefix_find(kv->tree, parent, &c->key, c->tokens + (size_t)i * (size_t)bt,
                                    extra_at(c, i * bt, bt));
        NRD_ASSERT(b >= 0, "the match is still there");
        block_ref(kv, b);
        t->blocks[i] = b;
        parent = b;
    }
    t->n_blocks = m->n_blocks;
    t->n_published = m->n_blocks;
    t->n_dropped = 0;
    kv->n_reused += m->n_blocks;
    kv->n_unusable += m->n_matched - m->n_blocks;
    if (m->state >= 0) {
        nrd_states_use(kv->states, m->state);
    }
    if (m->partial_block >= 0) {
        block_ref(kv, m->partial_block);
    }
    for (int32_t i = 0; m->n_host > 0 && i < m->n_blocks; i++) { /* all are held: none is evicted */
        if (pool_of(kv, t->blocks[i]) == HOST) {
            int32_t to = block_take(kv);
            ask_move(kv, t->blocks[i], to);
            node_move(kv, t->blocks[i], to);
            kv->blocks[to].tick = ++kv->tick;
            t->blocks[i] = to;
            kv->n_onboarded++;
        }
    }
}

int32_t nrd_kv_n_missing(const nrd_kv *kv, const nrd_kv_table *t, int32_t n_tokens)
{
    int32_t need = (n_tokens + kv->block_tokens - 1) / kv->block_tokens;
    return need > t->n_blocks ? need - t->n_blocks : 0;
}

bool nrd_kv_extend(nrd_kv *kv, nrd_kv_table *t, int32_t n_tokens)
{
    int32_t missing = nrd_kv_n_missing(kv, t, n_tokens);
    if (missing > nrd_kv_n_available(kv)) {
        return false;
    }
    NRD_ASSERT(t->n_blocks + missing <= t->cap, "tables are sized for the longest sequence");
    for (int32_t i = 0; i < missing; i++) {
        t->blocks[t->n_blocks++] = block_take(kv);
    }
    kv->n_missed += missing;
    return true;
}

bool nrd_kv_fork(nrd_kv *kv, nrd_kv_table *dst, const nrd_kv_table *src, int32_t n_tokens,
                 int32_t *out_src, int32_t *out_dst)
{
    int32_t whole = n_tokens / kv->block_tokens, rest = n_tokens % kv->block_tokens;
    *out_src = *out_dst = -1;
    NRD_ASSERT(dst->n_blocks == 0 && whole + (rest > 0) <= src->n_blocks && whole < dst->cap,
               "fork copies a beginning into an empty table");
    if (rest && nrd_kv_n_available(kv) < 1) {
        return false;
    }
    for (int32_t i = 0; i < whole; i++) {
        int32_t b = src->blocks[i];
        dst->blocks[i] = b;
        if (b >= 0) {
            block_ref(kv, b);
        }
    }
    dst->n_blocks = whole;
    dst->n_published = src->n_published < whole ? src->n_published : whole;
    dst->n_dropped = src->n_dropped < whole ? src->n_dropped : whole;
    if (rest) {
        *out_src = src->blocks[whole];
        *out_dst = block_take(kv);
        dst->blocks[dst->n_blocks++] = *out_dst;
    }
    return true;
}

void nrd_kv_drop_window(nrd_kv *kv, nrd_kv_table *t, int32_t first_needed, int32_t n_sink)
{
    int32_t bt = kv->block_tokens;
    int32_t first_sinkless = (n_sink + bt - 1) / bt;
    int32_t limit = first_needed / bt;
    if (limit > t->n_blocks) {
        limit = t->n_blocks;
    }
    for (; t->n_dropped < limit; t->n_dropped++) {
        int32_t i = t->n_dropped;
        if (i >= first_sinkless && t->blocks[i] >= 0) {
            nrd_kv_unref(kv, t->blocks[i]);
            t->blocks[i] = -1;
        }
    }
}

static void retention_of(const nrd_kv *kv, const nrd_kv_retention *r, int32_t start, int32_t end,
                         int32_t *priority, int64_t *expires_ms)
{
    int64_t duration = -1;
    *priority = NRD_KV_PRIORITY_DEFAULT;
    if (r) {
        if (start >= r->n_prompt) {
            *priority = r->decode_priority;
            duration = r->decode_duration_ms;
        }
        /* A block belongs to the range with the highest priority that touches it. */
        int32_t best = -1;
        for (int32_t i = 0; i < r->n_ranges; i++) {
            const nrd_kv_range *g = &r->ranges[i];
            int32_t g_end = g->end < 0 ? r->n_prompt : g->end;
            if (g->start < end && g_end > start && start < r->n_prompt && g->priority > best) {
                best = g->priority;
                duration = g->duration_ms;
            }
        }
        if (best >= 0) {
            *priority = best;
        }
    }
    if (*priority < 0) {
        *priority = 0;
    } else if (*priority > NRD_KV_PRIORITY_MAX) {
        *priority = NRD_KV_PRIORITY_MAX;
    }
    *expires_ms = duration < 0 ? INT64_MAX : kv->now_ms + duration;
}

void nrd_kv_publish(nrd_kv *kv, nrd_kv_table *t, const nrd_kv_content *c, int32_t n_computed)
{
    int32_t bt = kv->block_tokens;
    if (!kv->tree) {
        return;
    }
    while ((t->n_published + 1) * bt <= n_computed && t->n_published < t->n_blocks) {
        int32_t i = t->n_published, b = t->blocks[i];
        int32_t parent = i ? t->blocks[i - 1] : -1;
        if (b < 0 || (i && !nrd_prefix_has(kv->tree, parent))) {
            return; /* the path to the root is gone (window, eviction): nothing to hang it on */
        }
        const int32_t *tokens = c->tokens + (size_t)i * (size_t)bt;
        const uint64_t *extra = extra_at(c, i * bt, bt);
        int32_t have = nrd_prefix_find(kv->tree, parent, &c->key, tokens, extra);
        if (have >= 0 && pool_of(kv, have) == HOST) {
            if (kv->blocks[have].refs > 0) {
                return; /* being copied from: later */
            }
            node_move(kv, have, b);
            kv->blocks[b].tick = ++kv->tick;
        } else if (have >= 0 && have != b) {
            block_ref(kv, have);
            nrd_kv_unref(kv, b);
            t->blocks[i] = have;
        } else if (have < 0) {
            int32_t priority;
            int64_t expires_ms;
            nrd_prefix_insert(kv->tree, b, parent, &c->key, tokens, extra);
            retention_of(kv, c->retention, i * bt, (i + 1) * bt, &priority, &expires_ms);
            set_priority(kv, b, priority, expires_ms);
            kv->blocks[b].tick = ++kv->tick;
            count_near(kv, parent, 1);
        }
        t->n_published++;
    }
}

void nrd_kv_release(nrd_kv *kv, nrd_kv_table *t)
{
    /* Last first, so that leaves are older than their parents and go first. */
    for (int32_t i = t->n_blocks - 1; i >= 0; i--) {
        if (t->blocks[i] >= 0) {
            nrd_kv_unref(kv, t->blocks[i]);
        }
    }
    t->n_blocks = t->n_dropped = t->n_published = 0;
}

/* Blocks in the free list of a pool. */
static int32_t check_free(const nrd_kv *kv, int pool)
{
    int32_t n = 0;
    for (int32_t b = kv->free_head[pool]; b >= 0; b = kv->blocks[b].next) {
        NRD_ASSERT(kv->blocks[b].refs == 0 && kv->blocks[b].n_near == 0, "free blocks are bare");
        NRD_ASSERT(!kv->tree || !nrd_prefix_has(kv->tree, b), "free blocks are not in the tree");
        NRD_ASSERT(pool_of(kv, b) == pool, "blocks stay in their pool");
        n++;
        NRD_ASSERT(n <= kv->n_blocks + kv->n_host, "the free list has no cycle");
    }
    NRD_ASSERT(n == kv->n_free[pool], "counters agree");
    return n;
}

static int32_t check_leaves(const nrd_kv *kv)
{
    int32_t n = 0;
    for (int i = 0; i < N_POOLS * (NRD_KV_PRIORITY_MAX + 1); i++) {
        int pool = i % N_POOLS, p = i / N_POOLS;
        uint64_t last = 0;
        for (int32_t b = kv->leaves[pool][p].oldest; b >= 0; b = kv->blocks[b].next) {
            NRD_ASSERT(kv->blocks[b].priority == p && kv->blocks[b].tick >= last, "sorted by use");
            NRD_ASSERT(pool_of(kv, b) == pool, "lists are of one pool");
            last = kv->blocks[b].tick;
            n++;
        }
    }
    return n;
}

static void check_near(const nrd_kv *kv)
{
    int32_t near = 0, counted = 0;
    for (int32_t b = 0; kv->tree && b < kv->n_blocks + kv->n_host; b++) {
        int32_t parent = nrd_prefix_has(kv->tree, b) ? nrd_prefix_parent(kv->tree, b) : -1;
        counted += kv->blocks[b].n_near;
        near += parent >= 0 && pool_of(kv, b) == DEVICE;
        NRD_ASSERT(parent < 0 || pool_of(kv, b) == HOST || pool_of(kv, parent) == DEVICE,
                   "children of host blocks are host blocks");
    }
    NRD_ASSERT(near == counted, "children on the device are counted");
}

void nrd_kv_check(const nrd_kv *kv, const nrd_kv_table *const *tables, int32_t n_tables,
                  int32_t n_extra_refs)
{
    int32_t n_cached = 0, n_leaves = 0, n_held = 0, n_host = 0;
    int64_t refs = 0, held = 0;
    for (int32_t b = 0; b < kv->n_blocks + kv->n_host; b++) {
        bool node = kv->tree && nrd_prefix_has(kv->tree, b), near = pool_of(kv, b) == DEVICE;
        refs += kv->blocks[b].refs;
        n_cached += near && node && kv->blocks[b].refs == 0;
        n_held += near && kv->blocks[b].refs > 0;
        n_host += !near && (node || kv->blocks[b].refs > 0);
        NRD_ASSERT(is_evictable(kv, b) == kv->blocks[b].evictable, "exactly those are in lists");
        n_leaves += kv->blocks[b].evictable;
    }
    for (int32_t i = 0; i < n_tables; i++) {
        for (int32_t j = 0; j < tables[i]->n_blocks; j++) {
            held += tables[i]->blocks[j] >= 0;
            NRD_ASSERT(tables[i]->blocks[j] < kv->n_blocks, "tables hold device blocks");
        }
    }
    NRD_ASSERT(n_leaves == check_leaves(kv), "the lists hold every evictable block once");
    NRD_ASSERT(refs == held + n_extra_refs, "references are what tables hold");
    NRD_ASSERT(n_cached == kv->n_cached, "counters agree");
    NRD_ASSERT(check_free(kv, DEVICE) + n_cached + n_held == kv->n_blocks,
               "every block is accounted for");
    NRD_ASSERT(check_free(kv, HOST) + n_host == kv->n_host, "every host block too");
    check_near(kv);
    if (kv->tree) {
        nrd_prefix_check(kv->tree);
    }
}
