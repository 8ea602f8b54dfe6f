/* SPDX-License-Identifier: Apache-2.0
 * nereid bench serve: a load on a server, ours or another one, and what its users would feel. */
#include "tools/tools.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/mem.h"
#include "tools/load/connection.h"
#include "tools/load/grpc_open.h"
#include "tools/load/model_inputs.h"
#include "tools/load/report.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char usage[] = "Usage: nereid bench serve [URL] [options]\n\n"
                            "Sends requests to a server and measures first tokens, times between "
                            "tokens and whole answers. URL is\n"
                            "that of its HTTP service, by default http://localhost:8000, or with --protocol grpc that of gRPC, localhost:8001;\n"
                            "any server with the OpenAI API will do for --api completions and chat.\n\n"
                            "Without --request_rate and --trace, --concurrency requests are under "
                            "way at any time (closed loop).\n"
                            "With one of them requests come when they come (open loop). Lengths "
                            "are N, normal:MEAN,DEVIATION or\n"
                            "uniform:LOW,HIGH tokens. Several values of --concurrency or "
                            "--request_rate, with commas between, are\n"
                            "measured one after the other.\n";

enum { MAX_LEVELS = 64, DEFAULT_PROMPTS = 1000, DEFAULT_WORDS = 128, MAX_PROMPTS = 100000 };

typedef struct {
    nrd_connection connection; /* first: NRD_CONNECTION_OPTION_ROWS */
    const char *api, *protocol, *body, *tokenizer, *dataset, *trace, *seed;
    const char *concurrency, *rate, *arrivals, *goodput, *json, *csv, *html, *input_len,
        *output_len;
    int32_t n_requests, warmup, vocab, prefix_len, prefixes, max_input_len, end_id, pad_id;
    double duration, speed;
    bool no_stream, ids, ignore_eos, no_usage, no_progress;
} options;

typedef struct bench {
    const options *o;
    nrd_api api;
    nrd_tokenizer *tokenizer;
    nrd_prompts prompts;
    int32_t words; /* of made-up prompts whose length nobody has given; 0: it was given */
    nrd_str *bodies; /* [prompts.n] */
    nrd_arrivals arrivals;
    nrd_load load;
    unsigned long long seed;
    char *heading, *path; /* of the report and of the requests */
    nrd_load_report report;
    nrd_load_level levels[MAX_LEVELS];
} bench;

/* ---- what is sent ---- */

static nrd_error *read_api(bench *b)
{
    const options *o = b->o;
    nrd_api *a = &b->api;

    if (!nrd_api_find(&a->kind, o->api)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "--api: expected %s, got '%s'", nrd_api_names(),
                          o->api);
    }
    const bool is_grpc = !strcmp(o->protocol, "grpc");
    if (!is_grpc && strcmp(o->protocol, "http") != 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "--protocol: expected http or grpc, got '%s'", o->protocol);
    }
    if (is_grpc && a->kind != NRD_API_INFER && a->kind != NRD_API_INFER_STREAM) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "--protocol grpc: expected --api infer or infer_stream, got '%s'", o->api);
    }
    if (!is_grpc && a->kind == NRD_API_INFER_STREAM) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "--api infer_stream needs --protocol grpc; over HTTP it is generate_stream");
    }
    if (is_grpc) {
        NRD_TRY(nrd_grpc_plugin(&a->grpc));
    }
    const bool is_infer = a->kind == NRD_API_INFER || a->kind == NRD_API_INFER_STREAM;
    const bool is_openai = a->kind == NRD_API_COMPLETIONS || a->kind == NRD_API_CHAT;
    a->model = o->connection.model;
    a->path = o->connection.path;
    a->is_plain = o->no_stream && is_openai;
    a->sends_ids = o->ids || (is_infer && !strcmp(o->connection.model, "tensorrt_llm"));
    a->ignores_end = o->ignore_eos;
    a->asks_usage = !o->no_usage;
    a->end_id = o->end_id;
    a->pad_id = o->pad_id;
    a->sampling = o->connection.sampling;
    if (a->sends_ids && !is_infer && a->kind != NRD_API_COMPLETIONS) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "--ids: only infer and completions take token ids, not %s", o->api);
    }
    if (o->connection.sampling && is_infer) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "--sampling: infer takes tensors only; generate takes members");
    }
    if ((a->kind == NRD_API_RAW) != (o->body != NULL)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "--api raw and --body FILE belong together");
    }
    return NULL;
}

