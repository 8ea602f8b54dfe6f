/* SPDX-License-Identifier: Apache-2.0
 * What structured output costs: compiling, the mask of a token when its state is new and when it is
 * known, and guides that are meant to be too large.
 *
 *   bench_guided TOKENIZER        a GGUF file, a tokenizer.json or a folder
 *   bench_guided random:150000    all bytes, and so many tokens of random words, numbers and signs
 *
 * Texts are drawn evenly from what the masks allow, 64 of at most 256 tokens a guide. */
#include "base/mem.h"
#include "base/str.h"
#include "guided/guided.h"
#include "text/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char *token_bytes(void *user, int32_t id, size_t *out_n)
{
    const nrd_tokenizer *t = user;
    if (nrd_tokenizer_is_special(t, id)) {
        *out_n = 0;
        return NULL;
    }
    return nrd_tokenizer_token_bytes(t, id, out_n);
}

typedef struct random_vocab {
    char (*text)[16];
    int32_t n;
} random_vocab;

static void make_random(random_vocab *v, int32_t n)
{
    static const char letters[] = "eeeeaaaiiooutttnnnsssrrrlllddcmpfgbhvykwxqjz";
    static const char *const signs[] = {".", ",", "\"", "\\", "{", "}", "[", "]", ":", "\n", "\xc3\xa9", "\xe2\x82\xac",
                                        "\xe4\xbd\xa0", "_", "-", "0", "1", "27"};
    uint64_t seed = 42;
    v->n = n;
    v->text = nrd_xcalloc((size_t)n + 1, sizeof *v->text);
    for (int32_t i = 0; i < n; i++) {
        char *s = v->text[i];
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        uint64_t r = seed >> 24;
        size_t len = 0, letters_n = 1 + r % 9;
        if (i < 256) {
            s[0] = (char)i;
            continue;
        }
        if (r >> 8 & 1) {
            s[len++] = ' ';
        }
        for (size_t k = 0; k < letters_n; k++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            s[len++] = letters[(seed >> 33) % (sizeof letters - 1)];
        }
        if (r >> 10 & 1) { /* every second one has a sign at its end */
            const char *sign = signs[(r >> 12) % (sizeof signs / sizeof signs[0])];
            memcpy(s + len, sign, strlen(sign));
        }
    }
}

static const char *random_bytes(void *user, int32_t id, size_t *out_n)
{
    const random_vocab *v = user;
    *out_n = id < 256 ? 1 : strlen(v->text[id]);
    return v->text[id];
}

/* Of this thread: other programs on its cores do not count. */
static uint64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static double ms_since(uint64_t from)
{
    return (double)(cpu_ns() - from) / 1e6;
}

static int32_t pick(const uint32_t *mask, size_t words, uint64_t *seed)
{
    uint32_t n = 0;
    for (size_t w = 0; w < words; w++) {
        n += (uint32_t)__builtin_popcount(mask[w]);
    }
    if (n == 0) {
        return -1;
    }
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    uint32_t k = (uint32_t)(*seed >> 33) % n;
    for (size_t w = 0; w < words; w++) {
        uint32_t c = (uint32_t)__builtin_popcount(mask[w]), m = mask[w];
        if (k < c) {
            while (k-- > 0) {
                m &= m - 1;
            }
            return (int32_t)(w * 32) + __builtin_ctz(m);
        }
        k -= c;
    }
    return -1;
}

/* One walk of all texts; gives the time in masks and accepts, and their number. *first: of the first
 * text, a token. */
static double walk(nrd_guide *g, uint64_t seed, size_t *steps, double *longest, double *first)
{
    double sum = 0;
    for (int i = 0; i < 64; i++) {
        nrd_guide_state *s = nrd_guide_state_new(g);
        for (int k = 0; k < 256 && !nrd_guide_is_final(s); k++) {
            size_t words = 0;
            uint64_t from = cpu_ns();
            const uint32_t *mask = nrd_guide_mask(s, &words);
            double spent = ms_since(from);
            int32_t id = mask ? pick(mask, words, &seed) : -1;
            from = cpu_ns();
            if (id < 0 || !nrd_guide_accept(s, id)) {
                break;
            }
            spent += ms_since(from);
            sum += spent;
            *longest = spent > *longest ? spent : *longest;
            ++*steps;
        }
        nrd_guide_state_free(s);
        *first = i == 0 ? sum / (double)(*steps ? *steps : 1) : *first;
    }
    return sum;
}

