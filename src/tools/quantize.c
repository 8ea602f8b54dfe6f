/* SPDX-License-Identifier: Apache-2.0
 * nereid quantize: a Hugging Face folder of floats becomes one of quantized weights, layer by layer. */
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/number.h"
#include "base/progress.h"
#include "base/str.h"
#include "executor/model_path.h"
#include "hub/pull.h"
#include "text/tokenizer.h"
#include "tools/output_dir.h"
#include "tools/quantize/calibrate.h"
#include "tools/quantize/folder.h"
#include "tools/quantize/layer.h"
#include "tools/quantize/measure.h"
#include "tools/quantize/mix.h"
#include "tools/quantize/pack_gptq.h"
#include "tools/quantize/report.h"
#include "tools/quantize/speed.h"
#include "tools/quantize/together.h"
#include "tools/tools.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "Usage: nereid quantize --model_dir PATH --output_dir DIR --qformat NAME [options]\n\n"
    "PATH is a Hugging Face folder with weights in float32, float16 or bfloat16. DIR gets the same model with\n"
    "weights as compressed-tensors has them, and a report.\n"
    "An interrupted run goes on where it was when it is given again.\n\n"
    "NAME: int4_awq, int4_gptq  4 bits in groups, calibrated      int8_wo, int4_wo  rounded to nearest\n"
    "      int8_sq              8 bits, SmoothQuant               fp8              E4M3, a scale for each row\n"
    "      w4a8_awq             int4_awq, activations E4M3        fp8_pb_wo        E4M3, a scale for 128 x 128\n"
    "      nvfp4, mxfp4, mxfp8  E2M1 or E4M3 in small groups      full_prec        a copy\n";

enum { MAX_EVALUATION = 64, SMALLEST_GROUP = 32, LARGEST_GROUP = 128, MAX_NAME = 32, MAX_THREADS = 1024, DEFAULT_MIXED_BITS = 5, DEFAULT_MIXED_BITS_OF_8 = 9,
       DEFAULT_INPUT_BITS_OF_INT8 = 10, DEFAULT_INPUT_BITS_OF_FP8 = 12 };

typedef struct {
    const char *model_dir, *output_dir, *qformat, *calib_dataset, *eval_dataset, *tokenizer_dir, *exclude;
    int32_t calib_size, calib_length, group, threads;
    int64_t seed;
    double damping;
    double auto_bits, calib_memory;
    const char *alpha, *autoq_format, *mixed, *cache, *output_format, *device;
    bool quantize_lm_head, zero_point, no_eval, no_act_order, gptq, per_tensor, static_inputs;
    bool mixes_inputs; /* int8_wo beside a format that rounds inputs */
    bool wide_is_fp8;  /* beside 4 bits */
    bool json;
} options;

typedef struct job {
    const options *o;
    nrd_source *src;
    nrd_qsettings settings;
    nrd_qmodules modules;
    nrd_qmath *math;
    nrd_tokenizer *tokenizer;
    nrd_qtexts calibration, evaluation;
    nrd_model_path engine; /* of the float model; opened when it is needed */
    nrd_qcalibration *calib;
    bool has_room; /* make_room() was here */
    nrd_qmix mix;
    nrd_qfolder *folder;
    nrd_progress *bar;
    pthread_mutex_t lock; /* of these three, where several layers are at it */
    nrd_str settings_json;
} job;

static bool is_copy(const job *j)
{
    return j->settings.scheme.method == NRD_QMETHOD_COPY;
}

/* ---- checks ---- */

static nrd_error *check_source(const job *j, const char *path)
{
    const nrd_model_spec *m = nrd_source_spec(j->src);

    NRD_TRY(nrd_output_check_source("model_dir", path, j->o->output_dir));
    if (nrd_source_get_kind(j->src) != NRD_SOURCE_HF) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "--model_dir is a %s; a Hugging Face folder is needed (nereid convert "
                          "--quantize rounds others)", nrd_source_kind_name(j->src));
    }
    if (m->cross_attention) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "'%s' is an encoder-decoder model, which is not quantized here", m->model_type);
    }
    if (m->encoder) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "'%s' is an encoder, which is not quantized here", m->model_type);
    }
    if (j->settings.cache_dtype != NRD_DTYPE_NONE && (nrd_spec_is_latent(m) || nrd_spec_kv_layers(m) == 0)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "--kv_cache_dtype: '%s' %s; leave the option out", m->model_type,
                          nrd_spec_is_latent(m) ? "has latent attention, whose rows are not kept in 8 bits" : "has no KV cache");
    }
    if (nrd_spec_has_altup(m)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "'%s' has tokens with several states, and is not quantized here (nereid build --quantize "
                          "rounds it)", m->model_type);
    }
    if (m->multipliers.any) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "'%s' multiplies the results of its products by numbers of its configuration, and is not "
                          "quantized here (nereid build --quantize rounds it)", m->model_type);
    }
    return NULL;
}

/* The module whose columns are no multiple of a group; NULL: all are. */
static const nrd_qmodule *not_divided(const nrd_qmodules *q, int64_t group)
{
    for (size_t i = 0; i < q->n; i++) {
        if (q->modules[i].cols % group) {
            return &q->modules[i];
        }
    }
    return NULL;
}

