/* SPDX-License-Identifier: Apache-2.0
 * engine/run/tower_internal.h - the vision tower from the inside, for the files that make it up.
 *
 *   tower.c         creation, one picture
 *   tower_load.c    weights, with tower_weights.c, which has norms and products of them
 *   tower_layers.c  layers, which most towers share, with tower_ops.c, which has what they are made of
 *   tower_merge.c   squares of patches as rows of the decoder
 *   tower_fixed.c   what is before and behind the layers where pictures are squares of one size (CLIP, SigLIP)
 *   tower_border.c  squares of patches that lack some (VILA)
 *   tower_tiles.c   several such squares as one picture (LLaVA-NeXT, Phi-3-vision)
 *   tower_mllama.c  tiles that see each other, whose states layers of the decoder read (Llama 3.2 Vision)
 *   tower_queries.c rows that read the states (BLIP-2); tower_queries.h is what the next file takes of it
 *   tower_resampler.c rows that read them once (Qwen-VL)
 *   tower_latent.c  rows that read them and themselves (Kosmos-2)
 *   tower_cogvlm.c  weights, layers and what is behind them of CogVLM
 *   tower_gemma4.c  layers, and what is before and behind them, of Gemma 4
 *   tower_bare.c    one product instead of a tower (Fuyu, Pix2Struct)
 *   tower_swin.c    Swin, of pages (Donut, Nougat)
 *   tower_grid.c    the same where pictures keep their shape (Qwen2-VL)
 *
 * All of it belongs to the engine loop thread.
 */
#ifndef NRD_ENGINE_RUN_TOWER_INTERNAL_H
#define NRD_ENGINE_RUN_TOWER_INTERNAL_H

#include "engine/run/extra_product.h"
#include "engine/run/tower.h"

#define NRD_TOWER_POOL "vision tower"

/* Products of a layer of Gemma 4. */
enum { NRD_TOWER_Q, NRD_TOWER_K, NRD_TOWER_V, NRD_TOWER_GATE, NRD_TOWER_UP, NRD_TOWER_N_PARTS, NRD_TOWER_O = NRD_TOWER_N_PARTS, NRD_TOWER_DOWN, NRD_TOWER_N_PRODUCTS };

enum { NRD_TOWER_PADDED = 7 }; /* weights and biases of q, k, v, and the weight behind attention */

typedef struct nrd_tower_layer {
    nrd_extra_weight norm1, norm1_bias, norm2, norm2_bias;
    nrd_extra_product qkv, dense, up, down;
    nrd_extra_weight behind1, behind2, q_norm, k_norm; /* with s.sandwiched: of what attention and MLP add, and of heads */
    nrd_extra_product parts[NRD_TOWER_N_PARTS]; /* with s.clipped, in place of qkv and up */
    float bounds[NRD_TOWER_N_PRODUCTS][NRD_VISION_N_BOUNDS];
    uint8_t *sorted[4];                /* host: q, k and their norms as these are loaded; NULL: as they came */
    uint8_t *scaled[4];                /* host: weight and bias behind attention and MLP, with lambda_1 and lambda_2; NULL: as they came */
    uint8_t *gathered[6];              /* host: weights and biases of q, k, v that came head by head; NULL: as they came */
    uint8_t *padded[NRD_TOWER_PADDED]; /* host; NULL: as they came */
} nrd_tower_layer;

typedef struct nrd_tower_queries nrd_tower_queries;
typedef struct nrd_tower_swin nrd_tower_swin;
typedef struct nrd_tower_resampler nrd_tower_resampler;
typedef struct nrd_tower_latent nrd_tower_latent;

/* A norm, and two products of squares of patches side by side. */
typedef struct nrd_tower_merger {
    nrd_extra_weight norm, norm_bias;
    nrd_extra_product product1, product2;
} nrd_tower_merger;

