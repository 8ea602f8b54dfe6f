/* SPDX-License-Identifier: Apache-2.0 */
#include "audio/mel.h"

#include "audio/fft.h"
#include "base/mem.h"

#include <math.h>

enum { BINS = NRD_MEL_WINDOW / 2 + 1, HALF = NRD_MEL_WINDOW / 2 };

typedef struct band { /* one band's filter: weights of the bins from `first` on */
    int first, n;
    double weight[BINS];
} band;

typedef struct mel {
    nrd_fft *fft;
    band *bands; /* [n_mels] */
    size_t n_mels;
    double window[NRD_MEL_WINDOW];
    nrd_complex x[NRD_MEL_WINDOW], scratch[NRD_MEL_WINDOW];
} mel;

/* Slaney's scale: even steps up to 1 kHz, then even factors. */
static double mel_to_hz(double m)
{
    return m < 15 ? m * 200 / 3 : 1000 * exp((m - 15) * log(6.4) / 27);
}

static double top_mel(void)
{
    return 15 + log(NRD_MEL_RATE / 2.0 / 1000) * 27 / log(6.4);
}

/* Triangles between neighbours on the scale, each of the same area. */
static void fill_bands(mel *m)
{
    const double step = top_mel() / (double)(m->n_mels + 1), hz_per_bin = (double)NRD_MEL_RATE / NRD_MEL_WINDOW;

    for (size_t i = 0; i < m->n_mels; i++) {
        const double low = mel_to_hz((double)i * step), mid = mel_to_hz((double)(i + 1) * step),
                     high = mel_to_hz((double)(i + 2) * step);
        band *b = &m->bands[i];
        for (int k = 0; k < BINS; k++) {
            const double hz = k * hz_per_bin, up = (hz - low) / (mid - low), down = (high - hz) / (high - mid),
                         w = up < down ? up : down;
            if (w <= 0) {
                continue;
            }
            b->first = b->n ? b->first : k;
            b->weight[b->n++] = w * 2 / (high - low);
        }
    }
}

static nrd_error *init(mel *m, int32_t n_mels)
{
    m->n_mels = (size_t)n_mels;
    m->bands = calloc(m->n_mels, sizeof *m->bands);
    if (!m->bands) {
        return nrd_error_no_memory();
    }
    fill_bands(m);
    for (int i = 0; i < NRD_MEL_WINDOW; i++) {
        m->window[i] = 0.5 - 0.5 * cos(2 * M_PI * i / NRD_MEL_WINDOW);
    }
    return nrd_fft_new(&m->fft, NRD_MEL_WINDOW);
}

static void fini(mel *m)
{
    nrd_fft_free(m->fft);
    free(m->bands);
}

/* Sample i of the sound with `total` of them, of which n are there and the rest is silence; mirrored at its ends. */
static double sample(const float *samples, size_t n, size_t total, int64_t i)
{
    i = i < 0 ? -i : i;
    i = i >= (int64_t)total ? 2 * ((int64_t)total - 1) - i : i;
    return (size_t)i < n ? (double)samples[i] : 0;
}

static float band_log(const band *b, const double *power)
{
    double sum = 0;
    for (int k = 0; k < b->n; k++) {
        sum += b->weight[k] * power[b->first + k];
    }
    return (float)log10(sum > 1e-10 ? sum : 1e-10);
}

/* Frames t and t + 1 in one transform, one as its real and one as its imaginary part: both are real, so that their
 * transforms are its even and its odd half. b NULL: only the first is wanted. */
static void two_frames(mel *m, const float *samples, size_t n, size_t total, size_t t, float *a, float *b)
{
    double first[BINS], second[BINS];
    const int64_t from = (int64_t)(t * NRD_MEL_HOP) - HALF;

    for (int i = 0; i < NRD_MEL_WINDOW; i++) {
        m->x[i].re = m->window[i] * sample(samples, n, total, from + i);
        m->x[i].im = m->window[i] * sample(samples, n, total, from + NRD_MEL_HOP + i);
    }
    nrd_fft_forward(m->fft, m->x, m->scratch);
    for (int k = 0; k < BINS; k++) {
        const nrd_complex u = m->x[k], v = m->x[(NRD_MEL_WINDOW - k) % NRD_MEL_WINDOW];
        const double ar = u.re + v.re, ai = u.im - v.im, br = u.im + v.im, bi = v.re - u.re;
        first[k] = (ar * ar + ai * ai) / 4;
        second[k] = (br * br + bi * bi) / 4;
    }
    for (size_t i = 0; i < m->n_mels; i++) {
        a[i] = band_log(&m->bands[i], first);
    }
    for (size_t i = 0; i < m->n_mels && b; i++) {
        b[i] = band_log(&m->bands[i], second);
    }
}

size_t nrd_mel_frames(size_t n_samples)
{
    return (n_samples > NRD_MEL_CHUNK ? n_samples : NRD_MEL_CHUNK) / NRD_MEL_HOP;
}

nrd_error *nrd_mel_make(const float *samples, size_t n, int32_t n_mels, float *out)
{
    const size_t n_frames = nrd_mel_frames(n), total = n > NRD_MEL_CHUNK ? n : NRD_MEL_CHUNK;
    float most = -INFINITY;
    mel *m = NULL;

    if (n_mels < 1 || n_mels > NRD_MEL_MAX_BANDS) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "features of %d mels are not made: 1 to %d are", n_mels, NRD_MEL_MAX_BANDS);
    }
    m = calloc(1, sizeof *m);
    nrd_error *err = m ? init(m, n_mels) : nrd_error_no_memory();
    for (size_t t = 0; t < n_frames && !err; t += 2) {
        float *a = out + t * (size_t)n_mels;
        /* Behind the sound all numbers are the same: a short question in 30 s costs what it is long. */
        if (t * NRD_MEL_HOP >= n + HALF && (t + 3) * NRD_MEL_HOP + HALF < total) {
            for (size_t i = 0; i < 2 * m->n_mels; i++) {
                a[i] = -10;
            }
            continue;
        }
        two_frames(m, samples, n, total, t, a, t + 1 < n_frames ? a + n_mels : NULL);
    }
    for (size_t i = 0; i < n_frames * (size_t)n_mels && !err; i++) {
        most = out[i] > most ? out[i] : most;
    }
    for (size_t i = 0; i < n_frames * (size_t)n_mels && !err; i++) {
        out[i] = ((out[i] > most - 8 ? out[i] : most - 8) + 4) / 4;
    }
    if (m) {
        fini(m);
    }
    free(m);
    return err;
}
