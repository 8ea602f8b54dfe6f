/* SPDX-License-Identifier: Apache-2.0
 * device/ops/linear_parts.h - parts of linear on the CPU that other commands begin with.
 *
 * Purpose   linear_sample takes the products of a few tiles of rows at a time and keeps none of them; moe_linear takes
 *           those of many weights, each with some of the tokens.
 * Owner     The command was set up by nrd_linear_cpu; its scratch and shared memory up to what that
 *           asked for are these functions'.
 */
#ifndef NRD_DEVICE_OPS_LINEAR_PARTS_H
#define NRD_DEVICE_OPS_LINEAR_PARTS_H

#include "device/cpu/cpu.h"

enum { NRD_LINEAR_AT_PANELS = 0 }; /* of nrd_cpu_cmd.at: where each thread makes its own panels; 0: phase 0 makes them */

/* Regroups one tile of tokens; all tiles (n_tasks[0]) before any nrd_linear_cpu_tiles. */
void nrd_linear_cpu_panels(const nrd_cpu_run *r, const nrd_cpu_cmd *c, int32_t token_tile);
/* Row tiles [from, to) of part p against every token: tile i of token t goes to the 16 floats at
 * y + t * y_stride + (i - first_tile) * 16, fewer of a last tile. */
void nrd_linear_cpu_tiles(nrd_cpu_run *r, const nrd_cpu_cmd *c, int p, int64_t from, int64_t to, float *y,
                          int64_t first_tile, int64_t y_stride);

/* The same for any arguments of linear, whatever the command is. types: UNSUPPORTED for what the CPU does not
 * multiply. room: bytes of a thread's scratch that the two others use. Panels of a->n_tokens tokens have panel_bytes; those of 1 to n
 * tokens never more than those of n, n a multiple of 16, or as many tokens' share of those of 16. */
nrd_error *nrd_linear_cpu_types(const nrd_linear_args *a) NRD_MUST_USE;
bool nrd_linear_cpu_on_unit(const nrd_cpu_kernels *kernels, const nrd_linear_args *a, int p); /* whether a matrix unit multiplies part p */
size_t nrd_linear_cpu_room(const nrd_linear_args *a);
size_t nrd_linear_cpu_panel_bytes(const nrd_cpu_kernels *kernels, const nrd_linear_args *a);
/* Panels of tokens [t0, end), t0 a multiple of 16, into those of all tokens. Token t is row t of a->x, or row ids[t]. */
void nrd_linear_cpu_make_panels(const nrd_cpu_run *r, const nrd_linear_args *a, const int32_t *ids, int32_t t0,
                                int32_t end, uint8_t *panels);
/* As nrd_linear_cpu_tiles, from such panels. */
void nrd_linear_cpu_do_tiles(const nrd_cpu_run *r, const nrd_linear_args *a, int p, int64_t from, int64_t to, float *y,
                             int64_t first_tile, int64_t y_stride, const uint8_t *panels);

#endif
