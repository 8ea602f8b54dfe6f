/* SPDX-License-Identifier: Apache-2.0
 * Videos in messages, as frames: a data: URL of several pictures with commas between (as vLLM takes them), or a list of data: URLs (as Qwen's
 * programs send them). Nothing is fetched, and a film is not decoded.
 * Source: vLLM's documentation (multimodal inputs: video/jpeg), DashScope's reference (video as a list of pictures, fps). */
#include "frontends/openai/internal.h"

#include "base/number.h"
#include "nereid/llm_tensors.h"

#include <stdlib.h>
#include <string.h>

#define USUAL_FPS 2.0 /* what the published processors take from a film */

bool nrd_oai_takes_videos(const nrd_oai_model *m)
{
    return m->videos.frames > 0 && nrd_oai_takes_pictures(m) && strstr(nrd_tokenizer_chat_template(m->tokenizer), "video");
}

bool nrd_oai_is_video(const nrd_json *part)
{
    const char *type = nrd_json_get_str(part, "type", "");
    return !strcmp(type, "video_url") || !strcmp(type, "video");
}

static nrd_error *add_frame(nrd_oai_request *r, const char *base64, size_t n)
{
    if (r->n_frames == NRD_LLM_MAX_VIDEO_FRAMES) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "messages", "the videos of a request may have %d frames", NRD_LLM_MAX_VIDEO_FRAMES);
    }
    NRD_TRY(nrd_oai_check_picture(base64, n, "messages"));
    r->n_frames++;
    r->video_times[r->n_videos - 1].n_frames++;
    nrd_str_append(&r->videos, base64, n);
    return NULL;
}

/* What is behind "data:TYPE;base64,"; NULL: it is no such text. */
static const char *data_of(const nrd_json *url, const char *type, size_t *n)
{
    static const char mark[] = ";base64,";
    const char *data = nrd_json_is(url, NRD_JSON_STRING) && !strncmp(url->str, type, strlen(type)) ? strstr(url->str, mark) : NULL;

    if (data) {
        data += sizeof mark - 1;
        *n = url->n - (size_t)(data - url->str);
    }
    return data;
}

static nrd_error *wrong_url(size_t index, const nrd_json *url)
{
    return nrd_oai_errorf(NRD_ERR_UNSUPPORTED, "messages", "message %zu has the video '%.40s'; videos are taken as frames: "
                          "data:video/jpeg;base64,FRAME,FRAME…, or a list of data:image/…;base64,…; films are not decoded, addresses not fetched", index,
                          nrd_json_is(url, NRD_JSON_STRING) ? url->str : "");
}

/* FRAME,FRAME,… */
static nrd_error *add_frames(nrd_oai_request *r, const char *data, size_t n)
{
    for (bool more = true; more;) {
        const char *comma = memchr(data, ',', n);
        const size_t len = comma ? (size_t)(comma - data) : n;
        NRD_TRY(add_frame(r, data, len));
        more = comma != NULL;
        nrd_str_puts(&r->videos, more ? "," : "");
        data += len + more;
        n -= len + more;
    }
    return NULL;
}

static nrd_error *add_list(nrd_oai_request *r, const nrd_json *list, size_t index)
{
    for (size_t i = 0; i < list->n; i++) {
        size_t n = 0;
        const char *data = data_of(&list->child[i], "data:image/", &n);
        if (!data) {
            return wrong_url(index, &list->child[i]);
        }
        nrd_str_puts(&r->videos, i ? "," : "");
        NRD_TRY(add_frame(r, data, n));
    }
    return list->n > 0 ? NULL : nrd_oai_errorf(NRD_ERR_INVALID_ARG, "messages", "message %zu has a video without frames", index);
}

/* A video without frames so far. */
static nrd_error *begin_video(nrd_oai_request *r, const nrd_json *v, size_t index)
{
    const double fps = v ? nrd_json_num(v, 0) : USUAL_FPS;
    char text[32];

    if (!(fps > 0)) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "messages", "message %zu: fps of a video must be a number above 0", index);
    }
    nrd_video_time *times = realloc(r->video_times, ((size_t)r->n_videos + 1) * sizeof *times);
    if (!times) {
        return nrd_error_no_memory();
    }
    r->video_times = times;
    r->video_times[r->n_videos] = (nrd_video_time){.fps = fps};
    nrd_number_print(text, sizeof text, "%.9g:", fps);
    nrd_str_puts(&r->videos, r->n_videos++ ? ";" : "");
    nrd_str_puts(&r->videos, text);
    return NULL;
}

nrd_error *nrd_oai_add_video(nrd_oai_request *r, const nrd_json *part, size_t index)
{
    const nrd_json *own = nrd_json_get(part, "video_url"), *list = nrd_json_get(part, "video");
    const nrd_json *url = nrd_json_is(own, NRD_JSON_OBJECT) ? nrd_json_get(own, "url") : own;
    const nrd_json *fps = nrd_json_get(part, "fps");
    size_t n = 0;

    NRD_TRY(begin_video(r, fps ? fps : nrd_json_get(own, "fps"), index));
    if (!own && nrd_json_is(list, NRD_JSON_ARRAY)) {
        NRD_TRY(add_list(r, list, index));
    } else {
        url = own ? url : list;
        const char *data = data_of(url, "data:video/jpeg", &n);
        if (!data) {
            return wrong_url(index, url);
        }
        NRD_TRY(add_frames(r, data, n));
    }
    return nrd_str_error(&r->videos);
}

nrd_error *nrd_oai_put_times(const nrd_oai_request *r, nrd_str *chat)
{
    return r->model->videos.apart && r->n_videos > 0 ? nrd_video_put_times(chat, r->video_times, (size_t)r->n_videos, r->model->videos.frames) : NULL;
}
