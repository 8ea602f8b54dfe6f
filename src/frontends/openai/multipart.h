/* SPDX-License-Identifier: Apache-2.0
 * frontends/openai/multipart.h - reads a form with files as it comes.
 *
 * Purpose   multipart/form-data in pieces of any size: tells where a part begins, what its bytes are and that
 *           it has ended. Keeps at most one part's head, never a part.
 * Owner     One thread at a time. The functions of the reader are called by feed.
 * Units     Bytes.
 * Errors    INVALID_ARG: it is no such form, or a limit below is exceeded; or what a function of the reader gave.
 *           After an error nothing more may be fed.
 * Lifetime  Strings of a part live until its begin returns.
 * Sources   RFC 2046 section 5.1 (multipart), RFC 7578 (form-data), RFC 9110 section 8.3 (media types).
 */
#ifndef NRD_FRONTENDS_OPENAI_MULTIPART_H
#define NRD_FRONTENDS_OPENAI_MULTIPART_H

#include "base/error.h"
#include "base/limits.h"

#include <stdbool.h>
#include <stddef.h>

enum {
    NRD_MULTIPART_BOUNDARY = 70, /* RFC 2046 */
    NRD_MULTIPART_HEAD = NRD_LIMIT_FORM_HEAD, /* of one part */
    NRD_MULTIPART_PARTS = 32,
    NRD_MULTIPART_NAME = 512,    /* a name or a file's name, with the zero at its end */
};

typedef struct nrd_multipart_reader {
    /* filename NULL: it is a field and no file. Both are without control characters. */
    nrd_error *(*begin)(void *arg, const char *name, const char *filename);
    nrd_error *(*data)(void *arg, const char *data, size_t n);
    nrd_error *(*end)(void *arg); /* of the part */
    void *arg;
} nrd_multipart_reader;

typedef struct nrd_multipart { /* private to multipart.c */
    nrd_multipart_reader reader;
    char delimiter[4 + NRD_MULTIPART_BOUNDARY]; /* CR LF -- boundary */
    size_t n_delimiter;
    int state;
    size_t matched; /* bytes of the delimiter that were held back */
    char head[NRD_MULTIPART_HEAD];
    size_t n_head;
    int n_parts;
    bool in_part;
} nrd_multipart;

/* type[0..n): the request's Content-Type. */
nrd_error *nrd_multipart_init(nrd_multipart *m, const char *type, size_t n, const nrd_multipart_reader *reader) NRD_MUST_USE;
nrd_error *nrd_multipart_feed(nrd_multipart *m, const char *data, size_t n) NRD_MUST_USE;
/* Nothing more comes: was it all? */
nrd_error *nrd_multipart_end(const nrd_multipart *m) NRD_MUST_USE;

#endif
