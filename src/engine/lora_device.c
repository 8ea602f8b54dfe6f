/* SPDX-License-Identifier: Apache-2.0
 * Adapters on the device: a slot in the table of pairs for each, and pages for its weights. An adapter that
 * is asked for and not there takes the room of those unused for longest that no request holds; a thread
 * copies it, page by page, then its row of the table, and tells the engine loop. Where the device reads the
 * host's memory only the row is written, at once. */
#include "engine/lora_internal.h"

#include "base/clock.h"
#include "base/dtype.h"
#include "base/mem.h"

#include <string.h>

enum { ALIGN = 256 };

/* ---- sizes ---- */

static size_t row_bytes(const nrd_lora_row *r)
{
    /* rows lie one behind the other: A, then B, then the gain, all aligned */
    return (size_t)((const uint8_t *)r->b - (const uint8_t *)r->a) + nrd_lora_b_bytes(r) +
           (r->has_gain ? nrd_lora_gain_bytes(r->out) : 0);
}

/* Rows [first, *end) share a page. */
static void page_range(const nrd_lora_cache *c, const nrd_lora *l, int32_t first, int32_t *end)
{
    size_t used = 0;
    *end = first;
    while (*end < l->n_rows && (used += row_bytes(&l->rows[*end])) <= c->page_bytes) {
        ++*end;
    }
}

int32_t nrd_lora_device_pages_of(const nrd_lora_cache *c, const nrd_lora *l)
{
    int32_t n = 0;
    for (int32_t i = 0, end; !c->shared && i < l->n_rows; i = end) {
        page_range(c, l, i, &end);
        if (end == i) {
            return INT32_MAX; /* a row larger than a page */
        }
        n++;
    }
    return n;
}

/* Bytes of a module's pairs of the optimal rank in all layers, in 16 bits; *widest: at least those of one pair of the largest rank. */
static size_t module_bytes(const nrd_lora_cache *c, int32_t id, size_t *widest)
{
    size_t whole = 0;
    int64_t in, out;
    for (int32_t i = 0; i < c->own.n_layers; i++) {
        if (!nrd_lora_module_dims(&c->own, i, id, &in, &out)) {
            continue;
        }
        size_t values = (size_t)(in + out);
        size_t row = values * (size_t)c->cfg.limits.max_rank * sizeof(float) + 128 + nrd_lora_gain_bytes(out);
        *widest = row > *widest ? row : *widest;
        whole += values * (size_t)c->cfg.optimal_rank * 2 + 128;
    }
    return whole;
}

/* A page holds an adapter of the optimal rank of all modules in 16 bits, and any row of the largest rank. */
static size_t page_bytes(const nrd_lora_cache *c)
{
    const nrd_lora_limits *lim = &c->cfg.limits;
    size_t whole = 0, widest = 0;
    for (int32_t id = 0; id < NRD_LORA_MODULES; id++) {
        if (lim->modules && !(lim->modules >> id & 1u)) {
            continue;
        }
        const size_t bytes = module_bytes(c, id, &widest);
        if (nrd_lora_position(id) != NRD_LORA_AT_QKV + 3) { /* q, k and v at once are not beside q, k, v */
            whole += bytes;
        }
    }
    size_t bytes = whole > widest ? whole : widest;
    return (bytes + ALIGN - 1) & ~(size_t)(ALIGN - 1);
}

/* ---- the table ---- */

/* Row of the table for an adapter whose first page is at pages[0], …; NULL pages: where it lies. */
static void fill_row(const nrd_lora_cache *c, const nrd_adapter *a, nrd_lora_pair *row)
{
    const nrd_lora *l = a->part;
    int32_t end = 0, page = -1;
    const uint8_t *from = NULL, *to = NULL;

    memset(row, 0, (size_t)c->slot_stride * sizeof *row);
    for (int32_t i = 0; i < l->n_rows; i++) {
        const nrd_lora_row *r = &l->rows[i];
        if (!c->shared && i == end) {
            page_range(c, l, i, &end);
            from = r->a;
            to = c->pool + (size_t)a->pages[++page] * c->page_bytes;
        }
        const uint8_t *at = r->a, *bt = r->b;
        row[r->layer * NRD_LORA_POSITIONS + nrd_lora_position(r->module)] =
            c->shared ? nrd_lora_pair_at(r, at, bt) : nrd_lora_pair_at(r, to + (at - from), to + (bt - from));
    }
}

