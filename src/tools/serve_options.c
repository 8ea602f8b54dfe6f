/* SPDX-License-Identifier: Apache-2.0
 * The options of nereid serve: its own, and those of tritonserver, which are passed on. */
#include "tools/chat_template.h"
#include "tools/serve_internal.h"
#include "tools/tools.h"

#include "base/file.h"
#include "base/mem.h"
#include "nereid/executor.h"
#include "text/template/chat.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "Usage: nereid serve PATH [options] [options of tritonserver]\n"
    "       nereid serve PATH|NAME=PATH … [options]\n"
    "Serves a GGUF file, a Hugging Face or checkpoint folder, an engine folder or a model repository; or a model\n"
    "by its name, which is fetched: ORG/NAME[:QUANT] (nereid help pull).\n"
    "Of several models as many are in memory as fit there (--model-memory-gb); each is loaded when it is first\n"
    "asked for. One alone is treated so with NAME=PATH, --keep-alive, --pin, --preload or --model-memory-gb.\n"
    "Steps that are missing are done once and kept in $NEREID_CACHE (default ~/.cache/nereid).\n"
    "Every option of tritonserver is taken too: --grpc-port, --metrics-port, --api-key, --log-verbose, …\n"
    "(tritonserver --help)\n";

static nrd_error *on_set(void *values, const char *name, const char *value)
{
    nrd_serve_options *o = values;
    if (o->n_sets == NRD_SERVE_MAX_WORDS) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "--%s: at most %d times", name, NRD_SERVE_MAX_WORDS);
    }
    o->sets[o->n_sets++] = value;
    return NULL;
}

static nrd_error *on_build(void *values, const char *name, const char *value)
{
    (void)name;
    return nrd_serve_add_word(&((nrd_serve_options *)values)->build, nrd_xstrdup(value));
}

/* The server may run in another folder: paths are made whole. */
static nrd_error *on_lora(void *values, const char *name, const char *value)
{
    nrd_serve_options *o = values;
    (void)name;
    const char *equals = strchr(value, '=');
    char *dir = equals ? realpath(equals + 1, NULL) : NULL;
    nrd_error *err = NULL;

    if (!equals || equals == value) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "expected NAME=FOLDER, got '%s'", value);
    } else if (!dir) {
        err = nrd_path_missing(equals + 1);
    } else if (strpbrk(dir, ";\"\\") || strcspn(value, ";,\"\\") < (size_t)(equals - value)) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "quotes, backslashes, semicolons and, in names, commas are not "
                         "allowed in '%s'", value);
    } else {
        nrd_str_printf(&o->adapters, "%s%.*s=%s", o->adapters.len ? ";" : "", (int)(equals - value), value, dir);
    }
    free(dir);
    return err;
}

static nrd_error *on_speculative(void *values, const char *name, const char *value)
{
    (void)name;
    ((nrd_serve_options *)values)->speculative = value;
    return nrd_exec_check_speculative_config(value);
}

static nrd_error *on_record(void *values, const char *name, const char *value)
{
    nrd_serve_options *o = values;
    char *dir = nrd_path_dir(value), *whole = realpath(dir, NULL);
    nrd_error *err = NULL;

    if (!whole || strpbrk(whole, "\"\\") || strpbrk(value, "\"\\")) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "--%s: '%s' does not exist, or has quotes or backslashes in its path", name, dir);
    } else {
        free(o->record);
        o->record = nrd_path_join(whole, nrd_path_base(value));
    }
    free(whole);
    free(dir);
    return err;
}

/* MODEL=FILE: the template of one of several models. A file whose own name has "=" is that file. */
static nrd_error *on_template(void *values, const char *name, const char *value)
{
    nrd_serve_options *o = values;
    const char *eq = strchr(value, '=');
    char *text = NULL;

    (void)name;
    if (!eq || eq == value || nrd_path_exists(value)) {
        free(o->template);
        o->template = NULL;
        return nrd_tool_chat_template(value, &o->template);
    }
    for (size_t i = 0; i < o->n_templates; i++) {
        const char *other = o->templates[i].model;
        if (strlen(other) == (size_t)(eq - value) && !memcmp(other, value, strlen(other))) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "'%s' has two", other);
        }
    }
    if (o->n_templates == NRD_SEVERAL_MAX) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "more than %d", NRD_SEVERAL_MAX);
    }
    NRD_TRY(nrd_tool_chat_template(eq + 1, &text));
    o->templates[o->n_templates].model = nrd_xstrndup(value, (size_t)(eq - value));
    o->templates[o->n_templates++].text = text;
    return NULL;
}

