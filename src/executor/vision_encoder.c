/* SPDX-License-Identifier: Apache-2.0
 * A vision tower on a device of its own. */
#include "nereid/vision.h"

#include "base/dtype.h"
#include "base/mem.h"
#include "base/str.h"
#include "device/device.h"
#include "executor/picture_cache.h"
#include "executor/pictures.h"
#include "model/vision_folder.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_CACHE_BYTES = 256 << 20 };

struct nrd_vision_encoder {
    nrd_vision_encoder_info info;
    nrd_device *dev;
    nrd_runner *runner;
    nrd_vision *vision;
    nrd_tower *tower;
    nrd_picture_cache *cache;
    int32_t max_rows; /* that there is memory for */
    size_t row_bytes; /* in the runner's type */
    pthread_mutex_t mu;
    bool is_lost; /* guarded by mu, as are cache and tower while pictures are computed */
};

void nrd_vision_encoder_config_init(nrd_vision_encoder_config *config)
{
    *config = (nrd_vision_encoder_config){.size = sizeof *config, .cache_bytes = DEFAULT_CACHE_BYTES};
}

/* ---- open ---- */

static void fill_info(nrd_vision_encoder *e, const nrd_vision_folder *f)
{
    const nrd_vision_spec *s = nrd_vision_get_spec(e->vision);
    nrd_device_info di;

    e->dev->ops->get_info(e->dev, &di);
    snprintf(e->info.model_type, sizeof e->info.model_type, "%s", f->model_type);
    snprintf(e->info.device, sizeof e->info.device, "%s", di.name);
    e->info.hidden = f->hidden;
    e->info.row_size = f->hidden * nrd_vision_row_parts(s);
    e->info.max_rows = e->max_rows;
    e->info.image_size = s->any_size || s->tiled ? 0 : s->image_size;
    e->info.weight_bytes = nrd_tower_bytes(e->tower);
    nrd_dtype_bytes(nrd_runner_embedding_dtype(e->runner), (uint64_t)e->info.row_size, &e->row_bytes);
}

static nrd_error *open_all(nrd_vision_encoder *e, const char *dir, const nrd_vision_encoder_config *config)
{
    const nrd_device_config dc = {.device_id = config->device_id, .n_threads = config->n_threads, .isa = ""};
    nrd_vision_folder f;

    NRD_TRY(nrd_vision_folder_read(dir, &f));
    NRD_TRY(nrd_vision_open(&e->vision, dir, f.hidden));
    if (!e->vision) {
        return nrd_errorf(NRD_ERR_NOT_FOUND, "%s has no vision tower; make it with build_multimodal_engine.py", dir);
    }
    NRD_TRY(nrd_device_open(&e->dev, config->device ? config->device : "auto", &dc));
    const nrd_runner_bare bare = {.hidden = f.hidden, .embed_scale = f.embed_scale, .dtype = f.dtype};
    NRD_TRY(nrd_runner_new_bare(&e->runner, e->dev, &bare));
    const nrd_vision_spec *s = nrd_vision_get_spec(e->vision);
    e->max_rows = s->any_size ? f.max_patches / (s->merge * s->merge) : nrd_vision_n_rows(s);
    NRD_TRY(nrd_tower_new(&e->tower, e->runner, e->vision, e->max_rows));
    e->cache = nrd_picture_cache_new(config->cache_bytes);
    if (!e->cache) {
        return nrd_error_no_memory();
    }
    fill_info(e, &f);
    return NULL;
}

nrd_error *nrd_vision_encoder_open(nrd_vision_encoder **out, const char *dir, const nrd_vision_encoder_config *config)
{
    nrd_vision_encoder_config full;
    nrd_error *err = NULL;
    nrd_vision_encoder *e = NULL;

    *out = NULL;
    nrd_vision_encoder_config_init(&full);
    if (config) {
        memcpy(&full, config, config->size < sizeof full ? config->size : sizeof full);
    }
    NRD_NEW_GOTO(e, 1, err, fail);
    pthread_mutex_init(&e->mu, NULL);
    NRD_TRY_GOTO(open_all(e, dir, &full), err, fail);
    *out = e;
    return NULL;

fail:
    nrd_vision_encoder_close(e);
    return err;
}

