/* SPDX-License-Identifier: Apache-2.0
 * Questions about a character: its class from the generated table, spread out once for quick looks;
 * normal forms, case and grapheme borders from utf8proc where that is there. */
#include "text/unicode.h"

#include "base/mem.h"
#include "text/unicode_table.h"

#include <pthread.h>
#include <string.h>
#ifdef NRD_HAVE_UTF8PROC
#include <utf8proc.h>
#endif

enum { N_RUNS = sizeof unicode_runs / sizeof unicode_runs[0], N_CATEGORIES = 30 };

uint8_t nrd_uni_flat[NRD_UNI_FLAT];

static const uint8_t class_of_category[N_CATEGORIES] = {
    [1] = NRD_UNI_L | NRD_UNI_WORD,  [2] = NRD_UNI_L | NRD_UNI_WORD,
    [3] = NRD_UNI_L | NRD_UNI_WORD,  [4] = NRD_UNI_L | NRD_UNI_WORD,
    [5] = NRD_UNI_L | NRD_UNI_WORD,  [6] = NRD_UNI_M | NRD_UNI_WORD,
    [7] = NRD_UNI_M | NRD_UNI_WORD,  [8] = NRD_UNI_M | NRD_UNI_WORD,
    [9] = NRD_UNI_N | NRD_UNI_WORD,  [10] = NRD_UNI_N | NRD_UNI_WORD,
    [11] = NRD_UNI_N,                [12] = NRD_UNI_P | NRD_UNI_WORD,
    [13] = NRD_UNI_P,                [14] = NRD_UNI_P,
    [15] = NRD_UNI_P,                [16] = NRD_UNI_P,
    [17] = NRD_UNI_P,                [18] = NRD_UNI_P,
    [19] = NRD_UNI_S,                [20] = NRD_UNI_S,
    [21] = NRD_UNI_S,                [22] = NRD_UNI_S,
    [23] = NRD_UNI_SPACE,            [24] = NRD_UNI_SPACE,
    [25] = NRD_UNI_SPACE,
};

static void expand_tables(void)
{
    static const uint32_t control_spaces[] = {'\t', '\n', '\v', '\f', '\r', 0x85};
    for (size_t r = 0; r < N_RUNS; r++) {
        uint32_t from = unicode_runs[r] >> 5;
        uint32_t to = r + 1 < N_RUNS ? unicode_runs[r + 1] >> 5 : NRD_UNI_FLAT;
        for (uint32_t cp = from; cp < to && cp < NRD_UNI_FLAT; cp++) {
            nrd_uni_flat[cp] = class_of_category[unicode_runs[r] & 31];
        }
    }
    for (size_t i = 0; i < sizeof control_spaces / sizeof control_spaces[0]; i++) {
        nrd_uni_flat[control_spaces[i]] |= NRD_UNI_SPACE;
    }
    nrd_uni_flat['\r'] |= NRD_UNI_NEWLINE;
    nrd_uni_flat['\n'] |= NRD_UNI_NEWLINE;
    nrd_uni_flat[0x200c] |= NRD_UNI_WORD; /* Join_Control */
    nrd_uni_flat[0x200d] |= NRD_UNI_WORD;
    for (uint32_t cp = 0x24b6; cp <= 0x24e9; cp++) {
        nrd_uni_flat[cp] |= NRD_UNI_WORD; /* circled letters: Other_Alphabetic symbols */
    }
    for (uint32_t cp = 0x1f130; cp <= 0x1f189; cp++) {
        if (cp <= 0x1f149 || (cp >= 0x1f150 && cp <= 0x1f169) || cp >= 0x1f170) {
            nrd_uni_flat[cp] |= NRD_UNI_WORD; /* squared letters, for the same reason */
        }
    }
}

void nrd_uni_init(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, expand_tables);
}

uint8_t nrd_uni_class_slow(uint32_t cp)
{
    size_t lo = 0, hi = N_RUNS;
    while (hi - lo > 1) {
        size_t mid = (lo + hi) / 2;
        if (unicode_runs[mid] >> 5 <= cp) {
            lo = mid;
        } else {
            hi = mid;
        }
    }
    return class_of_category[unicode_runs[lo] & 31];
}

#ifdef NRD_HAVE_UTF8PROC

bool nrd_uni_has_forms(void)
{
    return true;
}

/* A normal form may be computed from here on without looking back, and this character itself stays:
 * a starter that has no decomposition and never composes with what stands before it. */
