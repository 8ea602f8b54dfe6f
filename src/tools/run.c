/* SPDX-License-Identifier: Apache-2.0
 * nereid run and nereid chat: text generation at the terminal. */
#include "tools/chat_template.h"
#include "tools/model_path.h"
#include "tools/pictures.h"
#include "tools/repo.h"
#include "tools/run_internal.h"
#include "tools/talk.h"
#include "tools/talk_set.h"
#include "tools/tools.h"

#include "base/env.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "model/engine.h"
#include "nereid/executor.h"
#include "nereid/ranks.h"
#include "text/harmony.h"
#include "text/generation.h"
#include "text/sampling.h"
#include "text/shared.h"
#include "text/translate.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

enum { MAX_STOPS = 16, MAX_PROMPT_BYTES = 64 << 20, UNSET = NRD_RUN_UNSET };

typedef struct session {
    nrd_exec *x;
    nrd_text *text;
    const nrd_tokenizer *t; /* borrows from text */
    nrd_chat *chat; /* NULL: the prompt goes to the model as it is */
    const nrd_run_options *o;
    bool is_engine;  /* its path is an engine folder, with limits of its own */
    nrd_ids stop_ids, stop_ends; /* phrases: end-of-generation ids beyond eos, and --stop */
    int32_t end_id;
    nrd_sampling sampling; /* in force */
    const nrd_generation *search; /* how the model wants its answers to be searched for; NULL: no word of it counts */
    int32_t n_beams, suppressed_ends[NRD_GENERATION_MAX_SUPPRESSED];
    uint64_t lora_id;      /* 0: no adapter */
    uint64_t seed;         /* of the answer that is being made */
    nrd_tool_pictures pictures;
    nrd_talk_values values; /* /set */
    int32_t max_seq_len, max_prompt; /* of a conversation; 0: it is none */
    size_t too_many;        /* tokens of a prompt that was longer than max_prompt */
} session;

static nrd_error *find_tokenizer(nrd_text **out, const nrd_run_options *o, const nrd_model_path *m)
{
    nrd_error *err = nrd_text_open(out, o->exec.tokenizer_dir ? o->exec.tokenizer_dir : m->tokenizer);
    return nrd_error_wrap(err, "no tokenizer (name one with --tokenizer_dir)");
}

static nrd_error *find_stops(session *s)
{
    nrd_exec_info info = {.size = sizeof info};
    size_t n = 0;
    const int32_t *ids = nrd_tokenizer_stop_ids(s->t, &n);

    nrd_exec_get_info(s->x, &info);
    s->end_id = nrd_tokenizer_eos_id(s->t) >= 0 ? nrd_tokenizer_eos_id(s->t) : info.eos_id;
    if (s->o->ignore_eos) {
        s->end_id = -1;
        n = 0;
    }
    for (size_t i = 0; i < n && i < MAX_STOPS; i++) {
        if (ids[i] != s->end_id) {
            nrd_ids_push(&s->stop_ids, ids[i]);
            nrd_ids_push(&s->stop_ends, (int32_t)s->stop_ids.n);
        }
    }
    if (s->o->stop) {
        size_t before = s->stop_ids.n;
        NRD_TRY(nrd_tokenizer_encode(s->t, s->o->stop, strlen(s->o->stop), 0, &s->stop_ids));
        if (s->stop_ids.n > before) {
            nrd_ids_push(&s->stop_ends, (int32_t)s->stop_ids.n);
        }
    }
    return NULL;
}

static double pick(double asked, double otherwise)
{
    return isnan(asked) ? otherwise : asked;
}

/* What the user asked for, over what the model says. Beams are not drawn: there only the user's word counts, and that of
 * models with an encoder, whose makers chose them. */
