/* SPDX-License-Identifier: Apache-2.0
 * device/cpu/cpu.h - inside the CPU device: what an operation's fast form is given.
 *
 * Purpose   An enqueued operation is a command: copied arguments, one to four phases, each a
 *           number of tasks. stream_sync lets all threads walk the list (walk.h): they take tasks and go
 *           on when all of a phase are done.
 * Owner     Commands belong to their stream. run() is called by many threads at once, each task
 *           once; what a task writes is its own. Results never depend on which thread ran a task.
 * Lifetime  Scratch is grown at enqueue, never in a run; steady steps allocate nothing.
 */
#ifndef NRD_DEVICE_CPU_CPU_H
#define NRD_DEVICE_CPU_CPU_H

#include "device/cpu/kernels.h"
#include "device/cpu/prefix.h"
#include "device/cpu/threads.h"

#include <stdatomic.h>

enum { NRD_CPU_MAX_PHASES = 6 };

typedef struct nrd_cpu_cmd nrd_cpu_cmd;

typedef struct nrd_cpu_run {
    const nrd_cpu_kernels *k;
    int thread;
    uint8_t *scratch;   /* this thread's; as many bytes as the command asked for */
    uint8_t *shared;    /* all threads' */
    const void *owner;  /* command that this thread's scratch was filled for; NULL at the start */
} nrd_cpu_run;

typedef struct nrd_cpu_op {
    void (*run)(nrd_cpu_run *r, nrd_cpu_cmd *c, int phase, int32_t task);
} nrd_cpu_op;

typedef struct nrd_cpu_copy_args {
    void *dst;
    const void *src; /* NULL: fill with `byte` */
    size_t bytes;
    int byte;
} nrd_cpu_copy_args;

struct nrd_cpu_cmd {
    const nrd_cpu_op *op;
    const nrd_cpu_kernels *k;
    int32_t n_tasks[NRD_CPU_MAX_PHASES]; /* 0: phase left out */
    _Atomic uint32_t done[NRD_CPU_MAX_PHASES]; /* tasks */
    size_t scratch_bytes, shared_bytes;
    nrd_batch_view view; /* copy of the batch, if the arguments have one */
    const nrd_cpu_prefix *prefix; /* of the view, with at least one group; or NULL */
    int32_t i[10];       /* the operation's own numbers */
    size_t at[4];        /* the operation's own places in scratch and shared memory */
    union {
        nrd_embed_args embed;
        nrd_add_rows_args add_rows;
        nrd_sum_spans_args sum_spans;
        nrd_clamp_args clamp;
        nrd_norm_args norm;
        nrd_linear_args linear;
        nrd_rope_kv_args rope_kv;
        nrd_head_squares_args head_squares;
        nrd_attention_args attention;
        nrd_latent_kv_args latent_kv;
        nrd_latent_attention_args latent_attention;
        nrd_act_args act;
        nrd_sample_args sample;
        nrd_counts_args counts;
        nrd_copy_blocks_args copy_blocks;
        nrd_move_tokens_args move_tokens;
        nrd_lora_args lora;
        nrd_moe_route_args moe_route;
        nrd_moe_linear_args moe_linear;
        nrd_moe_sum_args moe_sum;
        nrd_short_conv_args short_conv;
        nrd_ssm_args ssm;
        nrd_delta_rule_args delta_rule;
        nrd_gated_norm_args gated_norm;
        nrd_rg_lru_args rg_lru;
        nrd_altup_predict_args altup_predict;
        nrd_altup_correct_args altup_correct;
        nrd_altup_match_args altup_match;
        nrd_cpu_copy_args copy;
        nrd_all_reduce_args all_reduce;
        nrd_gather_args gather;
        nrd_transfer_args transfer;
        struct {
            nrd_linear_args linear; /* first: also u.linear */
            nrd_sample_args sample;
            nrd_rough_weight rough; /* w NULL: none */
        } linear_sample;
        struct {
            nrd_linear_args linear; /* first: also u.linear */
            nrd_act_kind act;
        } linear_gated;
    } u;
};

/* Each sets op, n_tasks and the scratch sizes of a command whose checked arguments are in c->u;
 * UNSUPPORTED for what the CPU does not do. n_threads: of the pool. */
