/* SPDX-License-Identifier: Apache-2.0
 * Encoders: BERT, RoBERTa and XLM-RoBERTa, DistilBERT, MPNet, Nomic BERT (also with experts), jina-embeddings-v2 and -v3. Tokens see both sides; the sum behind attention and behind
 * the MLP is normed and goes on so. They make embeddings, no text (Devlin et al., 2018; Liu et al., 2019; Sanh et al.,
 * 2019). Heads for labels read the first token's state. */
#include "model/families/family.h"
#include "model/needs.h"
#include "model/spec_classifier.h"

#include <stdio.h>
#include <string.h>

#define LAYER "encoder.layer.*."
#define BERT_ATTENTION                                                                             \
    RULE_QKV(LAYER "attention.self.query", LAYER "attention.self.key",                             \
             LAYER "attention.self.value"),                                                        \
        RULE("attention.dense", LAYER "attention.output.dense", 0),                                \
        RULE("input_layernorm", LAYER "attention.output.LayerNorm", 0)
#define BERT_LAYER                                                                                 \
    BERT_ATTENTION, RULE("mlp.fc", LAYER "intermediate.dense", 0), RULE("mlp.proj", LAYER "output.dense", 0), \
        RULE("post_layernorm", LAYER "output.LayerNorm", 0)
/* Of a gated MLP whose last product alone has a bias. */
#define NO_GATE_BIASES {"mlp.fc.bias", {NULL}, NRD_RULE_ZEROS}, {"mlp.gate.bias", {NULL}, NRD_RULE_ZEROS}
#define BERT_ENDS                                                                                  \
    RULE_EMBED("embeddings.word_embeddings"),                                                      \
        {"transformer.type_embedding.weight", {"embeddings.token_type_embeddings.weight"}, 0},     \
        RULE("transformer.ln_embed", "embeddings.LayerNorm", 0)

static const nrd_weight_rule bert_rules[] = {
    BERT_ENDS,
    RULE_POSITIONS("embeddings.position_embeddings", 0),
    BERT_LAYER,
    RULE_CLASSIFIER("dense", "pooler.dense"),
    RULE_CLASSIFIER("out", "classifier"),
    {0}};

const nrd_weight_rule nrd_hf_electra_rules[] = {
    BERT_ENDS,
    RULE_POSITIONS("embeddings.position_embeddings", 0),
    BERT_LAYER,
    RULE("transformer.embed_projection", "embeddings_project", 0),
    RULE_CLASSIFIER("dense", "classifier.dense"),
    RULE_CLASSIFIER("out", "classifier.out_proj"),
    {0}};

/* The first two rows are of the token that fills batches up. */
static const nrd_weight_rule roberta_rules[] = {
    BERT_ENDS,
    RULE_POSITIONS("embeddings.position_embeddings", NRD_RULE_SKIP_TWO),
    BERT_LAYER,
    RULE_CLASSIFIER("dense", "classifier.dense"),
    RULE_CLASSIFIER("out", "classifier.out_proj"),
    {0}};

/* Distances give biases too, the same in every layer (Song et al., 2020). */
static const nrd_weight_rule mpnet_rules[] = {
    RULE_EMBED("embeddings.word_embeddings"),
    RULE("transformer.ln_embed", "embeddings.LayerNorm", 0),
    RULE_POSITIONS("embeddings.position_embeddings", NRD_RULE_SKIP_TWO),
    RULE_WEIGHT("transformer.rel_attn_table", "encoder.relative_attention_bias"),
    RULE_QKV(LAYER "attention.attn.q", LAYER "attention.attn.k", LAYER "attention.attn.v"),
    RULE("attention.dense", LAYER "attention.attn.o", 0),
    RULE("input_layernorm", LAYER "attention.LayerNorm", 0),
    RULE("mlp.fc", LAYER "intermediate.dense", 0),
    RULE("mlp.proj", LAYER "output.dense", 0),
    RULE("post_layernorm", LAYER "output.LayerNorm", 0),
    RULE_CLASSIFIER("dense", "classifier.dense"),
    RULE_CLASSIFIER("out", "classifier.out_proj"),
    {0}};

