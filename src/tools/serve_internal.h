/* SPDX-License-Identifier: Apache-2.0
 * tools/serve_internal.h - what the files of nereid serve share: its options, and what it tells when it is ready.
 *
 * Owner     The main thread.
 * Errors    INVALID_ARG, NOT_FOUND name the option.
 */
#ifndef NRD_TOOLS_SERVE_INTERNAL_H
#define NRD_TOOLS_SERVE_INTERNAL_H

#include "tools/several.h"

#include "base/error.h"
#include "base/options.h"
#include "base/str.h"
#include "executor/model_path.h"
#include "frontends/options_table.h"
#include "nereid/device.h"

#include <stdbool.h>
#include <stddef.h>

enum { NRD_SERVE_MAX_WORDS = 256 };

typedef struct nrd_serve_words {
    char *v[NRD_SERVE_MAX_WORDS + 1];
    int n;
} nrd_serve_words;

/* Takes ownership of word, also on error. */
nrd_error *nrd_serve_add_word(nrd_serve_words *w, char *word) NRD_MUST_USE;
void nrd_serve_words_fini(nrd_serve_words *w);

typedef struct nrd_serve_options {
    char *path; /* what was named, or where it lies in the cache; owned */
    const char *model; /* --model: PATH in another spelling */
    const char *tokenizer_dir, *served_names;
    const char *ssl_cert, *ssl_key, *ssl_ca;
    const char *sets[NRD_SERVE_MAX_WORDS];
    size_t n_sets;
    nrd_serve_words build, server, own_sets; /* own_sets: owns what `sets` has of them */
    nrd_engine_asked asked;
    nrd_str adapters; /* "NAME=FOLDER;…" */
    char *record;     /* whole path; NULL: none */
    char *template;   /* of chats, instead of the model's own; NULL: that. Of several models: of the one that is prepared */
    struct {
        char *model, *text; /* owned */
    } templates[NRD_SEVERAL_MAX]; /* --chat-template NAME=FILE, of several models */
    size_t n_templates;
    const char *speculative;
    const char *words[NRD_SEVERAL_MAX]; /* paths as given */
    size_t n_words;
    bool switches; /* models are loaded when they are asked for */
    bool prepare_only;
} nrd_serve_options;

/* serve_options.c: the command line. -1: go on, else the exit status. Also reads the server's options as the server will. */
int nrd_serve_read_options(nrd_serve_options *o, nrd_options *server, int argc, char **argv);

/* serve_peers.c: options of other servers that need nothing here or are refused with what to use. */
extern const nrd_opt nrd_serve_peer_rows[];
extern const size_t nrd_serve_n_peer_rows;

/* serve_summary.c: what is served, from which engine and where. engine, tokenizer NULL: a repository was given, and says itself what is in it. */
void nrd_serve_put_summary(nrd_str *out, const nrd_serve_options *o, const nrd_options *s, const char *engine,
                           const char *tokenizer, const nrd_device_info *info);
void nrd_serve_put_summary_of_several(nrd_str *out, const nrd_serve_options *o, const nrd_options *s, const nrd_several *models,
                                      const nrd_several *pulled, const nrd_device_info *info);

#endif