static nrd_error *resolve(session *s)
{
    const nrd_run_options *o = s->o;
    const bool own = !strcmp(o->generation_config, "auto");
    nrd_sampling *w = &s->sampling;

    s->values = (nrd_talk_values){.sampling = w, .max_tokens = o->n != UNSET ? o->n : o->n_otherwise};
    s->search = own ? nrd_tokenizer_generation(s->t) : NULL;
    *w = own && (s->search || o->beam_width <= 1) ? nrd_tokenizer_sampling(s->t) : NRD_SAMPLING_BARE;
    w->temperature = pick(o->temperature, w->temperature);
    w->top_p = pick(o->top_p, w->top_p);
    w->min_p = pick(o->min_p, w->min_p);
    w->repetition_penalty = pick(o->repetition_penalty, w->repetition_penalty);
    w->top_k = o->top_k == UNSET ? w->top_k : o->top_k;
    s->n_beams = o->beam_width != UNSET                ? o->beam_width
                 : s->search && !(w->temperature > 0) ? s->search->num_beams
                                                       : 1;
    for (int32_t i = 0; s->search && i < s->search->n_suppressed; i++) {
        s->suppressed_ends[i] = i + 1;
    }
    unsigned long long seed = 0;
    if (o->seed && !nrd_parse_u64(o->seed, &seed)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "--seed: '%s' is no number", o->seed);
    }
    s->values.has_seed = o->seed != NULL;
    s->values.seed = seed;
    return NULL;
}

/* As many of the model's own beams as the engine was built for. */
static void fit_beams(session *s)
{
    nrd_exec_info info = {.size = sizeof info};
    nrd_exec_get_info(s->x, &info);
    if (s->o->beam_width == UNSET && s->n_beams > info.max_beam_width) {
        s->n_beams = info.max_beam_width;
    }
}

static bool draws(const session *s)
{
    return s->n_beams <= 1 && s->sampling.temperature > 0 && s->sampling.top_k != 1;
}

static nrd_error *next_seed(session *s)
{
    uint32_t random; /* short enough to be typed again */

    if (s->values.has_seed) {
        s->seed = s->values.seed;
        return NULL;
    }
    if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random) {
        return nrd_errorf(NRD_ERR_INTERNAL, "no random numbers from the system");
    }
    s->seed = random;
    return NULL;
}

/* n_begin: tokens that the text begins with; 0: the model's own. */
static void search_as_model(const session *s, int32_t n_begin, nrd_exec_request *r)
{
    const nrd_generation *g = s->search;

    n_begin = n_begin > 0 ? n_begin : g->n_begin;
    const int32_t most = nrd_generation_max_new(g, n_begin);
    r->max_new_tokens = s->o->n == UNSET && most > 0 ? most : r->max_new_tokens;
    r->sampling.length_penalty = (float)g->length_penalty;
    r->sampling.early_stopping = g->early_stopping;
    r->sampling.no_repeat_ngram_size = g->no_repeat_ngram_size;
    r->sampling.min_length = nrd_generation_min_new(g, n_begin);
    r->bad_words = (nrd_phrases){g->suppressed, s->suppressed_ends, g->n_suppressed};
    r->generate_scores = true;
    r->forced_end = g->forced_eos_id >= 0 && g->forced_eos_id == s->end_id;
}

/* begin: what a decoder's text begins with; empty: the model's own beginning. */
static void make_request(const session *s, const nrd_ids *ids, const nrd_ids *begin, nrd_exec_request *r)
{
    const nrd_sampling *w = &s->sampling;

    nrd_exec_request_init(r);
    r->input_ids = ids->ids;
    r->n_input_ids = (int32_t)ids->n;
    r->decoder_input_ids = begin->ids;
    r->n_decoder_input_ids = (int32_t)begin->n;
    r->max_new_tokens = s->values.max_tokens;
    if (s->max_seq_len > 0 && (int64_t)ids->n + r->max_new_tokens > s->max_seq_len) {
        r->max_new_tokens = s->max_seq_len - (int32_t)ids->n;
    }
    r->streaming = s->n_beams <= 1;
    r->lora_task_id = s->lora_id;
    r->exclude_input_in_output = true;
    r->end_id = s->end_id;
    r->stop_words = (nrd_phrases){s->stop_ids.ids, s->stop_ends.ids, (int32_t)s->stop_ends.n};
    r->sampling.beam_width = s->n_beams;
    r->sampling.temperature = (float)w->temperature;
    r->sampling.top_k = w->top_k;
    r->sampling.top_p = (float)w->top_p;
    r->sampling.min_p = (float)w->min_p;
    r->sampling.repetition_penalty = (float)w->repetition_penalty;
    r->sampling.random_seed = s->seed;
    if (s->search) {
        search_as_model(s, (int32_t)begin->n, r);
    }
}

