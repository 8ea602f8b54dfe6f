/* SPDX-License-Identifier: Apache-2.0
 * text/internal.h - what the files of this room share about a tokenizer.
 *
 * Purpose   The compiled pipeline: added tokens -> normalizer -> pre-tokenizer -> model ->
 *           post-processor, and the decoder on the way back. Loaders (load_*.c) fill it through the
 *           builder calls below, save.c writes it out again.
 * Owner     Built by one thread, immutable after nrd_tok_finish; scratch memory is per thread.
 * Sources   The element names are those of Hugging Face tokenizer.json files.
 */
#ifndef NRD_TEXT_INTERNAL_H
#define NRD_TEXT_INTERNAL_H

#include "base/json.h"
#include "base/mem.h"
#include "formats/gguf.h"
#include "text/generation.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

enum {
    TOK_MAX_ID = 1 << 22,            /* ids from outside must stay below: 16 times the largest vocabularies; lists go
                                      * up to the highest id, also where a short file names one alone */
    TOK_MAX_TOKEN_BYTES = 1 << 16,
    TOK_MAX_TEXT_BYTES = 1 << 27,
    TOK_MAX_STEPS = 32,
    TOK_MAX_FILE_BYTES = 512 << 20,
    TOK_N_FIM = 3,
};

#define TOK_SPACE "\xe2\x96\x81" /* U+2581, SentencePiece's visible space */

/* ---- strings to ids ---- */

typedef struct nrd_tok_strmap_slot {
    uint32_t tag; /* upper hash bits, 0 only in empty slots */
    int32_t id;
} nrd_tok_strmap_slot;

typedef struct nrd_tok_strmap { /* keys live outside; `keys` finds them by id */
    nrd_tok_strmap_slot *slots;
    size_t mask, n;
} nrd_tok_strmap;

typedef struct nrd_tok_text {
    const char *s;
    uint32_t n;
} nrd_tok_text;

nrd_error *nrd_strmap_init(nrd_tok_strmap *m, size_t n_expected) NRD_MUST_USE;
void nrd_strmap_put(nrd_tok_strmap *m, const nrd_tok_text *keys,
                    int32_t id); /* keeps the first of equal keys */
int32_t nrd_strmap_get(const nrd_tok_strmap *m, const nrd_tok_text *keys, const char *s,
                       size_t n); /* -1: none */
void nrd_strmap_fini(nrd_tok_strmap *m);

/* ---- byte trie with hashed edges ---- */

typedef struct nrd_tok_trie_edge {
    uint32_t key; /* node << 8 | byte, plus 1; 0 = empty */
    uint32_t node;
} nrd_tok_trie_edge;

typedef struct nrd_tok_trie {
    nrd_tok_trie_edge *edges;
    size_t mask, n_edges;
    int32_t *value; /* per node, -1: no word ends here */
    uint32_t n_nodes, cap_nodes;
    uint32_t root[256]; /* first step without hashing; 0 = none */
} nrd_tok_trie;

nrd_error *nrd_trie_init(nrd_tok_trie *t) NRD_MUST_USE;
nrd_error *nrd_trie_add(nrd_tok_trie *t, const char *s, size_t n, int32_t value) NRD_MUST_USE;
uint32_t nrd_trie_step(const nrd_tok_trie *t, uint32_t node,
                       uint8_t byte); /* node 0 is the root; 0: no edge */
/* Longest word at s; its length or 0. */
size_t nrd_trie_longest(const nrd_tok_trie *t, const char *s, size_t n, int32_t *out_value);
void nrd_trie_fini(nrd_tok_trie *t);

/* ---- patterns ---- */

typedef enum {
    PATTERN_STRING,
    PATTERN_REGEX, /* PCRE2 */
    PATTERN_GPT2,
    PATTERN_LLAMA3, /* digits in groups of up to `max_digits` */
    PATTERN_DIGITS, /* \p{N}{1,max_digits} */
    PATTERN_DEEPSEEK,
    PATTERN_CJK, /* [一-龥぀-ゟ゠-ヿ]+ */
} nrd_tok_pattern_kind;

typedef struct nrd_tok_pattern {
    nrd_tok_pattern_kind kind;
    int max_digits; /* 0: any number */
    char *text;     /* as in the file; owned */
    size_t n;
    void *re;       /* PCRE2 code */
} nrd_tok_pattern;

