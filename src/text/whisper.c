/* SPDX-License-Identifier: Apache-2.0 */
#include "text/whisper.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"

#include <stdio.h>
#include <strings.h>

enum { MAX_FILE = 64 << 20, MAX_MELS = 256, USUAL_MELS = 80, USUAL_CONTEXT = 448, MAX_CONTEXT = 1 << 16,
       MAX_SUPPRESSED = 500 };

/* Whisper's languages, in the order of their tokens. */
static const nrd_whisper_language languages[] = {
    {"en", "english"}, {"zh", "chinese"}, {"de", "german"}, {"es", "spanish"}, {"ru", "russian"}, {"ko", "korean"},
    {"fr", "french"}, {"ja", "japanese"}, {"pt", "portuguese"}, {"tr", "turkish"}, {"pl", "polish"}, {"ca", "catalan"},
    {"nl", "dutch"}, {"ar", "arabic"}, {"sv", "swedish"}, {"it", "italian"}, {"id", "indonesian"}, {"hi", "hindi"},
    {"fi", "finnish"}, {"vi", "vietnamese"}, {"he", "hebrew"}, {"uk", "ukrainian"}, {"el", "greek"}, {"ms", "malay"},
    {"cs", "czech"}, {"ro", "romanian"}, {"da", "danish"}, {"hu", "hungarian"}, {"ta", "tamil"}, {"no", "norwegian"},
    {"th", "thai"}, {"ur", "urdu"}, {"hr", "croatian"}, {"bg", "bulgarian"}, {"lt", "lithuanian"}, {"la", "latin"},
    {"mi", "maori"}, {"ml", "malayalam"}, {"cy", "welsh"}, {"sk", "slovak"}, {"te", "telugu"}, {"fa", "persian"},
    {"lv", "latvian"}, {"bn", "bengali"}, {"sr", "serbian"}, {"az", "azerbaijani"}, {"sl", "slovenian"}, {"kn", "kannada"},
    {"et", "estonian"}, {"mk", "macedonian"}, {"br", "breton"}, {"eu", "basque"}, {"is", "icelandic"}, {"hy", "armenian"},
    {"ne", "nepali"}, {"mn", "mongolian"}, {"bs", "bosnian"}, {"kk", "kazakh"}, {"sq", "albanian"}, {"sw", "swahili"},
    {"gl", "galician"}, {"mr", "marathi"}, {"pa", "punjabi"}, {"si", "sinhala"}, {"km", "khmer"}, {"sn", "shona"},
    {"yo", "yoruba"}, {"so", "somali"}, {"af", "afrikaans"}, {"oc", "occitan"}, {"ka", "georgian"}, {"be", "belarusian"},
    {"tg", "tajik"}, {"sd", "sindhi"}, {"gu", "gujarati"}, {"am", "amharic"}, {"yi", "yiddish"}, {"lo", "lao"},
    {"uz", "uzbek"}, {"fo", "faroese"}, {"ht", "haitian creole"}, {"ps", "pashto"}, {"tk", "turkmen"}, {"nn", "nynorsk"},
    {"mt", "maltese"}, {"sa", "sanskrit"}, {"lb", "luxembourgish"}, {"my", "myanmar"}, {"bo", "tibetan"}, {"tl", "tagalog"},
    {"mg", "malagasy"}, {"as", "assamese"}, {"tt", "tatar"}, {"haw", "hawaiian"}, {"ln", "lingala"}, {"ha", "hausa"},
    {"ba", "bashkir"}, {"jw", "javanese"}, {"su", "sundanese"}, {"yue", "cantonese"},
};

enum { N_LANGUAGES = sizeof languages / sizeof languages[0] };

struct nrd_whisper {
    const nrd_tokenizer *tokenizer; /* borrows */
    int32_t start, transcribe, translate, previous, no_times, first_time;
    int32_t language[N_LANGUAGES]; /* tokens; -1: none */
    int32_t n_mels, max_tokens, max_first_time;
    bool is_multilingual;
    nrd_ids suppressed, first_suppressed; /* never; not as the first token of an answer */
};

/* ---- the folder ---- */

static int32_t token(const nrd_tokenizer *t, const char *name)
{
    return nrd_tokenizer_token_id(t, name, strlen(name));
}

