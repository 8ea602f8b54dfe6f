/* SPDX-License-Identifier: Apache-2.0
 * What a model is, and what it makes or reads beside text, for those who choose how to ask it: read from its engine's folder. */
#include "base/dtype.h"
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

/* Of a sequence: a prompt and its answer, or an input that makes no text. */
static int32_t context_length(const nrd_model_spec *m, const nrd_build_limits *b)
{
    return m->encoder ? max_tokens(m, b) : m->learned_positions ? least(b->max_seq_len, m->max_positions) : b->max_seq_len;
}

/* What the weights of one rank are: numbers together, and the type that most bytes have. */
static void put_weights(nrd_str *o, const nrd_engine *e)
{
    uint64_t bytes[NRD_DTYPE_COUNT_] = {0}, n = 0;
    int most = 0;

    for (size_t i = 0; i < nrd_engine_n_weights(e); i++) {
        const nrd_weight *w = nrd_engine_weight_at(e, i, NULL);
        n += (uint64_t)w->rows * (uint64_t)w->cols;
        bytes[(unsigned)w->dtype < NRD_DTYPE_COUNT_ ? w->dtype : NRD_DTYPE_NONE] += w->data_bytes;
    }
    for (int t = 0; t < NRD_DTYPE_COUNT_; t++) {
        most = bytes[t] > bytes[most] ? t : most;
    }
    nrd_str_printf(o, ",\"parameters\":%llu,\"type\":", (unsigned long long)n);
    nrd_json_put_cstr(o, nrd_dtype_name((nrd_dtype)most));
}

/* Tokens that a picture becomes, at most, 0: there is no tower, or none that opens; and whether videos are taken. */
static void put_pictures(nrd_str *o, const char *dir, const nrd_model_spec *m)
{
    nrd_vision *v = NULL;
    nrd_error *err = nrd_vision_open(&v, dir, m->hidden);
    const nrd_vision_spec *s = !err && v ? nrd_vision_get_spec(v) : NULL;

    nrd_str_printf(o, ",\"pictures\":true,\"picture_tokens\":%d", s ? nrd_vision_most_tokens(s) : 0);
    if (s && s->takes_videos) {
        nrd_str_printf(o, ",\"videos\":{\"frames\":%d,\"apart\":%s}", s->frames, s->video.apart ? "true" : "false");
    }
    nrd_error_free(err); /* opening the engine says it better */
    nrd_vision_close(v);
}

static void put(nrd_str *o, const nrd_engine *e, const char *dir)
{
    const nrd_model_spec *m = nrd_engine_spec(e);
    const nrd_classifier_spec *c = &m->classifier;
    const bool has_pictures = nrd_vision_is_in(dir);

    nrd_str_puts(o, "{\"family\":");
    nrd_json_put_cstr(o, m->model_type);
    nrd_str_printf(o, ",\"context_length\":%d", context_length(m, nrd_engine_limits(e)));
    if (!nrd_engine_has_rank(dir, 1)) {
        put_weights(o, e);
    }
    if (m->encoder || c->n_labels > 0 || has_pictures) {
        nrd_str_printf(o, ",\"encoder\":%s,\"max_tokens\":%d", m->encoder ? "true" : "false",
                       max_tokens(m, nrd_engine_limits(e)));
    }
    if (c->n_labels > 0) {
        nrd_str_puts(o, ",\"labels\":");
        nrd_classifier_put_labels(c, o);
        nrd_str_printf(o, ",\"function\":\"%s\",\"pair_function\":\"%s\",\"prompt\":", nrd_label_function_name(c->function),
                       nrd_label_function_name(c->pair_function));
        nrd_json_put_cstr(o, c->prompt);
    }
    if (m->cross_attention) {
        nrd_str_printf(o, ",\"beams\":%d", nrd_engine_limits(e)->max_beam_width);
    }
    if (has_pictures) {
        put_pictures(o, dir, m);
    }
    nrd_str_putc(o, '}');
}

nrd_error *nrd_exec_describe(const char *engine_dir, char **out_json)
{
    nrd_engine *e = NULL;
    nrd_str text = {0};

    *out_json = NULL;
    NRD_TRY(nrd_engine_open(&e, engine_dir, 0, false));
    put(&text, e, engine_dir);
    nrd_engine_close(e);
    nrd_error *err = nrd_str_error(&text);
    if (!err) {
        *out_json = nrd_str_steal(&text);
    }
    nrd_str_fini(&text);
    return err;
}