struct nrd_tower {
    nrd_runner *r;
    nrd_vision_spec s;
    const nrd_vision *from;
    uint64_t bytes;
    int32_t most;     /* tokens that there is memory for */
    int32_t n;        /* tokens of the picture: class, then patches */
    int32_t n_class;
    int32_t head_dim; /* with zeros up to a width that the device's fast kernels know */
    nrd_tower_layer *layers; /* [s.n_layers] */
    nrd_extra_product patch, project1, project2;
    nrd_extra_product gate_up; /* with s.post_normed, between the two */
    nrd_extra_weight pre_norm, pre_norm_bias, post_norm, post_norm_bias, pool_norm;
    float *pool_weight;  /* [hidden] host, of pool_norm */
    float *shrunk[3];    /* host: the norm's weight and bias before one product, and that product's bias, where the decoder scales */
    uint8_t *projection; /* host: of project1 with pool_norm [decoder's hidden, hidden] or with resampled, or of merge [hidden, merge^2 * hidden] */
    void *start; /* [n, hidden] positions, and the class token in its row; fixed sizes only */
    void *pixels; /* [patches, numbers of a patch] */
    void *x, *delta, *normed, *qkv, *att, *up, *mid;
    nrd_extra_input in;
    float *scale; /* [most] of F8 */
    int32_t *arrays; /* of the views */
    nrd_batch_view view;
    nrd_kv_layer kv;
    uint8_t *staged; /* [patches, numbers of a patch] host */
    nrd_tower_queries *queries; /* NULL: there are none */
    nrd_tower_swin *swin;       /* likewise */
    nrd_tower_resampler *resampler; /* likewise */
    nrd_tower_latent *latent;       /* likewise */
    /* with s.read_by_layers only */
    nrd_batch_view seen; /* what attention reads: two sequences of one cache */
    void *taken;         /* [n_taken, most, hidden] states in front of the layers */
    nrd_extra_product project_taken[NRD_VISION_MAX_DEEP];
    uint8_t *parts[NRD_VISION_MAX_DEEP + 1]; /* host: columns of the projector */
    /* pictures of any size only */
    nrd_batch_view windows;   /* the same tokens, of which a window is a sequence */
    int32_t most_windows;     /* of a picture */
    int32_t *host_arrays;     /* room for what goes to `arrays` */
    int32_t *order;           /* [most / merge^2] host: the square, by rows of the picture, that is k-th in the layers */
    uint8_t *rows;            /* [most / merge^2, decoder's hidden] host, in that order */
    nrd_tower_merger *deep;   /* [s.n_deep] */
    nrd_extra_product merge;  /* one state of a square, with s.plain and squares of several, and with s.post_normed and s.shuffle */
    uint8_t *spread;          /* [most, hidden] host: learned positions of the picture's patches; NULL: there are none */
    uint8_t *out;             /* of the picture in hand, the caller's */
    float *inv_freq;          /* [head / 2]; NULL: no rotary positions */
    uint8_t *pair_axis;       /* [head / 2] */
};

