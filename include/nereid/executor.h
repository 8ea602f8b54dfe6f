/* SPDX-License-Identifier: Apache-2.0
 * nereid/executor.h - the executor API: tokens in, tokens out.
 *
 * Purpose   Everything that a server or a tool asks of the engine: open a model, enqueue requests,
 *           take responses, cancel, read statistics. In-flight batching happens behind this API.
 * Owner     An nrd_exec may be used from any number of threads. Requests are copied at enqueue.
 * Units     Tokens are int32 ids. Times are steady-clock nanoseconds. Log probabilities are natural.
 * Errors    Functions return NULL or an error that the caller frees with nrd_exec_error_free:
 *           INVALID_ARG names the field and the limit; UNAVAILABLE: queue full or engine lost;
 *           UNSUPPORTED names what is not built. After a request was accepted, its errors arrive as
 *           a response.
 * Lifetime  open -> enqueue/await/cancel … -> shutdown (drains or cuts) -> close. Every accepted
 *           request gets exactly one response with is_final, also when it is cancelled or the
 *           executor shuts down.
 * ABI       Structs begin with `size` (the caller's sizeof); fields beyond it have their defaults.
 */
#ifndef NEREID_EXECUTOR_H
#define NEREID_EXECUTOR_H

#include "nereid/dtype.h"
#include "nereid/export.h"
#include "nereid/llm_tensors.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct nrd_error nrd_error;
typedef struct nrd_exec nrd_exec;

/* ---- opening ---- */

typedef enum {
    NRD_BATCHING_INFLIGHT = 0,
    NRD_BATCHING_STATIC = 1, /* "V1": a batch is formed once and leaves together */
} nrd_batching_kind;

typedef enum {
    NRD_POLICY_GUARANTEED_NO_EVICT = 0,
    NRD_POLICY_MAX_UTILIZATION = 1,
} nrd_scheduler_policy;

typedef enum {
    NRD_DECODING_AUTO = 0,
    NRD_DECODING_TOP_K = 1,
    NRD_DECODING_TOP_P = 2,
    NRD_DECODING_TOP_K_TOP_P = 3,
    NRD_DECODING_BEAM_SEARCH = 4,
    NRD_DECODING_MEDUSA = 5,
    NRD_DECODING_LOOKAHEAD = 6,
    NRD_DECODING_EXPLICIT_DRAFT = 7, /* ReDrafter */
    NRD_DECODING_EAGLE = 8,
} nrd_decoding_mode;

/* A product of a layer, by what goes into it. */
typedef enum {
    NRD_PRODUCT_QKV = 0,   /* queries, keys and values */
    NRD_PRODUCT_DENSE = 1, /* behind attention */
    NRD_PRODUCT_UP = 2,    /* the MLP's first, with its gate */
    NRD_PRODUCT_DOWN = 3,  /* the MLP's last */
    NRD_PRODUCTS = 4,
} nrd_exec_product;

