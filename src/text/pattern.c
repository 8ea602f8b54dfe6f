/* SPDX-License-Identifier: Apache-2.0
 * Patterns that cut text into words. The expressions that published models use are recognised by
 * their exact text and have matchers written by hand, which read each byte about once; any other
 * expression is compiled by PCRE2. */
#include "text/internal.h"

#include <string.h>
#ifdef NRD_HAVE_PCRE2
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#endif

const char nrd_pattern_text_gpt2[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
const char nrd_pattern_text_llama3[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"
    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
const char nrd_pattern_text_qwen2[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|"
    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
const char nrd_pattern_text_deepseek[] =
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|"
    " ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
const char nrd_pattern_text_cjk[] = "[\xe4\xb8\x80-\xe9\xbe\xa5\xe3\x81\x80-\xe3\x82\x9f\xe3\x82\xa0-"
                                "\xe3\x83\xbf]+";
const char nrd_pattern_text_digits3[] = "\\p{N}{1,3}";
/* Kimi writes its letters as [...&&[^\p{Han}]]. */
#define KIMI_UPPER "(?:(?!\\p{Han})[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}])"
#define KIMI_LOWER "(?:(?!\\p{Han})[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}])"
const char nrd_pattern_text_kimi[] =
    "[\\p{Han}]+|[^\\r\\n\\p{L}\\p{N}]?" KIMI_UPPER "*" KIMI_LOWER "+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    "[^\\r\\n\\p{L}\\p{N}]?" KIMI_UPPER "+" KIMI_LOWER "*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\p{N}{1,3}|"
    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

/* ---- reading characters by class ---- */

enum { OTHER = 0 };

static inline uint8_t class_at(const char *s, size_t n, size_t *out_len)
{
    uint8_t c = (uint8_t)*s;
    uint32_t cp;
    if (c < 0x80) {
        *out_len = 1;
        return nrd_uni_flat[c];
    }
    *out_len = nrd_utf8_next(s, n, &cp);
    return nrd_uni_class(cp);
}

/* End of the run, from `at`, of characters whose class has a bit of `any` (or none, if !want). */
static inline size_t run(const char *s, size_t n, size_t at, uint8_t any, bool want)
{
    while (at < n) {
        size_t len;
        if (((class_at(s + at, n - at, &len) & any) != 0) != want) {
            break;
        }
        at += len;
    }
    return at;
}

static size_t run_newlines(const char *s, size_t n, size_t at)
{
    while (at < n && (s[at] == '\r' || s[at] == '\n')) {
        at++;
    }
    return at;
}

/* \s+(?!\S)|\s+ with s[0] a space: the run without its last character where a word follows. */
static size_t spaces(const char *s, size_t n, size_t end)
{
    if (end == n) {
        return end;
    }
    size_t last = end - 1;
    while (last > 0 && ((uint8_t)s[last] & 0xc0) == 0x80) {
        last--;
    }
    return last > 0 ? last : end;
}

/* \s*[\r\n]+|\s+(?!\S)|\s+ */
static size_t newlines_or_spaces(const char *s, size_t n)
{
    size_t end = run(s, n, 0, NRD_UNI_SPACE, true);
    for (size_t i = end; i-- > 0;) {
        if (s[i] == '\r' || s[i] == '\n') {
            return i + 1;
        }
    }
    return spaces(s, n, end);
}

static size_t contraction(const char *s, size_t n, bool any_case)
{
    if (n < 2 || s[0] != '\'') {
        return 0;
    }
    char a = s[1], b = n > 2 ? s[2] : '\0';
    if (any_case) {
        a = a >= 'A' && a <= 'Z' ? (char)(a + 32) : a;
        b = b >= 'A' && b <= 'Z' ? (char)(b + 32) : b;
        if (n > 2 && memcmp(s + 1, "\xc5\xbf", 2) == 0) {
            return 3; /* U+017F, the long s, folds to s */
        }
    }
    if (a == 's' || a == 't' || a == 'm' || a == 'd') {
        return 2;
    }
    return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

size_t nrd_pattern_gpt2(const char *s, size_t n)
{
    const uint8_t known = NRD_UNI_SPACE | NRD_UNI_L | NRD_UNI_N;
    size_t len, from = 0, end = contraction(s, n, false);
    if (end) {
        return end;
    }
    uint8_t c = class_at(s, n, &len);
    if (s[0] == ' ' && n > 1) {
        uint8_t next = class_at(s + 1, n - 1, &len);
        if (!(next & NRD_UNI_SPACE)) {
            c = next;
            from = 1;
        }
    }
    if (c & NRD_UNI_L) {
        return run(s, n, from + len, NRD_UNI_L, true);
    }
    if (c & NRD_UNI_N) {
        return run(s, n, from + len, NRD_UNI_N, true);
    }
    if (!(c & NRD_UNI_SPACE)) {
        return run(s, n, from + len, known, false);
    }
    return spaces(s, n, run(s, n, 0, NRD_UNI_SPACE, true));
}

static size_t digits(const char *s, size_t n, int max_digits)
{
    size_t at = 0, len;
    for (int i = 0; at < n && (max_digits == 0 || i < max_digits); i++) {
        if (!(class_at(s + at, n - at, &len) & NRD_UNI_N)) {
            break;
        }
        at += len;
    }
    return at;
}

static size_t llama3(const char *s, size_t n, int max_digits)
{
    const uint8_t known = NRD_UNI_SPACE | NRD_UNI_L | NRD_UNI_N;
    size_t len, next_len = 0, end = contraction(s, n, true);
    if (end) {
        return end;
    }
    uint8_t c = class_at(s, n, &len), next = 0;
    if (c & NRD_UNI_L) {
        return run(s, n, len, NRD_UNI_L, true);
    }
    if (c & NRD_UNI_N) {
        return digits(s, n, max_digits);
    }
    if (len < n) {
        next = class_at(s + len, n - len, &next_len);
        if (!(c & NRD_UNI_NEWLINE) && (next & NRD_UNI_L)) {
            return run(s, n, len + next_len, NRD_UNI_L, true);
        }
    }
    if (!(c & NRD_UNI_SPACE)) {
        return run_newlines(s, n, run(s, n, len, known, false));
    }
    if (s[0] == ' ' && len < n && !(next & known)) {
        return run_newlines(s, n, run(s, n, len + next_len, known, false));
    }
    return newlines_or_spaces(s, n);
}

static bool is_ascii_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* 0: no alternative matches here (digits, most control characters). */
static size_t deepseek(const char *s, size_t n)
{
    const uint8_t letters = NRD_UNI_L | NRD_UNI_M, marks = NRD_UNI_P | NRD_UNI_S;
    size_t len, next_len = 0;
    uint8_t c = class_at(s, n, &len), next = 0;
    if (len == 1 && (c & marks) && n > 1 && is_ascii_letter(s[1])) {
        size_t end = 2;
        while (end < n && is_ascii_letter(s[end])) {
            end++;
        }
        return end;
    }
    if (len < n) {
        next = class_at(s + len, n - len, &next_len);
    }
    if ((c & letters) || (!(c & (NRD_UNI_NEWLINE | marks)) && (next & letters))) {
        return run(s, n, len, letters, true);
    }
    if (c & marks) {
        return run_newlines(s, n, run(s, n, len, marks, true));
    }
    if (s[0] == ' ' && (next & marks)) {
        return run_newlines(s, n, run(s, n, len + next_len, marks, true));
    }
    return c & NRD_UNI_SPACE ? newlines_or_spaces(s, n) : 0;
}

static size_t cjk(const char *s, size_t n)
{
    size_t at = 0;
    while (at < n) {
        uint32_t cp;
        size_t len = nrd_utf8_next(s + at, n - at, &cp);
        if (!((cp >= 0x4e00 && cp <= 0x9fa5) || (cp >= 0x3040 && cp <= 0x30ff))) {
            break;
        }
        at += len;
    }
    return at;
}

/* ---- PCRE2 ---- */

#ifdef NRD_HAVE_PCRE2

static const char space_list[] = "\\t-\\r \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}"
                                 "\\x{202f}\\x{205f}\\x{3000}";
/* \w of Oniguruma: with the superscripts and fractions of Latin-1 and the circled letters, but no
 * other number or symbol (compared code point by code point with the tokenizers library). */
static const char word_list[] = "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}"
                                "\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}"
                                "\\x{1f170}-\\x{1f189}";

/* One escape of Oniguruma (Ruby) syntax at s[0] = backslash. Returns the bytes read. */
static nrd_error *translate_escape(const char *s, size_t n, bool in_class, nrd_str *out, size_t *used)
{
    *used = 2;
    if (n < 2) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "the expression ends with a backslash");
    }
    const char *list = s[1] == 's' || s[1] == 'S'   ? space_list
                       : s[1] == 'w' || s[1] == 'W' ? word_list
                       : s[1] == 'h'                ? "0-9A-Fa-f"
                                                    : NULL;
    bool negated = s[1] == 'S' || s[1] == 'W';
    if (list && negated && in_class) {
        list = NULL; /* cannot be spelled out inside a class; PCRE2's own differs in U+180E only */
    }
    if (list) {
        nrd_str_printf(out, in_class ? "%s%s" : "[%s%s]", negated ? "^" : "", list);
        return NULL;
    }
    if (s[1] == 'u') {
        if (n < 6 || s[2] == '{') {
            return nrd_errorf(NRD_ERR_UNSUPPORTED, "\\u in this form");
        }
        nrd_str_printf(out, "\\x{%.4s}", s + 2);
        *used = 6;
        return NULL;
    }
    nrd_str_append(out, s, 2);
    return NULL;
}

static nrd_error *translate(const char *s, size_t n, nrd_str *out)
{
    int depth = 0; /* of character classes */
    for (size_t i = 0; i < n;) {
        if (s[i] == '\\') {
            size_t used;
            NRD_TRY(translate_escape(s + i, n - i, depth > 0, out, &used));
            i += used;
            continue;
        }
        if (s[i] == '[') {
            if (depth > 0 && (i + 1 >= n || s[i + 1] != ':')) {
                return nrd_errorf(NRD_ERR_UNSUPPORTED, "character classes inside each other");
            }
            depth++;
        } else if (s[i] == ']' && depth > 0) {
            depth--;
        } else if (s[i] == '&' && depth > 0 && i + 1 < n && s[i + 1] == '&') {
            return nrd_errorf(NRD_ERR_UNSUPPORTED, "&& in character classes");
        }
        nrd_str_putc(out, s[i++]);
    }
    return NULL;
}

static nrd_error *compile(nrd_tok_pattern *p)
{
    nrd_str text = {0};
    int code = 0;
    PCRE2_SIZE at = 0;
    PCRE2_UCHAR message[128];

    nrd_error *err = translate(p->text, p->n, &text);
    err = err ? err : nrd_str_error(&text);
    if (err) {
        nrd_str_fini(&text);
        return nrd_error_wrap(err, "regex '%s'", p->text);
    }
    /* Ruby's ^ and $ are those of lines */
    p->re = pcre2_compile((PCRE2_SPTR)nrd_str_cstr(&text), text.len,
                          PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &code, &at, NULL);
    nrd_str_fini(&text);
    if (!p->re) {
        pcre2_get_error_message(code, message, sizeof message);
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "regex '%s': %s", p->text, (const char *)message);
    }
    pcre2_jit_compile(p->re, PCRE2_JIT_COMPLETE); /* without JIT it is interpreted */
    return NULL;
}

static void match_free(void *match)
{
    pcre2_match_data_free(match);
}

/* The match data of a thread, for any expression: only the whole match is asked for. */
static pcre2_match_data *match_data(nrd_tok_scratch *sc)
{
    if (!sc->match) {
        sc->match_free = match_free;
        sc->match = pcre2_match_data_create(1, NULL);
    }
    return sc->match;
}

static bool search(const nrd_tok_pattern *p, const char *s, size_t n, size_t from,
                   size_t *out_start, size_t *out_end)
{
    nrd_tok_scratch *sc = nrd_tok_scratch_get(); /* who encodes has it already */
    pcre2_match_data *data = sc ? match_data(sc) : NULL;
    if (!data) {
        if (sc) {
            sc->no_memory = true;
        }
        return false;
    }
    while (from <= n) {
        /* the text is known to be valid UTF-8 */
        int rc = pcre2_match(p->re, (PCRE2_SPTR)s, n, from, PCRE2_NO_UTF_CHECK, data, NULL);
        if (rc < 0) {
            sc->no_memory = sc->no_memory || rc == PCRE2_ERROR_NOMEMORY;
            return false;
        }
        const PCRE2_SIZE *ends = pcre2_get_ovector_pointer(data);
        if (ends[1] > ends[0]) {
            *out_start = ends[0];
            *out_end = ends[1];
            return true;
        }
        uint32_t cp;
        if (ends[1] >= n) {
            return false;
        }
        from = ends[1] + nrd_utf8_next(s + ends[1], n - ends[1], &cp);
    }
    return false;
}

#else

static nrd_error *compile(nrd_tok_pattern *p)
{
    return nrd_errorf(NRD_ERR_UNSUPPORTED, "regex '%s': this build has no PCRE2", p->text);
}

static bool search(const nrd_tok_pattern *p, const char *s, size_t n, size_t from,
                   size_t *out_start, size_t *out_end)
{
    (void)p, (void)s, (void)n, (void)from, (void)out_start, (void)out_end;
    return false;
}

#endif

/* ---- functions for other files ---- */

nrd_error *nrd_pattern_init(nrd_tok_pattern *p, bool regex, const char *text, size_t n)
{
    static const struct {
        const char *text;
        nrd_tok_pattern_kind kind;
        int max_digits;
    } known[] = {
        {nrd_pattern_text_gpt2, PATTERN_GPT2, 0},      {nrd_pattern_text_llama3, PATTERN_LLAMA3, 3},
        {nrd_pattern_text_qwen2, PATTERN_LLAMA3, 1},   {nrd_pattern_text_deepseek, PATTERN_DEEPSEEK, 0},
        {nrd_pattern_text_cjk, PATTERN_CJK, 0},        {nrd_pattern_text_digits3, PATTERN_DIGITS, 3},
        {"\\p{N}", PATTERN_DIGITS, 1},
    };
    if (n == 0 || n > 65536) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "a pattern of %zu bytes", n);
    }
    NRD_TRY(nrd_tok_text_copy(&p->text, &p->n, text, n));
    p->kind = PATTERN_STRING;
    if (!regex) {
        return NULL;
    }
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strlen(known[i].text) == n && memcmp(known[i].text, text, n) == 0) {
            p->kind = known[i].kind;
            p->max_digits = known[i].max_digits;
            return NULL;
        }
    }
    p->kind = PATTERN_REGEX;
    return compile(p);
}

