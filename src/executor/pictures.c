/* SPDX-License-Identifier: Apache-2.0 */
#include "executor/pictures.h"

#include "base/limits.h"
#include "base/mem.h"
#include "base/siphash.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

_Static_assert((int)NRD_LLM_MAX_VIDEO_FRAMES == (int)NRD_LIMIT_VIDEO_FRAMES && (int)NRD_LLM_MAX_IMAGES == (int)NRD_LIMIT_IMAGES && (int)NRD_LLM_MAX_IMAGE_BYTES == (int)NRD_LIMIT_IMAGE_FILE,
               "clients are told the limits of base/limits.h");

#define MIN_FPS 0.01 /* places on the axis of time stay whole numbers of 32 bits, of all frames with 1,000 tokens a second */
enum { MAX_FPS = 1000 };

static int32_t count_token(const nrd_exec_request *in, int32_t token)
{
    int32_t n = 0;
    for (int32_t i = 0; i < in->n_input_ids && in->input_ids; i++) {
        n += in->input_ids[i] == token;
    }
    return n;
}

static int32_t count_places(const nrd_vision_spec *s, const nrd_exec_request *in)
{
    return count_token(in, s->image_token);
}

/* The sizes are those of a video's frames, which are rows already: its place is the only one in the prompt. */
static bool is_video_of_rows(const nrd_vision_spec *s, const nrd_exec_request *in)
{
    return in->image_sizes && in->n_videos == 0 && s->takes_videos && s->tiled && count_token(in, s->video.token) == 1 && count_places(s, in) == 0;
}

static bool has_videos(const nrd_vision_spec *s, const nrd_exec_request *in)
{
    return in->n_videos > 0 || is_video_of_rows(s, in);
}

/* Of the tower, that a video becomes. */
static int32_t count_groups(const nrd_vision_spec *s, const nrd_exec_video *v)
{
    return (v->n_frames + s->frames - 1) / s->frames;
}

static int64_t count_frames(const nrd_exec_request *in)
{
    int64_t n = 0;
    for (int32_t i = 0; i < in->n_videos; i++) {
        n += in->videos[i].n_frames;
    }
    return n;
}

/* ---- reading ---- */

void nrd_picture_add_hash(const nrd_vision_spec *s, nrd_picture *y)
{
    nrd_siphash h;

    nrd_siphash_init(&h, nrd_siphash_process_key());
    nrd_siphash_add(&h, &y->grid, sizeof y->grid);
    nrd_siphash_add(&h, y->pixels, nrd_picture_numbers(s, y->grid) * sizeof *y->pixels);
    nrd_siphash_end(&h, y->hash);
}

/* Picture i of the request is the next one. */
static nrd_error *read_picture(nrd_pictures *p, const nrd_vision_spec *s, const nrd_exec_request *in, int32_t i, int32_t max_ids)
{
    nrd_picture *y = &p->pictures[p->n++];
    const bool alone = in->n_images == 1;

    if (in->images) {
        NRD_TRY(nrd_error_wrap(nrd_pixels_of(s, in->images[i].bytes, in->images[i].n, alone, max_ids - p->n_tokens, y), "picture %d", i));
        nrd_picture_add_hash(s, y);
    } else {
        NRD_TRY(nrd_error_wrap(nrd_picture_of_size(s, in->image_sizes[2 * i], in->image_sizes[2 * i + 1], alone, y), "picture %d", i));
        y->hash[0] = (uint64_t)i + 1;
    }
    p->n_rows += y->n_rows;
    p->n_tokens += nrd_vision_tokens_of(s, y->grid);
    return NULL;
}

/* Where reading the videos stands. */
typedef struct video_cursor {
    int32_t video, group, width, height;
} video_cursor;

