/* SPDX-License-Identifier: Apache-2.0
 * frontends/openai/batch_record.h - a batch as a value: what clients see of it and what the folder keeps.
 *
 * Purpose   The fields of a batch, their JSON, and the reading of a new batch from a request.
 * Owner     A plain struct; who has it guards it.
 * Units     Seconds since 1970; 0: has not happened.
 * Errors    INVALID_ARG with the field.
 */
#ifndef NRD_FRONTENDS_OPENAI_BATCH_RECORD_H
#define NRD_FRONTENDS_OPENAI_BATCH_RECORD_H

#include "frontends/openai/batch_line.h"
#include "frontends/openai/file_store.h"

typedef enum {
    NRD_BATCH_VALIDATING,
    NRD_BATCH_IN_PROGRESS,
    NRD_BATCH_FINALIZING,
    NRD_BATCH_CANCELLING,
    NRD_BATCH_COMPLETED, /* from here on it has ended */
    NRD_BATCH_FAILED,
    NRD_BATCH_CANCELLED,
    NRD_BATCH_EXPIRED,
    NRD_BATCH_N_STATES
} nrd_batch_state;

enum { NRD_BATCH_WINDOW = 16 };

typedef struct nrd_batch_record {
    char id[NRD_FILE_ID], owner[NRD_FILE_OWNER];
    int endpoint; /* nrd_batch_endpoint */
    char input[NRD_FILE_ID], output[NRD_FILE_ID], errors_file[NRD_FILE_ID]; /* the last two: "" until it has ended */
    char output_draft[NRD_FILE_ID], error_draft[NRD_FILE_ID];
    char window[NRD_BATCH_WINDOW];
    nrd_batch_state state;
    int64_t created, expires, at[NRD_BATCH_N_STATES]; /* when it came to each state */
    int64_t total, completed, failed, n_faults;
    nrd_batch_usage usage;
    int64_t output_secs; /* its files expire so long after they are there; 0: as others */
    nrd_str metadata;    /* a JSON object, or empty */
    nrd_str faults;      /* members of errors.data */
} nrd_batch_record;

bool nrd_batch_has_ended(const nrd_batch_record *b);
void nrd_batch_reach(nrd_batch_record *b, nrd_batch_state s); /* now */
/* line 0: of no line; field NULL: none. */
void nrd_batch_add_fault(nrd_batch_record *b, const char *code, const char *message, const char *field, uint64_t line);

/* `inside`: also what clients do not see, for the folder. */
void nrd_batch_put(nrd_str *out, const nrd_batch_record *b, bool inside);
/* What was written so; false: it is none. */
bool nrd_batch_take(nrd_batch_record *out, const nrd_json *record);
/* input, endpoint, window, metadata, output_secs and expires of a new one. */
nrd_error *nrd_batch_read(nrd_batch_record *out, const nrd_json *body) NRD_MUST_USE;
void nrd_batch_record_fini(nrd_batch_record *b);

#endif
