#include "engine/kv_cache.h"

#include "base/mem.h"

#include <string.h>

typedef struct block {
    int32_t refs;
    int32_t next, prev; /* free list (next only) or list of evictable leaves; -1: end */
    int32_t priority;
    bool evictable;     /* in a list of leaves */
    int64_t expires_ms; /* priority falls back to the default then; INT64_MAX: never */
    uint64_t tick;      /* of the last use */
} block;

typedef struct list {
    int32_t oldest, newest;
} list;

struct nrd_kv {
    int32_t n_blocks, block_tokens;
    nrd_prefix *tree; /* NULL: no reuse */
    block *blocks;
    list leaves[NRD_KV_PRIORITY_MAX + 1];
    int32_t free_head, n_free, n_cached;
    int32_t n_expiring; /* blocks with an expiry date */
    uint64_t tick;
    int64_t now_ms;
    int64_t n_alloc, n_reused, n_missed, n_evicted;
};

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
    NRD_NEW_GOTO(kv, 1, err, fail);
    NRD_NEW_GOTO(kv->blocks, cfg->n_blocks, err, fail);
    if (cfg->reuse) {
        NRD_TRY_GOTO(nrd_prefix_new(&kv->tree, cfg->n_blocks, cfg->block_tokens), err, fail);
    }
    kv->n_blocks = cfg->n_blocks;
    kv->block_tokens = cfg->block_tokens;
    for (int p = 0; p <= NRD_KV_PRIORITY_MAX; p++) {
        kv->leaves[p] = (list){-1, -1};
    }
    for (int32_t b = 0; b < cfg->n_blocks; b++) {
        kv->blocks[b].next = b + 1 < cfg->n_blocks ? b + 1 : -1;
        kv->blocks[b].expires_ms = INT64_MAX;
    }
    kv->n_free = cfg->n_blocks;
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
        free(kv->blocks);
        free(kv);
    }
}

int32_t nrd_kv_block_tokens(const nrd_kv *kv)
{
    return kv->block_tokens;
}

int32_t nrd_kv_n_available(const nrd_kv *kv)
{
    return kv->n_free + kv->n_cached;
}

