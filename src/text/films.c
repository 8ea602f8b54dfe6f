/* SPDX-License-Identifier: Apache-2.0 */
#include "text/films.h"

#include "base/number.h"

#include <string.h>

static const char place[] = "<|vision_start|><|video_pad|><|vision_end|>";

/* A time is the middle between a group's first and last frame; a frame that is missing in the last one is its last. */
static void put_groups(nrd_str *out, const nrd_film *film, int64_t in_group)
{
    for (int64_t i = 0; i < film->n_frames; i += in_group) {
        const int64_t last = i + in_group < film->n_frames ? i + in_group - 1 : film->n_frames - 1;
        char text[48];
        nrd_number_print(text, sizeof text, "<%.1f seconds>", ((double)i / film->fps + (double)last / film->fps) / 2);
        nrd_str_puts(out, text);
        nrd_str_puts(out, place);
    }
}

nrd_error *nrd_films_put_times(nrd_str *chat, const nrd_film *films, size_t n, int64_t in_group)
{
    const char *from = nrd_str_cstr(chat), *const end = from + chat->len;
    nrd_str out = {0};

    for (size_t i = 0; i < n; i++) {
        const char *at = memmem(from, (size_t)(end - from), place, sizeof place - 1);
        if (!at) {
            break;
        }
        nrd_str_append(&out, from, (size_t)(at - from));
        put_groups(&out, &films[i], in_group);
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
