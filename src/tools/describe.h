/* SPDX-License-Identifier: Apache-2.0
 * tools/describe.h - the tables of all programs in one order, for pages, manuals and completion. */
#ifndef NRD_TOOLS_DESCRIBE_H
#define NRD_TOOLS_DESCRIBE_H

#include "base/str.h"
#include "tools/tools.h"

/* The verbs, then tritonserver; false behind the last. */
bool nrd_tool_program_at(size_t i, nrd_tool_table *out, const char **out_summary);
bool nrd_tool_is_server(const nrd_tool_table *t);
/* As users write it: with hyphens. */
void nrd_tool_put_option(nrd_str *out, const nrd_opt *o);

/* Writes nereid.1, nereid-VERB.1 and tritonserver.1 into dir, which is made where it is missing. */
nrd_error *nrd_tool_write_man(const char *dir) NRD_MUST_USE;

#endif
