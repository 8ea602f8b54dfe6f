/* SPDX-License-Identifier: Apache-2.0
 * tools/repo.h - writing the five-model repository. Owner: one thread. Errors: the path concerned. */
#ifndef NRD_TOOLS_REPO_H
#define NRD_TOOLS_REPO_H

#include "base/error.h"

#include <stddef.h>

typedef struct nrd_repo_options {
    const char *engine_dir, *tokenizer_dir;
    const char *templates;    /* NULL: the built-in ones */
    const char *served_names; /* "a,b": what clients of /v1 call the model */
    const char *adapters;     /* "NAME=FOLDER;…"; NULL or "": none */
    const char *record;       /* file of the scheduler's record; NULL: none */
    const char *speculative;  /* speculative_config of nrd_exec_config; NULL: none */
    /* With it the repository has models of these names: NAME (the ensemble) and NAME.tensorrt_llm and so on, so
     * that several stand beside one another; tensorrt_llm_bls is left out. NULL: the usual names. */
    const char *name;
    const char *const *lists; /* "name:value,…" over the defaults, in order */
    size_t n_lists;
} nrd_repo_options;

nrd_error *nrd_repo_write(const char *repo, const nrd_repo_options *o) NRD_MUST_USE;
/* The folder of the tokenizer of the model at `path`: `given` (NULL: the model itself) where it is a folder that
 * holds one; the tokenizer of a file is written into `dir`, and so is one with another chat template: its text, or
 * NULL. *out is owned by the caller. */
nrd_error *nrd_repo_tokenizer(const char *path, const char *given, const char *template, const char *dir,
                              char **out) NRD_MUST_USE;
/* Writes into `to` the models of repository `from` under such names: their configurations, and links to all else.
 * *out_load: the one that stands for all (the ensemble, else the only model); *out_parts: the others, joined with
 * ','; both the caller's. INVALID_ARG: there are several of which none is an ensemble. */
nrd_error *nrd_repo_rename(const char *to, const char *from, const char *name, char **out_load, char **out_parts) NRD_MUST_USE;
/* A name as the folder of a model: what stands between slashes stands between "--". The caller's. */
char *nrd_repo_folder_name(const char *name);
/* What a model that lies at `path` is called: the name of its file without .gguf, or of its folder; of
 * a folder in Hugging Face's cache the repository's, "org/name". Owned by the caller. */
char *nrd_repo_model_name(const char *path);

#endif