/* nomic-embed-text: rotary positions and a gated MLP, under the names of its own files or of those that transformers writes. */
#define NOMIC "encoder.layers.*."
#define NOMIC_OR(dst, theirs, ours) RULE_OR(dst, NOMIC theirs, "layers.*." ours)
static const nrd_weight_rule nomic_rules[] = {
    RULE_EMBED("embeddings.word_embeddings"),
    {"transformer.type_embedding.weight", {"embeddings.token_type_embeddings.weight"}, 0},
    RULE_OR("transformer.ln_embed", "emb_ln", "embeddings.LayerNorm"),
    {"attention.qkv.weight", {NOMIC "attn.Wqkv.weight"}, NRD_RULE_IF_THERE},
    {"attention.qkv.bias", {NOMIC "attn.Wqkv.bias"}, NRD_RULE_IF_THERE},
    {"attention.qkv.weight",
     {"layers.*.self_attn.q_proj.weight", "layers.*.self_attn.k_proj.weight", "layers.*.self_attn.v_proj.weight"},
     NRD_RULE_IF_THERE},
    NOMIC_OR("attention.dense", "attn.out_proj", "self_attn.o_proj"),
    NOMIC_OR("input_layernorm", "norm1", "post_attention_layernorm"),
    RULE("mlp.fc", NOMIC "mlp.fc1", NRD_RULE_IF_THERE), /* not gated */
    {"mlp.fc.weight", {NOMIC "mlp.fc12.weight"}, NRD_RULE_IF_THERE},
    {"mlp.fc.weight", {"layers.*.mlp.gate_proj.weight"}, NRD_RULE_IF_THERE},
    NOMIC_OR("mlp.gate", "mlp.fc11", "mlp.up_proj"),
    NOMIC_OR("mlp.proj", "mlp.fc2", "mlp.down_proj"),
    NOMIC_OR("post_layernorm", "norm2", "post_mlp_layernorm"),
    RULE_WEIGHT("mlp.router", NOMIC "mlp.router.layer"),
    {"mlp.experts.fc.weight", {NOMIC "mlp.experts.mlp.w1"}, 0},
    {"mlp.experts.proj.weight", {NOMIC "mlp.experts.mlp.w2"}, NRD_RULE_TRANSPOSE},
    {"mlp." NRD_SUM_BIAS, {NOMIC "mlp.experts.bias"}, 0},
    {0}};

/* jina-embeddings-v3: XLM-RoBERTa with rotary positions, likewise under either names. */
static const nrd_weight_rule jina_rules[] = {
    RULE_EMBED("embeddings.word_embeddings"),
    {"transformer.type_embedding.weight", {"embeddings.token_type_embeddings.weight"}, 0},
    RULE_OR("transformer.ln_embed", "emb_ln", "embeddings.LayerNorm"),
    {"attention.qkv.weight", {NOMIC "mixer.Wqkv.weight"}, NRD_RULE_IF_THERE},
    {"attention.qkv.bias", {NOMIC "mixer.Wqkv.bias"}, NRD_RULE_IF_THERE},
    {"attention.qkv.weight",
     {"layers.*.self_attn.q_proj.weight", "layers.*.self_attn.k_proj.weight", "layers.*.self_attn.v_proj.weight"},
     NRD_RULE_IF_THERE},
    {"attention.qkv.bias", {"layers.*.self_attn.q_proj.bias", "layers.*.self_attn.k_proj.bias", "layers.*.self_attn.v_proj.bias"},
     NRD_RULE_IF_THERE},
    NOMIC_OR("attention.dense", "mixer.out_proj", "self_attn.o_proj"),
    NOMIC_OR("input_layernorm", "norm1", "post_attention_layernorm"),
    NOMIC_OR("mlp.fc", "mlp.fc1", "mlp.fc1"),
    NOMIC_OR("mlp.proj", "mlp.fc2", "mlp.fc2"),
    NOMIC_OR("post_layernorm", "norm2", "post_mlp_layernorm"),
    {0}};

