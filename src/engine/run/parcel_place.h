/* SPDX-License-Identifier: Apache-2.0
 * engine/run/parcel_place.h - memory in which ranks above 0 leave their shares of a prompt's cache.
 *
 * Purpose   Each rank of an engine is a process of its own, and so is each rank of the engine that goes on with the prompt.
 *           Rank 0 makes a memory file for each prompt; a rank opens it by rank 0's process and descriptor, which it
 *           hears from rank 0 alone, and has a part of it that no other rank writes. It goes with rank 0's descriptor,
 *           so nothing stays behind when the process ends.
 * Owner     new, check and free: one thread at a time of the process that made it. map and tell: any process of the same
 *           user and process namespace, while the maker has it.
 * Errors    NO_MEMORY, UNAVAILABLE: no descriptor, or the file cannot be reached from here.
 * Trust     The first bytes of the file are a random number that must be the place's: a number of a process that has
 *           another meaning here opens nothing.
 */
#ifndef NRD_ENGINE_RUN_PARCEL_PLACE_H
#define NRD_ENGINE_RUN_PARCEL_PLACE_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { NRD_PARCEL_ID_BYTES = 16, NRD_PARCEL_RANKS = 64 };

/* Plain bytes: it goes to other ranks in messages. All zero: none. */
typedef struct nrd_parcel_place {
    int32_t process, file;
    uint8_t id[NRD_PARCEL_ID_BYTES];
} nrd_parcel_place;

nrd_error *nrd_parcel_place_new(nrd_parcel_place *out) NRD_MUST_USE;
void nrd_parcel_place_free(nrd_parcel_place *p); /* none is fine */
/* NULL: the rank told that its share is there; else why it is not. */
nrd_error *nrd_parcel_place_check(const nrd_parcel_place *p, int32_t rank) NRD_MUST_USE;

/* In a rank: its `bytes` of the memory (> 0), which the caller unmaps. With is_new they are taken from the system first. */
nrd_error *nrd_parcel_place_map(const nrd_parcel_place *p, int32_t rank, size_t bytes, bool is_new,
                                uint8_t **out) NRD_MUST_USE;
/* Its share is complete (NULL), or why it is not; takes err. */
void nrd_parcel_place_tell(const nrd_parcel_place *p, int32_t rank, nrd_error *err);

#endif
