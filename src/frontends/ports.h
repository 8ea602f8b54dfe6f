/* SPDX-License-Identifier: Apache-2.0
 * frontends/ports.h - whether a server can have its ports, asked before its models are loaded, which may take minutes.
 *
 * Purpose   A look only: nothing listens, so that nobody is taken for served before there are models. A port that somebody
 *           takes meanwhile is told when it is opened.
 * Owner     The main thread.
 * Errors    UNAVAILABLE, INVALID_ARG with the address, the reason and the option.
 */
#ifndef NRD_FRONTENDS_PORTS_H
#define NRD_FRONTENDS_PORTS_H

#include "base/error.h"
#include "frontends/options_table.h"

/* Passed sockets (frontends/passed_sockets.h) were taken before. address_option: that which errors name; NULL: each service's own. */
nrd_error *nrd_ports_check(const nrd_options *o, const char *address_option) NRD_MUST_USE;

#endif
