/* SPDX-License-Identifier: Apache-2.0
 * Writes what a plan describes. A checkpoint: one safetensors file for each rank. An engine:
 * threads take one tensor after another, read its rows from the plan, pack them for the device and
 * write them to their place in the file. config.json comes last. Called by `nereid convert`,
 * `build` and those that build on demand. */
#include "model/build.h"

#include "base/dtype.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/progress.h"
#include "formats/safetensors.h"
#include "model/engine_file.h"
#include "model/needs.h"
#include "model/vision.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STREAM_BYTES = 8 << 20, MAX_THREADS = 64 };

/* A tensor of the other network of an encoder-decoder model, by the names that its files have. */
static bool is_other_network(const nrd_plan *p, const char *name)
{
    const nrd_model_spec *m = nrd_plan_spec(p);
    static const char *const of_decoder[] = {"decoder.", "lm_head", "logits_bias", "proj_out"};
    bool is = (m->cross_attention && (strstr(name, "encoder.") || nrd_str_has_prefix(name, "enc."))) ||
              (m->for_decoder && (nrd_str_has_prefix(name, "dec.") || nrd_str_has_prefix(name, "output.")));

    for (size_t i = 0; i < sizeof of_decoder / sizeof of_decoder[0] && m->for_decoder; i++) {
        is = is || strstr(name, of_decoder[i]);
    }
    return is;
}

/* A tensor of a layer that is not computed, because it reads pictures (nrd_model_spec.layer_is_behind_gap). */
static bool is_of_gap(const nrd_model_spec *m, const char *name)
{
    const char *at = strstr(name, "layers.");
    char *end = NULL;
    const long layer = at ? strtol(at + strlen("layers."), &end, 10) : -1;

    if (!nrd_spec_has_gaps(m) || layer < 0 || layer > NRD_SPEC_MAX_LAYERS || *end != '.') {
        return false;
    }
    const int32_t computed = nrd_spec_layer_of_source(m, (int32_t)layer);
    return computed < 0 || computed == m->n_layers; /* also one behind the last */
}

/* A tensor of a tower for pictures or sounds, or of what stands between it and the decoder. */
static bool is_of_tower(const char *name)
{
    static const char *const parts[] = {"vision_tower.", "audio_tower.", "vision_embedder.", "embed_vision.", "embed_audio."};
    bool is = false;

    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        is = is || strstr(name, parts[i]);
    }
    return is;
}

/* Keys and values of a layer that reads another layer's: files may have them, and no class uses them. */
static bool is_unread_kv(const nrd_model_spec *m, const char *name)
{
    static const char *const parts[] = {".k_proj.", ".v_proj.", ".k_norm.", ".attn_k.", ".attn_v.", ".attn_k_norm."};
    bool is = false;

    for (size_t i = 0; i < sizeof parts / sizeof parts[0] && m->n_shared_kv > 0; i++) {
        is = is || strstr(name, parts[i]);
    }
    return is;
}

/* Never weights: frequencies, masks and numbers of positions that old versions saved, constants of an activation (Apertus), factors that
 * are read with the configuration (longrope in GGUF files), and positions that are made by their formula (Marian, M2M100; learned ones
 * are always used). */
static bool is_buffer(const char *name)
{
    static const char *const ends[] = {".inv_freq", ".cos_cached", ".sin_cached", ".attn.bias", ".attn.masked_bias", ".attention.bias",
                                       ".attention.masked_bias", ".causal_mask", ".position_ids", ".act_fn.beta", ".act_fn.eps",
                                       "rope_factors_long.weight", "rope_factors_short.weight", ".embed_positions.weight",
                                       ".embed_positions.weights"};
    bool is = false;

    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        is = is || nrd_str_has_suffix(name, ends[i]);
    }
    return is;
}

