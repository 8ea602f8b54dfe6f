/* SPDX-License-Identifier: Apache-2.0
 * config.json and preprocessor_config.json of a model that sees, one behind the other. What is accepted has sizes that
 * memory can be taken for. */
#include "json_swap.h"
#include "model/vision.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char border[] = "\n=====\n";

/* Rows that are kept are rows of the tiles, and no picture has more of them than is said. */
static void tile(const nrd_vision_spec *s)
{
    static const int32_t sides[] = {1, 2, 37, 336, 999, 1600, 16384};
    const int32_t side = s->image_size / s->patch_size;

    for (size_t i = 0; i < 49; i++) {
        nrd_vision_grid g;
        nrd_error *err = nrd_vision_tile(s, sides[i / 7], sides[i % 7], i % 2, &g);
        const nrd_vision_tiles *t = &g.tiles;
        if (!err && t->high && (t->top < 0 || t->left < 0 || t->top + t->kept_high > t->high * side ||
                                t->left + t->kept_wide > t->wide * side || t->rows_high > t->kept_high ||
                                t->rows_wide > t->kept_wide || t->rows_high < 1 || t->rows_wide < 1 ||
                                t->high * t->wide > nrd_vision_most_tiles(s) || nrd_vision_rows_of(s, g) > nrd_vision_n_rows(s))) {
            abort();
        }
        if (!err && s->in_steps) {
            int32_t width, height;
            nrd_vision_first_size(s, sides[i / 7], sides[i % 7], &width, &height);
            if (width < 1 || height < 1 || width > s->longest + 1 || height > s->longest + 1 ||
                nrd_vision_tokens_of(s, g) > nrd_vision_most_tokens(s)) {
                abort();
            }
        }
        nrd_error_free(err);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Whatever a picture's size is, it is fitted into the memory there is, or refused. */
static void check_fit(const nrd_vision_spec *s, nrd_vision_grid g)
{
    if (g.height < s->merge || g.width < s->merge || g.height % s->merge || g.width % s->merge || (int64_t)g.height * g.width > s->most_patches) {
        abort();
    }
    /* as many windows as the tower has memory for (engine/run/tower_grid.c) */
    const double squares = s->most_patches / (s->merge * s->merge), w = s->window;
    if (s->window > 0 && ceil((double)g.height / s->merge / w) * ceil((double)g.width / s->merge / w) >
                             squares / (w * w) + (18 * sqrt(squares) + 3) / w + 1) {
        abort();
    }
}

static void fit(const nrd_vision_spec *s)
{
    static const int32_t sides[] = {1, 2, 27, 28, 29, 200, 333, 4096, 16384}, counts[] = {1, 2, 3, 17, 768};
    const size_t n = sizeof sides / sizeof sides[0], n_counts = s->takes_videos ? sizeof counts / sizeof counts[0] : 0;

    for (size_t i = 0; i < n * n; i++) {
        for (size_t k = 0; k <= n_counts; k++) {
            nrd_vision_grid g = {0};
            nrd_error *err = k < n_counts ? nrd_vision_fit_frame(s, counts[k], sides[i / n], sides[i % n], &g)
                                          : nrd_vision_fit(s, sides[i / n], sides[i % n], &g);
            if (!err) {
                check_fit(s, g);
            }
            nrd_error_free(err);
        }
    }
}

/* A picture is in its canvas, and its tiles are no more than the tower takes. */
static void canvas(const nrd_vision_spec *s)
{
    static const int32_t sides[] = {1, 2, 37, 336, 999, 1600, 16384};

    for (size_t i = 0; i < 49; i++) {
        int32_t width, height;
        nrd_vision_grid g;
        nrd_vision_tile_mllama(s, sides[i / 7], sides[i % 7], &g);
        nrd_vision_fit_canvas(s, &g.tiles, sides[i / 7], sides[i % 7], &width, &height);
        if (g.tiles.high * g.tiles.wide > s->most_tiles || width < 1 || height < 1 || width > g.tiles.wide * s->image_size ||
            height > g.tiles.high * s->image_size || nrd_vision_rows_of(s, g) > nrd_vision_n_rows(s)) {
            abort();
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *cut = memmem(data, size, border, sizeof border - 1);
    const size_t n = cut ? (size_t)(cut - data) : size, from = cut ? n + sizeof border - 1 : size;
    nrd_json_doc *config = NULL, *processor = NULL;
    nrd_vision_spec s;
    bool any = false;

    nrd_error *err = nrd_json_parse(&config, (const char *)data, n, NULL);
    nrd_error *other = nrd_json_parse(&processor, (const char *)data + from, size - from, NULL);
    if (config) {
        nrd_error_free(err);
        err = nrd_vision_spec_read(&s, &any, nrd_json_root(config), processor ? nrd_json_root(processor) : NULL);
        if (!err && any) {
            const int32_t rows = s.any_size ? nrd_vision_n_rows(&s) : nrd_vision_n_base_rows(&s);
            if (rows < 1 || rows > NRD_VISION_MAX_PATCHES + 2 /* CogVLM has one before and one behind */ || s.image_size > NRD_VISION_MAX_SIDE ||
                (!s.bare && !s.swin.n_stages && (s.n_layers < 1 || s.hidden % s.n_heads)) || s.patch_size < 1 ||
                (s.pool && s.image_size / s.patch_size % s.pool)) {
                abort();
            }
            if (s.any_size) {
                fit(&s);
            }
            if (s.read_by_layers) {
                canvas(&s);
            }
            if (s.tiled) {
                tile(&s);
            }
        }
    }
    nrd_error_free(err);
    nrd_error_free(other);
    nrd_json_doc_free(config);
    nrd_json_doc_free(processor);
    return 0;
}