/* jina-embeddings-v2: BERT with ALiBi instead of positions and a gated MLP (Guenther et al., 2023, arXiv:2310.19923). */
static const nrd_weight_rule jina_v2_rules[] = {
    BERT_ENDS,
    BERT_ATTENTION,
    {"mlp.fc.weight", {LAYER "mlp.gated_layers.weight"}, NRD_RULE_FIRST_HALF},
    {"mlp.gate.weight", {LAYER "mlp.gated_layers.weight"}, NRD_RULE_SECOND_HALF},
    NO_GATE_BIASES,
    RULE("mlp.proj", LAYER "mlp.wo", 0),
    RULE("post_layernorm", LAYER "mlp.layernorm", 0),
    RULE_CLASSIFIER("dense", "pooler.dense"),
    RULE_CLASSIFIER("out", "classifier"),
    {0}};

#define DISTIL "transformer.layer.*."
static const nrd_weight_rule distilbert_rules[] = {
    RULE_EMBED("embeddings.word_embeddings"),
    RULE_POSITIONS("embeddings.position_embeddings", 0),
    RULE("transformer.ln_embed", "embeddings.LayerNorm", 0),
    RULE_QKV(DISTIL "attention.q_lin", DISTIL "attention.k_lin", DISTIL "attention.v_lin"),
    RULE("attention.dense", DISTIL "attention.out_lin", 0),
    RULE("input_layernorm", DISTIL "sa_layer_norm", 0),
    RULE("mlp.fc", DISTIL "ffn.lin1", 0),
    RULE("mlp.proj", DISTIL "ffn.lin2", 0),
    RULE("post_layernorm", DISTIL "output_layer_norm", 0),
    RULE_CLASSIFIER("dense", "pre_classifier"),
    RULE_CLASSIFIER("out", "classifier"),
    {0}};

/* Files of RoBERTa and XLM-RoBERTa call themselves the same; their rows of positions begin at the first. */
#define GGUF_LAYER(qkv)                                                                            \
    RULE_EMBED("token_embd"), {"transformer.type_embedding.weight", {"token_types.weight"}, 0},    \
        RULE("transformer.ln_embed", "token_embd_norm", 0), RULE_POSITIONS("position_embd", 0), qkv, \
        RULE("attention.dense", BLOCK "attn_output", 0), RULE("input_layernorm", BLOCK "attn_output_norm", 0), \
        RULE("mlp.proj", BLOCK "ffn_down", 0), RULE("post_layernorm", BLOCK "layer_output_norm", 0)
#define BLOCK "blk.*."
static const nrd_weight_rule gguf_bert_rules[] = {
    GGUF_LAYER(RULE_QKV(BLOCK "attn_q", BLOCK "attn_k", BLOCK "attn_v")), RULE("mlp.fc", BLOCK "ffn_up", 0),
    RULE_CLASSIFIER("dense", "cls"), RULE_CLASSIFIER("out", "cls.output"), {0}};
static const nrd_weight_rule gguf_nomic_rules[] = {
    GGUF_LAYER(RULE("attention.qkv", BLOCK "attn_qkv", 0)),
    {"mlp.fc.weight", {BLOCK "ffn_gate.weight"}, NRD_RULE_IF_THERE},
    RULE("mlp.fc", BLOCK "ffn_up", NRD_RULE_IF_THERE),
    RULE_WEIGHT("mlp.gate", BLOCK "ffn_up"),
    RULE_WEIGHT("mlp.router", BLOCK "ffn_gate_inp"),
    RULE_WEIGHT("mlp.experts.fc", BLOCK "ffn_up_exps"),
    RULE_WEIGHT("mlp.experts.proj", BLOCK "ffn_down_exps"),
    {0}};
static const nrd_weight_rule gguf_jina_rules[] = {
    GGUF_LAYER(RULE("attention.qkv", BLOCK "attn_qkv", 0)), RULE("mlp.fc", BLOCK "ffn_up", 0), {0}};