typedef struct nrd_exec_config {
    uint32_t size;
    nrd_batching_kind batching;
    nrd_scheduler_policy policy;
    nrd_decoding_mode decoding_mode;
    int32_t max_beam_width;               /* 0: the engine's */
    int32_t max_batch_size;               /* 0: the engine's */
    int32_t max_num_tokens;               /* 0: the engine's */
    int32_t max_queue_size;               /* waiting requests; 0: unlimited */
    int64_t max_tokens_in_paged_kv_cache; /* 0: by fraction */
    double kv_cache_free_mem_fraction;    /* of memory free after load; 0: 0.9 (GPU), 0.5 (CPU) */
    uint64_t kv_cache_host_memory_bytes;  /* offload of reusable blocks */
    uint64_t state_cache_bytes;           /* snapshots of recurrent states, for reuse; 0: a good number */
    bool enable_kv_cache_reuse;
    bool enable_chunked_context;
    bool normalize_log_probs;             /* default true: set by nrd_exec_config_init */
    bool deterministic;                   /* same tokens in every batch composition */
    const int32_t *max_attention_window;  /* one per layer, repeated cyclically; NULL: all */
    int32_t n_max_attention_window;
    int32_t sink_token_length;
    nrd_dtype kv_dtype;                   /* NONE: the engine's or the device's */
    nrd_dtype compute_dtype;              /* F32: compute from dequantized weights; NONE: native */
    const char *device;                   /* "auto", "cpu", "cuda"; NULL: auto */
    const int32_t *device_ids;
    int32_t n_device_ids;
    /* Where a launcher started ranks: which of them runs each of the engine's; the first one's work is this process's. */
    const int32_t *participant_ids;
    int32_t n_participant_ids;            /* 0: in their order */
    int32_t n_threads;                    /* CPU; 0: one for each core that it may use */
    const char *cpu_isa;                  /* NULL: best */
    int32_t iter_stats_max_iterations;    /* kept records; default 1000 */
    bool cuda_graph_mode;                 /* default true; nothing where a device has no graphs */
    int32_t cuda_graph_cache_size;        /* graphs kept; 0: a good number */
    double gpu_weights_percent;           /* share of the weights' bytes on a GPU, 0 to 1 (default); the others come from host
                                           * memory in every step. Nothing on a CPU. Of a draft model: all are there */
    bool two_step_head;                   /* choices without log probabilities: the LM head finds candidates in 8 bits and
                                           * multiplies these by its own numbers. Same choices; half a head more memory */
    const char *guided_decoding_backend;  /* NULL: off */
    const char *tokenizer_dir;            /* for guided decoding; or a file, as nrd_tokenizer_open takes it */
    int32_t lookahead_window_size, lookahead_ngram_size, lookahead_verification_set_size;
    bool verify_checksums;
    /* Called from any thread with one-line messages; level 0 error, 1 warning, 2 info, 3 verbose. */
    void (*log)(void *user, int level, const char *message);
    void *log_user;
    int32_t mixed_context_tokens; /* with chunked context: prompt tokens of a step that generates
                                   * too; 0: 256 on a CPU; on a GPU what takes it about 13 ms, while
                                   * few prompts wait; < 0: no limit */
    int32_t profile_every; /* > 0: times are kept, those of every so-many-th step by operation */
    int32_t profile_spans; /* with it: how many spans of time to keep for nrd_exec_spans */
    bool no_overlap;       /* a device never runs two operations side by side */
    /* LoRA adapters. Memory is taken when the first one comes, or at once with enable_lora or an engine that
     * was built for adapters (max_lora_rank). */
    bool enable_lora;
    int32_t lora_cache_max_adapter_size;     /* largest rank; 0: the engine's max_lora_rank, else 64 */
    int32_t lora_cache_optimal_adapter_size; /* rank that fills a page of the device's cache; 0: 8 */
    double lora_cache_gpu_memory_fraction;   /* of memory free after weights and KV cache; 0: 0.05 */
    uint64_t lora_cache_host_memory_bytes;   /* 0: 1 GiB */
    const char *lora_prefetch_dir; /* adapters that are loaded at once: in folders whose names are their ids */
    /* What the scheduler was told and decided is kept in this much memory, for crash reports and nereid repro;
     * default 4 MiB, 0: not at all. With a path in a file, which is there also when the process is gone. */
    uint64_t scheduler_record_bytes;
    const char *scheduler_record; /* NULL: memory only */
    /* Several tokens a step, the same ones: {"method": "ngram", "num_speculative_tokens": 8, "prompt_lookup_min": 1,
     * "prompt_lookup_max": 8}, or {"method": "draft_model", "model": PATH, "num_speculative_tokens": 4}, where PATH is
     * an engine, a GGUF file, a Hugging Face or a checkpoint folder, or {"method": "lookahead"}, or {"method": "medusa",
     * "model": PATH} with Medusa heads, "eagle" or "eagle3" with EAGLE heads, {"method": "mtp"} with the engine's own layer (docs/speculation.md). NULL: off. */
    const char *speculative_config;
    int32_t choices_at_once; /* sequences of one request or group that run at a time, where KV blocks are reused, an
                              * eighth of it (rounded up) beside other requests; 0: 16 on a CPU, no limit on a GPU; < 0: no limit */
    /* For calibration: told what goes into each product of each layer, x[n_tokens][cols] of `dtype` in the device's memory, of every
     * step, by the engine's thread, which waits for it; then the product reads x. On a CPU it is float32. expert: the one that these tokens go to, of NRD_PRODUCT_UP and _DOWN; -1: not of one
     * (in layers with experts, _UP and _DOWN are then those of the shared ones). Of latent attention _QKV is what both its first products read.
     * UNSUPPORTED at open over several ranks, and where experts' inputs are scaled (Llama 4); at a step where weights are quantized. */
    void (*on_product_input)(void *user, int32_t layer, int32_t expert, nrd_exec_product product, int32_t n_tokens,
                             int32_t cols, const void *x, nrd_dtype dtype);
    void *on_product_input_user;
    const char *medusa_choices; /* of decoding_mode medusa: which combinations of the heads' best tokens a step verifies,
                                 * "{0}, {1}, {0, 0}"; NULL: the 63 likeliest */
    uint64_t picture_cache_bytes; /* rows of pictures that are kept in host memory, so that a tower does not run twice for one;
                                   * default 256 MiB, 0: none */
    const char *encoder_dir; /* engine of the encoder whose states a decoder reads; NULL: the folder "encoder" in the decoder's
                              * or beside it */
    const char *eagle_choices;  /* the same of decoding_mode eagle; NULL: a tree of the 60 likeliest, chosen anew each step, */
    int32_t eagle_top_k;        /* of each level so many are given to the heads, at most 20; 0: 10 */
    double eagle_posterior_threshold; /* of decoding_mode eagle: typical acceptance of drawn answers, in [0, 1]; 0: they are exact */
    /* For calibration, as on_product_input, with its user: what a layer with attention puts into its cache, keys behind norm and
     * rotation. keys and values [n_kv_heads, head_dim] of the first token; `stride` numbers on are those of the next. Both in
     * the host's memory. Not told of latent attention. */
    void (*on_cache)(void *user, int32_t layer, int32_t n_tokens, int64_t stride, const float *keys, const float *values);
    /* Disaggregated serving, of an executor that computes prompts for others (NRD_REQUEST_CONTEXT_ONLY): how long a prompt is
     * kept for whoever generates, and how many tokens of prompts at once; a request that would be beyond is UNAVAILABLE. */
    int64_t kv_transfer_timeout_ms; /* 0: 60 s */
    int64_t max_tokens_in_buffer;   /* 0: as many as the KV cache has */
    int32_t max_seq_len;            /* 0: the engine's, which is the most; the KV cache has room for one such sequence at least */
} nrd_exec_config;

