/* SPDX-License-Identifier: Apache-2.0
 * What a model makes or reads beside text, for those who choose how to ask it: read from its engine's folder. */
#include "model/engine.h"
#include "model/spec_classifier.h"
#include "model/vision.h"
#include "nereid/executor.h"

static int32_t least(int32_t a, int32_t b)
{
    return b > 0 && b < a ? b : a;
}

/* Inputs that make no text are computed whole, but for those of decoders. */
static int32_t max_tokens(const nrd_model_spec *m, const nrd_build_limits *b)
{
    int32_t n = least(b->max_seq_len, b->max_input_len);
    n = m->learned_positions ? least(n, m->max_positions) : n;
    return m->encoder ? least(n, b->max_num_tokens) : n;
}

static void put(nrd_str *o, const nrd_engine *e, bool has_pictures)
{
    const nrd_model_spec *m = nrd_engine_spec(e);
    const nrd_classifier_spec *c = &m->classifier;

    nrd_str_printf(o, "{\"encoder\":%s,\"max_tokens\":%d", m->encoder ? "true" : "false",
                   max_tokens(m, nrd_engine_limits(e)));
    if (c->n_labels > 0) {
        nrd_str_puts(o, ",\"labels\":");
        nrd_classifier_put_labels(c, o);
        nrd_str_printf(o, ",\"function\":\"%s\",\"pair_function\":\"%s\",\"prompt\":", nrd_label_function_name(c->function),
                       nrd_label_function_name(c->pair_function));
        nrd_json_put_cstr(o, c->prompt);
    }
    nrd_str_puts(o, has_pictures ? ",\"pictures\":true}" : "}");
}

nrd_error *nrd_exec_describe(const char *engine_dir, char **out_json)
{
    nrd_engine *e = NULL;
    nrd_str text = {0};

    *out_json = NULL;
    NRD_TRY(nrd_engine_open(&e, engine_dir, 0, false));
    const bool has_pictures = nrd_vision_is_in(engine_dir);
    if (nrd_engine_spec(e)->encoder || nrd_engine_spec(e)->classifier.n_labels > 0 || has_pictures) {
        put(&text, e, has_pictures);
        *out_json = nrd_str_steal(&text);
    }
    const bool missing = text.no_memory;
    nrd_str_fini(&text);
    nrd_engine_close(e);
    return missing ? nrd_error_no_memory() : NULL;
}
