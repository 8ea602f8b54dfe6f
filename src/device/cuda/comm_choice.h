/* SPDX-License-Identifier: Apache-2.0
 * comm_choice.h - whether ranks on GPUs exchange numbers through NCCL or through their own kernels.
 *
 * Purpose   All ranks of a stage must come to the same answer without asking each other: they see the same GPUs and were given
 *           the same wish. Plain C: the choice is tested where there is no GPU.
 */
#ifndef NRD_CUDA_COMM_CHOICE_H
#define NRD_CUDA_COMM_CHOICE_H

#include <stdbool.h>
#include <stdint.h>

/* gpus [n]: the GPU of each of a stage's ranks; asked: NCCL is wished; reaches: GPU `from` reads and writes memory of `to`.
 * One rank has nobody to exchange numbers with. */
static inline bool nrd_comm_needs_library(const int32_t *gpus, int32_t n, bool asked,
                                          bool (*reaches)(void *user, int32_t from, int32_t to), void *user)
{
    bool needs = asked && n > 1;

    for (int32_t p = 0; p < n && !needs; p++) {
        for (int32_t q = 0; q < n && !needs; q++) {
            needs = !reaches(user, gpus[p], gpus[q]);
        }
    }
    return needs;
}

#endif
