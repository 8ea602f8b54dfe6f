/* SPDX-License-Identifier: Apache-2.0
 * nereid serve PATH: whichever steps are missing, in a cache, then the server.
 *
 * PATH                     steps
 * name of a model          fetch it (cache), then as below
 * GGUF file, HF folder,    build the engine (cache), repository (cache), tritonserver
 *   checkpoint folder
 * engine folder            repository (cache), tritonserver
 * model repository         tritonserver
 *
 * Several, or NAME=PATH: the same for each, into repositories whose models have names of their own; then
 * tritonserver with all of them and a file that names them (tools/several.h).
 */
#include "tools/chat_template.h"
#include "tools/installation.h"
#include "tools/model_path.h"
#include "tools/ports.h"
#include "tools/remembered.h"
#include "tools/repo.h"
#include "tools/report.h"
#include "tools/several.h"
#include "tools/template.h"
#include "tools/tools.h"

#include "base/env.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/made_from.h"
#include "base/mem.h"
#include "base/str.h"
#include "device/device.h"
#include "frontends/options_table.h"
#include "hub/pull.h"
#include "model/engine.h"
#include "nereid/ranks.h"
#include "text/template/chat.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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

enum { MAX_WORDS = 256 };

typedef struct words {
    char *v[MAX_WORDS + 1];
    int n;
} words;

/* Takes ownership of word, also on error. */
static nrd_error *add_word(words *w, char *word)
{
    if (w->n == MAX_WORDS) {
        free(word);
        return nrd_errorf(NRD_ERR_INVALID_ARG, "at most %d options", MAX_WORDS);
    }
    w->v[w->n++] = word;
    w->v[w->n] = NULL;
    return NULL;
}

static void words_fini(words *w)
{
    for (int i = 0; i < w->n; i++) {
        free(w->v[i]);
    }
}

typedef struct options {
    char *path; /* what was named, or where it lies in the cache; owned */
    const char *tokenizer_dir, *served_names;
    const char *ssl_cert, *ssl_key, *ssl_ca;
    const char *sets[MAX_WORDS];
    size_t n_sets;
    words build, server, shares; /* shares: owns what `sets` has of them */
    nrd_engine_asked asked;
    nrd_str adapters; /* "NAME=FOLDER;…" */
    char *record;     /* whole path; NULL: none */
    char *template;   /* of chats, instead of the model's own; NULL: that */
    const char *speculative;
    const char *words[NRD_SEVERAL_MAX]; /* paths as given */
    size_t n_words;
    bool switches; /* models are loaded when they are asked for */
    bool prepare_only;
} options;

/* ---- options ---- */

static nrd_error *on_set(void *values, const char *name, const char *value)
{
    options *o = values;
    if (o->n_sets == MAX_WORDS) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "--%s: at most %d times", name, MAX_WORDS);
    }
    o->sets[o->n_sets++] = value;
    return NULL;
}

static nrd_error *on_build(void *values, const char *name, const char *value)
{
    (void)name;
    return add_word(&((options *)values)->build, nrd_xstrdup(value));
}

/* The server may run in another folder: paths are made whole. */
static nrd_error *on_lora(void *values, const char *name, const char *value)
{
    options *o = values;
    (void)name;
    const char *equals = strchr(value, '=');
    char *dir = equals ? realpath(equals + 1, NULL) : NULL;
    nrd_error *err = NULL;

    if (!equals || equals == value) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "expected NAME=FOLDER, got '%s'", value);
    } else if (!dir) {
        err = nrd_errorf(NRD_ERR_NOT_FOUND, "'%s' does not exist", equals + 1);
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
    ((options *)values)->speculative = value;
    return nrd_exec_check_speculative_config(value);
}

static nrd_error *on_record(void *values, const char *name, const char *value)
{
    options *o = values;
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

static nrd_error *on_template(void *values, const char *name, const char *value)
{
    (void)name;
    free(((options *)values)->template);
    return nrd_tool_chat_template(value, &((options *)values)->template);
}

/* Rows that have the name of an option of nereid build. */
static nrd_error *on_build_option(void *values, const char *name, const char *value)
{
    return add_word(&((options *)values)->build, nrd_xasprintf("--%s=%s", name, value));
}

/* A share of what the weights leave free, where vLLM means all of a GPU. */
static nrd_error *on_memory_share(void *values, const char *name, const char *value)
{
    options *o = values;
    double share;

    if (!nrd_parse_f64(value, &share) || !(share > 0 && share <= 1)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "expected a number above 0 and at most 1, got '%s'", value);
    }
    NRD_TRY(add_word(&o->shares, nrd_xasprintf("kv_cache_free_gpu_mem_fraction:%g", share)));
    return on_set(o, name, o->shares.v[o->shares.n - 1]);
}

static nrd_error *on_port(void *values, const char *name, const char *value)
{
    long long port = -1;
    (void)name;
    if (!nrd_parse_i64(value, &port) || port < 0 || port > UINT16_MAX) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "expected a number from 0 to %d, got '%s'", UINT16_MAX, value);
    }
    return add_word(&((options *)values)->server, nrd_xasprintf("--http-port=%s", value));
}

