/* SPDX-License-Identifier: Apache-2.0
 * engine/run/tower.h - a picture becomes rows of the decoder's embeddings.
 *
 * Purpose   The vision tower on the runner's device: patches, layers in which every patch sees all others, the projector.
 *           One picture at a time, in between steps.
 * Owner     The engine loop thread, as the runner.
 * Errors    UNSUPPORTED where the device cannot compute it; an error of run means that the device is lost.
 * Lifetime  Between the runner's new and free, before steps are recorded. Borrows both.
 */
#ifndef NRD_ENGINE_RUN_TOWER_H
#define NRD_ENGINE_RUN_TOWER_H

#include "engine/run/runner.h"
#include "model/vision.h"

typedef struct nrd_tower nrd_tower;

/* max_rows: no picture has more, where pictures are of any size. */
nrd_error *nrd_tower_new(nrd_tower **out, nrd_runner *runner, const nrd_vision *from, int32_t max_rows) NRD_MUST_USE;
void nrd_tower_free(nrd_tower *t); /* NULL is fine */
uint64_t nrd_tower_bytes(const nrd_tower *t); /* of weights */
/* pixels: [1 + tiles, 3, height, width] of the grid's patches, without the whole where layers read the rows (nrd_vision_spec), as the processor gives them. rows: [nrd_vision_rows_of(grid), hidden] in
 * nrd_runner_embedding_dtype, host memory. Waits. */
nrd_error *nrd_tower_run(nrd_tower *t, const float *pixels, nrd_vision_grid grid, void *rows) NRD_MUST_USE;

#endif
