/* SPDX-License-Identifier: Apache-2.0
 * Devices under test, the memory of a case, random numbers and verdicts. */
#include "ops/harness.h"

#include "base/mem.h"
#include "device/device.h"

#include <stdarg.h>

target targets[MAX_TARGETS];
int n_targets;
const device_kind *kind;
bool small_only;

static const device_kind kinds[] = {
    {"cpu", {NRD_DTYPE_F32}, 1, NRD_DTYPE_ACT_Q8, true, true},
    {"cuda", {NRD_DTYPE_BF16, NRD_DTYPE_F16, NRD_DTYPE_F32}, 3, NRD_DTYPE_F8_E4M3, false, false},
};

const nrd_dtype weight_types[N_LINEAR_TYPES] = {
    NRD_DTYPE_F32,    NRD_DTYPE_F16,     NRD_DTYPE_BF16, NRD_DTYPE_I8,   NRD_DTYPE_Q4_0,
    NRD_DTYPE_Q4_1,   NRD_DTYPE_Q5_0,    NRD_DTYPE_Q5_1, NRD_DTYPE_Q8_0, NRD_DTYPE_Q2_K,
    NRD_DTYPE_Q3_K,   NRD_DTYPE_Q4_K,    NRD_DTYPE_Q5_K, NRD_DTYPE_Q6_K, NRD_DTYPE_IQ4_NL,
    NRD_DTYPE_IQ4_XS, NRD_DTYPE_Q8_1,    NRD_DTYPE_MXFP4, NRD_DTYPE_F8_E4M3, NRD_DTYPE_F8_B128,
    NRD_DTYPE_MXFP8,  NRD_DTYPE_NVFP4,   NRD_DTYPE_NF4,  NRD_DTYPE_FP4,
};

bool has_weight(nrd_dtype t)
{
    return (t != NRD_DTYPE_F8_E4M3 && !nrd_dtype_is_packed(t)) || kind->eight == NRD_DTYPE_F8_E4M3;
}

bool is_here(unsigned on)
{
    return (on & (kind->is_exact ? ON_CPU : ON_CUDA)) && !((on & LARGE) && small_only);
}

void ok(nrd_error *err)
{
    if (err) {
        fprintf(stderr, "%s\n", nrd_error_message(err));
        exit(1);
    }
}

void sync(const target *t)
{
    ok(t->ops->stream_sync(t->s));
}

/* ---- targets ---- */

bool is_block_type(nrd_dtype t)
{
    return nrd_dtype_is_quant(t) || nrd_dtype_is_packed(t) || t == NRD_DTYPE_I8;
}

bool has_unit(const target *t)
{
    nrd_device_info info;
    t->ops->get_info(t->dev, &info);
    return info.f32_rows > 0;
}

bool may_round(const target *t, nrd_dtype type, int32_t n, bool deterministic)
{
    return has_unit(t) && !deterministic && n >= (type == NRD_DTYPE_I8 ? 13 : is_block_type(type) ? 12 : type == NRD_DTYPE_F16 ? 32 : INT32_MAX);
}

static bool target_open(const char *device, const char *isa, int32_t threads)
{
    target *t = &targets[n_targets];
    nrd_device_config config = {.n_threads = threads, .isa = isa};
    nrd_error *err = nrd_device_open(&t->dev, device, &config);

    if (err && n_targets + (*isa != 0) > 0) { /* an instruction set that this processor lacks */
        printf("left out: %s\n", nrd_error_message(err));
        nrd_error_free(err);
        return false;
    }
    ok(err);
    t->ops = t->dev->ops;
    t->threads = threads;
    ok(t->ops->stream_new(t->dev, &t->s));
    snprintf(t->name, sizeof t->name, *isa ? "%s/%d" : "%s", *isa ? isa : device, threads);
    n_targets++;
    return true;
}