static void print_text(nrd_str *text)
{
    if (text->len > 0) {
        fwrite(text->data, 1, text->len, stdout);
        fflush(stdout);
        nrd_str_clear(text);
    }
}

/* Ctrl-C while the model answers ends the answer, not the program. */
static volatile sig_atomic_t interrupted;

static void on_interrupt(int sig)
{
    (void)sig;
    interrupted = 1;
}

/* The prompt as ids: through the chat template as messages[0..n), else as it is. */
static nrd_error *encode(const session *s, const char *prompt, size_t n_bytes, const nrd_json *messages,
                         nrd_ids *ids, nrd_ids *begin)
{
    const nrd_translation languages = {s->o->source_lang, s->o->target_lang};
    nrd_str text = {0};
    if (!messages) {
        return nrd_tokenizer_encode_translation(s->t, prompt, n_bytes, &languages, ids, begin);
    }
    const nrd_chat_input in = {.messages = messages, .add_generation_prompt = true};
    nrd_error *err = nrd_chat_render(s->chat, &in, &text);
    err = err ? err : nrd_tool_pictures_put_times(&s->pictures, &text);
    if (!err) {
        err = nrd_tokenizer_encode(s->t, nrd_str_cstr(&text), text.len, NRD_ENCODE_PARSE_SPECIAL, ids);
    }
    nrd_str_fini(&text);
    return err;
}

/* Reasoning from byte `from` on, dim; with an empty line behind it where the content begins. How much is told now. */
static size_t print_thoughts(const nrd_harmony *h, size_t from, bool ends)
{
    const nrd_str *all = nrd_harmony_reasoning(h);
    nrd_str text = {0};

    if (all->len > from) {
        nrd_str_puts(&text, nrd_env("NO_COLOR", NULL) ? "" : "\033[2m");
        nrd_str_append(&text, all->data + from, all->len - from);
        nrd_str_puts(&text, nrd_env("NO_COLOR", NULL) ? "" : "\033[0m");
    }
    if (ends && all->len > 0 && from != SIZE_MAX) {
        nrd_str_puts(&text, "\n\n");
    }
    if (from != SIZE_MAX) {
        print_text(&text);
    }
    nrd_str_fini(&text);
    return ends || from == SIZE_MAX ? SIZE_MAX : all->len;
}

/* While the prompt is read: a sign that turns, on terminals. turn NULL: not now. */
static void spin(unsigned *turn)
{
    static const char signs[][4] = {"\xe2\xa0\x8b", "\xe2\xa0\x99", "\xe2\xa0\xb8", "\xe2\xa0\xb4", "\xe2\xa0\xa6", "\xe2\xa0\x87"};
    if (turn && isatty(STDERR_FILENO) && isatty(STDOUT_FILENO) && strcmp(nrd_env("TERM", "dumb"), "dumb") != 0) {
        fprintf(stderr, "\r%.3s", signs[(*turn)++ % (sizeof signs / sizeof *signs)]);
    }
}

static void end_spin(unsigned *turn)
{
    if (*turn > 0) {
        fputs("\r\033[K", stderr);
        *turn = 0;
    }
}

/* The end of an answer. */
static void tell(const session *s, const nrd_run_result *result)
{
    if (s->o->json) {
        nrd_run_print_json(result);
        return;
    }
    putchar('\n');
    fflush(stdout);
    if (!s->o->quiet) {
        nrd_run_print_rates(result);
    }
}

/* What is made of the responses to one prompt. */
typedef struct reply {
    session *s;
    nrd_str *said;         /* of a conversation, that continues; NULL: it is none */
    nrd_ids prompt, begin; /* begin: of the text that a decoder has already */
    nrd_detok *detok;
    nrd_harmony *harmony; /* of models that answer in this format; then text is the content alone */
    bool is_terminal;     /* thoughts are shown */
    size_t n_shown;       /* bytes of thoughts */
    nrd_str text, whole;  /* not printed yet; with --json what was said so far */
    size_t n_prompt; /* tokens */
    int64_t n_new;
    unsigned turn; /* of the sign that something goes on */
} reply;

