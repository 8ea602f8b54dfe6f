/* SPDX-License-Identifier: Apache-2.0
 * The form of a request with sound. */
#include "frontends/openai/speech.h"

#include "base/limits.h"
#include "base/number.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_VALUE = 255 };

typedef enum { FILE_DATA, MODEL, LANGUAGE, PROMPT, FORMAT, TEMPERATURE, GRANULARITY, STREAM, INCLUDE, CHUNKING,
               SEED, COMPRESSION, LOG_PROB, NO_SPEECH, UNKNOWN } field;

static const char *const names[] = {"file", "model", "language", "prompt", "response_format", "temperature",
                                    "timestamp_granularities[]", "stream", "include[]", "chunking_strategy", "seed",
                                    "compression_ratio_threshold", "logprob_threshold", "no_speech_threshold"};
static const char *const formats[] = {[NRD_SPEECH_JSON] = "json", [NRD_SPEECH_TEXT] = "text", [NRD_SPEECH_VERBOSE] = "verbose_json",
                                      [NRD_SPEECH_SRT] = "srt", [NRD_SPEECH_VTT] = "vtt"};

/* Lists may be named without the brackets, as some clients do. */
static bool is_name(const char *name, const char *known)
{
    const size_t n = strcspn(known, "[");
    return !strcmp(name, known) || (strlen(name) == n && !memcmp(name, known, n));
}

static nrd_error *on_begin(void *arg, const char *name, const char *filename)
{
    nrd_speech *r = arg;

    r->field = 0;
    while (r->field < UNKNOWN && !is_name(name, names[r->field])) {
        r->field++;
    }
    nrd_str_clear(&r->value);
    if (r->field == UNKNOWN) {
        bool plain = name[0] && strlen(name) < 64 && r->unknown.len < 512;
        for (const char *c = name; *c && plain; c++) {
            plain = *c > ' ' && *c < 0x7f;
        }
        if (plain) {
            nrd_str_printf(&r->unknown, r->unknown.len ? ", %s" : "%s", name);
        }
        return NULL;
    }
    if (r->seen & 1u << r->field && r->field != GRANULARITY && r->field != INCLUDE) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, names[r->field], "is given twice");
    }
    r->seen |= 1u << r->field;
    if (r->field == FILE_DATA && !filename) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "file", "must be a file: a part with a filename");
    }
    return NULL;
}

static nrd_error *on_data(void *arg, const char *data, size_t n)
{
    nrd_speech *r = arg;
    const size_t most = r->field == FILE_DATA ? NRD_LIMIT_SOUND_FILE : r->field == PROMPT ? NRD_LIMIT_PROMPT_TEXT : MAX_VALUE;
    nrd_str *to = r->field == FILE_DATA ? &r->file : &r->value;

    if (r->field == UNKNOWN) {
        return NULL;
    }
    if (n > most - to->len) {
        nrd_error *err = nrd_oai_errorf(NRD_ERR_INVALID_ARG, names[r->field], "has more than %zu bytes", most);
        return r->field == FILE_DATA ? nrd_error_because(err, NRD_FILE_TOO_LARGE) : err;
    }
    if (r->field == FILE_DATA) {
        NRD_TRY(nrd_claim_bytes(&r->req->claim, n, "its file"));
    } else if (memchr(data, '\0', n)) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, names[r->field], "has a zero in it");
    }
    nrd_str_append(to, data, n);
    return nrd_str_error(to);
}

static nrd_error *take_format(nrd_speech *r, const char *v)
{
    for (int i = 0; i < NRD_SPEECH_N_FORMATS; i++) {
        if (!strcmp(v, formats[i])) {
            r->format = (nrd_speech_format)i;
            return NULL;
        }
    }
    return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "response_format", "must be json, text, verbose_json, srt or vtt, got '%.40s'", v);
}

/* As openai/whisper has them: an answer that repeats itself or that the model itself finds improbable is asked for again, less
 * greedily each time. */
static const double usual_temperatures[] = {0, 0.2, 0.4, 0.6, 0.8, 1};
static const double usual_compression = 2.4, usual_log_prob = -1, usual_no_speech = 0.6;

static void use_temperatures(nrd_speech *r, const double *t, int n)
{
    memcpy(r->temperatures, t, (size_t)n * sizeof *t);
    r->n_temperatures = n;
}

/* A number, or several with commas between; 0 alone: the usual ones. */
static nrd_error *take_temperatures(nrd_speech *r, const char *v)
{
    double t[NRD_SPEECH_TEMPERATURES];
    int n = 0;

    for (const char *p = v;; p++) {
        char *end = NULL;
        const double x = nrd_number_read(p, &end);
        if (end == p || (*end && *end != ',') || !(x >= 0 && x <= 1) || n == NRD_SPEECH_TEMPERATURES) {
            return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "temperature", "must be a number from 0 to 1, or up to %d with commas between, "
                                  "got '%.40s'", NRD_SPEECH_TEMPERATURES, v);
        }
        t[n++] = x;
        p = end;
        if (!*p) {
            break;
        }
    }
    if (n > 1 || t[0] > 0) {
        use_temperatures(r, t, n);
    }
    return NULL;
}