void nrd_vision_encoder_close(nrd_vision_encoder *e)
{
    if (!e) {
        return;
    }
    nrd_picture_cache_free(e->cache);
    nrd_tower_free(e->tower);
    nrd_runner_free(e->runner);
    nrd_vision_close(e->vision);
    if (e->dev) {
        e->dev->ops->close(e->dev);
    }
    pthread_mutex_destroy(&e->mu);
    free(e);
}

void nrd_vision_encoder_get_info(const nrd_vision_encoder *e, nrd_vision_encoder_info *info)
{
    const uint32_t size = info->size;
    memcpy(info, &e->info, size < sizeof e->info ? size : sizeof e->info);
    info->size = size;
}

/* ---- run ---- */

static nrd_error *take_pixels(const nrd_vision_encoder *e, const float *pixels, nrd_picture *out)
{
    const nrd_vision_spec *s = nrd_vision_get_spec(e->vision);
    const int32_t side = e->info.image_size;
    nrd_error *err = NULL;

    if (side == 0) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "this tower (%s) takes pictures of many sizes: they come as files, not as pixels",
                          e->info.model_type);
    }
    NRD_TRY(nrd_picture_of_size(s, side, side, true, out));
    const size_t n = nrd_picture_numbers(s, out->grid);
    NRD_NEW_GOTO(out->pixels, n, err, fail);
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(pixels[i])) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "its number %zu is not finite", i);
        }
        out->pixels[i] = pixels[i];
    }
fail:
    return err;
}

/* Pictures are read without the lock. */
static nrd_error *read_one(const nrd_vision_encoder *e, const nrd_vision_encoder_picture *from, bool alone, nrd_picture *out)
{
    const nrd_vision_spec *s = nrd_vision_get_spec(e->vision);

    NRD_TRY(from->pixels ? take_pixels(e, from->pixels, out) : nrd_pixels_of(s, from->bytes, from->n, alone, INT32_MAX, out));
    if (out->n_rows > e->max_rows) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "it becomes %d rows, and the tower was built for %d (--max_hw_dims of "
                          "build_multimodal_engine.py)", out->n_rows, e->max_rows);
    }
    nrd_picture_add_hash(s, out);
    return NULL;
}

/* rows: in the runner's type. */
static nrd_error *see(nrd_vision_encoder *e, const nrd_picture *y, uint8_t *rows)
{
    const size_t bytes = (size_t)y->n_rows * e->row_bytes;

    if (e->is_lost) {
        return nrd_errorf(NRD_ERR_UNAVAILABLE, "the vision tower's device was lost");
    }
    if (nrd_picture_cache_find(e->cache, y->hash, rows, bytes)) {
        return NULL;
    }
    nrd_error *err = nrd_tower_run(e->tower, y->pixels, y->grid, rows);
    if (err) {
        e->is_lost = true;
        return err;
    }
    nrd_picture_cache_put(e->cache, y->hash, rows, bytes);
    return NULL;
}

static nrd_error *see_all(nrd_vision_encoder *e, const nrd_picture *pictures, int32_t n, nrd_vision_encoder_rows *out)
{
    const nrd_dtype dtype = nrd_runner_embedding_dtype(e->runner);
    const size_t row = (size_t)e->info.row_size;
    nrd_error *err = NULL;
    uint8_t *raw = NULL;
    size_t count = 0, at = 0;

    for (int32_t i = 0; i < n; i++) {
        out->n_rows += pictures[i].n_rows;
        out->sizes[2 * i] = pictures[i].height;
        out->sizes[2 * i + 1] = pictures[i].width;
    }
    if (!nrd_size_mul((size_t)out->n_rows, row, &count)) {
        return nrd_error_no_memory();
    }
    NRD_NEW_GOTO(out->rows, count, err, done);
    NRD_NEW_GOTO(raw, (size_t)out->n_rows * e->row_bytes, err, done);
    pthread_mutex_lock(&e->mu);
    for (int32_t i = 0; i < n && !err; i++) {
        err = nrd_error_wrap(see(e, &pictures[i], raw + at), "picture %d", i);
        at += (size_t)pictures[i].n_rows * e->row_bytes;
    }
    pthread_mutex_unlock(&e->mu);
    for (int32_t i = 0; i < out->n_rows && !err; i++) {
        nrd_dequantize_row(dtype, raw + (size_t)i * e->row_bytes, out->rows + (size_t)i * row, (int64_t)row);
    }
done:
    free(raw);
    return err;
}