static nrd_error *settle_group(job *j)
{
    nrd_qgrid *g = &j->settings.scheme.grid;
    const nrd_qmodule *bad;

    if (g->group == NRD_QGRID_ROWS || g->row_group != 0 || is_copy(j)) {
        return NULL;
    }
    if (g->group > 0) {
        bad = not_divided(&j->modules, g->group);
        return bad ? nrd_errorf(NRD_ERR_INVALID_ARG, "--qformat %s has groups of %lld columns, which do not divide the %lld of "
                                "'%s'; --exclude the module", j->settings.scheme.name, (long long)g->group,
                                (long long)bad->cols, bad->src->name)
                   : NULL;
    }
    g->group = j->o->group;
    for (g->group = g->group ? g->group : LARGEST_GROUP; !j->o->group && g->group > SMALLEST_GROUP; g->group /= 2) {
        if (!not_divided(&j->modules, g->group)) {
            return NULL;
        }
    }
    bad = not_divided(&j->modules, g->group);
    return bad ? nrd_errorf(NRD_ERR_INVALID_ARG, "--awq_block_size: groups of %lld columns do not divide the %lld of '%s'; "
                            "%s, or --exclude the module", (long long)g->group, (long long)bad->cols, bad->src->name,
                            j->o->group ? "leave the option out" : "give a number that does")
               : NULL;
}

/* Modules whose inputs keep 16 bits have scales for 32 columns, which cost them half a bit and little time: what a row's largest weight
 * makes the others be off by is as much as what rounded inputs do. Others are as int8_wo, or fp8. */
static void settle_wide(job *j)
{
    const bool in_groups = j->settings.mixes_inputs && !not_divided(&j->modules, SMALLEST_GROUP);

    j->settings.wide = (nrd_qgrid){.bits = 8, .is_float = j->o->wide_is_fp8, .symmetric = true,
                                   .group = in_groups ? SMALLEST_GROUP : NRD_QGRID_ROWS};
}

/* One line: two runs with the same one write the same files. */
static void put_settings(job *j, const char *path)
{
    const options *o = j->o;
    nrd_str *s = &j->settings_json;
    char alpha[32] = "\"auto\"";
    if (j->settings.alpha >= 0) {
        nrd_number_print(alpha, sizeof alpha, "%g", j->settings.alpha);
    }
    nrd_str_printf(s, "{\"qformat\": \"%s\", \"group_size\": %lld, \"wide_group_size\": %lld, \"wide_is_fp8\": %s, \"symmetric\": %s, \"seed\": %lld, \"calib_size\": %d, "
                   "\"calib_max_seq_length\": %d, \"alpha\": %s, \"damping\": %g, \"act_order\": %s, \"gptq\": %s, \"per_tensor\": %s, \"static_inputs\": %s, \"quantize_lm_head\": "
                   "%s, \"kv_cache_dtype\": \"%s\", \"auto_quantize_bits\": %g, \"mixes_inputs\": %s, \"calib_dataset\": ", j->settings.scheme.name, (long long)j->settings.scheme.grid.group,
                   (long long)j->settings.wide.group, o->wide_is_fp8 ? "true" : "false", j->settings.scheme.grid.symmetric ? "true" : "false", (long long)o->seed, o->calib_size, o->calib_length,
                   alpha, o->damping, o->no_act_order ? "false" : "true", o->gptq ? "true" : "false", o->per_tensor ? "true" : "false",
                   o->static_inputs ? "true" : "false", o->quantize_lm_head ? "true" : "false",
                   o->cache ? o->cache : "auto", o->auto_bits, o->mixes_inputs ? "true" : "false");
    nrd_json_put_cstr(s, o->calib_dataset ? o->calib_dataset : "built in");
    nrd_str_printf(s, ", \"output_format\": \"%s\", \"exclude\": ", j->settings.scheme.format ? j->settings.scheme.format : "");
    nrd_json_put_cstr(s, o->exclude ? o->exclude : "");
    nrd_str_puts(s, ", \"model_dir\": ");
    nrd_json_put_cstr(s, path);
    nrd_str_putc(s, '}');
}

/* ---- the work ---- */

static bool calibrates(const job *j)
{
    return nrd_qscheme_is_calibrated(&j->settings.scheme) || j->o->auto_bits > 0;
}

static bool calibrates_cache(const job *j)
{
    return j->settings.cache_dtype != NRD_DTYPE_NONE;
}

static nrd_error *open_texts(job *j, const char *path)
{
    const options *o = j->o;
    const bool reads = calibrates(j) || calibrates_cache(j);
    const bool measures = !o->no_eval && (!is_copy(j) || calibrates_cache(j));

    const int32_t most = nrd_source_spec(j->src)->max_positions - 1; /* a prompt leaves room for a token */
    const size_t length = (size_t)(most > 1 && most < o->calib_length ? most : o->calib_length);

    if (!reads && !measures) {
        return NULL;
    }
    NRD_TRY(nrd_tokenizer_open(&j->tokenizer, o->tokenizer_dir ? o->tokenizer_dir : path));
    if (reads) {
        NRD_TRY(nrd_error_wrap(nrd_qtexts_open(&j->calibration, j->tokenizer, o->calib_dataset, nrd_qtext_calibration,
                                               (size_t)o->calib_size, length, (uint64_t)o->seed),
                               "--calib_dataset (a file of text or JSON lines; without the option a text that is built in)"));
    }
    return measures ? nrd_error_wrap(nrd_qtexts_open(&j->evaluation, j->tokenizer, o->eval_dataset, nrd_qtext_evaluation,
                                                     MAX_EVALUATION, length, (uint64_t)o->seed),
                                     "--eval_dataset (a file of text or JSON lines; without the option a text that is built in)")
                    : NULL;
}

static nrd_error *need_engine(job *j, const char *path)
{
    return j->engine.engine ? NULL : nrd_model_path_open(&j->engine, path, j->o->device, (nrd_engine_asked){0});
}

