/* SPDX-License-Identifier: Apache-2.0
 * tools/talk_set.h - /set: how the answers of a conversation are drawn. */
#ifndef NRD_TOOLS_TALK_SET_H
#define NRD_TOOLS_TALK_SET_H

#include "base/error.h"
#include "base/str.h"
#include "text/sampling.h"

typedef struct nrd_talk_values {
    nrd_sampling *sampling; /* borrows */
    int32_t max_tokens;     /* most new tokens of an answer */
    bool has_seed;          /* else each answer has its own */
    uint64_t seed;
} nrd_talk_values;

/* INVALID_ARG: an unknown name, or what the value must be; nothing has changed then. */
nrd_error *nrd_talk_set(nrd_talk_values *v, const char *name, const char *value) NRD_MUST_USE;
void nrd_talk_put_settings(const nrd_talk_values *v, nrd_str *out); /* a line each */

#endif