void nrd_kv_get_stats(const nrd_kv *kv, nrd_kv_stats *out)
{
    *out = (nrd_kv_stats){
        .n_blocks = kv->n_blocks,
        .n_free = kv->n_free,
        .n_cached = kv->n_cached,
        .n_held = kv->n_blocks - kv->n_free - kv->n_cached,
        .n_alloc_total = kv->n_alloc,
        .n_reused_total = kv->n_reused,
        .n_missed_total = kv->n_missed,
        .n_evicted_total = kv->n_evicted,
    };
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
    list *l = &kv->leaves[x->priority];
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
    list *l = &kv->leaves[x->priority];
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

/* Puts the block into or out of the lists as its state says. */
static void leaf_update(nrd_kv *kv, int32_t b)
{
    bool want = kv->tree && nrd_prefix_has(kv->tree, b) && kv->blocks[b].refs == 0 &&
                nrd_prefix_first_child(kv->tree, b) < 0;
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
    for (int32_t b = 0; b < kv->n_blocks; b++) {
        if (kv->blocks[b].expires_ms <= now_ms) {
            set_priority(kv, b, NRD_KV_PRIORITY_DEFAULT, INT64_MAX);
        }
    }
}

/* ---- blocks ---- */

static void block_to_free(nrd_kv *kv, int32_t b)
{
    set_priority(kv, b, 0, INT64_MAX);
    kv->blocks[b].next = kv->free_head;
    kv->blocks[b].prev = -1;
    kv->free_head = b;
    kv->n_free++;
}

/* Takes a leaf out of the tree; its parent may become evictable. */
static void tree_remove_leaf(nrd_kv *kv, int32_t b)
{
    int32_t parent = nrd_prefix_parent(kv->tree, b);
    if (kv->blocks[b].evictable) {
        leaf_unlink(kv, b);
    }
    nrd_prefix_remove(kv->tree, b);
    if (kv->blocks[b].refs == 0) {
        kv->n_cached--;
        block_to_free(kv, b);
    }
    if (parent >= 0) {
        leaf_update(kv, parent);
    }
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

static void evict_one(nrd_kv *kv)
{
    for (int p = 0; p <= NRD_KV_PRIORITY_MAX; p++) {
        if (kv->leaves[p].oldest >= 0) {
            tree_remove_leaf(kv, kv->leaves[p].oldest);
            kv->n_evicted++;
            return;
        }
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
    if (kv->n_free == 0) {
        evict_one(kv);
    }
    int32_t b = kv->free_head;
    NRD_ASSERT(b >= 0 && kv->n_free > 0, "the caller has checked that a block is available");
    kv->free_head = kv->blocks[b].next;
    kv->n_free--;
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
        kv->n_cached--;
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
        kv->n_cached++;
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
    *out = (nrd_kv_match){.partial_block = -1};
    if (!kv->tree) {
        return;
    }
    for (; n + bt <= n_max; n += bt) {
        int32_t b = nrd_prefix_find(kv->tree, parent, &c->key, c->tokens + n, extra_at(c, n, bt));
        if (b < 0) {
            break;
        }
        out->n_blocks++;
        out->n_cached += kv->blocks[b].refs == 0;
        parent = b;
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
    if (m->partial_block >= 0) {
        block_ref(kv, m->partial_block);
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
        if (have >= 0 && have != b) {
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
            if (parent >= 0) {
                leaf_update(kv, parent);
            }
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

void nrd_kv_check(const nrd_kv *kv, const nrd_kv_table *const *tables, int32_t n_tables,
                  int32_t n_extra_refs)
{
    int32_t n_free = 0, n_cached = 0, n_leaves = 0;
    int64_t refs = 0, held = 0;
    for (int32_t b = kv->free_head; b >= 0; b = kv->blocks[b].next) {
        NRD_ASSERT(kv->blocks[b].refs == 0, "free blocks have no references");
        NRD_ASSERT(!kv->tree || !nrd_prefix_has(kv->tree, b), "free blocks are not in the tree");
        n_free++;
        NRD_ASSERT(n_free <= kv->n_blocks, "the free list has no cycle");
    }
    for (int32_t b = 0; b < kv->n_blocks; b++) {
        bool node = kv->tree && nrd_prefix_has(kv->tree, b);
        refs += kv->blocks[b].refs;
        n_cached += node && kv->blocks[b].refs == 0;
        bool leaf = node && kv->blocks[b].refs == 0 && nrd_prefix_first_child(kv->tree, b) < 0;
        NRD_ASSERT(leaf == kv->blocks[b].evictable, "exactly unheld leaves are evictable");
        n_leaves += leaf;
    }
    for (int p = 0; p <= NRD_KV_PRIORITY_MAX; p++) {
        uint64_t last = 0;
        for (int32_t b = kv->leaves[p].oldest; b >= 0; b = kv->blocks[b].next) {
            NRD_ASSERT(kv->blocks[b].priority == p && kv->blocks[b].tick >= last, "sorted by use");
            last = kv->blocks[b].tick;
            n_leaves--;
        }
    }
    for (int32_t i = 0; i < n_tables; i++) {
        for (int32_t j = 0; j < tables[i]->n_blocks; j++) {
            held += tables[i]->blocks[j] >= 0;
        }
    }
    int32_t n_held = 0;
    for (int32_t b = 0; b < kv->n_blocks; b++) {
        n_held += kv->blocks[b].refs > 0;
    }
    NRD_ASSERT(n_leaves == 0, "the lists hold every evictable leaf once");
    NRD_ASSERT(refs == held + n_extra_refs, "references are what tables hold");
    NRD_ASSERT(n_free == kv->n_free && n_cached == kv->n_cached, "counters agree");
    NRD_ASSERT(n_free + n_cached + n_held == kv->n_blocks, "every block is accounted for");
    if (kv->tree) {
        nrd_prefix_check(kv->tree);
    }
}
