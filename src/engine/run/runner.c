#include "engine/run/runner.h"

#include "base/dtype.h"
#include "base/mem.h"
#include "engine/decode/beam.h"
#include "engine/run/batch.h"
#include "engine/run/graphs.h"
#include "engine/run/weights.h"

#include <string.h>

/* Where a step's choices come back. One download. */
typedef struct outputs {
    uint8_t *mem, *host;
    size_t off_log_probs, off_norm, off_top_ids, off_top_log_probs, bytes;
    float *logits; /* [max_entries, vocab] host, for kept choices; or NULL */
    nrd_event *done;
    int32_t n_rows, n_top;
    bool has_logits;
    /* the plan's choices whose logits are kept */
    struct kept {
        nrd_seq *seq;
        int32_t beam, n_generated, row;
    } * kept;
    int32_t n_kept;
} outputs;

struct nrd_runner {
    nrd_device *dev;
    const nrd_engine *engine;
    const nrd_model_spec *spec;
    nrd_runner_config cfg;
    nrd_stream *stream;
    nrd_weights w;
    nrd_dtype act, kv_dtype;
    size_t act_bytes;
    bool shared;
    int32_t common_window;
    int32_t *layer_window; /* [n_layers] */

    float *inv_freq, *inv_freq_local;
    float rope_scale, rope_scale_local;

    void **kv_base, **kv_host_base; /* [n_layers] */
    int32_t n_kv_blocks;
    nrd_kv_layer *kv_layers, *kv_host_layers; /* [n_layers] */

    void *x, *normed, *qkv, *att, *delta, *up, *mid;
    float *row_scale, *logits;
    int32_t logit_rows; /* capacity of logits */
    int32_t *slot_tokens;
    uint16_t *counts; /* allocated when first needed: [max_entries, vocab] */
    int32_t *count_ids, *count_ids_host;
    int32_t *row_ids, *row_ids_host; /* for rows beside the choices */
    float *rows_host;
    nrd_batch batch[2];
    nrd_mask_worker *mask_worker;
    outputs out[2];
    nrd_graphs graphs;
    int32_t max_blocks; /* of a sequence: the widest block table */
    nrd_profile *profile;
    const nrd_plan *marked; /* the step being enqueued is timed by operation; or NULL */
};

/* What to change where memory does not suffice. */
static nrd_error *advised(nrd_error *err, const char *pool)
{
    static const char *const advice[][2] = {
        {"weights", "more quantized weights, or a device with more memory"},
        {"kv cache", "a lower kv_cache_free_gpu_mem_fraction"},
        {"activations", "a lower max_num_tokens"},
        {"logits", "a lower max_batch_size"},
        {"token counts", "a lower max_batch_size"},
        {"workspace", "a lower max_num_tokens"},
    };
    for (size_t i = 0; err && i < sizeof advice / sizeof advice[0]; i++) {
        if (nrd_error_get_code(err) == NRD_ERR_UNAVAILABLE && !strcmp(pool, advice[i][0])) {
            return nrd_error_wrap(err, "no room for the %s; it needs %s, others off this device, or the "
                                       "device \"cpu\"",
                                  pool, advice[i][1]);
        }
    }
    return err;
}

static nrd_error *alloc_mem(nrd_runner *r, void **out, size_t n, size_t elem, const char *pool)
{
    size_t bytes = 0;
    if (!nrd_size_mul(n, elem, &bytes)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "runner: %s would be too large", pool);
    }
    return advised(r->dev->ops->alloc(r->dev, out, NRD_MEM_DEVICE, bytes ? bytes : 64, pool), pool);
}

static void free_mem(nrd_runner *r, void *p)
{
    if (p) {
        r->dev->ops->free(r->dev, NRD_MEM_DEVICE, p);
    }
}

static void free_host(nrd_runner *r, void *p)
{
    if (p) {
        r->dev->ops->free(r->dev, NRD_MEM_HOST, p);
    }
}

/* ---- creation ---- */

static size_t take(size_t *at, size_t n, size_t elem)
{
    size_t start = *at;
    *at = (start + n * elem + 63) / 64 * 64;
    return start;
}

static nrd_error *outputs_init(nrd_runner *r, outputs *o)
{
    size_t n = (size_t)r->cfg.max_entries, top = (size_t)r->cfg.max_top, at = 0;
    nrd_error *err = NULL;
    void *p = NULL;

    take(&at, n, sizeof(int32_t));
    o->off_log_probs = take(&at, n, sizeof(float));
    o->off_norm = take(&at, n, sizeof(float));
    o->off_top_ids = take(&at, n * top, sizeof(int32_t));
    o->off_top_log_probs = take(&at, n * top, sizeof(float));
    o->bytes = at;
    NRD_NEW_GOTO(o->kept, n, err, done);
    NRD_TRY_GOTO(r->dev->ops->alloc(r->dev, &p, NRD_MEM_HOST, o->bytes, "outputs"), err, done);
    o->host = p;
    if (!r->shared) {
        NRD_TRY_GOTO(alloc_mem(r, &p, o->bytes, 1, "outputs"), err, done);
    }
    o->mem = p;
    if (r->cfg.keep_choice_logits) {
        NRD_TRY_GOTO(r->dev->ops->alloc(r->dev, &p, NRD_MEM_HOST,
                                        n * (size_t)r->w.lm_head.rows * sizeof(float), "outputs"),
                     err, done);
        o->logits = p;
    }
    err = r->dev->ops->event_new(r->dev, &o->done);
done:
    return err;
}

static void outputs_fini(nrd_runner *r, outputs *o)
{
    free_host(r, o->host);
    free_host(r, o->logits);
    if (!r->shared) {
        free_mem(r, o->mem);
    }
    if (o->done) {
        r->dev->ops->event_free(o->done);
    }
    free(o->kept);
}

static nrd_error *upload(nrd_runner *r, void *dst, const void *src, size_t bytes)
{
    NRD_TRY(r->dev->ops->copy(r->stream, dst, src, bytes));
    return r->dev->ops->stream_sync(r->stream);
}

static nrd_error *init_rope(nrd_runner *r, const nrd_rope_spec *rope, float **out, float *scale)
{
    float host[NRD_SPEC_MAX_ROTARY / 2];
    void *p = NULL;
    if (rope->kind == NRD_ROPE_NONE) {
        return NULL;
    }
    if (rope->rotary_dim <= 0 || rope->rotary_dim > NRD_SPEC_MAX_ROTARY || rope->rotary_dim % 2) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "rotary dimension %d is out of range",
                          rope->rotary_dim);
    }
    if (rope->scaling == NRD_ROPE_SCALING_FACTORS && !r->w.rope_factors) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "the engine has no rope_factors");
    }
    *scale = nrd_rope_inv_freq(rope, r->w.rope_factors, host);
    size_t bytes = (size_t)rope->rotary_dim / 2 * sizeof(float);
    NRD_TRY(alloc_mem(r, &p, bytes, 1, "rope"));
    *out = p;
    return upload(r, p, host, bytes);
}