/* What the model calls the fewest tokens of an answer: there the end is ignored. */
static nrd_error *find_least(nrd_api *a, const options *o, const char *url)
{
    static const char *const names[] = {"min_length", "min_tokens"}; /* up to v0.19, after it */
    const nrd_client_config server = nrd_connection_config(&o->connection, url, "");
    uint32_t has = 0;
    NRD_TRY(nrd_load_find_inputs(a, &server, names, 2, &has));
    if (!has) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "--ignore_eos: model '%s' has no input min_length or min_tokens", a->model);
    }
    a->least = names[has & 1 ? 0 : 1];
    return NULL;
}

/* How many values a list with commas has; NULL: one. */
static int64_t n_values(const char *list)
{
    int64_t n = 1;
    for (; list && *list; list++) {
        n += *list == ',';
    }
    return n;
}

static nrd_error *read_prompts(bench *b)
{
    const options *o = b->o;
    const bool is_random = !strcmp(o->dataset, "random");
    const int64_t all = o->n_requests * n_values(o->concurrency) * n_values(o->rate); /* each level has prompts of its own */
    const int32_t n = all < MAX_PROMPTS ? (int32_t)all : MAX_PROMPTS;
    nrd_prompts_config c = {.wants_ids = b->api.sends_ids,
                            .vocab = o->vocab,
                            .out_is_given = o->output_len != NULL,
                            .prefix_len = o->prefix_len,
                            .n_prefixes = o->prefixes,
                            .max_in = o->max_input_len,
                            .n = n > 0       ? (size_t)n
                                 : is_random ? DEFAULT_PROMPTS
                                             : 0,
                            .seed = b->seed};

    if (b->words > 0) {
        c.in = (nrd_lengths){NRD_LENGTH_FIXED, b->words, 0};
    } else {
        NRD_TRY(nrd_lengths_parse(&c.in, "input_len", o->input_len ? o->input_len : "128"));
    }
    NRD_TRY(nrd_lengths_parse(&c.out, "output_len", o->output_len ? o->output_len : "128"));
    if (o->tokenizer && !b->tokenizer) {
        NRD_TRY(nrd_tokenizer_open(&b->tokenizer, o->tokenizer));
    }
    c.tokenizer = b->tokenizer;
    if (c.wants_ids && !is_random && !c.tokenizer) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "token ids of a file's prompts need --tokenizer");
    }
    if (b->api.kind == NRD_API_RAW) {
        c.n = 1; /* counts nothing */
        c.in = c.out = (nrd_lengths){NRD_LENGTH_FIXED, 1, 0};
    } else if (!is_random) {
        return nrd_prompts_read(&b->prompts, o->dataset, &c);
    }
    return nrd_prompts_make(&b->prompts, &c);
}

static nrd_error *make_bodies(bench *b)
{
    enum { MAX_BODY = 64 << 20 };
    nrd_error *err = NULL;
    b->bodies = nrd_xcalloc(b->prompts.n, sizeof *b->bodies);
    if (b->api.kind == NRD_API_RAW) {
        NRD_TRY(nrd_file_read(&b->bodies[0].data, &b->bodies[0].len, b->o->body, MAX_BODY));
    }
    for (size_t i = 0; i < b->prompts.n && !err && b->api.kind != NRD_API_RAW; i++) {
        err = nrd_api_body(&b->api, &b->prompts.v[i], &b->bodies[i]);
    }
    return err;
}

static void free_bodies(bench *b)
{
    for (size_t i = 0; b->bodies && i < b->prompts.n; i++) {
        nrd_str_fini(&b->bodies[i]);
    }
    free(b->bodies);
    b->bodies = NULL;
}

/* Prompts and what is sent of them. */
static nrd_error *fill(bench *b)
{
    NRD_TRY(read_prompts(b));
    for (size_t i = 0; i < b->arrivals.n_trace && i < b->prompts.n;
         i++) { /* lengths of the trace, where it has them */
        const int32_t n_out = b->arrivals.trace[i].n_out;
        b->prompts.v[i].max_tokens = n_out > 0 ? n_out : b->prompts.v[i].max_tokens;
    }
    return make_bodies(b);
}