nrd_error *nrd_embed_cpu(nrd_cpu_cmd *c, int n_threads) NRD_MUST_USE;
nrd_error *nrd_add_rows_cpu(nrd_cpu_cmd *c, int n_threads) NRD_MUST_USE;
nrd_error *nrd_sum_spans_cpu(nrd_cpu_cmd *c, int n_threads) NRD_MUST_USE;
nrd_error *nrd_clamp_cpu(nrd_cpu_cmd *c, int n_threads) NRD_MUST_USE;
nrd_error *nrd_norm_cpu(nrd_cpu_cmd *c, int n_threads) NRD_MUST_USE;
nrd_error *nrd_linear_cpu(nrd_cpu_cmd *c, int n_threads) NRD_MUST_USE;
nrd_error *nrd_rope_kv_cpu(nrd_cpu_cmd *c, int n_threads) NRD_MUST_USE;
nrd_error *nrd_head_squares_cpu(nrd_cpu_cmd *c, int n_threads) NRD_MUST_USE;
nrd_error *nrd_attention_cpu(nrd_cpu_cmd *c, int n_threads) NRD_MUST_USE;
/* Whether the command may use c->prefix: common beginnings of at least NRD_ATTN_MIN_SHARED tokens. */
enum { NRD_ATTN_MIN_SHARED = 128 };
bool nrd_attention_cpu_shares(const nrd_attention_args *a, const nrd_cpu_kernels *k, int n_threads);
nrd_error *nrd_latent_kv_cpu(nrd_cpu_cmd *c, int n_threads) NRD_MUST_USE;
nrd_error *nrd_latent_attention_cpu(nrd_cpu_cmd *c, int n_threads) NRD_MUST_USE;
nrd_error *nrd_act_cpu(nrd_cpu_cmd *c, int n_threads) NRD_MUST_USE;
nrd_error *nrd_sample_cpu(nrd_cpu_cmd *c, int n_threads) NRD_MUST_USE;
/* *out_fits says whether the command does this; if not, it is left as it was. */
nrd_error *nrd_linear_sample_cpu(nrd_cpu_cmd *c, int n_threads, bool *out_fits) NRD_MUST_USE;
nrd_error *nrd_linear_gated_cpu(nrd_cpu_cmd *c, nrd_act_kind act, int n_threads, bool *out_fits) NRD_MUST_USE;
nrd_error *nrd_counts_cpu(nrd_cpu_cmd *c, int n_threads) NRD_MUST_USE;
nrd_error *nrd_copy_blocks_cpu(nrd_cpu_cmd *c, int n_threads) NRD_MUST_USE;
nrd_error *nrd_move_tokens_cpu(nrd_cpu_cmd *c, int n_threads) NRD_MUST_USE;
nrd_error *nrd_lora_cpu(nrd_cpu_cmd *c, int n_threads) NRD_MUST_USE;
nrd_error *nrd_moe_route_cpu(nrd_cpu_cmd *c, int n_threads) NRD_MUST_USE;
nrd_error *nrd_moe_linear_cpu(nrd_cpu_cmd *c, int n_threads) NRD_MUST_USE;
nrd_error *nrd_moe_sum_cpu(nrd_cpu_cmd *c, int n_threads) NRD_MUST_USE;
nrd_error *nrd_short_conv_cpu(nrd_cpu_cmd *c, int n_threads) NRD_MUST_USE;
nrd_error *nrd_ssm_cpu(nrd_cpu_cmd *c, int n_threads) NRD_MUST_USE;
nrd_error *nrd_delta_rule_cpu(nrd_cpu_cmd *c, int n_threads) NRD_MUST_USE;
nrd_error *nrd_gated_norm_cpu(nrd_cpu_cmd *c, int n_threads) NRD_MUST_USE;
nrd_error *nrd_rg_lru_cpu(nrd_cpu_cmd *c, int n_threads) NRD_MUST_USE;
nrd_error *nrd_altup_predict_cpu(nrd_cpu_cmd *c, int n_threads) NRD_MUST_USE;
nrd_error *nrd_altup_correct_cpu(nrd_cpu_cmd *c, int n_threads) NRD_MUST_USE;
nrd_error *nrd_altup_match_cpu(nrd_cpu_cmd *c, int n_threads) NRD_MUST_USE;

/* nrd_device_ops.limits */
nrd_error *nrd_cpu_limits(const nrd_cpu_kernels *k, nrd_threads *pool, nrd_device_limits *out)
    NRD_MUST_USE;

#endif