/* Newer files have gate and up in one matrix. */
static const nrd_weight_rule gguf_jina_v2_rules[] = {
    GGUF_LAYER(RULE_QKV(BLOCK "attn_q", BLOCK "attn_k", BLOCK "attn_v")),
    {"mlp.fc.weight", {BLOCK "ffn_gate.weight"}, NRD_RULE_IF_THERE},
    {"mlp.fc.weight", {BLOCK "ffn_up.weight"}, NRD_RULE_FIRST_HALF | NRD_RULE_IF_THERE},
    {"mlp.gate.weight", {BLOCK "ffn_up.weight"}, NRD_RULE_SECOND_HALF | NRD_RULE_IF_THERE},
    {"mlp.gate.weight", {BLOCK "ffn_up.weight"}, NRD_RULE_IF_THERE},
    NO_GATE_BIASES,
    {0}};

/* The names of a head's labels, where the file has any, as config.json would have them. */
static nrd_error *gguf_label_names(nrd_classifier_spec *head, const nrd_gguf *g, int32_t n)
{
    const nrd_gguf_value *names = nrd_gguf_find(g, "bert.classifier.output_labels");
    nrd_json_doc *doc = NULL;
    nrd_str text = {0};
    nrd_gguf_span name;

    nrd_str_printf(&text, "{\"num_labels\":%d,\"id2label\":{", n);
    for (int32_t i = 0, k = 0; names && i < n; i++) {
        if (nrd_gguf_arr_str(names, (uint64_t)i, &name)) {
            nrd_str_printf(&text, "%s\"%d\":", k++ ? "," : "", i);
            nrd_json_put_string(&text, name.data, name.n);
        }
    }
    nrd_str_puts(&text, "}}");
    nrd_error *err = nrd_str_error(&text);
    err = err ? err : nrd_json_parse(&doc, text.data, text.len, NULL);
    err = err ? err : nrd_classifier_from_hf(head, nrd_json_root(doc));
    nrd_json_doc_free(doc);
    nrd_str_fini(&text);
    return err;
}

enum { POOLING_TYPE_RANK = 4 };

/* RoBERTa's head, as rerankers have it. Of BERT's own, files lack the first product. */
static nrd_error *gguf_head(nrd_model_spec *s, const nrd_gguf *g)
{
    nrd_classifier_spec *head = &s->classifier;

    if (!nrd_gguf_find_tensor(g, "cls.weight") || !nrd_gguf_find_tensor(g, "cls.output.weight")) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "'bert.pooling_type' is 4, a head for labels, and the file has not both of 'cls.weight' and "
                          "'cls.output.weight', as RoBERTa's heads have");
    }
    s->pooling = head->pooling = NRD_SPEC_POOL_FIRST;
    head->dense = true;
    head->dense_bias = nrd_gguf_find_tensor(g, "cls.bias") != NULL;
    head->bias = nrd_gguf_find_tensor(g, "cls.output.bias") != NULL;
    snprintf(head->act, sizeof head->act, "tanh");
    return gguf_label_names(head, g, nrd_gguf_rows_of(g, "cls.output.weight"));
}

/* `arch`: before the keys. */
static nrd_error *gguf_encoder(nrd_model_spec *s, const nrd_gguf *g, const char *arch, nrd_act_kind act)
{
    const nrd_gguf_tensor *types = nrd_gguf_find_tensor(g, "token_types.weight");
    const bool has_head = !strcmp(arch, "bert") && nrd_gguf_key(g, arch, "pooling_type", 0) == POOLING_TYPE_RANK;

    NRD_TRY(has_head ? gguf_head(s, g) : nrd_gguf_pooling(s, g, arch, s->pooling));
    s->n_token_types = types && types->n_dims == 2 ? nrd_family_small((int64_t)types->dims[1]) : types ? 1 : 0;
    s->act = act;
    s->tied_embeddings = true;
    return NULL;
}

static nrd_error *gguf_bert(nrd_model_spec *s, const nrd_gguf *g)
{
    return gguf_encoder(s, g, "bert", NRD_ACT_GELU_ERF);
}

#define NOMIC_MOE "nomic-bert-moe"

