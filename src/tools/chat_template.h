/* SPDX-License-Identifier: Apache-2.0
 * tools/chat_template.h - --chat-template: a file, or the name of a template that is built in. */
#ifndef NRD_TOOLS_CHAT_TEMPLATE_H
#define NRD_TOOLS_CHAT_TEMPLATE_H

#include "base/error.h"

/* *out: its text, owned. NOT_FOUND: neither a file nor a name. */
nrd_error *nrd_tool_chat_template(const char *file_or_name, char **out) NRD_MUST_USE;

#endif
