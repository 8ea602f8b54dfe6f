/* SPDX-License-Identifier: Apache-2.0
 * base/number.h - decimal numbers as text, with a point whatever the locale of the process is.
 *
 * Purpose   The C library reads and writes the decimal sign of the locale, which belongs to the program
 *           that has loaded us. Files, requests and answers always have a point.
 * Owner     No state; any thread.
 */
#ifndef NRD_BASE_NUMBER_H
#define NRD_BASE_NUMBER_H

#include "base/error.h"

#include <stddef.h>

/* As strtod: the longest number at `text`; *end (unless NULL) is what follows, `text` without one.
 * Sets errno to ERANGE on overflow and underflow. */
double nrd_number_read(const char *text, char **end);
/* As snprintf. */
int nrd_number_print(char *buf, size_t size, const char *fmt, ...) NRD_PRINTF(3, 4);

#endif