static void note_unused(nrd_build_stats *stats, const nrd_plan *p, const nrd_source *src)
{
    const char *const *unused;
    const size_t n = nrd_plan_unused(p, &unused);
    const char *first = NULL;
    size_t shown = 0, of_towers = 0;
    for (size_t i = 0; i < n; i++) {
        if (nrd_plan_spec(p)->v_norm && is_of_tower(unused[i])) { /* Gemma 3n's and 4's, which nothing reads */
            of_towers++;
            continue;
        }
        /* What belongs to a tower is used by it (model/vision.h). */
        if (nrd_vision_has(nrd_plan_spec(p), unused[i]) || is_buffer(unused[i]) || is_other_network(p, unused[i]) ||
            is_of_gap(nrd_plan_spec(p), unused[i]) || is_unread_kv(nrd_plan_spec(p), unused[i]) ||
            (nrd_source_spec(src)->tied_embeddings && strstr(unused[i], "lm_head"))) {
            continue;
        }
        first = shown++ == 0 ? unused[i] : first;
    }
    if (of_towers > 0) {
        nrd_str_printf(&stats->notes, "%zu tensors of towers for pictures and sounds are left unread: the model takes text alone\n",
                       of_towers);
    }
    if (shown > 0) { /* as with layers that the configuration does not count, or biases that it denies */
        nrd_str_printf(&stats->notes, "%zu of the model's tensors %s not used: %s%s; does the configuration belong to these weights?\n", shown,
                       shown == 1 ? "is" : "are", first, shown == 1 ? "" : " and others");
    }
}

static nrd_error *note(nrd_build_stats *stats, const nrd_plan *p, const nrd_source *src, const nrd_plan_options *opt)
{
    nrd_plan_options undivided = *opt;
    nrd_plan *whole = NULL;

    if (nrd_plan_rank(p) != 0) {
        return NULL;
    }
    if (*nrd_plan_notes(p)) {
        nrd_str_printf(&stats->notes, "%s\n", nrd_plan_notes(p));
    }
    if (nrd_spec_has_gaps(nrd_plan_spec(p)) && !nrd_spec_reads_pictures(nrd_plan_spec(p))) {
        nrd_str_puts(&stats->notes, "layers that read pictures are left out: the model takes text alone\n");
    }
    if (nrd_plan_spec(p)->pp_size > 1 && nrd_source_get_kind(src) != NRD_SOURCE_CHECKPOINT) { /* another stage may use them */
        undivided.tp_size = undivided.pp_size = undivided.moe_ep_size = 1;
        NRD_TRY(nrd_plan_make(&whole, src, &undivided, 0));
    }
    note_unused(stats, whole ? whole : p, src);
    nrd_plan_free(whole);
    return NULL;
}

/* ---- checkpoint ---- */

static nrd_error *announce(nrd_safetensors_writer *w, const nrd_plan *p)
{
    char name[512];
    for (size_t i = 0; i < nrd_plan_n_tensors(p); i++) {
        const nrd_plan_tensor *t = nrd_plan_at(p, i);
        int64_t dims[2] = {t->rows, t->cols};
        NRD_TRY(nrd_safetensors_writer_add(w, t->name, t->dtype, dims, t->is_vector ? 1 : 2));
        if (t->has_row_scales) {
            size_t stem = strlen(t->name) - strlen(".weight");
            snprintf(name, sizeof name, "%.*s.per_channel_scale", (int)stem, t->name);
            NRD_TRY(nrd_safetensors_writer_add(w, name, NRD_DTYPE_F32, dims, 1));
        }
    }
    return nrd_safetensors_writer_begin(w);
}

typedef struct {
    const nrd_plan *p;
    const nrd_plan_tensor *t;
    int64_t row0, n_rows;
    uint8_t *dst;
    float *scales;
    nrd_error *err;
} slice;

static void *read_slice(void *user)
{
    slice *s = user;
    s->err = nrd_plan_read(s->p, s->t, s->row0, s->n_rows, s->dst, s->scales);
    return NULL;
}