static nrd_error *on_host(void *values, const char *name, const char *value)
{
    static const char *const each[] = {"http", "grpc", "metrics"};
    (void)name;
    for (size_t i = 0; i < sizeof each / sizeof *each; i++) {
        NRD_TRY(add_word(&((options *)values)->server, nrd_xasprintf("--%s-address=%s", each[i], value)));
    }
    return NULL;
}

/* Others have to be let in; tritonserver keeps the addresses of Triton. Options that come later win; the
 * address of metrics is that of HTTP unless one is given. */
static nrd_error *stay_local(options *o)
{
    NRD_TRY(add_word(&o->server, nrd_xstrdup("--http-address=127.0.0.1")));
    return add_word(&o->server, nrd_xstrdup("--grpc-address=127.0.0.1"));
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
static nrd_error *add_ssl(options *o)
{
    static const char *const each[] = {"http", "grpc"};
    const words given = o->server;
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
        NRD_TRY_GOTO(add_word(&o->server, nrd_xasprintf("--%s-use-ssl=true", p)), err, done);
        NRD_TRY_GOTO(add_word(&o->server, nrd_xasprintf("--%s-server-cert=%s", p, o->ssl_cert)), err, done);
        NRD_TRY_GOTO(add_word(&o->server, nrd_xasprintf("--%s-server-key=%s", p, o->ssl_key)), err, done);
        if (o->ssl_ca) {
            NRD_TRY_GOTO(add_word(&o->server, nrd_xasprintf("--%s-use-ssl-mutual=true", p)), err, done);
            NRD_TRY_GOTO(add_word(&o->server, nrd_xasprintf("--%s-root-cert=%s", p, o->ssl_ca)), err, done);
        }
    }
done:
    for (int i = 0; i < given.n; i++) { /* also after an error: their memory is freed with the list */
        if (err) {
            free(given.v[i]);
        } else {
            err = add_word(&o->server, given.v[i]);
        }
    }
    return err;
}

/* An option of tritonserver goes to it. */
static nrd_error *on_server(void *values, const char *name, const char *value)
{
    return add_word(&((options *)values)->server,
                    nrd_xasprintf(value ? "--%s=%s" : "--%s", name, value ? value : ""));
}

#define OPT(...) NRD_OPT_ROW(options, __VA_ARGS__)
#define CALLS(name_, alias_, parse_, arg_, def_, help_)                                            \
    {.name = name_, .form = NRD_OPT_CUSTOM, .parse = parse_, .arg = arg_, .help = help_,           \
     .alias = alias_, .def = def_}
