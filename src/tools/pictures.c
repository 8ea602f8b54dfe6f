/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/pictures.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "model/vision.h"
#include "text/video_times.h"

#include <stdlib.h>
#include <string.h>

void nrd_tool_pictures_init(nrd_tool_pictures *p, const char *engine_dir, const nrd_tokenizer *t, const char *chat_template)
{
    const bool in_parts = chat_template && strstr(chat_template, "image"), numbered = nrd_tokenizer_numbers_pictures(t);

    *p = (nrd_tool_pictures){.is_on = nrd_vision_is_in(engine_dir) && chat_template && (in_parts || numbered), .in_words = numbered && !in_parts};
}

static void keep(nrd_tool_pictures *p, int32_t n)
{
    while (p->n > n) {
        free((void *)(uintptr_t)p->images[--p->n].bytes);
    }
}

void nrd_tool_pictures_take_back(nrd_tool_pictures *p)
{
    keep(p, p->n_before);
    p->n_told = p->n;
    p->video_is_told = p->video_is_told && !p->video_is_new;
}

static void clear_video(nrd_tool_pictures *p)
{
    for (int32_t i = 0; i < p->video.n_frames; i++) {
        free((void *)(uintptr_t)p->video.frames[i].bytes);
    }
    free((void *)(uintptr_t)p->video.frames);
    p->video = (nrd_exec_video){0};
}

void nrd_tool_pictures_clear(nrd_tool_pictures *p)
{
    keep(p, 0);
    clear_video(p);
    free(p->images);
    *p = (nrd_tool_pictures){.is_on = p->is_on, .in_words = p->in_words};
}

nrd_error *nrd_tool_pictures_add(nrd_tool_pictures *p, const char *path)
{
    char *bytes = NULL;
    size_t n = 0;

    if (p->n == NRD_LLM_MAX_IMAGES) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'%s': a conversation has at most %d pictures", path, NRD_LLM_MAX_IMAGES);
    }
    NRD_TRY(nrd_file_read(&bytes, &n, path, NRD_LLM_MAX_IMAGE_BYTES));
    nrd_exec_image *images = realloc(p->images, (size_t)(p->n + 1) * sizeof *images);
    if (!images) {
        free(bytes);
        return nrd_error_no_memory();
    }
    p->images = images;
    p->images[p->n++] = (nrd_exec_image){bytes, n};
    return NULL;
}

/* What the engine's description says of videos. */
static nrd_error *learn_videos(nrd_tool_pictures *p, const char *engine_dir)
{
    nrd_json_doc *doc = NULL;
    char *text = NULL;

    NRD_TRY(nrd_exec_describe(engine_dir, &text));
    nrd_error *err = nrd_json_parse(&doc, text, strlen(text), NULL);
    const nrd_json *v = doc ? nrd_json_get(nrd_json_root(doc), "videos") : NULL;
    if (!err && (!v || !p->is_on || p->in_words)) {
        err = nrd_errorf(NRD_ERR_UNSUPPORTED, "--video: this model takes no videos");
    }
    p->group = nrd_json_get_bool(v, "apart", false) ? (int32_t)nrd_json_get_int(v, "frames", 0) : 0;
    nrd_json_doc_free(doc);
    free(text);
    return err;
}

static nrd_error *read_frames(nrd_tool_pictures *p, const char *folder, char **names, size_t n)
{
    nrd_exec_image *frames = NULL;
    nrd_error *err = NULL;

    if (n == 0 || n > NRD_LLM_MAX_VIDEO_FRAMES) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "--video: '%s' has %zu files, expected 1 to %d pictures", folder, n, NRD_LLM_MAX_VIDEO_FRAMES);
    }
    NRD_NEW_GOTO(frames, n, err, fail);
    p->video.frames = frames;
    for (size_t i = 0; i < n && !err; i++) {
        char *path = NULL, *bytes = NULL;
        err = nrd_path_make(&path, folder, names[i]);
        err = err ? err : nrd_file_read(&bytes, &frames[i].n, path, NRD_LLM_MAX_IMAGE_BYTES);
        frames[i].bytes = bytes;
        p->video.n_frames++;
        free(path);
    }
fail:
    return err;
}

nrd_error *nrd_tool_pictures_add_video(nrd_tool_pictures *p, const char *engine_dir, const char *folder, double fps)
{
    char **names = NULL;
    size_t n = 0;

    NRD_TRY(learn_videos(p, engine_dir));
    NRD_TRY(nrd_dir_list(&names, &n, folder));
    p->video.fps = fps;
    nrd_error *err = read_frames(p, folder, names, n);
    nrd_names_free(names, n);
    return err;
}

nrd_error *nrd_tool_pictures_put_times(const nrd_tool_pictures *p, nrd_str *chat)
{
    const nrd_video_time times = {p->video.n_frames, p->video.fps};
    return p->group > 0 && times.n_frames > 0 ? nrd_video_put_times(chat, &times, 1, p->group) : NULL;
}

static void put_in_words(nrd_tool_pictures *p, nrd_str *out, const char *text, size_t n, int32_t n_new)
{
    nrd_str all = {0};

    for (int32_t i = 0; i < n_new; i++) {
        nrd_str_printf(&all, "<|image_%d|>\n", ++p->n_told);
    }
    nrd_str_append(&all, text, n);
    nrd_json_put_string(out, nrd_str_cstr(&all), all.len);
    out->no_memory |= all.no_memory;
    nrd_str_fini(&all);
}

void nrd_tool_pictures_put(nrd_tool_pictures *p, nrd_str *out, const char *text, size_t n, bool of_user)
{
    const int32_t n_new = p->is_on && of_user ? p->n - p->n_told : 0;

    p->n_before = of_user ? p->n_told : p->n_before;
    if (!p->is_on || p->in_words) {
        put_in_words(p, out, text, n, n_new);
        return;
    }
    nrd_str_putc(out, '[');
    p->video_is_new = of_user ? p->video.n_frames > 0 && !p->video_is_told : p->video_is_new;
    if (of_user && p->video_is_new) {
        nrd_str_puts(out, "{\"type\":\"video\"},");
        p->video_is_told = true;
    }
    for (int32_t i = 0; i < n_new; i++, p->n_told++) {
        nrd_str_puts(out, "{\"type\":\"image\"},");
    }
    nrd_str_puts(out, "{\"type\":\"text\",\"text\":");
    nrd_json_put_string(out, text, n);
    nrd_str_puts(out, "}]");
}
