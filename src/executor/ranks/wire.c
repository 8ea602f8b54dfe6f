/* SPDX-License-Identifier: Apache-2.0 */
#include "executor/ranks/wire.h"

#include "base/error.h"

#include <string.h>

/* Address space of the device's part: far above what the largest model and most ranks need. */
static const uint64_t MAX_COMM_BYTES = (uint64_t)1 << 40;

static bool has_end(const char *text, size_t size)
{
    return memchr(text, '\0', size) != NULL;
}

static bool within(int32_t x, int32_t least, int32_t most)
{
    return x >= least && x <= most;
}

/* A byte that came is not read as a bool before it is known to be one. */
static bool is_bool(const bool *b)
{
    unsigned char byte;
    memcpy(&byte, b, 1);
    return byte <= 1;
}

bool nrd_wire_knows_key(const nrd_wire_hello *h, const char key[NRD_CARD_KEY])
{
    unsigned differs = 0;
    for (size_t i = 0, ended = 0; i < NRD_CARD_KEY && !ended;
         i++) { /* its time does not tell how much is right */
        differs |= (unsigned)(h->key[i] ^ key[i]);
        ended = key[i] == '\0';
    }
    return differs == 0;
}

bool nrd_wire_check_hello(nrd_wire_hello *h, int32_t size)
{
    bool well = h->n >= 1 && h->n < size && h->n <= NRD_LAUNCHED_MAX;

    for (int32_t i = 0; well && i < h->n; i++) {
        well = within(h->ranks[i], 1, size - 1);
    }
    h->name[sizeof h->name - 1] = '\0';
    return well;
}

static const char *wrong_config(const nrd_rank_config *c, int32_t size)
{
    if (!has_end(c->engine_dir, sizeof c->engine_dir) || !has_end(c->device, sizeof c->device) ||
        !has_end(c->cpu_isa, sizeof c->cpu_isa)) {
        return "a text without an end";
    }
    for (int32_t r = 0; r < size; r++) {
        if (c->device_ids[r] < -1 || !within(c->launched[r], 0, NRD_LAUNCHED_MAX - 1)) {
            return "a rank's device or place";
        }
    }
    if (!is_bool(&c->verify_checksums) || !is_bool(&c->compute_f32) ||
        !is_bool(&c->deterministic) || !(c->streamed_share >= 0 && c->streamed_share <= 1)) {
        return "a switch or a share";
    }
    if (!within((int32_t)c->kv_dtype, 0, NRD_DTYPE_COUNT_ - 1)) {
        return "the cache's type";
    }
    if (c->n_threads < 0 || c->max_tokens < 0 || c->max_entries < 0 || c->max_draft_rows < 0 ||
        c->max_context < 0 || c->block_tokens < 0 || c->max_picture_states < 0 || c->n_sink < 0) {
        return "a limit below 0";
    }
    return within(c->n_windows, 0, NRD_RANKS_MAX_WINDOWS) &&
                   within(c->n_taps, 0, NRD_RANKS_MAX_TAPS)
               ? NULL
               : "a list's length";
}

nrd_error *nrd_wire_check_engine(const nrd_wire_engine *e)
{
    if (!within(e->size, 2, NRD_RANKS_MAX)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "an engine of %d ranks: 2 to %d can be", e->size,
                          (int)NRD_RANKS_MAX);
    }
    const char *wrong = e->n_ahead < 1 || e->comm_bytes > MAX_COMM_BYTES
                            ? "the size of the shared memory"
                            : wrong_config(&e->config, e->size);
    return wrong ? nrd_errorf(NRD_ERR_INVALID_ARG, "rank 0 says of an engine what cannot be: %s",
                              wrong)
                 : NULL;
}

bool nrd_wire_check_hosts(const nrd_wire_hosts *h, int32_t size)
{
    bool well = within(h->all.n, 2, NRD_HOSTS_MAX) && within(h->own, 1, h->all.n - 1);

    for (int32_t r = 0; well && r < size; r++) {
        well = h->all.of[r] < h->all.n;
    }
    for (int32_t k = 0; well && k < h->all.n; k++) {
        well = has_end(h->all.address[k], sizeof h->all.address[k]);
    }
    return well;
}

void nrd_wire_mend_reply(nrd_rank_reply *r)
{
    r->text[sizeof r->text - 1] = '\0';
    r->failed = r->failed != 0;
    if (!within(r->code, NRD_ERR_UNKNOWN, NRD_ERR_NO_MEMORY)) {
        r->code = NRD_ERR_UNKNOWN;
    }
}

void nrd_wire_mend_card(nrd_card *c)
{
    c->n = within(c->n, 0, NRD_CARD_ADDRESSES) ? c->n : 0;
    c->key[sizeof c->key - 1] = '\0';
    for (int32_t i = 0; i < c->n; i++) {
        c->address[i][sizeof c->address[i] - 1] = '\0';
    }
}
