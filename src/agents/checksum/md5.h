/* SPDX-License-Identifier: Apache-2.0
 * agents/checksum/md5.h - MD5 sums, for telling whether a file is the one that was meant. Not a
 * defence against someone who wants two files of one sum.
 * Owner: the caller. Units: bytes. Errors: none. Lifetime: init, any number of updates, one text.
 * Source: RFC 1321. */
#ifndef NRD_AGENTS_CHECKSUM_MD5_H
#define NRD_AGENTS_CHECKSUM_MD5_H

#include <stddef.h>
#include <stdint.h>

enum { NRD_MD5_TEXT = 33 }; /* 32 hexadecimal digits and a NUL */

typedef struct nrd_md5 {
    uint32_t state[4];
    uint64_t n_bytes;
    unsigned char rest[64];
} nrd_md5;

void nrd_md5_init(nrd_md5 *m);
void nrd_md5_update(nrd_md5 *m, const void *data, size_t n);
void nrd_md5_text(nrd_md5 *m, char out[NRD_MD5_TEXT]); /* ends the sum */

#endif
