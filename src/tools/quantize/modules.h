/* SPDX-License-Identifier: Apache-2.0
 * tools/quantize/modules.h - which tensors of a model are quantized, and what stands before each.
 *
 * Purpose   The plan of an engine (model/plan.h) says which tensors of a Hugging Face folder make which weights. From that:
 *           the linear modules of each layer under their own names, by the input that they read, and what makes that input
 *           (a norm, or rows of another module), which can take a scale off it.
 * Owner     Immutable after open, any thread.
 * Errors    UNSUPPORTED: a family whose weights the format cannot hold. INVALID_ARG: an --exclude that names no module.
 * Lifetime  Borrows the source until close.
 */
#ifndef NRD_TOOLS_QUANTIZE_MODULES_H
#define NRD_TOOLS_QUANTIZE_MODULES_H

#include "base/error.h"
#include "model/plan.h"
#include "model/source.h"
#include "nereid/executor.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What a module reads: an nrd_exec_product of its layer; of an expert one of two numbers behind those. */
enum { NRD_QINPUT_NONE = NRD_PRODUCTS, NRD_QINPUT_EXPERTS }; /* none, of the LM head: no statistics are kept of it */
static inline int nrd_qinput_of_expert(int32_t expert, nrd_exec_product product)
{
    return NRD_QINPUT_EXPERTS + 2 * expert + (product == NRD_PRODUCT_DOWN);
}

/* turned, here and below: the source keeps a matrix as [in, out] (GPT-2's Conv1D); all that is done with it has [out, in]. */
typedef struct nrd_qmodule {
    const nrd_src_tensor *src;
    bool turned;
    int64_t rows, cols;        /* [out, in] */
    char *name;                /* owned: without ".weight" */
    int32_t layer;             /* -1: the LM head */
    int input;
} nrd_qmodule;

/* Numbers that a scale is divided out of: rows [row0, row0 + n) of a matrix, or elements of a vector. */
typedef struct nrd_qmaker {
    const nrd_src_tensor *src;
    int64_t row0, n_rows;
    bool add_one; /* it stands for 1 + what it holds */
    bool is_vector;
    bool turned;
    int64_t first;   /* of the scales, which its first row takes */
} nrd_qmaker;

typedef struct nrd_qmakers {
    nrd_qmaker *list; /* [n] owned */
    int n;            /* 0: no scale can be taken off */
    int64_t n_rows;   /* that take scales: a head's, where all share a norm */
} nrd_qmakers;

enum { NRD_QMAKERS = 2 };
typedef struct nrd_qlayer {
    size_t first, n;                          /* of modules */
    int reads_as[NRD_PRODUCTS];               /* the product whose input this one reads as well; itself mostly */
    int n_readers[NRD_PRODUCTS];              /* modules that read an input, quantized or not */
    nrd_qmaker makers[NRD_PRODUCTS][NRD_QMAKERS]; /* of an input; src NULL: no scale can be taken off it */
    /* What makes the queries and the keys that attention multiplies, where a scale can move from one to the other: rows and biases,
     * or the weights of norms, which may be a tensor a head. */
    nrd_qmakers queries, keys;
    const nrd_src_tensor *dense; /* the matrix behind attention; NULL: none, or none of its own */
    bool dense_turned;
    char *attention;             /* the attention module's name, owned; NULL: the layer has none */
} nrd_qlayer;

typedef struct nrd_qkept { /* a matrix that stays as it is */
    char *name;      /* owned: without ".weight" */
    int bits;        /* of a number of its weight */
    const char *why; /* static */
    bool is_linear;  /* else an embedding or a convolution, which no format takes for a linear module */
} nrd_qkept;

typedef struct nrd_qmodules {
    nrd_plan *plan;
    nrd_qmodule *modules; /* [n] by layer, those of no layer at the end */
    size_t n;
    nrd_qlayer *layers;   /* [n_layers] */
    int32_t n_layers;
    int32_t *source_layers; /* of each tensor of the source; -1: none */
    int n_inputs;         /* of a layer: all that a module may read */
    nrd_qkept *kept;      /* [n_kept] */
    size_t n_kept;
} nrd_qmodules;

/* exclude: names or patterns (as of files) of modules that stay, with ',' between them; NULL: none. with_head: the LM head
 * is quantized too, where it is not the embedding. */
nrd_error *nrd_qmodules_open(nrd_qmodules *out, const nrd_source *src, const char *exclude, bool with_head) NRD_MUST_USE;
void nrd_qmodules_close(nrd_qmodules *q);
int nrd_qmodules_bits(const nrd_src_tensor *t); /* of a number, as the file has it */
const nrd_qmodule *nrd_qmodules_find(const nrd_qmodules *q, const nrd_src_tensor *src); /* NULL: not quantized */

#endif