/* ---- the loading thread ---- */

static nrd_error *bring(nrd_lora_cache *c, nrd_adapter *a)
{
    const nrd_device_ops *ops = c->cfg.dev->ops;
    const nrd_lora *l = a->part;
    int32_t page = 0;

    for (int32_t i = 0, end; i < l->n_rows; i = end, page++) {
        page_range(c, l, i, &end);
        const uint8_t *from = l->rows[i].a;
        const nrd_lora_row *last = &l->rows[end - 1];
        size_t n = (size_t)((const uint8_t *)last->a - from) + row_bytes(last);
        NRD_TRY(ops->copy(c->stream, c->pool + (size_t)a->pages[page] * c->page_bytes, from, n));
    }
    fill_row(c, a, c->slot_row);
    NRD_TRY(ops->copy(c->stream, c->pairs + a->slot * c->slot_stride, c->slot_row,
                      (size_t)c->slot_stride * sizeof *c->slot_row));
    return ops->stream_sync(c->stream);
}

static void *load_main(void *cache)
{
    nrd_lora_cache *c = cache;

    pthread_setname_np(pthread_self(), "nrd-lora");
    pthread_mutex_lock(&c->mu);
    while (!c->stopping) {
        nrd_adapter *a = c->load_head;
        if (!a) {
            pthread_cond_wait(&c->cv, &c->mu);
            continue;
        }
        c->load_head = a->next_load;
        c->load_tail = c->load_head ? c->load_tail : NULL;
        pthread_mutex_unlock(&c->mu);
        const uint64_t start_ns = nrd_now_ns();
        nrd_error *err = bring(c, a);
        const uint64_t took_ns = nrd_now_ns() - start_ns;
        pthread_mutex_lock(&c->mu);
        c->device_ns += took_ns;
        a->state = err ? ADAPTER_FAILED : ADAPTER_READY;
        c->n_loaded += err == NULL;
        nrd_lora_cache_unpin_locked(c, a);
        nrd_lora_cache_unlock(c);
        nrd_error_free(err);
        c->cfg.on_change(c->cfg.user);
        pthread_mutex_lock(&c->mu);
    }
    pthread_mutex_unlock(&c->mu);
    return NULL;
}

/* ---- memory ---- */

static nrd_error *take_pages(nrd_lora_cache *c)
{
    const nrd_device_ops *ops = c->cfg.dev->ops;
    nrd_device_info info;
    nrd_error *err = NULL;
    void *p = NULL;

    ops->get_info(c->cfg.dev, &info);
    c->page_bytes = page_bytes(c);
    double n = c->cfg.mem_fraction * (double)info.mem_free_bytes / (double)c->page_bytes;
    c->n_pages = n < 1e6 ? (int32_t)n : 1000000;
    if (c->n_pages < 1) {
        return nrd_errorf(NRD_ERR_UNAVAILABLE, "no room for LoRA adapters: a page takes %.0f MB, %.2f of the free %.0f MB "
                          "(lora_cache_gpu_memory_fraction, lora_cache_max_adapter_size, "
                          "lora_cache_optimal_adapter_size)", (double)c->page_bytes / 1e6, c->cfg.mem_fraction,
                          (double)info.mem_free_bytes / 1e6);
    }
    NRD_TRY(ops->alloc(c->cfg.dev, &p, NRD_MEM_DEVICE, (size_t)c->n_pages * c->page_bytes, "lora adapters"));
    c->pool = p;
    NRD_NEW_GOTO(c->free_pages, c->n_pages, err, fail);
    NRD_NEW_GOTO(c->slot_row, c->slot_stride, err, fail);
    for (c->n_free = 0; c->n_free < c->n_pages; c->n_free++) {
        c->free_pages[c->n_free] = c->n_pages - 1 - c->n_free;
    }
    NRD_TRY_GOTO(ops->stream_new(c->cfg.dev, &c->stream), err, fail);
    if (pthread_create(&c->thread, NULL, load_main, c) != 0) {
        return nrd_errorf(NRD_ERR_UNAVAILABLE, "cannot start the thread that loads LoRA adapters");
    }
    c->thread_started = true;
fail:
    return err;
}

