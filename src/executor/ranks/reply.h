/* SPDX-License-Identifier: Apache-2.0
 * executor/ranks/reply.h - what a worker says to rank 0 through its socket, once when its engine is loaded and
 * once when its cache is there; and the descriptors that it inherits. Plain values of one build. */
#ifndef NRD_EXECUTOR_RANKS_REPLY_H
#define NRD_EXECUTOR_RANKS_REPLY_H

#include <stdint.h>

enum {
    NRD_RANK_SEGMENT_FD = 3,
    NRD_RANK_SOCKET_FD = 4,
    NRD_RANK_BEAT_MS = 250,
};

typedef struct nrd_rank_reply {
    int32_t failed;
    int32_t code; /* nrd_error_code of the error */
    uint64_t free_bytes; /* of device memory, once the weights are loaded */
    char text[1024];     /* of the error */
} nrd_rank_reply;

#endif
