/* SPDX-License-Identifier: Apache-2.0
 * nereid/device.h - the device interface: arithmetic.
 *
 * Purpose   What an engine asks of hardware: memory, ordered streams, and the operations of a
 *           decoder, over ragged batches and a paged KV cache. "cpu" is built in; others are shared
 *           objects (nereid_<name>.so) that export nrd_device_plugin.
 * Owner     A device may be opened by many engines. A stream belongs to one thread at a time.
 * Model     Operations are *enqueued* on a stream in order; they may run later, up to stream_sync
 *           (the CPU runs a whole step in one fork-join; CUDA launches kernels). Argument structs
 *           are copied at the call; the arrays that they point to must stay until the stream has
 *           passed the operation. All `void *` and array arguments are device memory unless said.
 * Parts     nereid/device/: core.h (memory, weights, the tokens of a step), then the arguments of the operations by kind;
 *           here the table of functions. Who uses the interface includes this header.
 * Units     Row-major; shapes beside pointers; n_tokens = packed tokens of all sequences in the
 *           step, no padding. Strides are in elements; 0 = dense.
 * Errors    Enqueue functions return NULL or an error: UNSUPPORTED (this device cannot do this
 *           combination), INVALID_ARG (shape or type against the contract; a broken caller),
 *           UNAVAILABLE (memory), INTERNAL (device fault: the engine is lost). Faults of launched
 *           work surface at stream_sync or event_wait.
 * ABI       A plug-in is of the same tree as the program that opens it: it exports the NRD_DEVICE_ID
 *           that it was compiled with (the build makes it from the version and the text of this header, its
 *           parts and nereid/dtype.h), and is opened only where that is the program's own. So there are no
 *           sizes or versions in the structures. A function pointer that is NULL is absent. Errors are
 *           made, read and freed by the program's functions, which the plug-in is given.
 * Sources   Paged attention (Kwon et al., SOSP 2023); rotary embedding (Su et al., 2021);
 *           RMSNorm (Zhang & Sennrich, 2019); min-p (Nguyen et al., 2024); mixture of experts (Shazeer et al.,
 *           2017), groups of experts and corrected scores (DeepSeek-V3, 2024); selective state spaces (Gu & Dao,
 *           Mamba, 2023; Dao & Gu, Mamba-2, 2024); gated delta rule (Yang et al., 2025); alternating updates (Baykal et
 *           al., 2023).
 */
#ifndef NEREID_DEVICE_H
#define NEREID_DEVICE_H

#include "nereid/device/attention.h"
#include "nereid/device/comm.h"
#include "nereid/device/core.h"
#include "nereid/device/linear.h"
#include "nereid/device/moe.h"
#include "nereid/device/recurrent.h"
#include "nereid/device/sample.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the vtable ---- */

/* Modes of operations that a device may lack. */
typedef enum {
    NRD_FEATURE_WIDE_QK_NORM = 0,   /* rope_kv */
    NRD_FEATURE_ALIBI = 1,          /* attention */
    NRD_FEATURE_EXPERTS = 2,        /* moe_route, moe_linear, moe_sum */
    NRD_FEATURE_ENCODER = 3,        /* embed, norm, attention */
    NRD_FEATURE_SINK_LOGITS = 4,    /* attention */
    NRD_FEATURE_QUERY_FORMS = 5,    /* rope_kv */
    NRD_FEATURE_CHUNKS = 6,         /* attention */
    NRD_FEATURE_XIELU = 7,          /* act */
    NRD_FEATURE_INPUT_SCALE = 8,    /* act, moe_sum */
    NRD_FEATURE_LATENT = 9,         /* latent_kv, latent_attention, and their cache in the others */
    NRD_FEATURE_REL_BIAS = 10,      /* attention; rope_kv with n_heads 0 */
    NRD_FEATURE_RECURRENT = 11,     /* short_conv, ssm, delta_rule, gated_norm, rg_lru */
    NRD_FEATURE_ROPE_AXES = 12,     /* rope_kv */
    NRD_FEATURE_ALTUP = 13,         /* altup_predict, altup_correct, altup_match; act */
    NRD_FEATURE_SHARED_KV = 14,     /* rope_kv */
    NRD_FEATURE_EMBED_COLUMNS = 15, /* embed */
} nrd_feature;