nrd_error *nrd_pattern_init(nrd_tok_pattern *p, bool regex, const char *text,
                            size_t n) NRD_MUST_USE;
void nrd_pattern_fini(nrd_tok_pattern *p);
/* First match in s[from..n). Empty matches are skipped. */
bool nrd_pattern_find(const nrd_tok_pattern *p, const char *s, size_t n, size_t from,
                      size_t *out_start, size_t *out_end);
size_t nrd_pattern_gpt2(const char *s, size_t n); /* bytes of the word at s */
extern const char nrd_pattern_text_gpt2[], nrd_pattern_text_llama3[], nrd_pattern_text_qwen2[],
    nrd_pattern_text_deepseek[], nrd_pattern_text_cjk[], nrd_pattern_text_digits3[], nrd_pattern_text_kimi[];

/* ---- pipeline ---- */

typedef enum {
    NORM_FORM, /* NFC, NFD, NFKC, NFKD: `form` */
    NORM_LOWERCASE,
    NORM_REPLACE,
    NORM_PREPEND,
    NORM_STRIP,
    NORM_STRIP_ACCENTS,
    NORM_PRECOMPILED,
    NORM_SENTENCEPIECE, /* the whole normalizer of a tokenizer.model */
    NORM_BERT_CLEAN,       /* BertNormalizer: its parts are steps of their own; */
    NORM_STRIP_NONSPACING, /* this one is behind NFD */
} nrd_tok_norm_kind;

/* SentencePiece's precompiled_charsmap: a double array and its strings. */
typedef struct nrd_tok_charsmap {
    char *blob;           /* owned; as in the file */
    size_t blob_n;
    uint32_t *units;
    size_t n_units;
    const char *strings;  /* inside blob, the last byte is NUL */
    size_t strings_n;
} nrd_tok_charsmap;

typedef struct nrd_tok_norm_step {
    nrd_tok_norm_kind kind;
    nrd_uni_form form;
    nrd_tok_pattern pat;
    char *content; /* owned */
    size_t content_n;
    bool left, right;                                      /* Strip */
    bool clean, split_ideographs;                          /* BertNormalizer */
    nrd_tok_charsmap map;                                  /* Precompiled, SentencePiece */
    bool add_dummy_prefix, remove_extra_spaces, escape_spaces; /* SentencePiece */
} nrd_tok_norm_step;

nrd_error *nrd_charsmap_init(nrd_tok_charsmap *m, const void *blob, size_t n) NRD_MUST_USE;

typedef enum {
    SPLIT_REMOVED,
    SPLIT_ISOLATED,
    SPLIT_PREVIOUS,
    SPLIT_NEXT,
    SPLIT_CONTIGUOUS
} nrd_tok_split_kind;

typedef enum {
    PRE_SPLIT,
    PRE_BYTE_LEVEL,
    PRE_METASPACE,
    PRE_DIGITS,
    PRE_WHITESPACE,
    PRE_WHITESPACE_SPLIT,
    PRE_PUNCTUATION,
} nrd_tok_pre_kind;

typedef enum { PREPEND_ALWAYS, PREPEND_FIRST, PREPEND_NEVER } nrd_tok_prepend_kind;

typedef struct nrd_tok_pre_step {
    nrd_tok_pre_kind kind;
    nrd_tok_pattern pat;
    nrd_tok_split_kind behavior;
    bool invert, add_prefix_space, use_regex, individual, split;
    nrd_tok_prepend_kind prepend;
    char replacement[5]; /* Metaspace; NUL-terminated character */
} nrd_tok_pre_step;

typedef enum { MODEL_BPE, MODEL_UNIGRAM, MODEL_WORDPIECE } nrd_tok_model_kind;

typedef enum {
    DEC_BYTE_LEVEL,
    DEC_BYTE_FALLBACK,
    DEC_FUSE,
    DEC_REPLACE,
    DEC_STRIP,
    DEC_METASPACE,
    DEC_WORDPIECE,
    DEC_WORD_END, /* BPEDecoder: `from` behind a token is the end of a word, of which all but the last have a space behind them */
} nrd_tok_dec_kind;