static nrd_error *take_number(const nrd_speech *r, const char *v, double low, double high, double *out)
{
    char *end = NULL;
    const double x = nrd_number_read(v, &end);
    if (end == v || *end || !(x >= low && x <= high)) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, names[r->field], "must be a number from %g to %g, got '%.40s'", low, high, v);
    }
    *out = x;
    return NULL;
}

static nrd_error *take_seed(nrd_speech *r, const char *v)
{
    char *end = NULL;
    errno = 0;
    r->seed = strtoull(v, &end, 10);
    return *v >= '0' && *v <= '9' && !*end && !errno
               ? NULL
               : nrd_oai_errorf(NRD_ERR_INVALID_ARG, "seed", "must be a whole number from 0 to 2^64 - 1, got '%.40s'", v);
}

static nrd_error *take_stream(nrd_speech *r, const char *v)
{
    r->stream = !strcmp(v, "true") || !strcmp(v, "True") || !strcmp(v, "1");
    return r->stream || !strcmp(v, "false") || !strcmp(v, "False") || !strcmp(v, "0")
               ? NULL
               : nrd_oai_errorf(NRD_ERR_INVALID_ARG, "stream", "must be true or false, got '%.40s'", v);
}

static nrd_error *on_end(void *arg)
{
    nrd_speech *r = arg;
    const char *v = nrd_str_cstr(&r->value);

    switch ((field)r->field) {
    case MODEL:
        snprintf(r->model_name, sizeof r->model_name, "%s", v);
        return NULL;
    case LANGUAGE:
        if (r->value.len >= sizeof r->language_name) {
            return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "language", "'%.80s' is no language", v);
        }
        snprintf(r->language_name, sizeof r->language_name, "%s", v);
        return NULL;
    case PROMPT:
        nrd_str_put(&r->prompt, &r->value);
        return nrd_str_error(&r->prompt);
    case FORMAT:
        return take_format(r, v);
    case TEMPERATURE:
        return take_temperatures(r, v);
    case SEED:
        return take_seed(r, v);
    case COMPRESSION:
        return take_number(r, v, 0, 1e6, &r->most_compression);
    case LOG_PROB:
        return take_number(r, v, -1e6, 0, &r->least_log_prob);
    case NO_SPEECH:
        return take_number(r, v, 0, 1, &r->most_no_speech);
    case GRANULARITY:
        return !strcmp(v, "segment")
                   ? NULL
                   : nrd_oai_errorf(!strcmp(v, "word") ? NRD_ERR_UNSUPPORTED : NRD_ERR_INVALID_ARG, "timestamp_granularities",
                                    "must be segment: times of words are not told, got '%.40s'", v);
    case STREAM:
        return take_stream(r, v);
    case INCLUDE:
        return nrd_oai_errorf(NRD_ERR_UNSUPPORTED, "include", "'%.40s' is not told of sound", v);
    case CHUNKING: /* windows are moved by the times that the model tells; "auto" asks for no more */
        return !strcmp(v, "auto") ? NULL : nrd_oai_errorf(NRD_ERR_UNSUPPORTED, "chunking_strategy", "must be auto");
    case FILE_DATA:
    case UNKNOWN:
        return NULL;
    }
    return NULL;
}

nrd_error *nrd_speech_form_begin(nrd_speech *r)
{
    const nrd_view *type = nrd_http_find_field(&r->req->head, "Content-Type");
    const nrd_multipart_reader reader = {on_begin, on_data, on_end, r};

    use_temperatures(r, usual_temperatures, sizeof usual_temperatures / sizeof usual_temperatures[0]);
    r->most_compression = usual_compression;
    r->least_log_prob = usual_log_prob;
    r->most_no_speech = usual_no_speech;
    NRD_TRY(nrd_multipart_init(&r->multipart, type ? type->p : "", type ? type->n : 0, &reader));
    if (!r->req->in_pieces) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "the form: it has no body");
    }
    /* What cannot fit is refused before it is sent: a form around the file has less than this. */
    if (!r->req->head.chunked && r->req->head.content_length > (uint64_t)NRD_LIMIT_SOUND_FILE + (1 << 20)) {
        return nrd_error_because(nrd_oai_errorf(NRD_ERR_INVALID_ARG, "file", "has more than %d bytes", NRD_LIMIT_SOUND_FILE),
                                 NRD_FILE_TOO_LARGE);
    }
    return NULL;
}

nrd_error *nrd_speech_form_end(nrd_speech *r)
{
    NRD_TRY(nrd_multipart_end(&r->multipart));
    if (!(r->seen & 1u << FILE_DATA)) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "file", "is missing");
    }
    if (r->seen & 1u << GRANULARITY && r->format != NRD_SPEECH_VERBOSE) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "timestamp_granularities", "needs the response_format verbose_json");
    }
    if (r->stream && r->format != NRD_SPEECH_JSON && r->format != NRD_SPEECH_TEXT) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "stream", "needs the response_format json or text");
    }
    if (r->unknown.len > 0 && !r->unknown.no_memory) {
        r->extra = nrd_oai_warn_unknown(r->extra, r->unknown.data);
    }
    return NULL;
}
