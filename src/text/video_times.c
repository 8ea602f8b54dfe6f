/* SPDX-License-Identifier: Apache-2.0 */
#include "text/video_times.h"

#include "base/number.h"

#include <string.h>

static const char place[] = "<|vision_start|><|video_pad|><|vision_end|>";

/* A time is the middle between a group's first and last frame; a frame that is missing in the last one is its last. */
static void put_groups(nrd_str *out, const nrd_video_time *v, int64_t in_group)
{
    for (int64_t i = 0; i < v->n_frames; i += in_group) {
        const int64_t last = i + in_group < v->n_frames ? i + in_group - 1 : v->n_frames - 1;
        char text[48];
        nrd_number_print(text, sizeof text, "<%.1f seconds>", ((double)i / v->fps + (double)last / v->fps) / 2);
        nrd_str_puts(out, text);
        nrd_str_puts(out, place);
    }
}

nrd_error *nrd_video_put_times(nrd_str *chat, const nrd_video_time *times, size_t n, int64_t in_group)
{
    const char *from = nrd_str_cstr(chat), *const end = from + chat->len;
    nrd_str out = {0};

    for (size_t i = 0; i < n; i++) {
        const char *at = memmem(from, (size_t)(end - from), place, sizeof place - 1);
        if (!at) {
            break;
        }
        nrd_str_append(&out, from, (size_t)(at - from));
        put_groups(&out, &times[i], in_group);
        from = at + sizeof place - 1;
    }
    nrd_str_append(&out, from, (size_t)(end - from));
    nrd_error *err = nrd_str_error(&out);
    if (err) {
        nrd_str_fini(&out);
        return err;
    }
    nrd_str_fini(chat);
    *chat = out;
    return NULL;
}