typedef struct nrd_tok_dec_step {
    nrd_tok_dec_kind kind;
    char *from, *to; /* Replace; `from` alone for Strip, Metaspace, WordPiece. Owned */
    size_t from_n, to_n;
    size_t start, stop; /* Strip */
    nrd_tok_prepend_kind prepend;
    bool cleanup; /* WordPiece */
} nrd_tok_dec_step;

enum { /* flags of a token */
    TOK_PRESENT = 1,
    TOK_SPECIAL = 2,
    TOK_ADDED = 4,    /* found in text before the model runs */
    TOK_IN_MODEL = 8, /* in the model's own vocabulary */
    TOK_BYTE = 16,    /* "<0x0A>": stands for one byte */
    TOK_CONTROL = 32, /* SentencePiece control, unknown, unused: no text reaches it */
    TOK_USER = 64,    /* SentencePiece user-defined symbol */
    TOK_OUTPUT = 128, /* text is made of it, but no text becomes it (pieces of Marian's other language) */
};

typedef struct nrd_tok_added_token {
    int32_t id;
    bool single_word, lstrip, rstrip, normalized, special;
    bool is_alias; /* it is found by other words than its own, which no file lists */
} nrd_tok_added_token;

typedef struct nrd_tok_merge {
    int32_t left, right, id;
    uint32_t rank;
} nrd_tok_merge;

typedef struct nrd_tok_pair_slot {
    uint64_t key; /* left << 32 | right; UINT64_MAX = empty */
    uint32_t rank;
    int32_t id;
} nrd_tok_pair_slot;

/* What a model's files say about sampling; see sampling.h. */
enum { TOK_TEMPERATURE, TOK_TOP_P, TOK_MIN_P, TOK_REPETITION, TOK_TOP_K, TOK_N_WISHES };

typedef struct nrd_tok_wish_value {
    bool given;
    double value;
} nrd_tok_wish_value;

/* What a model's files say about searching; in force with an encoder (generation.c). */
typedef struct nrd_tok_generation {
    bool given; /* by a file */
    size_t n_given; /* tokens that it suppresses, those too for which says has no room */
    nrd_generation says;
} nrd_tok_generation;

/* How models that translate are told languages (translate.c). */
typedef enum {
    LANGUAGES_NONE,
    LANGUAGES_IN_TEXT, /* the text begins with the target's token ">>fra<<" (Marian) */
    LANGUAGES_FRONT,   /* the source's token before the text, the target's behind the decoder's first (M2M100, NLLB, mBART-50) */
    LANGUAGES_END,     /* the source's token behind the text, the target's is the decoder's first (mBART) */
} nrd_tok_languages;

struct nrd_tokenizer {
    uint32_t serial; /* never 0; tells cache entries of different tokenizers apart */
    nrd_arena arena;
    nrd_tok_model_kind model;

    /* vocabulary, indexed by id */
    nrd_tok_text *tokens; /* surface forms */
    nrd_tok_text *bytes;  /* what the id stands for in text */
    uint8_t *flags;
    double *scores;   /* Unigram and SentencePiece BPE, else NULL */
    int32_t n_vocab, cap_vocab;
    /* Where pieces and vocabulary are two files: ids from here on are pieces that the vocabulary has not, and what the model
     * reads instead is unk_id. 0: there are none. */
    int32_t n_known;
    nrd_tok_strmap by_token; /* model vocabulary */
    nrd_tok_strmap by_added;
    nrd_tok_strmap by_bytes; /* byte-level: raw bytes -> id */

    nrd_tok_added_token *added;
    size_t n_added;
    nrd_tok_trie added_raw, added_norm; /* values: indices into added */
    bool has_added_raw, has_added_norm;

    nrd_tok_norm_step norm[TOK_MAX_STEPS];
    size_t n_norm;
    nrd_tok_pre_step pre[TOK_MAX_STEPS];
    size_t n_pre;

    /* BPE */
    bool byte_level, byte_fallback, fuse_unk, ignore_merges, scores_are_float;
    char word_end[9]; /* what stands behind a word's last character before anything is merged: "</w>"; empty: nothing does */
    nrd_tok_merge *merges; /* by rank */
    size_t n_merges, cap_merges;
    nrd_tok_pair_slot *pairs;
    size_t pair_mask;
    int32_t byte_ids[256];  /* byte-level symbols, or <0xXX> tokens */
    bool has_all_bytes;
    int32_t *char_ids;      /* [0x10000], -1: none; char-level models */
    bool can_split;         /* chunks may be cut before U+2581 except after a char of no_split */
    uint32_t no_split[32];
    size_t n_no_split;

