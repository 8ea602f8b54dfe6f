/* SPDX-License-Identifier: Apache-2.0
 * executor/ranks/wire.h - what rank 0 and the first process of another host say to each other, over TCP.
 *
 * Purpose   Two kinds of connections, both made by the other host's process (host.c). One for the job: it says who is
 *           there, and gets orders. One for each engine, made on an order: rank 0 says what is to be opened, the other opens its listener
 *           (mirror.h), hears where all listeners are, starts the ranks of its host, and from then on both say that they live, the
 *           other one what its ranks say.
 * Trust     Plain values of one build, which the greeting proves. Whoever knows the key may still send anything: each structure goes
 *           through its function below before anything of it is used.
 */
#ifndef NRD_EXECUTOR_RANKS_WIRE_H
#define NRD_EXECUTOR_RANKS_WIRE_H

#include "executor/ranks/meet.h"
#include "executor/ranks/reply.h"
#include "executor/ranks/segment.h"

enum {
    NRD_WIRE_MS = 10 * 1000,       /* most that one waits for what must come now */
    NRD_WIRE_BEAT_MS = 250,
    NRD_WIRE_SILENT_MS = 3500,     /* then the other host is lost */
    NRD_HOST_NAME = 64,
};

/* ---- of the job ---- */

typedef struct nrd_wire_hello {
    char build[40], key[NRD_CARD_KEY]; /* first, and of these sizes in every build */
    char name[NRD_HOST_NAME];
    int32_t n, ranks[NRD_LAUNCHED_MAX]; /* the launcher's ranks of this host; the first one speaks */
} nrd_wire_hello;

typedef struct nrd_wire_answer {
    int32_t refused;
    char text[252];
} nrd_wire_answer;

typedef enum { NRD_ORDER_START = 1, NRD_ORDER_END = 2 } nrd_order;

typedef struct nrd_wire_order {
    int32_t kind;  /* nrd_order; END: the job is over */
    uint16_t port; /* where rank 0 waits with this engine */
    uint8_t token[NRD_TOKEN_BYTES];
} nrd_wire_order;

/* ---- of an engine ---- */

typedef struct nrd_wire_guest {
    uint8_t token[NRD_TOKEN_BYTES];
    int32_t leader; /* the launcher's rank that spoke for its host */
} nrd_wire_guest;

typedef struct nrd_wire_engine { /* what nrd_segment_new takes */
    int32_t size, n_ahead;
    uint64_t comm_bytes;
    nrd_rank_config config;
} nrd_wire_engine;

typedef struct nrd_wire_listener {
    int32_t failed;
    uint16_t port;
    char text[256];
} nrd_wire_listener;

typedef struct nrd_wire_hosts { /* the answer */
    int32_t own;        /* which of them hears it */
    nrd_rank_hosts all; /* address[0]: empty, the other end's */
} nrd_wire_hosts;

typedef enum {
    NRD_SAID_BEAT = 1,
    NRD_SAID_REPLY = 2, /* an nrd_rank_reply of `rank` follows */
    NRD_SAID_LOST = 3,  /* the same, whose text says how it was lost */
} nrd_said;

typedef struct nrd_wire_said {
    int32_t kind, rank;
} nrd_wire_said;

/* ---- what is to be looked at first ---- */

bool nrd_wire_knows_key(const nrd_wire_hello *h, const char key[NRD_CARD_KEY]);
/* Of a job of `size` ranks; ends the name. */
bool nrd_wire_check_hello(nrd_wire_hello *h, int32_t size);
/* INVALID_ARG, with what is wrong. */
nrd_error *nrd_wire_check_engine(const nrd_wire_engine *e) NRD_MUST_USE;
/* Of an engine of `size` ranks. */
bool nrd_wire_check_hosts(const nrd_wire_hosts *h, int32_t size);
/* Its text has an end, and its code is one. */
void nrd_wire_mend_reply(nrd_rank_reply *r);
/* Its texts have ends, and no more addresses than there is room for. */
void nrd_wire_mend_card(nrd_card *c);

#endif
