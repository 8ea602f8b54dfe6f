/* SPDX-License-Identifier: Apache-2.0
 * Input: a byte that picks the type, then a guide. Compiling ends with an automaton or an error; walks
 * through its masks only take allowed tokens, and what they say is complete fits the guide. */
#include "base/str.h"
#include "guided/guided.h"
#include "json_swap.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { N_TOKENS = 258 };

static const char *get_token(void *user, int32_t id, size_t *out_n)
{
    static char bytes[256];
    (void)user;
    *out_n = id < 256 ? 1 : id == 256 ? 2 : 0;
    if (id < 256) {
        bytes[id] = (char)id;
    }
    return id < 256 ? &bytes[id] : id == 256 ? "{\"" : NULL;
}

static size_t encode(void *user, const char *text, size_t n, int32_t *out, size_t cap)
{
    size_t at = 0, k = 0;
    (void)user;
    while (at < n && k < cap) {
        bool two = n - at > 1 && text[at] == '{' && text[at + 1] == '"';
        out[k++] = two ? 256 : (uint8_t)text[at];
        at += two ? 2 : 1;
    }
    return k;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const types[] = {"regex", "json_schema", "ebnf_grammar", "json", "structural_tag"};
    static nrd_guide_vocab *v;
    nrd_guide *g = NULL;
    nrd_str text = {0};

    if (!v && nrd_guide_vocab_new(&v, N_TOKENS, get_token, NULL)) {
        abort();
    }
    nrd_guide_vocab_set_encode(v, encode, NULL);
    if (size < 1 || size > 4096) {
        return 0;
    }
    char *guide = strndup((const char *)data + 1, size - 1);
    nrd_error *err = nrd_guide_new(&g, v, types[data[0] % 5], guide);
    free(guide);
    if (err) {
        nrd_error_free(err);
        return 0;
    }
    nrd_guide_state *s = nrd_guide_state_new(g);
    uint32_t seed = 12345;
    for (int n = 0; n < 24 && !nrd_guide_is_final(s); n++) {
        size_t words = 0;
        const uint32_t *mask = nrd_guide_mask(s, &words);
        int32_t pick = -1, seen = 0;
        for (int32_t t = 0; mask && t < N_TOKENS; t++) {
            if (mask[t / 32] >> (t % 32) & 1) {
                seed = seed * 1664525u + 1013904223u;
                pick = seed % (uint32_t)++seen == 0 ? t : pick;
            }
        }
        if (pick < 0) {
            break;
        }
        /* Forced tokens are accepted one after the other. */
        int32_t forced[16];
        size_t n_forced = nrd_guide_jump(s, NULL, 0, forced, 16);
        nrd_guide_state *ahead = nrd_guide_state_copy(s);
        for (size_t i = 0; i < n_forced && !nrd_guide_limit(g); i++) {
            if (!nrd_guide_accept(ahead, forced[i]) && !nrd_guide_limit(g)) {
                abort();
            }
        }
        nrd_guide_state_free(ahead);
        size_t len = 0;
        const char *p = get_token(NULL, pick, &len);
        if (!nrd_guide_accept(s, pick) && !nrd_guide_limit(g)) {
            abort();
        }
        nrd_str_append(&text, p, len);
        if (nrd_guide_is_complete(s) && !nrd_guide_limit(g) &&
            !nrd_guide_matches(g, text.data, text.len) && !nrd_guide_limit(g)) {
            abort();
        }
    }
    nrd_str_fini(&text);
    nrd_guide_state_free(s);
    nrd_guide_unref(g);
    return 0;
}
