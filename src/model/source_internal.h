/* SPDX-License-Identifier: Apache-2.0
 * model/source_internal.h - a source from inside, for the files that fill it: source.c opens it, with source_folder.c where it is a
 * folder; source_files.c (weight files and their tensors), source_modules.c (what stands behind the network), source_parts.c (a folder for
 * each part of a model). */
#ifndef NRD_MODEL_SOURCE_INTERNAL_H
#define NRD_MODEL_SOURCE_INTERNAL_H

#include "base/json.h"
#include "formats/fairseq.h"
#include "formats/ft_folder.h"
#include "formats/gguf.h"
#include "formats/nemo.h"
#include "formats/safetensors.h"
#include "formats/torch_bin.h"
#include "formats/whisper_pt.h"
#include "model/quant/quant.h"
#include "model/source.h"

typedef struct nrd_tensor_table {
    nrd_src_tensor *tensors; /* sorted by name */
    size_t n, cap;
} nrd_tensor_table;

struct nrd_source {
    nrd_source_kind kind;
    char *path;
    nrd_model_spec spec;
    const nrd_arch *arch;
    uint64_t seed;
    nrd_tensor_table *ranks;
    int32_t n_ranks;
    nrd_gguf *gguf;
    struct nrd_source_number *numbers; /* tensors of one number each, which a file has in its metadata; source_numbers.c */
    nrd_ft *ft;
    nrd_whisper_pt *whisper;
    nrd_fairseq *fairseq;
    nrd_nemo *nemo;
    nrd_safetensors **st;
    size_t n_st;
    nrd_torch_bin **bin;
    size_t n_bin;
    nrd_source *encoder; /* the same files as the model's encoder; NULL: it has none */
    nrd_source *mtp; /* likewise the layer that guesses; of a checkpoint opened by itself */
    int32_t first_layer;
    bool is_mtp_apart; /* such a layer, whose tensors have a prefix of their own */
    char *dense[NRD_SPEC_MAX_PROJECTIONS]; /* folders of the modules that are the projections */
    nrd_quant *quant; /* NULL: not quantized, or by a format that needs no reader */
    nrd_quant **rank_quants; /* [n_ranks] of another converter's checkpoint, quant being the first; else NULL */
};

enum { NRD_SOURCE_MAX_CONFIG_BYTES = 16 << 20 };

/* source_files.c */
/* Without tensors, of one rank. */
nrd_error *nrd_source_new(nrd_source **out, const char *path) NRD_MUST_USE;
/* git clones without git-lfs bring small texts where the weights should be: INVALID_ARG. */
nrd_error *nrd_source_refuse_pointer(const char *path) NRD_MUST_USE;
nrd_error *nrd_table_add(nrd_tensor_table *table, const nrd_src_tensor *tensor) NRD_MUST_USE;
/* model/source_numbers.c: what a GGUF file has of a layer's weights in its metadata, as tensors "blk.N.xielu.alpha_p" and so on. */
nrd_error *nrd_source_add_numbers(nrd_source *s) NRD_MUST_USE;
/* Sorts a table; INVALID_ARG: a name is there twice. */
nrd_error *nrd_table_finish(const nrd_source *s, nrd_tensor_table *t) NRD_MUST_USE;
/* Of a table that is sorted. Borrows; NULL: no such tensor. */
const nrd_src_tensor *nrd_table_find(const nrd_tensor_table *t, const char *name);
/* The tensors of a file into a table. The source owns the file. */
nrd_error *nrd_source_add_safetensors(nrd_source *s, nrd_tensor_table *table, const char *path) NRD_MUST_USE;
nrd_error *nrd_source_add_torch_bin(nrd_source *s, nrd_tensor_table *table, const char *path) NRD_MUST_USE;
/* All weights of a folder into the first table, which is not sorted yet. NOT_FOUND: it has none. */
nrd_error *nrd_source_add_weights(nrd_source *s, const char *dir) NRD_MUST_USE;
/* A JSON file of a folder; *out NULL: there is none. */
nrd_error *nrd_source_json(nrd_json_doc **out, const char *dir, const char *name) NRD_MUST_USE;

/* source_folder.c */
nrd_error *nrd_source_open_folder(nrd_source *s) NRD_MUST_USE;
nrd_error *nrd_source_open_whisper(nrd_source *s, const char *path) NRD_MUST_USE; /* OpenAI's file */
nrd_error *nrd_source_open_nemo(nrd_source *s) NRD_MUST_USE;
/* The other network of the folder or GGUF file: all but spec and family is shared. config: of a folder. */
nrd_error *nrd_source_add_encoder(nrd_source *s, const nrd_json *config) NRD_MUST_USE;
/* The layer that guesses, as a source of its own. */
nrd_error *nrd_source_add_mtp(nrd_source *s) NRD_MUST_USE;

/* model/source_modules.c: of a folder of sentence-transformers the pooling, products behind it (whose tensors nrd_source_add_dense
 * adds) and tokens whose rows are a classifier. */
nrd_error *nrd_source_read_classifier_tokens(nrd_source *s, const nrd_json *config) NRD_MUST_USE;
nrd_error *nrd_source_read_modules(nrd_source *s) NRD_MUST_USE;
nrd_error *nrd_source_add_dense(nrd_source *s) NRD_MUST_USE;

/* model/source_parts.c: all weights of VILA's folders, whose config.json is `config`; likewise. */
#define NRD_SOURCE_DECODER "llm"
nrd_error *nrd_source_add_parts(nrd_source *s, const nrd_json *config) NRD_MUST_USE;

#endif
