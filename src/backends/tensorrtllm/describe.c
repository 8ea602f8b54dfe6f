/* SPDX-License-Identifier: Apache-2.0
 * What the engine makes beside text becomes a parameter of the model's configuration, where clients and front ends
 * see it. */
#include "backends/tensorrtllm/llm.h"

#include "base/str.h"
#include "nereid/llm_tensors.h"

#include <string.h>

static void put_parameter(nrd_str *o, const char *text)
{
    nrd_json_put_cstr(o, NRD_LLM_MODEL);
    nrd_str_puts(o, ":{\"string_value\":");
    nrd_json_put_cstr(o, text);
    nrd_str_puts(o, "}");
}

/* An object's member, with its name. */
static void put_member(nrd_str *o, const nrd_json *m, bool is_first)
{
    nrd_str_puts(o, is_first ? "" : ",");
    nrd_json_put_string(o, m->key, m->key_len);
    nrd_str_putc(o, ':');
    nrd_json_put(o, m, 0);
}

/* The configuration with the parameter in it. */
static void put_config(nrd_str *o, const nrd_json *config, const char *text)
{
    const nrd_json *params = nrd_json_get(config, "parameters");

    nrd_str_puts(o, "{\"parameters\":{");
    put_parameter(o, text);
    for (size_t i = 0; i < nrd_json_len(params); i++) {
        if (strcmp(params->child[i].key, NRD_LLM_MODEL) != 0) {
            put_member(o, &params->child[i], false);
        }
    }
    nrd_str_putc(o, '}');
    for (size_t i = 0; i < nrd_json_len(config); i++) {
        if (&config->child[i] != params) {
            put_member(o, &config->child[i], false);
        }
    }
    nrd_str_putc(o, '}');
}

static TRITONSERVER_Error *set_config(TRITONBACKEND_Model *model, const nrd_str *text)
{
    TRITONSERVER_Message *message = NULL;

    NRD_TB_TRY(nrd_tb_error(nrd_str_error(text)));
    NRD_TB_TRY(TRITONSERVER_MessageNewFromSerializedJson(&message, text->data, text->len));
    TRITONSERVER_Error *err = TRITONBACKEND_ModelSetConfig(model, 1, message);
    nrd_tb_log_error(TRITONSERVER_MessageDelete(message), "completed configuration");
    return err;
}

void nrd_llm_describe(const nrd_llm_model *m, TRITONBACKEND_Model *model)
{
    nrd_str config = {0};
    char *text = NULL;
    nrd_error *err = nrd_exec_describe(m->engine_dir, &text);

    if (err) { /* opening it says so better */
        nrd_exec_error_free(err);
        return;
    }
    if (text) {
        put_config(&config, m->config.root, text);
        nrd_tb_log_error(set_config(model, &config), "the model's labels are not in its configuration");
    }
    nrd_str_fini(&config);
    free(text);
}
