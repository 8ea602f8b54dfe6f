/* SPDX-License-Identifier: Apache-2.0
 * model/quant/quant.h - quantized Hugging Face folders as weights that devices multiply.
 *
 * Purpose   Such a folder keeps a matrix as several tensors: packed integers, scales, zero points. A
 *           reader for each format (gptq.c, awq.c, …) finds them and says how their numbers lie; weight.c
 *           chooses the type of nrd_dtype that holds the same numbers; rows.c makes rows of it. The
 *           table of the source then has one tensor [out, in] for them, and nothing behind it knows of
 *           formats. Rows are made when they are read: no copy of the model exists in between.
 * Types     w = scale * (code - zero), a scale and a zero for each group of columns:
 *             Q4_0   code - zero within -8 … 7: every symmetric 4-bit weight, every 2- and 3-bit one
 *             Q4_1   other 4-bit weights: d = scale, m = -scale * zero rounded to half precision, so
 *                    that a number is off by at most 2^-11 of scale * zero; of QServe m is what the file has
 *             Q5_0   those whose m half precision cannot hold; compressed-tensors' MXFP4, as twice its numbers
 *             Q5_1   5 bits with a smallest number (MLX, HQQ), kept as Q4_1 keeps it
 *             Q8_1   6 bits and more with a smallest number (MLX, HQQ), and 8 bits with zero points: the code in the middle of
 *                    all becomes 0, and m, its number, half precision, so that a number is off by at most 2^-11 of that
 *             MXFP4  that of GPT-OSS, as it is
 *             Q8_0   within -128 … 127; I8 where a row has one group
 *           FP8 stays F8_E4M3 where a row has one scale.
 *           Scales become half precision: exact where the file has that, else off by at most 2^-11.
 *           Columns in another order (desc_act) are sorted by their groups, so that these are neighbours: nrd_quant_order.
 *           What multiplies the input (pre_quant_scale) stays beside the weight: nrd_quant_input_scale.
 *           Groups that do not consist of whole blocks of 32 columns and scales that half precision cannot hold leave nothing but
 *           plain numbers: the weight is unpacked to the model's own type, and a note says how many bytes that takes.
 * Owner     Immutable after open; any thread may read rows.
 * Errors    UNSUPPORTED names the field and its value. INVALID_ARG and NOT_FOUND name the tensor and what
 *           was expected.
 * Lifetime  Borrows the files of the table that it was made from; names borrow from it until close.
 * Sources   Of each format: its reader.
 */
#ifndef NRD_MODEL_QUANT_QUANT_H
#define NRD_MODEL_QUANT_QUANT_H

#include "base/error.h"
#include "base/json.h"
#include "base/str.h"
#include "model/source.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define NRD_QUANT_MAX_NAME 512

typedef struct nrd_quant nrd_quant;
typedef struct nrd_quant_weight nrd_quant_weight;

/* ---- for model/source_folder.c and model/plan.c ---- */

/* Reads the quantization fields of config.json, or of the files that older versions put beside it into
 * `dir`, and puts weights in the place of their parts. `table`: sorted by name before and after, only
 * shorter. `dtype`: of what must be unpacked. *out NULL: nothing in the folder is quantized. */
nrd_error *nrd_quant_open(nrd_quant **out, const nrd_json *config, const char *dir, nrd_dtype dtype,
                          nrd_src_tensor *table, size_t *n) NRD_MUST_USE;
/* The same of one rank of TensorRT-LLM's checkpoints; `config`: their `quantization`; `layers`: with MIXED_PRECISION quantized_layers of
 * quant_cfg.json, else NULL; both only during the call. UNSUPPORTED: nrd_quant_reads_checkpoint is false, or a layer's algorithm. */
nrd_error *nrd_quant_open_checkpoint(nrd_quant **out, const nrd_json *config, const nrd_json *layers, nrd_dtype dtype,
                                     nrd_src_tensor *table, size_t *n) NRD_MUST_USE;
#define NRD_QUANT_MIXED "MIXED_PRECISION"
bool nrd_quant_reads_checkpoint(const char *quant_algo);
/* The same of a GGUF file with matrices of I2_S. *out NULL: it has none. */
nrd_error *nrd_quant_open_ternary(nrd_quant **out, nrd_dtype dtype, nrd_src_tensor *table, size_t *n) NRD_MUST_USE;
void nrd_quant_close(nrd_quant *q);
const char *nrd_quant_notes(const nrd_quant *q); /* what was unpacked, in one line; "" */