/* Rows that have the name of an option of nereid build. */
static nrd_error *on_build_option(void *values, const char *name, const char *value)
{
    return nrd_serve_add_word(&((nrd_serve_options *)values)->build, nrd_xasprintf("--%s=%s", name, value));
}

/* Those that are counts. What this model allows, the builder says; what none does is said here, by the name that was given. */
static nrd_error *on_build_count(void *values, const char *name, const char *value)
{
    const int most = !strcmp(name, "max_batch_size")   ? 65536
                     : !strcmp(name, "max_num_tokens") ? 1 << 22
                     : !strcmp(name, "max_beam_width") ? 4096
                                                       : 1 << 26;
    long long n = 0;

    if (!nrd_parse_i64(value, &n) || n < 1 || n > most) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "expected a number from 1 to %d, got '%s'", most, value);
    }
    return on_build_option(values, name, value);
}

/* A share of what the weights leave free, where vLLM means all of a GPU. */
static nrd_error *on_memory_share(void *values, const char *name, const char *value)
{
    nrd_serve_options *o = values;
    double share;

    if (!nrd_parse_f64(value, &share) || !(share > 0 && share <= 1)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "expected a number above 0 and at most 1, got '%s'", value);
    }
    NRD_TRY(nrd_serve_add_word(&o->own_sets, nrd_xasprintf("kv_cache_free_gpu_mem_fraction:%g", share)));
    return on_set(o, name, o->own_sets.v[o->own_sets.n - 1]);
}

/* Of the model repository, where it has the same name. */
static nrd_error *on_own_set(void *values, const char *name, const char *value)
{
    nrd_serve_options *o = values;
    NRD_TRY(nrd_serve_add_word(&o->own_sets, nrd_xasprintf("%s:%s", name, value)));
    return on_set(o, name, o->own_sets.v[o->own_sets.n - 1]);
}

/* What the engine is built for, and what the server takes. */
static nrd_error *on_beams(void *values, const char *name, const char *value)
{
    NRD_TRY(on_build_count(values, name, value));
    return on_own_set(values, name, value);
}

static nrd_error *on_port(void *values, const char *name, const char *value)
{
    long long port = -1;
    (void)name;
    if (!nrd_parse_i64(value, &port) || port < 0 || port > UINT16_MAX) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "expected a number from 0 to %d, got '%s'", UINT16_MAX, value);
    }
    return nrd_serve_add_word(&((nrd_serve_options *)values)->server, nrd_xasprintf("--http-port=%s", value));
}

static nrd_error *on_host(void *values, const char *name, const char *value)
{
    static const char *const each[] = {"http", "grpc", "metrics"};
    (void)name;
    for (size_t i = 0; i < sizeof each / sizeof *each; i++) {
        NRD_TRY(nrd_serve_add_word(&((nrd_serve_options *)values)->server, nrd_xasprintf("--%s-address=%s", each[i], value)));
    }
    return NULL;
}

/* Others have to be let in; tritonserver keeps the addresses of Triton. Options that come later win; the
 * address of metrics is that of HTTP unless one is given. */
static nrd_error *stay_local(nrd_serve_options *o)
{
    NRD_TRY(nrd_serve_add_word(&o->server, nrd_xstrdup("--http-address=127.0.0.1")));
    return nrd_serve_add_word(&o->server, nrd_xstrdup("--grpc-address=127.0.0.1"));
}

static bool takes_grpc_ssl(void)
{
    for (size_t i = 0; i < nrd_option_n_rows; i++) {
        if (!strcmp(nrd_option_rows[i].name, "grpc-use-ssl")) {
            return nrd_option_rows[i].state == NRD_OPT_USED;
        }
    }
    return false;
}