    /* Unigram, WordPiece */
    nrd_tok_trie pieces;
    double unk_score, max_score;
    nrd_tok_trie inner_pieces; /* WordPiece: tokens that go on with a word, without their mark */
    char word_mark[9];         /* "##" */
    size_t max_word_chars;

    /* post-processor */
    int32_t *prefix, *suffix;
    size_t n_prefix, n_suffix;
    bool has_pair;     /* else a pair is two texts behind each other, each with prefix and suffix */
    bool pair_is_strange; /* the file's way of joining two texts is refused when it is asked for */
    bool pair_has_types;  /* tokens from somewhere between the texts on are of type 1 */
    int32_t *pair[3];  /* before the first text, between both, behind the second */
    size_t n_pair[3], n_pair_first; /* with types: so many of pair[1] are of type 0 */

    nrd_tok_dec_step dec[TOK_MAX_STEPS];
    size_t n_dec;
    bool has_decoder;        /* false: tokens are joined with spaces */
    bool decode_per_char;    /* byte runs become text character by character (SentencePiece) */
    bool decode_sentencepiece;

    int32_t bos_id, eos_id, pad_id, unk_id;
    nrd_tok_languages languages;
    int32_t start_id; /* what a decoder's text begins with (decoder_start_token_id); -1: not said */
    bool has_encoder; /* config.json: is_encoder_decoder */
    bool numbers_pictures;
    int32_t picture_start, picture_pad; /* what is between <img> and </img> of a text is the second one; start -1 or 0: no such texts */
    bool wants_image; /* of the folder of a decoder that sees, whose tokenizer need not have the word of a picture (VILA) */
    char *chat_template, *tool_template;
    nrd_ids stop_ids;
    int32_t fim[TOK_N_FIM]; /* that the files name, in the order of nrd_tok_fim_keys; -1: none */
    nrd_tok_wish_value wishes[TOK_N_WISHES];
    nrd_tok_generation generation;
};

/* ---- sampling (sampling.c) ---- */

void nrd_tok_take_sampling_json(nrd_tokenizer *t, const nrd_json *generation_config);
void nrd_tok_take_sampling_gguf(nrd_tokenizer *t, const nrd_gguf *g);
/* Members of an object that was begun in `out` with nothing before it. */
void nrd_tok_put_sampling(const nrd_tokenizer *t, nrd_str *out);

/* ---- searching (generation.c) ---- */

/* From generation_config.json, or config.json where there is none (is_own: it is the former). Both, in this order. */
void nrd_tok_take_generation(nrd_tok_generation *out, const nrd_json *config, bool is_own);
/* Of models with an encoder. UNSUPPORTED: more tokens are suppressed than there is room for. */
nrd_error *nrd_tok_check_generation(const nrd_tok_generation *g) NRD_MUST_USE;

/* ---- translation (translate.c) ---- */

/* From tokenizer_config.json, once the vocabulary is there: whether languages are named, and the source where none is. */
nrd_error *nrd_tok_take_languages(nrd_tokenizer *t, const nrd_json *config) NRD_MUST_USE;

/* ---- filling in the middle (fim.c) ---- */

/* Members of tokenizer_config.json: prefix, suffix, middle. */
extern const char *const nrd_tok_fim_keys[TOK_N_FIM];
void nrd_tok_take_fim_gguf(nrd_tokenizer *t, const nrd_gguf *g);

/* ---- builder ---- */

nrd_tokenizer *nrd_tok_new(void); /* NULL: no memory */
/* Replaces *out by an owned copy of n bytes, which may hold NULs, and a NUL behind them. out_n: may be NULL. */
nrd_error *nrd_tok_text_copy(char **out, size_t *out_n, const char *s, size_t n) NRD_MUST_USE;
/* Declares a token; an id may be given again (added tokens over model tokens). */
nrd_error *nrd_tok_set(nrd_tokenizer *t, int64_t id, const char *s, size_t n,
                       uint8_t flags) NRD_MUST_USE;