/* Whether speculative_config says something that this version does; nrd_exec_open asks as well. */
NRD_API nrd_error *nrd_exec_check_speculative_config(const char *json);

/* Defaults for every field. */
NRD_API void nrd_exec_config_init(nrd_exec_config *config);

/* What the opened model is and may do. */
typedef struct nrd_exec_info {
    uint32_t size;
    char architecture[64];
    char device[96];
    int32_t vocab, n_layers, hidden;
    int32_t max_batch_size, max_input_len, max_seq_len, max_num_tokens, max_beam_width;
    int32_t max_draft_len;
    int32_t tokens_per_block, n_kv_blocks, n_kv_host_blocks;
    uint64_t weight_bytes, kv_cache_bytes;
    nrd_dtype dtype, kv_dtype, logits_dtype;
    bool gather_context_logits, gather_generation_logits;
    int32_t bos_id, eos_id, pad_id;
    int32_t tp_size, pp_size;
    int32_t mixed_context_tokens; /* prompt tokens of a step that also generates; 0 or less: no limit */
    int32_t even_context_tokens;  /* > 0: those while few prompts wait */
    int32_t max_encoder_input_len; /* of an encoder-decoder model; 0: it is none */
    int32_t n_begin; /* of one: tokens that a text begins with where none are given */
    int32_t encoder_feature_size; /* features of a frame of sound, of which the encoder reads two for each place of
                                   * max_encoder_input_len; 0: it reads tokens */
    uint64_t state_bytes; /* of recurrent layers: for the sequences of a batch, and kept for prompts that begin alike */
    int32_t picture_row_size; /* numbers of a row that a picture becomes: hidden, or several of them; 0: the model does not see */
} nrd_exec_info;

NRD_API nrd_error *nrd_exec_open(nrd_exec **out, const char *engine_dir,
                                 const nrd_exec_config *config);
/* What the model of an engine folder is, without opening it for running: JSON, which the caller frees. {"family": its
 * model_type, "context_length": tokens of a sequence, and of an engine of one rank "parameters": how many numbers its weights
 * are, "type": what most of their bytes hold}. Of models that make or read more than text also {"encoder": it makes no text, "max_tokens": of an input, "labels": the names of a classifier's labels,
 * "function" of its numbers and "pair_function" of the score of a pair: "softmax", "sigmoid" or "none", "prompt": how a
 * query and a document are put to it, "": as the tokenizer joins two texts, "pictures": prompts may have them,
 * "picture_tokens": that one becomes, at most where its size decides, "videos": they may have these, {"frames": that are seen at once,
 * "apart": each group of them has a place of its own}}; of a decoder behind an encoder "beams": that it was built for. */
NRD_API nrd_error *nrd_exec_describe(const char *engine_dir, char **out_json);
NRD_API void nrd_exec_get_info(const nrd_exec *exec, nrd_exec_info *info); /* set info->size first */

/* NULL; UNAVAILABLE with the reason once a step failed and the engine was lost: all its requests have
 * been answered with an error, and new ones are refused. Any thread. */
NRD_API nrd_error *nrd_exec_health(nrd_exec *exec);

/* ---- requests ---- */

typedef enum {
    NRD_REQUEST_CONTEXT_AND_GENERATION = 0,
    NRD_REQUEST_CONTEXT_ONLY = 1,    /* disaggregated serving */
    NRD_REQUEST_GENERATION_ONLY = 2,
} nrd_request_kind;

/* One vector for a whole prompt, from the last layer's normed states; nothing is generated. */
typedef enum {
    NRD_POOLING_NONE = 0,
    NRD_POOLING_LAST = 1, /* that of the last token */
    NRD_POOLING_MEAN = 2, /* the mean over all tokens */
    NRD_POOLING_FIRST = 3, /* that of the first token, as encoders are trained for with their [CLS] */
    NRD_POOLING_MODEL = 4, /* the model's own; where its folder says nothing, a decoder's is the last token's */
    NRD_POOLING_LABELS = 5, /* no state: what a classifier's head makes of one, a number for each label */
} nrd_pooling;

typedef struct nrd_sampling_config {
    int32_t beam_width;            /* 1 */
    int32_t num_return_sequences;  /* 1 */
    int32_t top_k;                 /* 0: all */
    float top_p;                   /* 0: absent */
    float top_p_min;               /* 1e-6 */
    float top_p_decay;             /* 1 */
    int32_t top_p_reset_id;        /* -1 */
    float min_p;                   /* 0 */
    float temperature;             /* 1; 0: greedy */
    uint64_t random_seed;          /* 0 */
    int32_t min_length;            /* 0: new tokens before end_id may come */
    float repetition_penalty;      /* 1 */
    float presence_penalty;        /* 0 */
    float frequency_penalty;       /* 0 */
    float length_penalty;          /* 0 */
    float beam_search_diversity_rate; /* 0 */
    int32_t early_stopping;        /* 1: when there are beam_width finished beams; else when no live one can become better than
                                    * they are: 0: if it ended now, others: however long */
    int32_t no_repeat_ngram_size;  /* 0: off */
} nrd_sampling_config;
/* Greedy when top_k == 1, or top_k == 0 and top_p == 0 (TensorRT-LLM's rule). */

