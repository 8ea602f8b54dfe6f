/* SPDX-License-Identifier: Apache-2.0
 * frontends/openai/batch_file.h - a file of requests on this machine, worked through without a client.
 *
 * Purpose   What `nereid batch` does once the model is loaded: the lines of one file, as /v1/batches takes them, and
 *           one line of answer for each in another file, which may hold some from an earlier time.
 * Owner     The thread that calls run; interrupted is called by it.
 * Units     Lines.
 * Errors    INVALID_ARG: the files are no two files, or lines have the same custom_id; what the system says. A line
 *           that cannot be read or fails is an answer.
 */
#ifndef NRD_FRONTENDS_OPENAI_BATCH_FILE_H
#define NRD_FRONTENDS_OPENAI_BATCH_FILE_H

#include "frontends/openai/batch_run.h"

typedef struct nrd_batch_file {
    const char *input, *output; /* paths */
    bool json;                  /* an object on stdout tells how it ended */
    int max_flying;
    /* The model that answers a line which asks for `asked` (NULL: it names none); borrows until the next call. */
    const char *(*model_of)(void *arg, const char *asked);
    bool (*interrupted)(void *arg);
    void *arg;
} nrd_batch_file;

typedef enum {
    NRD_BATCH_FILE_ALL_ANSWERED, /* each line, with status 200 */
    NRD_BATCH_FILE_SOME_FAILED,  /* each line has an answer, some are errors */
    NRD_BATCH_FILE_INTERRUPTED,  /* the next time goes on */
} nrd_batch_file_end;

/* Progress goes to stderr. */
nrd_error *nrd_batch_file_run(const nrd_batch_file *f, const nrd_batch_asks *asks, nrd_batch_file_end *out) NRD_MUST_USE;

#endif