/* The largest code of the 8-bit cache that the folder's k_scale and v_scale are for (kv_cache_scheme of compressed-tensors,
 * kv_cache_quant_algo of ModelOpt; without a word E4M3): 127 or 448. 0: q is NULL. */
float nrd_quant_kv_top(const nrd_quant *q);
bool nrd_quant_int8_inputs(const nrd_quant *q); /* int8 weights were made for inputs in int8 (W8A8); q may be NULL */

/* [cols], borrowed: which column of the weight comes where in rows of its own type; NULL: they are as they were. Rows of F32
 * always are. Columns of a group stay in their order, so that weights with the same groups have the same order. */
const int32_t *nrd_quant_order(const nrd_quant_weight *w);
/* [cols], borrowed: what column c of the input must be multiplied by where rows of the weight's own type are used; NULL: nothing.
 * In rows of F32, and of plain numbers where those are the weight's own type, the columns are multiplied by it. */
const float *nrd_quant_input_scale(const nrd_quant_weight *w);
/* Whether the weight is int8 and was made for an input in int8; false for all where nrd_quant_int8_inputs says so of all. w may be NULL. */
bool nrd_quant_int8_input(const nrd_quant_weight *w);
/* Whether either is there: rows of the weight's own type are not for the input as it is. w may be NULL. */
bool nrd_quant_has_own_input(const nrd_quant_weight *w);

/* Rows [row0, row0 + n) of a weight as `dtype`: its own, or F32. dst [n][cols], without gaps; scales [n] where
 * its own type is I8 or F8_E4M3 and asked for, else unused. */
nrd_error *nrd_quant_rows(const nrd_quant_weight *w, nrd_dtype dtype, int64_t row0, int64_t n, void *dst,
                          float *scales) NRD_MUST_USE;

/* ---- for readers ---- */

/* The integers of rows [row0, row0 + n): out[n][cols], below 1 << bits. */
typedef void nrd_quant_codes(const nrd_quant_weight *w, int64_t row0, int64_t n, uint8_t *out);
typedef int64_t nrd_quant_scale_at(const nrd_quant_weight *w, int64_t row, int64_t group);
typedef int nrd_quant_zero(const nrd_quant_weight *w, int64_t row, int64_t group);
/* With scale and min: a number is scale * code + min. */
typedef struct {
    float scale, min;
} nrd_scale_and_min;
typedef nrd_scale_and_min nrd_quant_affine(const nrd_quant_weight *w, int64_t row, int64_t group);
/* The numbers of a row before their scales: out[cols]. */
typedef void nrd_quant_values(const nrd_quant_weight *w, int64_t row, float *out);

struct nrd_quant_weight {
    char *name;               /* owned: "….weight" */
    const char *format;       /* "gptq", for messages */
    nrd_dtype dtype;          /* chosen by nrd_quant_settle */
    int64_t rows, cols;       /* [out, in] */
    int64_t group, n_groups;  /* columns that share a scale, and how many such groups; the last may be shorter */
    int64_t row_group;        /* rows that share a scale; 0: 1 */
    int bits;                 /* of a code, at most 8 */
    int top;                  /* the highest code; 0: what `bits` can hold */
    nrd_quant_codes *codes_of;
    nrd_quant_values *values_of; /* instead: numbers that are no multiples of one step */
    bool is_mxfp4;            /* codes.data is E2M1 [rows, cols / 2], scales E8M0 of 32 columns: kept as they are */
    bool is_fp4;              /* with codes_of: codes.data is E2M1 [rows, cols / 2]; scale_factor is half of the weight's factor */
    nrd_dtype table;          /* with values_of: of bitsandbytes, with NF4's or FP4's own table; else NONE */
    bool is_fp8;              /* with values_of: codes.data is E4M3 [rows, cols] */
    bool is_sparse;           /* codes.data has half of the columns: nrd_quant_fill */
    nrd_quant_zero *zero_of;  /* NULL: zero_point for all */
    int zero_point;
    nrd_quant_affine *affine_of; /* instead of scales and zero points; else NULL */
    nrd_src_tensor codes, scales, zeros, order; /* the file's; scales.data NULL: 1; order.data NULL: column c is of group c / group */
    int64_t scale_row, scale_group; /* elements from a row group's, a group's scale to the next */
    nrd_quant_scale_at *scale_at; /* instead: which element it is; else NULL */
    int32_t *sorted;          /* owned: nrd_quant_order's; NULL */
    float scale_factor;       /* on all scales; 0: 1 */
    float *columns;           /* owned: nrd_quant_input_scale's; NULL */
    float *rotation;          /* owned: nrd_quant_turn's [rotation_size][rotation_size], a column behind the other; NULL */
    int64_t rotation_size;
    nrd_src_tensor more[4];   /* what only one format has: bitsandbytes' tables, scales of QServe and HQQ */
    const unsigned *orders;   /* mixed_gemm.c: in which order codes can lie, by all weights that were seen; else NULL */
    int64_t flat_block, nested_block; /* bitsandbytes, HQQ: numbers that share a scale, counted through the whole weight */
    float nested_offset;
    float rounds_by;          /* BitNet, online: what numbers are multiplied by before they are rounded */
    bool is_signed, is_reordered; /* Quark: codes of a word */
    bool int8_input;          /* nrd_quant_int8_input */
    uint64_t file_bytes;      /* of the parts */
};