static nrd_error *need_calibration(job *j, const char *path)
{
    if (j->calib) {
        return NULL;
    }
    NRD_TRY(need_engine(j, path));
    const nrd_qscheme *s = &j->settings.scheme;
    const bool searches = s->method == NRD_QMETHOD_SMOOTH && j->settings.alpha < 0;
    const bool measures_inputs = j->o->auto_bits > 0 && s->grid.bits == 8 && s->inputs != NRD_QROUND_NOT;
    const int what = (calibrates(j) ? NRD_QCALIBRATE_INPUTS : 0) | (calibrates_cache(j) ? NRD_QCALIBRATE_CACHE : 0) |
                     (searches || measures_inputs ? NRD_QCALIBRATE_ROWS : 0);
    return nrd_qcalibration_open(&j->calib, j->engine.engine, &j->modules, &j->calibration, j->math, what, j->o->device, j->o->threads);
}

/* Which modules get more bits, as long as any file is missing. */
static nrd_error *choose_mix(job *j, const char *path)
{
    const char *note;
    bool all_there = true;

    for (int32_t layer = 0; layer < j->modules.n_layers; layer++) {
        all_there = all_there && nrd_qfolder_has(j->folder, layer, &note);
    }
    if (!(j->o->auto_bits > 0) || all_there) {
        return NULL;
    }
    NRD_TRY(need_calibration(j, path));
    NRD_TRY(nrd_qmix_choose(&j->mix, j->math, &j->settings, &j->modules, j->calib, j->o->auto_bits));
    fprintf(j->o->json ? stderr : stdout, "%s for %zu of %zu products: %.2f bits a %s\n",
            j->o->mixes_inputs ? "inputs in 16 bits" : j->mix.wide_bits == 16 ? "16 bits" : "8 bits", j->mix.n_wide, j->mix.n, j->mix.bits,
            j->o->mixes_inputs ? "number of inputs" : "weight");
    j->settings.mix = &j->mix;
    return NULL;
}

/* Several layers' turns meet at what is one: the statistics, the folder and the bar. */
static nrd_error *quantize_layer(void *user, nrd_qmath *m, int32_t layer)
{
    job *j = user;
    nrd_error *err = NULL;
    nrd_qresult r = {0};
    nrd_str note = {0};
    nrd_qinput *inputs = NULL;
    nrd_qcache *cache = NULL;
    const char *unused;
    const nrd_qlayer *y = layer >= 0 ? &j->modules.layers[layer] : NULL;
    size_t first = y ? y->first : 0, n = y ? y->n : 0;

    for (; !y && first < j->modules.n && j->modules.modules[first].layer >= 0; first++) {
    }
    n = y ? n : j->modules.n - first;
    pthread_mutex_lock(&j->lock);
    const bool is_there = nrd_qfolder_has(j->folder, layer, &unused);
    if (is_there) {
        nrd_progress_skip(j->bar, 1);
    } else if (y && ((n && calibrates(j)) || (y->attention && calibrates_cache(j)))) {
        err = nrd_qcalibration_layer(j->calib, layer, &inputs, &cache);
    }
    pthread_mutex_unlock(&j->lock);
    if (is_there || err) {
        return err;
    }
    NRD_TRY_GOTO(nrd_qlayer_quantize(&r, m, &j->settings, &j->modules, first, is_copy(j) ? 0 : n, y, inputs, cache), err, done);
    nrd_qreport_note(&note, &r);
    pthread_mutex_lock(&j->lock);
    if (inputs) {
        nrd_qcalibration_done(j->calib, layer);
    }
    err = nrd_qfolder_put(j->folder, m, layer, &j->settings.scheme, &r, nrd_str_cstr(&note));
    nrd_progress_add(j->bar, 1);
    pthread_mutex_unlock(&j->lock);
done:
    nrd_qresult_fini(&r);
    nrd_str_fini(&note);
    return layer >= 0 ? nrd_error_wrap(err, "layer %d", layer) : err;
}

static uint64_t source_bytes(const job *j, uint64_t *out_numbers)
{
    uint64_t n = 0;
    *out_numbers = 0;
    for (size_t i = 0; i < nrd_source_n_tensors(j->src, 0); i++) {
        const nrd_src_tensor *t = nrd_source_tensor_at(j->src, 0, i);
        *out_numbers += nrd_src_tensor_numbers(t);
        n += t->data_bytes;
    }
    return n;
}

/* Of the memory beside the model layers under way come first: one more gains more than a longer pass. */
static nrd_error *make_room(job *j, nrd_qtogether *t)
{
    if (j->has_room || !nrd_qmath_is_far(j->math)) {
        return NULL;
    }
    const double asked = j->o->calib_memory * 1e9, most = 0.9 * (double)nrd_qmath_free_bytes(j->math), bytes = asked < most ? asked : most;
    const double each = nrd_qtogether_bytes(nrd_qcalibration_widest(j->calib));
    const int n = nrd_qtogether_room(j->math, each + nrd_qcalibration_layer_bytes(j->calib), bytes);
    j->has_room = true;
    nrd_qcalibration_make_room(j->calib, bytes - n * each, n);
    return n > 1 ? nrd_qtogether_open(t, j->o->device, j->o->threads, n) : NULL;
}