static const nrd_opt rows[] = {
    CALLS("port", "-p --http_port", on_port, "N", "8000", "port of the page, /v1 and /v2"),
    CALLS("host", NULL, on_host, "ADDRESS", "127.0.0.1",
          "address of every port; 0.0.0.0 opens them to other machines (--api-key)"),
    CALLS("max_seq_len", "-c --ctx_size --max_model_len", on_build_option, "N", "what the model was made for",
          "tokens of prompt and answer"),
    CALLS("quantize", "--quantization", on_build_option, "TYPE", "as the file has them", "weights become of this type: q8_0, q4_k, fp8, …"),
    CALLS("dtype", NULL, on_build_option, "TYPE", "as the file says", "what is computed in: bfloat16, float16, float32"),
    CALLS("kv_cache_dtype", NULL, on_build_option, "TYPE", "auto", "of the KV cache: fp8, int8"),
    CALLS("max_batch_size", "--max_num_seqs", on_build_option, "N", "64", "sequences that run together"),
    CALLS("gpu_memory_utilization", NULL, on_memory_share, "X", "0.9", "share of the memory that weights leave free, for the KV cache"),
    OPT(INT, "tp_size", "--tensor_parallel_size", asked.tp_size, "N", "1",
          "ranks that share each layer: so many processes"),
    OPT(INT, "pp_size", "--pipeline_parallel_size", asked.pp_size, "N", "1",
          "pipeline stages, each of some layers: so many processes, times tp_size"),
    OPT(INT, "moe_ep_size", "--ep_size", asked.moe_ep_size, "N", "1",
          "of the tp_size ranks, how many share the list of experts instead of dividing each"),
    OPT(STR, "mmproj", NULL, asked.mmproj, "FILE", "one beside PATH", "the vision tower of a GGUF model; none: text alone"),
    OPT(STR, "served_model_name", "--alias", served_names, "NAME[,NAME…]", "its file's or folder's name",
        "what clients of /v1 call the model"),
    OPT(STR, "tokenizer_dir", NULL, tokenizer_dir, "DIR", NULL, "the tokenizer, where PATH has none"),
    CALLS("chat_template", NULL, on_template, "FILE|NAME", "the model's own", NRD_CHAT_TEMPLATE_NAMES ", or a file"),
    OPT(STR, "ssl_certfile", NULL, ssl_cert, "FILE", NULL, "certificate chain (PEM): every port speaks TLS"),
    OPT(STR, "ssl_keyfile", NULL, ssl_key, "FILE", NULL, "its private key (PEM)"),
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

/* Our rows, then the server's, which are only passed on. Owned by the caller. */
static nrd_opt *all_rows(size_t *out_n)
{
    nrd_opt *all = nrd_xcalloc(N_OWN + nrd_option_n_rows, sizeof *all);
    memcpy(all, rows, sizeof rows);
    *out_n = N_OWN;
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

static bool asks_for_switching(const options *o)
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
static nrd_error *check_several_options(const options *o)
{
    const char *one = o->adapters.len > 0 ? "lora" : o->record ? "scheduler-record" : o->served_names ? "served-model-name"
                      : o->tokenizer_dir && o->n_words > 1                                            ? "tokenizer-dir"
                      : o->template && o->n_words > 1                                                 ? "chat-template"
                                                                                                      : NULL;
    return one ? nrd_errorf(NRD_ERR_INVALID_ARG, "--%s: is for one model that stays loaded; of several each has its own files, and is "
                            "named with NAME=PATH", one)
               : NULL;
}

/* -1: go on, else the exit status. Also reads the server's options as the server will. */
static int read_options(options *o, nrd_options *server, int argc, char **argv)
{
    char program[] = "tritonserver", *list[MAX_WORDS + 2] = {program};
    nrd_tool_table table = nrd_serve_table;
    size_t n = 0;
    nrd_opt *all = all_rows(&n);

    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) {
            free(all);
            return nrd_tool_parse(&nrd_serve_table, 2, (char *[]){argv[0], argv[i], NULL}, o, NULL, NULL);
        }
    }
    table.rows = all;
    table.n_rows = n;
    int status = nrd_tool_parse(&table, argc, argv, o, o->words, &o->n_words);
    free(all);
    if (status >= 0) {
        return status;
    }
    if (o->n_words == 0) {
        fputs("nereid serve: PATH is missing (see --help)\n", stderr);
        return 2;
    }
    o->path = nrd_xstrdup(o->words[0]);
    o->switches = asks_for_switching(o);
    nrd_error *err = o->switches ? check_several_options(o) : NULL;
    err = err ? err : add_ssl(o);
    if (err) {
        return nrd_tool_finish("serve", err) + 1;
    }
    memcpy(list + 1, o->server.v, (size_t)o->server.n * sizeof *list);
    err = nrd_options_parse(server, o->server.n + 1, list);
    return err ? nrd_tool_finish("serve", err) + 1 : -1;
}

/* ---- the steps ---- */

static bool is_repository(const char *path)
{
    char **names = NULL;
    size_t n = 0;
    bool found = false;
    nrd_error *err = nrd_dir_list(&names, &n, path);
    for (size_t i = 0; !err && !found && i < n; i++) {
        char *config = nrd_xasprintf("%s/%s/config.pbtxt", path, names[i]);
        found = nrd_path_exists(config);
        free(config);
    }
    nrd_names_free(names, n);
    nrd_error_free(err);
    return found;
}

/* Cache folder for what is made of `path` with these build options: the name shows the model, the
 * hash tells the path, its date and size, the options and our version apart. */
static char *cache_entry(const char *kind, const char *path, const options *o)
{
    struct stat st = {0};
    char *cache = nrd_or_end(nrd_env_cache_dir()), *real = realpath(path, NULL);
    uint64_t h = nrd_hash_bytes(1, NRD_VERSION, strlen(NRD_VERSION));

    if (real && !stat(real, &st)) {
        h = nrd_hash_bytes(h, real, strlen(real));
        h = nrd_hash_u64(h, (uint64_t)st.st_size);
        h = nrd_hash_u64(h, (uint64_t)st.st_mtim.tv_sec * 1000000000u + (uint64_t)st.st_mtim.tv_nsec);
    }
    h = nrd_hash_bytes(h, nrd_build_layouts(NULL), 3);
    h = nrd_hash_u64(h, (uint64_t)(o->asked.tp_size > 1 ? o->asked.tp_size : 1));
    h = nrd_hash_u64(h, (uint64_t)(o->asked.pp_size > 1 ? o->asked.pp_size : 1));
    h = nrd_hash_u64(h, (uint64_t)(o->asked.moe_ep_size > 1 ? o->asked.moe_ep_size : 1));
    for (int i = 0; i < o->build.n; i++) {
        h = nrd_hash_bytes(h, o->build.v[i], strlen(o->build.v[i]));
    }
    if (o->template && strcmp(kind, "engines") != 0) {
        h = nrd_hash_bytes(h, o->template, strlen(o->template));
    }
    nrd_error_free(nrd_model_path_hash_mmproj(&h, o->asked.mmproj, path)); /* building says what is wrong */
    char *label = nrd_or_end(nrd_model_path_label(path));
    char *entry = nrd_xasprintf("%s/%s/%s-%012llx", cache, kind, label, (unsigned long long)(h & 0xffffffffffffu));
    free(label);
    free(cache);
    free(real);
    return entry;
}

