/* SPDX-License-Identifier: Apache-2.0
 * engine/run/weights.h - an engine folder's weights, on a device, by their place in the network.
 *
 * Purpose   Finds every weight that the spec asks for, loads it through the device (mapped in place
 *           where it can be), and notes the input type that each product wants. Of some layers the
 *           matrices may be streamed (weight_stream.h).
 * Owner     Immutable after load; borrows the engine folder and the device until freed.
 *           kv_dtype: what the cache will hold; int8 needs scales in the engine.
 * Errors    NOT_FOUND / INVALID_ARG name the weight; UNSUPPORTED for what the runner cannot run.
 */
#ifndef NRD_ENGINE_RUN_WEIGHTS_H
#define NRD_ENGINE_RUN_WEIGHTS_H

#include "engine/run/weight_stream.h"
#include "model/engine.h"
#include "nereid/device.h"

/* One product with up to three stacked matrices, and what it wants to be fed. */
typedef struct nrd_product {
    int32_t n;
    const nrd_weight *w[NRD_LINEAR_MAX_PARTS];
    const nrd_weight *bias[NRD_LINEAR_MAX_PARTS];
    int64_t cols, rows; /* rows: sum over parts */
    nrd_dtype in_dtype;
    size_t in_row_bytes;
    bool in_row_scale;
    bool can_be_plain; /* in_dtype is ACT_Q8, or in steps of many rows the activation type (nrd_run_choose_inputs) */
    size_t rounded_row_bytes; /* then in_row_bytes of ACT_Q8 */
    bool rounds_input; /* in_dtype is the activation type, the product itself makes 8 bits of it */
    /* Columns of the weights are in another order or want the input's multiplied: in_* say what is handed in, and what is multiplied
     * is made of that, in made_dtype: columns order[0], order[1], …, times scale[0], scale[1], …. */
    bool is_ordered, is_scaled;
    size_t order_at, scale_at; /* of nrd_weights.orders and .scales: cols numbers each */
    nrd_dtype made_dtype;
    bool made_row_scale;
    bool int8_x; /* nrd_linear_args.int8_x: parts of int8 were made for an input in int8 */
} nrd_product;

/* Whether what is multiplied is not what is handed in. */
static inline bool nrd_product_makes_input(const nrd_product *p)
{
    return p->is_ordered || p->is_scaled;
}

/* A layer's experts, instead of an MLP. */
typedef struct nrd_experts {
    nrd_product router;              /* logits of all experts, behind them the gate's of the shared ones */
    const nrd_weight *score_bias;    /* float32, or NULL */
    nrd_product up, down;            /* stacked weights; rows are one expert's */
    nrd_product shared_up, shared_down; /* n is 0 where there are none */
    /* Beside an MLP: norms of what the router, the experts and then the sum read; float32 factors of the experts. Else NULL. */
    const nrd_weight *router_norm, *norm, *post_norm, *mlp_post_norm, *scale;
} nrd_experts;

/* What a layer with latent attention has beside qkv, which makes the queries of the state, or what they are made of. */
typedef struct nrd_latent_layer {
    nrd_product kv_a;         /* the row that is cached, before its norm; reads what qkv reads */
    nrd_product q_b;          /* n is 0 where qkv gives the queries */
    const nrd_weight *q_norm; /* before q_b; NULL without */
    const nrd_weight *kv_norm, *k_b, *v_b;
} nrd_latent_layer;

/* A layer with a state, instead of attention. All but the products are float32. */
typedef struct nrd_recurrent {
    nrd_product in, out; /* n is 0 in layers with attention */
    const nrd_weight *conv, *conv_bias, *a, *d, *dt_bias, *norm; /* NULL: its kind has none */
    nrd_product x_dt, x_bc, dt;          /* of Mamba: what time steps are made of; b and c; the time steps. n is 0 without */
    const nrd_weight *dt_norm, *bc_norm, *c_norm; /* of the first; of b and of c; of c alone, or NULL */
    const nrd_weight *in_gate, *in_gate_bias, *decay_gate, *decay_gate_bias, *decay; /* of RG_LRU */
} nrd_recurrent;

/* A layer that reads a picture's states, in front of the one that it is counted with (Llama 3.2 Vision). */
typedef struct nrd_picture_layer {
    const nrd_weight *attn_norm, *mlp_norm;
    const nrd_weight *q_norm, *k_norm;
    nrd_product q, kv, dense; /* n is 0 where there is none; kv reads the states */
    nrd_product up, down;
    float attn_gate, mlp_gate; /* tanh of the weights: what attention and MLP give is multiplied by them */
} nrd_picture_layer;

/* What a layer has where tokens have several states. All but the products are float32. */
typedef struct nrd_altup_layer {
    const nrd_weight *router_norm, *router, *predict, *correct, *scale;
    nrd_product laurel_left, laurel_right; /* n is 0 where tokens have one state */
    const nrd_weight *laurel_norm;
} nrd_altup_layer;