/* ---- loads ---- */

/* The longest body: has most tokens, or nearly so. */
static size_t longest(const bench *b)
{
    size_t best = 0;
    for (size_t i = 1; i < b->prompts.n; i++) {
        best = b->bodies[i].len > b->bodies[best].len ? i : best;
    }
    return best;
}

/* From the first prompt on, or from the longest where their length may still be changed. */
static nrd_error *warm_up_once(const bench *b, bool *out_refused)
{
    nrd_load l = b->load;
    nrd_load_result r;
    const size_t first = b->words > 0 ? longest(b) : 0;

    l.prompts += first;
    l.bodies += first;
    l.n_prompts -= first;
    l.arrivals = NULL;
    l.n_requests = (size_t)b->o->warmup;
    l.duration_s = 0;
    l.concurrency = 1;
    l.shows_progress = false;
    NRD_TRY(nrd_load_run(&l, &r));
    nrd_error *err = r.n_failed > 0 ? nrd_errorf(NRD_ERR_UNAVAILABLE, "%s: %s", l.server.url, nrd_str_cstr(&r.error)) : NULL;
    *out_refused = r.n_refused > 0 && r.n_refused == r.n_failed;
    nrd_load_result_fini(&r);
    return err;
}

/* Half as many words. */
static nrd_error *shorten(bench *b)
{
    b->words /= 2;
    free_bodies(b);
    nrd_prompts_fini(&b->prompts);
    NRD_TRY(fill(b));
    b->load.prompts = b->prompts.v;
    b->load.bodies = b->bodies;
    return NULL;
}

/* A failed warm-up ends it all: a server that does not answer cannot be measured. Where nobody has said how long prompts
 * are, and the server does not take them, shorter ones are tried: it alone knows its tokens, its template and its limit. */
static nrd_error *warm_up(bench *b)
{
    const int32_t words = b->words;
    bool is_refused = false;
    nrd_error *first = warm_up_once(b, &is_refused), *err = first;

    while (err && is_refused && b->words > 1) {
        if (err != first) {
            nrd_error_free(err);
        }
        is_refused = false;
        err = shorten(b);
        err = err ? err : warm_up_once(b, &is_refused);
    }
    if (first && !err) {
        fprintf(stderr, "nereid bench serve: --input_len %d instead of %d, which was refused: %s\n", b->words, words,
                nrd_error_message(first));
        nrd_error_free(first);
    } else if (err != first) { /* what is wrong is not the length */
        nrd_error_free(err);
        err = first;
    }
    return err;
}

/* "1,2,4": the i-th number; false: there is none. inf and -1 of rates: no pause between requests. */
static nrd_error *nth(const char *name, const char *list, size_t i, bool *out_found, double *out)
{
    const char *p = list;
    char word[32];
    while (i > 0 && p) {
        p = strchr(p, ',');
        p = p ? p + 1 : NULL;
        i--;
    }
    *out_found = p != NULL;
    if (!p) {
        return NULL;
    }
    const size_t n = strcspn(p, ",");
    if (n < sizeof word) {
        memcpy(word, p, n);
        word[n] = '\0';
        if (!strcmp(word, "inf") || !strcmp(word, "-1")) {
            *out = 0;
            return NULL;
        }
        if (nrd_parse_f64(word, out) && *out > 0 && *out <= 1e9) {
            return NULL;
        }
    }
    return nrd_errorf(NRD_ERR_INVALID_ARG,
                      "--%s: expected numbers above 0 with commas between, got '%s'", name, list);
}

