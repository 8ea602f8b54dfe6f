/* SPDX-License-Identifier: Apache-2.0
 * tools/ports.h - whether a server can have its ports, asked before its models are built.
 * Errors: UNAVAILABLE with the address, the reason and the option. */
#ifndef NRD_TOOLS_PORTS_H
#define NRD_TOOLS_PORTS_H

#include "base/error.h"
#include "frontends/options_table.h"

/* Sockets that a service manager passed are taken. */
nrd_error *nrd_ports_check(nrd_options *s) NRD_MUST_USE;

#endif