/* Rows made by all cores: searching good block scales costs far more than the disk does. */
static nrd_error *read_rows(slice whole, size_t row_bytes, int32_t n_threads)
{
    slice s[MAX_THREADS];
    pthread_t threads[MAX_THREADS];
    nrd_error *err = NULL;
    int32_t n = whole.n_rows < n_threads ? (int32_t)whole.n_rows : n_threads, started = 1;
    int64_t each = n > 0 ? (whole.n_rows + n - 1) / n : 0;

    for (int32_t i = 0; i < n; i++) {
        int64_t first = each * i < whole.n_rows ? each * i : whole.n_rows;
        s[i] = whole;
        s[i].row0 = whole.row0 + first;
        s[i].n_rows = whole.n_rows - first < each ? whole.n_rows - first : each;
        s[i].dst = whole.dst + (size_t)first * row_bytes;
        s[i].scales = whole.scales ? whole.scales + first : NULL;
    }
    while (started < n && !pthread_create(&threads[started], NULL, read_slice, &s[started])) {
        started++;
    }
    for (int32_t i = 0; i < n; i++) { /* this thread does the first, and what got no thread */
        if (i == 0 || i >= started) {
            read_slice(&s[i]);
        } else {
            pthread_join(threads[i], NULL);
        }
        if (err) {
            nrd_error_free(s[i].err);
        } else {
            err = s[i].err;
        }
    }
    return err;
}

static int32_t default_threads(void)
{
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n < 1 ? 1 : n > MAX_THREADS ? (int32_t)MAX_THREADS : (int32_t)n;
}

static nrd_error *stream_tensor(nrd_safetensors_writer *w, const nrd_plan *p,
                                const nrd_plan_tensor *t, nrd_progress *bar)
{
    nrd_error *err = NULL;
    uint8_t *buf = NULL;
    float *scales = NULL;
    const void *direct = NULL;

    NRD_TRY(nrd_plan_direct(t, &direct));
    if (direct) {
        NRD_TRY(nrd_safetensors_writer_write(w, direct, t->data_bytes));
        nrd_progress_add(bar, t->data_bytes);
        return NULL;
    }
    size_t row = t->rows > 0 ? t->data_bytes / (size_t)t->rows : 0;
    int64_t step = row && row < STREAM_BYTES ? (int64_t)(STREAM_BYTES / row) : 1;
    NRD_NEW_GOTO(buf, row * (size_t)step, err, done);
    NRD_NEW_GOTO(scales, t->has_row_scales ? t->rows : 1, err, done);
    for (int64_t r = 0; r < t->rows; r += step) {
        int64_t n = t->rows - r < step ? t->rows - r : step;
        slice rows = {.p = p, .t = t, .row0 = r, .n_rows = n, .dst = buf,
                      .scales = t->has_row_scales ? scales + r : NULL};
        NRD_TRY_GOTO(read_rows(rows, row, default_threads()), err, done);
        NRD_TRY_GOTO(nrd_safetensors_writer_write(w, buf, (size_t)n * row), err, done);
        nrd_progress_add(bar, (uint64_t)n * row);
    }
    if (t->has_row_scales) {
        err = nrd_safetensors_writer_write(w, scales, (size_t)t->rows * sizeof *scales);
    }
done:
    free(buf);
    free(scales);
    return err;
}

static nrd_error *convert_rank(const nrd_plan *p, const char *dir)
{
    nrd_error *err = NULL;
    nrd_safetensors_writer *w = NULL;
    nrd_progress *bar = NULL;
    char name[40];

    snprintf(name, sizeof name, "rank%d.safetensors", nrd_plan_rank(p));
    char *path = NULL;
    NRD_TRY_GOTO(nrd_path_make(&path, dir, name), err, done);
    NRD_TRY_GOTO(nrd_safetensors_writer_open(&w, path), err, done);
    NRD_TRY_GOTO(announce(w, p), err, done);
    bar = nrd_progress_new(name, nrd_plan_total_bytes(p));
    for (size_t i = 0; i < nrd_plan_n_tensors(p) && !err; i++) {
        err = stream_tensor(w, p, nrd_plan_at(p, i), bar);
    }
    nrd_progress_done(bar);
    err = err ? err : nrd_plan_check(p);
    if (!err) {
        err = nrd_safetensors_writer_commit(w);
        w = NULL;
    }
done:
    nrd_safetensors_writer_abort(w);
    free(path);
    return err;
}

/* A folder with an old config.json would look finished while its weights are being replaced; an old MTP layer is another model's. */
static nrd_error *start_folder(const char *dir)
{
    static const char *const old[] = {"config.json", NRD_MTP_FOLDER "/config.json"};

    NRD_TRY(nrd_mkdirs(dir));
    for (size_t i = 0; i < sizeof old / sizeof old[0]; i++) {
        char *path = NULL;
        NRD_TRY(nrd_path_make(&path, dir, old[i]));
        remove(path);
        free(path);
    }
    return NULL;
}