/* What a second embedding has for a layer, and how it comes to the state. */
typedef struct nrd_layer_input {
    nrd_product gate, proj; /* n is 0 where there is none */
    const nrd_weight *norm;
} nrd_layer_input;

/* What a picture's embeddings take in a layer instead of qkv, dense, up and down, with the same types of inputs. */
typedef struct nrd_picture_weights {
    nrd_product qkv, dense, up, down; /* n is 0 where there are none */
} nrd_picture_weights;

typedef struct nrd_layer {
    const nrd_weight *attn_norm, *attn_norm_bias; /* NULL: none before attention */
    nrd_product qkv, dense; /* n is 0 where the layer has a state */
    nrd_latent_layer latent; /* kv_a.n is 0 where heads have keys and values of their own */
    nrd_product gate;       /* of what attention gives; n is 0 where there is none */
    int32_t kv_layer;       /* which of the layers with a KV cache; -1: it has no attention */
    bool q_only;            /* that cache is another layer's; qkv makes queries */
    nrd_altup_layer altup;
    nrd_layer_input input;
    nrd_recurrent recurrent;
    const nrd_weight *q_norm, *k_norm, *q_norm_bias, *k_norm_bias; /* NULL: none */
    const nrd_weight *sinks;          /* float32, or NULL */
    float xielu_p, xielu_n;           /* of that activation */
    const nrd_weight *kv_scales;      /* nrd_kv_layer's, of an 8-bit cache; NULL: the engine has none, or the cache is another layer's */
    uint64_t kv_scales_hash;          /* of their bits; 0 without */
    const nrd_weight *inner_attn_norm, *inner_attn_bias, *inner_mlp_norm, *inner_mlp_bias; /* NULL: none in front of dense and down */
    const nrd_weight *post_attn_norm; /* Gemma */
    const nrd_weight *cross_norm, *cross_norm_bias;
    nrd_product cross_q, cross_kv, cross_dense; /* n is 0 where the model has no encoder; cross_kv reads its states */
    nrd_picture_layer picture;
    nrd_picture_weights of_picture;
    const nrd_weight *mlp_norm, *mlp_norm_bias; /* NULL: none before the MLP, or attention's */
    nrd_product up, down; /* n is 0 where the layer has experts, or neither */
    nrd_experts experts;  /* router.n is 0 where it has none */
    const nrd_weight *post_mlp_norm; /* Gemma */
    float scale;                     /* of the state behind the layer; 0: 1 */
} nrd_layer;

typedef struct nrd_weights {
    const nrd_weight *embed, *pos_embed, *type_embed, *embed_norm, *embed_norm_bias;
    nrd_product embed_proj; /* from a normed embedding to a state; n is 0 where they are alike */
    nrd_product conv1, conv2; /* over three rows each; n is 0 where the model reads tokens */
    nrd_product mtp_fc; /* of an embedding and a state beside each other, each behind its norm; n is 0 but in MTP layers */
    const nrd_weight *mtp_embed_norm, *mtp_state_norm;
    nrd_layer *layers; /* of this rank's stage */
    const nrd_weight *per_layer_embed, *per_layer_norm; /* where layers have inputs of their own */
    nrd_product per_layer_proj;
    nrd_product altup_in[NRD_SPEC_ALTUP_STATES - 1], altup_out[NRD_SPEC_ALTUP_STATES - 1]; /* of the states behind the first */
    const nrd_weight *final_norm, *final_norm_bias;
    nrd_product lm_head; /* n is 0 where the stage has none */
    float *rope_factors;     /* host, or NULL */
    size_t max_in_row_bytes; /* over all products */
    int32_t *orders;         /* host, [n_orders]: of all products with an order, each a permutation; NULL */
    float *scales;           /* host, [n_scales]: of all products whose input is multiplied, or NULL */
    size_t n_orders, n_scales;
    size_t max_made_row_bytes; /* of products that make their input; 0: none does */
    nrd_dtype act_dtype;
    nrd_weight_stream *streamed; /* NULL: all are on the device */
    /* private */
    nrd_device *dev;
    struct nrd_loaded *loaded;
    size_t n_loaded, cap_loaded;
} nrd_weights;

typedef struct nrd_weights_config {
    nrd_dtype act_dtype, kv_dtype;
    bool compute_f32; /* dequantize everything to float32 first */
    double streamed_share; /* of the weights' bytes, 0 to 1, that must not be on the device */
    int32_t rank;
} nrd_weights_config;

nrd_error *nrd_weights_load(nrd_weights *out, nrd_stream *s, nrd_device *dev, const nrd_engine *e,
                            const nrd_weights_config *config) NRD_MUST_USE;
void nrd_weights_unload(nrd_weights *w);

#endif
