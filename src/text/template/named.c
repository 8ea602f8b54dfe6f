/* SPDX-License-Identifier: Apache-2.0
 * Templates for models whose files bring none: the formats that their makers describe, for messages of text. */
#include "text/template/chat.h"

#include <string.h>

/* A system message has no turn of its own in Gemma's and Mistral's formats: it stands before the next message. */
#define WITH_NEXT "{% set ns = namespace(system='') %}{% for m in messages %}{% if m.role == 'system' %}{% set ns.system = m.content ~ '\\n\\n' %}"

static const struct {
    const char *name, *text;
} named[] = {
    {"chatml", "{% for m in messages %}{{ '<|im_start|>' ~ m.role ~ '\\n' ~ m.content ~ '<|im_end|>\\n' }}{% endfor %}"
               "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"},
    {"gemma", "{{ bos_token }}" WITH_NEXT "{% else %}{{ '<start_of_turn>' ~ ('model' if m.role == 'assistant' else m.role) ~ '\\n' ~ ns.system ~ "
              "m.content | trim ~ '<end_of_turn>\\n' }}{% set ns.system = '' %}{% endif %}{% endfor %}"
              "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"},
    {"llama3", "{{ bos_token }}{% for m in messages %}{{ '<|start_header_id|>' ~ m.role ~ '<|end_header_id|>\\n\\n' ~ m.content | trim ~ "
               "'<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"},
    {"mistral", "{{ bos_token }}" WITH_NEXT "{% elif m.role == 'assistant' %}{{ ' ' ~ m.content ~ eos_token }}{% else %}"
                "{{ '[INST] ' ~ ns.system ~ m.content ~ ' [/INST]' }}{% set ns.system = '' %}{% endif %}{% endfor %}"},
    {"phi3", "{% for m in messages %}{{ '<|' ~ m.role ~ '|>\\n' ~ m.content ~ '<|end|>\\n' }}{% endfor %}"
             "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"},
};

const char *nrd_chat_template_named(const char *name)
{
    for (size_t i = 0; i < sizeof named / sizeof *named; i++) {
        if (!strcmp(name, named[i].name)) {
            return named[i].text;
        }
    }
    return NULL;
}
