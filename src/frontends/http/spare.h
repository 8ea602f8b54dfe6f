/* SPDX-License-Identifier: Apache-2.0
 * frontends/http/spare.h - descriptors that are given up for connections when descriptors have run out.
 *
 * Owner     The thread of the first loop. Zeroed: none is kept yet.
 * Errors    None: where the system has no descriptor, fewer are kept.
 */
#ifndef NRD_FRONTENDS_HTTP_SPARE_H
#define NRD_FRONTENDS_HTTP_SPARE_H

#include <stdbool.h>

enum { NRD_HTTP_SPARE_FDS = 8 };

typedef struct nrd_http_spare {
    int fds[NRD_HTTP_SPARE_FDS]; /* [n] */
    int n;
} nrd_http_spare;

void nrd_http_spare_keep(nrd_http_spare *s); /* as many as there should be */
bool nrd_http_spare_give(nrd_http_spare *s); /* closes one, so that the system has it again; false: there is none */
void nrd_http_spare_close(nrd_http_spare *s);

#endif
