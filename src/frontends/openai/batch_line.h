/* SPDX-License-Identifier: Apache-2.0
 * frontends/openai/batch_line.h - the lines of a batch: requests in, answers out.
 *
 * Purpose   Reads {custom_id, method, url, body}, one a line, from a file of any length, and writes the lines of
 *           the output and error files. Knows ids again that it has seen.
 * Owner     One thread at a time.
 * Units     Bytes.
 * Errors    INVALID_ARG with a reason that OpenAI's clients know (nrd_error_reason) and the field.
 * Lifetime  A line that was read lives until its fini; the text of a reader until the next one.
 * Sources   OpenAI API reference: batches, the request input object and the request output object.
 */
#ifndef NRD_FRONTENDS_OPENAI_BATCH_LINE_H
#define NRD_FRONTENDS_OPENAI_BATCH_LINE_H

#include "base/error.h"
#include "base/json.h"
#include "base/str.h"

#include <stdbool.h>
#include <stdint.h>

/* ---- a file of lines ---- */
typedef struct nrd_batch_reader {
    int fd; /* borrows; read with pread */
    size_t max_line; /* 0: NRD_LIMIT_BATCH_LINE */
    uint64_t at; /* of the file: behind what is in the buffer */
    char *buf;
    size_t cap, begin, end;
} nrd_batch_reader;

typedef struct nrd_batch_text {
    const char *text; /* without the end of the line */
    size_t n;
    uint64_t offset;
    bool too_long; /* over the limit: text holds no more than the limit, maybe less */
} nrd_batch_text;

/* The next line that is not empty; *out_more false: there is none. n_line, if not NULL, is raised by all that were read. */
nrd_error *nrd_batch_next(nrd_batch_reader *r, nrd_batch_text *out, uint64_t *n_line, bool *out_more) NRD_MUST_USE;
void nrd_batch_reader_fini(nrd_batch_reader *r);

/* ---- a request ---- */
typedef struct nrd_batch_line {
    nrd_json_doc *doc; /* owns; what follows borrows from it */
    const char *custom_id;
    const nrd_json *body;
    int endpoint; /* nrd_batch_endpoint_of */
} nrd_batch_line;

/* The place of a path in the list of endpoints that batches may ask, -1: it may not. */
int nrd_batch_endpoint_of(const char *path);
const char *nrd_batch_endpoint(int i); /* NULL: behind the last */
const char *nrd_batch_endpoints(void); /* all of them, for people */

/* endpoint -1: any. On error custom_id is there where it could be read. Fini always. */
nrd_error *nrd_batch_line_read(nrd_batch_line *out, const nrd_batch_text *text, int endpoint) NRD_MUST_USE;
void nrd_batch_line_fini(nrd_batch_line *l);

/* ---- an answer ---- */
enum { NRD_BATCH_ID = 48 };
/* An id that is made of the line's bytes, so that an answer tells which request it is to, also another day. */
void nrd_batch_id_of(char out[NRD_BATCH_ID], const nrd_batch_text *text);
bool nrd_batch_id_is_of_a_line(const char *id); /* else a random one */

/* id NULL: a random one. custom_id NULL: it could not be read. The line ends with its end. */
nrd_error *nrd_batch_put_answer(nrd_str *out, const char *id, const char *custom_id, int status, const nrd_str *body) NRD_MUST_USE;
nrd_error *nrd_batch_put_error(nrd_str *out, const char *id, const char *custom_id, const char *code, const char *message) NRD_MUST_USE;

/* ---- ids ---- */
typedef struct nrd_batch_ids {
    uint64_t *v; /* hashes; 0: free */
    size_t n, cap;
} nrd_batch_ids;
bool nrd_batch_ids_have(const nrd_batch_ids *s, const char *id);
/* *out_new false: it was there. */
nrd_error *nrd_batch_ids_add(nrd_batch_ids *s, const char *id, bool *out_new) NRD_MUST_USE;
/* What answers say that they took, in OpenAI's two forms. */
typedef struct nrd_batch_usage {
    uint64_t input, cached, output, reasoning; /* tokens; cached are of the input, reasoning of the output */
} nrd_batch_usage;
void nrd_batch_add_usage(nrd_batch_usage *u, const nrd_json *body);

typedef struct nrd_batch_counts {
    int64_t ok, failed; /* lines */
    int64_t nameless;   /* of the failed ones: without a custom_id */
    nrd_batch_usage usage;
} nrd_batch_counts;
/* The custom_ids of a file of answers, whose lines are added to the counts. A line that cannot be read is not counted.
 * check, if not NULL, may refuse an answer; id "": it has none. */
typedef nrd_error *(*nrd_batch_check)(void *arg, const char *id, const char *custom_id);
nrd_error *nrd_batch_ids_read(nrd_batch_ids *s, int fd, nrd_batch_counts *counts, nrd_batch_check check, void *arg) NRD_MUST_USE;
void nrd_batch_ids_fini(nrd_batch_ids *s);

#endif
