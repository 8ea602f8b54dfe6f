/* SPDX-License-Identifier: Apache-2.0 */
#include "audio/resample.h"

#include "base/mem.h"

#include <math.h>

enum {
    ZEROS = 48,       /* of the sinc, on each side, at the lower rate */
    MAX_PHASES = 640, /* rows of the table; rates with more are interpolated between two rows */
    PIECE = 1024,     /* samples that go out together */
};
/* The window's shape: side lobes below -80 dB. The cut lies below half of the lower rate by half of the width of the
 * window's main lobe, so that what folds back is in the stop band. */
static const double beta = 8.0, cut = 0.947;

struct nrd_resampler {
    nrd_resampled take;
    void *arg;
    int64_t up, down;  /* output rate : input rate, without common factors */
    size_t half, taps; /* taps = 2 * half, of input samples */
    size_t n_phases;
    float *table;      /* [n_phases + 1, taps] */
    float *held;       /* inputs from `first` on; [taps + PIECE] */
    size_t n_held;
    int64_t first;     /* the input's number that held[0] is; begins at -half, with zeros */
    int64_t n_in, n_out;
    int64_t at, phase; /* of the next output: input number at + phase / up */
    size_t n_piece;
    float piece[PIECE];
};

/* The modified Bessel function of order 0, as its power series. */
static double bessel_i0(double x)
{
    double sum = 1, term = 1;
    for (int k = 1; k < 64 && term > sum * 1e-17; k++) {
        term *= x / (2 * k) * (x / (2 * k));
        sum += term;
    }
    return sum;
}

/* The filter at t input samples from its middle; width: of the lower rate's sample, in input samples. */
static double filter(double t, double width)
{
    const double x = t / width, edge = x / ZEROS;
    if (edge <= -1 || edge >= 1) {
        return 0;
    }
    const double s = fabs(x) < 1e-9 ? 1 : sin(M_PI * cut * x) / (M_PI * cut * x);
    return s * bessel_i0(beta * sqrt(1 - edge * edge)); /* but for a factor: rows are scaled */
}

static int64_t common(int64_t a, int64_t b)
{
    while (b) {
        const int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Row p: an output that stands p / n_phases behind input `at`; its column k meets input at - half + 1 + k. Each row's sum
 * is 1, so that a constant stays what it is. */
static void fill_table(nrd_resampler *r, double width)
{
    for (size_t p = 0; p <= r->n_phases; p++) {
        float *row = r->table + p * r->taps;
        double sum = 0;
        for (size_t k = 0; k < r->taps; k++) {
            const double v = filter((double)k + 1 - (double)r->half - (double)p / (double)r->n_phases, width);
            sum += v;
            row[k] = (float)v;
        }
        for (size_t k = 0; k < r->taps; k++) {
            row[k] = (float)((double)row[k] / sum);
        }
    }
}

nrd_error *nrd_resampler_new(nrd_resampler **out, int32_t from, int32_t to, nrd_resampled take, void *arg)
{
    nrd_resampler *r = NULL;
    nrd_error *err = NULL;

    *out = NULL;
    if (from < NRD_RATE_MIN || from > NRD_RATE_MAX || to < NRD_RATE_MIN || to > NRD_RATE_MAX) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "sound of %d samples a second is not read: %d to %d are",
                          from < NRD_RATE_MIN || from > NRD_RATE_MAX ? from : to, NRD_RATE_MIN, NRD_RATE_MAX);
    }
    NRD_NEW_GOTO(r, 1, err, fail);
    const int64_t divisor = common(from, to);
    const double width = from > to ? (double)from / to : 1;
    r->take = take;
    r->arg = arg;
    r->up = to / divisor;
    r->down = from / divisor;
    r->half = (size_t)ceil(ZEROS * width);
    r->taps = 2 * r->half;
    r->n_phases = (size_t)(r->up < MAX_PHASES ? r->up : MAX_PHASES);
    r->first = -(int64_t)r->half;
    r->n_held = r->half; /* silence before the beginning */
    NRD_NEW_GOTO(r->table, (r->n_phases + 1) * r->taps, err, fail);
    NRD_NEW_GOTO(r->held, r->taps + PIECE, err, fail);
    if (r->up != r->down) {
        fill_table(r, width);
    }
    *out = r;
    return NULL;

fail:
    nrd_resampler_free(r);
    return err;
}

