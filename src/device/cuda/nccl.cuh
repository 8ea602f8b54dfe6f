/* SPDX-License-Identifier: Apache-2.0
 * nccl.cuh - collective operations of a stage's ranks through NCCL, which is opened at run time.
 *
 * Purpose   Where GPUs do not reach each other's memory or are on several hosts, and where the engine or NEREID_ALL_REDUCE=nccl asks for it, NCCL moves the numbers
 *           instead of this plug-in's kernels (comm.cuh).
 * Owner     A nrd_comm; operations are of the thread that has the stream. A thread of its own ends the operations that are
 *           under way when the stop word is set.
 * Errors    UNSUPPORTED: no NCCL on this machine. UNAVAILABLE: it reports a failure, or a rank was lost.
 * Sums      in NCCL's order: the same bits in every rank, but not always those of the other way.
 * Sources   NCCL 2.28 documentation, "API"; the declarations are ours.
 */
#ifndef NRD_CUDA_NCCL_CUH
#define NRD_CUDA_NCCL_CUH

#include "device/cuda/cuda_dev.cuh"

enum { NCCL_ID_BYTES = 128 };

struct nrd_nccl;

bool nrd_nccl_is_asked(void); /* NEREID_ALL_REDUCE=nccl */
/* NULL: it is there; UNSUPPORTED with what to install. over_hosts: it may use other interfaces than the host's own; the first call
 * decides for the process. Any thread. */
nrd_error *nrd_nccl_find(bool over_hosts);
/* What the first of the ranks tells the others; of ncclGetUniqueId. */
nrd_error *nrd_nccl_make_id(char id[NCCL_ID_BYTES]);
/* All ranks at once: waits for the others. stop: the stop word, host memory that outlives *out. */
nrd_error *nrd_nccl_open(nrd_nccl **out, cuda_device *dev, const uint32_t *stop, int rank, int size,
                         const char id[NCCL_ID_BYTES]);
/* When the last operation is over and no recorded graph has any of them; NULL is fine. */
void nrd_nccl_close(nrd_nccl *n);

nrd_error *nrd_nccl_all_reduce(nrd_nccl *n, nrd_stream *s, void *x, int64_t count, nrd_dtype dtype);
nrd_error *nrd_nccl_broadcast(nrd_nccl *n, nrd_stream *s, void *x, int64_t bytes); /* of the first rank's */
/* x [n_rows, cols] f32 of every rank -> out [n_rows, size * cols] of the first. */
nrd_error *nrd_nccl_gather(nrd_nccl *n, nrd_stream *s, const float *x, float *out, int n_rows, int cols);

#endif
