/* SPDX-License-Identifier: Apache-2.0
 * Pixels and data: URLs to files. */
#include "backends/tokenizer/pictures.h"

#include "base/base64.h"
#include "nereid/llm_tensors.h"

#include <string.h>

enum { CHANNELS = 3 };

void nrd_tok_pictures_fini(nrd_tok_pictures *p)
{
    for (int64_t i = 0; p->files && i < p->n_rows * p->per_row; i++) {
        nrd_str_fini(&p->files[i]);
    }
    free(p->files);
    memset(p, 0, sizeof *p);
}

static TRITONSERVER_Error *take_room(nrd_tok_pictures *p, const char *name, int64_t n_rows, int64_t per_row)
{
    const int most = p->is_video ? NRD_LLM_MAX_VIDEO_FRAMES : NRD_LLM_MAX_IMAGES;

    if (per_row < 1 || per_row > most) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "%s has %lld %s a row, expected 1 to %d", name, (long long)per_row,
                             p->is_video ? "frames" : "pictures", most);
    }
    p->files = calloc((size_t)(n_rows * per_row), sizeof *p->files);
    if (!p->files) {
        return nrd_tb_error(nrd_error_no_memory());
    }
    p->n_rows = n_rows;
    p->per_row = per_row;
    return NULL;
}

/* ---- IMAGE_BYTES, VIDEO_BYTES ---- */

/* from: [height, width, 3], or [3, height, width] with `planes`. */
static nrd_error *put_ppm(nrd_str *out, const uint8_t *from, size_t width, size_t height, bool planes)
{
    const size_t n = width * height;

    nrd_str_printf(out, "P6\n%zu %zu\n255\n", width, height);
    for (size_t i = 0; planes && i < n; i++) {
        for (size_t c = 0; c < CHANNELS; c++) {
            nrd_str_putc(out, (char)from[c * n + i]);
        }
    }
    if (!planes) {
        nrd_str_append(out, (const char *)from, n * CHANNELS);
    }
    return nrd_str_error(out);
}

static TRITONSERVER_Error *read_pixels(nrd_tok_pictures *p, const nrd_tb_tensor *t, int64_t n_rows, bool has_batch)
{
    const int64_t *shape = t->shape + (has_batch ? 1 : 0);
    const uint32_t n_dims = t->n_dims - (has_batch ? 1 : 0);

    if (t->dtype != TRITONSERVER_TYPE_UINT8 || t->n_dims < 1 || n_dims != 4 || (has_batch && t->shape[0] != n_rows)) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "%s must be uint8 of the shape [batch, pictures, height, width, 3] or "
                             "[batch, pictures, 3, height, width]", t->name);
    }
    const bool planes = shape[3] != CHANNELS;
    const int64_t height = shape[planes ? 2 : 1], width = shape[planes ? 3 : 2];
    if ((planes && shape[1] != CHANNELS) || height < 1 || width < 1 ||
        height > NRD_LLM_MAX_IMAGE_BYTES / CHANNELS / width) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "%s: a picture of [%lld, %lld, %lld]; expected three channels and at most "
                             "%d bytes", t->name, (long long)shape[1], (long long)shape[2], (long long)shape[3],
                             NRD_LLM_MAX_IMAGE_BYTES);
    }
    NRD_TB_TRY(take_room(p, t->name, n_rows, shape[0]));
    const size_t bytes = (size_t)(width * height) * CHANNELS;
    for (int64_t i = 0; i < n_rows * p->per_row; i++) {
        NRD_TB_TRY(nrd_tb_error(put_ppm(&p->files[i], t->data + (size_t)i * bytes, (size_t)width, (size_t)height, planes)));
    }
    return NULL;
}

/* ---- IMAGE_URL ---- */

/* data:image/png;base64,... */
static TRITONSERVER_Error *read_url(nrd_str *out, const char *name, const char *url, size_t n)
{
    static const char scheme[] = "data:", mark[] = ";base64,";
    const char *data = n > sizeof scheme && !memcmp(url, scheme, sizeof scheme - 1) ? memmem(url, n, mark, sizeof mark - 1) : NULL;
    size_t n_bytes = 0;

    if (!data) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_UNSUPPORTED, "%s is '%.*s'; pictures are taken as data:image/...;base64,... and not "
                             "fetched from addresses", name, n < 40 ? (int)n : 40, url);
    }
    data += sizeof mark - 1;
    const size_t n_data = n - (size_t)(data - url);
    if (n_data / 4 * 3 > NRD_LLM_MAX_IMAGE_BYTES + 3) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "%s has %zu bytes of base64; a picture may have %d bytes", name, n_data,
                             NRD_LLM_MAX_IMAGE_BYTES);
    }
    nrd_str_append(out, data, n_data);
    NRD_TB_TRY(nrd_tb_error(nrd_str_error(out)));
    if (n_data == 0 || !nrd_base64_decode(data, n_data, out->data, &n_bytes)) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "%s is no base64", name);
    }
    out->len = n_bytes;
    return NULL;
}