static void free_memory(nrd_lora_cache *c)
{
    const nrd_device_ops *ops = c->cfg.dev->ops;
    if (c->stream) {
        ops->stream_free(c->stream);
    }
    if (c->pool) {
        ops->free(c->cfg.dev, NRD_MEM_DEVICE, c->pool);
    }
    if (c->pairs) {
        ops->free(c->cfg.dev, NRD_MEM_DEVICE, c->pairs);
    }
    free(c->free_pages);
    free(c->slot_row);
    free(c->slots);
    free(c->changed);
    c->stream = NULL;
    c->pool = NULL;
    c->pairs = NULL;
    c->free_pages = NULL;
    c->slot_row = NULL;
    c->slots = NULL;
    c->changed = NULL;
    c->n_slots = c->n_pages = c->n_free = c->n_changed = 0;
}

static nrd_error *take_memory(nrd_lora_cache *c)
{
    const nrd_device_ops *ops = c->cfg.dev->ops;
    nrd_error *err = NULL;
    void *p = NULL;

    if (!ops->lora) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "this device has no LoRA adapters");
    }
    NRD_NEW_GOTO(c->slots, NRD_LORA_SLOTS, err, fail);
    NRD_NEW_GOTO(c->changed, NRD_LORA_SLOTS, err, fail);
    NRD_TRY(ops->alloc(c->cfg.dev, &p, NRD_MEM_DEVICE,
                       (size_t)NRD_LORA_SLOTS * (size_t)c->slot_stride * sizeof *c->pairs, "lora adapters"));
    c->pairs = p;
    c->max_rank = NRD_LORA_MIN_RANK;
    if (!c->shared) {
        NRD_TRY(take_pages(c));
    }
    c->n_slots = NRD_LORA_SLOTS;
fail:
    return err;
}

nrd_error *nrd_lora_cache_prepare(nrd_lora_cache *c)
{
    nrd_error *err = NULL;
    pthread_mutex_lock(&c->prepare_mu);
    if (!c->is_prepared) {
        err = take_memory(c);
        c->is_prepared = err == NULL;
        if (err) {
            free_memory(c);
        }
    }
    pthread_mutex_unlock(&c->prepare_mu);
    return err;
}

void nrd_lora_device_free(nrd_lora_cache *c)
{
    pthread_mutex_lock(&c->mu);
    c->stopping = true;
    pthread_cond_signal(&c->cv);
    pthread_mutex_unlock(&c->mu);
    if (c->thread_started) {
        pthread_join(c->thread, NULL);
    }
    for (nrd_adapter *a = c->load_head, *next; a; a = next) {
        next = a->next_load;
        a->state = ADAPTER_FAILED;
        nrd_lora_cache_unpin_locked(c, a);
    }
    free_memory(c);
}

/* ---- who is there; with mu held ---- */

/* A free slot and n free pages; false: the rest is held. */
static bool make_room(nrd_lora_cache *c, int32_t n, int32_t *out_slot)
{
    for (;;) {
        nrd_adapter *oldest = NULL;
        int32_t free_slot = NRD_LORA_NO_SLOT;
        for (int32_t i = 0; i < c->n_slots; i++) {
            nrd_adapter *a = c->slots[i];
            if (!a) {
                free_slot = free_slot == NRD_LORA_NO_SLOT ? i : free_slot;
            } else if (a->holds == 0 && a->state != ADAPTER_LOADING && (!oldest || a->used < oldest->used)) {
                oldest = a;
            }
        }
        if (free_slot != NRD_LORA_NO_SLOT && n <= c->n_free) {
            *out_slot = free_slot;
            return true;
        }
        if (!oldest) {
            return false;
        }
        c->n_evicted_device++;
        nrd_lora_evict_locked(c, oldest);
    }
}

