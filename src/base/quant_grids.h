/* SPDX-License-Identifier: Apache-2.0
 * base/quant_grids.h - the vectors that blocks of the IQ types number.
 *
 * Purpose   An IQ block has for each four or eight weights the number of a vector in a table of its format. Element k of a
 *           vector is `bits` bits from bit k * bits: the place in a short list of values.
 * Owner     Constant data, any thread.
 * Sources   The formats of ggml, as its Python package gguf reads them.
 */
#ifndef NRD_BASE_QUANT_GRIDS_H
#define NRD_BASE_QUANT_GRIDS_H

#include <stdint.h>

/* Eight elements of 2 bits: -1, 0, 1. */
extern const uint16_t nrd_grid_iq1[2048];
/* Eight elements of 2 bits: 8, 25, 43. */
extern const uint16_t nrd_grid_iq2_xxs[256], nrd_grid_iq2_xs[512], nrd_grid_iq2_s[1024];
/* Four elements of 3 bits: 4, 12, 20, 28, 36, 44, 52, 62. */
extern const uint16_t nrd_grid_iq3_xxs[256];
/* Four elements of 3 bits: 1, 3, 5 … 15. */
extern const uint16_t nrd_grid_iq3_s[512];

#endif