/* One certificate for every port. Options of tritonserver that are given win, wherever they stand. */
static nrd_error *add_ssl(nrd_serve_options *o)
{
    static const char *const each[] = {"http", "grpc"};
    const nrd_serve_words given = o->server;
    nrd_error *err = NULL;

    if (!o->ssl_cert && !o->ssl_key && !o->ssl_ca) {
        return NULL;
    }
    if (!o->ssl_cert || !o->ssl_key) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "TLS needs --ssl-certfile and --ssl-keyfile");
    }
    o->server.n = 0;
    for (size_t i = 0; i < (takes_grpc_ssl() ? 2 : 1) && !err; i++) {
        const char *p = each[i];
        NRD_TRY_GOTO(nrd_serve_add_word(&o->server, nrd_xasprintf("--%s-use-ssl=true", p)), err, done);
        NRD_TRY_GOTO(nrd_serve_add_word(&o->server, nrd_xasprintf("--%s-server-cert=%s", p, o->ssl_cert)), err, done);
        NRD_TRY_GOTO(nrd_serve_add_word(&o->server, nrd_xasprintf("--%s-server-key=%s", p, o->ssl_key)), err, done);
        if (o->ssl_ca) {
            NRD_TRY_GOTO(nrd_serve_add_word(&o->server, nrd_xasprintf("--%s-use-ssl-mutual=true", p)), err, done);
            NRD_TRY_GOTO(nrd_serve_add_word(&o->server, nrd_xasprintf("--%s-root-cert=%s", p, o->ssl_ca)), err, done);
        }
    }
done:
    for (int i = 0; i < given.n; i++) { /* also after an error: their memory is freed with the list */
        if (err) {
            free(given.v[i]);
        } else {
            err = nrd_serve_add_word(&o->server, given.v[i]);
        }
    }
    return err;
}

/* An option of tritonserver goes to it. */
static nrd_error *on_server(void *values, const char *name, const char *value)
{
    return nrd_serve_add_word(&((nrd_serve_options *)values)->server,
                    nrd_xasprintf(value ? "--%s=%s" : "--%s", name, value ? value : ""));
}

/* The command line's is read before all others (nrd_serve_with_file). */
static nrd_error *on_config(void *values, const char *name, const char *value)
{
    (void)values;
    return nrd_errorf(NRD_ERR_INVALID_ARG, "--%s %s: one file, which names no other", name, value);
}

#define OPT(...) NRD_OPT_ROW(nrd_serve_options, __VA_ARGS__)
#define CALLS(name_, alias_, parse_, arg_, def_, help_)                                            \
    {.name = name_, .form = NRD_OPT_CUSTOM, .parse = parse_, .arg = arg_, .help = help_,           \
     .alias = alias_, .def = def_}