typedef struct nrd_quant_reader {
    const char *method;       /* quant_method */
    const char *anchors[4];   /* what a quantized weight has, one of them: ".qweight" */
    nrd_error *(*open)(nrd_quant *q, const nrd_json *config);
    /* Fills `w` but for name, format and dtype; `stem` is the module's name. */
    nrd_error *(*weight)(nrd_quant *q, const char *stem, nrd_quant_weight *w);
} nrd_quant_reader;

extern const nrd_quant_reader nrd_quant_gptq, nrd_quant_awq, nrd_quant_fp8, nrd_quant_mxfp8, nrd_quant_fbgemm_fp8,
    nrd_quant_compressed, nrd_quant_modelopt, nrd_quant_bnb, nrd_quant_mxfp4, nrd_quant_auto_round, nrd_quant_hqq, nrd_quant_torchao,
    nrd_quant_bitnet, nrd_quant_i2_s, nrd_quant_quark, nrd_quant_mlx, nrd_quant_eetq, nrd_quant_quanto, nrd_quant_checkpoint;

/* What `open` settles for `weight`. */
typedef struct nrd_quant_settings {
    int bits;
    int64_t group_size;       /* -1: all columns; of QServe 128 or 0 */
    bool is_v1;               /* GPTQ: zero points are stored less one */
    bool has_planes;          /* GPTQ: codes lie in planes ("gptq_p") */
    bool by_shape;            /* GPTQ: rules give modules bits and groups of their own, which their shapes say */
    bool by_rows;             /* AWQ: codes lie along the columns ("gemv"). Quark: eight rows of a word in their own order */
    bool is_signed;           /* Quark: int4, not uint4 */
    bool divides;             /* BitNet: products are divided by the weight's scale */
    bool is_awq;              /* AutoRound: integers lie as AWQ has them, not as GPTQ */
    int64_t block_rows, block_cols; /* FP8: numbers that share a scale; 0: not in blocks */
    bool needs_zeros; /* compressed-tensors: no group of weights is symmetric */
    bool int8_inputs; /* all int8 weights were made for inputs in int8 */
    nrd_error *(*whole)(nrd_quant *q, const char *stem, struct nrd_quant_weight *w); /* TensorRT-LLM: reads all weights; NULL: modelopt.c */
    bool (*is_anchor)(nrd_quant *q, const nrd_src_tensor *t); /* BitNet, instead of the reader's anchors: a `.weight` that is quantized; NULL */
    const nrd_json *layers;   /* compressed-tensors: config_groups of which only some are for int8 inputs. MLX, BitNet: all of it. During open */
    const nrd_json *rotations; /* compressed-tensors: config_groups of transform_config; NULL. During open */
    const nrd_json *model;    /* config.json. During open */
    bool static_inputs;       /* SmoothQuant: inputs have calibrated scales */
    unsigned orders;          /* mixed_gemm.c */
} nrd_quant_settings;
nrd_quant_settings *nrd_quant_settings_of(nrd_quant *q);

/* A whole number of the configuration within [low, high]. */
nrd_error *nrd_quant_int(const nrd_json *config, const char *key, int64_t fallback, int64_t low, int64_t high,
                         int64_t *out) NRD_MUST_USE;
nrd_error *nrd_quant_refuse(const char *field, const nrd_json *value, const char *known) NRD_MUST_USE;

/* The tensor `stem``suffix`, which then belongs to `w`. Without it: NOT_FOUND, or out->data NULL from _try. */
nrd_error *nrd_quant_take(nrd_quant *q, const char *stem, const char *suffix, nrd_quant_weight *w,
                          nrd_src_tensor *out) NRD_MUST_USE;
