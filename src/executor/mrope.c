// SPDX-License-Identifier: Apache-2.0
/*
 * mrope_rotary_cos_sin of a request: what a client's own vision model says of where the prompt's tokens are, as the cosines
 * and sines that turn them (M-RoPE; Wang et al., "Qwen2-VL", 2024, arXiv:2409.12191). The device turns by places, so the
 * places are read out of the angles, and the table is refused where it is not one of whole places.
 */
#include "base/mem.h"
#include "base/siphash.h"
#include "executor/internal.h"

#include <math.h>

/* A table in float32 is this wrong at place 0, and by its angle's rounding more with each place. */
static const double BASE_ERROR = 1e-3, PLACE_ERROR = 2.4e-7;

typedef struct axis {
    const float *inv_freq; /* [n_pairs] falling */
    int32_t n_pairs, first;
} axis;

/* cos_sin: [n_pairs, 2] of one token and axis. */
static bool is_at(const axis *x, const float *cos_sin, int64_t place)
{
    for (int32_t i = 0; i < x->n_pairs; i++) {
        const double angle = (double)place * (double)x->inv_freq[i], most = BASE_ERROR + PLACE_ERROR * angle;
        if (!(fabs(cos(angle) - (double)cos_sin[2 * i]) <= most && fabs(sin(angle) - (double)cos_sin[2 * i + 1]) <= most)) {
            return false;
        }
    }
    return true;
}

/* The place below `end`, or -1. The slowest pair's angle tells it up to whole turns. */
static int64_t find(const axis *x, const float *cos_sin, int64_t guess, int64_t end)
{
    const double slowest = (double)x->inv_freq[x->n_pairs - 1];
    const float *last = cos_sin + (size_t)(x->n_pairs - 1) * 2;
    double turn = atan2((double)last[1], (double)last[0]);

    if (guess < end && is_at(x, cos_sin, guess)) {
        return guess;
    }
    for (turn = turn < -0.5 * slowest ? turn + 2 * M_PI : turn; turn <= ((double)end - 0.5) * slowest; turn += 2 * M_PI) {
        const int64_t place = llround(turn / slowest);
        if (is_at(x, cos_sin, place)) {
            return place;
        }
    }
    return -1;
}

/* Prompts are shared in the cache where their tokens are at the same places too. */
static uint64_t mix(uint64_t extra, const int32_t *axes)
{
    nrd_siphash h;
    uint64_t sum[2];

    nrd_siphash_init(&h, nrd_siphash_process_key());
    nrd_siphash_add(&h, &extra, sizeof extra);
    nrd_siphash_add(&h, axes, NRD_ROPE_AXES * sizeof *axes);
    nrd_siphash_end(&h, sum);
    return sum[0] | 1u; /* never 0: no extra id */
}

static nrd_error *read_places(nrd_exec_request_state *r, const char *table, const nrd_rope_spec *rope, const axis *axes, int64_t end)
{
    const size_t n = (size_t)rope->rotary_dim;
    float row[NRD_SPEC_MAX_ROTARY]; /* a client's numbers may stand anywhere */

    for (int32_t k = 0; k < r->n_prompt; k++) {
        int32_t *at = r->axes + (size_t)k * NRD_ROPE_AXES;
        bool is_plain = true;
        memcpy(row, table + (size_t)k * n * sizeof *row, n * sizeof *row);
        for (int a = 0; a < NRD_ROPE_AXES; a++) {
            const int64_t guess = k ? (int64_t)at[a - NRD_ROPE_AXES] + 1 : 0;
            const int64_t place = axes[a].n_pairs ? find(&axes[a], row + (size_t)axes[a].first * 2, guess, end) : k;
            if (place < 0) {
                return nrd_errorf(NRD_ERR_INVALID_ARG,
                                  "mrope_rotary_cos_sin: the %d cosines and sines of token %d and axis %d are of no place from 0 to %lld "
                                  "(rope_theta and mrope_section must be the model's)",
                                  2 * axes[a].n_pairs, k, a, (long long)end - 1);
            }
            at[a] = (int32_t)place;
            is_plain = is_plain && place == k;
        }
        r->extra[k] = is_plain ? r->extra[k] : mix(r->extra[k], at);
    }
    return NULL;
}

nrd_error *nrd_exec_mrope_check(const nrd_exec *x, const nrd_exec_request *in)
{
    const nrd_rope_spec *rope = &x->spec->rope;
    const int64_t least = (int64_t)in->n_input_ids * rope->rotary_dim;

    if (!in->mrope_rotary_cos_sin) {
        return in->mrope_position_delta == 0 ? NULL
                                             : nrd_errorf(NRD_ERR_INVALID_ARG, "mrope_position_deltas needs mrope_rotary_cos_sin beside it");
    }
    if (!nrd_rope_has_axes(rope)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "mrope_rotary_cos_sin is for models whose positions have several axes (Qwen2-VL); this one's "
                                               "have not");
    }
    if (in->n_images > 0 || in->n_videos > 0 || in->images_prepared) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "mrope_rotary_cos_sin cannot stand beside pictures and videos, which tell the places themselves");
    }
    if (in->n_mrope_values < least) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "mrope_rotary_cos_sin has %lld numbers, expected at least %lld: a cosine and a sine for each of %d pairs of each "
                          "prompt token",
                          (long long)in->n_mrope_values, (long long)least, rope->rotary_dim / 2);
    }
    if (in->mrope_position_delta < -(int64_t)in->n_input_ids || in->mrope_position_delta > x->lim.max_seq_len) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "mrope_position_deltas is %lld, expected %d to %d", (long long)in->mrope_position_delta,
                          -in->n_input_ids, x->lim.max_seq_len);
    }
    return NULL;
}

nrd_error *nrd_exec_mrope_copy(nrd_exec_request_state *r, const nrd_exec_request *in)
{
    const nrd_rope_spec *rope = &r->exec->spec->rope;
    float inv_freq[NRD_SPEC_MAX_ROTARY / 2];
    axis axes[NRD_ROPE_AXES];
    nrd_error *err = NULL;
    int32_t first = 0;

    if (!in->mrope_rotary_cos_sin) {
        return NULL;
    }
    nrd_rope_inv_freq(rope, NULL, inv_freq);
    for (int a = 0; a < NRD_ROPE_AXES; a++) {
        axes[a] = (axis){.inv_freq = inv_freq + first, .n_pairs = rope->sections[a], .first = first};
        first += rope->sections[a];
    }
    if (!r->extra) {
        NRD_NEW_GOTO(r->extra, r->n_prompt, err, done);
    }
    NRD_NEW_GOTO(r->axes, (size_t)r->n_prompt * NRD_ROPE_AXES, err, done);
    r->axes_shift = (int32_t)in->mrope_position_delta;
    err = read_places(r, (const char *)in->mrope_rotary_cos_sin, rope, axes, (int64_t)2 * r->exec->lim.max_seq_len);
done:
    return err;
}