nrd_error *nrd_tok_set_score(nrd_tokenizer *t, int32_t id, double score) NRD_MUST_USE;
nrd_error *nrd_tok_add_added(nrd_tokenizer *t, const nrd_tok_added_token *a) NRD_MUST_USE;
/* by_token must be complete: call nrd_tok_index_vocab first. */
nrd_error *nrd_tok_index_vocab(nrd_tokenizer *t) NRD_MUST_USE;
nrd_error *nrd_tok_add_merge(nrd_tokenizer *t, const char *l, size_t ln, const char *r,
                             size_t rn) NRD_MUST_USE;
nrd_error *nrd_tok_merges_from_scores(nrd_tokenizer *t) NRD_MUST_USE;
nrd_error *nrd_tok_new_norm(nrd_tokenizer *t, nrd_tok_norm_kind kind,
                            nrd_tok_norm_step **out) NRD_MUST_USE;
nrd_error *nrd_tok_new_pre(nrd_tokenizer *t, nrd_tok_pre_kind kind,
                           nrd_tok_pre_step **out) NRD_MUST_USE;
nrd_error *nrd_tok_new_dec(nrd_tokenizer *t, nrd_tok_dec_kind kind,
                           nrd_tok_dec_step **out) NRD_MUST_USE;
nrd_error *nrd_tok_add_replace(nrd_tokenizer *t, bool regex, const char *from,
                               const char *to) NRD_MUST_USE;
nrd_error *nrd_tok_add_split(nrd_tokenizer *t, bool regex, const char *text, size_t n,
                             nrd_tok_split_kind behavior, bool invert) NRD_MUST_USE;
nrd_error *nrd_tok_add_byte_level(nrd_tokenizer *t, bool add_prefix_space,
                                  bool use_regex) NRD_MUST_USE;
nrd_error *nrd_tok_set_affix(nrd_tokenizer *t, bool suffix, const int32_t *ids,
                             size_t n) NRD_MUST_USE;
/* Around two texts: before the first, between them, behind the second; n_first of those between are of type 0, and what
 * follows of type 1. */
#define TOK_NO_TYPES SIZE_MAX /* for n_first: all tokens are of type 0 */
nrd_error *nrd_tok_set_pair(nrd_tokenizer *t, const nrd_ids parts[3], size_t n_first) NRD_MUST_USE;
/* "pair" of a TemplateProcessing, and its "special_tokens". */
nrd_error *nrd_tok_load_pair(nrd_tokenizer *t, const nrd_json *list, const nrd_json *specials) NRD_MUST_USE;
void nrd_tok_add_stop(nrd_tokenizer *t, int64_t id); /* ignores doubles, eos itself, strangers */
/* Checks the whole and builds the tables. */
nrd_error *nrd_tok_finish(nrd_tokenizer *t) NRD_MUST_USE;
/* A part of it (decoders.c): brings the decoders into an order that detok.c runs; UNSUPPORTED where there is none. */
nrd_error *nrd_tok_finish_decoders(nrd_tokenizer *t) NRD_MUST_USE;

/* Byte-level alphabet: byte -> code point, and back (-1: not in the alphabet). */
uint32_t nrd_tok_byte_char(uint8_t byte);
int nrd_tok_char_byte(uint32_t cp);

/* ---- loaders ---- */

/* The root of a tokenizer.json. */
nrd_error *nrd_tok_load_json(nrd_tokenizer *t, const nrd_json *root) NRD_MUST_USE;
/* Its text, or that of a file which says the same to guided decoding (load_json_file.c). */
nrd_error *nrd_tok_load_json_text(nrd_tokenizer *t, const char *text, size_t n) NRD_MUST_USE;
nrd_error *nrd_tok_load_spm_bytes(nrd_tokenizer *t, const void *data, size_t n) NRD_MUST_USE;
/* Which ids the pieces of a SentencePiece file have: their places in it, those of the vocabulary that is there by now (TOK_OUTPUT;
 * pieces that it has not get ids from n_known on), or fairseq's: <s>, <pad>, </s>, <unk>, then places from 3 on, each one higher. */