/* The executor's own words for it are those that clients of TensorRT-LLM match. */
static nrd_error *check_length(const session *s, int32_t n)
{
    nrd_exec_info info = {.size = sizeof info};
    nrd_exec_get_info(s->x, &info);
    if (n <= info.max_input_len || info.max_encoder_input_len > 0) {
        return NULL;
    }
    if (!s->is_engine) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "the prompt has %d tokens; the model was made for %d, of which one at least is the answer's", n,
                          info.max_seq_len);
    }
    return nrd_errorf(NRD_ERR_INVALID_ARG, "the prompt has %d tokens; this engine takes %d (%s %d of nereid build)", n, info.max_input_len,
                      info.max_input_len < info.max_seq_len - 1 ? "--max_input_len" : "--max_seq_len",
                      info.max_input_len < info.max_seq_len - 1 ? info.max_input_len : info.max_seq_len);
}

/* Until the engine has the request. *out_id stays where the prompt is too long for a conversation (s->too_many). */
static nrd_error *begin_reply(reply *a, const char *prompt, size_t n_bytes, const nrd_json *messages, uint64_t *out_id)
{
    session *s = a->s;
    nrd_exec_request r;
    nrd_harmony_ids marks;

    NRD_TRY(encode(s, prompt, n_bytes, messages, &a->prompt, &a->begin));
    if (a->prompt.n == 0 && nrd_tokenizer_bos_id(s->t) >= 0) {
        nrd_ids_push(&a->prompt, nrd_tokenizer_bos_id(s->t));
    }
    if (a->prompt.n > INT32_MAX) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "the prompt has %zu tokens", a->prompt.n);
    }
    if (s->max_prompt > 0 && a->prompt.n > (size_t)s->max_prompt) {
        s->too_many = a->prompt.n;
        return NULL;
    }
    a->detok = nrd_detok_new(s->t, NRD_DECODE_SKIP_SPECIAL);
    if (messages && nrd_harmony_find(s->t, &marks)) {
        a->harmony = nrd_harmony_new(&marks, s->t, NULL, &a->prompt);
        if (!a->harmony) {
            return nrd_error_no_memory();
        }
        a->is_terminal = isatty(STDOUT_FILENO) && !s->o->json;
    }
    NRD_TRY(next_seed(s));
    make_request(s, &a->prompt, &a->begin, &r);
    r.images = s->pictures.images;
    r.n_images = s->pictures.n;
    r.videos = &s->pictures.video;
    r.n_videos = s->pictures.video.n_frames > 0;
    NRD_TRY(nrd_exec_prepare_images(s->x, &r));
    a->n_prompt = (size_t)r.n_input_ids; /* with the rows of pictures */
    nrd_error *err = check_length(s, r.n_input_ids);
    err = err ? err : nrd_exec_enqueue(s->x, &r, out_id);
    nrd_exec_release_images(s->x, &r);
    NRD_TRY(err);
    if (s->o->echo) {
        fwrite(prompt, 1, n_bytes, stdout);
    }
    return NULL;
}

static void show_text(reply *a)
{
    if (a->said && a->text.len > 0) {
        nrd_str_append(a->said, a->text.data, a->text.len);
    }
    if (a->s->o->json) {
        nrd_str_append(&a->whole, nrd_str_cstr(&a->text), a->text.len);
        nrd_str_clear(&a->text);
    } else {
        print_text(&a->text);
    }
}

