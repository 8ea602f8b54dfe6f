/* SPDX-License-Identifier: Apache-2.0
 * device/ops/linear_parts.h - parts of linear on the CPU that other commands begin with.
 *
 * Purpose   linear_sample takes the products of a few tiles of rows at a time and keeps none of them.
 * Owner     The command was set up by nrd_linear_cpu; its scratch and shared memory up to what that
 *           asked for are these functions'.
 */
#ifndef NRD_DEVICE_OPS_LINEAR_PARTS_H
#define NRD_DEVICE_OPS_LINEAR_PARTS_H

#include "device/cpu/cpu.h"

enum { NRD_LINEAR_AT_PANELS = 0 }; /* of nrd_cpu_cmd.at: each thread's own, with few tokens */

/* Regroups one tile of tokens; all tiles (n_tasks[0]) before any nrd_linear_cpu_tiles. */
void nrd_linear_cpu_panels(const nrd_cpu_run *r, const nrd_cpu_cmd *c, int32_t token_tile);
/* Row tiles [from, to) of part p against every token: tile i of token t goes to the 16 floats at
 * y + t * y_stride + (i - first_tile) * 16, fewer of a last tile. */
void nrd_linear_cpu_tiles(nrd_cpu_run *r, const nrd_cpu_cmd *c, int p, int64_t from, int64_t to, float *y,
                          int64_t first_tile, int64_t y_stride);

#endif