void targets_open(const char *device, const char *isa, int32_t threads, bool one)
{
#ifdef NRD_AMX_WORDS /* the matrix unit in plain C beside what it must agree with */
    static const char *const isas[] = {"avx512vnni", "amx"};
#else
    static const char *const isas[] = {"generic", "avx2", "avx512", "avx512vnni", "amx"};
#endif
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        kind = strcmp(kinds[i].name, device) == 0 ? &kinds[i] : kind;
    }
    if (!kind) {
        fprintf(stderr, "device \"%s\": the table knows cpu and cuda\n", device);
        exit(2);
    }
    if (!kind->is_exact || threads > 0 || one) {
        target_open(device, isa, threads);
        return;
    }
    for (size_t i = 0; i < sizeof isas / sizeof *isas; i++) {
        if (*isa && strcmp(isa, isas[i]) != 0 && strcmp("avx512vnni", isas[i]) != 0) {
            continue;
        }
        for (int32_t n = 1; n <= 3; n += 2) {
#if defined(__SANITIZE_THREAD__)
            if (n == 1 || i < 2) { /* one thread races with nobody, and all forms divide their work alike */
                continue;
            }
#elif defined(__SANITIZE_ADDRESS__)
            if (n > 1 && i < 2) { /* slow there; the wide forms keep both */
                continue;
            }
#endif
            if (!target_open(device, isas[i], n)) {
                break;
            }
        }
    }
    if (n_targets == 0) {
        target_open(device, isa, 3);
    }
}

void targets_close(void)
{
    for (int i = 0; i < n_targets; i++) {
        targets[i].ops->stream_free(targets[i].s);
        targets[i].ops->close(targets[i].dev);
    }
}

/* ---- random numbers: xorshift (Marsaglia 2003) ---- */

static uint64_t rng_state = 88172645463325252u;

void seed_set(void)
{
    const char *seed = getenv("NEREID_TEST_SEED");
    if (seed) {
        rng_state = strtoull(seed, NULL, 10) | 1u;
    }
    printf("seed %llu\n", (unsigned long long)rng_state);
}

uint64_t rnd(void)
{
    rng_state ^= rng_state << 13;
    rng_state ^= rng_state >> 7;
    rng_state ^= rng_state << 17;
    return rng_state;
}

int32_t rnd_in(int32_t lo, int32_t hi)
{
    return lo + (int32_t)(rnd() % (uint64_t)(hi - lo + 1));
}

float rnd_unit(void)
{
    return (float)(rnd() >> 40) * 0x1p-24f;
}

float rnd_normal(void)
{
    return (rnd_unit() + rnd_unit() + rnd_unit() + rnd_unit() - 2.0f) * 1.7320508f;
}

/* ---- memory of a case ---- */

typedef struct held {
    const target *t; /* NULL: host memory */
    void *p;
    nrd_weight *w; /* a loaded weight instead */
} held;
static held *holds;
static size_t n_holds, max_holds;

static void hold(const target *t, void *p, nrd_weight *w)
{
    if (n_holds == max_holds) {
        max_holds = max_holds ? 2 * max_holds : 64;
        holds = nrd_xrealloc(holds, max_holds * sizeof *holds);
    }
    holds[n_holds++] = (held){t, p, w};
}

void case_end(void)
{
    while (n_holds > 0) {
        held *h = &holds[--n_holds];
        if (h->w) {
            h->t->ops->weight_unload(h->t->dev, h->w);
            free(h->w);
        } else if (h->t) {
            h->t->ops->free(h->t->dev, NRD_MEM_DEVICE, h->p);
        } else {
            free(h->p);
        }
    }
    free(holds);
    holds = NULL;
    max_holds = 0;
}

void *host(size_t bytes)
{
    void *p = nrd_aligned_zalloc(64, bytes ? bytes : 1);
    hold(NULL, p, NULL);
    return p;
}

float *host_normal(int64_t n, float scale)
{
    float *x = host((size_t)n * 4);
    for (int64_t i = 0; i < n; i++) {
        x[i] = rnd_normal() * scale;
    }
    return x;
}

void *host_as(nrd_dtype t, int64_t n, float scale)
{
    void *x = host((size_t)n * nrd_dtype_block_bytes(t) + 16);
    for (int64_t i = 0; i < n; i++) {
        nrd_store_f32(t, x, i, rnd_normal() * scale);
    }
    return x;
}

static void *dev_new(const target *t, size_t bytes)
{
    void *p = NULL;
    ok(t->ops->alloc(t->dev, &p, NRD_MEM_DEVICE, bytes ? bytes : 1, "test"));
    hold(t, p, NULL);
    return p;
}

void *dev_put(const target *t, const void *src, size_t bytes)
{
    void *p = dev_new(t, bytes);
    if (bytes > 0) {
        ok(t->ops->copy(t->s, p, src, bytes));
        sync(t);
    }
    return p;
}

void *dev_out(const target *t, size_t bytes)
{
    void *p = dev_new(t, bytes);
    ok(t->ops->fill(t->s, p, 0xff, bytes));
    sync(t);
    return p;
}