static nrd_error *init_windows(nrd_runner *r)
{
    const nrd_model_spec *m = r->spec;
    nrd_error *err = NULL;
    NRD_NEW_GOTO(r->layer_window, m->n_layers, err, fail);
    r->common_window = INT32_MAX;
    for (int32_t i = 0; i < m->n_layers; i++) {
        int32_t w = m->layer_is_sliding[i] ? m->sliding_window : 0;
        int32_t asked = r->cfg.windows ? r->cfg.windows[i % r->cfg.n_windows] : 0;
        if (asked > 0 && asked < r->cfg.max_context && (w == 0 || asked < w)) {
            w = asked;
        }
        r->layer_window[i] = w;
        if (w == 0) {
            r->common_window = 0;
        } else if (r->common_window > 0 && w > r->common_window) {
            r->common_window = w;
        } else if (r->common_window == INT32_MAX) {
            r->common_window = w;
        }
    }
    if (r->common_window == INT32_MAX) {
        r->common_window = 0;
    }
    r->cfg.windows = NULL;
fail:
    return err;
}

static nrd_error *init_activations(nrd_runner *r)
{
    const nrd_model_spec *m = r->spec;
    size_t t = (size_t)r->cfg.max_tokens, a = r->act_bytes;
    size_t qkv = (size_t)(m->n_heads + 2 * m->n_kv_heads) * (size_t)m->head_dim;
    size_t in = r->w.max_in_row_bytes;
    void *p = NULL;

    /* Rows beside the choices (prompt logits) go through the head in groups of this many. */
    r->logit_rows = r->cfg.max_entries > 64 ? r->cfg.max_entries : 64;
    NRD_TRY(alloc_mem(r, &r->x, t * (size_t)m->hidden, a, "activations"));
    NRD_TRY(alloc_mem(r, &r->normed, t > (size_t)r->logit_rows ? t : (size_t)r->logit_rows, in,
                      "activations"));
    NRD_TRY(alloc_mem(r, &r->qkv, t * qkv, a, "activations"));
    NRD_TRY(alloc_mem(r, &r->att, t, in, "activations"));
    NRD_TRY(alloc_mem(r, &r->delta, t * (size_t)m->hidden, a, "activations"));
    NRD_TRY(alloc_mem(r, &r->up, t * (size_t)m->inter, (m->gated_mlp ? 2 : 1) * a, "activations"));
    NRD_TRY(alloc_mem(r, &r->mid, t, in, "activations"));
    NRD_TRY(alloc_mem(r, &p, t > (size_t)r->logit_rows ? t : (size_t)r->logit_rows, sizeof(float),
                      "activations"));
    r->row_scale = p;
    NRD_TRY(alloc_mem(r, &p, (size_t)r->logit_rows * (size_t)r->w.lm_head.rows, sizeof(float),
                      "logits"));
    r->logits = p;
    NRD_TRY(alloc_mem(r, &p, (size_t)r->cfg.max_entries, sizeof(int32_t), "slots"));
    r->slot_tokens = p;
    NRD_TRY(r->dev->ops->alloc(r->dev, &p, NRD_MEM_HOST, (size_t)r->logit_rows * sizeof(int32_t),
                               "batch"));
    r->row_ids_host = p;
    if (!r->shared) {
        NRD_TRY(alloc_mem(r, &p, (size_t)r->logit_rows, sizeof(int32_t), "batch"));
    }
    r->row_ids = p;
    size_t widest = (size_t)m->hidden;
    widest = (size_t)m->inter * 2 > widest ? (size_t)m->inter * 2 : widest;
    widest = qkv > widest ? qkv : widest;
    return advised(r->dev->ops->reserve(r->stream, r->cfg.max_tokens, r->cfg.max_entries, (int32_t)widest,
                                        r->cfg.max_context, (int32_t)r->w.lm_head.rows),
                   "workspace");
}

/* Of two 16-bit types the cache takes that of the activations: attention multiplies the two. */
static nrd_dtype kv_default(nrd_dtype act, nrd_dtype device)
{
    bool act16 = act == NRD_DTYPE_F16 || act == NRD_DTYPE_BF16;
    bool device16 = device == NRD_DTYPE_F16 || device == NRD_DTYPE_BF16;
    return act16 && device16 ? act : device;
}

static nrd_error *init(nrd_runner *r)
{
    const nrd_device_ops *ops = r->dev->ops;
    const nrd_model_spec *m = r->spec;
    const nrd_build_limits *lim = nrd_engine_limits(r->engine);
    nrd_device_info info = {.size = sizeof info};

    ops->get_info(r->dev, &info);
    r->shared = info.host_is_device;
    r->act = r->cfg.compute_f32 ? NRD_DTYPE_F32 : m->dtype;
    if (!r->cfg.compute_f32 && (m->dtype == NRD_DTYPE_F32 || r->shared)) {
        r->act = info.act_dtype;
    }
    r->act_bytes = nrd_dtype_block_bytes(r->act);
    r->kv_dtype = r->cfg.kv_dtype != NRD_DTYPE_NONE ? r->cfg.kv_dtype
                  : r->cfg.compute_f32              ? NRD_DTYPE_F32
                  : lim->kv_dtype != NRD_DTYPE_NONE ? lim->kv_dtype
                                                    : kv_default(r->act, info.kv_dtype);
    NRD_TRY(ops->stream_new(r->dev, &r->stream));
    NRD_TRY(advised(
        nrd_weights_load(&r->w, r->stream, r->dev, r->engine, r->act, r->cfg.compute_f32), "weights"));
    NRD_TRY(init_rope(r, &m->rope, &r->inv_freq, &r->rope_scale));
    NRD_TRY(init_rope(r, &m->rope_local, &r->inv_freq_local, &r->rope_scale_local));
    NRD_TRY(init_windows(r));
    NRD_TRY(init_activations(r));
    nrd_batch_limits bl = {
        .max_tokens = r->cfg.max_tokens,
        .max_entries = r->cfg.max_entries,
        .max_blocks = (r->cfg.max_context + r->cfg.block_tokens - 1) / r->cfg.block_tokens + 1,
        .vocab = m->vocab,
        .normalize_log_probs = r->cfg.normalize_log_probs,
        .overlap = !r->cfg.no_overlap && !r->cfg.deterministic,
    };
    NRD_TRY(nrd_mask_worker_new(&r->mask_worker));
    for (int i = 0; i < 2; i++) {
        NRD_TRY(nrd_batch_init(&r->batch[i], r->dev, &bl));
        NRD_TRY(outputs_init(r, &r->out[i]));
    }
    r->max_blocks = bl.max_blocks;
    if (r->cfg.profile_every > 0) {
        NRD_TRY(nrd_profile_new(&r->profile, r->dev, r->stream, r->cfg.profile_every,
                                16 + 10 * m->n_layers, r->cfg.profile_spans));
    }
    return r->cfg.no_graphs || r->shared ? NULL
                                         : nrd_graphs_init(&r->graphs, r->dev, r->cfg.max_graphs);
}

