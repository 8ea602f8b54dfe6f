/* SPDX-License-Identifier: Apache-2.0
 * text/tokenizer.h - characters to token ids and back.
 *
 * Purpose   One object for every tokenizer kind: byte-level BPE, SentencePiece BPE with byte
 *           fallback, Unigram; read from tokenizer.json, tokenizer.model, vocab.json + merges.txt,
 *           or the metadata of a GGUF file.
 * Owner     Immutable after open: any number of threads may encode and decode at once. An
 *           nrd_detok belongs to one sequence and one thread at a time.
 * Units     Text is bytes, meant to be UTF-8. Invalid UTF-8 in input: each maximal invalid part is
 *           replaced by U+FFFD before encoding, as Unicode 15 section 3.9 (best practice) says.
 * Errors    INVALID_ARG for broken or unknown files, naming file and field; UNSUPPORTED for a
 *           pipeline element that is not implemented, naming it; NOT_FOUND when a folder holds no
 *           tokenizer.
 * Lifetime  open/close; ids and text returned through nrd_ids / nrd_str belong to the caller.
 * Sources   Sennrich et al. 2016 (BPE); Kudo 2018 (Unigram); Radford et al. 2019 (byte-level).
 */
#ifndef NRD_TEXT_TOKENIZER_H
#define NRD_TEXT_TOKENIZER_H

#include "base/error.h"
#include "base/str.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct nrd_tokenizer nrd_tokenizer;

typedef struct nrd_ids { /* zero-initialised = empty */
    int32_t *ids;
    size_t n, cap;
    bool no_memory; /* something is missing: nrd_ids_error */
} nrd_ids;
/* Without memory a list keeps what it has and takes nothing more: who uses it asks nrd_ids_error. */
NRD_API void nrd_ids_push(nrd_ids *v, int32_t id);
NRD_API void nrd_ids_append(nrd_ids *v, const int32_t *ids, size_t n);
NRD_API nrd_error *nrd_ids_error(const nrd_ids *v) NRD_MUST_USE; /* NO_MEMORY, or NULL */
NRD_API void nrd_ids_fini(nrd_ids *v);

/* `path`: a folder (Hugging Face layout), a tokenizer.json, a tokenizer.model, a .gguf file, or the
 * xgrammar_tokenizer_info.json that TensorRT-LLM's example writes for guided decoding. */
NRD_API nrd_error *nrd_tokenizer_open(nrd_tokenizer **out, const char *path) NRD_MUST_USE;
NRD_API void nrd_tokenizer_close(nrd_tokenizer *t);

enum {
    NRD_ENCODE_ADD_SPECIAL = 1u,   /* BOS/EOS as the post-processor says */
    NRD_ENCODE_PARSE_SPECIAL = 2u, /* text like "<|im_start|>" becomes the special token */
};
/* Appends the ids of text[0..n) to `out`. Hugging Face's encode() = both flags. */
NRD_API nrd_error *nrd_tokenizer_encode(const nrd_tokenizer *t, const char *text, size_t n, uint32_t flags,
                                nrd_ids *out) NRD_MUST_USE;

enum {
    NRD_DECODE_SKIP_SPECIAL = 1u, /* leave special tokens out */
};
/* One text (b NULL) or a pair with the special tokens around them, as nrd_tokenizer_encode with NRD_ENCODE_ADD_SPECIAL
 * puts them; `a` and `b` were encoded without. *out_second_from: where in `out` tokens of type 1 begin, as BERT has a type
 * for the second text; 0: nowhere. UNSUPPORTED: the tokenizer joins pairs in a way that is not known. */
NRD_API nrd_error *nrd_tokenizer_frame(const nrd_tokenizer *t, const nrd_ids *a, const nrd_ids *b, nrd_ids *out,
                                       size_t *out_second_from) NRD_MUST_USE;
/* How many tokens that adds. */
NRD_API size_t nrd_tokenizer_n_special(const nrd_tokenizer *t, bool pair);
/* How many tokens of two texts stay where both together may have `room`: the longer one is cut first (Hugging Face's
 * "longest_first"). */
NRD_API void nrd_tokenizer_cut_longest(size_t *n_a, size_t *n_b, size_t room);