void nrd_resampler_free(nrd_resampler *r)
{
    if (r) {
        free(r->table);
        free(r->held);
        free(r);
    }
}

static float dot(const float *a, const float *b, size_t n)
{
    float sum[4] = {0}; /* apart, so that the processor need not wait for each */
    size_t i = 0;
    for (; i + 4 <= n; i += 4) {
        for (size_t k = 0; k < 4; k++) {
            sum[k] += a[i + k] * b[i + k];
        }
    }
    for (; i < n; i++) {
        sum[0] += a[i] * b[i];
    }
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

static float output(const nrd_resampler *r)
{
    const float *in = r->held + (r->at - (int64_t)r->half + 1 - r->first);
    const double row = (double)r->phase * (double)r->n_phases / (double)r->up;
    const size_t p = (size_t)row;
    const float rest = (float)(row - (double)p), low = dot(in, r->table + p * r->taps, r->taps);

    return (int64_t)r->n_phases == r->up ? low : low + rest * (dot(in, r->table + (p + 1) * r->taps, r->taps) - low);
}

static nrd_error *flush(nrd_resampler *r)
{
    const size_t n = r->n_piece;
    r->n_piece = 0;
    return n > 0 ? r->take(r->arg, r->piece, n) : NULL;
}

/* The outputs for which all inputs are there, n_out of them at most. */
static nrd_error *make_outputs(nrd_resampler *r, int64_t most)
{
    while (r->n_out < most && r->at + (int64_t)r->half < r->first + (int64_t)r->n_held) {
        r->piece[r->n_piece++] = output(r);
        r->n_out++;
        r->phase += r->down;
        r->at += r->phase / r->up;
        r->phase %= r->up;
        if (r->n_piece == PIECE) {
            NRD_TRY(flush(r));
        }
    }
    /* What no output needs any more makes room. A step may be longer than the filter. */
    int64_t drop = r->at - (int64_t)r->half + 1 - r->first;
    drop = drop < (int64_t)r->n_held ? drop : (int64_t)r->n_held;
    if (drop > 0) {
        r->n_held -= (size_t)drop;
        memmove(r->held, r->held + drop, r->n_held * sizeof *r->held);
        r->first += drop;
    }
    return NULL;
}

/* samples NULL: silence. */
static nrd_error *feed(nrd_resampler *r, const float *samples, size_t n, int64_t most)
{
    while (n > 0) {
        const size_t room = r->taps + PIECE - r->n_held, now = n < room ? n : room;
        if (samples) {
            memcpy(r->held + r->n_held, samples, now * sizeof *samples);
            samples += now;
        } else {
            memset(r->held + r->n_held, 0, now * sizeof *r->held);
        }
        r->n_held += now;
        n -= now;
        NRD_TRY(make_outputs(r, most));
    }
    return NULL;
}

nrd_error *nrd_resampler_push(nrd_resampler *r, const float *samples, size_t n)
{
    if (r->up == r->down) {
        return n > 0 ? r->take(r->arg, samples, n) : NULL;
    }
    r->n_in += (int64_t)n;
    return feed(r, samples, n, INT64_MAX);
}

nrd_error *nrd_resampler_finish(nrd_resampler *r)
{
    if (r->up == r->down) {
        return NULL;
    }
    /* An output before the end of the input may need `half` samples of silence; no more come than the sound has. */
    NRD_TRY(feed(r, NULL, r->half + 1, (r->n_in * r->up + r->down - 1) / r->down));
    return flush(r);
}
