/* SPDX-License-Identifier: Apache-2.0
 * nereid inspect --families: the families of models and what works with each, from the tables that the
 * readers and the runner use. docs/models.md holds the same text. */
#include "tools/inspect.h"

#include "base/str.h"
#include "model/arch.h"
#include "model/families/family.h"
#include "model/needs.h"

#include <stdio.h>
#include <string.h>

/* Adapters can be read for a product whose rows lie in the file as they are used. */
static bool takes_adapters(const nrd_arch *a)
{
    for (const nrd_weight_rule *r = a->hf_rules; r->dst; r++) {
        const nrd_need *n = nrd_need_of(r->dst);
        if (r->flags & NRD_RULE_JOINED_KV) {
            continue; /* another form of the same family */
        }
        if (n && n->is_linear && n->is_layered && (r->flags & ~(uint32_t)(NRD_RULE_TRANSPOSE | NRD_RULE_IF_THERE))) {
            return false;
        }
    }
    return true;
}

static bool is_latent(const nrd_arch *a)
{
    for (const nrd_weight_rule *r = a->hf_rules; r->dst; r++) {
        const nrd_need *n = nrd_need_of(r->dst);
        if (n && n->when == NRD_WHEN_LATENT) {
            return true;
        }
    }
    return false;
}

static void print_row(const nrd_arch *a)
{
    nrd_model_spec s;
    nrd_str names = {0}, gguf = {0};

    nrd_model_spec_init(&s);
    nrd_arch_of_family(&s, a);
    for (int i = 0; i < 4 && a->hf_model_types[i]; i++) {
        nrd_str_printf(&names, "%s`%s`", i ? ", " : "", a->hf_model_types[i]);
    }
    for (const char *at = a->gguf_arch; at && *at; at += strcspn(at, "|"), at += *at == '|') {
        nrd_str_printf(&gguf, "%s`%.*s`", gguf.len ? ", " : "", (int)strcspn(at, "|"), at);
    }
    const bool reads_encoder = nrd_arch_encoder_of(a) != NULL, one_rank = (a->traits & (T_RECURRENT | T_ALTUP)) != 0;
    printf("| %s | %s | %s | yes | yes | %s | %s |\n", a->hf_architectures[0], nrd_str_cstr(&names),
           gguf.len ? nrd_str_cstr(&gguf) : "–",
           reads_encoder || one_rank ? "no" : "yes",
           s.encoder || reads_encoder ? "none"
           : is_latent(a)      ? "none"
           : a->traits & (T_STATES_ONLY | T_STATE_BESIDE | T_ALTUP) ? "none"
           : s.has_experts     ? "attention"
           : takes_adapters(a) ? "all"
                               : "some");
    nrd_str_fini(&names);
    nrd_str_fini(&gguf);
}

void nrd_inspect_families(void)
{
    const nrd_arch *a;
    printf(
        "| Hugging Face class | `model_type` | GGUF | CPU | NVIDIA GPU | ranks | LoRA modules |\n"
        "|---|---|---|---|---|---|---|\n");
    for (int i = 0; (a = nrd_arch_at(i)) != NULL; i++) {
        print_row(a);
    }
}