void *dev_pool(const target *t, nrd_dtype type, size_t bytes)
{
    const size_t chunk = (size_t)1 << 20, elem = nrd_dtype_block_bytes(type);
    char *some = host(chunk), *p = dev_new(t, bytes);

    for (size_t i = 0; i < chunk / elem; i++) {
        if (type == NRD_DTYPE_F8_E4M3) {
            some[i] = (char)nrd_f32_to_f8e4m3(rnd_normal() * 0.5f);
        } else if (type == NRD_DTYPE_I8) {
            some[i] = (char)rnd_in(-127, 127);
        } else {
            nrd_store_f32(type, some, (int64_t)i, rnd_normal() * 0.5f);
        }
    }
    for (size_t at = 0; at < bytes; at += chunk) {
        ok(t->ops->copy(t->s, p + at, some, bytes - at < chunk ? bytes - at : chunk));
    }
    sync(t);
    return p;
}

void dev_get(const target *t, void *dst, const void *src, size_t bytes)
{
    if (bytes > 0) {
        ok(t->ops->copy(t->s, dst, src, bytes));
    }
    sync(t);
}

float *rows_of(nrd_dtype type, const void *data, const float *scale, int64_t rows, int64_t cols)
{
    float *x = host((size_t)(rows * cols) * 4);
    for (int64_t r = 0; r < rows; r++) {
        nrd_load_row(type, data, r, cols, scale, x + r * cols);
    }
    return x;
}

float *dev_rows(const target *t, nrd_dtype type, const void *d, const float *d_scale, int64_t rows,
                int64_t cols)
{
    size_t bytes = nrd_row_bytes(type, cols) * (size_t)rows;
    void *raw = host(bytes);
    float *scale = host((size_t)rows * 4);

    dev_get(t, raw, d, bytes);
    if (d_scale) {
        dev_get(t, scale, d_scale, (size_t)rows * 4);
    }
    return rows_of(type, raw, d_scale ? scale : NULL, rows, cols);
}

/* ---- weights ---- */

/* Quantizers leave some bit patterns out: the integers and scales of every third block at random. */
static void scramble(nrd_dtype t, uint8_t *data, uint64_t bytes)
{
    size_t block = nrd_dtype_block_bytes(t);

    for (uint64_t b = 0; b < bytes / block; b += 3) {
        for (size_t i = 4; i + 4 < block; i++) { /* the f16 scales are first or last */
            data[b * block + i] = (uint8_t)rnd();
        }
    }
}

static void fill_row(nrd_dtype t, uint8_t *row, int64_t cols, float *x, float scale)
{
    for (int64_t k = 0; k < cols; k++) {
        if (t == NRD_DTYPE_I8) {
            row[k] = (uint8_t)rnd_in(-128, 127);
        } else { /* formats with a minimum need a mean */
            x[k] = (rnd_normal() + (nrd_dtype_is_quant(t) ? 0.2f : 0)) * scale;
            x[k] *= nrd_dtype_is_packed(t) && k / 128 % 2 ? 0.2f : 1.0f; /* scales that differ */
        }
    }
    if (t == NRD_DTYPE_F32) {
        memcpy(row, x, (size_t)cols * 4);
    } else if (t != NRD_DTYPE_I8 && !nrd_quantize_row(t, x, row, cols)) {
        ok(nrd_errorf(NRD_ERR_UNSUPPORTED, "no definition of %s", nrd_dtype_name(t)));
    }
}

void square_blocks(const nrd_weight *w)
{
    const size_t row = w->rows ? (size_t)w->data_bytes / (size_t)w->rows : 0;
    uint8_t *data = (uint8_t *)w->data;

    for (int64_t r = 0; r < w->rows; r++) {
        for (size_t at = 0; at < row; at += nrd_dtype_block_bytes(w->dtype)) {
            memmove(data + (size_t)r * row + at, data + (size_t)(r / 128 * 128) * row + at, 4);
        }
    }
}