static const nrd_opt rows[] = {
    CALLS("config", NULL, on_config, "FILE", NULL, "options from a file, one a line: port: 8080; those of the command line win"),
    CALLS("extra_llm_api_options", NULL, on_config, "FILE", NULL, "arguments of TensorRT-LLM's LLM API from a file, as trtllm-serve reads them; they win"),
    OPT(STR, "model", "-m -hf --hf_repo", model, "PATH", NULL, "the same as PATH"),
    CALLS("port", "-p --http_port", on_port, "N", "8000", "port of the page, /v1 and /v2"),
    CALLS("host", NULL, on_host, "ADDRESS", "127.0.0.1",
          "address of every port; 0.0.0.0 opens them to other machines (--api-key)"),
    CALLS("max_seq_len", "-c --ctx_size --max_model_len", on_build_count, "N", "what the model was made for",
          "tokens of prompt and answer"),
    CALLS("quantize", "--quantization", on_build_option, "TYPE", "as the file has them", "weights become of this type: q8_0, q4_k, fp8, …"),
    CALLS("dtype", NULL, on_build_option, "TYPE", "as the file says", "what is computed in: bfloat16, float16, float32"),
    CALLS("kv_cache_dtype", NULL, on_build_option, "TYPE", "auto", "of the KV cache: fp8, int8"),
    CALLS("max_batch_size", "--max_num_seqs --parallel -np", on_build_count, "N", "64", "sequences that run together"),
    CALLS("max_num_tokens", "--max_num_batched_tokens -b --batch_size", on_build_count, "N", "8192", "tokens in one step"),
    CALLS("max_beam_width", NULL, on_beams, "N", "1", "beams that a request may have"),
    CALLS("n_threads", "-t --threads", on_own_set, "N", "one a core", "CPU threads of a rank"),
    CALLS("device", NULL, on_own_set, "NAME", "auto", "cpu or cuda"),
    CALLS("gpu_memory_utilization", "--kv_cache_free_gpu_mem_fraction --kv_cache_free_gpu_memory_fraction", on_memory_share, "X", "0.9", "share of the memory that weights leave free, for the KV cache"),
    OPT(INT, "tp_size", "--tensor_parallel_size", asked.tp_size, "N", "1",
          "ranks that share each layer: so many processes"),
    OPT(INT, "pp_size", "--pipeline_parallel_size", asked.pp_size, "N", "1",
          "pipeline stages, each of some layers: so many processes, times tp_size"),
    OPT(INT, "moe_ep_size", "--ep_size", asked.moe_ep_size, "N", "1",
          "of the tp_size ranks, how many share the list of experts instead of dividing each"),
    OPT(STR, "mmproj", "-mm", asked.mmproj, "FILE", "one beside PATH", "the vision tower of a GGUF model; none: text alone"),
    OPT(STR, "served_model_name", "--alias -a", served_names, "NAME[,NAME…]", "its file's or folder's name",
        "what clients of /v1 call the model"),
    OPT(STR, "tokenizer_dir", "--tokenizer", tokenizer_dir, "DIR", NULL, "the tokenizer, where PATH has none"),
    CALLS("chat_template", "--chat_template_file", on_template, "FILE|NAME", "the model's own", NRD_CHAT_TEMPLATE_NAMES ", or a file; of several models MODEL=FILE|NAME, for each that needs one"),
    OPT(STR, "ssl_certfile", "--ssl_cert_file", ssl_cert, "FILE", NULL, "certificate chain (PEM): every port speaks TLS"),
    OPT(STR, "ssl_keyfile", "--ssl_key_file", ssl_key, "FILE", NULL, "its private key (PEM)"),
    OPT(STR, "ssl_ca_certs", NULL, ssl_ca, "FILE", NULL,
        "certificates that sign clients (PEM): clients without one are refused"),
    CALLS("lora", "--lora_modules", on_lora, "NAME=FOLDER", NULL,
          "a LoRA adapter, which clients of /v1 call NAME; may be repeated"),
    CALLS("speculative_config", NULL, on_speculative, "JSON", "off",
          "several tokens a step, the same ones: {\"method\": \"ngram\"}, lookahead, medusa, eagle, eagle3, mtp, redrafter or a draft model"),
    CALLS("scheduler_record", NULL, on_record, "FILE", NULL,
          "keep in this file what the scheduler is told and decides: nereid repro FILE does it again"),
    CALLS("set", NULL, on_set, "NAME:VALUE[,…]", NULL, "values for the model repository (nereid help repo)"),
    CALLS("build", NULL, on_build, "OPTION[=VALUE]", NULL,
          "an option for nereid build, for example --build --max_batch_size=128; may be repeated"),
    OPT(FLAG, "prepare_only", NULL, prepare_only, NULL, NULL,
        "fetch and build what is missing, say so in lines of JSON, and start no server"),
};
enum { N_OWN = sizeof rows / sizeof *rows };
const nrd_tool_table nrd_serve_table = NRD_TOOL_TABLE("serve", usage, rows, NRD_SEVERAL_MAX);

/* Our rows, those of other servers, then our server's, which are only passed on. Owned by the caller. */
static nrd_opt *all_rows(size_t *out_n)
{
    nrd_opt *all = nrd_xcalloc(N_OWN + nrd_serve_n_peer_rows + nrd_option_n_rows, sizeof *all);
    memcpy(all, rows, sizeof rows);
    memcpy(all + N_OWN, nrd_serve_peer_rows, nrd_serve_n_peer_rows * sizeof *all);
    *out_n = N_OWN + nrd_serve_n_peer_rows;
    for (size_t i = 0; i < nrd_option_n_rows; i++) {
        const nrd_opt *o = &nrd_option_rows[i];
        nrd_opt *to = &all[*out_n];
        if (!strcmp(o->name, "help") || !strcmp(o->name, "version")) {
            continue;
        }
        *to = *o;
        to->form = nrd_opt_may_have_value(o) ? NRD_OPT_CUSTOM : NRD_OPT_CALL;
        to->parse = on_server;
        to->env = NULL; /* the server reads it itself */
        to->group = NULL;
        (*out_n)++;
    }
    return all;
}