/* Phrases as token ids: phrase i is ids[i ? ends[i-1] : 0 .. ends[i]). */
typedef struct nrd_phrases {
    const int32_t *ids;
    const int32_t *ends;
    int32_t n;
} nrd_phrases;

typedef struct nrd_exec_ids {
    const int32_t *ids;
    int32_t n;
} nrd_exec_ids;

typedef struct nrd_kv_retention_range {
    int32_t start, end;    /* end -1: end of the prompt */
    int32_t priority;      /* 0..100, default 35 */
    int64_t duration_ms;   /* -1: for ever */
} nrd_kv_retention_range;

/* A picture as it came: JPEG, PNG, WebP or PPM. */
typedef struct nrd_exec_image {
    const void *bytes;
    size_t n;
} nrd_exec_image;

/* Frames in their order, all of one size; where the model sees several at a time and the last ones are fewer, the last is repeated. */
typedef struct nrd_exec_video {
    const nrd_exec_image *frames; /* [n_frames] */
    int32_t n_frames;
    double fps; /* of these frames, a second, above 0 */
} nrd_exec_video;

typedef struct nrd_exec_request {
    uint32_t size;
    nrd_request_kind kind;
    const int32_t *input_ids;
    int32_t n_input_ids;
    int32_t max_new_tokens;
    bool streaming;
    bool exclude_input_in_output;  /* default false: a non-streaming answer echoes the prompt */
    int32_t end_id;                /* -1: never stop on a token */
    int32_t pad_id;                /* -1: end_id */
    nrd_sampling_config sampling;
    nrd_phrases stop_words, bad_words;
    float priority;                /* 0..1, default 0.5; larger first */
    uint64_t client_id;            /* returned unchanged */

    bool return_log_probs;
    bool return_context_logits;
    bool return_generation_logits;
    bool return_perf_metrics;
    int32_t n_top_logprobs;        /* per token, in responses; 0: none (at most 20) */

    const float *embedding_bias;   /* [vocab] or NULL */
    /* Prompt tuning, pictures: id `vocab` + i of the prompt is row i of the table. Prompts are shared
     * in the cache only where the rows and the extra ids of their tokens are the same. */
    const void *prompt_embedding_table; /* [prompt_vocab_size, hidden] of prompt_table_dtype, or NULL */
    int32_t prompt_vocab_size;          /* at most the engine's max_prompt_embedding_table_size */
    const uint64_t *prompt_table_extra_ids; /* [n_input_ids] or NULL */
    /* Where positions have axes (M-RoPE) and a client's own vision model made the table: for each prompt token a cosine and a
     * sine for each pair that turns, [n_input_ids or more, rotary_dim / 2, 2], of whole places; NULL: by the pictures, or as
     * text. A token behind the prompt is at its position + mrope_position_delta. */
    const float *mrope_rotary_cos_sin;
    /* LoRA: an adapter by its id; the first request with an id brings its weights */
    uint64_t lora_task_id;         /* 0: none */
    const void *lora_weights;      /* [rows, width] of lora_weights_dtype; NULL: the id is known */
    const int32_t *lora_config;    /* [rows, lora_config_width]: module, layer, rank */
    int64_t lora_rows, lora_width;
    /* Tokens that may come first (at most the engine's max_draft_len): those that hold come out of one step,
     * with one more behind them. What is generated has the same distribution as without; without logits, or
     * greedy, it is the same. Not used beside penalties, a guide, a top-p that decays, or a window. */
    const int32_t *draft_input_ids;
    int32_t n_draft_input_ids;
    const float *draft_logits;     /* [n_draft_input_ids, vocab] or NULL */
    float draft_acceptance_threshold; /* with logits: a token stays where p >= threshold * q; < 0: absent */
    int32_t lookahead_window_size, lookahead_ngram_size, lookahead_verification_set_size;
    /* encoder-decoder: input_ids are what the encoder reads. The text begins with these; none: with the model's start token */
    const int32_t *decoder_input_ids;
    int32_t n_decoder_input_ids;
    /* A model that hears (Whisper): [n_encoder_frames, encoder_feature_size] of encoder_features_dtype is what the encoder
     * reads. The text begins with decoder_input_ids, or where there are none with input_ids. */
    const void *encoder_input_features;
    int32_t encoder_output_length; /* half the frames, rounded up; 0: not said */
    /* [n_cross_mask_rows, n_cross_mask_cols] whether a position of the decoder sees a state of the encoder; positions behind the last row are
     * as it. Rows see what those before them see, and maybe more. */
    const uint8_t *cross_attention_mask;
    bool skip_cross_attn_blocks;
    /* KV retention, disaggregated serving, guided decoding */
    const nrd_kv_retention_range *retention_ranges;
    int32_t n_retention_ranges;
    int32_t retention_decode_priority;
    int64_t retention_decode_duration_ms;
    const void *context_phase_params; /* of a NRD_REQUEST_GENERATION_ONLY: as a response brought them, used once */
    const char *guide_type, *guide; /* "json", "json_schema", "regex", "ebnf_grammar", "structural_tag"; NULL: none */
    const char *cache_salt;         /* prefix blocks are shared only within one salt; NULL: none */
    nrd_dtype lora_weights_dtype;   /* F16, BF16, F32; NONE: F16 */
    void *lora_prepared;            /* of nrd_exec_prepare_lora; NULL */
    int32_t lora_config_width;      /* numbers in a row of lora_config: 3, or 4 with a last one for DoRA; 0: 3 */
    nrd_pooling pooling;            /* not NONE: the answer is nrd_exec_response.embedding alone;
                                       max_new_tokens, streaming and sampling are not looked at */
    nrd_dtype prompt_table_dtype;   /* F16, BF16 or F32; NONE: F16 */
    /* embedding_bias for few tokens: bias_values[i] is added to the logit of bias_ids[i] (the last one
     * of equal ids holds). Not beside embedding_bias; at most LOGIT_BIAS of them. */
    const int32_t *bias_ids;
    const float *bias_values;
    int32_t n_bias;
    /* Steady clock; 0: none. At its deadline a request ends where it is: its final response has what there
     * is, with NRD_FINISH_TIMED_OUT. One that has not begun by start_by_ns ends with UNAVAILABLE. Both are
     * looked at between steps; for a guide that is being compiled, when that is done. */
    int64_t deadline_ns, start_by_ns;
    bool deterministic; /* refused where the tokens may depend on what runs beside them: on a GPU, and on
                         * a CPU with AMX where weights are float16 or of 8 bits or fewer, unless nrd_exec_config.deterministic is set */
    uint64_t group;     /* requests that are choices of one share choices_at_once; 0: only its own sequences do */
    int32_t second_from; /* prompt tokens from this one on are the second text of a pair, which BERT has a token type for;
                          * 0: one text. Models without such types do not look at it */
    /* Pictures, in the order of their places in the prompt: the model's image token, once for each picture (or as often
     * as the picture has rows). At most NRD_LLM_MAX_IMAGES; only where the engine has a vision tower. */
    const nrd_exec_image *images;
    int32_t n_images;
    void *images_prepared; /* of nrd_exec_prepare_images; NULL */
    nrd_dtype encoder_features_dtype; /* F32 or F16 */
    int32_t n_encoder_frames, encoder_feature_size;
    /* Of a model that hears: ids from first_time_id on tell times (0: as any others), which come in pairs, do not go back, and
     * stand first, at most max_first_time places behind first_time_id (-1: any). The id before first_time_id is not chosen. */
    int32_t first_time_id, max_first_time;
    /* Of a model that hears: the token whose probability behind the text's first no_speech_at + 1 tokens is told; -1: none */
    int32_t no_speech_id, no_speech_at;
    int64_t n_mrope_values, mrope_position_delta; /* numbers in mrope_rotary_cos_sin; what is added behind the prompt */
    /* In place of `images`: [n_images, 2], height and width in pixels of pictures that are rows already (nereid/vision.h). The
     * prompt_embedding_table has the rows of all of them, each nrd_exec_info.picture_row_size wide. */
    const int32_t *image_sizes;
    /* Reasoning of at most so many tokens; -1: no limit. It begins where the generated tokens end with begin, or at once
     * (reasoning_open), and is over where they end with end. When its tokens are used up, close comes next, whatever the
     * model would have said, and has end in it; likewise where it begins again. Not with beams, a guide or logits of what
     * is generated. A forced token has the log probability 0. */
    int32_t reasoning_budget;
    nrd_exec_ids reasoning_begin, reasoning_end, reasoning_close; /* at most 16, 16 and 64 ids */
    bool reasoning_open;
    uint64_t flow; /* whose request it is: where several wait, the next start is that of the flow that was served least; 0: nobody's */
    /* The response has log probabilities and ranks of the prompt's tokens, and of so many best ones in the place of each (at most 20).
     * The prompt is computed as a whole then: nothing is taken from the prefix cache. */
    bool return_prompt_log_probs;
    int32_t n_top_prompt_logprobs;
    /* As generate() of transformers does with models that have an encoder. generate_scores: in scores of beams forbidden tokens
     * have their share of the probability, and of what the text begins with all but the first token counts in the length.
     * forced_end: the last of max_new_tokens is end_id; so the text is a token shorter, and whole. */
    bool generate_scores, forced_end;
    int32_t n_cross_mask_rows, n_cross_mask_cols; /* of cross_attention_mask */
    size_t n_context_phase_params; /* bytes of context_phase_params */
    /* With draft_input_ids: the answer ends with the step that verifies them, as if max_new_tokens were the tokens that held and one.
     * For who has the next draft then. */
    bool ends_behind_draft;
    bool is_stopped; /* it ends before its first step, as one that is cancelled then */
    /* Videos, in the order of their places in the prompt, each of which is the model's video token; pictures beside them have one
     * place each, too. At most NRD_LLM_MAX_VIDEO_FRAMES frames in all; nrd_exec_prepare_images reads them with the pictures. */
    const nrd_exec_video *videos;
    int32_t n_videos;
} nrd_exec_request;