typedef struct nrd_device_ops {
    void (*close)(nrd_device *dev);
    void (*get_info)(nrd_device *dev, nrd_device_info *info); /* fresh free-memory figure */

    nrd_error *(*alloc)(nrd_device *dev, void **out, nrd_mem_kind kind, size_t bytes,
                        const char *pool_name); /* zeroed, 256-byte aligned */
    void (*free)(nrd_device *dev, nrd_mem_kind kind, void *p);
    int32_t (*mem_report)(nrd_device *dev, nrd_mem_report *rows, int32_t max_rows);

    nrd_error *(*stream_new)(nrd_device *dev, nrd_stream **out);
    void (*stream_free)(nrd_stream *s);
    nrd_error *(*stream_sync)(nrd_stream *s); /* all enqueued work is done */
    nrd_error *(*event_new)(nrd_device *dev, nrd_event **out);
    void (*event_free)(nrd_event *e);
    nrd_error *(*event_record)(nrd_stream *s, nrd_event *e);
    nrd_error *(*event_wait)(nrd_event *e);                  /* host waits */
    nrd_error *(*stream_wait)(nrd_stream *s, nrd_event *e);  /* stream waits */
    nrd_error *(*graph_begin)(nrd_stream *s);                /* NULL pointer: no graphs */
    nrd_error *(*graph_end)(nrd_stream *s, nrd_graph **out);
    nrd_error *(*graph_launch)(nrd_stream *s, nrd_graph *g);
    void (*graph_free)(nrd_graph *g);

    nrd_error *(*copy)(nrd_stream *s, void *dst, const void *src, size_t bytes); /* any direction */
    nrd_error *(*fill)(nrd_stream *s, void *dst, int byte, size_t bytes);

    /* How this device wants a weight kept: its layout number and byte count; layout ROWS means "as
     * it is". Asked at build (packed bytes go into the engine file) and at load (a file with another
     * layout is converted). `is_linear`: used by linear(), else only by embed(). Of a stack: one of its
     * matrices. */
    nrd_error *(*weight_plan)(nrd_device *dev, nrd_dtype dtype, int64_t rows, int64_t cols,
                              bool is_linear, uint32_t *out_layout, uint64_t *out_bytes);
    /* Packs host rows into host memory `dst` of the planned size. */
    nrd_error *(*weight_pack)(nrd_device *dev, const nrd_weight *src_rows, uint32_t layout, void *dst);
    /* Makes a host weight usable: maps in place when it can (CPU), else uploads, converting the
     * layout. `out->data` borrows `src->data` if *out_owned is false. */
    nrd_error *(*weight_load)(nrd_stream *s, const nrd_weight *src, bool is_linear, nrd_weight *out,
                              bool *out_owned);
    void (*weight_unload)(nrd_device *dev, nrd_weight *w); /* only owned ones */

    /* The input type that linear() wants for this weight, and the bytes of one row of `cols`. */
    nrd_dtype (*linear_input)(nrd_device *dev, const nrd_weight *w, nrd_dtype act_dtype,
                              size_t *out_row_bytes, bool *out_row_scale);
    /* Of K and V of one layer together; 0: this device has no cache of this type. */
    size_t (*kv_block_bytes)(nrd_device *dev, nrd_dtype dtype, int32_t block_tokens,
                             int32_t n_kv_heads, int32_t head_dim);
    /* Tells the device the largest shapes so that it can take its scratch memory now. */
    nrd_error *(*reserve)(nrd_stream *s, int32_t max_tokens, int32_t max_seqs, int32_t max_hidden,
                          int32_t max_ctx_len, int32_t vocab);

    nrd_error *(*embed)(nrd_stream *s, const nrd_embed_args *a);
    nrd_error *(*norm)(nrd_stream *s, const nrd_norm_args *a);
    nrd_error *(*linear)(nrd_stream *s, const nrd_linear_args *a);
    nrd_error *(*rope_kv)(nrd_stream *s, const nrd_rope_kv_args *a);
    nrd_error *(*attention)(nrd_stream *s, const nrd_attention_args *a);
    nrd_error *(*act)(nrd_stream *s, const nrd_act_args *a);
    nrd_error *(*sample)(nrd_stream *s, const nrd_sample_args *a);
    nrd_error *(*counts)(nrd_stream *s, const nrd_counts_args *a);
    nrd_error *(*copy_blocks)(nrd_stream *s, const nrd_copy_blocks_args *a);

    /* Time between two recorded events that the stream has passed. NULL pointer: not measured. */
    nrd_error *(*event_elapsed)(nrd_event *from, nrd_event *to, double *out_seconds);

    /* Measures for about a second, with nothing else running (a GPU: in 2 GiB of its memory). NULL pointer: not measured. */
    nrd_error *(*limits)(nrd_device *dev, nrd_device_limits *out);

    /* linear() and then sample() of its results, which no other operation reads: the device need
     * not write l->y (= a->logits). Same choices as of the two calls. The rows, and what they
     * point to, must be there at the call. `rough`, or NULL, stands for l->w[0]: with it the device may look for what can
     * be chosen in half the bytes, and multiply only that by the weight itself. NULL pointer: the two calls. */
    nrd_error *(*linear_sample)(nrd_stream *s, const nrd_linear_args *l, const nrd_rough_weight *rough,
                                const nrd_sample_args *a);

    /* Settles which kernels linear() takes for these weights with 1 to a->n_tokens rows, by trying those
     * of which nothing is known yet for about `seconds` at most; waits. x (a->x, writable), a->x_row_scale
     * and a->y are filled with something else. Without it, and beyond that time, linear() estimates. Not
     * while a graph is recorded. NULL pointer: there is nothing to settle. */
    nrd_error *(*linear_tune)(nrd_stream *s, const nrd_linear_args *a, void *x, double seconds);

    /* Collective operations; these five NULL: this device works alone. comm_open waits for nobody. A comm is
     * closed when its last operation is over. */
    size_t (*comm_bytes)(nrd_device *dev, const nrd_comm_config *config);
    nrd_error *(*comm_open)(nrd_device *dev, const nrd_comm_config *config, nrd_comm **out);
    void (*comm_close)(nrd_comm *c); /* NULL is fine */
    nrd_error *(*all_reduce)(nrd_stream *s, const nrd_all_reduce_args *a);
    nrd_error *(*gather)(nrd_stream *s, const nrd_gather_args *a);

    /* NULL pointer: no adapters on this device. */
    nrd_error *(*lora)(nrd_stream *s, const nrd_lora_args *a);

    /* Where ranks reach into each other's memory; NULL pointers: they need not, any memory will do.
     * comm_alloc: device memory for what collective operations read and write; zeroed, 256-byte aligned, freed
     * with the comm. Every rank asks for the same sizes in the same order. Behind that comm_meet, before the first
     * operation: waits for ranks that have not asked yet. */
    nrd_error *(*comm_alloc)(nrd_comm *c, void **out, size_t bytes, const char *pool_name);
    nrd_error *(*comm_meet)(nrd_comm *c);
    /* Needed where steps are enqueued ahead: only rank 0 chooses tokens. NULL pointer: they are not. */
    nrd_error *(*broadcast)(nrd_stream *s, const nrd_broadcast_args *a);
    /* NULL pointer: the two calls. */
    nrd_error *(*all_reduce_norm)(nrd_stream *s, const nrd_all_reduce_norm_args *a);
    /* Between groups. A rank hears from one other only. NULL pointers: no pipeline stages on this device. */
    nrd_error *(*send)(nrd_stream *s, const nrd_transfer_args *a);
    nrd_error *(*receive)(nrd_stream *s, const nrd_transfer_args *a);

    /* Asked before a model's weights are loaded. NULL pointer: none of them. */
    bool (*has_feature)(nrd_device *dev, nrd_feature feature);

    /* NULL pointers: not on this device. Models run on them where has_feature says NRD_FEATURE_EXPERTS. */
    nrd_error *(*moe_route)(nrd_stream *s, const nrd_moe_route_args *a);
    nrd_error *(*moe_linear)(nrd_stream *s, const nrd_moe_linear_args *a);
    nrd_error *(*moe_sum)(nrd_stream *s, const nrd_moe_sum_args *a);

    /* NULL pointers: not on this device. Models run on them where has_feature says NRD_FEATURE_LATENT. */
    nrd_error *(*latent_kv)(nrd_stream *s, const nrd_latent_kv_args *a);
    nrd_error *(*latent_attention)(nrd_stream *s, const nrd_latent_attention_args *a);

    /* What holds of a token tree moves together (nrd_batch_view.tree_mask). NULL pointer: no token trees. */
    nrd_error *(*move_tokens)(nrd_stream *s, const nrd_move_tokens_args *a);

    /* NULL pointers: not on this device. Models run on them where has_feature says NRD_FEATURE_RECURRENT. */
    nrd_error *(*short_conv)(nrd_stream *s, const nrd_short_conv_args *a);
    nrd_error *(*ssm)(nrd_stream *s, const nrd_ssm_args *a);
    nrd_error *(*delta_rule)(nrd_stream *s, const nrd_delta_rule_args *a);
    nrd_error *(*gated_norm)(nrd_stream *s, const nrd_gated_norm_args *a);
    nrd_error *(*rg_lru)(nrd_stream *s, const nrd_rg_lru_args *a);

    /* NULL pointer: not on this device. */
    nrd_error *(*add_rows)(nrd_stream *s, const nrd_add_rows_args *a);

    nrd_error *(*sum_spans)(nrd_stream *s, const nrd_sum_spans_args *a);

    /* With NRD_FEATURE_WIDE_QK_NORM. NULL pointer: heads of such a norm are not shared by ranks. */
    nrd_error *(*head_squares)(nrd_stream *s, const nrd_head_squares_args *a);

    /* NULL pointers: not on this device. Models run on them where has_feature says NRD_FEATURE_ALTUP. */
    nrd_error *(*altup_predict)(nrd_stream *s, const nrd_altup_predict_args *a);
    nrd_error *(*altup_correct)(nrd_stream *s, const nrd_altup_correct_args *a);
    nrd_error *(*altup_match)(nrd_stream *s, const nrd_altup_match_args *a);

    /* NULL pointer: not on this device. */
    nrd_error *(*clamp)(nrd_stream *s, const nrd_clamp_args *a);

    /* In float32, sums too. NULL pointer: not on this device, which has linear(). */
    nrd_error *(*matmul)(nrd_stream *s, const nrd_matmul_args *a);

    /* A product of two parts of as many rows each and its activation in one: y[n, rows of a part] = act(part 0) * part 1, as act() of a
     * gated pair has it, of sums that nothing has rounded in between. *done false: not for these types and shapes; nothing was done.
     * NULL pointers: never. */
    nrd_error *(*linear_gated)(nrd_stream *s, const nrd_linear_args *a, nrd_act_kind act, bool *done);
    nrd_error *(*moe_linear_gated)(nrd_stream *s, const nrd_moe_linear_args *a, nrd_act_kind act, bool *done);

    /* NULL pointer: not on this device, where rows of rope_kv are in the host's memory. */
    nrd_error *(*kv_rows)(nrd_stream *s, const nrd_kv_rows_args *a);

    /* *done false: not for these types and shapes; nothing was done. NULL pointers: never. */
    nrd_error *(*linear_joined)(nrd_stream *s, const nrd_joined_args *a, bool *done);
    /* rope_kv() and attention() of its q; qkv's row of q need not be written. */
    nrd_error *(*rope_attention)(nrd_stream *s, const nrd_rope_kv_args *k, const nrd_attention_args *a, bool *done);
} nrd_device_ops;