void nrd_quant_try_any(nrd_quant *q, const char *suffix, nrd_src_tensor *out); /* of any module */
void nrd_quant_try(nrd_quant *q, const char *stem, const char *suffix, nrd_quant_weight *w, nrd_src_tensor *out);
/* Type and shape, and that the data is as long as they say. dtype NONE: any plain float; d1 < 0: one dimension;
 * d0 < 0: one number, in any number of dimensions. */
nrd_error *nrd_quant_shape(const nrd_src_tensor *t, nrd_dtype dtype, int64_t d0, int64_t d1) NRD_MUST_USE;
/* Sets group and n_groups; group_size -1 is all columns. */
nrd_error *nrd_quant_groups(nrd_quant_weight *w, int64_t group_size) NRD_MUST_USE;
/* The same of w->scales [groups, rows] where s->by_shape allows other groups than s->group_size. */
nrd_error *nrd_quant_own_groups(nrd_quant_weight *w, const nrd_quant_settings *s) NRD_MUST_USE;
/* How `scales` of this type lie, by their shape: one number; [rows] or [rows, 1]; [rows, groups]; or one for each block of
 * s->block_rows x s->block_cols numbers. rows and cols are known. */
nrd_error *nrd_quant_spread(nrd_quant_weight *w, nrd_dtype dtype, const nrd_quant_settings *s) NRD_MUST_USE;
/* order, if there is one: I32 [cols], groups that exist. One that only says c / group is dropped. */
nrd_error *nrd_quant_check_order(nrd_quant_weight *w) NRD_MUST_USE;
/* `stem``suffix`, plain floats [cols], where it is there, as w->columns; cols is known. */
nrd_error *nrd_quant_columns(nrd_quant *q, const char *stem, const char *suffix, nrd_quant_weight *w) NRD_MUST_USE;
/* How many columns a module's weight has by its name, as Llama's files call it, and config.json; 0: not known. */
int64_t nrd_quant_columns_by_name(nrd_quant *q, const char *stem);
/* [1, n] becomes [n]. */
void nrd_quant_flatten(nrd_src_tensor *t);
/* One number of a plain float type, above 0. */
nrd_error *nrd_quant_number(const nrd_src_tensor *t, float *out) NRD_MUST_USE;
/* `stem`.weight as E4M3, with scales that were taken. */
nrd_error *nrd_quant_take_fp8(nrd_quant *q, const char *stem, nrd_quant_weight *w) NRD_MUST_USE;
/* codes: E4M3 [rows, cols], with scales that were taken. */
nrd_error *nrd_quant_fp8_values(nrd_quant_weight *w, const nrd_quant_settings *s) NRD_MUST_USE;
/* codes: I8 [rows, cols], with scales that were taken. Who makes w->bits less than 8 afterwards says that the numbers have no more. */
nrd_error *nrd_quant_int8(nrd_quant_weight *w, const nrd_quant_settings *s) NRD_MUST_USE;
/* zeros, where they were taken: I8, one for each scale. */
nrd_error *nrd_quant_int8_zeros(nrd_quant_weight *w) NRD_MUST_USE;
/* codes: U8 [rows, cols / 2] of E2M1 pairs, the lower nibble first. Sets all but the scales. */
nrd_error *nrd_quant_take_fp4(nrd_quant_weight *w) NRD_MUST_USE;

/* sparse.c: compressed-tensors' two forms of 2:4 sparse weights. The first takes scales where they were taken. */
nrd_error *nrd_quant_sparse_mask(nrd_quant *q, const char *stem, nrd_quant_weight *w) NRD_MUST_USE;
nrd_error *nrd_quant_marlin_24(nrd_quant *q, const char *stem, nrd_quant_weight *w) NRD_MUST_USE;
/* Row `row` of a sparse weight as it was before, in its own type: out[cols] of it. false: its mask does not have half of the columns. */
bool nrd_quant_fill(const nrd_quant_weight *w, int64_t row, uint8_t *out);
bool nrd_quant_mask_fits(const nrd_quant_weight *w, int64_t row);

/* `weight` of TensorRT-LLM's own converters, mixed_gemm.c: W8A16 and W4A16 (s->bits is 8 or 4, s->orders all bits of 7);
 * SmoothQuant. When all weights but SmoothQuant's were read, UNSUPPORTED where several orders are left. */
nrd_error *nrd_quant_weight_only(nrd_quant *q, const char *stem, nrd_quant_weight *w) NRD_MUST_USE;
nrd_error *nrd_quant_check_order_of_product(nrd_quant *q) NRD_MUST_USE;
nrd_error *nrd_quant_gptq_product(nrd_quant *q, const char *stem, nrd_quant_weight *w) NRD_MUST_USE; /* W8A16_GPTQ, W4A16_GPTQ: likewise */
nrd_error *nrd_quant_smooth(nrd_quant *q, const char *stem, nrd_quant_weight *w) NRD_MUST_USE;