static nrd_error *run_level(bench *b, double concurrency, double rate)
{
    if (b->report.n == MAX_LEVELS) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "at most %d levels can be measured at once",
                          MAX_LEVELS);
    }
    nrd_load_level *level = &b->levels[b->report.n];
    nrd_load l = b->load;
    nrd_str text = {0};

    level->concurrency = (int32_t)concurrency;
    level->rate = rate;
    l.concurrency = level->concurrency;
    b->arrivals.rate = rate;
    l.arrivals = rate > 0 || b->o->trace ? &b->arrivals : NULL;
    if (!l.arrivals && l.concurrency == 0) {
        l.concurrency = l.n_requests > 0 ? (int32_t)l.n_requests : 1; /* all at once: rate inf */
        level->concurrency = l.concurrency;
    }
    b->report.n++;
    NRD_TRY(nrd_load_run(&l, &level->result));
    b->load.first_prompt += level->result.n; /* the server's cache has the others */
    nrd_load_report_text(&b->report, b->report.n - 1, &text);
    (void)fputs(nrd_str_cstr(&text), stdout);
    (void)fflush(stdout);
    nrd_str_fini(&text);
    return NULL;
}

static nrd_error *run_levels(bench *b)
{
    const options *o = b->o;
    const bool is_open = o->rate || o->trace;
    const char *limits = o->concurrency ? o->concurrency : is_open ? "" : "1";

    for (size_t i = 0;; i++) {
        double limit = 0;
        bool found = true;
        if (*limits) {
            NRD_TRY(nth("concurrency", limits, i, &found, &limit));
        }
        for (size_t k = 0; found; k++) {
            double rate = 0;
            bool has_rate = k == 0;
            if (o->rate) {
                NRD_TRY(nth("request_rate", o->rate, k, &has_rate, &rate));
            }
            if (!has_rate) {
                break;
            }
            NRD_TRY(run_level(b, limit, rate));
            if (b->levels[b->report.n - 1].result.was_stopped) {
                return NULL;
            }
        }
        if (!found || !*limits) {
            return NULL;
        }
    }
}

static nrd_error *write_reports(bench *b)
{
    const options *o = b->o;
    nrd_str out = {0};
    nrd_error *err = NULL;

    if (o->json) {
        nrd_load_report_json(&b->report, &out);
        NRD_TRY_GOTO(nrd_file_write(o->json, out.data, out.len), err, done);
    }
    nrd_str_clear(&out);
    if (o->csv) {
        nrd_load_report_csv(&b->report, &out);
        NRD_TRY_GOTO(nrd_file_write(o->csv, out.data, out.len), err, done);
    }
    nrd_str_clear(&out);
    if (o->html) {
        for (size_t i = 0; i < b->report.n; i++) {
            nrd_load_report_text(&b->report, i, &out);
        }
        err = nrd_load_report_page(&b->report, o->html, nrd_str_cstr(&out));
    }
done:
    nrd_str_fini(&out);
    return err;
}

static nrd_error *set_up(bench *b, const char *url)
{
    const options *o = b->o;
    nrd_str path = {0};

    if (o->seed && !nrd_parse_u64(o->seed, &b->seed)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "--seed: '%s' is no number", o->seed);
    }
    if (strcmp(o->arrivals, "poisson") != 0 && strcmp(o->arrivals, "constant") != 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "--arrivals: expected poisson or constant, got '%s'",
                          o->arrivals);
    }
    b->arrivals.is_constant = *o->arrivals == 'c';
    NRD_TRY(read_api(b));
    if (b->api.ignores_end && !b->api.sends_ids && (b->api.kind == NRD_API_INFER || b->api.kind == NRD_API_INFER_STREAM)) {
        NRD_TRY(find_least(&b->api, o, url));
    }
    if (o->goodput) {
        NRD_TRY(nrd_load_limits_parse(&b->report.limits, o->goodput));
    }
    if (o->trace) {
        NRD_TRY(nrd_arrivals_read(&b->arrivals, o->trace, o->speed));
    }
    b->words = !o->input_len && o->prefix_len == 0 && !strcmp(o->dataset, "random") && b->api.kind != NRD_API_RAW
                   ? DEFAULT_WORDS : 0;
    NRD_TRY(fill(b));
    nrd_api_path(&b->api, &path);
    b->report.url = url;
    b->report.model = o->connection.model;
    b->report.api = o->api;
    b->report.streams = nrd_api_streams(&b->api);
    b->report.levels = b->levels;
    b->heading = nrd_xasprintf("%s: %s, %s", url, o->connection.model, o->api);
    b->report.heading = b->heading;
    b->path = nrd_str_steal(&path);
    b->load = (nrd_load){.api = &b->api,
                         .carrier = b->api.grpc ? &b->api.grpc->calls : &nrd_http_carrier,
                         .server = nrd_connection_config(&o->connection, url, b->path),
                         .prompts = b->prompts.v,
                         .bodies = b->bodies,
                         .n_prompts = b->prompts.n,
                         .tokenizer = b->tokenizer,
                         .n_requests = (size_t)o->n_requests,
                         .duration_s = o->duration,
                         .seed = b->seed,
                         .shows_progress = !o->no_progress && isatty(STDERR_FILENO)};
    b->load.server.streams = b->api.kind == NRD_API_INFER_STREAM;
    return NULL;
}

