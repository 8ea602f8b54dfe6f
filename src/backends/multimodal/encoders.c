/* SPDX-License-Identifier: Apache-2.0
 * Tensors of a request -> pictures, and rows -> tensors. */
#include "backends/multimodal/encoders.h"

#include "base/dtype.h"
#include "base/mem.h"
#include "nereid/llm_tensors.h"

#include <stdlib.h>
#include <string.h>

enum { CHANNELS = 3 };

/* The pictures of all rows of a batch. */
typedef struct mm_pictures {
    nrd_vision_encoder_picture *pictures; /* [n_rows * per_row]; bytes borrow from the request */
    float *pixels;                        /* owns, of all of them */
    int64_t n_rows, per_row;              /* per_row 0: there are none */
    bool is_video;                        /* those of a row are frames of one */
} mm_pictures;

static TRITONSERVER_Error *take_room(mm_pictures *p, const char *name, int64_t n_rows, int64_t per_row)
{
    const int most = p->is_video ? NRD_LLM_MAX_VIDEO_FRAMES : NRD_LLM_MAX_IMAGES;

    if (per_row < 1 || per_row > most) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "%s has %lld %s a row, expected 1 to %d", name, (long long)per_row,
                             p->is_video ? "frames" : "pictures", most);
    }
    p->pictures = calloc((size_t)(n_rows * per_row), sizeof *p->pictures);
    p->n_rows = n_rows;
    p->per_row = per_row;
    return p->pictures ? NULL : nrd_tb_error(nrd_error_no_memory());
}

/* ---- IMAGE, pixel_values ---- */

static nrd_dtype dtype_of(TRITONSERVER_DataType t)
{
    return t == TRITONSERVER_TYPE_FP16   ? NRD_DTYPE_F16
           : t == TRITONSERVER_TYPE_BF16 ? NRD_DTYPE_BF16
           : t == TRITONSERVER_TYPE_FP32 ? NRD_DTYPE_F32
                                         : NRD_DTYPE_NONE;
}

/* [side, side, 3] -> [3, side, side] */
static void to_planes(const float *from, size_t n, float *to)
{
    for (size_t i = 0; i < n; i++) {
        for (size_t c = 0; c < CHANNELS; c++) {
            to[c * n + i] = from[i * CHANNELS + c];
        }
    }
}

static TRITONSERVER_Error *check_pixels(const nrd_mm_model *m, const nrd_tb_tensor *t, int64_t n_rows, bool *out_planes)
{
    const int64_t side = m->info.image_size, *shape = t->shape + 1;

    if (side == 0) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_UNSUPPORTED, "model '%s': the tower of %s takes pictures of many sizes: send them as "
                             "image_bytes_input or image_url_input, not as %s", m->config.name, m->info.model_type, t->name);
    }
    *out_planes = t->n_dims == 5 && shape[1] == CHANNELS && shape[2] == side && shape[3] == side;
    const bool is_last = t->n_dims == 5 && shape[1] == side && shape[2] == side && shape[3] == CHANNELS;
    if (dtype_of(t->dtype) == NRD_DTYPE_NONE || (!*out_planes && !is_last) || t->shape[0] != n_rows) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "%s must be FP16, BF16 or FP32 of the shape [batch, pictures, 3, %lld, "
                             "%lld] or [batch, pictures, %lld, %lld, 3]", t->name, (long long)side, (long long)side, (long long)side,
                             (long long)side);
    }
    return NULL;
}

static TRITONSERVER_Error *read_pixels(const nrd_mm_model *m, const nrd_tb_tensor *t, int64_t n_rows, mm_pictures *p)
{
    const size_t side = (size_t)m->info.image_size, n = CHANNELS * side * side;
    const nrd_dtype dtype = dtype_of(t->dtype);
    size_t bytes = 0, total = 0;
    float *one = NULL;
    bool planes = true;

    NRD_TB_TRY(check_pixels(m, t, n_rows, &planes));
    NRD_TB_TRY(take_room(p, t->name, n_rows, t->shape[1]));
    nrd_dtype_bytes(dtype, n, &bytes);
    if (!nrd_size_mul((size_t)(n_rows * p->per_row), n, &total)) {
        return nrd_tb_error(nrd_error_no_memory());
    }
    p->pixels = calloc(total, sizeof *p->pixels);
    one = planes ? NULL : malloc(n * sizeof *one);
    if (!p->pixels || (!planes && !one)) {
        free(one);
        return nrd_tb_error(nrd_error_no_memory());
    }
    for (size_t i = 0; i < (size_t)(n_rows * p->per_row); i++) {
        float *to = p->pixels + i * n;
        const uint8_t *from = t->data + i * bytes;
        if (dtype == NRD_DTYPE_F32) {
            memcpy(planes ? to : one, from, bytes); /* it may be unaligned */
        } else {
            for (size_t k = 0; k < n; k++) {
                uint16_t x;
                memcpy(&x, from + k * sizeof x, sizeof x);
                (planes ? to : one)[k] = dtype == NRD_DTYPE_F16 ? nrd_f16_to_f32(x) : nrd_bf16_to_f32(x);
            }
        }
        if (!planes) {
            to_planes(one, side * side, to);
        }
        p->pictures[i].pixels = to;
    }
    free(one);
    return NULL;
}

