/* SPDX-License-Identifier: Apache-2.0
 * The command lines of nereid run and nereid chat. */
#include "tools/run_internal.h"

#include "text/template/chat.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char usage[] =
    "Usage: nereid run PATH                          a conversation, as nereid chat\n"
    "       nereid run PATH \"question\"               one answer\n"
    "       nereid run PATH -p \"text\" [options]      the text is continued; with --chat it is a question\n"
    "       nereid run PATH < prompts.txt            one prompt a line\n\n"
    "PATH is an engine folder, a GGUF file, a Hugging Face or checkpoint folder, or the name of a model that is\n"
    "fetched (nereid help pull).\n";

static const char chat_usage[] =
    "Usage: nereid chat PATH [--system \"text\"] [options]\n\n"
    "PATH is an engine folder, a GGUF file, a Hugging Face or checkpoint folder, or the name of a model that is\n"
    "fetched (nereid help pull).\n"
    "Lines are messages; Ctrl-C stops an answer, Ctrl-D ends. /help lists the commands: /set, /system, /image, /regen, /save,\n"
    "/load, /clear, /exit; \"\"\" begins and ends a message of several lines. When a conversation is longer than the model takes, its\n"
    "oldest messages are left out.\n";

#define OPT(...) NRD_OPT_ROW(nrd_run_options, __VA_ARGS__)
/* What both verbs have. */
#define SAMPLING_ROWS                                                                              \
    OPT(NUM, "temperature", NULL, temperature, "X", "the model's own, else 0.8",                   \
        "0: the best token; 1: as the model weighs them"),                                         \
    OPT(INT, "top_k", NULL, top_k, "K", "the model's own, else 40",                                \
        "sample from the best K; 0: all"),                                                         \
    OPT(NUM, "top_p", NULL, top_p, "X", "the model's own, else 0.95",                              \
        "sample from the best with this probability"),                                             \
    OPT(NUM, "min_p", NULL, min_p, "X", "the model's own, else 0.05",                              \
        "drop tokens below X times the best"),                                                     \
    OPT(NUM, "repetition_penalty", NULL, repetition_penalty, "X", "the model's own, else 1",       \
        "1: off"),                                                                                 \
    OPT(STR, "generation_config", NULL, generation_config, "auto|none", "auto",                    \
        "the model's own: generation_config.json, or general.sampling.* of a GGUF file, with an encoder beams and lengths too; none: all " \
        "of the vocabulary at temperature 1"),                                                     \
    OPT(STR, "seed", NULL, seed, "N", "random, told at the end", "same seed, same text"),          \
    OPT(STR, "stop", NULL, stop, "TEXT", NULL, "end after this phrase"),                           \
    OPT(FLAG, "ignore_eos", NULL, ignore_eos, NULL, NULL, "go on behind the end token"),           \
    OPT(FLAG, "quiet", "-q", quiet, NULL, NULL, "no rates at the end"),                            \
    OPT(STR, "chat_template", NULL, chat_template, "FILE|NAME", "the model's own", NRD_CHAT_TEMPLATE_NAMES ", or a file"), \
    OPT(STR, "image", NULL, image, "FILE", NULL, "a picture (JPEG, PNG, WebP, PPM) before the first message, for models that see; "   \
        "without a chat template the prompt says where, by the model's mark"),                    \
    OPT(STR, "video", NULL, video, "DIR", NULL, "a folder of pictures, by their names the frames of a video, before the first message"),  \
    OPT(NUM, "video_fps", NULL, video_fps, "N", "2", "frames of --video a second"),                   \
    OPT(STR, "tokenizer_dir", NULL, exec.tokenizer_dir, "DIR", NULL, "where PATH has none")

/* A second prompt would take the place of the first without a word. */
#define ONCE(name_, alias_, field_, arg_, help_)                                                   \
    {.name = name_, .form = NRD_OPT_STR, .offset = offsetof(nrd_run_options, field_), .arg = arg_,         \
     .help = help_, .alias = alias_, .once = true}

static const nrd_opt run_rows[] = {
    ONCE("prompt", "-p", prompt, "TEXT", "what to continue (else lines of stdin)"),
    ONCE("prompt_file", "-f", prompt_file, "FILE", "the prompt is this file"),
    OPT(INT, "max_tokens", "-n", n, "N", "128, of an answer 1024; with an encoder the model's own", "most new tokens"),
    OPT(FLAG, "chat", NULL, chat, NULL, NULL, "apply the chat template"),
    ONCE("system", NULL, system, "TEXT", "the system prompt, with --chat"),
    SAMPLING_ROWS,
    OPT(INT, "beam_width", NULL, beam_width, "N", "1; with an encoder the model's own", "beam search; sampling is then off"),
    OPT(FLAG, "echo", NULL, echo, NULL, NULL, "print the prompt too"),
    OPT(FLAG, "json", NULL, json, NULL, NULL, "at the end of each answer an object on a line: text, why it ended, tokens, seconds"),
    OPT(STR, "source_lang", NULL, source_lang, "LANG", "the model's own", "what the prompt is written in, for models that translate"),
    OPT(STR, "target_lang", NULL, target_lang, "LANG", "the model's own", "what it is to become, as the model calls it: fr, fra_Latn"),
    NRD_EXEC_OPTION_ROWS(nrd_run_options, exec),
};
const nrd_tool_table nrd_run_table = NRD_TOOL_TABLE("run", usage, run_rows, 2);

