/* SPDX-License-Identifier: Apache-2.0
 * tools/installation.h - what has to stand around the program.
 *
 * Purpose   The program alone cannot serve: that is said before an engine is built.
 * Owner     The main thread.
 * Errors    NOT_FOUND names the first file that is missing.
 */
#ifndef NRD_TOOLS_INSTALLATION_H
#define NRD_TOOLS_INSTALLATION_H

#include "base/error.h"

nrd_error *nrd_tool_check_installation(void) NRD_MUST_USE;

#endif
