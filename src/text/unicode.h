/* SPDX-License-Identifier: Apache-2.0
 * text/unicode.h - categories, classes and normal forms.
 *
 * Purpose   What tokenizers ask of Unicode. Categories come from a generated table; normal forms,
 *           case and grapheme borders from utf8proc (NRD_HAVE_UTF8PROC).
 * Owner     Stateless, any thread; tables are expanded once, by nrd_uni_init.
 * Source    Unicode 15: UAX 15 (normal forms), UAX 29 (graphemes), UAX 44 (categories).
 */
#ifndef NRD_TEXT_UNICODE_H
#define NRD_TEXT_UNICODE_H

#include "base/error.h"
#include "base/str.h"
#include "base/utf8.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { /* classes, or-ed */
    NRD_UNI_L = 1,      /* letters */
    NRD_UNI_N = 2,      /* numbers of every kind */
    NRD_UNI_SPACE = 4,  /* White_Space */
    NRD_UNI_NEWLINE = 8, /* CR and LF alone */
    NRD_UNI_P = 16,     /* punctuation */
    NRD_UNI_S = 32,     /* symbols */
    NRD_UNI_M = 64,     /* marks */
    NRD_UNI_WORD = 128, /* \w: letters, marks, decimal and letter numbers, connectors, joiners */
};

enum { NRD_UNI_FLAT = 0x20000 }; /* code points below have their class in a flat table */
extern uint8_t nrd_uni_flat[NRD_UNI_FLAT];

void nrd_uni_init(void); /* call once before the others; any number of times, any thread */
uint8_t nrd_uni_class_slow(uint32_t cp);

static inline uint8_t nrd_uni_class(uint32_t cp)
{
    return cp < NRD_UNI_FLAT ? nrd_uni_flat[cp] : nrd_uni_class_slow(cp);
}

typedef enum { NRD_UNI_NFC, NRD_UNI_NFD, NRD_UNI_NFKC, NRD_UNI_NFKD } nrd_uni_form;

/* Categories Mn, and Cc, Cf or Co; false without utf8proc but for ASCII's control characters. */
bool nrd_uni_is_nonspacing(uint32_t cp);
bool nrd_uni_is_other(uint32_t cp);

bool nrd_uni_has_forms(void); /* false: built without utf8proc; only ASCII passes unchanged */
/* Appends the normal form of valid UTF-8. */
void nrd_uni_normalize(nrd_uni_form form, const char *s, size_t n, nrd_str *out);
/* Appends the lower-case form, character by character, with U+0130 as the only expansion. */
void nrd_uni_lower(const char *s, size_t n, nrd_str *out);
/* Bytes of the first extended grapheme cluster of s[0..n), n > 0. */
size_t nrd_uni_grapheme(const char *s, size_t n);

#endif