static nrd_error *write_config(const char *dir, const nrd_str *text)
{
    char *path = NULL;
    NRD_TRY(nrd_path_make(&path, dir, "config.json"));
    nrd_error *err = nrd_file_write(path, nrd_str_cstr(text), text->len);
    free(path);
    return err;
}

/* Before the folder is touched: room for the weights of all ranks. `first` is the plan of rank 0. */
static nrd_error *check_room(const nrd_plan *first, const nrd_source *src, const nrd_plan_options *opt, const char *dir)
{
    const int32_t n_ranks = nrd_plan_spec(first)->tp_size * nrd_plan_spec(first)->pp_size;
    uint64_t bytes = nrd_plan_total_bytes(first);

    for (int32_t r = 1; r < n_ranks; r++) {
        nrd_plan *p = NULL;
        NRD_TRY(nrd_plan_make(&p, src, opt, r));
        bytes += nrd_plan_total_bytes(p);
        nrd_plan_free(p);
    }
    return nrd_file_check_room(dir, bytes);
}

static nrd_error *convert_network(const nrd_source *src, const nrd_plan_options *opt, const char *out_dir,
                                  nrd_build_stats *stats)
{
    nrd_error *err = NULL;
    nrd_plan *p = NULL;
    nrd_str config = {0};
    int32_t n_ranks = 1;

    for (int32_t r = 0; r < n_ranks; r++) {
        NRD_TRY_GOTO(nrd_plan_make(&p, src, opt, r), err, done);
        if (r == 0) { /* only now: a request that cannot be met leaves the folder as it was */
            NRD_TRY_GOTO(check_room(p, src, opt, out_dir), err, done);
            NRD_TRY_GOTO(start_folder(out_dir), err, done);
            n_ranks = nrd_plan_spec(p)->tp_size * nrd_plan_spec(p)->pp_size;
            stats->n_weights += nrd_plan_n_tensors(p);
            nrd_model_spec_to_json(nrd_plan_spec(p), &config);
        }
        NRD_TRY_GOTO(note(stats, p, src, opt), err, done);
        stats->weight_bytes += nrd_plan_total_bytes(p);
        NRD_TRY_GOTO(convert_rank(p, out_dir), err, done);
        nrd_plan_free(p);
        p = NULL;
    }
    NRD_TRY_GOTO(nrd_vision_write(src, opt->mmproj, out_dir), err, done);
    err = write_config(out_dir, &config);
done:
    nrd_plan_free(p);
    nrd_str_fini(&config);
    return err;
}

/* The two networks of an encoder-decoder model go into two folders, as TensorRT-LLM's converter names them. */
nrd_error *nrd_convert_folder(const nrd_source *src, const nrd_plan_options *opt, const char *out_dir,
                              nrd_build_stats *stats)
{
    const nrd_source *encoder = nrd_source_encoder(src);
    nrd_error *err = NULL;

    memset(stats, 0, sizeof *stats);
    if (!encoder) {
        return convert_network(src, opt, out_dir, stats);
    }
    char *first = NULL, *second = NULL;
    NRD_TRY_GOTO(nrd_path_make(&first, out_dir, NRD_ENCODER_FOLDER), err, done);
    NRD_TRY_GOTO(nrd_path_make(&second, out_dir, "decoder"), err, done);
    NRD_TRY_GOTO(convert_network(encoder, opt, first, stats), err, done);
    err = convert_network(src, opt, second, stats);
done:
    free(first);
    free(second);
    return err;
}

nrd_error *nrd_convert_mtp(const nrd_source *src, const nrd_plan_options *opt, const char *out_dir, nrd_build_stats *stats)
{
    nrd_plan_options o = *opt;
    char *dir = NULL;

    if (!nrd_source_mtp(src)) {
        return NULL;
    }
    o.tp_size = o.pp_size = o.moe_ep_size = 1;
    NRD_TRY(nrd_path_make(&dir, out_dir, NRD_MTP_FOLDER));
    nrd_error *err = convert_network(nrd_source_mtp(src), &o, dir, stats);
    free(dir);
    return err;
}