static nrd_error *run(const options *o, const char *url, bool *out_failed)
{
    bench *b = nrd_xcalloc(1, sizeof *b);
    nrd_error *err = NULL;

    b->o = o;
    NRD_TRY_GOTO(set_up(b, url), err, done);
    NRD_TRY_GOTO(o->warmup > 0 ? warm_up(b) : NULL, err, done);
    NRD_TRY_GOTO(run_levels(b), err, done);
    err = write_reports(b);
    for (size_t i = 0; i < b->report.n; i++) {
        *out_failed |= b->levels[i].result.n_failed > 0;
    }
done:
    for (size_t i = 0; i < b->report.n; i++) {
        nrd_load_result_fini(&b->levels[i].result);
    }
    free_bodies(b);
    free(b->heading);
    free(b->path);
    nrd_prompts_fini(&b->prompts);
    nrd_arrivals_fini(&b->arrivals);
    nrd_tokenizer_close(b->tokenizer);
    free(b);
    return err;
}

/* ---- options ---- */

#define OPT(...) NRD_OPT_ROW(options, __VA_ARGS__)
#define INT(name_, field_, min_, max_, arg_, def_, help_)                                          \
    {                                                                                              \
        .name = (name_), .form = NRD_OPT_INT, .offset = offsetof(options, field_), .min = (min_),  \
        .max = (max_), .arg = (arg_), .def = (def_), .help = (help_)                               \
    }