nrd_weight weight_new(nrd_dtype t, int64_t rows, int64_t cols, float scale)
{
    nrd_weight w = {.dtype = t, .rows = rows, .cols = cols, .scale = 1};
    int64_t distinct = rows * cols <= 200000 || rows < 61 ? rows : 61;

    w.data_bytes = nrd_weight_bytes(t, NRD_LAYOUT_ROWS, rows, cols);
    uint8_t *data = host((size_t)w.data_bytes + 64);
    float *x = host((size_t)cols * 4);
    size_t row = rows ? (size_t)w.data_bytes / (size_t)rows : 0;
    for (int64_t r = 0; r < distinct; r++) {
        fill_row(t, data + (size_t)r * row, cols, x, scale);
    }
    if (nrd_dtype_is_quant(t) && kind->is_exact) {
        scramble(t, data, (uint64_t)distinct * row);
    }
    for (int64_t r = distinct; r < rows; r++) {
        memcpy(data + (size_t)r * row, data + (size_t)(r - distinct) * row, row);
    }
    w.data = data;
    if (t == NRD_DTYPE_F8_B128 && rnd() % 4) {
        square_blocks(&w);
    }
    for (int64_t r = 0; t == NRD_DTYPE_NVFP4 && r < rows; r++) { /* one factor for a row */
        const float factor = 0.5f + rnd_unit();
        for (size_t at = 0; at < row; at += nrd_dtype_block_bytes(t)) {
            memcpy(data + (size_t)r * row + at, &factor, 4);
        }
    }
    if (t == NRD_DTYPE_I8 || (t == NRD_DTYPE_F8_E4M3 && rnd() % 2)) {
        float *s = host((size_t)rows * 4);
        for (int64_t r = 0; r < rows; r++) {
            s[r] = (t == NRD_DTYPE_I8 ? scale / 40.0f : 1.0f) * (0.5f + rnd_unit());
        }
        w.scales = s;
    } else if (t == NRD_DTYPE_F8_E4M3) {
        w.scale = 0.7f;
    }
    return w;
}

nrd_weight weight_on(const target *t, const nrd_weight *w, bool is_linear)
{
    nrd_weight *loaded = nrd_xcalloc(1, sizeof *loaded);
    bool owned;

    ok(t->ops->weight_load(t->s, w, is_linear, loaded, &owned));
    nrd_weight out = *loaded;
    if (owned) {
        hold(t, NULL, loaded);
    } else {
        free(loaded);
    }
    return out;
}

/* ---- verdicts ---- */

static char name[240];
static int n_verdicts, n_failed;

void case_name(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(name, sizeof name, fmt, args);
    va_end(args);
}

void verdicts(int *out_all, int *out_failed)
{
    *out_all = n_verdicts;
    *out_failed = n_failed;
}

static bool count(bool is_right)
{
    n_verdicts++;
    n_failed += !is_right;
    return is_right;
}

void verdict(const target *t, const char *what, bool is_right)
{
    if (!count(is_right)) {
        printf("  FAIL %s: %s%s%s\n", t->name, name, *what ? ": " : "", what);
    }
}

void same_bytes(const target *t, const char *what, const void *got, const void *want, size_t bytes)
{
    verdict(t, what, bytes == 0 || memcmp(got, want, bytes) == 0);
}

void compare(const target *t, const char *what, const float *got, const float *want, int64_t n,
             limit l)
{
    double distance = 0, size = 0, worst = 0;
    int64_t at = 0;

    for (int64_t i = 0; i < n; i++) {
        double g = (double)got[i], w = (double)want[i], d = g == w ? 0 : fabs(g - w);
        double ratio =
            l.whole > 0 ? (isfinite(g) ? 0 : NAN) : d / (l.absolute + l.relative * fabs(w));
        if (d != 0 && !(ratio <= worst)) {
            at = i;
            worst = ratio;
        }
        if (worst != worst) {
            break;
        }
        distance += d * d;
        size += w * w;
    }
    if (l.whole > 0 && worst == 0) {
        worst = sqrt(distance / (size > 0 ? size : 1)) / l.whole;
    }
    if (!count(worst <= 1)) { /* NaN fails */
        printf("  FAIL %s: %s%s%s: %.3g of what is allowed (%g for %g at %lld of %lld)\n", t->name,
               name, *what ? ": " : "", what, worst, n ? (double)got[at] : 0,
               n ? (double)want[at] : 0, (long long)at, (long long)n);
    }
}

double rounding(nrd_dtype t)
{
    switch (t) {
    case NRD_DTYPE_BF16:
        return 4e-3;
    case NRD_DTYPE_F16:
        return 1e-3;
    case NRD_DTYPE_F8_E4M3:
        return 4e-2;
    default:
        return 2e-5;
    }
}

double eight_step(const float *x, int64_t n)
{
    double peak = 0;
    for (int64_t i = 0; i < n; i++) {
        peak = fmax(peak, fabs((double)x[i]));
    }
    return peak / 127.0 * 1.01;
}