/* ---- engine ---- */

typedef struct {
    const nrd_plan *plan;
    nrd_device *dev;
    nrd_engine_writer *writer;
    nrd_weight *weights; /* [n] as announced: layout and packed size */
    pthread_mutex_t mu;
    size_t next;         /* guarded by mu, as the two below */
    nrd_error *err;
    nrd_progress *bar;
} pack_job;

static nrd_error *pack_one(pack_job *j, size_t i)
{
    const nrd_plan_tensor *t = nrd_plan_at(j->plan, i);
    const nrd_weight *out = &j->weights[i];
    nrd_error *err = NULL;
    uint8_t *rows = NULL, *packed = NULL;
    float *scales = NULL;
    const void *data = NULL;

    NRD_TRY_GOTO(nrd_plan_direct(t, &data), err, done);
    if (!data) {
        rows = nrd_aligned_zalloc(64, t->data_bytes);
        if (t->has_row_scales) {
            NRD_NEW_GOTO(scales, t->rows, err, done);
        }
        if (!rows) {
            err = nrd_error_no_memory();
            goto done;
        }
        NRD_TRY_GOTO(nrd_plan_read(j->plan, t, 0, t->rows, rows, scales), err, done);
        data = rows;
    }
    if (out->layout != NRD_LAYOUT_ROWS) {
        nrd_weight from = {.dtype = t->dtype, .layout = NRD_LAYOUT_ROWS, .rows = t->rows,
                           .cols = t->cols, .data = data, .scales = scales, .scale = 1,
                           .data_bytes = t->data_bytes, .n_stacked = t->n_stacked};
        packed = nrd_aligned_zalloc(64, out->data_bytes);
        if (!packed) {
            err = nrd_error_no_memory();
            goto done;
        }
        NRD_TRY_GOTO(j->dev->ops->weight_pack(j->dev, &from, out->layout, packed), err, done);
        data = packed;
    }
    err = nrd_engine_writer_put(j->writer, i, data, scales);
done:
    free(rows);
    free(packed);
    free(scales);
    return nrd_error_wrap(err, "weight '%s'", t->name);
}

static void *pack_thread(void *user)
{
    pack_job *j = user;
    for (;;) {
        pthread_mutex_lock(&j->mu);
        size_t i = j->next++;
        bool stop = j->err || i >= nrd_plan_n_tensors(j->plan);
        pthread_mutex_unlock(&j->mu);
        if (stop) {
            return NULL;
        }
        nrd_error *err = pack_one(j, i);
        pthread_mutex_lock(&j->mu);
        if (err && !j->err) {
            j->err = err;
            err = NULL;
        }
        nrd_progress_add(j->bar, j->weights[i].data_bytes);
        pthread_mutex_unlock(&j->mu);
        nrd_error_free(err);
    }
}

static void pack_all(pack_job *j, int32_t n_threads)
{
    pthread_t threads[MAX_THREADS];
    int32_t started = 0;

    n_threads = n_threads < 1 ? default_threads() : n_threads > MAX_THREADS ? (int32_t)MAX_THREADS : n_threads;
    pthread_mutex_init(&j->mu, NULL);
    while (started < n_threads - 1 &&
           !pthread_create(&threads[started], NULL, pack_thread, j)) {
        started++;
    }
    pack_thread(j);
    for (int32_t i = 0; i < started; i++) {
        pthread_join(threads[i], NULL);
    }
    pthread_mutex_destroy(&j->mu);
}