typedef enum { PIECES_IN_PLACE, PIECES_OF_VOCABULARY, PIECES_OF_FAIRSEQ } nrd_tok_piece_ids;
/* Pieces, normalizer and decoder. Special tokens, affixes and nrd_tok_finish are the caller's, but for PIECES_IN_PLACE. */
nrd_error *nrd_tok_load_spm(nrd_tokenizer *t, const void *data, size_t n, nrd_tok_piece_ids ids) NRD_MUST_USE;
/* A folder of source.spm with vocab.json (Marian), or of sentencepiece.bpe.model with vocab.json (M2M100) or without (mBART,
 * XLM-RoBERTa). `spm`: that file's name. */
nrd_error *nrd_tok_load_pieces(nrd_tokenizer *t, const char *dir, const char *spm) NRD_MUST_USE;
/* dir/name, whose root must be an object; *out stays NULL where there is no such file. */
nrd_error *nrd_tok_read_json(const char *dir, const char *name, nrd_json_doc **out) NRD_MUST_USE;
/* Tokens that tokenizer_config.json, added_tokens.json and special_tokens_map.json number, or name and the vocabulary has. */
nrd_error *nrd_tok_load_added_tokens(nrd_tokenizer *t, const char *dir, const nrd_json *config) NRD_MUST_USE;
/* A token given as "text" or {"content": "text"}; else NULL. */
const nrd_json *nrd_tok_text_of(const nrd_json *node);
nrd_error *nrd_tok_load_gguf(nrd_tokenizer *t, const char *path) NRD_MUST_USE;
/* What its tokenizer.ggml.pre names; UNSUPPORTED where that is unknown. */
nrd_error *nrd_tok_load_gguf_pre(nrd_tokenizer *t, const struct nrd_gguf *file) NRD_MUST_USE;
/* Of a file whose tokenizer.ggml.model is "bert"; all but nrd_tok_finish. */
nrd_error *nrd_tok_load_gguf_bert(nrd_tokenizer *t, const struct nrd_gguf *file) NRD_MUST_USE;
/* The steps of BertNormalizer. UNSUPPORTED without utf8proc. */
nrd_error *nrd_tok_add_bert_normalizer(nrd_tokenizer *t, bool clean, bool split_ideographs, bool strip_accents, bool lower) NRD_MUST_USE;
nrd_error *nrd_tok_load_vocab_merges(nrd_tokenizer *t, const char *dir) NRD_MUST_USE;
/* GPT-2's: the root of vocab.json and the text of merges.txt. */
nrd_error *nrd_tok_load_gpt2(nrd_tokenizer *t, const nrd_json *words, const char *merges, size_t n) NRD_MUST_USE;
/* What a .nemo archive holds of its tokenizer. UNSUPPORTED: nothing, or another library's. */
nrd_error *nrd_tok_load_nemo(nrd_tokenizer *t, const char *path) NRD_MUST_USE;
/* Tokens, merges and decoder of a tiktoken file; what cuts words and the special tokens are the caller's. */
nrd_error *nrd_tok_add_tiktoken(nrd_tokenizer *t, const char *text, size_t n) NRD_MUST_USE;
bool nrd_tok_is_tiktoken(const char *text, size_t n); /* by its first line */
/* The text of a folder's tiktoken file: Qwen 1's, Kimi's, GLM-4's. UNSUPPORTED names another class. */
nrd_error *nrd_tok_load_tiktoken(nrd_tokenizer *t, const char *dir, const char *text, size_t n) NRD_MUST_USE;
/* ByT5, whose folder has no vocabulary: *out_is says whether `dir` is one. */
nrd_error *nrd_tok_load_byt5(nrd_tokenizer *t, const char *dir, bool *out_is) NRD_MUST_USE;
/* fairseq's translation models, whose folder has dict.*.txt and bpecodes beside the model: *out_is says whether `dir` is one. */
nrd_error *nrd_tok_load_fairseq(nrd_tokenizer *t, const char *dir, bool *out_is) NRD_MUST_USE;
/* A config.json of a model with an encoder and a decoder, which may be behind a vision tower (BLIP-2). */
bool nrd_tok_says_encoder(const nrd_json *config);
/* tokenizer_config.json, special_tokens_map.json, generation_config.json, chat_template.jinja. */
nrd_error *nrd_tok_load_side_files(nrd_tokenizer *t, const char *dir) NRD_MUST_USE;

/* ---- encoding ---- */