/* ---- image_files ---- */

static TRITONSERVER_Error *read_files(const nrd_tb_tensor *t, int64_t n_rows, mm_pictures *p)
{
    size_t offset = 0, n = 0;
    const char *s = NULL;
    bool bad = false;

    if (t->dtype != TRITONSERVER_TYPE_BYTES || t->n_elements < n_rows || t->n_elements % n_rows) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "%s must have as many strings in every row", t->name);
    }
    NRD_TB_TRY(take_room(p, t->name, n_rows, t->n_elements / n_rows));
    for (int64_t i = 0; i < t->n_elements; i++) {
        if (!nrd_tb_next_string(t, &offset, &s, &n, &bad)) {
            return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "%s ends before its string %lld of %lld", t->name, (long long)i,
                                 (long long)t->n_elements);
        }
        if (n > NRD_LLM_MAX_IMAGE_BYTES) {
            return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "%s: a picture has %zu bytes, at most %d", t->name, n,
                                 NRD_LLM_MAX_IMAGE_BYTES);
        }
        p->pictures[i].bytes = s;
        p->pictures[i].n = n;
    }
    return NULL;
}

/* ---- all ---- */

/* Inputs of the published model that only other kinds of models read. */
static TRITONSERVER_Error *refuse_others(const nrd_mm_model *m, const nrd_tb_inputs *in)
{
    static const char *const others[] = {"aspect_ratio_ids", "aspect_ratio_mask", "cross_attention_mask", "attention_mask",
                                         "image_grid_thw",   "vision_input_id"};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        if (nrd_tb_find(in, others[i])) {
            return nrd_tb_errorf(TRITONSERVER_ERROR_UNSUPPORTED, "model '%s': the input %s is not supported", m->config.name,
                                 others[i]);
        }
    }
    return NULL;
}

static bool says_video(const nrd_tb_inputs *in)
{
    const nrd_tb_tensor *t = nrd_tb_find(in, "is_video_input");
    return t && t->dtype == TRITONSERVER_TYPE_BOOL && t->n_elements > 0 && t->data[0];
}

static TRITONSERVER_Error *read_all(const nrd_mm_model *m, const nrd_tb_inputs *in, mm_pictures *p)
{
    static const char *const names[] = {"pixel_values", "IMAGE", "image_files"};
    const bool has_batch = m->config.max_batch_size > 0;
    const nrd_tb_tensor *found = NULL;

    NRD_TB_TRY(refuse_others(m, in));
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const nrd_tb_tensor *t = nrd_tb_find(in, names[i]);
        if (t && found) {
            return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "%s and %s: only one of them may come", found->name, t->name);
        }
        found = t ? t : found;
    }
    if (!found) {
        return NULL;
    }
    if (!has_batch || found->n_dims < 1 || found->shape[0] < 1) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "model '%s': %s needs a batch dimension: max_batch_size must be at least 1",
                             m->config.name, found->name);
    }
    p->is_video = says_video(in);
    if (p->is_video && strcmp(found->name, "image_files") != 0) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_UNSUPPORTED, "model '%s': a video (is_video_input) comes as image_files, not as %s", m->config.name,
                             found->name);
    }
    return strcmp(found->name, "image_files") != 0 ? read_pixels(m, found, found->shape[0], p)
                                                   : read_files(found, found->shape[0], p);
}

/* ---- the answer ---- */

