/* SPDX-License-Identifier: Apache-2.0
 * model/engine.h - an engine folder, opened for running.
 *
 * Purpose   config.json (pretrained_config, build_config) and this rank's rankN.engine, mapped:
 *           weights by their checkpoint names.
 * Owner     Immutable after open and nrd_engine_settle; any thread may read. Weights borrow from the
 *           engine until close.
 * Errors    NOT_FOUND, INVALID_ARG; a truncated, older or foreign file is refused with the reason
 *           and the command that rebuilds it. Checksums of the header and the tensor table are
 *           always checked; of the data when `verify` is set.
 */
#ifndef NRD_MODEL_ENGINE_H
#define NRD_MODEL_ENGINE_H

#include "base/error.h"
#include "model/spec.h"
#include "nereid/device.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct nrd_engine nrd_engine;

/* In the folder of a decoder that reads an encoder's states: the encoder's engine. */
#define NRD_ENCODER_FOLDER "encoder"

/* In the engine's folder: a device's choice of kernels (nrd_device_config.timing_cache). */
#define NRD_TIMING_CACHE "timing.cache"

/* Limits of build_config. All of them also bound what a request may ask for. */
typedef struct nrd_build_limits {
    int32_t max_batch_size;   /* sequences in one step */
    int32_t max_input_len;    /* prompt tokens */
    int32_t max_seq_len;      /* prompt + generated */
    int32_t max_num_tokens;   /* packed tokens in one step */
    int32_t max_beam_width;
    int32_t max_draft_len;
    int32_t max_prompt_embedding_table_size;
    int32_t tokens_per_block;
    bool paged_kv_cache, use_paged_context_fmha;
    bool gather_context_logits, gather_generation_logits;
    nrd_dtype kv_dtype;       /* NONE: the device's choice */
    bool fp8_context_fmha;    /* nrd_attention_args.f8_products */
    bool nccl_all_reduce;     /* use_custom_all_reduce false: nrd_comm_config.by_library */
    bool lora_plugin;         /* built for LoRA adapters: */
    int32_t max_lora_rank;    /* 0: any that the executor allows */
    uint32_t lora_modules;    /* bit i: module i of model/lora.h may come; 0: all */
} nrd_build_limits;

/* A rank's file: rankN.engine, or where that is not the first file `…_rankN.engine`, as builders up to v0.8 called
 * it (gpt_float16_tp2_rank0.engine). *out is owned (free). NO_MEMORY; a file that is not there is no error. */
nrd_error *nrd_engine_path(char **out, const char *dir, int32_t rank) NRD_MUST_USE;
bool nrd_engine_has_rank(const char *dir, int32_t rank);
bool nrd_engine_is_folder(const char *dir); /* config.json, which is written last, and the file of rank 0 */

nrd_error *nrd_engine_open(nrd_engine **out, const char *dir, int32_t rank, bool verify) NRD_MUST_USE;
/* The engine of the encoder whose states a decoder reads: `dir`, or where that is NULL NRD_ENCODER_FOLDER in the decoder's
 * folder or beside it, as TensorRT-LLM's converters leave the two. NOT_FOUND. */
nrd_error *nrd_engine_open_encoder(nrd_engine **out, const char *decoder_dir, const char *dir, bool verify) NRD_MUST_USE;
/* UNAVAILABLE where the file was made shorter and a weight that is gone was read as zeros: what was
 * computed with it is wrong. NULL: all is as it was. Any thread. */
nrd_error *nrd_engine_check(const nrd_engine *e) NRD_MUST_USE;
void nrd_engine_close(nrd_engine *e);

/* Right after open: moves the file's content from the mapping, whose pages are small, into memory of
 * large pages, which a processor reads 15 to 20 % faster. Only where the system has large pages and
 * the file takes less than half of free_bytes; true if it was moved, else all stays as it was.
 * Weights taken from `e` before are void after it. */
bool nrd_engine_settle(nrd_engine *e, uint64_t free_bytes);

const nrd_model_spec *nrd_engine_spec(const nrd_engine *e);
const nrd_build_limits *nrd_engine_limits(const nrd_engine *e);
uint64_t nrd_engine_weight_bytes(const nrd_engine *e);
const char *nrd_engine_dir(const nrd_engine *e);    /* where it was opened */
/* Of several ranks: the same where the files of all ranks are the same, by their checksums in config.json. 0: it does not say. */
uint64_t nrd_engine_mark(const nrd_engine *e);
const char *nrd_engine_device(const nrd_engine *e); /* whose layouts are inside; "": rows only */

/* A weight by its checkpoint name ("transformer.layers.3.mlp.proj.weight"); NULL: absent.
 * Names, with L = transformer.layers.<i>:
 *   transformer.vocab_embedding.weight  transformer.position_embedding.weight
 *   L.input_layernorm.{weight,bias}     L.attention.qkv.{weight,bias}
 *     (or, when q, k, v differ in type: L.attention.q.{weight,bias}, .k., .v.)
 *   L.attention.{q_layernorm,k_layernorm}.{weight,bias}   L.attention.dense.{weight,bias}
 *   L.attention.kv_cache_range [2 x heads of keys] (of an 8-bit cache, if calibrated), or
 *   L.attention.kv_cache_scaling_factor (of an 8-bit cache, if calibrated)
 *   L.post_attention_layernorm.weight (post_norms)  L.post_layernorm.{weight,bias} (before the MLP)
 *   L.mlp.fc.{weight,bias} (activated: gate_proj, or the only one)  L.mlp.gate.weight (up_proj)
 *   L.mlp.proj.{weight,bias}            L.post_feedforward_layernorm.weight (post_norms)
 *   transformer.ln_f.{weight,bias}      lm_head.{weight,bias} (absent when tied)
 *   rope_factors (NRD_ROPE_SCALING_FACTORS) */
const nrd_weight *nrd_engine_weight(const nrd_engine *e, const char *name);
size_t nrd_engine_n_weights(const nrd_engine *e);
const nrd_weight *nrd_engine_weight_at(const nrd_engine *e, size_t i, const char **out_name);

#endif