nrd_error *nrd_runner_new(nrd_runner **out, nrd_device *dev, const nrd_engine *engine,
                          const nrd_runner_config *cfg)
{
    nrd_error *err = NULL;
    nrd_runner *r = NULL;

    *out = NULL;
    NRD_NEW_GOTO(r, 1, err, fail);
    r->dev = dev;
    r->engine = engine;
    r->spec = nrd_engine_spec(engine);
    r->cfg = *cfg;
    NRD_TRY_GOTO(init(r), err, fail);
    *out = r;
    return NULL;

fail:
    nrd_runner_free(r);
    return err;
}

void nrd_runner_free(nrd_runner *r)
{
    if (!r) {
        return;
    }
    if (r->stream) {
        nrd_error_free(r->dev->ops->stream_sync(r->stream));
    }
    nrd_graphs_fini(&r->graphs);
    nrd_profile_free(r->profile);
    nrd_mask_worker_free(r->mask_worker);
    for (int i = 0; i < 2; i++) {
        nrd_batch_fini(&r->batch[i]);
        outputs_fini(r, &r->out[i]);
    }
    for (int32_t i = 0; r->kv_host_base && i < r->spec->n_layers; i++) {
        r->dev->ops->free(r->dev, NRD_MEM_HOST, r->kv_host_base[i]);
    }
    for (int32_t i = 0; r->kv_base && i < r->spec->n_layers; i++) {
        free_mem(r, r->kv_base[i]);
    }
    void *mem[] = {
        r->x,      r->normed,    r->qkv,         r->att,      r->delta,          r->up,    r->mid,
        r->logits, r->row_scale, r->slot_tokens, r->inv_freq, r->inv_freq_local, r->counts};
    for (size_t i = 0; i < sizeof mem / sizeof mem[0]; i++) {
        free_mem(r, mem[i]);
    }
    if (!r->shared) {
        free_mem(r, r->row_ids);
        free_mem(r, r->count_ids);
    }
    free_host(r, r->row_ids_host);
    free_host(r, r->count_ids_host);
    free_host(r, r->rows_host);
    nrd_weights_unload(&r->w);
    if (r->stream) {
        r->dev->ops->stream_free(r->stream);
    }
    free(r->kv_base);
    free(r->kv_layers);
    free(r->kv_host_base);
    free(r->kv_host_layers);
    free(r->layer_window);
    free(r);
}

/* ---- KV memory ---- */

static size_t layer_block_bytes(const nrd_runner *r)
{
    return r->dev->ops->kv_block_bytes(r->dev, r->kv_dtype, r->cfg.block_tokens,
                                       r->spec->n_kv_heads, r->spec->head_dim);
}

size_t nrd_runner_kv_block_bytes(const nrd_runner *r)
{
    return layer_block_bytes(r) * (size_t)r->spec->n_layers;
}

static nrd_error *alloc_pool(nrd_runner *r, nrd_mem_kind kind, int32_t n_blocks, void **base,
                             nrd_kv_layer *layers)
{
    size_t bytes;
    if (!nrd_size_mul((size_t)n_blocks, layer_block_bytes(r), &bytes)) {
        return nrd_error_no_memory();
    }
    for (int32_t i = 0; i < r->spec->n_layers; i++) {
        NRD_TRY(advised(r->dev->ops->alloc(r->dev, &base[i], kind, bytes, "kv cache"), "kv cache"));
        layers[i] = (nrd_kv_layer){
            .base = base[i],
            .dtype = r->kv_dtype,
            .n_blocks = n_blocks,
            .block_tokens = r->cfg.block_tokens,
            .n_kv_heads = r->spec->n_kv_heads,
            .head_dim = r->spec->head_dim,
            .k_scale = 1,
            .v_scale = 1,
        };
    }
    return NULL;
}

nrd_error *nrd_runner_alloc_kv(nrd_runner *r, int32_t n_blocks, int32_t n_host)
{
    nrd_error *err = NULL;
    r->n_kv_blocks = n_blocks;
    NRD_NEW_GOTO(r->kv_base, r->spec->n_layers, err, fail);
    NRD_NEW_GOTO(r->kv_layers, r->spec->n_layers, err, fail);
    NRD_TRY(alloc_pool(r, NRD_MEM_DEVICE, n_blocks, r->kv_base, r->kv_layers));
    if (n_host > 0) {
        NRD_NEW_GOTO(r->kv_host_base, r->spec->n_layers, err, fail);
        NRD_NEW_GOTO(r->kv_host_layers, r->spec->n_layers, err, fail);
        NRD_TRY(alloc_pool(r, NRD_MEM_HOST, n_host, r->kv_host_base, r->kv_host_layers));
    }
fail:
    return err;
}

nrd_dtype nrd_runner_kv_dtype(const nrd_runner *r)
{
    return r->kv_dtype;
}

nrd_dtype nrd_runner_act_dtype(const nrd_runner *r)
{
    return r->act;
}

int32_t nrd_runner_common_window(const nrd_runner *r)
{
    return r->common_window;
}

nrd_error *nrd_runner_bias_new(nrd_runner *r, const float *values, const float **out)
{
    size_t bytes = (size_t)r->spec->vocab * sizeof(float);
    void *p = NULL;
    NRD_TRY(alloc_mem(r, &p, bytes, 1, "embedding bias"));
    nrd_error *err = upload(r, p, values, bytes);
    if (err) {
        free_mem(r, p);
        return err;
    }
    *out = p;
    return NULL;
}

void nrd_runner_bias_free(nrd_runner *r, const float *bias)
{
    free_mem(r, (void *)(uintptr_t)bias);
}

/* ---- the network ---- */

