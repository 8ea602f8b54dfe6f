/* SPDX-License-Identifier: Apache-2.0
 * What other hosts of an engine's ranks send. The first byte chooses: 'f' frames into the shared memory, as they come through a
 * connection; 'h', 'e', 'w', 'r', 'c' one structure (a greeting, an engine, where ranks are, a reply, rank 0's card), which
 * is a good one with words of 4 bytes put into it: each 6 bytes of input are an offset and a word.
 *
 * Frames write what a plain copy of them writes, and nothing outside the memory. Of a structure that is accepted all texts end, all
 * numbers that are used as indices are within their lists, and all sizes within their limits. */
#include "executor/ranks/mirror.h"
#include "executor/ranks/wire.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MEMORY = 512, MAX_INPUT = 32768 /* fits a socket's buffer */, JOB = 8 };

static void must(bool holds)
{
    if (!holds) {
        abort();
    }
}

/* ---- frames ---- */

typedef struct frame {
    uint64_t at, bytes, mark;
    uint32_t value, pad;
} frame;

/* The same, without a connection. */
static void apply(uint8_t *memory, const uint8_t *data, size_t size)
{
    frame f;

    while (size >= sizeof f) {
        memcpy(&f, data, sizeof f);
        data += sizeof f;
        size -= sizeof f;
        const bool fits = f.bytes <= MEMORY && f.at <= MEMORY - f.bytes && f.mark % 4 == 0 &&
                          f.mark <= MEMORY - 4;
        if (!fits) {
            return;
        }
        const size_t n = f.bytes < size ? (size_t)f.bytes : size;
        memcpy(memory + f.at, data, n);
        if (n < f.bytes) {
            return; /* the rest never comes, nor does the mark change */
        }
        memcpy(memory + f.mark, &f.value, sizeof f.value);
        data += n;
        size -= n;
    }
}

static void hear_frames(const uint8_t *data, size_t size)
{
    uint8_t *memory = calloc(1, MEMORY), expected[MEMORY] = {0};
    _Atomic uint32_t stop = 0;
    const nrd_mirror_memory m = {.base = memory, .bytes = MEMORY, .stop = &stop};
    int pair[2];

    must(memory && socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    must(nrd_tcp_send(pair[0], data, size));
    close(pair[0]);
    nrd_mirror_hear(&m, pair[1]);
    close(pair[1]);
    apply(expected, data, size);
    must(memcmp(memory, expected, MEMORY) == 0);
    free(memory);
}

/* ---- structures ---- */

static void put_words(void *into, size_t bytes, const uint8_t *data, size_t size)
{
    for (; size >= 6; data += 6, size -= 6) {
        const size_t at = ((size_t)data[0] << 8 | data[1]) % (bytes - 3);
        memcpy((uint8_t *)into + at, data + 2, 4);
    }
}

static void greet(const uint8_t *data, size_t size)
{
    const char key[NRD_CARD_KEY] = "secret";
    nrd_wire_hello h = {.build = "one", .key = "secret", .name = "host", .n = 2, .ranks = {2, 3}};

    put_words(&h, sizeof h, data, size);
    must(nrd_wire_knows_key(&h, key) == (strncmp(h.key, key, sizeof key) == 0));
    if (nrd_wire_check_hello(&h, JOB)) {
        must(h.n >= 1 && h.n <= NRD_LAUNCHED_MAX);
        for (int32_t i = 0; i < h.n; i++) {
            must(h.ranks[i] > 0 && h.ranks[i] < JOB);
        }
    }
    must(memchr(h.name, 0, sizeof h.name) != NULL);
}

static void describe_engine(const uint8_t *data, size_t size)
{
    static nrd_wire_engine e;
    const nrd_rank_config *c = &e.config;
    int64_t sum = 0;

    memset(&e, 0, sizeof e);
    e = (nrd_wire_engine){.size = 4, .n_ahead = 2, .comm_bytes = 1 << 20};
    strcpy(e.config.engine_dir, "/models/engine");
    strcpy(e.config.device, "cpu");
    e.config.n_windows = 2;
    e.config.n_taps = 1;
    put_words(&e, sizeof e, data, size);
    nrd_error *err = nrd_wire_check_engine(&e);
    if (!err) {
        must(strlen(c->engine_dir) < sizeof c->engine_dir && strlen(c->device) < sizeof c->device &&
             strlen(c->cpu_isa) < sizeof c->cpu_isa);
        must(e.size >= 2 && e.size <= NRD_RANKS_MAX && e.n_ahead >= 1);
        for (int32_t r = 0; r < e.size; r++) {
            must(c->launched[r] >= 0 && c->launched[r] < NRD_LAUNCHED_MAX &&
                 c->device_ids[r] >= -1);
        }
        must(c->n_windows >= 0 && c->n_windows <= NRD_RANKS_MAX_WINDOWS && c->n_taps >= 0 &&
             c->n_taps <= NRD_RANKS_MAX_TAPS);
        sum += c->verify_checksums + c->compute_f32 + c->deterministic +
               (int64_t)(c->streamed_share * 100); /* UBSan looks */
        must(sum >= 0 && sum <= 103 && (int)c->kv_dtype >= 0 &&
             (int)c->kv_dtype < NRD_DTYPE_COUNT_);
    }
    nrd_error_free(err);
}

static void place_ranks(const uint8_t *data, size_t size)
{
    static nrd_wire_hosts h;

    memset(&h, 0, sizeof h);
    h.own = 1;
    h.all.n = 2;
    h.all.of[2] = h.all.of[3] = 1;
    strcpy(h.all.address[1], "10.0.0.2");
    put_words(&h, sizeof h, data, size);
    if (nrd_wire_check_hosts(&h, 4)) {
        must(h.own >= 1 && h.own < h.all.n && h.all.n <= NRD_HOSTS_MAX);
        for (int32_t r = 0; r < 4; r++) {
            must(h.all.of[r] < h.all.n && strlen(h.all.address[h.all.of[r]]) < NRD_TCP_ADDRESS);
        }
    }
}

static void hear_reply(const uint8_t *data, size_t size)
{
    nrd_rank_reply r = {.text = "no memory"};

    put_words(&r, sizeof r, data, size);
    nrd_wire_mend_reply(&r);
    nrd_error *err = nrd_errorf((nrd_error_code)r.code, "%s", r.text);
    must(strlen(r.text) < sizeof r.text && nrd_error_get_code(err) == (nrd_error_code)r.code &&
         (r.failed == 0 || r.failed == 1));
    nrd_error_free(err);
}

static void take_card(const uint8_t *data, size_t size)
{
    nrd_card c = {.port = 1, .n = 1, .key = "secret", .address = {"10.0.0.1"}};

    put_words(&c, sizeof c, data, size);
    nrd_wire_mend_card(&c);
    must(c.n >= 0 && c.n <= NRD_CARD_ADDRESSES && strlen(c.key) < sizeof c.key);
    for (int32_t i = 0; i < c.n; i++) {
        must(strlen(c.address[i]) < NRD_TCP_ADDRESS);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct {
        char kind;
        void (*hear)(const uint8_t *data, size_t size);
    } kinds[] = {{'f', hear_frames}, {'h', greet},      {'e', describe_engine},
                 {'w', place_ranks}, {'r', hear_reply}, {'c', take_card}};

    for (size_t i = 0; size > 0 && size <= MAX_INPUT && i < sizeof kinds / sizeof *kinds; i++) {
        if (data[0] == kinds[i].kind) {
            kinds[i].hear(data + 1, size - 1);
        }
    }
    return 0;
}