/* rotate.c: transform_config of compressed-tensors. */
enum { NRD_QUANT_MAX_ROTATION = 512 };
nrd_error *nrd_quant_check_rotations(nrd_quant *q, const nrd_json *config) NRD_MUST_USE;
/* What the input of `stem` is multiplied by, if something is; cols is known. */
nrd_error *nrd_quant_read_rotation(nrd_quant *q, const char *stem, nrd_quant_weight *w) NRD_MUST_USE;
/* A tensor that belongs to no quantized weight: UNSUPPORTED where its module's input is turned. */
nrd_error *nrd_quant_check_unrotated(nrd_quant *q, const nrd_src_tensor *t) NRD_MUST_USE;
void nrd_quant_turn(const nrd_quant_weight *w, float *row); /* with w->rotation: row[cols] as it is for the input as it comes */
/* parts.c: an expression of `targets`, without "re:", and whether it is one that POSIX writes alike; others match nothing. */
bool nrd_quant_matches(const char *pattern, const char *stem);
bool nrd_quant_understands(const char *pattern);

bool nrd_quant_is_i2_s(nrd_quant *q, const nrd_src_tensor *t); /* bitnet.c; q may be NULL */

/* QServe, qserve.c: per group if s->group_size is above 0. */
nrd_error *nrd_quant_qserve(nrd_quant *q, const char *stem, nrd_quant_weight *w) NRD_MUST_USE;

/* Row `row` of a weight with a table in the blocks of that type. */
void nrd_quant_table_row(const nrd_quant_weight *w, int64_t row, uint8_t *dst);

/* Word i of an I32 tensor's data, which may lie at any address of the file. */
static inline uint32_t nrd_quant_word(const void *words, int64_t i)
{
    uint32_t v;
    memcpy(&v, (const char *)words + i * 4, 4);
    return v;
}

/* Code `at` of a stream of codes in words that lie `stride` words apart, beginning with word `first`. */
static inline unsigned nrd_quant_bits(const void *words, int64_t first, int64_t stride, int64_t at, int bits)
{
    int64_t bit = at * bits, word = first + bit / 32 * stride;
    int shift = (int)(bit % 32);
    uint64_t v = nrd_quant_word(words, word);
    if (shift + bits > 32) {
        v |= (uint64_t)nrd_quant_word(words, word + stride) << 32;
    }
    return (unsigned)(v >> shift) & ((1u << bits) - 1);
}

/* n codes of a row whose words follow one another from word `first` on. Those of 4 and 8 bits are bytes in order (little endian). */
static inline void nrd_quant_row_codes(const void *words, int64_t first, int64_t n, int bits, uint8_t *out)
{
    const uint8_t *at = (const uint8_t *)words + first * 4;

    if (bits == 8) {
        memcpy(out, at, (size_t)n);
        return;
    }
    for (int64_t i = 0; bits == 4 && i < n; i++) {
        out[i] = at[i / 2] >> (i % 2 * 4) & 15;
    }
    for (int64_t i = 0; bits != 4 && i < n; i++) {
        out[i] = (uint8_t)nrd_quant_bits(words, first, 1, i, bits);
    }
}

/* ---- weight.c, rows.c ---- */

/* Looks at all scales and zeros and chooses dtype; `plain`: where only plain numbers can hold the weight, and
 * then *out_why says why. NaN and infinite scales are refused, and negative ones of other numbers than whole ones. */
nrd_error *nrd_quant_settle(nrd_quant_weight *w, nrd_dtype plain, const char **out_why) NRD_MUST_USE;
float nrd_quant_scale(const nrd_quant_weight *w, int64_t row, int64_t group);
float nrd_quant_element(const nrd_src_tensor *t, int64_t i); /* of a tensor of scales; 255 of U8 (E8M0) is NaN */
int nrd_quant_zero_at(const nrd_quant_weight *w, int64_t row, int64_t group);
/* The number of code 0; scale and zero are those of the group. */
static inline float nrd_quant_min(const nrd_quant_weight *w, int64_t row, int64_t group, float scale, int zero)
{
    return w->affine_of ? w->affine_of(w, row, group).min : -scale * (float)zero;
}
/* The number of the code in the middle of all, which is 0 of Q8_1. */
static inline float nrd_quant_middle(const nrd_quant_weight *w, float scale, float min)
{
    return min + scale * (float)(1 << (w->bits - 1));
}

#endif