static TRITONSERVER_Error *read_urls(nrd_tok_pictures *p, const nrd_tb_tensor *t, int64_t n_rows)
{
    size_t offset = 0, n = 0;
    const char *url = NULL;
    bool bad = false;

    if (t->dtype != TRITONSERVER_TYPE_BYTES || t->n_elements < n_rows || t->n_elements % n_rows) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "%s must have as many strings in every row", t->name);
    }
    NRD_TB_TRY(take_room(p, t->name, n_rows, t->n_elements / n_rows));
    for (int64_t i = 0; i < t->n_elements; i++) {
        if (!nrd_tb_next_string(t, &offset, &url, &n, &bad)) {
            return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "%s ends before its string %lld of %lld", t->name, (long long)i,
                                 (long long)t->n_elements);
        }
        NRD_TB_TRY(read_url(&p->files[i], t->name, url, n));
    }
    return NULL;
}

/* Pictures that the client has scaled already are only counted: multimodal_encoders has them. */
static TRITONSERVER_Error *count_scaled(nrd_tok_pictures *p, const nrd_tb_tensor *t, int64_t n_rows, bool has_batch)
{
    const int64_t n = t->n_dims == 5 && has_batch && t->shape[0] == n_rows ? t->shape[1] : 0;

    if (n < 1 || n > NRD_LLM_MAX_IMAGES) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "%s must have the shape [batch, pictures, 3, height, width], with 1 to %d "
                             "pictures", t->name, NRD_LLM_MAX_IMAGES);
    }
    p->n_rows = n_rows;
    p->per_row = n;
    return NULL;
}

TRITONSERVER_Error *nrd_tok_pictures_read(nrd_tok_pictures *out, const nrd_tb_inputs *in, int64_t n_rows, bool has_batch)
{
    const nrd_tb_tensor *scaled = nrd_tb_find(in, "IMAGE"), *pixels = nrd_tb_find(in, "IMAGE_BYTES"),
                        *urls = nrd_tb_find(in, "IMAGE_URL"), *video = nrd_tb_find(in, "VIDEO_BYTES");

    memset(out, 0, sizeof *out);
    if (video && (scaled || pixels || urls)) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "VIDEO_BYTES beside pictures: only one of them may come");
    }
    out->is_video = video != NULL;
    if ((scaled != NULL) + (pixels != NULL) + (urls != NULL) > 1) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "%s: only one of them may come",
                             scaled ? "IMAGE beside IMAGE_BYTES or IMAGE_URL" : "IMAGE_BYTES and IMAGE_URL");
    }
    return scaled   ? count_scaled(out, scaled, n_rows, has_batch)
           : pixels ? read_pixels(out, pixels, n_rows, has_batch)
           : video  ? read_pixels(out, video, n_rows, has_batch)
           : urls   ? read_urls(out, urls, n_rows)
                    : NULL;
}

/* ---- onwards ---- */

TRITONSERVER_Error *nrd_tok_pictures_put(const nrd_tok_pictures *p, TRITONBACKEND_Response *response)
{
    const int64_t shape[] = {p->n_rows, p->per_row}, n = p->n_rows * p->per_row;
    size_t bytes = 0;
    char *to = NULL;

    for (int64_t i = 0; i < n; i++) {
        bytes += sizeof(uint32_t) + p->files[i].len;
    }
    NRD_TB_TRY(nrd_tb_output(response, "IMAGES", TRITONSERVER_TYPE_BYTES, shape, 2, bytes, (void **)&to));
    for (int64_t i = 0; i < n; i++) {
        const uint32_t length = (uint32_t)p->files[i].len;
        memcpy(to, &length, sizeof length);
        memcpy(to + sizeof length, p->files[i].data, length);
        to += sizeof length + length;
    }
    return NULL;
}

TRITONSERVER_Error *nrd_tok_pictures_put_is_video(const nrd_tok_pictures *p, TRITONBACKEND_Response *response)
{
    const int64_t shape[] = {p->n_rows, 1};
    uint8_t *to = NULL;

    NRD_TB_TRY(nrd_tb_output(response, "IS_VIDEO_INPUT", TRITONSERVER_TYPE_BOOL, shape, 2, (size_t)p->n_rows, (void **)&to));
    memset(to, 1, (size_t)p->n_rows);
    return NULL;
}