static double elements(double n, nrd_dtype t)
{
    return n * (double)nrd_dtype_block_bytes(t) / (double)nrd_dtype_block(t);
}

/* In a step timed by operation: the one before this call moved so many bytes a row. */
static nrd_error *mark(nrd_runner *r, nrd_profile_op op, double rows, double bytes_a_row,
                       double flops)
{
    nrd_profile_sum work = {.bytes = rows * bytes_a_row, .flops = flops};
    return r->marked ? nrd_profile_mark(r->profile, op, work) : NULL;
}

static nrd_error *mark_product(nrd_runner *r, nrd_profile_op op, const nrd_product *p, int32_t n,
                               nrd_dtype y)
{
    double bytes = (double)n * (double)p->in_row_bytes;
    bytes += y != NRD_DTYPE_NONE ? (double)n * elements((double)p->rows, y) : 0; /* NONE: not kept */
    for (int32_t i = 0; i < p->n; i++) {
        bytes += (double)p->w[i]->data_bytes;
    }
    nrd_profile_sum work = {
        .bytes = bytes,
        .flops = 2.0 * (double)n * (double)p->rows * (double)p->cols,
        .eight_bit = p->in_dtype == NRD_DTYPE_ACT_Q8 || p->in_dtype == NRD_DTYPE_F8_E4M3,
    };
    return r->marked ? nrd_profile_mark(r->profile, op, work) : NULL;
}

/* Context read and (query, key) pairs of the marked step under a window (0: none). */
static void attended(const nrd_plan *p, int32_t window, double *tokens, double *pairs)
{
    *tokens = *pairs = 0;
    for (int32_t i = 0; i < p->n_entries; i++) {
        const nrd_plan_entry *e = &p->entries[i];
        double end = e->start + e->n, n = e->n;
        if (window > 0 && end > window) {
            *tokens += n + window - 1 < end ? n + window - 1 : end;
            *pairs += n * window; /* a little too many where the window is not yet full */
        } else {
            *tokens += end;
            *pairs += n * (end - (n - 1) / 2);
        }
    }
}

static nrd_error *mark_attention(nrd_runner *r, int32_t layer, const nrd_product *next)
{
    const nrd_model_spec *m = r->spec;
    double tokens, pairs, n, heads = (double)m->n_heads * m->head_dim;
    if (!r->marked) {
        return NULL;
    }
    attended(r->marked, r->layer_window[layer], &tokens, &pairs);
    n = r->marked->n_tokens;
    return mark(r, NRD_PROFILE_ATTENTION, 1,
                n * (heads * (double)r->act_bytes + (double)next->in_row_bytes) +
                    elements(tokens * 2 * m->n_kv_heads * m->head_dim, r->kv_dtype),
                4 * pairs * heads);
}

static nrd_linear_args product_args(const nrd_runner *r, const nrd_product *p, const void *x,
                                    int32_t n_tokens, void *y, nrd_dtype y_dtype, float softcap)
{
    nrd_linear_args a = {
        .size = sizeof a,
        .n_tokens = n_tokens,
        .x = x,
        .x_dtype = p->in_dtype,
        .x_row_scale = p->in_row_scale ? r->row_scale : NULL,
        .n_parts = p->n,
        .y = y,
        .y_dtype = y_dtype,
        .softcap = softcap,
        .deterministic = r->cfg.deterministic,
    };
    memcpy(a.w, p->w, sizeof a.w);
    memcpy(a.bias, p->bias, sizeof a.bias);
    return a;
}

static nrd_error *product(nrd_runner *r, const nrd_product *p, const void *x, int32_t n_tokens,
                          void *y, nrd_dtype y_dtype, float softcap)
{
    nrd_linear_args a = product_args(r, p, x, n_tokens, y, y_dtype, softcap);
    return r->dev->ops->linear(r->stream, &a);
}

/* Adds what the sublayer before left in delta (through its post norm) and norms for the next. */
static nrd_error *joint(nrd_runner *r, int32_t n_tokens, bool has_delta,
                        const nrd_weight *delta_weight, const nrd_weight *weight,
                        const nrd_weight *bias, const nrd_product *next, const int32_t *row_ids,
                        int32_t n_rows)
{
    const nrd_model_spec *m = r->spec;
    nrd_norm_args a = {
        .size = sizeof a,
        .kind = r->spec->norm,
        .eps = r->spec->norm_eps,
        .n_tokens = n_tokens,
        .hidden = r->spec->hidden,
        .delta = has_delta ? r->delta : NULL,
        .delta_weight = has_delta ? delta_weight : NULL,
        .residual = r->x,
        .weight = weight,
        .bias = bias,
        .row_ids = row_ids,
        .n_rows = n_rows,
        .out = r->normed,
        .out_dtype = next->in_dtype,
        .out_row_scale = next->in_row_scale ? r->row_scale : NULL,
        .act_dtype = r->act,
    };
    NRD_TRY(r->dev->ops->norm(r->stream, &a));
    return mark(r, NRD_PROFILE_NORM, n_tokens,
                (has_delta ? 3.0 : 1.0) * m->hidden * (double)r->act_bytes +
                    (double)next->in_row_bytes * (row_ids ? n_rows : n_tokens) / n_tokens,
                0);
}

static nrd_error *attention(nrd_runner *r, const nrd_batch_view *v, int32_t layer)
{
    const nrd_model_spec *m = r->spec;
    const nrd_layer *y = &r->w.layers[layer];
    bool local = m->layer_is_sliding[layer] && m->rope_local.kind != NRD_ROPE_NONE;
    const nrd_rope_spec *rope = local ? &m->rope_local : &m->rope;
    nrd_rope_kv_args k = {
        .size = sizeof k,
        .batch = v,
        .qkv = r->qkv,
        .act_dtype = r->act,
        .n_heads = m->n_heads,
        .q_norm = y->q_norm,
        .k_norm = y->k_norm,
        .norm_eps = m->norm_eps,
        .rope = rope->kind,
        .rotary_dim = rope->kind == NRD_ROPE_NONE ? 0 : rope->rotary_dim,
        .inv_freq = local ? r->inv_freq_local : r->inv_freq,
        .rope_scale = local         ? r->rope_scale_local
                      : r->inv_freq ? r->rope_scale
                                    : 1.0f,
        .kv = r->kv_layers[layer],
    };
    NRD_TRY(r->dev->ops->rope_kv(r->stream, &k));
    NRD_TRY(mark(r, NRD_PROFILE_ROPE_KV, v->n_tokens,
                 (double)(2 * m->n_heads + 2 * m->n_kv_heads) * m->head_dim * (double)r->act_bytes +
                     elements(2.0 * m->n_kv_heads * m->head_dim, r->kv_dtype),
                 0));
    nrd_attention_args a = {
        .size = sizeof a,
        .batch = v,
        .q = r->qkv,
        .q_stride = (int64_t)(m->n_heads + 2 * m->n_kv_heads) * m->head_dim,
        .out = r->att,
        .act_dtype = r->act,
        .out_dtype = y->dense.in_dtype,
        .out_row_scale = y->dense.in_row_scale ? r->row_scale : NULL,
        .n_heads = m->n_heads,
        .scale = m->attn_scale,
        .softcap = m->attn_softcap,
        .window = r->layer_window[layer],
        .n_sink = r->cfg.n_sink,
        .kv = r->kv_layers[layer],
        .deterministic = r->cfg.deterministic,
    };
    NRD_TRY(r->dev->ops->attention(r->stream, &a));
    return mark_attention(r, layer, &y->dense);
}