/* The next group of frames is the next picture. */
static nrd_error *read_group(nrd_pictures *p, const nrd_vision_spec *s, const nrd_exec_request *in, video_cursor *r, int32_t max_ids)
{
    const nrd_exec_video *v = &in->videos[r->video];
    const double places = s->video.tokens_per_second > 0 ? s->video.tokens_per_second * s->frames / v->fps : 1; /* of a group on the axis */
    const int32_t at = r->group * s->frames;
    nrd_picture *y = &p->pictures[p->n++];

    NRD_TRY(nrd_error_wrap(nrd_pixels_of_frames(s, v, at, max_ids - p->n_tokens, y), "video %d, frames from %d on", r->video, at));
    if (r->group > 0 && (y->width != r->width || y->height != r->height)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "video %d: frame %d has %d x %d pixels, and those before it %d x %d", r->video, at, y->width, y->height,
                          r->width, r->height);
    }
    nrd_picture_add_hash(s, y);
    y->time = s->video.apart ? 0 : (int32_t)(r->group * places);
    *r = (video_cursor){.video = r->video, .group = r->group + 1, .width = y->width, .height = y->height};
    if (r->group == count_groups(s, v)) {
        *r = (video_cursor){.video = r->video + 1};
    }
    y->goes_on = r->group > 0 && !s->video.apart;
    p->n_rows += y->n_rows;
    p->n_tokens += nrd_vision_tokens_of(s, y->grid);
    return NULL;
}

/* Frame i of a video whose frames are rows. */
static nrd_error *read_frame(nrd_pictures *p, const nrd_vision_spec *s, const nrd_exec_request *in, int32_t i)
{
    nrd_picture *y = &p->pictures[p->n++];

    NRD_TRY(nrd_error_wrap(nrd_picture_of_frame(s, in->image_sizes[2 * i], in->image_sizes[2 * i + 1], in->n_images, i, y), "frame %d", i));
    y->hash[0] = (uint64_t)i + 1;
    y->goes_on = i + 1 < in->n_images;
    p->n_rows += y->n_rows;
    p->n_tokens += nrd_vision_tokens_of(s, y->grid);
    return NULL;
}

/* By their places in the prompt. */
static nrd_error *read_all(nrd_pictures *p, const nrd_vision_spec *s, const nrd_exec_request *in, int32_t max_ids)
{
    const bool of_frames = is_video_of_rows(s, in);
    int32_t picture = 0;
    video_cursor r = {0};

    while (of_frames && picture < in->n_images) {
        NRD_TRY(read_frame(p, s, in, picture++));
    }
    while (in->n_videos == 0 && picture < in->n_images) { /* a picture may have several places */
        NRD_TRY(read_picture(p, s, in, picture++, max_ids));
    }
    for (int32_t i = 0; in->n_videos > 0 && i < in->n_input_ids; i++) {
        if (in->input_ids[i] == s->image_token) {
            NRD_TRY(read_picture(p, s, in, picture++, max_ids));
        } else if (in->input_ids[i] == s->video.token) {
            do {
                NRD_TRY(read_group(p, s, in, &r, max_ids));
            } while (p->pictures[p->n - 1].goes_on);
        }
    }
    return NULL;
}

/* ---- the prompt ---- */

static nrd_error *wrong_places(const nrd_vision_spec *s, const nrd_exec_request *in, int32_t places)
{
    return nrd_errorf(NRD_ERR_INVALID_ARG, "the prompt has %d places for pictures (token %d), and the request brings %d pictures",
                      places, s->image_token, in->n_images);
}

static nrd_error *check_videos(const nrd_vision_spec *s, const nrd_exec_request *in)
{
    const int32_t places = count_token(in, s->video.token);
    int64_t n = 0, expected = s->video.apart ? 0 : in->n_videos;

    if (!s->takes_videos) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "this model takes pictures and no videos");
    }
    for (int32_t i = 0; i < in->n_videos; i++) {
        const nrd_exec_video *v = &in->videos[i];
        if (v->n_frames < 1 || v->n_frames > NRD_LLM_MAX_VIDEO_FRAMES || !v->frames) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "video %d has %d frames, expected 1 to %d", i, v->n_frames, NRD_LLM_MAX_VIDEO_FRAMES);
        }
        if (!(v->fps >= MIN_FPS && v->fps <= MAX_FPS)) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "video %d has %g frames a second, expected %g to %d", i, v->fps, MIN_FPS, MAX_FPS);
        }
        n += v->n_frames;
        expected += s->video.apart ? count_groups(s, v) : 0;
    }
    if (n > NRD_LLM_MAX_VIDEO_FRAMES) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "the request's videos have %lld frames, at most %d are taken", (long long)n, NRD_LLM_MAX_VIDEO_FRAMES);
    }
    if (places != expected || count_places(s, in) != in->n_images) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "the prompt has %d places for videos (token %d) and %d for pictures (token %d), expected %lld and %d%s",
                          places, s->video.token, count_places(s, in), s->image_token, (long long)expected, in->n_images,
                          s->video.apart ? "; this model has a place for each group of frames" : "");
    }
    return NULL;
}

