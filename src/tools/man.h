/* SPDX-License-Identifier: Apache-2.0
 * tools/man.h - manual pages of all programs. */
#ifndef NRD_TOOLS_MAN_H
#define NRD_TOOLS_MAN_H

#include "base/error.h"

/* Writes nereid.1, nereid-VERB.1 and tritonserver.1 into dir, which is made where it is missing. */
nrd_error *nrd_tool_write_man(const char *dir) NRD_MUST_USE;

#endif