NRD_API void nrd_exec_request_init(nrd_exec_request *request);

/* Copies and accepts the request; *out_id (> 0) names it until its final response was taken.
 * Bad fields are refused here, by name; a guide that is wrong, by the final response: guides are compiled
 * by threads of their own, and kept for requests that bring the same. Prompt + max_new_tokens over max_seq_len is cut, not an
 * error. */
NRD_API nrd_error *nrd_exec_enqueue(nrd_exec *exec, const nrd_exec_request *request,
                                    uint64_t *out_id);
/* The host memory that enqueue takes for this request and its answers at most, in bytes: tokens, logits,
 * probabilities, tables, biases, the weights of an adapter that it brings. What enqueue would refuse counts as
 * far as it can be told. */
NRD_API uint64_t nrd_exec_request_bytes(nrd_exec *exec, const nrd_exec_request *request);
/* Asks a request to end early: it gets its final response with what it has. Unknown ids: no-op. */
NRD_API void nrd_exec_cancel(nrd_exec *exec, uint64_t id);

/* ---- disaggregated serving ---- */

/* One executor computes prompts (requests of the kind CONTEXT_ONLY: the answer has the first token, and the parameters by which
 * the prompt's keys and values are found), another one of the same process goes on (GENERATION_ONLY, with the same prompt and
 * sampling): its answer has the first token too, and is what one executor alone would say. */
