/* SPDX-License-Identifier: Apache-2.0
 * What the service manager that started this process (systemd, or one with its protocols) is told and gives.
 * Source: sd_notify(3), sd_watchdog_enabled(3) and sd_listen_fds(3). All do nothing where there is none. */
#ifndef NRD_FRONTENDS_SERVICE_MANAGER_H
#define NRD_FRONTENDS_SERVICE_MANAGER_H

#include "base/error.h"

#include <stdbool.h>

/* Sends `state`, lines of NAME=VALUE ("READY=1"), to the socket in NOTIFY_SOCKET. Any thread. What cannot be sent
 * is lost: the service manager then acts as for a process that says nothing. */
void nrd_service_notify(const char *state);

/* If the service manager takes silence for death (WATCHDOG_USEC), a thread says three times in that time that we
 * live, as long as alive(arg) says so. NULL in *out where nobody asks. */
typedef struct nrd_watchdog nrd_watchdog;
nrd_error *nrd_watchdog_start(nrd_watchdog **out, bool (*alive)(void *arg), void *arg);
/* Waits for the thread. NULL is allowed. */
void nrd_watchdog_stop(nrd_watchdog *w);

#endif