static nrd_error *mlp(nrd_runner *r, const nrd_layer *y, int32_t n_tokens)
{
    const nrd_model_spec *m = r->spec;
    NRD_TRY(product(r, &y->up, r->normed, n_tokens, r->up, r->act, 0));
    NRD_TRY(mark_product(r, NRD_PROFILE_UP, &y->up, n_tokens, r->act));
    nrd_act_args a = {
        .size = sizeof a,
        .kind = m->act,
        .gated = m->gated_mlp,
        .n_tokens = n_tokens,
        .inter = m->inter,
        .x = r->up,
        .act_dtype = r->act,
        .out = r->mid,
        .out_dtype = y->down.in_dtype,
        .out_row_scale = y->down.in_row_scale ? r->row_scale : NULL,
    };
    NRD_TRY(r->dev->ops->act(r->stream, &a));
    NRD_TRY(mark(r, NRD_PROFILE_ACT, n_tokens,
                 (double)(m->gated_mlp ? 2 : 1) * m->inter * (double)r->act_bytes +
                     (double)y->down.in_row_bytes,
                 0));
    NRD_TRY(product(r, &y->down, r->mid, n_tokens, r->delta, r->act, 0));
    return mark_product(r, NRD_PROFILE_DOWN, &y->down, n_tokens, r->act);
}

/* Everything up to the last layer's delta. */
static nrd_error *layers(nrd_runner *r, const nrd_batch *b)
{
    const nrd_model_spec *m = r->spec;
    int32_t n = b->view.n_tokens;
    nrd_embed_args e = {
        .size = sizeof e,
        .n_tokens = n,
        .hidden = m->hidden,
        .ids = b->ids,
        .slot_tokens = r->slot_tokens,
        .table = r->w.embed,
        .scale = m->embed_scale == 0 ? 1.0f : m->embed_scale,
        .pos_table = r->w.pos_embed,
        .positions = b->view.positions,
        .out = r->x,
        .out_dtype = r->act,
    };
    NRD_TRY(r->dev->ops->embed(r->stream, &e));
    NRD_TRY(mark(r, NRD_PROFILE_EMBED, n, 2.0 * m->hidden * (double)r->act_bytes, 0));
    for (int32_t i = 0; i < m->n_layers; i++) {
        const nrd_layer *y = &r->w.layers[i];
        const nrd_weight *post = i > 0 ? r->w.layers[i - 1].post_mlp_norm : NULL;
        NRD_TRY(joint(r, n, i > 0, post, y->attn_norm, y->attn_norm_bias, &y->qkv, NULL, 0));
        NRD_TRY(product(r, &y->qkv, r->normed, n, r->qkv, r->act, 0));
        NRD_TRY(mark_product(r, NRD_PROFILE_QKV, &y->qkv, n, r->act));
        NRD_TRY(attention(r, &b->view, i));
        NRD_TRY(product(r, &y->dense, r->att, n, r->delta, r->act, 0));
        NRD_TRY(mark_product(r, NRD_PROFILE_DENSE, &y->dense, n, r->act));
        NRD_TRY(
            joint(r, n, true, y->post_attn_norm, y->mlp_norm, y->mlp_norm_bias, &y->up, NULL, 0));
        NRD_TRY(mlp(r, y, n));
    }
    return NULL;
}

/* The final norm of some rows of x. The first call of a step also adds the last delta to all. */
static nrd_error *last_joint(nrd_runner *r, int32_t n_tokens, bool has_delta,
                             const int32_t *row_ids, int32_t n_rows)
{
    const nrd_layer *last = &r->w.layers[r->spec->n_layers - 1];
    return joint(r, n_tokens, has_delta, last->post_mlp_norm, r->w.final_norm,
                 r->w.final_norm_bias, &r->w.lm_head, row_ids, n_rows);
}

/* Logits of some rows of x. */
static nrd_error *head(nrd_runner *r, int32_t n_tokens, bool has_delta, const int32_t *row_ids,
                       int32_t n_rows)
{
    NRD_TRY(last_joint(r, n_tokens, has_delta, row_ids, n_rows));
    NRD_TRY(product(r, &r->w.lm_head, r->normed, n_rows, r->logits, NRD_DTYPE_F32,
                    r->spec->logits_softcap));
    return mark_product(r, NRD_PROFILE_HEAD, &r->w.lm_head, n_rows, NRD_DTYPE_F32);
}

/* ---- around the network ---- */

enum { COPIES_A_CALL = 64 };

static bool has_target(const int32_t (*pairs)[2], int32_t n, int32_t block)
{
    for (int32_t i = 0; i < n; i++) {
        if (pairs[i][1] == block) {
            return true;
        }
    }
    return false;
}

/* The plan's copies in their order. One call copies its pairs in any order, so a call ends where
 * the pools change and where a pair reads or writes what one before it wrote. */
static nrd_error *copy_blocks(nrd_runner *r, const nrd_plan *p)
{
    for (int32_t i = 0; i < p->n_copies;) {
        int32_t pairs[COPIES_A_CALL][2], n = 0, at = r->n_kv_blocks;
        bool from_host = p->copies[i][0] >= at, to_host = p->copies[i][1] >= at;
        for (; i < p->n_copies && n < COPIES_A_CALL; i++) {
            int32_t src = p->copies[i][0], dst = p->copies[i][1];
            if ((src >= at) != from_host || (dst >= at) != to_host) {
                break;
            }
            src -= from_host ? at : 0;
            dst -= to_host ? at : 0;
            if (has_target(pairs, n, dst) || (from_host == to_host && has_target(pairs, n, src))) {
                break;
            }
            pairs[n][0] = src;
            pairs[n++][1] = dst;
        }
        nrd_copy_blocks_args a = {
            .size = sizeof a,
            .n_layers = r->spec->n_layers,
            .n_pairs = n,
            .src = from_host ? r->kv_host_layers : r->kv_layers,
            .dst = to_host ? r->kv_host_layers : r->kv_layers,
            .pairs = &pairs[0][0],
        };
        NRD_TRY(r->dev->ops->copy_blocks(r->stream, &a));
    }
    return NULL;
}