static TRITONSERVER_Error *put_table(const nrd_mm_model *m, TRITONBACKEND_Response *response, const nrd_vision_encoder_rows *rows,
                                     int64_t n)
{
    const nrd_dtype dtype = dtype_of(m->table_type);
    const int64_t width = m->info.row_size;
    int64_t longest = 0;
    size_t row_bytes = 0, bytes = 0;
    uint8_t *to = NULL;

    for (int64_t r = 0; r < n; r++) {
        longest = rows[r].n_rows > longest ? rows[r].n_rows : longest;
    }
    const int64_t shape[] = {n, longest, width};
    nrd_dtype_bytes(dtype, (uint64_t)width, &row_bytes);
    if (!nrd_size_mul((size_t)(n * longest), row_bytes, &bytes)) {
        return nrd_tb_error(nrd_error_no_memory());
    }
    NRD_TB_TRY(nrd_tb_output(response, "OUT_PROMPT_EMBEDDING_TABLE", m->table_type, shape, 3, bytes, (void **)&to));
    for (int64_t r = 0; r < n; r++) {
        uint8_t *at = to + (size_t)(r * longest) * row_bytes;
        for (int64_t i = 0; i < rows[r].n_rows; i++, at += row_bytes) {
            const float *from = rows[r].rows + i * width;
            if (dtype == NRD_DTYPE_F32) {
                memcpy(at, from, row_bytes);
            } else {
                nrd_quantize_row(dtype, from, at, width);
            }
        }
        memset(at, 0, (size_t)(longest - rows[r].n_rows) * row_bytes); /* not read: OUT_PROMPT_VOCAB_SIZE is less */
    }
    return NULL;
}

static TRITONSERVER_Error *put_counts(TRITONBACKEND_Request *request, TRITONBACKEND_Response *response,
                                      const nrd_vision_encoder_rows *rows, const mm_pictures *p)
{
    const int64_t n_shape[] = {p->n_rows, 1}, size_shape[] = {p->n_rows, p->per_row, 2};
    int32_t *counts = NULL;
    int64_t *sizes = NULL;

    if (nrd_tb_wants(request, "OUT_PROMPT_VOCAB_SIZE")) {
        NRD_TB_TRY(nrd_tb_output(response, "OUT_PROMPT_VOCAB_SIZE", TRITONSERVER_TYPE_INT32, n_shape, 2,
                                 (size_t)p->n_rows * sizeof *counts, (void **)&counts));
    }
    if (nrd_tb_wants(request, "OUT_IMAGE_SIZES")) {
        NRD_TB_TRY(nrd_tb_output(response, "OUT_IMAGE_SIZES", TRITONSERVER_TYPE_INT64, size_shape, 3,
                                 (size_t)(p->n_rows * p->per_row * 2) * sizeof *sizes, (void **)&sizes));
    }
    for (int64_t r = 0; r < p->n_rows; r++) {
        if (counts) {
            counts[r] = rows[r].n_rows;
        }
        for (int64_t i = 0; i < 2 * p->per_row && sizes; i++) {
            sizes[r * p->per_row * 2 + i] = rows[r].sizes[i];
        }
    }
    return NULL;
}

TRITONSERVER_Error *nrd_mm_answer(const nrd_mm_model *m, TRITONBACKEND_Request *request, const nrd_tb_inputs *in,
                                  TRITONBACKEND_Response *response)
{
    mm_pictures p = {0};
    nrd_vision_encoder_rows *rows = NULL;
    TRITONSERVER_Error *err = read_all(m, in, &p);

    if (!err && p.per_row > 0) {
        rows = calloc((size_t)p.n_rows, sizeof *rows);
        err = rows ? NULL : nrd_tb_error(nrd_error_no_memory());
    }
    for (int64_t r = 0; r < p.n_rows && rows && !err; r++) {
        err = nrd_tb_error((p.is_video ? nrd_vision_encoder_run_video : nrd_vision_encoder_run)(m->encoder, p.pictures + r * p.per_row,
                                                                                               (int32_t)p.per_row, &rows[r]));
    }
    if (!err && rows && nrd_tb_wants(request, "OUT_PROMPT_EMBEDDING_TABLE")) {
        err = put_table(m, response, rows, p.n_rows);
    }
    if (!err && rows) {
        err = put_counts(request, response, rows, &p);
    }
    for (int64_t r = 0; r < p.n_rows && rows; r++) {
        free(rows[r].rows);
        free(rows[r].sizes);
    }
    free(rows);
    free(p.pictures);
    free(p.pixels);
    return err;
}
