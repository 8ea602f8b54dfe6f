/* SPDX-License-Identifier: Apache-2.0
 * backends/tensorrtllm/reader.h - a thread that does jobs one after the other, in the order in which they came.
 *
 * Purpose   Requests with pictures: reading one takes up to seconds, and requests of text alone must not wait for it.
 * Owner     One thread pushes, asks and frees; jobs run on the reader's thread, which begins with the first one.
 * Errors    INTERNAL: no thread can be started.
 * Lifetime  Free waits for the job that runs; those that wait are handed back with is_over.
 */
#ifndef NRD_BACKENDS_TENSORRTLLM_READER_H
#define NRD_BACKENDS_TENSORRTLLM_READER_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct nrd_llm_job {
    struct nrd_llm_job *next;
} nrd_llm_job;

/* Takes the job always. is_over: the reader ends, the job is not to be done. */
typedef void (*nrd_llm_job_fn)(void *user, nrd_llm_job *job, bool is_over);

typedef struct nrd_llm_reader nrd_llm_reader;

/* max_waiting: jobs that wait for the one that runs. `user` is borrowed until free. */
nrd_error *nrd_llm_reader_new(nrd_llm_reader **out, int32_t max_waiting, nrd_llm_job_fn run, void *user) NRD_MUST_USE;
void nrd_llm_reader_free(nrd_llm_reader *r); /* NULL is fine */
bool nrd_llm_reader_has_room(nrd_llm_reader *r); /* it stays until the next push */
/* Starts the thread where there is none. Takes the job on success; an error: it is the caller's still. */
nrd_error *nrd_llm_reader_push(nrd_llm_reader *r, nrd_llm_job *job) NRD_MUST_USE;

#endif
