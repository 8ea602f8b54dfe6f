/* SPDX-License-Identifier: Apache-2.0
 * base/foreign.h - mapped memory that another process can take away.
 *
 * Purpose   Who maps a file or a shared-memory object that another process may cut short gets SIGBUS
 *           at the first access to a page that is gone, wherever that access is: in a copy, a kernel
 *           or a backend. Here such a page is replaced by one of zeros, the access goes on, and the
 *           mapping is marked as lost: whoever used it asks afterwards and answers an error.
 * Owner     Any thread. The signal handler takes no lock and allocates nothing.
 * Errors    NO_MEMORY; INTERNAL when the handler cannot be installed. A SIGBUS elsewhere goes to who
 *           handled it before, or ends the process as ever.
 * Lifetime  add after mmap, remove before munmap, with no access in between.
 */
#ifndef NRD_BASE_FOREIGN_H
#define NRD_BASE_FOREIGN_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct nrd_foreign nrd_foreign;

/* base: as mmap gave it; n: bytes. What replaces a page may be written to, whatever the mapping allows. */
nrd_error *nrd_foreign_add(nrd_foreign **out, void *base, size_t n) NRD_MUST_USE;
bool nrd_foreign_is_lost(const nrd_foreign *f); /* a page of it was gone when somebody looked */
void nrd_foreign_remove(nrd_foreign *f);        /* NULL is fine */

#endif
