/* SPDX-License-Identifier: Apache-2.0
 * tools/pictures.h - pictures that a user names at the terminal, for a conversation's prompts.
 *
 * Owner     One thread.
 * Errors    The file's, by its name; INVALID_ARG: too many.
 */
#ifndef NRD_TOOLS_PICTURES_H
#define NRD_TOOLS_PICTURES_H

#include "base/str.h"
#include "nereid/executor.h"
#include "text/tokenizer.h"

typedef struct nrd_tool_pictures {
    bool is_on;              /* the model sees, and its template or its tokenizer knows where pictures stand */
    bool in_words;           /* messages are texts with <|image_1|> and so on; else lists of parts */
    nrd_exec_image *images;  /* [n] of the conversation; owns, with their bytes */
    int32_t n, n_told;       /* so many of them are in messages */
    int32_t n_before;        /* were before the user's last one */
    nrd_exec_video video;    /* before the first message; owns. No frames: none */
    bool video_is_told, video_is_new; /* … in a message; in the user's last one */
    int32_t group;           /* frames that the model sees at once, with a place in the prompt for each such group; 0: one for a video */
} nrd_tool_pictures;

/* is_on and in_words, from the engine's folder, the tokenizer and the template in use. */
void nrd_tool_pictures_init(nrd_tool_pictures *p, const char *engine_dir, const nrd_tokenizer *t, const char *chat_template);
void nrd_tool_pictures_clear(nrd_tool_pictures *p);
void nrd_tool_pictures_take_back(nrd_tool_pictures *p); /* those of the user's last message, and what was added since */
nrd_error *nrd_tool_pictures_add(nrd_tool_pictures *p, const char *path) NRD_MUST_USE;
/* The pictures of a folder, by their names, as frames of a video, so many a second. UNSUPPORTED: the model takes none. */
nrd_error *nrd_tool_pictures_add_video(nrd_tool_pictures *p, const char *engine_dir, const char *folder, double fps) NRD_MUST_USE;
/* The chat that a template made: what a video needs besides its place. */
nrd_error *nrd_tool_pictures_put_times(const nrd_tool_pictures *p, nrd_str *chat) NRD_MUST_USE;
/* A message's content as JSON: the pictures that were added since the last one, and the text. */
void nrd_tool_pictures_put(nrd_tool_pictures *p, nrd_str *out, const char *text, size_t n, bool of_user);

#endif