/* Before pictures are read: their number, and what is known of the prompt. */
static nrd_error *check(const nrd_vision_spec *s, const nrd_exec_request *in, int32_t max_ids)
{
    const int32_t places = count_places(s, in), rows = nrd_vision_varies(s) ? 1 : nrd_vision_n_rows(s);

    if (in->n_videos < 0 || (in->n_videos > 0 && (!in->videos || in->image_sizes))) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "a request has %d videos; they come as frames, and not beside image_sizes", in->n_videos);
    }
    NRD_TRY(in->n_videos > 0 ? check_videos(s, in) : NULL);
    if (is_video_of_rows(s, in)) {
        return in->n_images > 0 && in->n_images <= NRD_LLM_MAX_VIDEO_FRAMES
                   ? NULL
                   : nrd_errorf(NRD_ERR_INVALID_ARG, "a video has %d frames, expected 1 to %d", in->n_images, NRD_LLM_MAX_VIDEO_FRAMES);
    }
    if ((in->n_images > 0 && !in->images && !in->image_sizes) || in->n_images < 0 || in->n_images > NRD_LLM_MAX_IMAGES) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "a request has %d pictures, at most %d are taken", in->n_images,
                          NRD_LLM_MAX_IMAGES);
    }
    if (places != in->n_images &&
        (s->read_by_layers || (nrd_vision_varies(s) ? places < in->n_images : (int64_t)places != (int64_t)rows * in->n_images))) {
        return wrong_places(s, in, places);
    }
    const int64_t each = places == in->n_images ? 1 : rows, total = (int64_t)in->n_input_ids + (rows - each) * in->n_images;
    if (total > max_ids) {
        return nrd_error_because(nrd_errorf(NRD_ERR_INVALID_ARG, "Prompt length (%lld, %d of each picture) exceeds maximum input "
                                            "length (%d)", (long long)total, rows, max_ids), NRD_LLM_PROMPT_TOO_LONG);
    }
    return NULL;
}

/* A place is one token, or as many as its picture has rows where the client has seen to that. */
static nrd_error *count_ids(nrd_pictures *p, const nrd_vision_spec *s, const nrd_exec_request *in, int32_t max_ids, bool *out_single)
{
    const int32_t places = count_places(s, in);
    const bool of_frames = is_video_of_rows(s, in);
    *out_single = of_frames || places == in->n_images;
    const int32_t n = *out_single ? p->n_tokens : p->n_rows;
    const int64_t total = (int64_t)in->n_input_ids - places - (has_videos(s, in) ? count_token(in, s->video.token) : 0) + n;

    if (!*out_single && places != p->n_rows) {
        return wrong_places(s, in, places);
    }
    if (total > max_ids) {
        return nrd_error_because(nrd_errorf(NRD_ERR_INVALID_ARG, "Prompt length (%lld, %d of pictures) exceeds maximum input "
                                            "length (%d)", (long long)total, n, max_ids), NRD_LLM_PROMPT_TOO_LONG);
    }
    p->n_ids = (int32_t)total;
    return NULL;
}

/* The same frames at another time have other keys. */
static void put_row(nrd_pictures *p, const nrd_picture *y, int32_t k, int32_t id, int32_t at)
{
    const uint64_t place = (uint64_t)(uint32_t)y->time << 32 | (uint32_t)k;
    p->ids[at] = id;
    p->extra[at] = (y->hash[0] + place * 0x9e3779b97f4a7c15u) | 1u; /* never 0: no extra id */
}