static void measure(const nrd_guide_vocab *v, const char *name, const char *type, const char *text)
{
    nrd_guide *g = NULL;
    uint64_t from = cpu_ns();
    nrd_error *err = nrd_guide_new(&g, v, type, text);
    double compile = ms_since(from), long_new = 0, long_known = 0, first = 0, again = 0;
    size_t n_new = 0, n_known = 0;

    if (err) {
        printf("%-22s %8zu bytes  refused in %.2f ms: %s\n", name, strlen(text), compile,
               nrd_error_message(err));
        nrd_error_free(err);
        return;
    }
    double fresh = walk(g, 1, &n_new, &long_new, &first);
    double known = walk(g, 1, &n_known, &long_known, &again);
    printf("%-22s %8zu bytes  compile %7.2f ms  token: first text %7.4f ms, 64 texts %8.4f ms (longest %.2f), known %.5f ms%s\n", name,
           strlen(text), compile, first, fresh / (double)(n_new ? n_new : 1), long_new,
           known / (double)(n_known ? n_known : 1), nrd_guide_limit(g) ? "  LIMIT PASSED" : "");
    nrd_guide_unref(g);
}

static char *large_schema(size_t bytes)
{
    nrd_str s = {0};
    nrd_str_puts(&s, "{\"type\":\"object\",\"additionalProperties\":false,\"properties\":{");
    int n = 0;
    for (; s.len < bytes * 9 / 10; n++) {
        nrd_str_printf(&s, "%s\"field_%d\":{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\","
                       "\"maxLength\":%d},\"size\":{\"type\":\"integer\"},\"kind\":{\"enum\":[\"a%d\",\"b\",null]},"
                       "\"list\":{\"type\":\"array\",\"items\":{\"type\":\"number\"}}},\"required\":[\"name\",\"size\"],"
                       "\"additionalProperties\":false}", n ? "," : "", n, 20 + n, n);
    }
    nrd_str_puts(&s, "},\"required\":[");
    for (int i = 0; i < n; i++) {
        nrd_str_printf(&s, "%s\"field_%d\"", i ? "," : "", i);
    }
    nrd_str_puts(&s, "]}");
    return nrd_str_steal(&s);
}

static char *repeat(const char *s, size_t n, const char *end)
{
    nrd_str out = {0};
    for (size_t i = 0; i < n; i++) {
        nrd_str_puts(&out, s);
    }
    nrd_str_puts(&out, end);
    return nrd_str_steal(&out);
}

int main(int argc, char **argv)
{
    nrd_tokenizer *t = NULL;
    nrd_guide_vocab *v = NULL;
    random_vocab random = {0};
    nrd_error *err = NULL;
    if (argc == 2 && strncmp(argv[1], "random:", 7) == 0) {
        make_random(&random, (int32_t)strtol(argv[1] + 7, NULL, 10));
    } else {
        err = argc == 2 ? nrd_tokenizer_open(&t, argv[1])
                        : nrd_errorf(NRD_ERR_INVALID_ARG, "usage: bench_guided TOKENIZER");
    }
    int32_t n_tokens = random.n;
    uint64_t from = cpu_ns();
    if (!err) {
        n_tokens = t ? nrd_tokenizer_vocab_size(t) : n_tokens;
        err = t ? nrd_guide_vocab_new(&v, n_tokens, token_bytes, t)
                : nrd_guide_vocab_new(&v, n_tokens, random_bytes, &random);
    }
    if (err) {
        fprintf(stderr, "%s\n", nrd_error_message(err));
        nrd_error_free(err);
        return 2;
    }
    printf("vocabulary of %d tokens: %.1f ms\n", n_tokens, ms_since(from));
    char *large = large_schema(10240), *nested = repeat("(a|b)*(", 200, "x"), *deep = repeat("[", 100000, "");
    char *closed = repeat(")", 200, ""), *both = nrd_xasprintf("%s%s", nested, closed);
    measure(v, "any JSON object", "json", "");
    measure(v, "small schema", "json_schema",
            "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"age\":{\"type\":\"integer\"}},"
            "\"required\":[\"name\",\"age\"]}");
    measure(v, "schema of 10 kB", "json_schema", large);
    measure(v, "date", "regex", "[0-9]{4}-[01][0-9]-[0-3][0-9]");
    measure(v, "[^,]+(, [a-z ]+)*", "regex", "[^,]+(, [a-z ]+)*");
    measure(v, "grammar", "ebnf_grammar", "root ::= sum\nsum ::= n (\" + \" n)*\nn ::= [0-9]+ | \"(\" sum \")\"");
    measure(v, "(a+)+$", "regex", "(a+)+b");
    measure(v, "(x+x+)+y", "regex", "(x+x+)+y");
    measure(v, "((a{1000}){1000})", "regex", "((a{1000}){1000}){1000}");
    measure(v, "(.*a){20}", "regex", "(.*a){20}.{20}");
    measure(v, "[ab]*a[ab]{24}", "regex", "[ab]*a[ab]{24}");
    measure(v, "nested groups", "regex", both);
    measure(v, "deep JSON", "json_schema", deep);
    free(large);
    free(nested);
    free(closed);
    free(both);
    free(deep);
    nrd_guide_vocab_free(v);
    nrd_tokenizer_close(t);
    free(random.text);
    return 0;
}