/* From `layer` on, those that have statistics now; *end: the next one. */
static nrd_error *quantize_some(job *j, nrd_qtogether *t, int32_t layer, int32_t *end, const char *path)
{
    const char *note;
    nrd_qinput *inputs;
    nrd_qcache *cache;

    *end = layer + 1;
    if (layer < 0 || nrd_qfolder_has(j->folder, layer, &note) || !(calibrates(j) || calibrates_cache(j))) {
        return quantize_layer(j, j->math, layer);
    }
    NRD_TRY(need_calibration(j, path));
    NRD_TRY(make_room(j, t));
    if (t->n == 0) {
        return quantize_layer(j, j->math, layer);
    }
    NRD_TRY(nrd_qcalibration_layer(j->calib, layer, &inputs, &cache));
    *end = nrd_qcalibration_end(j->calib);
    return nrd_qtogether_each(t, layer, *end, quantize_layer, j);
}

static nrd_error *quantize_all(job *j, const char *path)
{
    nrd_error *err = NULL;
    nrd_qtogether together = {0};

    j->bar = nrd_progress_new_of(j->settings.scheme.name, (uint64_t)j->modules.n_layers + 1, "layers");
    for (int32_t layer = -1, end; layer < j->modules.n_layers && !err; layer = end) {
        err = quantize_some(j, &together, layer, &end, path);
    }
    nrd_progress_done(j->bar);
    nrd_qtogether_close(&together);
    nrd_qcalibration_close(j->calib); /* the engine's memory is wanted for measuring */
    j->calib = NULL;
    return err;
}

static nrd_error *measure(job *j, const char *path, nrd_qmeasure *m, nrd_qreport *r)
{
    nrd_model_path after = {0};
    nrd_error *err = NULL;
    const bool on_cpu = !strcmp(j->o->device, "cpu");
    /* a CPU has no cache of E4M3 */
    const nrd_dtype cache = on_cpu && j->settings.cache_dtype == NRD_DTYPE_F8_E4M3 ? NRD_DTYPE_NONE : j->settings.cache_dtype;

    NRD_TRY(nrd_qmeasure_init(m, &j->evaluation));
    NRD_TRY(need_engine(j, path));
    NRD_TRY(nrd_qmeasure_run(m, j->engine.engine, false, false, NRD_DTYPE_NONE, j->o->device, j->o->threads));
    NRD_TRY_GOTO(nrd_model_path_open(&after, j->o->output_dir, j->o->device, (nrd_engine_asked){0}), err, done);
    NRD_TRY_GOTO(nrd_qspeed_token_bytes(&r->token_bytes_before, j->engine.engine, on_cpu), err, done);
    NRD_TRY_GOTO(nrd_qspeed_token_bytes(&r->token_bytes_after, after.engine, on_cpu), err, done);
    err = nrd_qmeasure_run(m, after.engine, true, j->settings.scheme.grid.is_float && on_cpu, cache, j->o->device, j->o->threads);
done:
    nrd_model_path_close(&after);
    return err;
}

static void print_json(const job *j, const nrd_qreport *r)
{
    nrd_str out = {0};

    nrd_str_puts(&out, "{\"output_dir\": ");
    nrd_json_put_cstr(&out, j->o->output_dir);
    nrd_str_puts(&out, ", \"qformat\": ");
    nrd_json_put_cstr(&out, r->qformat);
    nrd_str_printf(&out, ", \"bytes_before\": %llu, \"bytes_after\": %llu, \"token_bytes_before\": %llu, \"token_bytes_after\": %llu, \"seconds\": ",
                   (unsigned long long)r->bytes_before, (unsigned long long)r->bytes_after, (unsigned long long)r->token_bytes_before,
                   (unsigned long long)r->token_bytes_after);
    nrd_json_put_double(&out, r->seconds);
    if (r->measured) {
        nrd_str_puts(&out, ", \"perplexity_before\": ");
        nrd_json_put_double(&out, nrd_qmeasure_perplexity(r->measured, false));
        nrd_str_puts(&out, ", \"perplexity_after\": ");
        nrd_json_put_double(&out, nrd_qmeasure_perplexity(r->measured, true));
        nrd_str_printf(&out, ", \"tokens\": %zu", r->measured->n);
    }
    printf("%s}\n", nrd_str_cstr(&out));
    nrd_str_fini(&out);
}

static void say(const job *j, const nrd_qreport *r)
{
    char before[32], after[32];

    if (j->o->json) {
        print_json(j, r);
        return;
    }
    printf("%s: %s, %s -> %s, %.1f s\n", j->o->output_dir, r->qformat, nrd_human_bytes(r->bytes_before, before),
           nrd_human_bytes(r->bytes_after, after), r->seconds);
    if (r->token_bytes_after > 0) {
        printf("a token reads %s of weights, not %s: %.2f times as fast is expected of one request\n",
               nrd_human_bytes(r->token_bytes_after, after), nrd_human_bytes(r->token_bytes_before, before),
               (double)r->token_bytes_before / (double)r->token_bytes_after);
    }
    if (r->measured) {
        const double a = nrd_qmeasure_perplexity(r->measured, false), b = nrd_qmeasure_perplexity(r->measured, true);
        printf("perplexity %.3f -> %.3f (%+.2f %%), divergence %.4f, same best token %.1f %% (%zu tokens)\n", a, b,
               (b / a - 1) * 100, r->measured->divergence / (double)r->measured->n,
               100 * (double)r->measured->n_same / (double)r->measured->n, r->measured->n);
    }
}