static nrd_error *take_response(reply *a, const nrd_exec_response *resp)
{
    session *s = a->s;

    if (resp->error) {
        return nrd_errorf((nrd_error_code)nrd_exec_error_code(resp->error), "%s", nrd_exec_error_message(resp->error));
    }
    for (int32_t i = 0; resp->n_beams > 0 && i < resp->beams[0].n_ids; i++) {
        if (a->harmony) {
            nrd_harmony_push(a->harmony, resp->beams[0].ids[i], &a->text);
        } else {
            nrd_detok_push(a->detok, resp->beams[0].ids[i], &a->text);
        }
        a->n_new++;
    }
    if (resp->is_final && a->harmony) {
        nrd_harmony_end(a->harmony, &a->text);
    } else if (resp->is_final) {
        nrd_detok_flush(a->detok, &a->text);
    }
    if (a->harmony && a->is_terminal) {
        a->n_shown = print_thoughts(a->harmony, a->n_shown, a->text.len > 0 || resp->is_final);
    }
    show_text(a);
    if (resp->is_final) {
        const nrd_run_result result = {
            .text = &a->whole, .reasoning = a->harmony ? nrd_harmony_reasoning(a->harmony) : NULL, .perf = &resp->perf, .n_prompt = a->n_prompt,
            .n_new = a->n_new, .finish = resp->n_beams > 0 ? resp->beams[0].finish_reason : NRD_FINISH_NONE,
            .seed = draws(s) ? &s->seed : NULL};
        tell(s, &result);
    }
    return NULL;
}

static nrd_error *take_responses(reply *a, uint64_t id)
{
    nrd_error *err = NULL;
    bool done = false;

    while (!done && !err) {
        nrd_exec_response *resp = NULL;
        NRD_TRY(nrd_exec_await_id(a->s->x, id, &resp, a->said ? 100000 : -1));
        if (a->said && interrupted) {
            nrd_exec_cancel(a->s->x, id);
        }
        if (!resp) {
            spin(a->said && a->n_new == 0 ? &a->turn : NULL);
            continue;
        }
        end_spin(&a->turn);
        err = take_response(a, resp);
        done = resp->is_final;
        nrd_exec_response_free(resp);
    }
    return err;
}

/* `messages` (chat) or `prompt`; *out_answer (may be NULL) gets the text too. */
static nrd_error *generate(session *s, const char *prompt, size_t n_bytes, const nrd_json *messages,
                           nrd_str *out_answer)
{
    reply a = {.s = s, .said = out_answer};
    uint64_t id = 0;
    nrd_error *err = begin_reply(&a, prompt, n_bytes, messages, &id);

    if (!err && id != 0) {
        err = take_responses(&a, id);
    }
    end_spin(&a.turn);
    nrd_harmony_free(a.harmony);
    nrd_detok_free(a.detok);
    nrd_str_fini(&a.text);
    nrd_str_fini(&a.whole);
    nrd_ids_fini(&a.prompt);
    nrd_ids_fini(&a.begin);
    return err;
}

/* ---- conversations ---- */

static void put_message(session *s, nrd_str *history, const char *role, const char *text, size_t n)
{
    nrd_str_puts(history, history->len > 0 ? ",{\"role\":" : "{\"role\":");
    nrd_json_put_cstr(history, role);
    nrd_str_puts(history, ",\"content\":");
    nrd_tool_pictures_put(&s->pictures, history, text, n, !strcmp(role, "user"));
    nrd_str_putc(history, '}');
}

/* Answers the messages collected in `history` (members of a JSON list). */
static nrd_error *answer(session *s, const nrd_str *history, nrd_str *out_answer)
{
    nrd_json_doc *doc = NULL;
    nrd_str list = {0};
    nrd_str_putc(&list, '[');
    nrd_str_append(&list, nrd_str_cstr(history), history->len);
    nrd_str_putc(&list, ']');
    nrd_error *err = nrd_json_parse(&doc, list.data, list.len, NULL);
    if (!err) {
        err = generate(s, "", 0, nrd_json_root(doc), out_answer);
    }
    nrd_json_doc_free(doc);
    nrd_str_fini(&list);
    return err;
}

static nrd_error *one_prompt(session *s, const char *prompt, size_t n)
{
    nrd_str history = {0};
    if (!s->chat) {
        return generate(s, prompt, n, NULL, NULL);
    }
    if (s->o->system) {
        put_message(s, &history, "system", s->o->system, strlen(s->o->system));
    }
    s->pictures.n_told = 0; /* the same for each prompt */
    s->pictures.video_is_told = false;
    put_message(s, &history, "user", prompt, n);
    nrd_error *err = answer(s, &history, NULL);
    nrd_str_fini(&history);
    return err;
}

