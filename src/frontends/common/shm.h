/* SPDX-License-Identifier: Apache-2.0
 * frontends/common/shm.h - registered regions of shared memory, of the system and of CUDA.
 *
 * Purpose   Clients name a POSIX shared-memory object once; inputs and outputs of later requests
 *           then say "region, offset, size" instead of carrying bytes. Regions of CUDA lie on a
 *           GPU; their tensors are copied to and from host memory, as every backend takes it.
 * Owner     Any thread; the table has a lock of its own, under which nothing is opened or closed.
 * Units     Bytes. Offsets of a request are relative to the registered part.
 * Errors    INVALID_ARG, ALREADY_EXISTS, NOT_FOUND with Triton's words. Ranges are checked against
 *           the size of the object at registration. A region in use is not
 *           unregistered; a request gives its regions back before its answer is sent (infer.h).
 * Lifetime  A region is mapped from register to unregister; nrd_shm_get counts a user until
 *           nrd_shm_put.
 * Sources   Triton's system and CUDA shared memory extensions.
 */
#ifndef NRD_FRONTENDS_COMMON_SHM_H
#define NRD_FRONTENDS_COMMON_SHM_H

#include "base/error.h"
#include "base/str.h"

#include <stddef.h>
#include <stdint.h>

typedef struct nrd_shm nrd_shm;
typedef struct nrd_shm_region nrd_shm_region;

/* allowed false: clients may register, unregister and use nothing. */
nrd_error *nrd_shm_new(nrd_shm **out, bool allowed) NRD_MUST_USE;
void nrd_shm_free(nrd_shm *s); /* unmaps everything; no region may be in use */

nrd_error *nrd_shm_register(nrd_shm *s, const char *name, const char *key, uint64_t offset,
                            uint64_t size) NRD_MUST_USE;
/* handle: NRD_CUDA_HANDLE_BYTES bytes. */
nrd_error *nrd_shm_register_cuda(nrd_shm *s, const char *name, const void *handle, int64_t device,
                                 uint64_t size) NRD_MUST_USE;
/* name NULL: all regions of that kind. */
nrd_error *nrd_shm_unregister(nrd_shm *s, bool cuda, const char *name) NRD_MUST_USE;
/* Appends the JSON list that the status call answers with. name NULL: all regions of that kind. */
nrd_error *nrd_shm_status(nrd_shm *s, bool cuda, const char *name, nrd_str *out) NRD_MUST_USE;

/* Address of [offset, offset + size) of a region, which stays registered until nrd_shm_put. For a
 * region of CUDA it is the GPU's address, for nrd_shm_read and nrd_shm_write only. */
nrd_error *nrd_shm_get(nrd_shm *s, const char *name, uint64_t offset, uint64_t size,
                       nrd_shm_region **out_region, void **out_base) NRD_MUST_USE;
/* Whether what was read from the region, or written to it, since it was registered was there: its maker
 * can cut it short at any time. Then reads gave zeros. For who has it from nrd_shm_get. */
nrd_error *nrd_shm_check(const nrd_shm_region *region) NRD_MUST_USE; /* NULL is fine */
void nrd_shm_put(nrd_shm *s, nrd_shm_region *region); /* NULL is fine */

bool nrd_shm_is_cuda(const nrd_shm_region *region); /* false for NULL */
/* Copies of a region of either kind; also the errors of nrd_shm_check. */
nrd_error *nrd_shm_read(const nrd_shm_region *region, const void *base, void *to, size_t n) NRD_MUST_USE;
nrd_error *nrd_shm_write(const nrd_shm_region *region, void *base, const void *from, size_t n) NRD_MUST_USE;

#endif