static nrd_error *finish(job *j, const char *path, double seconds)
{
    nrd_error *err = NULL;
    nrd_qmeasure m = {0};
    nrd_qreport r = {.model = path, .qformat = j->settings.scheme.name, .settings = nrd_str_cstr(&j->settings_json),
                     .why_left = is_copy(j) ? "full_prec quantizes no weight" : "kept by the budget of bits",
                     .calibration_tokens = j->calibration.ids.n, .seconds = seconds};
    const int32_t n = j->modules.n_layers;

    r.bytes_before = source_bytes(j, &r.n_weights);
    NRD_TRY(nrd_qfolder_index(j->folder, &r.bytes_after));
    NRD_TRY(nrd_qreport_write(&r, j->o->output_dir, j->folder, n));
    NRD_TRY(nrd_qfolder_finish(j->folder, is_copy(j) ? NULL : &j->settings.scheme, &j->settings.wide, j->settings.cache_dtype));
    if (j->evaluation.n > 0) {
        NRD_TRY_GOTO(measure(j, path, &m, &r), err, done);
        r.measured = &m;
        NRD_TRY_GOTO(nrd_qreport_write(&r, j->o->output_dir, j->folder, n), err, done);
    }
    say(j, &r);
done:
    nrd_qmeasure_fini(&m);
    return err;
}

static nrd_error *settle_alpha(job *j)
{
    const char *text = j->o->alpha;
    char *end = NULL;

    j->settings.alpha = -1;
    if (!text || !strcmp(text, "auto")) {
        return NULL;
    }
    j->settings.alpha = nrd_number_read(text, &end);
    return end == text || *end || !(j->settings.alpha >= 0 && j->settings.alpha <= 1)
               ? nrd_errorf(NRD_ERR_INVALID_ARG, "--alpha is auto or a number in [0, 1], not '%s'", text)
               : NULL;
}

/* GPTQ's rounding in the place of the nearest. */
static nrd_error *settle_rounding(job *j)
{
    nrd_qscheme *s = &j->settings.scheme;
    if (!j->o->gptq) {
        return NULL;
    }
    if (s->grid.row_group != 0 || (s->grid.bits != 8 && !s->grid.is_float)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "--gptq is for int8_wo, int8_sq, fp8, mxfp8, mxfp4 and nvfp4, not %s%s; of 4 bits "
                          "take int4_gptq", s->name, j->o->per_tensor ? " with --per_tensor" : "");
    }
    s->method = s->method == NRD_QMETHOD_RTN ? NRD_QMETHOD_GPTQ : s->method;
    j->settings.gptq = true;
    return NULL;
}

/* What is left of a scheme to the options: how far scales go. */
static nrd_error *settle_scales(job *j)
{
    nrd_qscheme *s = &j->settings.scheme;
    const options *o = j->o;
    const bool rounds_both = s->grid.bits == 8 && s->inputs != NRD_QROUND_NOT;

    if ((o->per_tensor && !rounds_both) || (o->static_inputs && s->inputs == NRD_QROUND_NOT)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s, not %s", o->per_tensor && !rounds_both
                          ? "--per_tensor is for int8_sq and fp8" : "--static_inputs is for int8_sq, fp8 and w4a8_awq", s->name);
    }
    s->grid.row_group = o->per_tensor ? NRD_QGRID_ALL : s->grid.row_group;
    s->static_inputs = o->static_inputs;
    if (s->grid.bits == 4 && !s->grid.is_float) {
        s->grid.symmetric = !o->zero_point;
    } else if (o->auto_bits > 0 && (s->grid.bits != 8 || s->grid.group != NRD_QGRID_ROWS)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "--auto_quantize_bits is for integers of 4 bits, int8_wo, int8_sq and fp8, not %s", s->name);
    } else if (o->zero_point) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "--zero_point is for integers of 4 bits, not %s", s->name);
    }
    if (o->auto_bits > 0 && o->auto_bits < s->grid.bits) { /* mix_choose.c, which counts scales, knows only after the calibration */
        return nrd_errorf(NRD_ERR_INVALID_ARG, "--auto_quantize_bits %g: %s alone has %.3f bits a weight; ask for more", o->auto_bits, s->name,
                          (double)s->grid.bits);
    }
    return NULL;
}

/* The layout of the folder. */
static nrd_error *settle_format(job *j)
{
    nrd_qscheme *s = &j->settings.scheme;
    const char *name = j->o->output_format;

    if (!name || !strcmp(name, "compressed-tensors")) {
        return NULL;
    }
    if (strcmp(name, NRD_QPACK_GPTQ) != 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "--output_format is compressed-tensors or gptq, not '%s'", name);
    }
    if (s->method == NRD_QMETHOD_COPY || s->grid.is_float || s->inputs != NRD_QROUND_NOT || j->o->auto_bits > 0 ||
        (j->o->cache && strcmp(j->o->cache, "auto") != 0)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "--output_format gptq holds int4_awq, int4_gptq, int4_wo and int8_wo, with one number of "
                          "bits and without --kv_cache_dtype; leave the option out for %s", s->name);
    }
    s->format = NRD_QPACK_GPTQ;
    s->grid.scale_dtype = NRD_DTYPE_F16;
    s->grid.least_zero = 1;
    return nrd_qpack_gptq_check(&j->modules, s->grid.bits);
}

static nrd_error *settle_cache(job *j)
{
    const char *name = j->o->cache;
    const bool is_int8 = name && !strcmp(name, "int8"), is_fp8 = name && !strcmp(name, "fp8");

    if (name && !is_int8 && !is_fp8 && strcmp(name, "auto") != 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "--kv_cache_dtype is int8, fp8 or auto, not '%s'", name);
    }
    j->settings.cache_dtype = is_int8 ? NRD_DTYPE_I8 : is_fp8 ? NRD_DTYPE_F8_E4M3 : NRD_DTYPE_NONE;
    return NULL;
}

