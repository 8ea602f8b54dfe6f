/* SPDX-License-Identifier: Apache-2.0
 * tools/load/prompts.h - what is asked: prompts made up, or read from files.
 *
 * Purpose   Random prompts of given lengths, maybe with beginnings that groups of them share; files of
 *           conversations (ShareGPT), of {input, instruction, output}, and lines of JSON.
 * Owner     One thread.
 * Units     Lengths in tokens. Without a tokenizer a word counts as one: the made-up text has only
 *           words that most vocabularies hold as a whole.
 * Errors    INVALID_ARG with the file and the entry that cannot be read.
 * Lifetime  make or read, then fini; prompts borrow from the set.
 */
#ifndef NRD_TOOLS_LOAD_PROMPTS_H
#define NRD_TOOLS_LOAD_PROMPTS_H

#include "base/mem.h"
#include "text/tokenizer.h"
#include "tools/load/random.h"

/* "128", "normal:MEAN,DEVIATION", "uniform:LOW,HIGH". */
typedef struct nrd_lengths {
    enum { NRD_LENGTH_FIXED, NRD_LENGTH_NORMAL, NRD_LENGTH_UNIFORM } kind;
    double a, b;
} nrd_lengths;
nrd_error *nrd_lengths_parse(nrd_lengths *out, const char *name, const char *text) NRD_MUST_USE;
int32_t nrd_lengths_draw(const nrd_lengths *l, nrd_random *r); /* at least 1 */

typedef struct nrd_prompt {
    const char *text;
    size_t n_text;
    const int32_t *ids; /* [n_in], or NULL: text only */
    int32_t n_in;       /* tokens */
    int32_t max_tokens;
    const char *reference; /* the answer that the file expects, or NULL */
} nrd_prompt;

typedef struct nrd_prompts {
    nrd_prompt *v; /* [n] */
    size_t n, cap;
    nrd_arena memory;
} nrd_prompts;

typedef struct nrd_prompts_config {
    const nrd_tokenizer *tokenizer; /* or NULL */
    bool wants_ids;                 /* ids instead of text */
    int32_t vocab;                  /* made-up ids are below; 0: the tokenizer's size, or 32000 */
    nrd_lengths in, out;            /* of made-up prompts; out also where a file does not say */
    bool out_is_given;              /* out stands before what a file says */
    int32_t prefix_len, n_prefixes; /* the first tokens of made-up prompts, shared by groups */
    int32_t max_in;                 /* longer ones of a file are left out; 0: no limit */
    size_t n;                       /* how many; of a file: at most, 0: all */
    uint64_t seed;
} nrd_prompts_config;

nrd_error *nrd_prompts_make(nrd_prompts *p, const nrd_prompts_config *c) NRD_MUST_USE;
/* A JSON list or lines of JSON. An entry is text alone, or an object with "prompt", "text_input", "text",
 * "input" (with "instruction" behind it), "messages" or "conversations", or, where ids are wanted, "input_ids"; maybe "max_tokens" or
 * "output_length"; maybe "output": the expected answer, whose length is then asked for. Up to 1 GiB. */
nrd_error *nrd_prompts_read(nrd_prompts *p, const char *path,
                            const nrd_prompts_config *c) NRD_MUST_USE;
void nrd_prompts_fini(nrd_prompts *p);

/* Tokens of a text: counted, or without a tokenizer its words times 1.3, as the published load
 * scripts have it. */
int32_t nrd_prompt_tokens(const nrd_tokenizer *t, const char *text, size_t n);

#endif