static const nrd_opt rows[] = {
    OPT(STR, "api", "--endpoint_type", api, "NAME", "chat",
        "generate, generate_stream, infer, infer_stream, completions, chat or raw"),
    OPT(STR, "protocol", "-i", protocol, "NAME", "http", "http, or grpc for infer and infer_stream"),
    NRD_CONNECTION_OPTION_ROWS(options),
    OPT(STR, "body", NULL, body, "FILE", NULL, "api raw: what is sent"),
    OPT(FLAG, "no_stream", NULL, no_stream, NULL, NULL,
        "completions, chat: ask for the whole answer at once"),
    OPT(FLAG, "no_usage", NULL, no_usage, NULL, NULL,
        "do not ask streams to count tokens; each event counts as one"),
    OPT(FLAG, "ids", NULL, ids, NULL, NULL,
        "infer, completions: send token ids; infer of tensorrt_llm does anyway"),
    OPT(FLAG, "ignore_eos", NULL, ignore_eos, NULL, NULL, "all answers get as long as asked for"),
    INT("end_id", end_id, INT_MIN, INT_MAX, "ID", "2",
        "infer of ids: the token that ends an answer"),
    INT("pad_id", pad_id, INT_MIN, INT_MAX, "ID", "2", "infer of ids"),

    {.group = "Load",
     .name = "num_requests",
     .form = NRD_OPT_INT,
     .offset = offsetof(options, n_requests),
     .min = 1,
     .max = INT_MAX,
     .arg = "N",
     .alias = "-n --num_prompts",
     .def = "100, or as --duration and --trace say",
     .help = "requests of a level"},
    {.name = "duration",
     .form = NRD_OPT_NUM,
     .offset = offsetof(options, duration),
     .min = 0,
     .max = 1000000,
     .arg = "SECONDS",
     .help = "no request is sent after it"},
    OPT(STR, "concurrency", "-c --max_concurrency", concurrency, "N,…", "1; open loop: no limit",
        "requests at a time"),
    OPT(STR, "request_rate", NULL, rate, "R,…", NULL,
        "open loop: requests a second; inf or -1: all at once"),
    OPT(STR, "arrivals", "--time_delay_dist", arrivals, "KIND", "poisson",
        "of an open loop: poisson or constant"),
    OPT(STR, "trace", NULL, trace, "FILE", NULL,
        "open loop: lines of seconds, or of {\"timestamp\": ms, \"output_length\": n}"),
    {.name = "trace_speed",
     .form = NRD_OPT_NUM,
     .offset = offsetof(options, speed),
     .min = 0,
     .max = 1000000,
     .arg = "F",
     .def = "1",
     .help = "so many times as fast"},
    INT("warmup", warmup, 0, INT_MAX, "N", "1",
        "requests before measuring, one after the other; one that fails ends it"),

    {.group = "Prompts",
     .name = "dataset",
     .form = NRD_OPT_STR,
     .offset = offsetof(options, dataset),
     .arg = "random|FILE",
     .alias = "--dataset_path --input_data",
     .def = "random",
     .help = "made up, or a JSON list or lines of JSON (docs/benchmark.md)"},
    OPT(STR, "input_len", "--random_input_len", input_len, "LENGTH", "128, or what the server takes",
        "tokens of made-up prompts"),
    OPT(STR, "output_len", "--random_output_len", output_len, "LENGTH",
        "128, or what the file says", "tokens asked for"),
    INT("prefix_len", prefix_len, 0, INT_MAX, "N", "0",
        "first tokens of made-up prompts that groups share"),
    INT("num_prefixes", prefixes, 1, INT_MAX, "N", "1", "groups that share them"),
    INT("max_input_len", max_input_len, 0, INT_MAX, "N", "0: no limit",
        "longer prompts of a file are left out"),
    OPT(STR, "tokenizer", "--tokenizer_dir", tokenizer, "PATH", NULL,
        "counts tokens, and makes prompts as long as asked for"),
    INT("vocab", vocab, 0, INT_MAX, "N", "the tokenizer's, or 32000", "made-up ids are below"),
    OPT(STR, "seed", "--random_seed", seed, "N", "0", "of prompts, lengths and arrivals"),

    {.group = "Results",
     .name = "goodput",
     .form = NRD_OPT_STR,
     .offset = offsetof(options, goodput),
     .arg = "LIMITS",
     .help = "count requests that keep ttft:MS,tpot:MS,e2el:MS (some or all)"},
    OPT(STR, "json", "--report_json --profile_export_file", json, "FILE", NULL, "the figures"),
    OPT(STR, "csv", NULL, csv, "FILE", NULL, "a line for each request"),
    OPT(STR, "html", "--plot", html, "FILE", NULL, "a page with charts"),
    OPT(FLAG, "no_progress", NULL, no_progress, NULL, NULL,
        "nothing in between, also in a terminal"),
};
const nrd_tool_table nrd_bench_serve_table = NRD_TOOL_TABLE("bench_serve", usage, rows, 1);

int nrd_tool_bench_serve(int argc, char **argv)
{
    options o = {.connection = NRD_CONNECTION_DEFAULTS,
                 .api = "chat",
                 .protocol = "http",
                 .arrivals = "poisson",
                 .dataset = "random",
                 .warmup = 1,
                 .prefixes = 1,
                 .end_id = 2,
                 .pad_id = 2,
                 .speed = 1};
    const char *url = NULL;
    bool has_failed = false;
    size_t n = 0;
    int status = nrd_tool_parse(&nrd_bench_serve_table, argc, argv, &o, &url, &n);
    if (status < 0 && o.speed <= 0) {
        (void)fputs("nereid bench serve: --trace_speed must be above 0\n", stderr);
        status = 2;
    }
    if (status < 0) {
        o.n_requests = o.n_requests > 0 || o.duration > 0 || o.trace ? o.n_requests : 100;
        url = url ? url : !strcmp(o.protocol, "grpc") ? "localhost:8001" : "http://localhost:8000";
        status = nrd_tool_finish("bench serve", run(&o, url, &has_failed));
        status = status == 0 && has_failed ? 1 : status;
    }
    nrd_connection_fini(&o.connection);
    return status;
}
