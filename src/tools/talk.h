/* SPDX-License-Identifier: Apache-2.0
 * tools/talk.h - a conversation at the terminal: messages, commands, what is kept of it.
 *
 * Owner     One thread.
 * Errors    A wrong command, a file, or a message that is refused (INVALID_ARG, UNSUPPORTED) is told, and it goes on; others end it.
 */
#ifndef NRD_TOOLS_TALK_H
#define NRD_TOOLS_TALK_H

#include "base/error.h"
#include "base/str.h"

/* What a conversation needs of its model. Every call gets `user`. */
typedef struct nrd_talk {
    void *user;
    const char *name, *system;  /* system may be NULL */
    int max_tokens, max_prompt; /* tokens: of prompt and answer together, of the prompt */
    /* Prints the answer to `messages`, a JSON list, and appends its text to *out. *out_too_many: 0, or the tokens of a prompt that
     * has more than max_prompt; then nothing was done. */
    nrd_error *(*answer)(void *user, const nrd_str *messages, nrd_str *out, size_t *out_too_many);
    /* A message's content as JSON, with the pictures that wait for it; these can be taken back until the next one. */
    void (*put_content)(void *user, nrd_str *out, const char *text, size_t n, bool of_user);
    nrd_error *(*add_picture)(void *user, const char *path);
    void (*take_back_pictures)(void *user);
    bool (*has_pictures)(void *user);
    void (*forget_pictures)(void *user);
    nrd_error *(*set)(void *user, const char *name, const char *value); /* how answers are drawn */
    void (*put_settings)(void *user, nrd_str *out);                     /* a line each */
} nrd_talk;


nrd_error *nrd_talk_run(const nrd_talk *t) NRD_MUST_USE;

#endif