/* Files with experts lack the bias of what these give together: llama.cpp's writer leaves it out. */
static nrd_error *gguf_nomic(nrd_model_spec *s, const nrd_gguf *g)
{
    nrd_gguf_span arch = {"", 0};

    nrd_gguf_str(g, "general.architecture", &arch);
    s->has_experts = arch.n == strlen(NOMIC_MOE) && !memcmp(arch.data, NOMIC_MOE, arch.n);
    if (!s->has_experts) {
        return gguf_encoder(s, g, "nomic-bert", NRD_ACT_SILU);
    }
    s->gated_mlp = false;
    nrd_gguf_experts(s, g, NOMIC_MOE);
    return gguf_encoder(s, g, NOMIC_MOE, NRD_ACT_GELU_ERF);
}

static nrd_error *gguf_jina(nrd_model_spec *s, const nrd_gguf *g)
{
    return gguf_encoder(s, g, "jina-bert-v3", NRD_ACT_GELU_ERF);
}

static nrd_error *gguf_jina_v2(nrd_model_spec *s, const nrd_gguf *g)
{
    if (nrd_gguf_find_tensor(g, "blk.0.attn_norm_2.weight") || nrd_gguf_find_tensor(g, "blk.0.attn_q_norm.weight")) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "jina-bert-v2 models with norms of q and k ('attn_q_norm', 'attn_norm_2') are not supported");
    }
    return gguf_encoder(s, g, "jina-bert-v2", NRD_ACT_GELU_ERF);
}

static nrd_error *encoder(nrd_model_spec *s, const nrd_json *c, const char *classifier_act)
{
    const char *positions = nrd_json_get_str(c, "position_embedding_type", "absolute");

    if (strcmp(positions, "absolute") != 0) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "position_embedding_type '%.40s' is not supported",
                          positions);
    }
    NRD_TRY(nrd_hf_refuse(c, "is_decoder"));
    NRD_TRY(nrd_hf_refuse(c, "add_cross_attention"));
    s->tied_embeddings = true;
    s->norm_eps = (float)nrd_json_get_num(c, "layer_norm_eps", 1e-12);
    s->classifier.dense = s->classifier.dense_bias = s->classifier.bias = true;
    snprintf(s->classifier.act, sizeof s->classifier.act, "%s", classifier_act);
    return NULL;
}

static nrd_error *bert(nrd_model_spec *s, const nrd_json *c)
{
    NRD_TRY(nrd_hf_int(c, "type_vocab_size", 2, &s->n_token_types));
    return encoder(s, c, "tanh");
}

static nrd_error *begin_at_two(nrd_model_spec *s, const nrd_json *c)
{
    int32_t pad = 1;

    NRD_TRY(nrd_hf_int(c, "pad_token_id", 1, &pad));
    if (pad != 1) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED,
                          "pad_token_id %d: positions that do not begin at 2 are not supported",
                          pad);
    }
    s->max_positions -= 2;
    return NULL;
}

static nrd_error *roberta(nrd_model_spec *s, const nrd_json *c)
{
    NRD_TRY(begin_at_two(s, c));
    return bert(s, c);
}

static nrd_error *mpnet(nrd_model_spec *s, const nrd_json *c)
{
    NRD_TRY(begin_at_two(s, c));
    NRD_TRY(nrd_hf_int(c, "relative_attention_num_buckets", 32, &s->rel_buckets));
    s->rel_distance = 128; /* no key says another */
    return encoder(s, c, "tanh");
}

static nrd_error *distilbert(nrd_model_spec *s, const nrd_json *c)
{
    NRD_TRY(nrd_hf_int(c, "hidden_dim", NRD_HF_REQUIRED, &s->inter));
    return encoder(s, c, "relu");
}

#define ENCODER                                                                                    \
    (T_ENCODER | T_SUM_NORMS | T_EMBED_NORM | T_LAYER_NORM | T_LEARNED_POSITIONS | T_PLAIN_MLP |   \
     T_ALL_BIASES | T_TIED)

const nrd_arch nrd_arch_bert = {"bert",     "BertModel",
                                {"bert"},   {"BertModel", "BertForMaskedLM"},
                                "bert",     {"", "bert.", NULL},
                                bert_rules, gguf_bert_rules,
                                ENCODER,    bert,
                                gguf_bert};

