/* SPDX-License-Identifier: Apache-2.0
 * tools/load/prompts_internal.h - between the files of prompts.h. */
#ifndef NRD_TOOLS_LOAD_PROMPTS_INTERNAL_H
#define NRD_TOOLS_LOAD_PROMPTS_INTERNAL_H

#include "tools/load/prompts.h"

nrd_error *nrd_prompts_add(nrd_prompts *p, nrd_prompt row) NRD_MUST_USE; /* copies */

#endif
