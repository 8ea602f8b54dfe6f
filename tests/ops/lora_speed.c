/* SPDX-License-Identifier: Apache-2.0
 * Speed of low-rank pairs: products of whole models, adapters that all tokens share and such that they do not. */
#include "ops/harness.h"

enum { RANK = 16, MOST_PARTS = 3 };

typedef struct lora_speed {
    unsigned on;
    int32_t n_tokens, n_adapters; /* which tokens have by turns */
    bool single;                  /* each token is a sequence */
    int32_t cols, n_parts, rows[MOST_PARTS];
} lora_speed;

/* clang-format off */
#define LLAMA_QKV 4096, 3, {4096, 1024, 1024}
#define LLAMA_UP 4096, 2, {14336, 14336}
#define LLAMA_DOWN 14336, 1, {4096}
#define SMOL_QKV 576, 3, {576, 192, 192}
#define SMOL_DOWN 1536, 1, {576}
static const lora_speed table[] = {
    {ON_CPU, 1, 1, true, SMOL_QKV}, {ON_CPU, 32, 1, true, SMOL_QKV}, {ON_CPU, 32, 8, true, SMOL_QKV},
    {ON_CPU, 1, 1, true, SMOL_DOWN}, {ON_CPU, 32, 1, true, SMOL_DOWN}, {ON_CPU, 512, 1, false, SMOL_DOWN},
    {ON_CUDA, 1, 1, true, LLAMA_QKV}, {ON_CUDA, 1, 1, true, LLAMA_UP}, {ON_CUDA, 1, 1, true, LLAMA_DOWN},
    {ON_CUDA, 64, 1, true, LLAMA_QKV}, {ON_CUDA, 64, 1, true, LLAMA_UP}, {ON_CUDA, 64, 1, true, LLAMA_DOWN},
    {ON_CUDA, 64, 16, true, LLAMA_QKV}, {ON_CUDA, 64, 16, true, LLAMA_UP}, {ON_CUDA, 64, 16, true, LLAMA_DOWN},
    {ON_CUDA, 64, 32, true, LLAMA_QKV}, {ON_CUDA, 64, 32, true, LLAMA_UP}, {ON_CUDA, 64, 32, true, LLAMA_DOWN},
    {ON_CUDA, 512, 1, false, LLAMA_QKV}, {ON_CUDA, 512, 1, false, LLAMA_UP}, {ON_CUDA, 512, 1, false, LLAMA_DOWN},
};
/* clang-format on */

/* Layers have pairs of their own, so that these come from memory as in a model. */
typedef struct lora_run {
    nrd_lora_args a;
    const nrd_lora_pair *pairs; /* [n_layers][n_adapters][n_parts] */
    int32_t per_layer;
    int n_layers;
} lora_run;

static void lora_call(const target *t, int i, void *user)
{
    lora_run *r = user;
    r->a.pairs = r->pairs + (ptrdiff_t)(i % r->n_layers) * r->per_layer;
    ok(t->ops->lora(t->s, &r->a));
}

/* The table of all layers on the device; returns the bytes of one adapter in one layer. */
static size_t make_pairs(const lora_speed *s, const target *t, nrd_dtype type, lora_run *r)
{
    const size_t elem = nrd_dtype_block_bytes(type), of_a = (size_t)s->cols * RANK * elem;
    size_t each = 0;

    for (int32_t p = 0; p < s->n_parts; p++) {
        each += of_a + (size_t)s->rows[p] * RANK * elem;
    }
    r->per_layer = s->n_adapters * s->n_parts;
    r->n_layers = kind->is_exact ? 1 : 32;
    const size_t n = (size_t)r->n_layers * (size_t)s->n_adapters;
    nrd_lora_pair *pairs = host(n * (size_t)s->n_parts * sizeof *pairs);
    char *at = dev_pool(t, type, n * each);
    for (size_t i = 0; i < n * (size_t)s->n_parts; i++) {
        char *b = at + of_a;
        pairs[i] =
            (nrd_lora_pair){.rank = RANK, .dtype = (int32_t)type, .scale = 0.01f, .a = at, .b = b};
        at = b + (size_t)s->rows[i % (size_t)s->n_parts] * RANK * elem;
    }
    r->pairs = dev_put(t, pairs, n * (size_t)s->n_parts * sizeof *pairs);
    return each;
}

static void speed_one(const lora_speed *s, const target *t)
{
    const nrd_dtype act = kind->is_exact ? NRD_DTYPE_F32 : NRD_DTYPE_BF16;
    const size_t elem = nrd_dtype_block_bytes(act), n = (size_t)s->n_tokens;
    int32_t *slots = host(n * 4);
    lora_run r = {.a = {.n_tokens = s->n_tokens,
                        .single_tokens = s->single,
                        .slot_stride = s->n_parts,
                        .max_rank = RANK,
                        .n_parts = s->n_parts,
                        .x_dtype = act,
                        .cols = s->cols,
                        .y_dtype = act}};

    for (int32_t i = 0; i < s->n_tokens; i++) {
        slots[i] = i % s->n_adapters;
    }
    for (int32_t p = 0; p < s->n_parts; p++) {
        r.a.part[p].row0 = (int32_t)r.a.y_stride;
        r.a.part[p].n_rows = s->rows[p];
        r.a.y_stride += s->rows[p];
    }
    const size_t each = make_pairs(s, t, NRD_DTYPE_BF16, &r), x_bytes = n * (size_t)s->cols * elem,
                 y_bytes = n * (size_t)r.a.y_stride * elem;
    r.a.token_slot = dev_put(t, slots, n * 4);
    r.a.x = dev_pool(t, act, x_bytes);
    r.a.y = dev_pool(t, act, y_bytes);
    r.a.hidden = dev_out(t, n * (size_t)s->n_parts * RANK * 4);
    const double macs = (double)n * RANK * ((double)s->cols * s->n_parts + (double)r.a.y_stride);
    speed_row(measure(t, lora_call, &r, 32),
              (work){(double)each * s->n_adapters + (double)x_bytes + 2 * (double)y_bytes, 2 * macs,
                     PEAK_FLOAT},
              "lora %d tokens, %d adapters: %d -> %lld", s->n_tokens, s->n_adapters, s->cols,
              (long long)r.a.y_stride);
    case_end();
}

void speed_lora(void)
{
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (is_here(table[i].on)) {
            speed_one(&table[i], &targets[0]);
        }
    }
}