/* Asks the device for the layout of every weight and announces them; gives the sum of their bytes. */
static nrd_error *announce_weights(pack_job *j, uint64_t *out_bytes)
{
    *out_bytes = 0;
    for (size_t i = 0; i < nrd_plan_n_tensors(j->plan); i++) {
        const nrd_plan_tensor *t = nrd_plan_at(j->plan, i);
        nrd_weight *w = &j->weights[i];
        *w = (nrd_weight){.dtype = t->dtype, .layout = NRD_LAYOUT_ROWS, .rows = t->rows,
                          .cols = t->cols, .scale = 1, .data_bytes = t->data_bytes, .n_stacked = t->n_stacked};
        if (j->dev && j->dev->ops->weight_plan && !t->is_vector) {
            if (t->n_stacked > 1 && !(j->dev->ops->has_feature &&
                                      j->dev->ops->has_feature(j->dev, NRD_FEATURE_EXPERTS))) {
                return nrd_errorf(NRD_ERR_UNSUPPORTED, "weight '%s' is of a mixture of experts, which the device has not; "
                                  "use --device cpu", t->name);
            }
            const int64_t n = t->n_stacked > 1 ? t->n_stacked : 1; /* packed one by one */
            NRD_TRY(nrd_error_wrap(
                j->dev->ops->weight_plan(j->dev, t->dtype, t->rows / n, t->cols,
                                         (t->flags & NRD_RULE_LINEAR) != 0, &w->layout,
                                         &w->data_bytes),
                "weight '%s'", t->name));
            w->data_bytes *= (uint64_t)n;
        }
        NRD_TRY(nrd_engine_writer_add(j->writer, t->name, w, t->has_row_scales ? t->rows : 0));
        *out_bytes += w->data_bytes;
    }
    return NULL;
}

static nrd_error *build_engine(const nrd_plan *p, const nrd_build_options *opt, const char *dir,
                               nrd_build_stats *stats)
{
    nrd_error *err = NULL;
    pack_job j = {.plan = p, .dev = opt->dev};
    const nrd_model_spec *m = nrd_plan_spec(p);
    uint64_t bytes;
    char name[32];

    snprintf(name, sizeof name, "rank%d.engine", nrd_plan_rank(p));
    NRD_NEW_GOTO(j.weights, nrd_plan_n_tensors(p), err, done);
    NRD_TRY_GOTO(nrd_engine_writer_open(&j.writer, dir, nrd_plan_rank(p), m->tp_size * m->pp_size,
                                        opt->dev ? opt->device_name : ""),
                 err, done);
    NRD_TRY_GOTO(announce_weights(&j, &bytes), err, done);
    NRD_TRY_GOTO(nrd_engine_writer_begin(j.writer), err, done);
    j.bar = nrd_progress_new(name, bytes);
    pack_all(&j, opt->n_threads);
    nrd_progress_done(j.bar);
    err = j.err ? j.err : nrd_plan_check(p);
    stats->weight_bytes += bytes;
    if (!err) {
        err = nrd_engine_writer_commit(j.writer);
        j.writer = NULL;
    }
done:
    nrd_engine_writer_abort(j.writer);
    free(j.weights);
    return err;
}

/* Those of an engine of more ranks that was there before. */
static nrd_error *remove_ranks(const char *dir, int32_t first)
{
    bool removed = true;
    char name[40];
    for (int32_t i = first; removed; i++) {
        char *path = NULL;
        snprintf(name, sizeof name, "rank%d.engine", i);
        NRD_TRY(nrd_path_make(&path, dir, name));
        removed = remove(path) == 0;
        free(path);
    }
    return NULL;
}

/* Another stage has other weights. */
static nrd_error *check_last_stage(const nrd_source *src, const nrd_build_options *opt, const nrd_model_spec *m)
{
    nrd_plan *p = NULL;
    if (m->pp_size == 1) {
        return NULL;
    }
    NRD_TRY(nrd_plan_make(&p, src, &opt->plan, m->tp_size * m->pp_size - 1));
    nrd_error *err = nrd_plan_check_engine(p, opt->limits.kv_dtype);
    nrd_plan_free(p);
    return err;
}

nrd_error *nrd_build_plan(nrd_plan **out, const nrd_source *src, const nrd_build_options *opt)
{
    *out = NULL;
    NRD_TRY(nrd_build_limits_check(&opt->limits));
    NRD_TRY(nrd_plan_make(out, src, &opt->plan, 0));
    nrd_error *err = nrd_plan_check_engine(*out, opt->limits.kv_dtype);
    if (!err) { /* the head is the last stage's */
        err = check_last_stage(src, opt, nrd_plan_spec(*out));
    }
    if (err) {
        nrd_plan_free(*out);
        *out = NULL;
    }
    return err;
}

static nrd_error *build_network(const nrd_source *src, const nrd_build_options *opt, const char *out_dir,
                                nrd_build_stats *stats);