typedef struct nrd_tok_piece {
    uint32_t start, end;
} nrd_tok_piece;

typedef struct nrd_tok_pieces {
    nrd_tok_piece *v;
    size_t n, cap;
    bool no_memory; /* one was not kept */
} nrd_tok_pieces;

typedef struct nrd_tok_cache_entry nrd_tok_cache_entry;

typedef struct nrd_tok_scratch { /* one a thread, reused by every call */
    nrd_str clean, norm[2], pre[2];
    nrd_tok_pieces cut[2];
    /* long words */
    int32_t *sym, *prev, *next, *new_id;
    uint32_t *rank;
    uint64_t *heap;
    size_t cap_sym, cap_heap;
    /* Unigram */
    double *best;
    int32_t *best_id;
    uint32_t *best_from;
    size_t cap_best;
    nrd_tok_cache_entry *cache;
    void *match;    /* PCRE2's match data; pattern.c, whose function frees it */
    void (*match_free)(void *match);
    bool no_memory; /* of this call: what comes out of it is wrong */
} nrd_tok_scratch;

nrd_tok_scratch *nrd_tok_scratch_get(void); /* of the calling thread; NULL: no memory */
/* n elements at *p; false: no memory, and *p is as it was. */
bool nrd_tok_grow(void **p, size_t n, size_t size);
/* Behind a call: what one long text needed does not stay with its thread. */
void nrd_tok_scratch_trim(nrd_tok_scratch *sc);
bool nrd_tok_cache_get(nrd_tok_scratch *sc, const nrd_tokenizer *t, const char *s, size_t n,
                       uint64_t *out_hash, nrd_ids *out);
void nrd_tok_cache_put(nrd_tok_scratch *sc, const nrd_tokenizer *t, uint64_t hash, const char *s,
                       size_t n, const int32_t *ids, size_t n_ids);

/* Runs the normalizer; the result lies in *out (borrows from s or the scratch). */
void nrd_tok_normalize(const nrd_tokenizer *t, nrd_tok_scratch *sc, const char *s, size_t n,
                       const char **out, size_t *out_n);
/* Cuts a section into words; *text may move to the scratch. at_start: the section begins the text. */
void nrd_tok_pretokenize(const nrd_tokenizer *t, nrd_tok_scratch *sc, const char **text, size_t *n,
                         bool at_start, nrd_tok_pieces **out);
void nrd_tok_bpe_encode(const nrd_tokenizer *t, nrd_tok_scratch *sc, const char *s, size_t n,
                        nrd_ids *out);
void nrd_tok_unigram_encode(const nrd_tokenizer *t, nrd_tok_scratch *sc, const char *s, size_t n,
                            nrd_ids *out);
/* ---- WordPiece (wordpiece.c) ---- */

nrd_error *nrd_tok_wordpiece_fill(nrd_tokenizer *t) NRD_MUST_USE;
void nrd_tok_wordpiece_encode(const nrd_tokenizer *t, const char *s, size_t n, nrd_ids *out);
void nrd_tok_bert_clean(const nrd_tok_norm_step *step, const char *s, size_t n, nrd_str *out);
void nrd_tok_strip_nonspacing(const char *s, size_t n, nrd_str *out);
/* One token's text, appended to the empty `out`. */
void nrd_tok_wordpiece_decode(const nrd_tok_dec_step *step, const char *s, size_t n, bool first, nrd_str *out,
                              nrd_str *spare);

/* safe_cuts.c: what nrd_tok_safe_chunk goes by, once the vocabulary is there. */
void nrd_tok_find_safe_cuts(nrd_tokenizer *t);
/* End of the chunk that starts at s: cut before a U+2581 where no token can reach across. */
size_t nrd_tok_safe_chunk(const nrd_tokenizer *t, const char *s, size_t n);

static inline void nrd_tok_pieces_push(nrd_tok_pieces *p, size_t start, size_t end)
{
    if (p->n == p->cap) {
        size_t cap = p->cap ? p->cap * 2 : 256;
        nrd_tok_piece *v = realloc(p->v, cap * sizeof *v);
        if (!v) {
            p->no_memory = true;
            return;
        }
        p->v = v;
        p->cap = cap;
    }
    p->v[p->n++] = (nrd_tok_piece){(uint32_t)start, (uint32_t)end};
}

#endif