/* The server says what is wrong on two lines, as Triton does. Takes err; NULL stays NULL. */
static nrd_error *on_one_line(nrd_error *err)
{
    if (!err) {
        return NULL;
    }
    char *text = nrd_xstrdup(nrd_error_message(err));
    for (char *c = text; (c = strchr(c, '\n')) != NULL;) {
        *c = ' ';
    }
    nrd_error *one = nrd_errorf(nrd_error_get_code(err), "%s", text);
    nrd_error_free(err);
    free(text);
    return one;
}

static bool asks_for_switching(const nrd_serve_options *o)
{
    static const char *const asks[] = {"--pin=", "--preload", "--keep-alive=", "--model-memory-gb="};
    char *name, *path;
    bool asked = o->n_words > 1 || o->prepare_only;

    nrd_several_split(o->words[0], &name, &path);
    asked = asked || name;
    free(name);
    free(path);
    for (int i = 0; i < o->server.n && !asked; i++) {
        for (size_t k = 0; k < sizeof asks / sizeof *asks; k++) {
            asked = asked || nrd_str_has_prefix(o->server.v[i], asks[k]);
        }
    }
    return asked;
}

/* Those that are about one model. */
static nrd_error *check_several_options(const nrd_serve_options *o)
{
    const char *one = o->adapters.len > 0 ? "lora" : o->record ? "scheduler-record" : o->served_names ? "served-model-name"
                      : o->tokenizer_dir && o->n_words > 1                                            ? "tokenizer-dir"
                                                                                                      : NULL;
    if (o->template && (o->n_words > 1 || o->n_templates > 0)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "--chat-template: of several models say which one: --chat-template MODEL=FILE");
    }
    return one ? nrd_errorf(NRD_ERR_INVALID_ARG, "--%s: is for one model that stays loaded; %s", one,
                            !strcmp(one, "served-model-name") ? "several get their names where they are given, as NAME=PATH"
                            : !strcmp(one, "tokenizer-dir")   ? "several have theirs in the folder of each"
                                                              : "give that one alone")
               : NULL;
}

int nrd_serve_read_options(nrd_serve_options *o, nrd_options *server, int argc, char **argv)
{
    char program[] = "tritonserver", *list[NRD_SERVE_MAX_WORDS + 2] = {program};
    nrd_tool_table table = nrd_serve_table;
    size_t n = 0;
    nrd_opt *all = all_rows(&n);
    nrd_error *err = stay_local(o);

    if (err) {
        free(all);
        return nrd_tool_finish("serve", err) + 1;
    }
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) {
            free(all);
            return nrd_tool_parse(&nrd_serve_table, 2, (char *[]){argv[0], argv[i], NULL}, o, NULL, NULL);
        }
    }
    table.rows = all;
    table.n_rows = n;
    err = nrd_serve_with_file(&o->line, argc, argv);
    int status = err ? nrd_tool_finish("serve", err) + 1
                     : nrd_tool_parse(&table, o->line.n, o->line.v, o, o->words, &o->n_words);
    free(all);
    if (status >= 0) {
        return status;
    }
    if (o->model && o->n_words > 0) {
        fprintf(stderr, "nereid serve: --model %s and %s: one of them; several models are words: nereid serve A B\n", o->model, o->words[0]);
        return 2;
    }
    if (o->model) {
        o->words[o->n_words++] = o->model;
    }
    if (o->n_words == 0) {
        fputs("nereid serve: PATH is missing (see --help)\n", stderr);
        return 2;
    }
    o->path = nrd_xstrdup(o->words[0]);
    o->switches = asks_for_switching(o);
    err = o->switches ? check_several_options(o)
          : o->n_templates > 0
              ? nrd_errorf(NRD_ERR_INVALID_ARG, "--chat-template: one model is served; MODEL= before the file is for several")
              : NULL;
    err = err ? err : add_ssl(o);
    if (err) {
        return nrd_tool_finish("serve", err) + 1;
    }
    memcpy(list + 1, o->server.v, (size_t)o->server.n * sizeof *list);
    err = on_one_line(nrd_options_parse(server, o->server.n + 1, list));
    return err ? nrd_tool_finish("serve", err) + 1 : -1;
}