/* *out NULL: there is no such file. */
static nrd_error *read_json(nrd_json_doc **out, const char *path, const char *name)
{
    char *dir = NULL, *file = NULL, *text = NULL;
    nrd_error *err = NULL;
    size_t n = 0;

    *out = NULL;
    if (!nrd_path_is_dir(path)) {
        err = nrd_path_make_dir(&dir, path);
    }
    err = err ? err : nrd_path_make(&file, dir ? dir : path, name);
    if (!err && nrd_path_exists(file)) {
        err = nrd_file_read(&text, &n, file, MAX_FILE);
        err = err ? err : nrd_json_parse(out, text, n, NULL);
    }
    err = nrd_error_wrap(err, "%s", file ? file : name);
    free(text);
    free(file);
    free(dir);
    return err;
}

/* A whole number of a file, from `least` to `most`; absent or null: `usual`. */
static nrd_error *read_int(const nrd_json *root, const char *file, const char *name, int32_t usual, int32_t least, int32_t most,
                           int32_t *out)
{
    const nrd_json *v = nrd_json_get(root, name);
    *out = usual;
    if (!v || v->type == NRD_JSON_NULL) {
        return NULL;
    }
    if (v->type != NRD_JSON_INT || v->i < least || v->i > most) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: %s must be a whole number from %d to %d", file, name, least,
                          most);
    }
    *out = (int32_t)v->i;
    return NULL;
}

/* A list of tokens; those that the tokenizer has not got are left out. */
static nrd_error *read_tokens(const nrd_json *root, const char *file, const char *name, int32_t vocab, nrd_ids *out)
{
    const nrd_json *v = nrd_json_get(root, name);
    const size_t n = nrd_json_len(v);

    if (!v || v->type == NRD_JSON_NULL) {
        return NULL;
    }
    if (v->type != NRD_JSON_ARRAY || n > MAX_SUPPRESSED) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: %s must be a list of at most %d tokens", file, name, MAX_SUPPRESSED);
    }
    for (size_t i = 0; i < n; i++) {
        const int64_t id = nrd_json_int(nrd_json_at(v, i), -1);
        if (id >= 0 && id < vocab) {
            nrd_ids_push(out, (int32_t)id);
        }
    }
    return nrd_ids_error(out);
}

static nrd_error *read_generation(nrd_whisper *w, const char *path)
{
    static const char file[] = "generation_config.json";
    nrd_json_doc *doc = NULL;
    NRD_TRY(read_json(&doc, path, file));
    const nrd_json *root = doc ? nrd_json_root(doc) : NULL;
    const int32_t vocab = nrd_tokenizer_vocab_size(w->tokenizer);
    nrd_error *err = read_int(root, file, "max_length", USUAL_CONTEXT, 1, MAX_CONTEXT, &w->max_tokens);
    err = err ? err : read_int(root, file, "no_timestamps_token_id", w->no_times, 1, vocab - 1, &w->no_times);
    err = err ? err : read_int(root, file, "max_initial_timestamp_index", -1, 0, NRD_WHISPER_STEPS,
                             &w->max_first_time);
    err = err ? err : read_tokens(root, file, "suppress_tokens", vocab, &w->suppressed);
    err = err ? err : read_tokens(root, file, "begin_suppress_tokens", vocab, &w->first_suppressed);
    w->is_multilingual = nrd_json_get_bool(root, "is_multilingual", true);
    nrd_json_doc_free(doc);
    return err;
}

static nrd_error *read_features(nrd_whisper *w, const char *path)
{
    static const char file[] = "preprocessor_config.json";
    static const struct { const char *name; int32_t value; } fixed[] = {
        {"sampling_rate", 16000}, {"hop_length", 160}, {"n_fft", 400}, {"chunk_length", 30}};
    nrd_json_doc *doc = NULL;
    NRD_TRY(read_json(&doc, path, file));
    const nrd_json *root = doc ? nrd_json_root(doc) : NULL;
    nrd_error *err = read_int(root, file, "feature_size", USUAL_MELS, 1, MAX_MELS, &w->n_mels);
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed && !err; i++) {
        int32_t v;
        err = read_int(root, file, fixed[i].name, fixed[i].value, 1, INT32_MAX, &v);
        if (!err && v != fixed[i].value) {
            err = nrd_errorf(NRD_ERR_UNSUPPORTED, "%s: %s is %d; features are made with %d", file, fixed[i].name, v,
                             fixed[i].value);
        }
    }
    nrd_json_doc_free(doc);
    return err;
}