static int32_t put_word(nrd_pictures *p, const nrd_vision_word *w, int32_t at)
{
    memcpy(p->ids + at, w->ids, (size_t)w->n * sizeof *w->ids);
    return at + w->n;
}

/* Tiles by rows and then the whole, each behind its word. */
static void put_named(nrd_pictures *p, const nrd_vision_spec *s, const nrd_picture *y, int32_t vocab, int32_t first, int32_t at)
{
    const nrd_vision_words *w = &s->words;
    const int32_t wide = y->grid.tiles.wide, n = y->grid.tiles.high * wide, base = nrd_vision_n_base_rows(s);

    for (int32_t i = 0; i <= n; i++) {
        at = put_word(p, i == n ? &w->whole : &w->tiles[i / wide * w->side + i % wide], at);
        for (int32_t k = i * base; k < (i + 1) * base; k++) {
            put_row(p, y, k, vocab + first + k, at++);
        }
        if (i < n && (i + 1) % wide == 0) {
            at = put_word(p, i + 1 == n ? &w->last_line : &w->line, at);
        }
    }
    (void)put_word(p, &w->end, at);
}

/* A picture's rows from place `at` on, of which the first is row `first` of all, and what ends its lines; framed: and what stands around
 * them. */
static void put_rows(nrd_pictures *p, const nrd_vision_spec *s, const nrd_picture *y, int32_t vocab, int32_t first, int32_t at, bool framed)
{
    const int32_t line = s->breaks ? y->grid.width / s->merge : y->n_rows;

    if (framed) {
        p->ids[at++] = s->start_token;
    }
    for (int32_t k = 0; k < y->n_rows; k++) {
        put_row(p, y, k, vocab + first + k, at++);
        if (s->breaks && (k + 1) % line == 0) {
            p->ids[at++] = k + 1 < y->n_rows ? s->break_token : s->end_token;
        }
    }
    if (framed) {
        p->ids[at] = s->end_token;
    }
}

/* Rows take the places of a client's image tokens one after the other; between lines it has its own. */
static void fill_places(nrd_pictures *p, const nrd_vision_spec *s, const nrd_exec_request *in, int32_t vocab)
{
    int32_t row = 0, picture = 0, first = 0;

    for (int32_t i = 0; i < in->n_input_ids; i++) {
        p->ids[i] = in->input_ids[i];
        if (in->input_ids[i] == s->image_token) {
            if (row - first == p->pictures[picture].n_rows) {
                first = row;
                picture++;
            }
            put_row(p, &p->pictures[picture], row - first, vocab + row, i);
            row++;
        }
    }
}

/* The rows' places on the axes of time, height and width; *next is that of what is behind them. */
static void put_axes(nrd_pictures *p, const nrd_vision_spec *s, const nrd_picture *y, int32_t at, int32_t *next)
{
    if (s->post_normed) { /* one behind the other: what begins it, all between, what ends it */
        for (int32_t k = 0; k < y->n_rows; k++) {
            for (int a = 0; a < NRD_ROPE_AXES; a++) {
                p->axes[(size_t)(at + k) * NRD_ROPE_AXES + (size_t)a] = *next + (k > 0) + (k == y->n_rows - 1);
            }
        }
        *next += 3;
        return;
    }
    const int32_t height = y->grid.height / s->merge, width = y->grid.width / s->merge;

    for (int32_t k = 0; k < y->n_rows; k++) {
        int32_t *axes = p->axes + (size_t)(at + k) * NRD_ROPE_AXES;
        axes[0] = *next + y->time;
        axes[1] = *next + k / width;
        axes[2] = *next + k % width;
    }
    if (!y->goes_on) {
        const int32_t side = height > width ? height : width;
        *next += side > y->time ? side : y->time + 1;
    }
}