/* ---- a conversation (talk.h) ---- */

static nrd_error *talk_answer(void *user, const nrd_str *messages, nrd_str *out, size_t *out_too_many)
{
    session *s = user;
    nrd_json_doc *doc = NULL;

    interrupted = 0;
    s->too_many = 0;
    nrd_error *err = nrd_json_parse(&doc, nrd_str_cstr(messages), messages->len, NULL);
    err = err ? err : generate(s, "", 0, nrd_json_root(doc), out);
    nrd_json_doc_free(doc);
    *out_too_many = s->too_many;
    return err;
}

static void talk_content(void *user, nrd_str *out, const char *text, size_t n, bool of_user)
{
    nrd_tool_pictures_put(&((session *)user)->pictures, out, text, n, of_user);
}

static nrd_error *talk_picture(void *user, const char *path)
{
    session *s = user;
    return s->pictures.is_on ? nrd_tool_pictures_add(&s->pictures, path)
                             : nrd_errorf(NRD_ERR_UNSUPPORTED, "this model takes text alone");
}

static void talk_take_back_pictures(void *user)
{
    nrd_tool_pictures_take_back(&((session *)user)->pictures);
}

static bool talk_has_pictures(void *user)
{
    return ((session *)user)->pictures.n > 0 || ((session *)user)->pictures.video.n_frames > 0;
}

static void talk_forget_pictures(void *user)
{
    nrd_tool_pictures_clear(&((session *)user)->pictures);
}

static nrd_error *talk_set(void *user, const char *name, const char *value)
{
    return nrd_talk_set(&((session *)user)->values, name, value);
}

static void talk_settings(void *user, nrd_str *out)
{
    nrd_talk_put_settings(&((session *)user)->values, out);
}

/* An answer has room for an eighth of the sequence at least, or for all that it may have. */
static nrd_error *converse(session *s, const char *name)
{
    const struct sigaction act = {.sa_handler = on_interrupt}; /* no restart: ends the reading too */
    nrd_exec_info info = {.size = sizeof info};
    nrd_exec_get_info(s->x, &info);
    const int32_t eighth = info.max_seq_len / 8, room = s->values.max_tokens < eighth ? s->values.max_tokens : eighth;
    const int32_t left = info.max_seq_len - (room > 0 ? room : 1);
    const char *label = strrchr(name, '/');
    const nrd_talk t = {
        .user = s, .name = label && label[1] ? label + 1 : name, .system = s->o->system, .max_tokens = info.max_seq_len,
        .max_prompt = info.max_input_len < left ? info.max_input_len : left, .answer = talk_answer,
        .put_content = talk_content, .add_picture = talk_picture,
        .take_back_pictures = talk_take_back_pictures, .has_pictures = talk_has_pictures,
        .forget_pictures = talk_forget_pictures, .set = talk_set, .put_settings = talk_settings};

    s->max_seq_len = info.max_seq_len;
    s->max_prompt = t.max_prompt;
    sigaction(SIGINT, &act, NULL);
    return nrd_talk_run(&t);
}

/* Before anything is continued by a model that might have been expected to answer. */
static void tell_continues(const session *s, const char *path)
{
    nrd_exec_info info = {.size = sizeof info};
    nrd_exec_get_info(s->x, &info);
    if (s->o->quiet || s->o->json || s->chat || info.max_encoder_input_len > 0) { /* a text is translated or summed up */
        return;
    }
    if (nrd_tokenizer_chat_template(s->t)) {
        fputs("the text is continued; --chat asks the model\n", stderr);
    } else {
        char *name = nrd_repo_model_name(path);
        fprintf(stderr, "%s has no chat template: it continues the text, and does not answer\n", name);
        free(name);
    }
}

static nrd_error *each_line(session *s)
{
    nrd_error *err = NULL;
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    while (!err && (fputs(s->o->asks ? "> " : "", stderr), n = getline(&line, &cap, stdin)) >= 0) {
        while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r')) {
            n--;
        }
        if (n > 0) {
            err = one_prompt(s, line, (size_t)n);
        }
    }
    free(line);
    return err;
}

