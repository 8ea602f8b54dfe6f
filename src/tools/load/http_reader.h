/* SPDX-License-Identifier: Apache-2.0
 * tools/load/http_reader.h - an HTTP/1.1 answer from bytes as they come (RFC 9112).
 *
 * Purpose   Our own and not the event library's client: a load generator needs the time at which each
 *           event came, and a reader that costs less than the server it measures.
 * Owner     One thread for each reader. No allocation but for events that come in parts.
 * Errors    feed gives false: error says why, the connection is of no use any more.
 * Limits    Heads of 64 KiB, bodies and events of 64 MiB.
 * Lifetime  A zeroed struct; begin before each answer; fini.
 */
#ifndef NRD_TOOLS_LOAD_HTTP_READER_H
#define NRD_TOOLS_LOAD_HTTP_READER_H

#include "base/str.h"

typedef struct nrd_http_reader {
    enum {
        NRD_HTTP_HEAD,
        NRD_HTTP_BODY, /* of known length */
        NRD_HTTP_CHUNK_SIZE,
        NRD_HTTP_CHUNK,
        NRD_HTTP_CHUNK_END,
        NRD_HTTP_TRAILER,
        NRD_HTTP_TO_CLOSE, /* the end of the connection is that of the body */
        NRD_HTTP_DONE,
    } state;
    bool in_body; /* the head has ended; until then state says what body it announces */
    int status;
    bool is_events; /* text/event-stream */
    bool closes;    /* the server ends the connection after this answer */
    size_t left;    /* of the body or the chunk */
    nrd_str line;   /* a part of a head, of a chunk's line or of an event */
    nrd_str body;   /* all of it, where it is no stream of events */
    const char *error;
    /* An event's data (lines joined), or at the end a whole body. Borrows data. */
    void (*piece)(void *arg, const char *data, size_t n);
    void *arg;
} nrd_http_reader;

void nrd_http_reader_begin(nrd_http_reader *r);
/* Takes bytes; *out_used: how many belong to this answer. After the last, state is DONE. */
bool nrd_http_reader_feed(nrd_http_reader *r, const char *data, size_t n, size_t *out_used);
/* The connection has ended; true: so has the answer. */
bool nrd_http_reader_close(nrd_http_reader *r);
void nrd_http_reader_fini(nrd_http_reader *r);

#endif