/* With options of `nereid build`: an engine of its own. */
static nrd_error *build_engine(void *user, const char *dir)
{
    options *o = user;
    char tp[32], pp[32], ep[32];
    char *argv[MAX_WORDS + 13] = {"build", o->path, "--output_dir", (char *)(uintptr_t)dir, tp, pp, ep,
                                  "--device", (char *)(uintptr_t)nrd_build_layouts(NULL)}; /* what follows may name another */
    int argc = 9;
    if (o->asked.mmproj) {
        argv[argc++] = "--mmproj";
        argv[argc++] = (char *)(uintptr_t)o->asked.mmproj;
    }
    snprintf(tp, sizeof tp, "--tp_size=%d", o->asked.tp_size);
    snprintf(pp, sizeof pp, "--pp_size=%d", o->asked.pp_size);
    snprintf(ep, sizeof ep, "--moe_ep_size=%d", o->asked.moe_ep_size);
    for (int i = 0; i < o->build.n; i++) {
        argv[argc++] = o->build.v[i];
    }
    int status = nrd_tool_build(argc, argv);
    return status ? nrd_errorf(NRD_ERR_INTERNAL, "building the engine of '%s' ended with status %d",
                               o->path, status)
                  : NULL;
}

/* The one that run and bench use too, unless options ask for another. */
static nrd_error *find_engine(options *o, char **out)
{
    if (nrd_path_is_dir(o->path) && nrd_engine_is_folder(o->path)) {
        *out = nrd_xstrdup(o->path);
        return NULL;
    }
    if (o->build.n == 0) {
        return nrd_model_path_keep(out, o->path, NULL, o->asked);
    }
    *out = cache_entry("engines", o->path, o);
    return nrd_model_path_make(*out, o->path, o->asked, build_engine, o);
}

/* The folder of a model's tokenizer: its own, the one that was named, or `made` in the cache. */
static nrd_error *find_tokenizer(const options *o, const char *path, const char *made, char **out)
{
    nrd_error *err = nrd_repo_tokenizer(path, o->tokenizer_dir, o->template, made, out);
    return err || strcmp(*out, made) != 0 ? err : nrd_made_from_write(made, path);
}

/* Makes whatever is missing between PATH and a repository. *out_engine: NULL where a repository was
 * given. Both owned by the caller. */
static nrd_error *prepare(options *o, char **out_repo, char **out_engine)
{
    nrd_error *err = NULL;
    char *engine = NULL, *tokenizer = NULL, *repo = NULL, *tokenizer_dir = NULL;

    if (is_repository(o->path)) {
        if (o->adapters.len > 0) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "--lora: a repository tells its adapters itself, as the parameter "
                              "lora_adapters in %s/tensorrt_llm/config.pbtxt", o->path);
        }
        if (o->record) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "--scheduler-record: a repository names the file itself, as the "
                              "parameter scheduler_record in %s/tensorrt_llm/config.pbtxt", o->path);
        }
        if (o->speculative) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "--speculative-config: a repository tells it itself, as the "
                              "parameter speculative_config in %s/tensorrt_llm/config.pbtxt", o->path);
        }
        if (o->template) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "--chat-template: a repository has its tokenizer's, the file chat_template.jinja "
                              "in the folder that the parameter tokenizer_dir names");
        }
        if (o->served_names) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "--served-model-name: a repository tells the name itself, "
                              "as the parameter served_model_name in %s/tensorrt_llm/config.pbtxt", o->path);
        }
        *out_repo = nrd_xstrdup(o->path);
        return NULL;
    }
    err = find_engine(o, &engine);
    repo = cache_entry("repositories", o->path, o);
    tokenizer_dir = cache_entry("tokenizers", o->path, o);
    if (!err) {
        err = find_tokenizer(o, o->path, tokenizer_dir, &tokenizer);
    }
    if (!err) {
        char *name = nrd_repo_model_name(o->path);
        err = nrd_repo_write(repo, &(nrd_repo_options){.engine_dir = engine,
                                                       .tokenizer_dir = tokenizer,
                                                       .served_names = o->served_names ? o->served_names : name,
                                                       .adapters = nrd_str_cstr(&o->adapters),
                                                       .record = o->record,
                                                       .speculative = o->speculative,
                                                       .lists = o->sets,
                                                       .n_lists = o->n_sets});
        free(name);
    }
    if (!err) {
        err = nrd_made_from_write(repo, o->path);
    }
    if (!err) {
        (void)utimensat(AT_FDCWD, repo, NULL, 0); /* its date is its last use: nereid prune */
        *out_repo = repo;
        *out_engine = engine;
        repo = engine = NULL;
    }
    free(repo);
    free(tokenizer_dir);
    free(tokenizer);
    free(engine);
    return err;
}

/* ---- several models ---- */