static nrd_error *read_template(const nrd_run_options *o, char **out)
{
    return o->chat_template ? nrd_error_wrap(nrd_tool_chat_template(o->chat_template, out), "--chat-template") : NULL;
}

static nrd_error *run(const char *path, const nrd_run_options *o, bool conversation)
{
    nrd_error *err = NULL;
    nrd_model_path m = {0};
    session s = {.o = o};
    nrd_exec_config c;
    char *text = NULL, *template = NULL;
    size_t len = 0;

    nrd_ranks_enter();
    NRD_TRY_GOTO(nrd_exec_options_open(&o->exec, path, &m), err, done);
    s.is_engine = nrd_engine_is_folder(path);
    NRD_TRY_GOTO(find_tokenizer(&s.text, o, &m), err, done);
    s.t = nrd_text_tokenizer(s.text);
    NRD_TRY_GOTO(resolve(&s), err, done);
    if (o->chat || (o->asks && (o->chat_template || nrd_tokenizer_chat_template(s.t)))) {
        NRD_TRY_GOTO(read_template(o, &template), err, done);
        NRD_TRY_GOTO(nrd_chat_open(&s.chat, s.t, template), err, done);
    }
    nrd_exec_config_init(&c);
    NRD_TRY_GOTO(nrd_exec_options_apply(&o->exec, &c), err, done);
    c.tokenizer_dir = m.tokenizer; /* a draft model's is compared with it */
    c.enable_chunked_context = true;
    c.enable_kv_cache_reuse = true;
    c.max_batch_size = c.max_batch_size ? c.max_batch_size : 1;
    c.max_beam_width = s.n_beams;
    c.max_num_tokens = c.max_num_tokens ? c.max_num_tokens : 1024;
    NRD_TRY_GOTO(nrd_exec_open(&s.x, m.engine, &c), err, done);
    fit_beams(&s);
    NRD_TRY_GOTO(nrd_exec_options_adapter(&o->exec, s.x, &s.lora_id), err, done);
    nrd_tool_pictures_init(&s.pictures, m.engine, s.t, template ? template : nrd_tokenizer_chat_template(s.t));
    NRD_TRY_GOTO(o->image ? nrd_tool_pictures_add(&s.pictures, o->image) : NULL, err, done);
    NRD_TRY_GOTO(o->video ? nrd_tool_pictures_add_video(&s.pictures, m.engine, o->video, o->video_fps) : NULL, err, done);
    NRD_TRY_GOTO(find_stops(&s), err, done);
    tell_continues(&s, path);
    if (conversation || (o->asks && !o->prompt && s.chat)) {
        err = converse(&s, path);
    } else if (o->prompt) {
        err = one_prompt(&s, o->prompt, strlen(o->prompt));
    } else if (o->prompt_file) {
        NRD_TRY_GOTO(nrd_file_read(&text, &len, o->prompt_file, MAX_PROMPT_BYTES), err, done);
        err = one_prompt(&s, text, len);
    } else {
        err = each_line(&s);
    }
done:
    nrd_exec_close(s.x);
    nrd_chat_free(s.chat);
    free(template);
    nrd_tool_pictures_clear(&s.pictures);
    nrd_text_close(s.text);
    nrd_ids_fini(&s.stop_ids);
    nrd_ids_fini(&s.stop_ends);
    nrd_model_path_close(&m);
    free(text);
    return err;
}

static int generate_verb(const nrd_tool_table *table, int argc, char **argv, bool chat)
{
    nrd_run_options o;
    const char *path = NULL;
    int status = nrd_run_read_options(&o, table, argc, argv, chat, &path);
    return status >= 0 ? status : nrd_tool_finish(table->verb, run(path, &o, chat));
}

int nrd_tool_run(int argc, char **argv)
{
    return generate_verb(&nrd_run_table, argc, argv, false);
}

int nrd_tool_chat(int argc, char **argv)
{
    return generate_verb(&nrd_chat_table, argc, argv, true);
}
