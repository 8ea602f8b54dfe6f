/* SPDX-License-Identifier: Apache-2.0
 * backends/tensorrtllm/reader.h - a few threads that do jobs beside the one that brings them.
 *
 * Purpose   Requests with pictures: reading one takes up to seconds; requests of text alone must not wait for it, and small
 *           pictures not for one large one.
 * Owner     One thread pushes, asks and frees; jobs begin in the order in which they came, on threads that start when all others are
 *           busy, and end in any order.
 * Errors    INTERNAL: no thread can be started.
 * Lifetime  Free waits for the jobs that run; those that wait are handed back with is_over.
 */
#ifndef NRD_BACKENDS_TENSORRTLLM_READER_H
#define NRD_BACKENDS_TENSORRTLLM_READER_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

/* Of an instance. Each holds the pixels of a picture meanwhile, 200 MB of the largest. */
enum { NRD_LLM_MAX_READERS = 4 };

typedef struct nrd_llm_job {
    struct nrd_llm_job *next;
} nrd_llm_job;

/* Takes the job always; several may run at a time. is_over: the reader ends, the job is not to be done. */
typedef void (*nrd_llm_job_fn)(void *user, nrd_llm_job *job, bool is_over);

typedef struct nrd_llm_reader nrd_llm_reader;

/* n_threads: up to NRD_LLM_MAX_READERS; 0: half of the processors, at least two. max_waiting: jobs that wait for those that run.
 * `user` is borrowed until free. */
nrd_error *nrd_llm_reader_new(nrd_llm_reader **out, int32_t n_threads, int32_t max_waiting, nrd_llm_job_fn run, void *user) NRD_MUST_USE;
void nrd_llm_reader_free(nrd_llm_reader *r); /* NULL is fine */
bool nrd_llm_reader_has_room(nrd_llm_reader *r); /* it stays until the next push */
/* Takes the job on success; an error: it is the caller's still. */
nrd_error *nrd_llm_reader_push(nrd_llm_reader *r, nrd_llm_job *job) NRD_MUST_USE;

#endif