/* max_tokens_in_paged_kv_cache of --set; 0: not given. */
static nrd_error *given_tokens(const options *o, int64_t *out)
{
    nrd_template_values given = {0};
    nrd_error *err = NULL;
    long long n = 0;

    for (size_t i = 0; i < o->n_sets && !err; i++) {
        err = nrd_template_set_list(&given, o->sets[i]);
    }
    const char *v = err ? NULL : nrd_template_get(&given, "max_tokens_in_paged_kv_cache");
    *out = v && nrd_parse_i64(v, &n) && n > 0 ? n : 0;
    nrd_template_fini(&given);
    return err;
}

static nrd_error *prepare_model(options *o, nrd_several_model *m, nrd_device *dev, uint64_t memory)
{
    char *engine = NULL, *tokenizer = NULL, *tokenizer_dir = cache_entry("tokenizers", m->path, o);
    char *folder = nrd_repo_folder_name(m->name);
    const char *lists[MAX_WORDS + 1];
    char tokens_list[64];
    int64_t tokens = 0;
    size_t n_lists = 0;
    nrd_error *err = given_tokens(o, &tokens);

    err = err ? err : find_engine(o, &engine);
    err = err ? err : find_tokenizer(o, m->path, tokenizer_dir, &tokenizer);
    err = err ? err : nrd_several_measure(m, engine, dev, memory, &tokens);
    if (!err) {
        if (tokens > 0) {
            snprintf(tokens_list, sizeof tokens_list, "max_tokens_in_paged_kv_cache:%lld", (long long)tokens);
            lists[n_lists++] = tokens_list;
        }
        for (size_t i = 0; i < o->n_sets; i++) {
            lists[n_lists++] = o->sets[i];
        }
        err = nrd_repo_write(m->repo, &(nrd_repo_options){.engine_dir = engine,
                                                          .tokenizer_dir = tokenizer,
                                                          .served_names = m->name,
                                                          .name = folder,
                                                          .speculative = o->speculative,
                                                          .lists = lists,
                                                          .n_lists = n_lists});
    }
    if (!err) {
        err = nrd_made_from_write(m->repo, m->path);
    }
    if (!err) {
        m->load = nrd_xstrdup(folder);
        m->parts = nrd_xasprintf("%s.tensorrt_llm,%s.preprocessing,%s.postprocessing", folder, folder, folder);
    }
    free(engine);
    free(tokenizer);
    free(tokenizer_dir);
    free(folder);
    return err;
}

/* Where the models of one server lie: another server with others beside it writes elsewhere. */
static char *several_entry(const options *o, const nrd_several_model *m, uint64_t all)
{
    char *plain = cache_entry("repositories", m->path, o);
    uint64_t h = nrd_hash_bytes(all, m->name, strlen(m->name));
    for (size_t i = 0; i < o->n_sets; i++) {
        h = nrd_hash_bytes(h, o->sets[i], strlen(o->sets[i]));
    }
    char *entry = nrd_xasprintf("%s-%08llx", plain, (unsigned long long)(h & 0xffffffffu));
    free(plain);
    return entry;
}

/* Paths of everything that was named. */
static nrd_error *find_models(options *o, nrd_several *s)
{
    for (size_t i = 0; i < o->n_words; i++) {
        nrd_several_model *m = &s->models[s->n++];
        char *given = NULL;
        nrd_several_split(o->words[i], &m->name, &given);
        nrd_error *err = o->prepare_only ? nrd_report_resolve(given, &m->path, &m->fetched) : nrd_hub_resolve(given, &m->path);
        free(given);
        NRD_TRY(err);
        m->name = m->name ? m->name : nrd_repo_model_name(m->path);
    }
    return nrd_several_check_names(s);
}

/* What the server starts to get one more model, with the options of these. */
static nrd_error *pull_words(const options *o, uint64_t memory, words *out)
{
    char *dir = nrd_path_exe_dir();
    nrd_error *err = add_word(out, nrd_path_join(dir, "nereid"));

    free(dir);
    NRD_TRY(err);
    NRD_TRY(add_word(out, nrd_xstrdup("serve")));
    NRD_TRY(add_word(out, nrd_xstrdup("--prepare-only")));
    NRD_TRY(add_word(out, nrd_xasprintf("--model-memory-gb=%.9f", (double)memory / 1e9)));
    NRD_TRY(add_word(out, nrd_xasprintf("--tp-size=%d", o->asked.tp_size)));
    NRD_TRY(add_word(out, nrd_xasprintf("--pp-size=%d", o->asked.pp_size)));
    NRD_TRY(add_word(out, nrd_xasprintf("--moe-ep-size=%d", o->asked.moe_ep_size)));
    for (size_t i = 0; i < o->n_sets; i++) {
        NRD_TRY(add_word(out, nrd_xasprintf("--set=%s", o->sets[i])));
    }
    for (int i = 0; i < o->build.n; i++) {
        NRD_TRY(add_word(out, nrd_xasprintf("--build=%s", o->build.v[i])));
    }
    return o->speculative ? add_word(out, nrd_xasprintf("--speculative-config=%s", o->speculative)) : NULL;
}