/* The encoder in a folder of its own inside the decoder's: there an executor finds it. */
static nrd_error *build_encoder(const nrd_source *src, const nrd_build_options *opt, const char *out_dir,
                                nrd_build_stats *stats)
{
    const nrd_source *encoder = nrd_source_encoder(src);
    nrd_build_options o = *opt;

    if (!encoder) {
        return NULL;
    }
    nrd_build_limits_init(&o.limits, nrd_source_spec(encoder));
    o.limits.max_seq_len = opt->max_encoder_input_len > 0 ? opt->max_encoder_input_len : o.limits.max_seq_len;
    o.limits.max_input_len = o.limits.max_seq_len;
    o.limits.max_batch_size = opt->limits.max_batch_size;
    o.limits.tokens_per_block = opt->limits.tokens_per_block;
    o.extra_config = NULL;
    char *dir = NULL;
    NRD_TRY(nrd_path_make(&dir, out_dir, NRD_ENCODER_FOLDER));
    nrd_error *err = build_network(encoder, &o, dir, stats);
    free(dir);
    return err;
}

nrd_error *nrd_build_folder(const nrd_source *src, const nrd_build_options *opt,
                            const char *out_dir, nrd_build_stats *stats)
{
    memset(stats, 0, sizeof *stats);
    return build_network(src, opt, out_dir, stats);
}

static nrd_error *build_network(const nrd_source *src, const nrd_build_options *opt, const char *out_dir,
                                nrd_build_stats *stats)
{
    nrd_error *err = NULL;
    nrd_plan *p = NULL;
    nrd_str config = {0};

    NRD_TRY(nrd_build_plan(&p, src, opt));
    NRD_TRY_GOTO(check_room(p, src, &opt->plan, out_dir), err, done);
    NRD_TRY_GOTO(start_folder(out_dir), err, done);
    NRD_TRY_GOTO(build_encoder(src, opt, out_dir, stats), err, done);
    const int32_t n = nrd_plan_spec(p)->tp_size * nrd_plan_spec(p)->pp_size;
    NRD_TRY_GOTO(remove_ranks(out_dir, n), err, done);
    stats->n_weights += nrd_plan_n_tensors(p);
    nrd_engine_config_json(nrd_plan_spec(p), &opt->limits, nrd_source_path(src), opt->extra_config,
                           &config);
    NRD_TRY_GOTO(note(stats, p, src, &opt->plan), err, done);
    for (size_t i = 0; i < nrd_plan_n_tensors(p); i++) {
        const char *name = nrd_plan_at(p, i)->name;
        stats->has_cache_scales = stats->has_cache_scales || nrd_str_has_suffix(name, NRD_KV_RANGE) || nrd_str_has_suffix(name, NRD_KV_SCALE);
    }
    for (int32_t rank = 0; rank < n; rank++) {
        if (rank > 0) {
            nrd_plan_free(p);
            p = NULL;
            NRD_TRY_GOTO(nrd_plan_make(&p, src, &opt->plan, rank), err, done);
        }
        NRD_TRY_GOTO(build_engine(p, opt, out_dir, stats), err, done);
    }
    NRD_TRY_GOTO(nrd_vision_write(src, opt->plan.mmproj, out_dir), err, done);
    NRD_TRY_GOTO(n > 1 ? nrd_engine_config_contents(out_dir, n, &config) : NULL, err, done);
    err = write_config(out_dir, &config);
done:
    nrd_plan_free(p);
    nrd_str_fini(&config);
    return err;
}

nrd_error *nrd_build_mtp(const nrd_source *src, const nrd_build_options *opt, const char *out_dir, nrd_build_stats *stats)
{
    nrd_build_options o = *opt;
    char *dir = NULL;

    if (!nrd_source_mtp(src) || o.plan.pp_size > 1) { /* rank 0 guesses alone, from the last layer's states */
        return NULL;
    }
    o.plan.tp_size = o.plan.moe_ep_size = 1;
    o.extra_config = NULL;
    NRD_TRY(nrd_path_make(&dir, out_dir, NRD_MTP_FOLDER));
    nrd_error *err = build_network(nrd_source_mtp(src), &o, dir, stats);
    free(dir);
    return err;
}
