/* SPDX-License-Identifier: Apache-2.0
 * guided/guided.h - structured output: which tokens may come next.
 *
 * Purpose   A guide (regular expression, JSON schema, grammar, any JSON object) becomes an automaton
 *           over bytes; walking the tokenizer's vocabulary through it gives the mask of tokens that
 *           keep the text on the way to a complete one. States and masks are made when first needed
 *           and kept. Text that leaves no choice is given as tokens, without a mask for each.
 * Owner     A vocabulary is immutable: any thread. A guide may be made on any thread; its states
 *           belong to one thread at a time together with all others of the same guide: their owner,
 *           or, between nrd_guide_lend and nrd_guide_give_back, who makes a mask for the owner.
 * Units     Masks: one bit a token, [(n_tokens + 31) / 32] words, set = allowed.
 * Errors    INVALID_ARG: the guide's text is wrong, with place and reason, or too large;
 *           UNSUPPORTED names a keyword or construct that is not implemented: what is accepted is
 *           also kept, so every complete text fits its guide.
 * Limits    GUIDE_TEXT, GUIDE_NODES, GUIDE_MARKS, GUIDE_STATES, GUIDE_PLACES, GUIDE_BYTES, GUIDE_WORK
 *           for each mask, GUIDE_COMPILE_MS (base/limits.h); behind these a compile, or a sequence, ends with
 *           an error that names the limit. 64 MiB of masks are kept, 256 levels of nesting in the
 *           text are offered.
 * Lifetime  vocabulary > guide > state. Guides are counted.
 * Sources   Thompson 1968 (regular expressions); Willard and Louf 2023 (vocabulary through an
 *           automaton); JSON Schema 2020-12; ECMA 262 (patterns); the grammar notation of GBNF.
 */
#ifndef NRD_GUIDED_GUIDED_H
#define NRD_GUIDED_GUIDED_H

#include "base/error.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct nrd_guide_vocab nrd_guide_vocab;
typedef struct nrd_guide nrd_guide;
typedef struct nrd_guide_state nrd_guide_state;

/* `get` gives the bytes of a token in running text, NULL or length 0: never allowed. */
nrd_error *nrd_guide_vocab_new(nrd_guide_vocab **out, int32_t n_tokens,
                               const char *(*get)(void *user, int32_t id, size_t *out_n),
                               void *user) NRD_MUST_USE;
/* The tokenizer's own way to cut a text that stands within a text: gives the number of ids, at most
 * `cap`; 0: it has none. For nrd_guide_jump; any thread must be allowed to call it. */
typedef size_t (*nrd_guide_encode)(void *user, const char *text, size_t n, int32_t *out, size_t cap);
void nrd_guide_vocab_set_encode(nrd_guide_vocab *v, nrd_guide_encode encode, void *user);
void nrd_guide_vocab_free(nrd_guide_vocab *v);

/* type: "json" (an object; text is not read), "json_schema", "regex", "ebnf_grammar", "structural_tag". */
nrd_error *nrd_guide_new(nrd_guide **out, const nrd_guide_vocab *v, const char *type,
                         const char *text) NRD_MUST_USE;
/* The same, but ends with an error (UNAVAILABLE) soon after *stop becomes true. */
nrd_error *nrd_guide_new_unless(nrd_guide **out, const nrd_guide_vocab *v, const char *type,
                                const char *text, const atomic_bool *stop) NRD_MUST_USE;
nrd_guide *nrd_guide_ref(nrd_guide *g);
void nrd_guide_unref(nrd_guide *g); /* NULL is fine */
/* The limit that was passed while it ran, by name, number and unit; NULL: none. Any thread. */
const char *nrd_guide_limit(const nrd_guide *g);
size_t nrd_guide_bytes(const nrd_guide *g); /* its memory, about; any thread */

nrd_guide_state *nrd_guide_state_new(nrd_guide *g); /* at the beginning; shares the guide. NULL: no memory */
nrd_guide_state *nrd_guide_state_copy(const nrd_guide_state *s);
void nrd_guide_state_free(nrd_guide_state *s);
/* Allowed tokens, *out_words of them by 32; borrows until the next call for a state of the guide.
 * NULL: a limit was passed. */
const uint32_t *nrd_guide_mask(nrd_guide_state *s, size_t *out_words);
bool nrd_guide_has_mask(const nrd_guide_state *s); /* the next call above finds it ready */
const nrd_guide *nrd_guide_state_guide(const nrd_guide_state *s);

/* The mask of a state, to be made by another thread. While a guide is lent, the owner of its states
 * must not ask about them or move them; it may make, copy and free them. */
typedef struct nrd_guide_loan {
    nrd_guide *guide; /* shares */
    uint32_t at;
} nrd_guide_loan;
nrd_guide_loan nrd_guide_lend(const nrd_guide_state *s); /* again and again, too */
/* By one thread at a time: false when *stop became true or until_ns (nrd_now_ns; 0: never) was over
 * first. What was found until then is kept, so that calls for the same state come to an end. */
bool nrd_guide_make_mask(const nrd_guide_loan *loan, const atomic_bool *stop, uint64_t until_ns);
void nrd_guide_give_back(nrd_guide_loan *loan);
bool nrd_guide_is_lent(const nrd_guide *g);   /* any thread */
bool nrd_guide_is_wanted(const nrd_guide *g); /* somebody has a state of it; any thread */
bool nrd_guide_accept(nrd_guide_state *s, int32_t token); /* false: not allowed, or a limit */
bool nrd_guide_is_complete(const nrd_guide_state *s);     /* the text may end here */
bool nrd_guide_is_final(nrd_guide_state *s);              /* and nothing can follow */

/* The bytes that must come next, while there is only one way on; at most `cap` of them. *out_final:
 * behind them nothing can follow. */
size_t nrd_guide_forced(nrd_guide_state *s, char *out, size_t cap, bool *out_final);
/* Tokens that the forced text is certain to go on with, as the tokenizer cuts it behind the tokens
 * `before` (the newest last; they end where the state stands). The last token of a forced text is left
 * to be chosen, since it may be the beginning of a longer one, unless nothing can follow it. The state
 * stays where it is. Gives their number, at most `cap`. */
size_t nrd_guide_jump(nrd_guide_state *s, const int32_t *before, size_t n_before, int32_t *out,
                      size_t cap);

/* For tests and tools: does the whole text fit? */
bool nrd_guide_matches(nrd_guide *g, const char *text, size_t n);

#endif