static bool is_inert(uint32_t cp, nrd_uni_form form)
{
    if (cp < 0x80) {
        return true;
    }
    if (cp >= 0x1100 && cp <= 0x11ff) {
        return false; /* Hangul jamo compose by rule, not by table */
    }
    if (cp >= 0xac00 && cp <= 0xd7a3) {
        return (form == NRD_UNI_NFC || form == NRD_UNI_NFKC);
    }
    const utf8proc_property_t *p = utf8proc_get_property((utf8proc_int32_t)cp);
    return p->combining_class == 0 && p->decomp_seqindex == UINT16_MAX &&
           (p->comb_index == UINT16_MAX || p->comb_index < 0x8000);
}

static void normalize_span(nrd_uni_form form, const char *s, size_t n, nrd_str *out)
{
    static const int options[] = {
        [NRD_UNI_NFC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE,
        [NRD_UNI_NFD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE,
        [NRD_UNI_NFKC] = UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT,
        [NRD_UNI_NFKD] = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT,
    };
    utf8proc_uint8_t *mapped = NULL;
    utf8proc_ssize_t len = utf8proc_map((const utf8proc_uint8_t *)s, (utf8proc_ssize_t)n, &mapped,
                                        (utf8proc_option_t)options[form]);
    NRD_ASSERT(len >= 0, "the text is valid UTF-8 and memory does not run out");
    nrd_str_append(out, mapped, (size_t)len);
    free(mapped);
}

void nrd_uni_normalize(nrd_uni_form form, const char *s, size_t n, nrd_str *out)
{
    size_t done = 0, boundary = 0, i = 0; /* boundary: start of the last inert character */
    while (i < n) {
        uint32_t cp;
        size_t len = nrd_utf8_next(s + i, n - i, &cp);
        if (is_inert(cp, form)) {
            boundary = i;
            i += len;
            continue;
        }
        /* the span that may change: from the last inert character to the next one */
        size_t end = i + len;
        while (end < n) {
            len = nrd_utf8_next(s + end, n - end, &cp);
            if (is_inert(cp, form)) {
                break;
            }
            end += len;
        }
        boundary = boundary > done ? boundary : done;
        nrd_str_append(out, s + done, boundary - done);
        normalize_span(form, s + boundary, end - boundary, out);
        done = boundary = i = end;
    }
    nrd_str_append(out, s + done, n - done);
}

bool nrd_uni_is_nonspacing(uint32_t cp)
{
    return utf8proc_category((utf8proc_int32_t)cp) == UTF8PROC_CATEGORY_MN;
}

bool nrd_uni_is_other(uint32_t cp)
{
    const utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return c == UTF8PROC_CATEGORY_CC || c == UTF8PROC_CATEGORY_CF || c == UTF8PROC_CATEGORY_CO;
}

static uint32_t lower_of(uint32_t cp)
{
    return (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp);
}

size_t nrd_uni_grapheme(const char *s, size_t n)
{
    uint32_t cp, next;
    utf8proc_int32_t state = 0;
    size_t at = nrd_utf8_next(s, n, &cp);
    while (at < n) {
        size_t len = nrd_utf8_next(s + at, n - at, &next);
        if ((cp < 0x80 && next < 0x80)
                ? !(cp == '\r' && next == '\n')
                : utf8proc_grapheme_break_stateful((utf8proc_int32_t)cp, (utf8proc_int32_t)next,
                                                   &state)) {
            break;
        }
        cp = next;
        at += len;
    }
    return at;
}

#else

bool nrd_uni_has_forms(void)
{
    return false;
}

void nrd_uni_normalize(nrd_uni_form form, const char *s, size_t n, nrd_str *out)
{
    (void)form;
    nrd_str_append(out, s, n);
}

bool nrd_uni_is_nonspacing(uint32_t cp)
{
    (void)cp;
    return false;
}

bool nrd_uni_is_other(uint32_t cp)
{
    return cp < ' ' || cp == 0x7f;
}

static uint32_t lower_of(uint32_t cp)
{
    return cp >= 'A' && cp <= 'Z' ? cp + 32 : cp;
}

size_t nrd_uni_grapheme(const char *s, size_t n)
{
    uint32_t cp;
    return nrd_utf8_next(s, n, &cp);
}

#endif

void nrd_uni_lower(const char *s, size_t n, nrd_str *out)
{
    char buf[4];
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        i += nrd_utf8_next(s + i, n - i, &cp);
        if (cp == 0x130) {
            nrd_str_append(out, "i\xcc\x87", 3);
        } else {
            nrd_str_append(out, buf, nrd_utf8_put(buf, lower_of(cp)));
        }
    }
}