typedef struct nrd_exec_handover_stats {
    uint32_t size;
    int32_t n_kept;     /* prompts that wait for who generates, */
    int64_t n_tokens;   /* and their tokens, with those that are being computed */
    uint64_t n_given, n_taken, n_expired; /* prompts since the start: kept for others, taken from others, and taken by nobody in time */
    uint64_t n_bytes, transfer_us; /* of those given and taken: their size, and how long the copies out of the cache took (those into
                                    * the other cache are part of a step) */
} nrd_exec_handover_stats;
NRD_API void nrd_exec_handover_get_stats(nrd_exec *exec, nrd_exec_handover_stats *out); /* set out->size first; any thread */

/* ---- LoRA adapters ---- */

/* Reads a folder (PEFT, or model.lora_weights.npy beside model.lora_config.npy) and keeps the adapter under
 * this id (above 0), in place of what had it. `dir` is remembered: where the cache lets the adapter go, the
 * next request with the id reads it again. NOT_FOUND: no adapter there. */
NRD_API nrd_error *nrd_exec_lora_load(nrd_exec *exec, uint64_t id, const char *dir);
/* Whether requests with this id find their adapter: in the cache, or in a remembered folder. */
NRD_API bool nrd_exec_lora_has(nrd_exec *exec, uint64_t id);
/* Forgets an id; requests under way keep the adapter. NOT_FOUND: no such id. */
NRD_API nrd_error *nrd_exec_lora_unload(nrd_exec *exec, uint64_t id);

/* A request's adapter checked, copied and kept, or read from its folder, which takes milliseconds: the
 * request's lora_prepared is set, and enqueue only copies and queues. Not needed; after enqueue, or in its
 * place, it must be released. No adapter: does nothing. */
NRD_API nrd_error *nrd_exec_prepare_lora(nrd_exec *exec, nrd_exec_request *request);
NRD_API void nrd_exec_release_lora(nrd_exec *exec, nrd_exec_request *request);

/* ---- pictures ---- */

/* Reads a request's pictures, which takes milliseconds, seconds where they are large: images_prepared is set, input_ids is the
 * prompt with all rows of the pictures (ids past the vocabulary) until release, prompt_table_extra_ids is NULL (pictures are told
 * apart by what they show), and enqueue only queues. Not needed; after enqueue, or in its place, it must be released. No pictures:
 * does nothing. */
NRD_API nrd_error *nrd_exec_prepare_images(nrd_exec *exec, nrd_exec_request *request);
NRD_API void nrd_exec_release_images(nrd_exec *exec, nrd_exec_request *request);

typedef struct nrd_exec_picture_stats {
    uint32_t size;
    uint64_t n_hits, n_misses; /* pictures since the start whose rows were there, and not */
    uint64_t bytes;            /* of rows that are kept */
} nrd_exec_picture_stats;
/* Set out->size first. False: the model does not see. */
NRD_API bool nrd_exec_picture_get_stats(nrd_exec *exec, nrd_exec_picture_stats *out);

typedef struct nrd_exec_lora_stats {
    uint32_t size;
    int32_t n_host, n_device;     /* adapters there */
    int32_t n_pinned;             /* uses by requests under way */
    int32_t n_pages, n_free_pages; /* of the device's cache; 0 where it reads host memory */
    uint64_t host_bytes;
    uint64_t n_loaded, n_evicted_host, n_evicted_device; /* since the start, as what follows */
    uint64_t n_hits, n_misses; /* ids that requests asked for: in host memory, and not */
    uint64_t n_stored;         /* adapters that came to host memory, with requests or from folders */
    uint64_t host_us, device_us; /* that it took to bring adapters there, and from there to the device */
} nrd_exec_lora_stats;
NRD_API void nrd_exec_lora_get_stats(nrd_exec *exec, nrd_exec_lora_stats *out); /* set out->size first */

/* ---- responses ---- */

