/* frontends/shm.h - registered regions of system shared memory.
 *
 * Purpose   Clients name a POSIX shared-memory object once; inputs and outputs of later requests
 *           then say "region, offset, size" instead of carrying bytes.
 * Owner     Any thread; the table has a lock of its own.
 * Units     Bytes. Offsets of a request are relative to the registered part.
 * Errors    INVALID_ARG, ALREADY_EXISTS, NOT_FOUND with Triton's words. Ranges are checked against
 *           the size of the object at registration. A region in use by a request cannot be
 *           unregistered.
 * Lifetime  A region is mapped from register to unregister; nrd_shm_get counts a user until
 *           nrd_shm_put.
 * Sources   Triton's system shared memory extension.
 */
#ifndef NRD_FRONTENDS_SHM_H
#define NRD_FRONTENDS_SHM_H

#include "base/error.h"
#include "base/str.h"

#include <stddef.h>
#include <stdint.h>

typedef struct nrd_shm nrd_shm;
typedef struct nrd_shm_region nrd_shm_region;

nrd_error *nrd_shm_new(nrd_shm **out) NRD_MUST_USE;
void nrd_shm_free(nrd_shm *s); /* unmaps everything; no region may be in use */

nrd_error *nrd_shm_register(nrd_shm *s, const char *name, const char *key, uint64_t offset,
                            uint64_t size) NRD_MUST_USE;
nrd_error *nrd_shm_unregister(nrd_shm *s, const char *name) NRD_MUST_USE; /* NULL: all */
/* Appends the JSON list that the status call answers with. name NULL: all regions. */
nrd_error *nrd_shm_status(nrd_shm *s, const char *name, nrd_str *out) NRD_MUST_USE;

/* Address of [offset, offset + size) of a region, which stays registered until nrd_shm_put. */
nrd_error *nrd_shm_get(nrd_shm *s, const char *name, uint64_t offset, uint64_t size,
                       nrd_shm_region **out_region, void **out_base) NRD_MUST_USE;
void nrd_shm_put(nrd_shm *s, nrd_shm_region *region); /* NULL is fine */

#endif
