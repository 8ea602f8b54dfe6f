/* SPDX-License-Identifier: Apache-2.0
 * tools/model_facts.h - what a model is, in a few words, from the heads of its files. One thread.
 * What cannot be read is "" or 0: no model of ours, or a damaged one. */
#ifndef NRD_TOOLS_MODEL_FACTS_H
#define NRD_TOOLS_MODEL_FACTS_H

#include "base/str.h"

#include <stdint.h>
#include <time.h>

typedef struct nrd_model_facts {
    char type[32];       /* of most of its weights */
    char family[64];     /* "LlamaForCausalLM" */
    char licence[64];
    uint64_t parameters;
} nrd_model_facts;

/* dir: where a README.md may say the licence; NULL: nowhere. */
void nrd_model_facts_read(nrd_model_facts *out, const char *path, const char *dir);
/* "1.24 B", "135 M". */
const char *nrd_human_count(uint64_t n, char out[32]);
/* "2026-11-23 04:10" here; or in UTC as JSON has it. */
const char *nrd_human_time(time_t t, char out[40]);
void nrd_json_put_time(nrd_str *out, time_t t);

#endif