static inline size_t nrd_tower_more(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Pictures of one size. */
static inline bool nrd_tower_has_pre_norm(const nrd_tower *t)
{
    return t->s.pre_norm || (t->s.has_class && !t->s.bare_class && !t->s.post_normed);
}

/* Patches of a square that becomes one row. */
static inline int32_t nrd_tower_merged(const nrd_tower *t)
{
    return t->s.merge * t->s.merge;
}

static inline int32_t nrd_tower_n_layers(const nrd_tower *t)
{
    return t->s.n_layers + t->s.n_global;
}

/* ---- tower_load.c ---- */

nrd_error *nrd_tower_load(nrd_tower *t) NRD_MUST_USE;
void nrd_tower_unload(nrd_tower *t);

/* ---- tower_weights.c ---- */

const nrd_weight *nrd_tower_find(const nrd_tower *t, const char *stem, const char *part); /* NULL: the tower has none */
nrd_error *nrd_tower_load_norm(nrd_tower *t, const char *stem, nrd_extra_weight *weight, nrd_extra_weight *bias) NRD_MUST_USE;
nrd_error *nrd_tower_load_product(nrd_tower *t, const char *stem, nrd_extra_product *p) NRD_MUST_USE;
/* Weight and bias (or NULL) of q, k, v (0 to 2) or of what is behind attention (3), with zeros where heads are made wider. */
nrd_error *nrd_tower_load_heads(nrd_tower *t, nrd_tower_layer *y, nrd_weight w, const nrd_weight *bias, int k, nrd_extra_product *p) NRD_MUST_USE;
/* Rows of q, k or v (i: 0 to 2) of a stacked weight or bias; all of it with i -1. It borrows w's memory. */
nrd_weight nrd_tower_third(const nrd_weight *w, int64_t hidden, int i);
/* q, k or v (k: 0 to 2) of the stacked weight and bias. */
nrd_error *nrd_tower_load_third(nrd_tower *t, nrd_tower_layer *y, const char *stem, int k) NRD_MUST_USE;
/* t->merge, of side x side patches: columns are sorted by channels, and in a channel by patches; the squares of the layers by patches. */
nrd_error *nrd_tower_load_squares(nrd_tower *t, const char *stem, int32_t side) NRD_MUST_USE;
/* The product behind attention or the MLP, whose results are multiplied by the numbers `by`, [hidden]. */
nrd_error *nrd_tower_load_scaled(nrd_tower *t, nrd_tower_layer *y, const char *stem, const float *by, bool of_mlp, nrd_extra_product *to) NRD_MUST_USE;
void nrd_tower_row(const nrd_tower *t, const float *row, size_t n, uint8_t *to); /* as activations */
/* The first n rows of a weight, [n, cols], as activations into `to`, device memory. Waits. */
nrd_error *nrd_tower_upload_rows(nrd_tower *t, const nrd_weight *w, int32_t n, int32_t cols, void *to) NRD_MUST_USE;

/* ---- tower_ops.c ---- */

/* x += delta, and the norm of it; weight NULL: no norm. next: who reads it, NULL: activations are wanted. */
nrd_error *nrd_tower_norm(nrd_tower *t, bool has_delta, const nrd_extra_weight *weight, const nrd_extra_weight *bias,
                          bool to_residual, const nrd_product *next) NRD_MUST_USE;
/* mid = act(up), n rows of `width` as `next` wants them; gated: of twice as many. */
nrd_error *nrd_tower_activate(nrd_tower *t, nrd_act_kind kind, bool gated, int32_t n, int64_t width,
                              const nrd_product *next) NRD_MUST_USE;
nrd_error *nrd_tower_multiply(nrd_tower *t, const nrd_extra_product *p, const void *x, int32_t n, void *y) NRD_MUST_USE;
/* From qkv to what the product behind it reads, in att. */
nrd_error *nrd_tower_attend(nrd_tower *t, const nrd_batch_view *view, const nrd_product *next) NRD_MUST_USE;
/* ---- tower_layers.c ---- */

/* x, and delta where there is one, through all layers; the last one's delta is left, or none, which is in x. */
nrd_error *nrd_tower_layers(nrd_tower *t, bool *has_delta) NRD_MUST_USE;
nrd_error *nrd_tower_layer_run(nrd_tower *t, int32_t i, bool has_delta) NRD_MUST_USE; /* one of them; its delta is left */

/* ---- tower_merge.c: pictures of any size, into `out` ---- */

/* Two products of `from`, squares or what was made of them; part i of the picture's rows is made of them. Waits. */
nrd_error *nrd_tower_merge_part(nrd_tower *t, const void *from, const nrd_extra_product *product1, const nrd_extra_product *product2,
                                int32_t i) NRD_MUST_USE;
/* x through merger i of those behind layers, into the rows. Waits. */
nrd_error *nrd_tower_merge_deep(nrd_tower *t, int32_t i) NRD_MUST_USE;

/* ---- tower_fixed.c, tower_tiles.c, tower_grid.c ---- */

nrd_error *nrd_tower_fixed_init(nrd_tower *t) NRD_MUST_USE;
nrd_error *nrd_tower_fixed_run(nrd_tower *t, const float *pixels, void *rows) NRD_MUST_USE;
/* A row of numbers, as the projector's first product takes them, through it into `row` [decoder's hidden]; host memory. */
nrd_error *nrd_tower_fixed_project(nrd_tower *t, const float *numbers, void *row) NRD_MUST_USE;
/* ---- tower_border.c: `side` patches on a side, `m` of a square, and side % m > 0 ---- */

/* The patch, by rows of the picture, that is number i in the layers behind those of whole squares. */
int32_t nrd_tower_border_patch(int32_t side, int32_t m, int32_t i);
/* States [patches, hidden] as the layers have them into squares [n, m * m, hidden], zeros where there is no patch. Device memory. */
nrd_error *nrd_tower_fill_border(nrd_tower *t, const void *states, void *squares) NRD_MUST_USE;
/* Rows [n, decoder's hidden] of squares, as the layers have these, sorted by rows of the picture. */
nrd_error *nrd_tower_sort_border(nrd_tower *t, const void *from, void *rows) NRD_MUST_USE;

nrd_error *nrd_tower_tiles_run(nrd_tower *t, const float *pixels, nrd_vision_grid grid, uint8_t *rows) NRD_MUST_USE;
nrd_error *nrd_tower_mllama_load(nrd_tower *t) NRD_MUST_USE;
nrd_error *nrd_tower_mllama_init(nrd_tower *t) NRD_MUST_USE;
nrd_error *nrd_tower_mllama_run(nrd_tower *t, const float *pixels, const nrd_vision_tiles *tiles, uint8_t *rows) NRD_MUST_USE;
nrd_error *nrd_tower_queries_load(nrd_tower *t) NRD_MUST_USE;
nrd_error *nrd_tower_queries_init(nrd_tower *t) NRD_MUST_USE;
/* From the last layer's states, x and delta, to the decoder's rows, in delta. */
nrd_error *nrd_tower_queries_run(nrd_tower *t) NRD_MUST_USE;
void nrd_tower_queries_free(nrd_tower *t);
/* With s.post_normed: weights; x through all layers, and to rows [n, decoder's hidden], host memory. Waits. */
nrd_error *nrd_tower_cogvlm_load(nrd_tower *t) NRD_MUST_USE;
nrd_error *nrd_tower_cogvlm_run(nrd_tower *t, void *rows) NRD_MUST_USE;
nrd_error *nrd_tower_resampler_load(nrd_tower *t) NRD_MUST_USE;
nrd_error *nrd_tower_resampler_init(nrd_tower *t) NRD_MUST_USE;
/* As nrd_tower_queries_run. */
nrd_error *nrd_tower_resampler_run(nrd_tower *t) NRD_MUST_USE;
void nrd_tower_resampler_free(nrd_tower *t);
nrd_error *nrd_tower_latent_load(nrd_tower *t) NRD_MUST_USE;
nrd_error *nrd_tower_latent_init(nrd_tower *t) NRD_MUST_USE;
nrd_error *nrd_tower_latent_run(nrd_tower *t) NRD_MUST_USE;
void nrd_tower_latent_free(nrd_tower *t);
/* A square of learned rows, [n * n, cols], at the middle of each of side x side equal parts of it (bicubic; corners not on corners). to: [side * side, cols] */
nrd_error *nrd_tower_spread_square(const nrd_weight *square, int32_t side, float *to) NRD_MUST_USE;
nrd_error *nrd_tower_swin_load(nrd_tower *t) NRD_MUST_USE;
nrd_error *nrd_tower_swin_init(nrd_tower *t) NRD_MUST_USE;
nrd_error *nrd_tower_swin_run(nrd_tower *t, const float *pixels, void *rows) NRD_MUST_USE;
void nrd_tower_swin_free(nrd_tower *t);
nrd_error *nrd_tower_bare_load(nrd_tower *t) NRD_MUST_USE;
nrd_error *nrd_tower_bare_init(nrd_tower *t) NRD_MUST_USE;
nrd_error *nrd_tower_bare_run(nrd_tower *t, const float *pixels, nrd_vision_grid grid, void *rows) NRD_MUST_USE;
nrd_error *nrd_tower_grid_init(nrd_tower *t) NRD_MUST_USE;
/* With s.sandwiched. x = positions of the picture's patches; x and delta, the patches, through all layers, into x; x to the rows in `out`. */
nrd_error *nrd_tower_gemma4_load(nrd_tower *t) NRD_MUST_USE;
nrd_error *nrd_tower_gemma4_positions(nrd_tower *t) NRD_MUST_USE;
nrd_error *nrd_tower_gemma4_layers(nrd_tower *t) NRD_MUST_USE;
nrd_error *nrd_tower_gemma4_rows(nrd_tower *t) NRD_MUST_USE;
nrd_error *nrd_tower_grid_run(nrd_tower *t, const float *pixels, nrd_vision_grid grid, void *rows) NRD_MUST_USE;

#endif
