/* SPDX-License-Identifier: Apache-2.0
 * nereid/crash.h - what a program leaves behind when it dies of a fault.
 *
 * Purpose   SIGSEGV, SIGBUS, SIGABRT, SIGFPE and SIGILL write one file: build, signal, address, backtrace as
 *           module+offset, threads, options, lengths and parameters of the last requests, and the
 *           schedulers' records (`nereid repro FILE`). No prompt, no answer, no key. Then the signal takes
 *           its course: core dumps are what the system makes of them.
 * Owner     Installed once, by the main thread, before there are others.
 * Limits    One report for each process; the folder keeps the newest `keep`. A thread whose stack is full
 *           dies without one, but for the main thread.
 * Errors    The folder cannot be made.
 */
#ifndef NEREID_CRASH_H
#define NEREID_CRASH_H

#include "nereid/export.h"

#include <stdint.h>

/* Set by nrd_crash_install: processes that this one starts, and that know of it, report into the same folder. */
#define NRD_CRASH_DIR_VARIABLE "NEREID_CRASH_REPORTS"

typedef struct nrd_error nrd_error;

typedef struct nrd_crash_config {
    const char *dir;     /* NULL: $NEREID_CACHE/crashes, else ~/.cache/nereid/crashes; where that cannot be
                            written, $TMPDIR or /tmp */
    int32_t keep;        /* reports in the folder; above 0 */
    const char *program; /* borrowed for ever */
    int argc;            /* options that speak of keys or tokens are named without their values */
    char **argv;
} nrd_crash_config;

NRD_API nrd_error *nrd_crash_install(const nrd_crash_config *config);

#endif
