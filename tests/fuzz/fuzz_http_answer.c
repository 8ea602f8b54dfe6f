/* SPDX-License-Identifier: Apache-2.0
 * HTTP answers and streams of events as the load generator and the client read them: however the bytes are
 * cut, status, pieces and error are the same. The source is included because the tools are no room that
 * the fuzz programs link. */
#include "tools/load/http_reader.c"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void on_piece(void *arg, const char *data, size_t n)
{
    nrd_str_append(arg, data, n);
    nrd_str_putc(arg, '\0');
}

/* Reads all of it in parts of `step` bytes. False: an error. */
static bool read_all(nrd_http_reader *r, nrd_str *pieces, const uint8_t *data, size_t n, size_t step)
{
    bool is_fine = true;
    *r = (nrd_http_reader){.piece = on_piece, .arg = pieces};
    nrd_http_reader_begin(r);
    for (size_t at = 0; at < n && is_fine && r->state != NRD_HTTP_DONE;) {
        size_t used = 0;
        const size_t part = step < n - at ? step : n - at;
        is_fine = nrd_http_reader_feed(r, (const char *)data + at, part, &used);
        if (used > part || (is_fine && used < part && r->state != NRD_HTTP_DONE)) {
            abort();
        }
        at += used;
    }
    if (is_fine != !r->error) {
        abort();
    }
    (void)nrd_http_reader_close(r);
    nrd_http_reader_fini(r);
    return is_fine;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    nrd_http_reader whole, cut;
    nrd_str all = {0}, parts = {0};
    const size_t step = n > 0 ? 1 + data[n - 1] % 7 : 1;

    const bool is_fine = read_all(&whole, &all, data, n, n);
    if (read_all(&cut, &parts, data, n, step) != is_fine || cut.state != whole.state || cut.status != whole.status ||
        all.len != parts.len || (all.len > 0 && memcmp(all.data, parts.data, all.len) != 0)) {
        abort();
    }
    nrd_str_fini(&all);
    nrd_str_fini(&parts);
    return 0;
}
