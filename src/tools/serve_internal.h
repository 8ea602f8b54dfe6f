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
    nrd_serve_words line; /* the command line, with what --config brings; others borrow from it */
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

/* serve_file.c: appends the options of a file's text, --NAME=VALUE. INVALID_ARG names the line. Writes into text. */
nrd_error *nrd_serve_read_text(nrd_serve_words *out, char *text) NRD_MUST_USE;
/* Those of a file; read: nrd_serve_read_text, or what reads another form. */
nrd_error *nrd_serve_read_file(nrd_serve_words *out, const char *path, nrd_error *(*read)(nrd_serve_words *out, char *text)) NRD_MUST_USE;
/* Appends argv, with the words of the file that --config names before its own, of --extra_llm_api_options behind. */
nrd_error *nrd_serve_with_file(nrd_serve_words *out, int argc, char **argv) NRD_MUST_USE;

/* serve_peers.c: options of other servers that need nothing here or are refused with what to use. */
extern const nrd_opt nrd_serve_peer_rows[];
extern const size_t nrd_serve_n_peer_rows;

/* serve_steps.c: what one model and several share. */

bool nrd_serve_is_repository(const char *path);
/* The cache folder for what is made of `path` with these options. kind: the folder of the cache that it lies in. Owned by the caller. */
char *nrd_serve_cache_entry(const char *kind, const char *path, const nrd_serve_options *o);
/* The engine of o->path, built where there is none: the one that run and bench use too, unless options ask for another. *out
 * is owned by the caller. */
nrd_error *nrd_serve_find_engine(nrd_serve_options *o, char **out) NRD_MUST_USE;
/* The folder of a model's tokenizer: its own, the one that was named, or `made` in the cache. *out is owned by the caller. */
nrd_error *nrd_serve_find_tokenizer(const nrd_serve_options *o, const char *path, const char *made, char **out) NRD_MUST_USE;
/* The device that the model will use. A missing one is an error here, before an engine is built for it. */
nrd_error *nrd_serve_open_device(const nrd_serve_options *o, nrd_device **out) NRD_MUST_USE;
/* The words that a server's command line begins with; the caller ends with nrd_serve_run_server. */
nrd_error *nrd_serve_begin_words(nrd_serve_words *w, const char *program, const nrd_str *summary) NRD_MUST_USE;
/* Becomes the server, which serves `what`. Comes back with an error only. */
nrd_error *nrd_serve_run_server(const nrd_serve_options *o, nrd_serve_words *w, const char *program, const char *what) NRD_MUST_USE;

/* serve_several.c: several models, or those whose names are given. Comes back with an error, or after --prepare-only. */
nrd_error *nrd_serve_several(nrd_serve_options *o, const nrd_options *server) NRD_MUST_USE;

/* serve_summary.c: what is served, from which engine and where. engine, tokenizer NULL: a repository was given, and says itself what is in it. */
void nrd_serve_put_summary(nrd_str *out, const nrd_serve_options *o, const nrd_options *s, const char *engine,
                           const char *tokenizer, const nrd_device_info *info);
void nrd_serve_put_summary_of_several(nrd_str *out, const nrd_serve_options *o, const nrd_options *s, const nrd_several *models,
                                      const nrd_several *pulled, const nrd_device_info *info);

#endif