/* Models of one server, as its repositories' names tell them apart. memory: that was chosen; 0: none was. */
static uint64_t hash_models(const nrd_several_model *models, size_t n, uint64_t memory)
{
    uint64_t h = 1;
    for (size_t i = 0; i < n; i++) {
        h = nrd_hash_bytes(h, models[i].name, strlen(models[i].name));
        h = nrd_hash_bytes(h, models[i].path, strlen(models[i].path));
    }
    return nrd_hash_u64(h, memory);
}

static nrd_error *prepare_one_of(options *o, nrd_several_model *m, uint64_t all, nrd_device *dev, uint64_t memory)
{
    free(o->path);
    o->path = nrd_xstrdup(m->path);
    m->repo = several_entry(o, m, all);
    NRD_TRY(nrd_error_wrap(is_repository(m->path) ? nrd_several_prepare_repository(m, dev, memory)
                                                  : prepare_model(o, m, dev, memory), "%s", m->name));
    (void)utimensat(AT_FDCWD, m->repo, NULL, 0); /* its date is its last use: nereid prune */
    return NULL;
}

/* Models that clients brought before. One that cannot be made any more does not keep the server from starting. */
static void prepare_pulled(options *o, nrd_several *pulled, uint64_t chosen, nrd_device *dev, uint64_t memory)
{
    size_t n = 0;
    for (size_t i = 0; i < pulled->n; i++) {
        nrd_several_model *m = &pulled->models[i];
        nrd_error *err = prepare_one_of(o, m, hash_models(m, 1, chosen), dev, memory);
        if (err) {
            fprintf(stderr, "nereid serve: %s was pulled, but is not served: %s\n", m->name, nrd_error_message(err));
            nrd_error_free(err);
            nrd_several_model_fini(m);
        } else {
            pulled->models[n++] = *m;
        }
    }
    pulled->n = n;
}

/* Builds what is missing of each, and writes the file that names them. */
static nrd_error *prepare_several(options *o, nrd_several *s, nrd_several *pulled, const nrd_options *server, nrd_device *dev,
                                  char **out_file)
{
    nrd_device_info info;

    dev->ops->get_info(dev, &info);
    s->memory_bytes = server->model_memory_gb > 0 ? (uint64_t)(server->model_memory_gb * 1e9)
                                                  : (uint64_t)((info.host_is_device ? 0.8 : 0.9) * (double)info.mem_free_bytes);
    const uint64_t chosen = server->model_memory_gb > 0 ? s->memory_bytes : 0, all = hash_models(s->models, s->n, chosen);
    for (size_t i = 0; i < s->n; i++) {
        NRD_TRY(prepare_one_of(o, &s->models[i], all, dev, s->memory_bytes));
    }
    prepare_pulled(o, pulled, chosen, dev, s->memory_bytes);
    *out_file = nrd_path_join(s->models[0].repo, ".models.json");
    words pull = {.n = 0};
    nrd_error *err = pull_words(o, s->memory_bytes, &pull);
    err = err ? err : nrd_several_write(s, pulled, *out_file, pull.v, (size_t)pull.n);
    words_fini(&pull);
    return err;
}

/* ---- before the model is loaded ---- */

/* A name becomes the path of what was pulled. */
static nrd_error *find_model(options *o)
{
    char *path = NULL;
    NRD_TRY(nrd_hub_resolve(o->path, &path));
    free(o->path);
    o->path = path;
    return NULL;
}

/* ---- what is told when it is ready ---- */

static int64_t context_of(const char *engine)
{
    nrd_json_doc *doc = NULL;
    char *file = nrd_path_join(engine, "config.json");
    nrd_error_free(nrd_json_parse_file(&doc, file, NULL));
    int64_t n = nrd_json_get_int(nrd_json_get(nrd_json_root(doc), "build_config"), "max_seq_len", 0);
    nrd_json_doc_free(doc);
    free(file);
    return n;
}

static uint64_t bytes_of(const char *engine)
{
    struct stat st = {0};
    char *file = NULL;
    nrd_error *err = nrd_engine_path(&file, engine, 0);
    uint64_t n = !err && stat(file, &st) == 0 ? (uint64_t)st.st_size : 0;
    nrd_error_free(err);
    free(file);
    return n;
}

/* The value of a --set; NULL: none. Borrows. */
static const char *set_value(const nrd_template_values *given, const char *name)
{
    const char *v = nrd_template_get(given, name);
    return v && v[0] ? v : NULL;
}

static void put_engine(nrd_str *out, const options *o, const char *engine, const nrd_device_info *info)
{
    char *own = nrd_repo_model_name(o->path), weights[32], free_bytes[32];
    nrd_str_printf(out, "  model     %s\n  context   %lld tokens\n  device    %s\n  memory    %s of weights; %s are free\n",
                   o->served_names ? o->served_names : own, (long long)context_of(engine), info->name,
                   nrd_human_bytes(bytes_of(engine), weights),
                   nrd_human_bytes(info->mem_free_bytes, free_bytes));
    free(own);
}

