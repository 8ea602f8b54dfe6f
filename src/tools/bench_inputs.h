/* SPDX-License-Identifier: Apache-2.0
 * tools/bench_inputs.h - what `nereid bench` asks of models that do not read tokens or do not write them. */
#ifndef NRD_TOOLS_BENCH_INPUTS_H
#define NRD_TOOLS_BENCH_INPUTS_H

#include "nereid/executor.h"
#include "base/error.h"

typedef struct nrd_bench_inputs {
    bool makes_vectors; /* an encoder: the answer is a vector, not text */
    int32_t n_frames;   /* a model that hears: frames of 10 ms, as many as its encoder reads; 0: it reads tokens */
    int32_t frame_size;
    float *frames; /* [n_frames, frame_size], random numbers; the caller frees them with nrd_bench_inputs_free */
} nrd_bench_inputs;

/* Looks at the engine folder and at what the opened engine tells. */
nrd_error *nrd_bench_inputs_of(const char *engine, const nrd_exec_info *info, nrd_bench_inputs *out) NRD_MUST_USE;
void nrd_bench_inputs_free(nrd_bench_inputs *b);

/* Makes a request, which has its token ids already, one that this model takes. It points into *b. */
void nrd_bench_inputs_put(const nrd_bench_inputs *b, nrd_exec_request *r);

/* Seconds of sound in a request. */
double nrd_bench_inputs_seconds(const nrd_bench_inputs *b);

#endif
