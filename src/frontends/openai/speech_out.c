/* SPDX-License-Identifier: Apache-2.0
 * What was said, in the five forms of an answer and as events. */
#include "frontends/openai/speech.h"

#include <math.h>
#include <string.h>

/* The text without spaces around it. */
static void trimmed(const char *p, size_t n, const char **out, size_t *out_n)
{
    for (; n > 0 && (*p == ' ' || *p == '\n'); n--) {
        p++;
    }
    for (; n > 0 && (p[n - 1] == ' ' || p[n - 1] == '\n');) {
        n--;
    }
    *out = p;
    *out_n = n;
}

static void put_text(nrd_str *o, const nrd_speech *r)
{
    const char *p;
    size_t n;
    trimmed(nrd_str_cstr(&r->text), r->text.len, &p, &n);
    nrd_json_put_string(o, p, n);
}

/* OpenAI counts whole seconds, begun ones too. */
static void put_usage(nrd_str *o, const nrd_speech *r)
{
    nrd_str_printf(o, "\"usage\":{\"type\":\"duration\",\"seconds\":%lld}", (long long)ceil(r->seconds));
}

static void put_segment(nrd_str *o, const nrd_speech *r, size_t i)
{
    const nrd_speech_segment *s = &r->segments[i];
    nrd_str_printf(o, "%s{\"id\":%zu,\"seek\":%zu,\"start\":%.2f,\"end\":%.2f,\"text\":", i ? "," : "", i, s->seek, s->start, s->end);
    nrd_json_put_string(o, nrd_str_cstr(&r->text) + s->text_from, s->n_text);
    nrd_str_puts(o, ",\"tokens\":[");
    for (size_t k = 0; k < s->n_ids; k++) {
        nrd_str_printf(o, k ? ",%d" : "%d", (int)r->before.ids[s->id_from + k]);
    }
    nrd_str_puts(o, "],\"temperature\":");
    nrd_json_put_double(o, s->temperature);
    nrd_str_puts(o, ",\"compression_ratio\":");
    nrd_json_put_double(o, s->compression);
    if (isfinite(s->log_prob)) {
        nrd_str_puts(o, ",\"avg_logprob\":");
        nrd_json_put_double(o, s->log_prob);
    }
    if (s->no_speech >= 0) {
        nrd_str_puts(o, ",\"no_speech_prob\":");
        nrd_json_put_double(o, s->no_speech);
    }
    nrd_str_putc(o, '}');
}

static void put_verbose(nrd_str *o, const nrd_speech *r)
{
    const int language = r->translate || r->language < 0 ? 0 : r->language; /* English */
    nrd_str_printf(o, "{\"task\":\"%s\",\"language\":\"%s\",\"duration\":%.2f,\"text\":",
                   r->translate ? "translate" : "transcribe", nrd_whisper_language_at(language)->name, r->seconds);
    put_text(o, r);
    nrd_str_puts(o, ",\"segments\":[");
    for (size_t i = 0; i < r->n_segments; i++) {
        put_segment(o, r, i);
    }
    nrd_str_puts(o, "],");
    put_usage(o, r);
    nrd_str_putc(o, '}');
}

/* SubRip has a comma before the milliseconds. */
static void put_time(nrd_str *o, double seconds, char point)
{
    const long long ms = llround(seconds * 1000);
    nrd_str_printf(o, "%02lld:%02lld:%02lld%c%03lld", ms / 3600000, ms / 60000 % 60, ms / 1000 % 60, point, ms % 1000);
}

/* One line of a subtitle: an arrow would be read as a time line, an empty line as its end. */
static void put_line(nrd_str *o, const char *p, size_t n)
{
    trimmed(p, n, &p, &n);
    for (size_t i = 0; i < n; i++) {
        if (p[i] == '\n' || p[i] == '\r') {
            nrd_str_putc(o, ' ');
        } else if (n - i >= 3 && !memcmp(p + i, "-->", 3)) {
            nrd_str_puts(o, "->");
            i += 2;
        } else {
            nrd_str_putc(o, p[i]);
        }
    }
}

static void put_subtitles(nrd_str *o, const nrd_speech *r, bool srt)
{
    nrd_str_puts(o, srt ? "" : "WEBVTT\n\n");
    for (size_t i = 0; i < r->n_segments; i++) {
        const nrd_speech_segment *s = &r->segments[i];
        if (srt) {
            nrd_str_printf(o, "%zu\n", i + 1);
        }
        put_time(o, s->start, srt ? ',' : '.');
        nrd_str_puts(o, " --> ");
        put_time(o, s->end, srt ? ',' : '.');
        nrd_str_putc(o, '\n');
        put_line(o, nrd_str_cstr(&r->text) + s->text_from, s->n_text);
        nrd_str_puts(o, "\n\n");
    }
}

void nrd_speech_put_answer(nrd_speech *r, nrd_str *o)
{
    const char *p;
    size_t n;

    switch (r->format) {
    case NRD_SPEECH_TEXT:
        trimmed(nrd_str_cstr(&r->text), r->text.len, &p, &n);
        nrd_str_append(o, p, n);
        nrd_str_putc(o, '\n');
        break;
    case NRD_SPEECH_VERBOSE:
        put_verbose(o, r);
        break;
    case NRD_SPEECH_SRT:
    case NRD_SPEECH_VTT:
        put_subtitles(o, r, r->format == NRD_SPEECH_SRT);
        break;
    case NRD_SPEECH_JSON:
    case NRD_SPEECH_N_FORMATS:
        nrd_str_puts(o, "{\"text\":");
        put_text(o, r);
        nrd_str_putc(o, ',');
        put_usage(o, r);
        nrd_str_putc(o, '}');
        break;
    }
    if (r->text.no_memory) {
        nrd_str_spoil(o);
    }
}

const char *nrd_speech_type(const nrd_speech *r)
{
    return r->format == NRD_SPEECH_VTT                                      ? "text/vtt; charset=utf-8"
           : r->format == NRD_SPEECH_TEXT || r->format == NRD_SPEECH_SRT ? "text/plain; charset=utf-8"
                                                                          : "application/json";
}

void nrd_speech_put_deltas(nrd_speech *r, nrd_str *o)
{
    for (; r->n_told < r->n_segments; r->n_told++) {
        const nrd_speech_segment *s = &r->segments[r->n_told];
        const char *p = nrd_str_cstr(&r->text) + s->text_from;
        size_t n = s->n_text;
        for (; s->text_from == 0 && n > 0 && *p == ' '; n--) { /* the whole text begins without one */
            p++;
        }
        if (n > 0) {
            nrd_str_puts(o, "data: {\"type\":\"transcript.text.delta\",\"delta\":");
            nrd_json_put_string(o, p, n);
            nrd_str_puts(o, "}\n\n");
        }
    }
}

void nrd_speech_put_done(nrd_speech *r, nrd_str *o)
{
    nrd_str_puts(o, "data: {\"type\":\"transcript.text.done\",\"text\":");
    put_text(o, r);
    nrd_str_putc(o, ',');
    put_usage(o, r);
    nrd_str_puts(o, "}\n\ndata: [DONE]\n\n");
}