/* The prompt with rows, and what tells pictures apart. */
static nrd_error *expand(nrd_pictures *p, const nrd_vision_spec *s, const nrd_exec_request *in, int32_t vocab, bool single)
{
    const bool videos = has_videos(s, in);
    int32_t to = 0, row = 0, next = 0, picture = 0;
    nrd_error *err = NULL;

    NRD_NEW_GOTO(p->ids, p->n_ids, err, fail);
    NRD_NEW_GOTO(p->extra, p->n_ids, err, fail);
    if (s->axes) {
        NRD_NEW_GOTO(p->axes, (size_t)p->n_ids * NRD_ROPE_AXES, err, fail);
    }
    if ((s->breaks || s->named) && !single) {
        fill_places(p, s, in, vocab);
        return NULL;
    }
    for (int32_t i = 0; i < in->n_input_ids;) {
        if (in->input_ids[i] != s->image_token && !(videos && in->input_ids[i] == s->video.token)) {
            for (int a = 0; p->axes && a < NRD_ROPE_AXES; a++) {
                p->axes[(size_t)to * NRD_ROPE_AXES + (size_t)a] = next;
            }
            next++;
            p->ids[to++] = in->input_ids[i++];
            continue;
        }
        const nrd_picture *y = &p->pictures[picture++];
        for (int32_t k = 0; k < y->n_rows && !single; k++) { /* a client's places of one picture stand together */
            if (i + k >= in->n_input_ids || in->input_ids[i + k] != s->image_token) {
                return nrd_errorf(NRD_ERR_INVALID_ARG, "picture %d has %d places in a row in the prompt, expected %d", picture - 1, k,
                                  y->n_rows);
            }
        }
        if (s->named) {
            put_named(p, s, y, vocab, row, to);
        } else {
            put_rows(p, s, y, vocab, row, to, s->framed && single);
        }
        if (p->axes) {
            put_axes(p, s, y, to, &next);
        }
        to += single ? nrd_vision_tokens_of(s, y->grid) : y->n_rows;
        row += y->n_rows;
        i += y->goes_on ? 0 : single ? 1 : y->n_rows;
    }
    p->axes_shift = p->axes ? next - p->n_ids : 0;
fail:
    return err;
}

static int32_t whole_blocks(int32_t n, int32_t block_tokens)
{
    return (n + block_tokens - 1) / block_tokens * block_tokens;
}

/* Where states of the pictures lie, and who sees them: those side by side in the text are one behind the other from a block's first place
 * on, and what follows them sees all of these. */
static void place_states(nrd_pictures *p, const nrd_vision_spec *s, const nrd_exec_request *in, int32_t block_tokens)
{
    int32_t picture = 0, row = 0, place = 0;

    for (int32_t i = 0; i < in->n_input_ids; i++) {
        if (in->input_ids[i] != s->image_token) {
            continue;
        }
        nrd_seq_picture *x = &p->states[picture];
        const bool together = picture > 0 && in->input_ids[i - 1] == s->image_token;
        place = together ? place : whole_blocks(place, block_tokens);
        *x = (nrd_seq_picture){.row = row + 1, .place = place, .n = p->pictures[picture].n_rows - 1, .seen = i, .from = together ? x[-1].from : place};
        place += x->n;
        row += 1 + x->n;
        picture++;
    }
    p->n_cross = whole_blocks(place, block_tokens);
    for (int32_t i = 0; i < p->n; i++) {
        p->states[i].seen += p->n_cross;
    }
}

/* The prompt behind places for the pictures' states. A picture's token is the first of its rows, which is its embedding. */
static nrd_error *put_states(nrd_pictures *p, const nrd_vision_spec *s, const nrd_exec_request *in, int32_t vocab, int32_t block_tokens)
{
    nrd_error *err = NULL;
    int32_t picture = 0;

    NRD_NEW_GOTO(p->states, p->n, err, fail);
    place_states(p, s, in, block_tokens);
    p->n_ids = p->n_cross + in->n_input_ids;
    NRD_NEW_GOTO(p->ids, p->n_ids, err, fail);
    NRD_NEW_GOTO(p->extra, p->n_ids, err, fail);
    for (int32_t i = 0; i < p->n; i++) { /* what fills blocks up is a picture's as well */
        const int32_t end = i + 1 < p->n ? p->states[i + 1].place : p->n_cross;
        for (int32_t k = p->states[i].place; k < end; k++) {
            put_row(p, &p->pictures[i], k - p->states[i].place, 0, k);
        }
    }
    for (int32_t i = 0; i < in->n_input_ids; i++) {
        const bool seen = in->input_ids[i] == s->image_token;
        p->ids[p->n_cross + i] = seen ? vocab + p->states[picture++].row - 1 : in->input_ids[i];
    }
fail:
    return err;
}