/* Appends the text of ids[0..n). Unknown ids (negative, >= vocab) are left out. Bytes that are no
 * valid UTF-8 become U+FFFD, as in the reference. */
NRD_API void nrd_tokenizer_decode(const nrd_tokenizer *t, const int32_t *ids, size_t n, uint32_t flags,
                          nrd_str *out);

/* Streaming: the concatenation of all pieces equals nrd_tokenizer_decode of all ids; a piece never
 * holds half a character and no space is lost at the borders. */
typedef struct nrd_detok nrd_detok;
NRD_API nrd_detok *nrd_detok_new(const nrd_tokenizer *t, uint32_t flags); /* NULL: no memory */
NRD_API void nrd_detok_push(nrd_detok *d, int32_t id, nrd_str *out); /* appends what became certain */
NRD_API void nrd_detok_flush(nrd_detok *d, nrd_str *out);            /* end of sequence: the held-back rest */
NRD_API void nrd_detok_reset(nrd_detok *d);
NRD_API void nrd_detok_free(nrd_detok *d);

NRD_API int32_t nrd_tokenizer_vocab_size(const nrd_tokenizer *t); /* highest id + 1, added tokens included */
NRD_API int32_t nrd_tokenizer_bos_id(const nrd_tokenizer *t);     /* -1: none */
NRD_API int32_t nrd_tokenizer_eos_id(const nrd_tokenizer *t);
NRD_API int32_t nrd_tokenizer_pad_id(const nrd_tokenizer *t);     /* as configured; -1: none */
NRD_API int32_t nrd_tokenizer_unk_id(const nrd_tokenizer *t);
NRD_API bool nrd_tokenizer_is_special(const nrd_tokenizer *t, int32_t id);
/* Id of a token by its exact surface form ("<|im_end|>", "Ġthe"); -1: none. */
NRD_API int32_t nrd_tokenizer_token_id(const nrd_tokenizer *t, const char *token, size_t n);
/* Surface form (borrows); NULL for unknown ids. */
NRD_API const char *nrd_tokenizer_token(const nrd_tokenizer *t, int32_t id, size_t *out_n);
/* The exact bytes that an id stands for in running text (for stop strings and grammars); 0 for
 * special tokens. Borrows. */
NRD_API const char *nrd_tokenizer_token_bytes(const nrd_tokenizer *t, int32_t id, size_t *out_n);
NRD_API const char *nrd_tokenizer_kind(const nrd_tokenizer *t);   /* "byte-level BPE", "Unigram", … */
/* The chat template, or NULL (tokenizer_config.json, chat_template.jinja, GGUF metadata). */
NRD_API const char *nrd_tokenizer_chat_template(const nrd_tokenizer *t);
/* A text has <|image_1|>, <|image_2|> and so on as places of pictures (Phi-3-vision). */
NRD_API bool nrd_tokenizer_numbers_pictures(const nrd_tokenizer *t);
/* Its template named "tool_use" for conversations with tools, or NULL: the one above serves both. */
NRD_API const char *nrd_tokenizer_tool_template(const nrd_tokenizer *t);
/* End-of-generation ids beyond eos (generation_config.json, GGUF eot/eom); borrows. */
NRD_API const int32_t *nrd_tokenizer_stop_ids(const nrd_tokenizer *t, size_t *out_n);

/* What marks the parts of a text that is to be filled in the middle; -1: there is no such token. */
typedef struct nrd_fim_tokens {
    int32_t prefix, suffix, middle;
    bool suffix_first; /* the suffix, the prefix, and the answer: no middle */
    int32_t repo, file; /* a repository's name and each file's name follow these */
    int32_t ends[10];   /* end an answer besides the usual ids */
    size_t n_ends;
} nrd_fim_tokens;
/* By what the tokenizer's files say (tokenizer_config.json, GGUF metadata), else by the names that families
 * of models use. False: the model has none. Whether a model was trained with them is not known. */
NRD_API bool nrd_tokenizer_fim(const nrd_tokenizer *t, nrd_fim_tokens *out);

/* Writes the tokenizer as a folder holding tokenizer.json, tokenizer_config.json (and
 * generation_config.json) that this library and Hugging Face read with equal results. */
NRD_API nrd_error *nrd_tokenizer_save(const nrd_tokenizer *t, const char *dir) NRD_MUST_USE;

#endif