#define NOT_IN_CHAT "messages come from the terminal; for one prompt: nereid run --chat"
static const nrd_opt chat_rows[] = {
    ONCE("system", NULL, system, "TEXT", "the system prompt"),
    OPT(INT, "max_tokens", "-n", n, "N", "1024", "most new tokens of an answer"),
    SAMPLING_ROWS,
    REFUSED("prompt", "-p", NOT_IN_CHAT),
    REFUSED("prompt_file", "-f", NOT_IN_CHAT),
    REFUSED("echo", NULL, NOT_IN_CHAT),
    REFUSED("json", NULL, NOT_IN_CHAT),
    REFUSED("beam_width", NULL, "answers are printed as they come, and beams are known at their end"),
    NRD_EXEC_OPTION_ROWS(nrd_run_options, exec),
};
const nrd_tool_table nrd_chat_table = NRD_TOOL_TABLE("chat", chat_usage, chat_rows, 1);

/* What cannot be together; NULL: nothing. */
static const char *conflict(const nrd_run_options *o)
{
    if (strcmp(o->generation_config, "auto") != 0 && strcmp(o->generation_config, "none") != 0) {
        return "--generation-config: expected auto or none";
    }
    if (o->prompt && o->prompt_file) {
        return "--prompt and --prompt-file: one of them";
    }
    if ((o->chat || o->system || o->chat_template) && (o->source_lang || o->target_lang)) {
        return "--source-lang, --target-lang: not with --chat";
    }
    if (o->json && o->echo) {
        return "--json and --echo: one of them";
    }
    if (o->json && o->asks && !o->prompt) {
        return "--json needs a prompt: a conversation is no list of answers";
    }
    if (o->system && !o->chat && !o->asks) {
        return "--system needs --chat";
    }
    return o->chat_template && !o->chat && !o->asks ? "--chat-template needs --chat" : NULL;
}

/* Before a model is fetched or built for it; NULL: nothing. */
static const char *out_of_range(const nrd_run_options *o)
{
    return o->n != NRD_RUN_UNSET && o->n < 1                           ? "--max-tokens: at least 1"
           : o->temperature < 0                                        ? "--temperature: at least 0"
           : o->top_p < 0 || o->top_p > 1                              ? "--top-p: from 0 to 1"
           : o->min_p < 0 || o->min_p > 1                              ? "--min-p: from 0 to 1"
           : o->repetition_penalty <= 0                                ? "--repetition-penalty: above 0"
           : o->beam_width != NRD_RUN_UNSET && o->beam_width < 1       ? "--beam-width: at least 1"
                                                                       : NULL;
}

int nrd_run_read_options(nrd_run_options *o, const nrd_tool_table *table, int argc, char **argv, bool chat, const char **path)
{
    *o = (nrd_run_options){.n = NRD_RUN_UNSET, .n_otherwise = chat ? 1024 : 128, .temperature = NAN, .top_p = NAN, .min_p = NAN,
                           .repetition_penalty = NAN, .video_fps = 2, .top_k = NRD_RUN_UNSET, .beam_width = NRD_RUN_UNSET, .chat = chat,
                           .generation_config = "auto"};
    const char *words[2] = {NULL, NULL}; /* PATH, a question */
    size_t n = 0;
    int status = nrd_tool_parse(table, argc, argv, o, words, &n);
    if (status >= 0) {
        return status;
    }
    const bool two = words[1] && (o->prompt || o->prompt_file);
    o->asks = !chat && (words[1] || (!o->prompt && !o->prompt_file && !o->chat && isatty(STDIN_FILENO)));
    o->exec.needs_tokenizer = true;
    o->n_otherwise = o->asks ? 1024 : o->n_otherwise;
    o->prompt = words[1] ? words[1] : o->prompt;
    const char *wrong = n == 0 ? "PATH is missing (see --help)" : two ? "two prompts: 'question' or --prompt, --prompt-file" : conflict(o);
    wrong = wrong ? wrong : out_of_range(o);
    if (wrong) {
        fprintf(stderr, "nereid %s: %s\n", table->verb, wrong);
        return 2;
    }
    *path = words[0];
    return -1;
}