const nrd_arch nrd_arch_roberta = {"roberta",
                                   "RobertaModel",
                                   {"roberta", "xlm-roberta", "camembert"},
                                   {"RobertaModel", "XLMRobertaModel"},
                                   NULL,
                                   {"", "roberta.", NULL},
                                   roberta_rules,
                                   NULL,
                                   ENCODER,
                                   roberta,
                                   NULL};

const nrd_arch nrd_arch_mpnet = {"mpnet",
                                 "MPNetModel",
                                 {"mpnet"},
                                 {"MPNetModel", "MPNetForMaskedLM"},
                                 NULL,
                                 {"", "mpnet.", NULL},
                                 mpnet_rules,
                                 NULL,
                                 ENCODER,
                                 mpnet,
                                 NULL};

/* The second of every `step` layers has experts instead of its MLP (nomic-embed-text-v2-moe; Nussbaum and Duderstadt, 2025,
 * arXiv:2502.07972). */
static nrd_error *experts_between(nrd_model_spec *s, const nrd_json *c, int32_t step)
{
    if (step < 2 || s->gated_mlp) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "'moe_every_n_layers' must be above 1, beside an MLP that is not gated, got %d", step);
    }
    NRD_TRY(nrd_hf_int(c, "num_experts", NRD_HF_REQUIRED, &s->moe.n_experts));
    NRD_TRY(nrd_hf_int(c, "moe_top_k", 1, &s->moe.top_k));
    s->moe.inter = s->inter;
    s->moe.sum_bias = true;
    for (int32_t i = 0; i < s->n_layers; i++) {
        s->layer_is_dense[i] = i % step != 1;
    }
    return NULL;
}

/* What the files' own code could be told, and these models are not. */
static nrd_error *nomic_bert(nrd_model_spec *s, const nrd_json *c)
{
    static const char *const refused[] = {"prenorm", "parallel_block", "use_rms_norm", "expert_choice_router", "num_shared_experts",
                                          "moe_normalize_expert_weights", "rotary_emb_interleaved", "rotary_emb_scale_base"};
    static const char *const biases[] = {"qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias"};
    const char *act = nrd_json_get_str(c, "activation_function", "swiglu");
    int32_t step = 0;

    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        NRD_TRY(nrd_hf_refuse(c, refused[i]));
    }
    if (nrd_json_get_num(c, "rotary_emb_fraction", 1) < 1) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "rotary_emb_fraction %g: positions of other than whole heads are not supported",
                          nrd_json_get_num(c, "rotary_emb_fraction", 1));
    }
    s->gated_mlp = !strcmp(act, "swiglu") || !strcmp(act, "geglu");
    for (size_t i = 0; i < sizeof biases / sizeof biases[0] && s->gated_mlp; i++) {
        NRD_TRY(nrd_hf_refuse(c, biases[i]));
    }
    if (!s->gated_mlp) {
        s->qkv_bias = s->dense_bias = nrd_json_get_bool(c, "qkv_proj_bias", true);
        s->mlp_bias = nrd_json_get_bool(c, "mlp_fc1_bias", true);
        if (s->mlp_bias != nrd_json_get_bool(c, "mlp_fc2_bias", true)) {
            return nrd_errorf(NRD_ERR_UNSUPPORTED, "'mlp_fc1_bias' and 'mlp_fc2_bias' must be alike");
        }
    }
    NRD_TRY(nrd_hf_int(c, "moe_every_n_layers", 0, &step));
    s->has_experts = step != 0;
    if (s->has_experts) {
        NRD_TRY(experts_between(s, c, step));
    }
    s->rope.base = 1000;
    NRD_TRY(bert(s, c));
    s->norm_eps = (float)nrd_json_num(nrd_hf_get(c, "layer_norm_epsilon|layer_norm_eps"), 1e-12);
    return NULL;
}

const nrd_arch nrd_arch_nomic_bert = {"nomic_bert",
                                      "NomicBertModel",
                                      {"nomic_bert"},
                                      {"NomicBertModel"},
                                      "nomic-bert|" NOMIC_MOE,
                                      {"", "nomic_bert.", NULL},
                                      nomic_rules,
                                      gguf_nomic_rules,
                                      T_ENCODER | T_SUM_NORMS | T_EMBED_NORM | T_LAYER_NORM | T_TIED | T_EXPERTS | T_EXPERTS_OR_NOT,
                                      nomic_bert,
                                      gguf_nomic};