/* Fills a slot's occurrences. Rare (once for each sequence with a penalty), so it may wait. */
static nrd_error *init_counts(nrd_runner *r, const nrd_plan_entry *e)
{
    const nrd_device_ops *ops = r->dev->ops;
    const nrd_seq *q = e->seq;
    const int32_t *tokens = q->tokens;
    int32_t n = q->n_known;
    void *p = NULL;

    if (q->width > 1 && e->start >= q->n_prompt) {
        tokens = nrd_beams_tokens(q->beams, e->beam, &n);
    }
    if (!r->counts) {
        NRD_TRY(alloc_mem(r, &p, (size_t)r->cfg.max_entries * (size_t)r->spec->vocab,
                          sizeof(uint16_t), "token counts"));
        r->counts = p;
    }
    if (!r->shared) {
        size_t bytes = (size_t)r->cfg.max_context * sizeof(int32_t) + 64;
        if (!r->count_ids) {
            NRD_TRY(alloc_mem(r, &p, bytes, 1, "token counts"));
            r->count_ids = p;
            NRD_TRY(ops->alloc(r->dev, &p, NRD_MEM_HOST, bytes, "token counts"));
            r->count_ids_host = p;
        }
        NRD_TRY(ops->stream_sync(r->stream)); /* the copy before may still be under way */
        memcpy(r->count_ids_host, tokens, (size_t)n * sizeof *tokens);
        NRD_TRY(ops->copy(r->stream, r->count_ids, r->count_ids_host, (size_t)n * sizeof *tokens));
        tokens = r->count_ids;
    }
    nrd_counts_args a = {
        .size = sizeof a,
        .slot = e->slot,
        .vocab = r->spec->vocab,
        .n = n,
        .ids = tokens,
        .counts = r->counts,
    };
    return ops->counts(r->stream, &a);
}

static nrd_sample_args choice_args(const nrd_runner *r, const nrd_batch *b, const outputs *o)
{
    return (nrd_sample_args){
        .size = sizeof(nrd_sample_args),
        .n_rows = b->n_rows,
        .vocab = r->spec->vocab,
        .logits = r->logits,
        .logits_stride = r->w.lm_head.rows,
        .rows = b->rows,
        .banned_ids = b->banned_mem,
        .counts = r->counts,
        .slot_tokens = r->slot_tokens,
        .out_ids = (int32_t *)(void *)o->mem,
        .out_logprob = (float *)(void *)(o->mem + o->off_log_probs),
        .out_logprob_norm = (float *)(void *)(o->mem + o->off_norm),
        .n_top = b->n_top,
        .out_top_ids = (int32_t *)(void *)(o->mem + o->off_top_ids),
        .out_top_logprobs = (float *)(void *)(o->mem + o->off_top_log_probs),
    };
}

static nrd_error *choose(nrd_runner *r, const nrd_batch *b, const outputs *o)
{
    nrd_sample_args a = choice_args(r, b, o);
    NRD_TRY(r->dev->ops->sample(r->stream, &a));
    return mark(r, NRD_PROFILE_SAMPLE, b->n_rows, (double)r->spec->vocab * sizeof(float), 0);
}

/* Whether nobody but the choice reads the logits, and what it needs is there before they are. */
static bool only_chosen(const nrd_runner *r, const nrd_plan *p, const nrd_batch *b)
{
    const nrd_device_ops *ops = r->dev->ops;
    if (ops->size < offsetof(nrd_device_ops, linear_sample) + sizeof(void *) ||
        !ops->linear_sample || b->masks_pending) {
        return false;
    }
    for (int32_t i = 0; i < p->n_entries; i++) {
        if (p->entries[i].row >= 0 && p->entries[i].seq->want_logit_rows) {
            return false;
        }
    }
    return true;
}

/* head and choose, by a device that need not store the logits. */
static nrd_error *head_choose(nrd_runner *r, int32_t n_tokens, bool has_delta, const nrd_batch *b,
                              const outputs *o)
{
    NRD_TRY(last_joint(r, n_tokens, has_delta, b->row_ids, b->n_rows));
    nrd_linear_args l = product_args(r, &r->w.lm_head, r->normed, b->n_rows, r->logits,
                                     NRD_DTYPE_F32, r->spec->logits_softcap);
    nrd_sample_args a = choice_args(r, b, o);
    NRD_TRY(r->dev->ops->linear_sample(r->stream, &l, &a));
    return mark_product(r, NRD_PROFILE_HEAD_SAMPLE, &r->w.lm_head, b->n_rows, NRD_DTYPE_NONE);
}

/* From `mem` of this or the other buffer's outputs (same layout) to this one's host memory. */
static nrd_error *download(nrd_runner *r, const nrd_batch *b, outputs *o, const uint8_t *mem)
{
    o->n_rows = b->n_rows;
    o->n_top = b->n_top;
    if (r->shared) {
        return NULL;
    }
    size_t bytes = b->n_top > 0 ? o->bytes : o->off_top_ids;
    NRD_TRY(r->dev->ops->copy(r->stream, o->host, mem, bytes));
    return mark(r, NRD_PROFILE_DOWNLOAD, 1, (double)bytes, 0);
}

/* Keeps the logits of choices that asked for them. */
static nrd_error *keep_choices(nrd_runner *r, const nrd_plan *p, outputs *o)
{
    size_t row_bytes = (size_t)r->w.lm_head.rows * sizeof(float);
    o->n_kept = 0;
    for (int32_t i = 0; i < p->n_entries; i++) {
        const nrd_plan_entry *e = &p->entries[i];
        if (e->row < 0 || !e->seq->want_logit_rows) {
            continue;
        }
        NRD_ASSERT(o->logits, "keep_choice_logits was set");
        NRD_TRY(r->dev->ops->copy(r->stream, o->logits + (size_t)e->row * (size_t)r->w.lm_head.rows,
                                  r->logits + (size_t)e->row * (size_t)r->w.lm_head.rows,
                                  row_bytes));
        o->kept[o->n_kept++] = (struct kept){e->seq, e->beam, e->n_generated, e->row};
    }
    return NULL;
}