static void note_rank(nrd_lora_cache *c, int32_t rank)
{
    while (c->max_rank < rank) {
        c->max_rank *= 2;
    }
}

static bool start(nrd_lora_cache *c, nrd_adapter *a)
{
    int32_t n = nrd_lora_device_pages_of(c, a->part), slot;
    int32_t *pages = calloc((size_t)n + 1, sizeof *pages);

    if (!pages || !make_room(c, n, &slot)) {
        free(pages);
        return false;
    }
    a->pages = pages;
    a->n_pages = n;
    a->slot = slot;
    nrd_lora_put_in_slot(c, slot, a);
    for (int32_t i = 0; i < n; i++) {
        pages[i] = c->free_pages[--c->n_free];
    }
    note_rank(c, a->lora->max_rank);
    if (c->shared) {
        const uint64_t start_ns = nrd_now_ns();
        fill_row(c, a, c->pairs + slot * c->slot_stride);
        a->state = ADAPTER_READY;
        c->n_loaded++;
        c->device_ns += nrd_now_ns() - start_ns;
        return true;
    }
    a->state = ADAPTER_LOADING;
    a->pins++;
    c->n_pinned++;
    a->next_load = NULL;
    *(c->load_tail ? &c->load_tail->next_load : &c->load_head) = a;
    c->load_tail = a;
    pthread_cond_signal(&c->cv);
    return true;
}

static nrd_lora_hold hold_of(const nrd_adapter *a)
{
    return a->state == ADAPTER_READY ? NRD_LORA_READY : a->state == ADAPTER_LOADING ? NRD_LORA_LOADING : NRD_LORA_FAILED;
}

nrd_lora_hold nrd_lora_cache_hold(nrd_lora_cache *c, nrd_adapter *a, bool only_there, int32_t *out_slot)
{
    nrd_lora_hold h = NRD_LORA_NO_ROOM;
    pthread_mutex_lock(&c->mu);
    if (a->state == ADAPTER_FAILED && a->holds == 0) { /* try again */
        nrd_lora_evict_locked(c, a);
    }
    if (a->state != ADAPTER_AWAY || (!only_there && start(c, a))) {
        a->holds++;
        a->used = ++c->now;
        *out_slot = a->slot;
        h = hold_of(a);
    }
    pthread_mutex_unlock(&c->mu);
    return h;
}

nrd_lora_hold nrd_lora_cache_state(nrd_lora_cache *c, nrd_adapter *a)
{
    pthread_mutex_lock(&c->mu);
    nrd_lora_hold h = hold_of(a);
    pthread_mutex_unlock(&c->mu);
    return h;
}

void nrd_lora_cache_drop(nrd_lora_cache *c, nrd_adapter *a)
{
    pthread_mutex_lock(&c->mu);
    a->holds--;
    pthread_mutex_unlock(&c->mu);
}

nrd_lora_bank nrd_lora_cache_bank(nrd_lora_cache *c)
{
    pthread_mutex_lock(&c->mu);
    nrd_lora_bank b = {c->pairs, c->slot_stride, c->max_rank};
    pthread_mutex_unlock(&c->mu);
    return b;
}

static int32_t find_change(const nrd_lora_cache *c, bool emptied)
{
    for (int32_t i = 0; i < c->n_slots; i++) {
        if (c->changed[i] && (c->slots[i] == NULL) == emptied) {
            return i;
        }
    }
    return NRD_LORA_NO_SLOT;
}

bool nrd_lora_cache_next_change(nrd_lora_cache *c, int32_t *out_slot, const nrd_lora **out_lora)
{
    bool any = false;

    pthread_mutex_lock(&c->mu);
    if (c->n_changed > 0) {
        const int32_t empty = find_change(c, true), slot = empty != NRD_LORA_NO_SLOT ? empty : find_change(c, false);
        c->changed[slot] = false;
        c->n_changed--;
        *out_slot = slot;
        *out_lora = c->slots[slot] ? c->slots[slot]->lora : NULL;
        any = true;
    }
    pthread_mutex_unlock(&c->mu);
    return any;
}