nrd_error *nrd_whisper_open(nrd_whisper **out, const nrd_tokenizer *t, const char *path)
{
    nrd_error *err = NULL;
    nrd_whisper *w = NULL;
    char name[16];

    *out = NULL;
    if (token(t, "<|startoftranscript|>") < 0 || token(t, "<|transcribe|>") < 0 || token(t, "<|notimestamps|>") < 0) {
        return NULL;
    }
    NRD_NEW_GOTO(w, 1, err, fail);
    w->tokenizer = t;
    w->start = token(t, "<|startoftranscript|>");
    w->transcribe = token(t, "<|transcribe|>");
    w->translate = token(t, "<|translate|>");
    w->previous = token(t, "<|startofprev|>");
    w->no_times = token(t, "<|notimestamps|>");
    for (int i = 0; i < N_LANGUAGES; i++) {
        snprintf(name, sizeof name, "<|%s|>", languages[i].code);
        w->language[i] = token(t, name);
    }
    NRD_TRY_GOTO(read_generation(w, path), err, fail);
    NRD_TRY_GOTO(read_features(w, path), err, fail);
    w->first_time = w->no_times + 1; /* older tokenizers do not list the times: they are there all the same */
    *out = w;
    return NULL;

fail:
    nrd_whisper_close(w);
    return err;
}

void nrd_whisper_close(nrd_whisper *w)
{
    if (w) {
        nrd_ids_fini(&w->suppressed);
        nrd_ids_fini(&w->first_suppressed);
    }
    free(w);
}

/* ---- facts ---- */

int32_t nrd_whisper_n_mels(const nrd_whisper *w)
{
    return w->n_mels;
}

bool nrd_whisper_is_multilingual(const nrd_whisper *w)
{
    return w->is_multilingual;
}

int32_t nrd_whisper_max_tokens(const nrd_whisper *w)
{
    return w->max_tokens;
}

int32_t nrd_whisper_no_times_token(const nrd_whisper *w)
{
    return w->no_times;
}

int32_t nrd_whisper_no_speech_token(const nrd_whisper *w)
{
    return w->no_times - 1;
}

int32_t nrd_whisper_max_first_time(const nrd_whisper *w)
{
    return w->max_first_time;
}

bool nrd_whisper_is_time(const nrd_whisper *w, int32_t id)
{
    return id >= w->first_time && id - w->first_time <= NRD_WHISPER_STEPS;
}

/* A time, or what stands in no text */
static bool is_special(const nrd_whisper *w, int32_t id)
{
    return nrd_whisper_is_time(w, id) || nrd_tokenizer_is_special(w->tokenizer, id);
}

size_t nrd_whisper_n_languages(void)
{
    return N_LANGUAGES;
}

const nrd_whisper_language *nrd_whisper_language_at(int i)
{
    return &languages[i];
}

int32_t nrd_whisper_language_token(const nrd_whisper *w, int i)
{
    return w->language[i];
}

int nrd_whisper_find_language(const nrd_whisper *w, const char *name)
{
    for (int i = 0; i < N_LANGUAGES; i++) {
        if (w->language[i] >= 0 && (!strcasecmp(name, languages[i].code) || !strcasecmp(name, languages[i].name))) {
            return i;
        }
    }
    return -1;
}

int nrd_whisper_language_of(const nrd_whisper *w, int32_t id)
{
    for (int i = 0; i < N_LANGUAGES; i++) {
        if (id >= 0 && w->language[i] == id) {
            return i;
        }
    }
    return -1;
}

/* ---- a window ---- */

nrd_error *nrd_whisper_prompt(const nrd_whisper *w, const nrd_whisper_ask *ask, nrd_ids *out)
{
    const size_t most = (size_t)(w->max_tokens / 2 - 1);
    const size_t skip = ask->n_previous > most ? ask->n_previous - most : 0;

    if (ask->n_previous > 0 && w->previous >= 0 && w->max_tokens > 2) {
        nrd_ids_push(out, w->previous);
        nrd_ids_append(out, ask->previous + skip, ask->n_previous - skip);
    }
    nrd_ids_push(out, w->start);
    if (w->is_multilingual && ask->language < 0) {
        return nrd_ids_error(out);
    }
    if (w->is_multilingual) {
        nrd_ids_push(out, w->language[ask->language]);
        nrd_ids_push(out, ask->translate && w->translate >= 0 ? w->translate : w->transcribe);
    }
    if (!ask->times) {
        nrd_ids_push(out, w->no_times);
    }
    return nrd_ids_error(out);
}