/* Prompt positions whose logits are wanted: the head in groups, each read back at once. */
static nrd_error *context_rows(nrd_runner *r, const nrd_plan *p, bool *has_delta)
{
    const nrd_device_ops *ops = r->dev->ops;
    size_t row = (size_t)r->w.lm_head.rows;
    int32_t at = 0;
    void *mem = NULL;

    for (int32_t i = 0; i < p->n_entries; at += p->entries[i].n, i++) {
        const nrd_plan_entry *e = &p->entries[i];
        int32_t end = e->start + e->n < e->seq->n_prompt ? e->start + e->n : e->seq->n_prompt;
        if (!e->seq->want_context_rows) {
            continue;
        }
        if (!r->shared && !r->rows_host) {
            NRD_TRY(ops->alloc(r->dev, &mem, NRD_MEM_HOST,
                               (size_t)r->logit_rows * row * sizeof(float), "outputs"));
            r->rows_host = mem;
        }
        for (int32_t first = e->start; first < end;) {
            int32_t n = end - first < r->logit_rows ? end - first : r->logit_rows;
            for (int32_t k = 0; k < n; k++) {
                r->row_ids_host[k] = at + first - e->start + k;
            }
            if (!r->shared) {
                NRD_TRY(ops->copy(r->stream, r->row_ids, r->row_ids_host,
                                  (size_t)n * sizeof *r->row_ids));
            }
            NRD_TRY(head(r, p->n_tokens, *has_delta, r->row_ids, n));
            *has_delta = false;
            const float *logits = r->logits;
            if (!r->shared) {
                NRD_TRY(
                    ops->copy(r->stream, r->rows_host, r->logits, (size_t)n * row * sizeof(float)));
                logits = r->rows_host;
            }
            NRD_TRY(ops->stream_sync(r->stream));
            r->cfg.on_context_rows(r->cfg.user, e->seq, first, n, logits, (int64_t)row);
            first += n;
        }
    }
    return NULL;
}

/* The final norm's rows as float32, into the memory of the logits. */
static nrd_error *states(nrd_runner *r, int32_t n_tokens, bool has_delta, int32_t n_rows)
{
    const nrd_layer *last = &r->w.layers[r->spec->n_layers - 1];
    nrd_norm_args a = {
        .size = sizeof a,
        .kind = r->spec->norm,
        .eps = r->spec->norm_eps,
        .n_tokens = n_tokens,
        .hidden = r->spec->hidden,
        .delta = has_delta ? r->delta : NULL,
        .delta_weight = has_delta ? last->post_mlp_norm : NULL,
        .residual = r->x,
        .weight = r->w.final_norm,
        .bias = r->w.final_norm_bias,
        .row_ids = r->row_ids,
        .n_rows = n_rows,
        .out = r->logits,
        .out_dtype = NRD_DTYPE_F32,
        .act_dtype = r->act,
    };
    return r->dev->ops->norm(r->stream, &a);
}

/* Prompt positions whose states are wanted, read back in groups as context_rows does. */
static nrd_error *state_rows(nrd_runner *r, const nrd_plan *p, bool *has_delta)
{
    const nrd_device_ops *ops = r->dev->ops;
    size_t hidden = (size_t)r->spec->hidden, row = (size_t)r->w.lm_head.rows;
    size_t fits = (size_t)r->logit_rows * row / hidden;
    int32_t group = fits < (size_t)r->logit_rows ? (int32_t)fits : r->logit_rows, at = 0;
    void *mem = NULL;

    for (int32_t i = 0; i < p->n_entries; at += p->entries[i].n, i++) {
        const nrd_plan_entry *e = &p->entries[i];
        const nrd_seq *q = e->seq;
        int32_t end = e->start + e->n < q->n_prompt ? e->start + e->n : q->n_prompt;
        int32_t first = q->want_states ? e->start : q->n_prompt - 1;
        if (!(q->want_states || q->want_last_state) || first >= end) {
            continue;
        }
        NRD_ASSERT(group > 0, "a row of states fits where many rows of logits do");
        if (!r->shared && !r->rows_host) {
            NRD_TRY(ops->alloc(r->dev, &mem, NRD_MEM_HOST,
                               (size_t)r->logit_rows * row * sizeof(float), "outputs"));
            r->rows_host = mem;
        }
        while (first < end) {
            int32_t n = end - first < group ? end - first : group;
            for (int32_t k = 0; k < n; k++) {
                r->row_ids_host[k] = at + first - e->start + k;
            }
            if (!r->shared) {
                NRD_TRY(ops->copy(r->stream, r->row_ids, r->row_ids_host,
                                  (size_t)n * sizeof *r->row_ids));
            }
            NRD_TRY(states(r, p->n_tokens, *has_delta, n));
            *has_delta = false;
            const float *rows = r->logits;
            if (!r->shared) {
                NRD_TRY(ops->copy(r->stream, r->rows_host, r->logits,
                                  (size_t)n * hidden * sizeof(float)));
                rows = r->rows_host;
            }
            NRD_TRY(ops->stream_sync(r->stream));
            r->cfg.on_states(r->cfg.user, e->seq, first, n, rows);
            first += n;
        }
    }
    return NULL;
}

/* ---- steps that can be recorded ---- */

/* Whether every sequence has one new token and one choice; then also the shape to fill up to. */
static bool recordable(const nrd_runner *r, const nrd_plan *p, nrd_batch_pad *pad)
{
    int32_t ctx = 1;
    if (r->graphs.cap == 0 || p->n_tokens != p->n_entries || p->n_rows != p->n_entries) {
        return false;
    }
    for (int32_t i = 0; i < p->n_entries; i++) {
        const nrd_plan_entry *e = &p->entries[i];
        if (e->n != 1 || e->row < 0 ||
            (e->seq->want_context_rows && e->start < e->seq->n_prompt)) {
            return false;
        }
        ctx = e->start + 1 > ctx ? e->start + 1 : ctx;
    }
    int32_t max = r->cfg.max_entries < r->cfg.max_tokens ? r->cfg.max_entries : r->cfg.max_tokens;
    pad->rows = nrd_graphs_rows(p->n_entries, max);
    pad->ctx = nrd_graphs_ctx(ctx, r->cfg.max_context);
    pad->stride = (pad->ctx + r->cfg.block_tokens - 1) / r->cfg.block_tokens;
    /* Steps of both buffers use one block and one array of results: the stream orders them, so that
     * a graph serves both. */
    pad->mem = r->batch[0].mem;
    return pad->rows > 0 && pad->stride <= r->max_blocks;
}