nrd_error *nrd_pictures_new(nrd_pictures **out, const nrd_vision_spec *s, const nrd_exec_request *in, int32_t vocab, int32_t max_ids,
                            int32_t block_tokens)
{
    nrd_error *err = NULL;
    nrd_pictures *p = NULL;
    bool single = true;

    *out = NULL;
    NRD_TRY(check(s, in, max_ids));
    NRD_NEW_GOTO(p, 1, err, fail);
    atomic_store(&p->refs, 1);
    NRD_NEW_GOTO(p->pictures, in->n_images + count_frames(in), err, fail);
    p->both_ways = !s->both_ways ? 0 : s->sees_prompt ? NRD_PICTURE_ROWS_PROMPT : nrd_vision_varies(s) ? NRD_PICTURE_ROWS_VARY : nrd_vision_n_rows(s);
    NRD_TRY_GOTO(read_all(p, s, in, max_ids), err, fail);
    NRD_TRY_GOTO(count_ids(p, s, in, max_ids, &single), err, fail);
    NRD_TRY_GOTO(s->read_by_layers ? put_states(p, s, in, vocab, block_tokens) : expand(p, s, in, vocab, single), err, fail);
    *out = p;
    return NULL;

fail:
    nrd_pictures_unref(p);
    return err;
}

nrd_pictures *nrd_pictures_ref(nrd_pictures *p)
{
    atomic_fetch_add(&p->refs, 1);
    return p;
}

void nrd_pictures_unref(nrd_pictures *p)
{
    if (p && atomic_fetch_sub(&p->refs, 1) == 1) {
        for (int32_t i = 0; p->pictures && i < p->n; i++) {
            free(p->pictures[i].pixels);
        }
        free(p->pictures);
        free(p->ids);
        free(p->extra);
        free(p->axes);
        free(p->states);
        free(p);
    }
}

uint64_t nrd_pictures_bytes(const nrd_vision_spec *s, const nrd_exec_request *in, int32_t hidden, int32_t max_ids)
{
    const int32_t n = in->n_images;
    const int64_t n_frames = in->n_videos > 0 && in->n_videos <= NRD_LLM_MAX_VIDEO_FRAMES && in->videos ? count_frames(in) : 0;
    const uint64_t frames = n_frames > 0 && n_frames <= NRD_LLM_MAX_VIDEO_FRAMES ? (uint64_t)n_frames : 0;
    const uint64_t count = frames + (n > 0 && n <= NRD_LLM_MAX_IMAGES ? (uint64_t)n : 0), ids = max_ids > 0 ? (uint64_t)max_ids : 0;
    uint64_t rows = count * (uint64_t)nrd_vision_n_rows(s), numbers = count * nrd_picture_numbers(s, (nrd_vision_grid){0});

    if (s->read_by_layers) {
        numbers = count * (uint64_t)s->most_tiles * 3 * (uint64_t)s->image_size * (uint64_t)s->image_size;
    } else if (s->tiled) { /* a frame is no tiles */
        rows = rows < ids ? rows : ids;
        numbers += (count - frames) * (uint64_t)nrd_vision_most_tiles(s) * nrd_picture_numbers(s, (nrd_vision_grid){0});
    } else if (s->any_size) {
        const uint64_t side = (uint64_t)s->merge * (uint64_t)s->patch_size;
        rows = rows < ids ? rows : ids;
        numbers = rows * 3 * side * side * (frames > 0 ? (uint64_t)s->frames : 1);
    }
    const uint64_t row = (uint64_t)nrd_vision_row_parts(s) * (uint64_t)hidden;
    return numbers * sizeof(float) + rows * (row * sizeof(float) + 8 * sizeof(uint64_t));
}