static nrd_error *jina_v2(nrd_model_spec *s, const nrd_json *c)
{
    const char *mlp = nrd_json_get_str(c, "feed_forward_type", "original"), *positions = nrd_json_get_str(c, "position_embedding_type", "absolute");
    const char *pooling = nrd_json_str(nrd_hf_get(c, "emb_pooler"), "");
    const nrd_json *code = nrd_json_get(nrd_json_get(c, "auto_map"), "AutoModel");

    if (strcmp(positions, "alibi") != 0 || (strcmp(mlp, "geglu") != 0 && strcmp(mlp, "reglu") != 0)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "position_embedding_type '%.40s' and feed_forward_type '%.40s' of a JinaBertModel are not "
                          "supported, only alibi with geglu or reglu", positions, mlp);
    }
    if (strstr(nrd_json_str(code, ""), "qk-post-norm")) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "the JinaBertModel of '%.80s', with norms of q and k, is not supported", nrd_json_str(code, ""));
    }
    if (*pooling && strcmp(pooling, "mean") != 0) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "emb_pooler '%.40s' is not supported", pooling);
    }
    NRD_TRY(nrd_hf_refuse(c, "is_decoder"));
    NRD_TRY(nrd_hf_refuse(c, "add_cross_attention"));
    NRD_TRY(nrd_hf_int(c, "type_vocab_size", 2, &s->n_token_types));
    s->act = mlp[0] == 'g' ? NRD_ACT_GELU_ERF : NRD_ACT_RELU;
    s->pooling = *pooling ? NRD_SPEC_POOL_MEAN : s->pooling;
    s->tied_embeddings = true;
    s->norm_eps = (float)nrd_json_get_num(c, "layer_norm_eps", 1e-12);
    s->classifier.dense = s->classifier.dense_bias = s->classifier.bias = true;
    snprintf(s->classifier.act, sizeof s->classifier.act, "tanh");
    return NULL;
}

const nrd_arch nrd_arch_jina_v2 = {
    "jina_bert_v2", "JinaBertModel", {"bert"}, {"JinaBertModel", "JinaBertForMaskedLM", "JinaBertForSequenceClassification"},
    "jina-bert-v2", {"", "bert.", NULL}, jina_v2_rules, gguf_jina_v2_rules,
    T_ENCODER | T_SUM_NORMS | T_EMBED_NORM | T_LAYER_NORM | T_ALIBI | T_ALL_BIASES | T_TIED, jina_v2, gguf_jina_v2};

static nrd_error *jina(nrd_model_spec *s, const nrd_json *c)
{
    NRD_TRY(nrd_hf_int(c, "type_vocab_size", 1, &s->n_token_types));
    NRD_TRY(nrd_hf_refuse(c, "lora_adaptations"));
    s->tied_embeddings = true;
    s->norm_eps = (float)nrd_json_get_num(c, "layer_norm_eps", 1e-5);
    s->rope.base = 20000;
    return NULL;
}

const nrd_arch nrd_arch_jina_v3 = {
    "jina_embeddings_v3", "JinaEmbeddingsV3Model", {"jina_embeddings_v3"}, {"JinaEmbeddingsV3Model", "JinaEmbeddingsV3ForMaskedLM"},
    "jina-bert-v3", {"", "roberta.", NULL}, jina_rules, gguf_jina_rules,
    T_ENCODER | T_SUM_NORMS | T_EMBED_NORM | T_LAYER_NORM | T_PLAIN_MLP | T_ALL_BIASES | T_TIED, jina, gguf_jina};

const nrd_arch nrd_arch_distilbert = {"distilbert",
                                      "DistilBertModel",
                                      {"distilbert"},
                                      {"DistilBertModel"},
                                      NULL,
                                      {"", "distilbert.", NULL},
                                      distilbert_rules,
                                      NULL,
                                      ENCODER,
                                      distilbert,
                                      NULL};
