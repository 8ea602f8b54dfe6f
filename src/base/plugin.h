/* SPDX-License-Identifier: Apache-2.0
 * base/plugin.h - a library of ours that is opened only where it is needed.
 *
 * Purpose   TLS, cloud stores and downloads bring large libraries with them; programs that use none of these do
 *           not load them. Each is one shared object that exports one table of functions.
 * Owner     Any thread. A plug-in that was opened stays.
 * Errors    UNSUPPORTED: it is not there, a library that it needs is not, or it is of another version.
 * Lifetime  nrd_plugin is static: it begins with NRD_PLUGIN and has no end.
 */
#ifndef NRD_BASE_PLUGIN_H
#define NRD_BASE_PLUGIN_H

#include "base/error.h"

#include <pthread.h>

typedef struct nrd_plugin {
    const char *file;       /* "nereid_tls.so" */
    const char *symbol;     /* of the table; names the version too */
    const char *need;       /* who needs it, before " need(s) FILE": "downloads need" */
    const char *built_with; /* the packages that it is built with */
    /* An address in the library beside which it lies; NULL: nowhere. Then ../lib of the program's folder is looked at.
     * Where it is in neither, the system's loader looks for the name alone: programs outside an installation. */
    const void *beside;
    pthread_mutex_t mu;
    const void *table; /* guarded by mu; NULL until it was opened */
} nrd_plugin;

#define NRD_PLUGIN(...)                                                                            \
    {                                                                                              \
        .mu = PTHREAD_MUTEX_INITIALIZER, __VA_ARGS__                                               \
    }

/* *out_table: borrowed for ever. What could not be opened is tried again at the next call. */
nrd_error *nrd_plugin_open(nrd_plugin *p, const void **out_table) NRD_MUST_USE;

#endif
