/* SPDX-License-Identifier: Apache-2.0
 * What a damaged stub may write into the memory that it shares with the server. First byte: 0 a message
 * with tensors, which ends where the file ends; 1 offsets in the ring of blocks that are given back;
 * 2 values that are written and read again. Tensors lie within the file; blocks that are handed out do
 * not overlap and lie within their half; what was written is what is read. */
#include "backends/python/ipc.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { HALF = 1 << 24, N_BLOCKS = 64 };

static nrd_py_map map;

static void read_message(const uint8_t *data, size_t n)
{
    const uint64_t offset = map.bytes - n; /* one byte more is not mapped */
    nrd_py_reader r;
    nrd_py_tensor t;
    uint64_t data_at = 0;
    volatile unsigned sum = 0;

    memcpy(map.base + offset, data, n);
    nrd_py_reader_begin(&r, &data_at, &map, offset, n);
    while (!r.bad && r.p < r.end) {
        if (!nrd_py_get_tensor(&r, &map, data_at, &t)) {
            break;
        }
        sum += (unsigned)strlen(t.name);
        if (t.n_dims > NRD_PY_MAX_DIMS || t.how > NRD_PY_DATA_REMOTE) {
            abort();
        }
        if (t.how != NRD_PY_DATA_REMOTE && t.bytes) {
            sum += map.base[t.where] + map.base[t.where + t.bytes - 1];
        }
    }
    (void)sum;
}

static void check_block(uint64_t base, uint64_t offset, uint64_t bytes, const uint64_t *at, const uint64_t *len,
                        size_t n)
{
    if (offset < base || offset + bytes > base + HALF || offset % 64) {
        abort();
    }
    for (size_t i = 0; i < n; i++) {
        if (at[i] && offset < at[i] + len[i] && at[i] < offset + bytes) {
            abort();
        }
    }
}

/* Each byte is an order: a block of some size, a block that the other side gives back rightly, or one
 * that it gives back wrongly, with an offset from the input. */
static void give_back(const uint8_t *data, size_t n)
{
    uint64_t at[N_BLOCKS] = {0}, len[N_BLOCKS] = {0};
    const uint64_t base = map.ctl->server_base;
    nrd_py_returns *ring = &map.ctl->to_server;
    nrd_py_returner back;

    ring->head = ring->tail = 0;
    nrd_py_heap *h = nrd_py_heap_new(map.base, base, HALF, ring);
    nrd_py_returner_init(&back, ring);
    for (size_t i = 0; h && i + 9 <= n; i++) {
        const unsigned k = data[i] / 4 % N_BLOCKS;
        uint64_t v;
        memcpy(&v, data + i + 1, sizeof v);
        switch (data[i] % 4) {
        case 0:
        case 1:
            if (!at[k]) {
                len[k] = v % (data[i] % 4 ? HALF / 8 : 5000);
                at[k] = nrd_py_heap_alloc(h, len[k]);
                const uint64_t offset = at[k];
                if (offset) {
                    at[k] = 0;
                    check_block(base, offset, len[k], at, len, N_BLOCKS);
                    at[k] = offset;
                }
            }
            break;
        case 2:
            if (at[k]) {
                nrd_py_return(&back, at[k]);
                at[k] = 0;
            }
            break;
        default: { /* nothing that is in use: a stub that returns those damages its own answers */
            bool used = false;
            for (size_t b = 0; b < N_BLOCKS; b++) {
                used = used || (at[b] && at[b] == v);
            }
            if (!used) {
                nrd_py_return(&back, v);
            } else {
                atomic_store(&ring->tail, (uint32_t)(v >> 32));
                atomic_store(&ring->head, (uint32_t)(v >> 32));
            }
            i += 8;
            break;
        }
        }
    }
    if (h && nrd_py_heap_used(h) > HALF) {
        abort();
    }
    nrd_py_returner_fini(&back);
    nrd_py_heap_free(h);
}

static void write_and_read(const uint8_t *data, size_t n)
{
    nrd_py_writer w = {0};
    size_t got_n;

    nrd_py_put_str(&w, (const char *)data, n);
    nrd_py_put_u64(&w, n);
    nrd_py_put_u8(&w, 7);
    nrd_py_reader r = {.p = w.data, .end = w.data + w.len};
    const char *s = nrd_py_get_str(&r, &got_n);
    if (w.failed || r.bad || got_n != n || memcmp(s, data, n) != 0 || nrd_py_get_u64(&r) != n ||
        nrd_py_get_u8(&r) != 7 || r.p != r.end || (nrd_py_get_u32(&r), !r.bad)) {
        abort();
    }
    for (size_t cut = 0; cut < w.len; cut += w.len / 16 + 1) {
        r = (nrd_py_reader){.p = w.data, .end = w.data + cut};
        (void)nrd_py_get_str(&r, NULL);
        (void)nrd_py_get_u64(&r);
        (void)nrd_py_get_u8(&r);
        if (!r.bad) {
            abort();
        }
    }
    nrd_py_writer_fini(&w);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!map.base && close(nrd_py_map_create(&map, "fuzz", HALF)) != 0) {
        abort();
    }
    if (size < 1 || size > 65536) {
        return 0;
    }
    switch (data[0] % 4) {
    case 0:
        read_message(data + 1, size - 1);
        break;
    case 1:
    case 2:
        give_back(data + 1, size - 1);
        break;
    default:
        write_and_read(data + 1, size - 1);
        break;
    }
    return 0;
}
