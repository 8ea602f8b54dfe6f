/* SPDX-License-Identifier: Apache-2.0
 * Requests of `nereid bench` to encoders, which answer with a vector, and to models that hear. */
#include "tools/bench_inputs.h"

#include "base/hash.h"
#include "base/json.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

#define FRAME_SECONDS 0.01

enum { BEGIN = 4 };

nrd_error *nrd_bench_inputs_of(const char *engine, const nrd_exec_info *info, nrd_bench_inputs *out)
{
    nrd_json_doc *doc = NULL;
    char *json = NULL;
    nrd_error *err = NULL;

    *out = (nrd_bench_inputs){0};
    NRD_TRY_GOTO(nrd_exec_describe(engine, &json), err, done);
    NRD_TRY_GOTO(nrd_json_parse(&doc, json, strlen(json), NULL), err, done);
    out->makes_vectors = nrd_json_get_bool(nrd_json_root(doc), "encoder", false);
    if (info->encoder_feature_size > 0) {
        out->n_frames = 2 * info->max_encoder_input_len;
        out->frame_size = info->encoder_feature_size;
        const size_t n = (size_t)out->n_frames * (size_t)out->frame_size;
        NRD_NEW_GOTO(out->frames, n, err, done);
        uint64_t state = 0;
        for (size_t i = 0; i < n; i++) { /* -1 to 1, as the features are */
            state = nrd_hash_u64(state, 4);
            out->frames[i] = (float)((double)(state >> 11) / 4503599627370496.0 - 1);
        }
    }
done:
    nrd_json_doc_free(doc);
    free(json);
    return err;
}

void nrd_bench_inputs_free(nrd_bench_inputs *b)
{
    free(b->frames);
    *b = (nrd_bench_inputs){0};
}

void nrd_bench_inputs_put(const nrd_bench_inputs *b, nrd_exec_request *r)
{
    if (b->makes_vectors) {
        r->pooling = NRD_POOLING_MODEL;
    }
    if (b->n_frames > 0) { /* as few tokens as tell language, task and times */
        r->n_input_ids = r->n_input_ids < BEGIN ? r->n_input_ids : (int32_t)BEGIN;
        r->encoder_input_features = b->frames;
        r->encoder_features_dtype = NRD_DTYPE_F32;
        r->n_encoder_frames = b->n_frames;
        r->encoder_feature_size = b->frame_size;
    }
}

double nrd_bench_inputs_seconds(const nrd_bench_inputs *b)
{
    return b->n_frames * FRAME_SECONDS;
}
