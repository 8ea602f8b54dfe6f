/* SPDX-License-Identifier: Apache-2.0
 * Prompt tables: embeddings that a request brings along for ids past the vocabulary (prompt tuning, the
 * features of a picture). They are checked and turned into the engine's type when the request is made, and
 * go to the device when the loop takes it in. */
#include "executor/internal.h"

#include "base/dtype.h"
#include "base/mem.h"
#include "base/siphash.h"

#include <math.h>
#include <string.h>

static nrd_dtype table_dtype(const nrd_exec_request *in)
{
    return in->prompt_table_dtype == NRD_DTYPE_NONE ? NRD_DTYPE_F16 : in->prompt_table_dtype;
}

static nrd_error *check_type(nrd_dtype t)
{
    if (t != NRD_DTYPE_F16 && t != NRD_DTYPE_BF16 && t != NRD_DTYPE_F32) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "prompt_embedding_table is of type %s, expected F16, BF16 or F32",
                          nrd_dtype_name(t));
    }
    return NULL;
}

/* Numbers of a row; those of pictures may reach several layers. */
static int32_t row_width(const nrd_exec *x, const nrd_exec_request *in)
{
    return in->images_prepared ? x->info.picture_row_size : x->spec->hidden;
}

nrd_error *nrd_exec_prompt_table_check(const nrd_exec *x, const nrd_exec_request *in)
{
    const nrd_dtype t = table_dtype(in);
    const int32_t most = nrd_engine_limits(x->engine)->max_prompt_embedding_table_size;

    if (!in->prompt_embedding_table) {
        return NULL;
    }
    if (in->images_prepared) { /* as many rows as its pictures have: seen to when they were prepared */
        return check_type(t);
    }
    if (most == 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "prompt_embedding_table needs an engine built with "
                                               "max_prompt_embedding_table_size");
    }
    if (x->vision && nrd_vision_row_parts(nrd_vision_get_spec(x->vision)) > 1) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "prompt_embedding_table beside a vision tower whose rows reach several layers is not "
                                               "supported");
    }
    if (in->prompt_vocab_size < 1 || in->prompt_vocab_size > most) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "prompt_embedding_table has %d rows, expected 1 to %d "
                          "(max_prompt_embedding_table_size)",
                          in->prompt_vocab_size, most);
    }
    return check_type(t);
}

/* Rows from the caller's type to the runner's; `from` may be unaligned. */
static nrd_error *convert(nrd_exec_request_state *r, const nrd_exec_request *in, uint8_t *to,
                          size_t to_row_bytes)
{
    const int32_t hidden = row_width(r->exec, in);
    const nrd_dtype from_type = table_dtype(in), to_type = nrd_runner_embedding_dtype(r->exec->runner);
    const uint8_t *from = in->prompt_embedding_table;
    nrd_error *err = NULL;
    float *row = NULL;
    uint8_t *copy = NULL;
    size_t row_bytes = 0;

    nrd_dtype_bytes(from_type, (uint64_t)hidden, &row_bytes);
    NRD_NEW_GOTO(row, hidden, err, done);
    NRD_NEW_GOTO(copy, row_bytes, err, done);
    for (int32_t i = 0; i < in->prompt_vocab_size; i++) {
        memcpy(copy, from + (size_t)i * row_bytes, row_bytes);
        nrd_dequantize_row(from_type, copy, row, hidden);
        for (int32_t k = 0; k < hidden; k++) {
            if (!isfinite(row[k])) {
                err = nrd_errorf(NRD_ERR_INVALID_ARG,
                                 "prompt_embedding_table[%d][%d] is not a finite number", i, k);
                goto done;
            }
        }
        if (to_type == NRD_DTYPE_F32) {
            memcpy(to + (size_t)i * to_row_bytes, row, to_row_bytes);
        } else {
            nrd_quantize_row(to_type, row, to + (size_t)i * to_row_bytes, hidden);
        }
    }
done:
    free(row);
    free(copy);
    return err;
}

/* Blocks with virtual tokens are shared between requests only where the rows behind them are the same:
 * a client's id alone could name another client's table. */
static nrd_error *hash_rows(nrd_exec_request_state *r, size_t row_bytes)
{
    const int32_t vocab = r->exec->spec->vocab;
    nrd_error *err = NULL;

    if (!r->extra) {
        NRD_NEW_GOTO(r->extra, r->n_prompt, err, done);
    }
    for (int32_t i = 0; i < r->n_prompt; i++) {
        nrd_siphash h;
        uint64_t sum[2];
        if (r->prompt[i] < vocab) {
            continue;
        }
        nrd_siphash_init(&h, nrd_siphash_process_key());
        nrd_siphash_add(&h, &r->extra[i], sizeof r->extra[i]);
        nrd_siphash_add(&h, r->table + (size_t)(r->prompt[i] - vocab) * row_bytes, row_bytes);
        nrd_siphash_end(&h, sum);
        r->extra[i] = sum[0] | 1u; /* never 0: no extra id */
    }
done:
    return err;
}

nrd_error *nrd_exec_prompt_table_copy(nrd_exec_request_state *r, const nrd_exec_request *in)
{
    nrd_error *err = NULL;
    size_t row_bytes = 0;

    if (in->prompt_table_extra_ids) {
        NRD_NEW_GOTO(r->extra, r->n_prompt, err, done);
        memcpy(r->extra, in->prompt_table_extra_ids, (size_t)r->n_prompt * sizeof *r->extra);
    }
    if (!in->prompt_embedding_table) {
        return NULL;
    }
    nrd_dtype_bytes(nrd_runner_embedding_dtype(r->exec->runner), (uint64_t)row_width(r->exec, in), &row_bytes);
    if (!nrd_size_mul((size_t)in->prompt_vocab_size, row_bytes, &r->table_bytes)) {
        return nrd_error_no_memory();
    }
    NRD_NEW_GOTO(r->table, r->table_bytes, err, done);
    r->n_table_rows = in->prompt_vocab_size;
    NRD_TRY_GOTO(convert(r, in, r->table, row_bytes), err, done);
    err = hash_rows(r, row_bytes);
done:
    return err;
}

nrd_error *nrd_exec_prompt_table_upload(nrd_exec_request_state *r)
{
    if (!r->table) {
        return NULL;
    }
    NRD_TRY(nrd_runner_table_new(r->exec->runner, r->table, r->table_bytes, &r->table_mem));
    free(r->table);
    r->table = NULL;
    for (int32_t i = 0; i < r->n_seqs; i++) {
        r->seqs[i].run.prompt_table = r->table_mem;
        r->seqs[i].run.n_prompt_rows = r->n_table_rows;
    }
    return NULL;
}

void nrd_exec_prompt_table_free(nrd_exec_request_state *r)
{
    if (r->table_mem) {
        nrd_runner_table_free(r->exec->runner, r->table_mem);
    }
    free(r->table);
}
