/* SPDX-License-Identifier: Apache-2.0
 * engine/record.h - what the scheduler was asked and what it decided, so that it can be done again.
 *
 * Purpose   The scheduler is a function of what it is told: arrivals, ends from outside, chosen tokens, the
 *           time of the cache, and whether a guide's mask was ready. A record holds these, and a digest of
 *           each plan; engine/replay.h makes the plans anew and compares.
 * Owner     The engine loop thread writes; nrd_record_write may be called anywhere, also in a signal
 *           handler: it takes no lock and allocates nothing. Then the last event may be incomplete.
 * Units     32-bit words. An event is a word `kind << 24 | words that follow`, and these.
 * Bounds    Two halves of fixed size, the older one is overwritten. A record whose beginning is lost
 *           cannot be replayed; what is left of it can be read.
 * Privacy   Token ids are not in it: each stands for its sequence up to there, under a key that is drawn
 *           at start and never written. Equal beginnings of prompts stay equal, which is what reuse of
 *           blocks depends on; what they say cannot be read.
 * Errors    NO_MEMORY; a file that cannot be made.
 */
#ifndef NRD_ENGINE_RECORD_H
#define NRD_ENGINE_RECORD_H

#include "engine/scheduler.h"

#include <stddef.h>
#include <stdint.h>

typedef struct nrd_record nrd_record;

enum { NRD_RECORD_VERSION = 5, NRD_RECORD_MAX_EVENT = (1 << 24) - 1, NRD_RECORD_NONE = -1 };
#define NRD_RECORD_MAGIC 0x3144524eu /* "NRD1" */
#define NRD_RECORD_MARK "scheduler-record\n" /* a line before each head in a file of several things */
#define NRD_RECORD_DEFAULT_BYTES (4u << 20)
#define NRD_RECORD_MIN_BYTES (64u << 10)
#define NRD_RECORD_MAX_BYTES (1u << 30)

/* At the start of a record, in memory and in files of this machine's byte order. */
typedef struct nrd_record_head {
    uint32_t magic, version, head_bytes, half_words; /* half_words: room of each half */
    nrd_sched_limits limits;
    nrd_kv_config kv;
    char name[64];            /* of the model */
    uint32_t used[2];         /* words of each half that hold whole events */
    uint32_t current;         /* the half that is written */
    uint32_t n_turns;         /* how often the halves changed; more than one: the beginning is lost */
    uint32_t packed;          /* 1: behind the head come only the used words */
} nrd_record_head;

typedef enum nrd_record_kind {
    NRD_RECORD_ADD = 1,  /* nrd_record_add, then its retention, then pseudonyms of the prompt */
    NRD_RECORD_END,      /* sequence: ended from outside */
    NRD_RECORD_HELD,     /* sequence, 0 or 1: the mask of its guide was asked for */
    NRD_RECORD_PLAN,     /* nrd_record_plan */
    NRD_RECORD_COMMIT,   /* step, then a word for each row: pseudonym << 5 | no_choice << 4 | n_new << 3 | finish */
    NRD_RECORD_APPEND,   /* sequence, finish, then pseudonyms */
    NRD_RECORD_FORGET,   /* the steps in flight do not come back */
} nrd_record_kind;

typedef struct nrd_record_add {
    uint32_t seq, leader; /* leader: NRD_RECORD_NONE, or the sequence whose blocks it waits for */
    uint32_t request, index;
    uint32_t group[2]; /* another number of each group; 0: none */
    uint32_t flow[2];  /* the same of flows */
    float priority;
    int32_t width, n_prompt, max_total;
    uint32_t flags; /* of nrd_record_flag */
    uint32_t key[4];
    int32_t n_retention; /* ranges; -1: none */
    /* What else it asked for: for people, and for a replay with a model. */
    float temperature, top_p, repetition_penalty;
    int32_t top_k, n_stop, n_bad, n_top;
} nrd_record_add;

enum nrd_record_flag {
    NRD_RECORD_NO_REUSE = 1,
    NRD_RECORD_NO_SAMPLE = 2,
    NRD_RECORD_MAY_JUMP = 4,
    NRD_RECORD_NEEDS_HOST = 8,
    NRD_RECORD_KEEPS_COUNTS = 16,
    NRD_RECORD_GUIDED = 32,
    NRD_RECORD_ADAPTER = 64,
    NRD_RECORD_DRAFTS = 128, /* somebody guesses its tokens ahead */
    NRD_RECORD_PICTURES = 256, /* its prompt is computed in one step */
    NRD_RECORD_HANDED_TOKEN = 512, /* nrd_seq_request.handed: one of both */
    NRD_RECORD_HANDED_BLOCKS = 1024,
};

typedef struct nrd_record_plan {
    uint32_t step, now_ms[2]; /* of the cache */
    int32_t n_entries, n_tokens, n_context, n_paused, n_held;
    int32_t n_free, n_cached;
    uint32_t n_taken; /* blocks taken since the start, modulo 2^32 */
    uint32_t digest;  /* of entries and copies */
} nrd_record_plan;

/* path: a file that holds the record, current at any moment and left when the process is gone; NULL: memory
 * only. `bytes` of both halves. */
nrd_error *nrd_record_new(nrd_record **out, const char *name, size_t bytes, const char *path,
                          const nrd_sched_limits *limits, const nrd_kv_config *kv_config,
                          const nrd_kv *kv) NRD_MUST_USE;
void nrd_record_free(nrd_record *r); /* NULL is fine; after the scheduler */
const nrd_sched_tap *nrd_record_tap(const nrd_record *r);

/* What is recorded of a plan that was made now, with this cache. */
nrd_record_plan nrd_record_plan_of(const nrd_plan *p, const nrd_kv *cache);

/* Records of the process have numbers below this. */
int nrd_record_slots(void);
/* One of them, packed, behind NRD_RECORD_MARK; nothing where there is none. The head should begin at a multiple
 * of eight bytes. */
void nrd_record_write(int fd, int slot);
/* A line for each of the last requests of every record, newest last: lengths and parameters. */
void nrd_record_write_requests(int fd, void (*put)(int fd, const char *model, const nrd_record_add *a));

#endif