typedef struct nrd_beam_output {
    const int32_t *ids;        /* streaming, one beam: since the last response; else all */
    int32_t n_ids;
    float cum_log_prob;
    const float *log_probs;    /* [n_log_probs] of generated tokens, same range as ids (no prompt) */
    int32_t n_log_probs;
    const int32_t *top_ids;    /* [n_log_probs, n_top] or NULL */
    const float *top_log_probs;
    nrd_finish_reason finish_reason;
} nrd_beam_output;

typedef struct nrd_perf_metrics {
    int64_t arrival_ns, first_scheduled_ns, first_token_ns, last_token_ns;
    int32_t kv_new_blocks, kv_reused_blocks, kv_total_blocks;
    int32_t n_draft_tokens, n_accepted_draft_tokens;
    int32_t n_paused;
} nrd_perf_metrics;

typedef struct nrd_exec_response {
    uint32_t size;
    uint64_t id, client_id;
    bool is_final;             /* the request is over: no further response for this id */
    bool is_sequence_final;    /* this sequence is over (num_return_sequences > 1) */
    int32_t sequence_index;
    nrd_error *error;          /* owned by the response; NULL: fine */
    int32_t n_beams;
    const nrd_beam_output *beams;
    int32_t n_input_ids;
    const float *context_logits;    /* [n_input_ids, vocab] in the last answer of sequence 0; or NULL */
    /* [n_beams, n_generation_logits, vocab]: of the tokens' own paths, zeros behind the end of shorter beams; NULL: not
     * asked for, or beams that are streamed */
    const float *generation_logits;
    int32_t n_generation_logits, vocab;
    nrd_perf_metrics perf;     /* filled in the final response */
    const float *embedding;    /* [n_embedding] with pooling, not normalised; or NULL. With NRD_POOLING_LABELS the labels'
                                * numbers, before any function */
    int32_t n_embedding;
    int32_t n_top;             /* of the beams' top_ids: the request's n_top_logprobs */
    float no_speech_prob;      /* of the request's no_speech_id; below 0: not asked for */
    /* Of the prompt's tokens in the first response; NULL: not asked for. The first token has nothing before it: 0, 0, ids -1. */
    const float *prompt_log_probs;     /* [n_input_ids] */
    const int32_t *prompt_ranks;       /* [n_input_ids] how many tokens were likelier, and 1 */
    const int32_t *prompt_top_ids;     /* [n_input_ids, n_prompt_top] the best, best first */
    const float *prompt_top_log_probs; /* [n_input_ids, n_prompt_top] */
    int32_t n_prompt_top;
    /* Of a NRD_REQUEST_CONTEXT_ONLY, in its only response that is no error: names what is kept of its prompt, and says nothing
     * else. Whoever knows these bytes can go on with the prompt, once. */
    const void *context_phase_params;
    size_t n_context_phase_params;
} nrd_exec_response;

/* Waits up to timeout_us (0: do not wait, -1: for ever) for responses of any request; at most max,
 * oldest first; *out_n is 0 on time-out and after shutdown when nothing is left. The caller frees
 * each. Several threads may wait; a response goes to exactly one. */
NRD_API nrd_error *nrd_exec_await(nrd_exec *exec, nrd_exec_response **out, int32_t max,
                                  int64_t timeout_us, int32_t *out_n);
/* The same for one request's responses; do not mix with await-any on the same request's id. */
NRD_API nrd_error *nrd_exec_await_id(nrd_exec *exec, uint64_t id, nrd_exec_response **out,
                                     int64_t timeout_us);
NRD_API void nrd_exec_response_free(nrd_exec_response *response);
/* True once shutdown was called and every response has been taken. */
NRD_API bool nrd_exec_is_done(nrd_exec *exec);

/* ---- statistics ---- */

typedef struct nrd_iter_stats {
    uint32_t size;
    uint64_t iteration;
    uint64_t timestamp_us;      /* wall clock */
    double iteration_ms;
    int32_t n_active, max_active, n_scheduled, n_context, n_generation, n_waiting, n_paused;
    int32_t n_terminated, n_context_tokens, micro_batch_id;
    int32_t n_generated_tokens, n_empty_generation_slots; /* V1 */
    int32_t kv_max_blocks, kv_free_blocks, kv_used_blocks, kv_tokens_per_block;
    int64_t kv_reused_blocks, kv_missed_blocks;
    uint64_t mem_cpu_bytes, mem_gpu_bytes, mem_pinned_bytes; /* in use */
    uint64_t host_ns, device_ns; /* of this step */
    uint64_t mem_reserved_bytes; /* with what is set aside: a CPU's cache takes memory as it fills */
    int32_t n_drafts;            /* sequences with a draft in this step, */
    int32_t n_draft_tokens, n_accepted_draft_tokens; /* its tokens, and those that held */
    uint64_t draft_ns;           /* that a draft model took before it */
    int64_t kv_unusable_blocks;  /* with the content of a prompt, but no recurrent state behind them was kept */
    int32_t kept_states, max_states; /* snapshots of recurrent states */
} nrd_iter_stats;

/* Takes up to max records, oldest first, that were not taken before. */
NRD_API int32_t nrd_exec_take_iter_stats(nrd_exec *exec, nrd_iter_stats *out, int32_t max);