/* What --autoq_format names, one of each kind; "" for none. */
typedef struct named {
    char four[MAX_NAME], rounds[MAX_NAME], plain[MAX_NAME]; /* 4 bits; 8 bits, also of inputs; int8_wo */
    bool is_mixable;
} named;

static void name_one(named *n, const char *name)
{
    const bool is_w4a8 = !strcmp(name, "w4a8_awq"), had_awq = nrd_str_has_suffix(n->four, "_awq");
    char *to = nrd_str_has_prefix(name, "int4_") || is_w4a8              ? n->four
               : !strcmp(name, "fp8") || !strcmp(name, "int8_sq") ? n->rounds
               : !strcmp(name, "int8_wo")                         ? n->plain
                                                                  : NULL;

    if (to == n->four && had_awq && strcmp(name, to) != 0 && nrd_str_has_suffix(name, "_awq")) {
        fprintf(stderr, "nereid quantize: --autoq_format: int4_awq stands for w4a8_awq, too: their weights are the same\n");
        snprintf(to, MAX_NAME, "int4_awq");
        return;
    }
    n->is_mixable = n->is_mixable && to && !to[0];
    if (n->is_mixable) {
        snprintf(to, MAX_NAME, "%s", name);
    }
}

/* The format of most modules that --autoq_format names, and that of the others. */
static nrd_error *take_format(options *o, char most[MAX_NAME])
{
    const char *list = o->autoq_format;
    named n = {.is_mixable = true};

    if (!list) {
        return NULL;
    }
    if (!strchr(list, ',')) {
        snprintf(most, MAX_NAME, "%s", list);
    } else {
        for (const char *at = list; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
            char name[MAX_NAME];
            const size_t len = strcspn(at, ",");
            snprintf(name, sizeof name, "%.*s", len < MAX_NAME ? (int)len : MAX_NAME - 1, at);
            name_one(&n, name);
        }
        if (!n.is_mixable || (n.four[0] && n.rounds[0] && n.plain[0])) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "--autoq_format '%s': a format of 4 bits is mixed with one of 8 (int4_awq,int8_wo or "
                              "int4_awq,fp8), int8_sq and fp8 with int8_wo; of one format of 8 bits (fp8) some modules stay", list);
        }
        o->mixes_inputs = n.rounds[0] && n.plain[0];
        o->wide_is_fp8 = n.four[0] && !strcmp(n.rounds, "fp8");
        if (n.four[0] && !strcmp(n.rounds, "int8_sq")) {
            fprintf(stderr, "nereid quantize: --autoq_format: int8_sq beside 4 bits is int8_wo: inputs keep 16 bits and are not smoothed\n");
        }
        snprintf(most, MAX_NAME, "%s", n.four[0] ? n.four : n.rounds[0] ? n.rounds : n.plain);
    }
    if (o->qformat && strcmp(o->qformat, most) != 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "--autoq_format '%s' is not --qformat '%s'; leave one out", list, o->qformat);
    }
    o->qformat = most;
    return NULL;
}

/* The format of most modules, and the budget of --auto_quantize_bits. most: room for a name. */
static nrd_error *settle_mix(options *o, char most[MAX_NAME])
{
    if (o->mixed && strcmp(o->mixed, "auto") != 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "--mixed is auto, not '%s'", o->mixed);
    }
    NRD_TRY(take_format(o, most));
    const bool is_fp8 = o->qformat && !strcmp(o->qformat, "fp8"), is_int8 = o->qformat && !strcmp(o->qformat, "int8_sq");
    if (o->mixed && (is_fp8 || is_int8) && o->auto_bits <= 0) { /* the recipe that docs/quantize.md measures */
        o->mixes_inputs = true;
        o->gptq = o->gptq || !o->per_tensor;
    }
    if ((o->mixed || o->autoq_format) && o->auto_bits <= 0) {
        const bool is_8 = o->qformat && (nrd_str_has_prefix(o->qformat, "int8_") || nrd_str_has_prefix(o->qformat, "fp8"));
        o->auto_bits = !is_8 ? DEFAULT_MIXED_BITS : !o->mixes_inputs ? DEFAULT_MIXED_BITS_OF_8 : is_fp8 ? DEFAULT_INPUT_BITS_OF_FP8 : DEFAULT_INPUT_BITS_OF_INT8;
    }
    return NULL;
}

static void say_unused(bool is_given, const char *option, const char *format, const char *why)
{
    if (is_given) {
        fprintf(stderr, "nereid quantize: %s has no effect: %s %s\n", option, format, why);
    }
}

/* Options that a format does not look at; scripts pass the same ones for every format. */
static void say_what_is_unused(const job *j)
{
    const options *o = j->o;
    const nrd_qscheme *s = &j->settings.scheme;
    const bool has_groups = !is_copy(j) && s->grid.bits == 4 && !s->grid.is_float;
    const bool orders = s->method == NRD_QMETHOD_GPTQ || s->method == NRD_QMETHOD_AWQ || j->settings.gptq;

    say_unused(o->group > 0 && !has_groups, "--awq_block_size", s->name, "has scales of its own extent");
    say_unused(o->alpha && s->method != NRD_QMETHOD_SMOOTH, "--alpha", s->name, "does not smooth inputs; int8_sq does");
    say_unused(o->no_act_order && !orders, "--no_act_order", s->name, "rounds to the nearest");
    say_unused(o->calib_memory != 4 && !nrd_qmath_is_far(j->math), "--calib_memory", "a CPU", "keeps statistics of 2 GiB, and one layer at a time");
    say_unused(o->calib_dataset && !calibrates(j) && !calibrates_cache(j), "--calib_dataset", s->name, "reads no text");
}

