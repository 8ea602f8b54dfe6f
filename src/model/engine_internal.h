/* SPDX-License-Identifier: Apache-2.0
 * model/engine_internal.h - what the writer and the reader of rankN.engine share.
 *
 * Purpose   Header and table as they lie in the file (docs/engine-file.md), and their checksums.
 * Owner     Pure functions, any thread.
 */
#ifndef NRD_MODEL_ENGINE_INTERNAL_H
#define NRD_MODEL_ENGINE_INTERNAL_H

#include "base/json.h"
#include "model/engine.h"

#include <stddef.h>
#include <stdint.h>

#define NRD_ENGINE_MAGIC "NRDENGN\n"
enum {
    NRD_ENGINE_SMALL_ALIGN = 64, /* cache lines and the widest vector loads */
    NRD_ENGINE_MAX_WEIGHTS = 1 << 16,
    NRD_ENGINE_MAX_NAME = 255,
};

typedef struct nrd_engine_header { /* little endian; the checksum covers everything before it */
    char magic[8];
    uint32_t version;
    uint32_t packing; /* NRD_DEVICE_PACKING */
    uint32_t header_bytes;
    uint32_t entry_bytes;
    uint64_t n_weights;
    uint64_t table_offset;
    uint64_t names_offset, names_bytes;
    uint64_t data_offset;
    uint64_t file_bytes;
    int32_t rank, world_size;
    char device[32]; /* whose layouts are inside; "" = rows only */
    uint64_t table_checksum; /* table and names */
    uint64_t header_checksum;
} nrd_engine_header;
_Static_assert(sizeof(nrd_engine_header) == 128, "the header's layout is part of the format");

typedef struct nrd_engine_entry {
    uint32_t name_offset, name_bytes; /* in the names; NUL behind each */
    uint32_t dtype, layout;
    int64_t rows, cols;
    uint64_t offset, bytes;
    uint64_t scales_offset, n_scales; /* f32; 0: none */
    float scale;
    uint32_t n_stacked; /* 0: one matrix */
    uint64_t checksum; /* of data, then scales */
} nrd_engine_entry;
_Static_assert(sizeof(nrd_engine_entry) == 80, "the entry's layout is part of the format");

/* Finds every single flipped bit; no protection against intent. seed: of what stands before, or 0. */
uint64_t nrd_engine_checksum(uint64_t seed, const void *data, size_t n);
uint64_t nrd_engine_weight_checksum(const void *data, size_t n, const float *scales, size_t n_scales);

/* From build_config of config.json; INVALID_ARG names the member. */
nrd_error *nrd_build_limits_read(nrd_build_limits *l, const nrd_model_spec *spec, const nrd_json *b) NRD_MUST_USE;

#endif
