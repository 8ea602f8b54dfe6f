/* SPDX-License-Identifier: Apache-2.0
 * core/server.h - the server: what is there once in a process that serves.
 *
 * Owner     Its creator. Any thread.
 */
#ifndef NRD_CORE_SERVER_H
#define NRD_CORE_SERVER_H

#include "base/error.h"
#include "core/objects.h"
#include "core/options.h"

typedef enum {
    NRD_SERVER_STARTING,
    NRD_SERVER_READY,
    NRD_SERVER_EXITING,
    NRD_SERVER_STOPPED,
} nrd_server_state;

nrd_error *nrd_server_new(nrd_server **out, const nrd_server_options *opt) NRD_MUST_USE;
nrd_error *nrd_server_stop(nrd_server *s) NRD_MUST_USE;
void nrd_server_free(nrd_server *s);
nrd_context *nrd_server_context(nrd_server *s);
nrd_server_state nrd_server_get_state(const nrd_server *s);
nrd_error *nrd_server_require_ready(nrd_server *s) NRD_MUST_USE;
extern const char *const nrd_server_extensions[]; /* NULL-terminated */

#endif
