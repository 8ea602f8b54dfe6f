/* SPDX-License-Identifier: Apache-2.0
 * Gemma 1 to 3: scaled embeddings, norms that multiply by 1 + w, GELU, heads of 256. */
#include "model/families/family.h"

#include "base/dtype.h"
#include "model/spec_projection.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

float nrd_family_gemma_embed_scale(const nrd_model_spec *s)
{
    float v = (float)sqrt((double)s->hidden);
    if (s->dtype == NRD_DTYPE_BF16) {
        return nrd_bf16_to_f32(nrd_f32_to_bf16(v));
    }
    return s->dtype == NRD_DTYPE_F16 ? nrd_f16_to_f32(nrd_f32_to_f16(v)) : v;
}

static nrd_error *gemma(nrd_model_spec *s, const nrd_json *c)
{
    NRD_TRY(nrd_hf_int(c, "head_dim", 256, &s->head_dim));
    s->embed_scale = nrd_family_gemma_embed_scale(s);
    /* the first files say "gelu" and mean its approximation by tanh */
    s->act = s->act == NRD_ACT_GELU_ERF ? NRD_ACT_GELU_TANH : s->act;
    return NULL;
}

static double cap(const nrd_json *c, const char *key, double fallback)
{
    const nrd_json *v = nrd_json_get(c, key); /* null: none */
    return v ? nrd_json_num(v, 0) : fallback;
}

static nrd_error *scaled(nrd_model_spec *s, const nrd_json *c, double attn_cap, double logits_cap)
{
    double q = nrd_json_get_num(c, "query_pre_attn_scalar", 256);
    if (!(q > 0)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'query_pre_attn_scalar' must be above 0, got %g", q);
    }
    NRD_TRY(nrd_hf_int(c, "head_dim", 256, &s->head_dim));
    NRD_TRY(nrd_hf_int(c, "num_key_value_heads", 4, &s->n_kv_heads));
    s->embed_scale = nrd_family_gemma_embed_scale(s);
    s->attn_scale = (float)(1 / sqrt(q));
    s->attn_softcap = (float)cap(c, "attn_logit_softcapping", attn_cap);
    s->logits_softcap = (float)cap(c, "final_logit_softcapping", logits_cap);
    return NULL;
}

static nrd_error *gemma2(nrd_model_spec *s, const nrd_json *c)
{
    return scaled(s, c, 50, 30);
}

/* EmbeddingGemma's tokens see both sides; its file names the whole width of a window. */
static nrd_error *gemma3(nrd_model_spec *s, const nrd_json *c)
{
    s->encoder = nrd_json_get_bool(c, "use_bidirectional_attention", false);
    s->pooling = s->encoder ? NRD_SPEC_POOL_MEAN : s->pooling;
    s->rope.base = 1e6; /* of layers that do not slide */
    return scaled(s, c, 0, 0);
}

static nrd_error *gguf_gemma(nrd_model_spec *s, const nrd_gguf *g)
{
    (void)g;
    s->embed_scale = (float)sqrt((double)s->hidden);
    return NULL;
}

/* The 27B models (n_layers of them) scale by the width of a head as if there were no head_dim. */
static void gguf_scaled(nrd_model_spec *s, const nrd_gguf *g, const char *arch, int32_t big_layers, double attn_cap,
                        double logits_cap)
{
    char key[64];
    s->embed_scale = (float)sqrt((double)s->hidden);
    if (s->n_layers == big_layers) {
        s->attn_scale = (float)(1 / sqrt((double)s->hidden / s->n_heads));
    }
    snprintf(key, sizeof key, "%s.attn_logit_softcapping", arch);
    s->attn_softcap = (float)nrd_gguf_num(g, key, attn_cap);
    snprintf(key, sizeof key, "%s.final_logit_softcapping", arch);
    s->logits_softcap = (float)nrd_gguf_num(g, key, logits_cap);
}

static nrd_error *gguf_gemma2(nrd_model_spec *s, const nrd_gguf *g)
{
    gguf_scaled(s, g, "gemma2", 46, 50, 30);
    return NULL;
}

#define EMBEDDING "gemma-embedding"

/* EmbeddingGemma: the products behind the pooled state are tensors of the file. */
static nrd_error *gguf_embedding(nrd_model_spec *s, const nrd_gguf *g)
{
    static const char *const dense[] = {"dense_2.weight", "dense_3.weight"};

    s->encoder = true;
    NRD_TRY(nrd_gguf_pooling(s, g, EMBEDDING, NRD_SPEC_POOL_MEAN));
    for (int i = 0; i < 2; i++) {
        if (nrd_gguf_find_tensor(g, dense[i])) {
            NRD_TRY(nrd_projection_add(s, nrd_gguf_rows_of(g, dense[i]), false, "none"));
        }
    }
    return NULL;
}

static nrd_error *gguf_gemma3(nrd_model_spec *s, const nrd_gguf *g)
{
    nrd_gguf_span arch = {"", 0};

    gguf_scaled(s, g, "gemma3", 62, 0, 0);
    nrd_gguf_str(g, "general.architecture", &arch);
    return arch.n == strlen(EMBEDDING) && !memcmp(arch.data, EMBEDDING, arch.n) ? gguf_embedding(s, g) : NULL;
}

#define GEMMA (T_NORM_PLUS_ONE | T_GELU_TANH | T_TIED)

const nrd_arch nrd_arch_gemma = {
    "gemma", "GemmaForCausalLM", {"gemma"}, {"GemmaForCausalLM"}, "gemma", MODEL_PREFIXES,
    nrd_hf_llama_rules, nrd_gguf_rules, GEMMA, gemma, gguf_gemma};

const nrd_arch nrd_arch_gemma2 = {
    "gemma2", "Gemma2ForCausalLM", {"gemma2"}, {"Gemma2ForCausalLM"}, "gemma2", MODEL_PREFIXES,
    nrd_hf_sandwich_rules, nrd_gguf_rules, GEMMA | T_POST_NORMS | T_WINDOW_ALTERNATES, gemma2, gguf_gemma2};

/* Gemma 2 without norms behind the sublayers. */
const nrd_arch nrd_arch_vaultgemma = {
    "vaultgemma", "VaultGemmaForCausalLM", {"vaultgemma"}, {"VaultGemmaForCausalLM"}, NULL, MODEL_PREFIXES,
    nrd_hf_sandwich_rules, NULL, GEMMA | T_WINDOW_ALTERNATES, gemma2, NULL};

const nrd_arch nrd_arch_gemma3 = {
    "gemma3_text", "Gemma3ForCausalLM", {"gemma3_text", "gemma3"},
    {"Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"}, "gemma3|" EMBEDDING, MODEL_PREFIXES,
    nrd_hf_sandwich_rules, nrd_gguf_rules,
    GEMMA | T_POST_NORMS | T_QK_NORM | T_WINDOW_PATTERN | T_LOCAL_ROPE | T_GEMMA3_SIZES, gemma3, gguf_gemma3};