/* Frames of one video, which all have one size. */
static nrd_error *read_frames(const nrd_vision_encoder *e, const nrd_vision_encoder_picture *frames, int32_t n, nrd_picture *out)
{
    const nrd_vision_spec *s = nrd_vision_get_spec(e->vision);
    nrd_exec_image *files = NULL;
    nrd_error *err = NULL;

    NRD_NEW_GOTO(files, n, err, done);
    for (int32_t i = 0; i < n; i++) {
        files[i] = (nrd_exec_image){frames[i].bytes, frames[i].n};
    }
    const nrd_exec_video v = {.frames = files, .n_frames = n, .fps = 1};
    for (int32_t i = 0; i < n && !err; i++) {
        err = nrd_error_wrap(nrd_pixels_of_frames(s, &v, i, INT32_MAX, &out[i]), "frame %d", i);
        if (!err && (out[i].width != out[0].width || out[i].height != out[0].height)) {
            err = nrd_errorf(NRD_ERR_INVALID_ARG, "frame %d has %d x %d pixels, and those before it %d x %d", i, out[i].width, out[i].height,
                             out[0].width, out[0].height);
        }
        if (!err) {
            nrd_picture_add_hash(s, &out[i]);
        }
    }
done:
    free(files);
    return err;
}

static nrd_error *check_number(const nrd_vision_encoder *e, int32_t n, bool is_video)
{
    const nrd_vision_spec *s = nrd_vision_get_spec(e->vision);
    const int32_t most = is_video ? NRD_LLM_MAX_VIDEO_FRAMES : NRD_LLM_MAX_IMAGES;

    if (is_video && !(s->takes_videos && s->tiled)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "this tower (%s) takes no videos apart from its decoder", e->info.model_type);
    }
    return n >= 1 && n <= most ? NULL
                               : nrd_errorf(NRD_ERR_INVALID_ARG, "a request has %d %s, expected 1 to %d", n, is_video ? "frames" : "pictures", most);
}

static nrd_error *run(nrd_vision_encoder *e, const nrd_vision_encoder_picture *pictures, int32_t n, bool is_video, nrd_vision_encoder_rows *out)
{
    nrd_picture *read = NULL;
    nrd_error *err = NULL;

    *out = (nrd_vision_encoder_rows){0};
    NRD_TRY(check_number(e, n, is_video));
    NRD_NEW_GOTO(read, n, err, done);
    NRD_NEW_GOTO(out->sizes, 2 * (size_t)n, err, done);
    err = is_video ? read_frames(e, pictures, n, read) : NULL;
    for (int32_t i = 0; i < n && !err && !is_video; i++) {
        err = nrd_error_wrap(read_one(e, &pictures[i], n == 1, &read[i]), "picture %d", i);
    }
    err = err ? err : see_all(e, read, n, out);
done:
    for (int32_t i = 0; i < n && read; i++) {
        free(read[i].pixels);
    }
    free(read);
    if (err) {
        free(out->rows);
        free(out->sizes);
        *out = (nrd_vision_encoder_rows){0};
    }
    return err;
}

nrd_error *nrd_vision_encoder_run(nrd_vision_encoder *e, const nrd_vision_encoder_picture *pictures, int32_t n,
                                  nrd_vision_encoder_rows *out)
{
    return run(e, pictures, n, false, out);
}

nrd_error *nrd_vision_encoder_run_video(nrd_vision_encoder *e, const nrd_vision_encoder_picture *frames, int32_t n,
                                        nrd_vision_encoder_rows *out)
{
    return run(e, frames, n, true, out);
}