static nrd_error *quantize(const options *o)
{
    nrd_error *err = NULL;
    job j = {.o = o, .settings = {.damping = o->damping, .by_size = !o->no_act_order, .mixes_inputs = o->mixes_inputs},
             .lock = PTHREAD_MUTEX_INITIALIZER};
    char *path = NULL;
    const uint64_t start = nrd_now_ns();

    if (strcmp(o->device, "cpu") != 0 && strcmp(o->device, "cuda") != 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "--device is cpu or cuda, not '%s'", o->device);
    }
    NRD_TRY(nrd_qscheme_find(o->qformat, &j.settings.scheme));
    NRD_TRY(settle_scales(&j));
    NRD_TRY(settle_alpha(&j));
    NRD_TRY(settle_rounding(&j));
    NRD_TRY(settle_cache(&j));
    NRD_TRY(nrd_hub_resolve(o->model_dir, &path));
    NRD_TRY_GOTO(nrd_source_open(&j.src, path), err, done);
    NRD_TRY_GOTO(check_source(&j, path), err, done);
    NRD_TRY_GOTO(nrd_qmodules_open(&j.modules, j.src, o->exclude, o->quantize_lm_head), err, done);
    NRD_TRY_GOTO(settle_group(&j), err, done);
    settle_wide(&j);
    NRD_TRY_GOTO(settle_format(&j), err, done);
    NRD_TRY_GOTO(open_texts(&j, path), err, done);
    NRD_TRY_GOTO(nrd_qmath_open(&j.math, o->device, o->threads, 0, 1), err, done);
    say_what_is_unused(&j);
    put_settings(&j, path);
    NRD_TRY_GOTO(nrd_qfolder_open(&j.folder, o->output_dir, j.src, &j.modules, nrd_str_cstr(&j.settings_json),
                                  is_copy(&j) ? 16 : j.settings.scheme.grid.bits), err, done);
    NRD_TRY_GOTO(choose_mix(&j, path), err, done);
    NRD_TRY_GOTO(quantize_all(&j, path), err, done);
    err = finish(&j, path, (double)(nrd_now_ns() - start) / 1e9);
done:
    nrd_qcalibration_close(j.calib);
    nrd_qmix_fini(&j.mix);
    nrd_qfolder_close(j.folder);
    nrd_model_path_close(&j.engine);
    nrd_qtexts_close(&j.calibration);
    nrd_qtexts_close(&j.evaluation);
    nrd_tokenizer_close(j.tokenizer);
    nrd_qmath_close(j.math);
    nrd_qmodules_close(&j.modules);
    nrd_source_close(j.src);
    nrd_str_fini(&j.settings_json);
    free(path);
    return err;
}

#define OPT(...) NRD_OPT_ROW(options, __VA_ARGS__)
#define OPT_IN(form_, name_, alias_, field, arg_, def_, min_, max_, help_)                         \
    {.name = name_, .form = NRD_OPT_##form_, .offset = offsetof(options, field), .min = min_, .max = max_, .arg = arg_, \
     .help = help_, .alias = alias_, .def = def_}
