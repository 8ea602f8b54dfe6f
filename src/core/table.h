/* SPDX-License-Identifier: Apache-2.0
 * core/table.h - tables of the start-up log. */
#ifndef NRD_CORE_TABLE_H
#define NRD_CORE_TABLE_H

#include "base/str.h"

#include <stddef.h>

/* A text table as the start-up log shows it: n_rows * n_cols cells, the first row is the head. */
void nrd_table_put(nrd_str *out, const char *const *cells, size_t n_rows, size_t n_cols);

#endif