static void put_addresses(nrd_str *out, const options *o, const nrd_options *s, const char *first, bool has_model)
{
    const char *host = !strcmp(s->http_address, "0.0.0.0") || !strcmp(s->http_address, "::")
                           ? "localhost" : s->http_address;
    char *own = nrd_repo_model_name(o->path);
    const char *name = first ? first : o->served_names ? o->served_names : own;
    const char *scheme = s->http_use_ssl || s->http_use_ssl_mutual ? "https" : "http";
    long long port = s->http_port;

    if (s->allow_http && port > 0) {
        if (s->ui) {
            nrd_str_printf(out, "  chat      %s://%s:%lld/\n", scheme, host, port);
        }
        if (s->allow_openai) {
            nrd_str_printf(out, "  OpenAI    %s://%s:%lld/v1\n", scheme, host, port);
        }
        nrd_str_printf(out, "  Triton    %s://%s:%lld/v2\n", scheme, host, port);
    }
    if (s->allow_http && port > 0 && s->allow_openai && has_model) {
        nrd_str_printf(out, "\n  curl %s://%s:%lld/v1/chat/completions -d '{\"model\": \"%.*s\", \"messages\": "
                            "[{\"role\": \"user\", \"content\": \"What is the capital of France?\"}]}'\n",
                       scheme, host, port, (int)strcspn(name, ","), name);
    }
    free(own);
}

/* The device that the model will use. A missing one is an error here, before an engine is built for it. */
static nrd_error *open_device(const options *o, nrd_device **out)
{
    nrd_template_values given = {0};
    nrd_error *err = NULL;

    *out = NULL;
    for (size_t i = 0; i < o->n_sets && !err; i++) {
        err = nrd_template_set_list(&given, o->sets[i]);
    }
    err = err ? err : nrd_device_open(out, set_value(&given, "device"), NULL);
    nrd_template_fini(&given);
    return err;
}

/* Information about it. A repository names its own device. */
static nrd_error *ask_device(const options *o, nrd_device_info *out)
{
    nrd_device *dev = NULL;

    memset(out, 0, sizeof *out);
    if (is_repository(o->path)) {
        return NULL;
    }
    NRD_TRY(open_device(o, &dev));
    dev->ops->get_info(dev, out);
    dev->ops->close(dev);
    return NULL;
}

/* engine NULL: the repository was given, and says itself what is in it. */
static void put_summary(nrd_str *out, const options *o, const nrd_options *s, const char *engine,
                        const nrd_device_info *info)
{
    nrd_str_printf(out, "\nReady: %s\n", o->path);
    if (engine) {
        put_engine(out, o, engine, info);
    }
    put_addresses(out, o, s, NULL, engine != NULL);
}

static void put_summary_of_several(nrd_str *out, const options *o, const nrd_options *s, const nrd_several *models,
                                   const nrd_several *pulled, const nrd_device_info *info)
{
    char weights[32], cache[32], memory[32];

    nrd_str_printf(out, "\nReady: %zu %s, in memory when asked for\n", models->n, models->n == 1 ? "model" : "models");
    for (size_t i = 0; i < models->n; i++) {
        const nrd_several_model *m = &models->models[i];
        nrd_str_printf(out, "  model     %s: %s of weights, %s of cache\n", m->name, nrd_human_bytes(m->weight_bytes, weights),
                       nrd_human_bytes(m->cache_bytes, cache));
    }
    for (size_t i = 0; i < pulled->n; i++) {
        nrd_str_printf(out, "  pulled    %s\n", pulled->models[i].name);
    }
    nrd_str_printf(out, "  device    %s\n  memory    %s for models\n", info->name, nrd_human_bytes(models->memory_bytes, memory));
    put_addresses(out, o, s, models->models[0].name, true);
}

/* The words that both forms begin with; the caller ends with run_server. */
static nrd_error *begin_words(words *w, const char *program, const nrd_str *summary)
{
    NRD_TRY(add_word(w, nrd_xstrdup(program)));
    NRD_TRY(add_word(w, nrd_xstrdup("--restart-on-failure=true"))); /* both may be overruled */
    NRD_TRY(add_word(w, nrd_xstrdup("--log-tables=false")));
    return add_word(w, nrd_xasprintf("--ready-message=%s", nrd_str_cstr(summary)));
}

/* Comes back with an error only. */
static nrd_error *run_server(const options *o, words *w, const char *program, const char *what)
{
    for (int i = 0; i < o->server.n; i++) {
        NRD_TRY(add_word(w, nrd_xstrdup(o->server.v[i])));
    }
    fprintf(stderr, "Serving %s\n", what);
    fflush(NULL);
    execv(program, w->v);
    return nrd_errorf(NRD_ERR_NOT_FOUND, "cannot start '%s': %s", program, strerror(errno));
}