/* Where the time of steps goes, with nrd_exec_config.profile_every. A row is one kind of operation
 * in one kind of step; "step" are whole steps, "gap" the times between two in which the device had
 * nothing to do, "enqueue" the host's work for a step, and the others parts of the steps that were
 * timed by operation (n_steps of them). */
typedef struct nrd_profile_row {
    uint32_t size;
    const char *operation; /* static */
    bool has_prompts;      /* steps with prompts; else one token a sequence */
    uint64_t n_steps, n_calls;
    double seconds, bytes, flops; /* sums; bytes and flops: what the shapes ask for at least */
    bool eight_bit;        /* the flops are those of 8-bit products */
} nrd_profile_row;
/* Up to `max` rows; *out_n = their number. With `reset` the sums start anew. UNSUPPORTED: off. */
NRD_API nrd_error *nrd_exec_profile(nrd_exec *exec, nrd_profile_row *out, int32_t max,
                                    int32_t *out_n, bool reset);

/* When a step, the host's work for it, or (in steps timed by operation) a part of it ran. */
typedef struct nrd_exec_span {
    uint32_t size;
    const char *operation;         /* static */
    bool is_host, is_part;         /* "enqueue"; a part of a step */
    int32_t n_sequences, n_tokens; /* of the step */
    double start_s, seconds;       /* since the first step began */
} nrd_exec_span;
/* Up to `max` of the spans kept so far, from number `first` on, in the order in which steps ended;
 * returns their number. Any thread. */
NRD_API int32_t nrd_exec_spans(nrd_exec *exec, nrd_exec_span *out, int32_t first, int32_t max);

/* ---- ending ---- */

/* Refuses new requests; running ones may finish until timeout_us has passed (-1: as long as they
 * need), then are cut with NRD_FINISH_CANCELLED. Blocks until the engine stands still; responses
 * remain to be taken. */
NRD_API nrd_error *nrd_exec_shutdown(nrd_exec *exec, int64_t timeout_us);
NRD_API void nrd_exec_close(nrd_exec *exec); /* shuts down at once if that has not happened */

/* The program of a rank above 0, which an executor with an engine of several ranks starts (`nereid worker
 * RANK`). It has the descriptors that the executor gave it, and does not return before that is closed. */
NRD_API int nrd_exec_worker_main(int32_t rank);

/* ---- errors ---- */

NRD_API int nrd_exec_error_code(const nrd_error *err); /* TRITONSERVER_Error_Code values */
NRD_API const char *nrd_exec_error_message(const nrd_error *err);
/* A word for programs (nereid/llm_tensors.h); NULL: none. */
NRD_API const char *nrd_exec_error_reason(const nrd_error *err);
NRD_API void nrd_exec_error_free(nrd_error *err);

/* Where a rank of the engine runs: this host's name, or another's with its address, "two (10.0.0.2)". "": there is no such rank. size:
 * room in `out`, with the end. Any thread. */
NRD_API void nrd_exec_rank_host(const nrd_exec *exec, int32_t rank, char *out, size_t size);

NRD_API bool nrd_exec_is_launched(void); /* this is rank 0 of several that a launcher started */
NRD_API const char *nrd_version(void); /* "0.1.0 (commit)" */
NRD_API const char *nrd_features(void); /* what this build has: "avx512 vnni pcre2 utf8proc …" */

/* ---- scoring ---- */

/* Log probabilities of given tokens (perplexity, evaluation): for i in [1, n): of ids[i] given those
 * before it; with top_k > 0 also the best top_k at each position, best first. Runs beside the
 * traffic as one request. out_logprobs [n] (entry 0 = 0), out_top_ids/out_top_logprobs [n, top_k]. */
NRD_API nrd_error *nrd_exec_score(nrd_exec *exec, const int32_t *ids, int32_t n, int32_t top_k,
                                  float *out_logprobs, int32_t *out_top_ids,
                                  float *out_top_logprobs);
/* The same with a LoRA adapter; 0: none. */
NRD_API nrd_error *nrd_exec_score_lora(nrd_exec *exec, uint64_t lora_task_id, const int32_t *ids,
                                       int32_t n, int32_t top_k, float *out_logprobs,
                                       int32_t *out_top_ids, float *out_top_logprobs);

/* Of the last n_last of these tokens only: positions whose next token is none of them do not go through the LM head.
 * out_logprobs [n_last], out_top_ids/out_top_logprobs [n_last, top_k]. */
NRD_API nrd_error *nrd_exec_score_last(nrd_exec *exec, uint64_t lora_task_id, const int32_t *ids, int32_t n, int32_t n_last,
                                       int32_t top_k, float *out_logprobs, int32_t *out_top_ids, float *out_top_logprobs);

/* The same, with whole rows: `on_row` is called by the engine's thread with the logits [vocab] behind ids[position], for
 * every position in order. */
NRD_API nrd_error *nrd_exec_score_rows(nrd_exec *exec, const int32_t *ids, int32_t n,
                                       void (*on_row)(void *user, int32_t position, const float *logits), void *user);
/* The same with a LoRA adapter; 0: none. */
NRD_API nrd_error *nrd_exec_score_rows_lora(nrd_exec *exec, uint64_t lora_task_id, const int32_t *ids, int32_t n,
                                            void (*on_row)(void *user, int32_t position, const float *logits), void *user);

#ifdef __cplusplus
}
#endif
#endif