/* Masks that are still being made are waited for here, with the logits under way. A device that runs
 * what is enqueued only when it is waited for must begin now. */
static nrd_error *finish_masks(nrd_runner *r, nrd_batch *b)
{
    if (b->masks_pending && r->shared) {
        NRD_TRY(r->dev->ops->stream_sync(r->stream));
    }
    return nrd_batch_finish_masks(b, r->stream, r->mask_worker);
}

static nrd_error *single_tokens(nrd_runner *r, nrd_batch *b)
{
    NRD_TRY(layers(r, b));
    NRD_TRY(head(r, b->view.n_tokens, true, b->row_ids, b->n_rows));
    NRD_TRY(finish_masks(r, b));
    return choose(r, b, &r->out[0]);
}

static nrd_error *record(nrd_runner *r, nrd_batch *b, nrd_graph **out)
{
    const nrd_device_ops *ops = r->dev->ops;
    nrd_graph *g = NULL;

    NRD_TRY(ops->graph_begin(r->stream));
    nrd_error *err = single_tokens(r, b);
    nrd_error *end = ops->graph_end(r->stream, &g); /* also after an error: recording must end */
    if (err) {
        nrd_error_free(end);
        if (g) {
            ops->graph_free(g);
        }
        return err;
    }
    *out = g;
    return end;
}

/* A shape's first step runs as it is: products choose their kernels by timing them. So does one whose
 * masks are not ready: a graph would have to wait for them as a whole. */
static nrd_error *replay(nrd_runner *r, nrd_batch *b, const nrd_batch_pad *pad)
{
    nrd_graph_key key = {
        .rows = pad->rows,
        .ctx = pad->ctx,
        .n_top = b->n_top,
        .banned = b->n_banned > 0 ? b->banned_mem : NULL,
        .counts = r->counts,
    };
    bool seen = false;
    nrd_graph_slot *slot = nrd_graphs_get(&r->graphs, &key, &seen);

    if (!seen || r->marked || b->masks_pending) {
        return single_tokens(r, b);
    }
    if (!slot->graph) {
        nrd_error *err = record(r, b, &slot->graph);
        if (err) {
            if (r->cfg.on_warning) {
                r->cfg.on_warning(r->cfg.user, nrd_error_message(err));
            }
            nrd_error_free(err);
            NRD_TRY(r->dev->ops->stream_sync(r->stream)); /* graphs may be running */
            nrd_graphs_fini(&r->graphs);
            return single_tokens(r, b);
        }
    }
    return r->dev->ops->graph_launch(r->stream, slot->graph);
}

static nrd_error *enqueue(nrd_runner *r, const nrd_plan *p, int32_t buffer)
{
    nrd_batch *b = &r->batch[buffer];
    outputs *o = &r->out[buffer];
    nrd_batch_pad pad;
    bool has_delta = true, padded = recordable(r, p, &pad);

    o->n_rows = o->n_top = o->n_kept = 0;
    NRD_TRY(nrd_batch_fill(b, r->stream, p, padded ? &pad : NULL, r->mask_worker));
    NRD_TRY(copy_blocks(r, p));
    for (int32_t i = 0; i < p->n_entries; i++) {
        if (p->entries[i].init_counts) {
            NRD_TRY(init_counts(r, &p->entries[i]));
        }
    }
    NRD_TRY(mark(r, NRD_PROFILE_UPLOAD, 1, (double)b->n_bytes, 0));
    if (padded) {
        NRD_TRY(replay(r, b, &pad));
        NRD_TRY(keep_choices(r, p, o));
        return download(r, b, o, r->out[0].mem);
    }
    NRD_TRY(layers(r, b));
    NRD_TRY(context_rows(r, p, &has_delta));
    NRD_TRY(state_rows(r, p, &has_delta));
    if (b->n_rows > 0 && only_chosen(r, p, b)) {
        NRD_TRY(head_choose(r, p->n_tokens, has_delta, b, o));
        NRD_TRY(download(r, b, o, o->mem));
    } else if (b->n_rows > 0) {
        NRD_TRY(head(r, p->n_tokens, has_delta, b->row_ids, b->n_rows));
        NRD_TRY(keep_choices(r, p, o));
        NRD_TRY(finish_masks(r, b));
        NRD_TRY(choose(r, b, o));
        NRD_TRY(download(r, b, o, o->mem));
    }
    return NULL;
}

nrd_error *nrd_runner_submit(nrd_runner *r, const nrd_plan *p, int32_t buffer)
{
    bool by_op = false;
    NRD_TRY(nrd_profile_begin(r->profile, buffer, p->n_entries, p->n_tokens, &by_op));
    r->marked = by_op ? p : NULL;
    nrd_error *err = enqueue(r, p, buffer);
    nrd_mask_worker_wait(r->mask_worker); /* after an error: the guides are the caller's again */
    r->marked = NULL;
    NRD_TRY(err);
    NRD_TRY(nrd_profile_end(r->profile, buffer));
    return r->dev->ops->event_record(r->stream, r->out[buffer].done);
}

void nrd_runner_profile(nrd_runner *r, nrd_profile_sums *out, bool reset)
{
    nrd_profile_read(r->profile, out, reset);
}

int32_t nrd_runner_spans(nrd_runner *r, nrd_profile_span *out, int32_t first, int32_t max)
{
    return r->profile ? nrd_profile_spans(r->profile, out, first, max) : 0;
}

nrd_error *nrd_runner_wait(nrd_runner *r, int32_t buffer, nrd_step_result *out)
{
    outputs *o = &r->out[buffer];
    NRD_TRY(r->dev->ops->event_wait(o->done));
    NRD_TRY(nrd_profile_done(r->profile, buffer));
    *out = (nrd_step_result){
        .ids = (const int32_t *)(const void *)o->host,
        .log_probs = (const float *)(const void *)(o->host + o->off_log_probs),
        .log_probs_norm = (const float *)(const void *)(o->host + o->off_norm),
        .n_top = o->n_top,
        .top_ids = (const int32_t *)(const void *)(o->host + o->off_top_ids),
        .top_log_probs = (const float *)(const void *)(o->host + o->off_top_log_probs),
        .normalize = r->cfg.normalize_log_probs,
    };
    for (int32_t i = 0; i < o->n_kept; i++) {
        const struct kept *k = &o->kept[i];
        r->cfg.on_choice_row(r->cfg.user, k->seq, k->beam, k->n_generated,
                             o->logits + (size_t)k->row * (size_t)r->w.lm_head.rows);
    }
    return NULL;
}