void nrd_pattern_fini(nrd_tok_pattern *p)
{
#ifdef NRD_HAVE_PCRE2
    pcre2_code_free(p->re);
#endif
    free(p->text);
    memset(p, 0, sizeof *p);
}

static size_t match_at(const nrd_tok_pattern *p, const char *s, size_t n)
{
    switch (p->kind) {
    case PATTERN_GPT2:
        return nrd_pattern_gpt2(s, n);
    case PATTERN_LLAMA3:
        return llama3(s, n, p->max_digits);
    case PATTERN_DIGITS:
        return digits(s, n, p->max_digits);
    case PATTERN_DEEPSEEK:
        return deepseek(s, n);
    case PATTERN_CJK:
        return cjk(s, n);
    case PATTERN_STRING:
    case PATTERN_REGEX:
        break;
    }
    return 0;
}

bool nrd_pattern_find(const nrd_tok_pattern *p, const char *s, size_t n, size_t from,
                      size_t *out_start, size_t *out_end)
{
    if (p->kind == PATTERN_STRING) {
        const char *hit = from < n ? memmem(s + from, n - from, p->text, p->n) : NULL;
        if (hit) {
            *out_start = (size_t)(hit - s);
            *out_end = *out_start + p->n;
        }
        return hit != NULL;
    }
    if (p->kind == PATTERN_REGEX) {
        return search(p, s, n, from, out_start, out_end);
    }
    while (from < n) {
        size_t len = match_at(p, s + from, n - from);
        if (len) {
            *out_start = from;
            *out_end = from + len;
            return true;
        }
        uint32_t cp;
        from += nrd_utf8_next(s + from, n - from, &cp);
    }
    return false;
}
