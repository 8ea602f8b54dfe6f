/* SPDX-License-Identifier: Apache-2.0
 * model/mmproj_internal.h - towers of GGUF models from the inside.
 *
 *   mmproj.c         the file, and its tensors
 *   mmproj_config.c  metadata as configurations
 */
#ifndef NRD_MODEL_MMPROJ_INTERNAL_H
#define NRD_MODEL_MMPROJ_INTERNAL_H

#include "model/mmproj.h"

typedef enum {
    NRD_MMPROJ_MLP,
    NRD_MMPROJ_GEMMA3,
    NRD_MMPROJ_IDEFICS3,
    NRD_MMPROJ_PIXTRAL,
    NRD_MMPROJ_QWEN2,
    NRD_MMPROJ_QWEN2_5,
    NRD_MMPROJ_QWEN3,
} nrd_mmproj_kind;

struct nrd_mmproj {
    nrd_gguf *file;
    nrd_mmproj_kind kind;
    int32_t heads;   /* of the tower */
    int64_t hidden;  /* … its states */
    int64_t inter;
    bool is_swapped; /* older files call the MLP's first product ffn_down, and its second one ffn_up */
};

/* A tensor that must be there. */
nrd_error *nrd_mmproj_tensor_of(const nrd_mmproj *m, const char *name, const nrd_gguf_tensor **out) NRD_MUST_USE;

#endif