/* First member of every device object. */
struct nrd_device {
    const nrd_device_ops *ops;
};

typedef struct nrd_device_config {
    int32_t device_id;      /* GPU number */
    int32_t n_threads;      /* CPU; 0: as many cores as this process may use, divided by n_shares */
    int32_t share, n_shares; /* CPU: of the processors of this process the share-th of so many parts; 0, 0: all */
    const char *isa;        /* CPU: "" best, or "generic", "avx2", "avx512", "avx512vnni", "amx" */
    const char *timing_cache; /* file that keeps the choice of kernels from run to run; or NULL */
} nrd_device_config;

/* How a plug-in makes and reads errors: functions of the program that opens it. */
typedef struct nrd_device_host {
    nrd_error *(*error_new)(int code, const char *message); /* code: an nrd_error_code */
    nrd_error *(*error_no_memory)(void);
    int (*error_code)(const nrd_error *err);
    const char *(*error_message)(const nrd_error *err); /* borrows */
    void (*error_free)(nrd_error *err);
} nrd_device_host;

/* What a plug-in exports. The first is a string, looked at before anything is called; the second opens
 * a device or says in one line why not. `host` stays as long as the process. */
#define NRD_DEVICE_ID_SYMBOL "nrd_device_plugin_id"
#define NRD_DEVICE_PLUGIN_SYMBOL "nrd_device_plugin"
typedef nrd_error *(*nrd_device_plugin_fn)(const nrd_device_host *host,
                                           const nrd_device_config *config, nrd_device **out);

#ifdef __cplusplus
}
#endif
#endif