size_t nrd_whisper_start_of(const nrd_whisper *w, const nrd_ids *prompt)
{
    size_t i = prompt->n;
    while (i > 0 && prompt->ids[i - 1] != w->start) {
        i--;
    }
    return i > 0 ? i - 1 : 0;
}

nrd_error *nrd_whisper_bad_words(const nrd_whisper *w, int32_t last, nrd_ids *out)
{
    const size_t n_plain = w->suppressed.n, n = n_plain + 2 * w->first_suppressed.n;

    for (size_t i = 0; i < n_plain; i++) {
        nrd_ids_push(out, w->suppressed.ids[i]);
    }
    for (size_t i = 0; i < w->first_suppressed.n; i++) {
        nrd_ids_push(out, last);
        nrd_ids_push(out, w->first_suppressed.ids[i]);
    }
    for (size_t i = 0; i < n; i++) { /* ends */
        const size_t end = i < n_plain ? i + 1 : n_plain + 2 * (i - n_plain + 1);
        nrd_ids_push(out, end <= n ? (int32_t)end : -1);
    }
    return nrd_ids_error(out);
}

nrd_error *nrd_whisper_text(const nrd_whisper *w, const int32_t *ids, size_t n, nrd_str *out)
{
    nrd_ids plain = {0};
    for (size_t i = 0; i < n; i++) {
        if (!is_special(w, ids[i])) {
            nrd_ids_push(&plain, ids[i]);
        }
    }
    nrd_error *err = nrd_ids_error(&plain);
    if (!err) {
        nrd_tokenizer_decode(w->tokenizer, plain.ids, plain.n, NRD_DECODE_SKIP_SPECIAL, out);
        err = nrd_str_error(out);
    }
    nrd_ids_fini(&plain);
    return err;
}

/* The whole answer is one segment, up to its last time, if it has one. */
static void one_segment(const nrd_whisper *w, const int32_t *ids, size_t n, int32_t n_frames, nrd_whisper_segment *out)
{
    *out = (nrd_whisper_segment){.n = n, .end = n_frames / NRD_WHISPER_FRAMES_PER_STEP};
    for (size_t i = n; i-- > 0;) {
        if (nrd_whisper_is_time(w, ids[i])) {
            out->end = ids[i] != w->first_time ? ids[i] - w->first_time : out->end;
            return;
        }
    }
}

size_t nrd_whisper_segments(const nrd_whisper *w, const int32_t *ids, size_t n, int32_t n_frames, nrd_whisper_segment *out,
                            int32_t *out_frames)
{
    /* One time at the end, behind text: nothing more is said in this window. */
    const bool is_over = n >= 2 && nrd_whisper_is_time(w, ids[n - 1]) && !nrd_whisper_is_time(w, ids[n - 2]);
    size_t n_out = 0, from = 0;

    *out_frames = n_frames > 0 ? n_frames : 1;
    for (size_t i = 1; i <= n; i++) {
        const bool is_cut = i < n ? nrd_whisper_is_time(w, ids[i - 1]) && nrd_whisper_is_time(w, ids[i]) : is_over && n_out > 0;
        if (is_cut) {
            const int32_t first = ids[from], last = ids[i - 1];
            out[n_out++] = (nrd_whisper_segment){
                .from = from, .n = i - from,
                .start = nrd_whisper_is_time(w, first) ? first - w->first_time : 0, .end = last - w->first_time};
            from = i;
        }
    }
    if (n_out == 0) {
        one_segment(w, ids, n, n_frames, out);
        return n > 0 ? 1 : 0;
    }
    if (!is_over) { /* what follows the last pair was cut off with the window: it is heard again */
        const int32_t frames = out[n_out - 1].end * NRD_WHISPER_FRAMES_PER_STEP;
        *out_frames = frames > 0 && frames < *out_frames ? frames : *out_frames;
    }
    return n_out;
}