static nrd_error *become_server_of_several(const options *o, const nrd_options *server, const nrd_several *s,
                                           const nrd_several *pulled, const char *file, const nrd_device_info *info)
{
    char *dir = nrd_path_exe_dir(), *program = nrd_path_join(dir, "tritonserver");
    nrd_str summary = {0}, names = {0};
    words w = {0};
    nrd_error *err = NULL;

    put_summary_of_several(&summary, o, server, s, pulled, info);
    NRD_TRY_GOTO(begin_words(&w, program, &summary), err, done);
    NRD_TRY_GOTO(add_word(&w, nrd_xstrdup("--model-control-mode=explicit")), err, done);
    NRD_TRY_GOTO(add_word(&w, nrd_xasprintf("--models-file=%s", file)), err, done);
    for (size_t i = 0; i < s->n; i++) {
        NRD_TRY_GOTO(add_word(&w, nrd_xasprintf("--model-repository=%s", s->models[i].repo)), err, done);
        nrd_str_printf(&names, "%s%s", i ? ", " : "", s->models[i].name);
    }
    err = run_server(o, &w, program, nrd_str_cstr(&names));
done:
    words_fini(&w);
    nrd_str_fini(&summary);
    nrd_str_fini(&names);
    free(program);
    free(dir);
    return err;
}

static nrd_error *become_server(const options *o, const nrd_options *server, const char *repo,
                                const char *engine, const nrd_device_info *info)
{
    char *dir = nrd_path_exe_dir(), *program = nrd_path_join(dir, "tritonserver");
    nrd_str summary = {0};
    words w = {0};
    nrd_error *err = NULL;

    put_summary(&summary, o, server, engine, info);
    NRD_TRY_GOTO(begin_words(&w, program, &summary), err, done);
    NRD_TRY_GOTO(add_word(&w, nrd_xasprintf("--model-repository=%s", repo)), err, done);
    err = run_server(o, &w, program, o->path);
done:
    words_fini(&w);
    nrd_str_fini(&summary);
    free(program);
    free(dir);
    return err;
}

static nrd_error *serve_one(options *o, const nrd_options *server)
{
    nrd_device_info info;
    char *repo = NULL, *engine = NULL;
    nrd_error *err = find_model(o);

    err = err ? err : ask_device(o, &info);
    err = err ? err : prepare(o, &repo, &engine);
    err = err ? err : become_server(o, server, repo, engine, &info);
    free(repo);
    free(engine);
    return err;
}

/* What was made, for the server that asked for it; the next server finds it too. */
static nrd_error *tell_models(const options *o, nrd_several *s)
{
    for (size_t i = 0; i < s->n; i++) {
        char *name = NULL, *id = NULL;
        nrd_several_split(o->words[i], &name, &id);
        nrd_error *err = nrd_remembered_add(&s->models[i], id);
        free(name);
        free(id);
        NRD_TRY(err);
        nrd_report_model(&s->models[i]);
    }
    return NULL;
}

static nrd_error *serve_several(options *o, const nrd_options *server)
{
    nrd_several *s = nrd_xcalloc(2, sizeof *s), *pulled = s + 1;
    nrd_device_info info;
    nrd_device *dev = NULL;
    char *file = NULL;
    nrd_error *err = find_models(o, s);

    err = err ? err : open_device(o, &dev);
    if (!err && o->prepare_only) {
        nrd_report_status("building the engine");
    }
    if (!err && !o->prepare_only && server->allow_pull) {
        nrd_remembered_read(pulled, s);
    }
    err = err ? err : prepare_several(o, s, pulled, server, dev, &file);
    if (dev) {
        dev->ops->get_info(dev, &info);
        dev->ops->close(dev);
    }
    if (o->prepare_only) {
        err = err ? err : tell_models(o, s);
    } else {
        err = err ? err : become_server_of_several(o, server, s, pulled, file, &info);
    }
    nrd_several_fini(s);
    nrd_several_fini(pulled);
    free(s);
    free(file);
    return err;
}

int nrd_tool_serve(int argc, char **argv)
{
    options *o = nrd_xcalloc(1, sizeof *o);
    nrd_options server;

    nrd_options_init(&server);
    nrd_error *err = stay_local(o);
    int status = err ? nrd_tool_finish("serve", err) : read_options(o, &server, argc, argv);
    if (status < 0) {
        nrd_ranks_enter_above_0(); /* rank 0 becomes the server */
        err = nrd_tool_check_installation();
        err = err || o->prepare_only ? err : nrd_ports_check(&server);
        err = err ? err : o->switches ? serve_several(o, &server) : serve_one(o, &server);
        status = o->prepare_only ? nrd_report_end(err) : nrd_tool_finish("serve", err);
    }
    nrd_options_fini(&server);
    words_fini(&o->build);
    words_fini(&o->shares);
    nrd_str_fini(&o->adapters);
    free(o->record);
    free(o->template);
    free(o->path);
    words_fini(&o->server);
    free(o);
    return status;
}
