/* SPDX-License-Identifier: Apache-2.0
 * On a worker: the model is found, and the file becomes features. */
#include "frontends/openai/speech.h"

#include "audio/sound.h"

#include <string.h>

static nrd_error *claim_sound(void *arg, size_t bytes)
{
    return nrd_claim_bytes(arg, bytes, "its sound");
}

static nrd_error *find_model(nrd_speech *r)
{
    NRD_TRY(r->model_name[0] ? nrd_oai_find_asked(r->o, r->req, r->model_name, &r->model) : nrd_oai_find_only(r->o, r->req, NULL, &r->model));
    const nrd_whisper *w = r->model->whisper;
    if (!w) {
        return nrd_oai_errorf(NRD_ERR_UNSUPPORTED, "model", "'%.80s' hears nothing: it is no speech model", r->model->name);
    }
    r->language = -1;
    if (!nrd_whisper_is_multilingual(w)) {
        return r->translate ? nrd_oai_errorf(NRD_ERR_UNSUPPORTED, "model", "'%.80s' hears English only: it does not translate",
                                             r->model->name)
                            : NULL;
    }
    r->language = r->language_name[0] ? nrd_whisper_find_language(w, r->language_name) : -1;
    return !r->language_name[0] || r->language >= 0
               ? NULL
               : nrd_oai_errorf(NRD_ERR_INVALID_ARG, "language", "'%.40s' is no language of this model; give a code of ISO 639 "
                                "such as en", r->language_name);
}

/* The prompt is text that could stand before the sound. */
static nrd_error *read_prompt(nrd_speech *r)
{
    nrd_str text = {0};
    const char *p = nrd_str_cstr(&r->prompt);

    p += strspn(p, " \n");
    if (!*p) {
        return NULL;
    }
    nrd_str_printf(&text, " %s", p);
    nrd_error *err = nrd_str_error(&text);
    err = err ? err : nrd_oai_check_prompt(r->model, text.len, "prompt");
    err = err ? err : nrd_tokenizer_encode(r->model->tokenizer, text.data, text.len, 0, &r->before);
    nrd_str_fini(&text);
    return err;
}

static nrd_error *make_features(nrd_speech *r, const nrd_sound *s)
{
    const int32_t n_mels = nrd_whisper_n_mels(r->model->whisper);
    size_t bytes;

    r->seconds = (double)s->n / NRD_MEL_RATE;
    r->n_frames = (s->n + NRD_MEL_HOP - 1) / NRD_MEL_HOP;
    r->n_features = nrd_mel_frames(s->n);
    if (!nrd_size_mul(r->n_features, (size_t)n_mels * sizeof *r->features, &bytes)) {
        return nrd_error_no_memory();
    }
    NRD_TRY(nrd_claim_bytes(&r->req->claim, bytes, "its features"));
    r->features = malloc(bytes);
    return r->features ? nrd_mel_make(s->samples, s->n, n_mels, r->features) : nrd_error_no_memory();
}

nrd_error *nrd_speech_read_sound(nrd_speech *r)
{
    const nrd_sound_room room = {claim_sound, &r->req->claim};
    nrd_sound sound = {0};

    NRD_TRY(find_model(r));
    NRD_TRY(read_prompt(r));
    nrd_error *err = nrd_sound_read(&sound, r->file.data, r->file.len, NRD_MEL_RATE, &room);
    if (err) {
        return nrd_error_at(nrd_error_wrap(err, "file"), "file");
    }
    err = make_features(r, &sound);
    nrd_claim_give(&r->req->claim, sound.cap * sizeof *sound.samples + r->file.len);
    nrd_sound_fini(&sound);
    nrd_str_fini(&r->file);
    return err;
}