static const nrd_opt rows[] = {
    OPT(STR, "model_dir", "-m", model_dir, "PATH", NULL, "a Hugging Face folder, or a name of the hub"),
    OPT(STR, "output_dir", "--export_path -o", output_dir, "DIR", "exported_model", "folder to write"),
    OPT(FLAG, "json", NULL, json, NULL, NULL, "print an object: the folder, format, bytes, what was measured"),
    OPT(STR, "qformat", NULL, qformat, "NAME", NULL, "see above"),
    OPT_IN(INT, "awq_block_size", "--group_size", group, "N", "128, 64 or 32, what divides", 8, 1 << 20,
           "columns that share a scale, of 4-bit weights"),
    OPT(FLAG, "zero_point", NULL, zero_point, NULL, NULL,
        "4-bit weights with a zero point for each group: more exact, half a bit more in memory"),
    OPT(NUM, "auto_quantize_bits", NULL, auto_bits, "X", NULL,
        "bits a weight in all: the modules where it helps most get 8 bits, of 4-bit formats; of int8_wo, int8_sq and fp8 they stay; beside int8_wo: bits a number of their inputs"),
    OPT(STR, "autoq_format", NULL, autoq_format, "NAMES", NULL, "the formats for that: one of 4 bits and int8_wo or fp8, int8_sq or fp8 and int8_wo, or one"),
    OPT(STR, "mixed", NULL, mixed, "auto", NULL, "of 4-bit formats --auto_quantize_bits 5, of int8_wo 9; int8_sq, fp8: --gptq, and inputs of a quarter, a half of the weights keep 16 bits"),
    OPT(STR, "exclude", "--exclude_modules", exclude, "NAMES", NULL, "modules that stay as they are, with ',' between; * and ? are known"),
    OPT(FLAG, "quantize_lm_head", NULL, quantize_lm_head, NULL, NULL, "the LM head too, where it is not the embedding"),
    OPT(STR, "calib_dataset", NULL, calib_dataset, "FILE", "a text that is built in",
        "to calibrate with: a text, or .jsonl with \"text\" in each line"),
    OPT_IN(INT, "calib_size", NULL, calib_size, "N", "512", 1, 1 << 24, "windows of it at most"),
    OPT_IN(INT, "calib_max_seq_length", "--tokenizer_max_seq_length", calib_length, "N", "512", 8, 1 << 20,
           "tokens of a window"),
    OPT(NUM, "calib_memory", NULL, calib_memory, "GB", "4",
        "of a GPU, beside the model: for statistics and for layers under way, up to four at a time"),
    OPT(I64, "seed", "--random_seed", seed, "N", "1234", "which windows are drawn of more"),
    OPT(STR, "eval_dataset", NULL, eval_dataset, "FILE", "a text that is built in", "to measure on, before and after"),
    OPT(FLAG, "no_eval", NULL, no_eval, NULL, NULL, "do not measure perplexity"),
    OPT(STR, "alpha", "--smoothquant", alpha, "X", "auto",
        "int8_sq: how much of the activations' range goes into weights, 0 to 1; auto: each column's scale is searched"),
    OPT(NUM, "damp_percent", NULL, damping, "X", "0.01", "int4_gptq, int4_awq: share of the mean that is added to the diagonal"),
    OPT(FLAG, "gptq", NULL, gptq, NULL, NULL, "int8_wo, int8_sq, fp8, mxfp8, mxfp4, nvfp4: GPTQ's rounding, not to the nearest"),
    OPT(FLAG, "per_tensor", NULL, per_tensor, NULL, NULL, "int8_sq, fp8: one scale for a weight, not one for each row"),
    OPT(FLAG, "static_inputs", NULL, static_inputs, NULL, NULL,
        "int8_sq, fp8, w4a8_awq: one calibrated scale for an input, not one for each token"),
    OPT(FLAG, "no_act_order", NULL, no_act_order, NULL, NULL, "int4_gptq: columns as they come, not the largest first"),
    OPT(STR, "output_format", NULL, output_format, "NAME", "compressed-tensors",
        "layout of the folder: that, or gptq (int4_awq, int4_gptq, int4_wo, int8_wo)"),
    OPT(STR, "kv_cache_dtype", NULL, cache, "TYPE", "auto",
        "int8, the nearer one, or fp8: scales for a KV cache of 8 bits are calibrated; auto: none (nereid build chooses the cache)"),
    OPT(STR, "tokenizer_dir", NULL, tokenizer_dir, "DIR", NULL, "where PATH has none"),
    OPT(STR, "device", NULL, device, "NAME", "cpu", "that multiplies: cpu or cuda"),
    OPT_IN(INT, "threads", "-t", threads, "N", "one a core", 0, MAX_THREADS, "CPU threads; 0: one a core"),
    NO_EFFECT("dtype", NULL, "what is not quantized keeps its type"),
    NO_EFFECT("batch_size", NULL, "windows are read one after the other"),
    NO_EFFECT("dataset_cache_dir", "--cache_dir", "data sets are local files"),
    NO_EFFECT("device_map", NULL, "the model runs on the one --device"),
    NO_EFFECT("decoder_type", NULL, "config.json tells the family"),
    NO_EFFECT("num_medusa_heads", "--num_medusa_layers --max_draft_len --medusa_hidden_act --quant_medusa_head", "heads keep their type"),
    NO_EFFECT("calib_tp_size", NULL, "calibration runs in one process"),
    NO_EFFECT("calib_pp_size", NULL, "calibration runs in one process"),
    REFUSED("awq_scales", NULL, "--qformat int4_awq is that: AWQ's scales first, then GPTQ's rounding"),
    REFUSED("tp_size", "--pp_size --cp_size", "the folder is of no ranks: nereid build --tp_size divides it"),
    REFUSED("nemo_ckpt_path", NULL, "export it to Hugging Face first"),
    REFUSED("medusa_model_dir", NULL, "Medusa heads are not quantized; leave the option out and add the heads to the folder that is "
            "made: nereid convert --speculative_decoding_mode medusa --medusa_model_dir DIR"),
};
const nrd_tool_table nrd_quantize_table = NRD_TOOL_TABLE("quantize", usage, rows, 1);

int nrd_tool_quantize(int argc, char **argv)
{
    options o = {.output_dir = "exported_model", .calib_size = 512, .calib_length = 512, .seed = 1234,
                 .damping = 0.01, .device = "cpu", .calib_memory = 4};
    const char *word = NULL;
    char most[MAX_NAME] = "";
    size_t n = 0;
    int status = nrd_tool_parse(&nrd_quantize_table, argc, argv, &o, &word, &n);
    if (status >= 0) {
        return status;
    }
    o.model_dir = o.model_dir ? o.model_dir : word;
    nrd_error *err = settle_mix(&o, most);
    if (err) {
        return nrd_tool_finish("quantize", err);
    }
    if (!o.model_dir || !o.qformat) {
        fputs("nereid quantize: --model_dir and --qformat are needed (see --help)\n", stderr);
        return 2;
    }
    if (!(o.auto_bits >= 0 && o.auto_bits <= 16)) {
        fprintf(stderr, "nereid quantize: --auto_quantize_bits must be in [0, 16], and is %g; 0 is no budget\n", o.auto_bits);
        return 2;
    }
    if (!(o.calib_memory > 0 && o.calib_memory <= 1e6)) {
        fprintf(stderr, "nereid quantize: --calib_memory must be in (0, 1000000] gigabytes, and is %g\n", o.calib_memory);
        return 2;
    }
    if (!(o.damping > 0 && o.damping <= 1)) {
        fprintf(stderr, "nereid quantize: --damp_percent must be in (0, 1], and is %g\n", o.damping);
        return 2;
    }
    return nrd_tool_finish("quantize", quantize(&o));
}
