/* nereid serve PATH: whichever steps are missing, in a cache, then the server.
 *
 * PATH                     steps
 * GGUF file, HF folder,    build the engine (cache), repository (cache), tritonserver
 *   checkpoint folder
 * engine folder            repository (cache), tritonserver
 * model repository         tritonserver
 */
#include "tools/model_path.h"
#include "tools/repo.h"
#include "tools/tools.h"

#include "base/env.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "text/tokenizer.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char help[] =
    "Usage: nereid serve PATH [options] [options of tritonserver]\n"
    "Serves a GGUF file, a Hugging Face or checkpoint folder, an engine folder or a model repository.\n"
    "Steps that are missing are done once and kept in $NEREID_CACHE (default ~/.cache/nereid).\n\n"
    "  --tokenizer_dir DIR              the tokenizer, where PATH has none\n"
    "  --served-model-name NAME[,NAME…] what clients of /v1 call the model (its file's or folder's name)\n"
    "  --set NAME:VALUE[,NAME:VALUE…]   values for the model repository (nereid repo --help)\n"
    "  --build OPTION[=VALUE]           an option for nereid build, for example\n"
    "                                   --build --max_batch_size=128 (may be repeated)\n"
    "Everything else goes to tritonserver: --http-port, --grpc-port, --metrics-port, --log-verbose, …\n";

enum { MAX_WORDS = 256 };

typedef struct words {
    char *v[MAX_WORDS + 1];
    int n;
} words;

static void add_word(words *w, char *owned)
{
    if (w->n < MAX_WORDS) {
        w->v[w->n++] = owned;
        w->v[w->n] = NULL;
    } else {
        free(owned);
    }
}

static void words_fini(words *w)
{
    for (int i = 0; i < w->n; i++) {
        free(w->v[i]);
    }
}

typedef struct options {
    const char *path, *tokenizer_dir, *served_names;
    const char *sets[MAX_WORDS];
    size_t n_sets;
    words build, server;
} options;

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

static bool has_file(const char *dir, const char *name)
{
    char *file = nrd_path_join(dir, name);
    bool found = nrd_path_exists(file);
    free(file);
    return found;
}

static bool is_engine(const char *path)
{
    return has_file(path, "rank0.engine") && has_file(path, "config.json"); /* written last */
}

/* The program alone cannot serve: said before an engine is built. */
static nrd_error *check_installation(void)
{
    static const char *const parts[] = {"tritonserver", "../share/nereid/all_models/inflight_batcher_llm",
                                        "../backends/tensorrtllm/libtriton_tensorrtllm.so"};
    char *dir = nrd_path_exe_dir();
    nrd_error *err = NULL;

    for (size_t i = 0; !err && i < sizeof parts / sizeof *parts; i++) {
        if (!has_file(dir, parts[i])) {
            err = nrd_errorf(NRD_ERR_NOT_FOUND,
                             "'%s/%s' is missing: to serve, this program needs the folders bin, lib, backends "
                             "and share of its build around it (copy them together, or run 'make')",
                             dir, parts[i]);
        }
    }
    free(dir);
    return err;
}

/* Cache folder for what is made of `path` with these build options: the name shows the model, the
 * hash tells the path, its date and size, the options and our version apart. */
static char *cache_entry(const char *kind, const char *path, const options *o)
{
    struct stat st = {0};
    char *cache = nrd_env_cache_dir(), *real = realpath(path, NULL);
    uint64_t h = nrd_hash_bytes(1, NRD_VERSION, strlen(NRD_VERSION));

    if (real && !stat(real, &st)) {
        h = nrd_hash_bytes(h, real, strlen(real));
        h = nrd_hash_u64(h, (uint64_t)st.st_size);
        h = nrd_hash_u64(h, (uint64_t)st.st_mtim.tv_sec * 1000000000u + (uint64_t)st.st_mtim.tv_nsec);
    }
    h = nrd_hash_bytes(h, nrd_build_layouts(NULL), 3);
    for (int i = 0; i < o->build.n; i++) {
        h = nrd_hash_bytes(h, o->build.v[i], strlen(o->build.v[i]));
    }
    char *entry = nrd_xasprintf("%s/%s/%s-%012llx", cache, kind, nrd_path_base(real ? real : path),
                                (unsigned long long)(h & 0xffffffffffffu));
    free(cache);
    free(real);
    return entry;
}

/* The folder of the tokenizer of `path`: itself if it holds one, else it is written into `dir`. */
static nrd_error *find_tokenizer(const char *path, const options *o, const char *dir, char **out)
{
    nrd_tokenizer *t = NULL;
    const char *from = o->tokenizer_dir ? o->tokenizer_dir : path;
    nrd_error *err = nrd_tokenizer_open(&t, from);

    *out = NULL;
    if (err) {
        return nrd_error_wrap(err, "no tokenizer (name one with --tokenizer_dir)");
    }
    if (nrd_path_is_dir(from)) {
        *out = nrd_xstrdup(from);
    } else {
        err = nrd_mkdirs(dir);
        if (!err) {
            err = nrd_tokenizer_save(t, dir);
        }
        if (!err) {
            *out = nrd_xstrdup(dir);
        }
    }
    nrd_tokenizer_close(t);
    return err;
}

static nrd_error *build_engine(const options *o, const char *engine)
{
    words w = {0};
    add_word(&w, nrd_xstrdup("build"));
    add_word(&w, nrd_xstrdup(o->path));
    add_word(&w, nrd_xstrdup("--output_dir"));
    add_word(&w, nrd_xstrdup(engine));
    add_word(&w, nrd_xstrdup("--device")); /* what follows may name another */
    add_word(&w, nrd_xstrdup(nrd_build_layouts(NULL)));
    for (int i = 0; i < o->build.n; i++) {
        add_word(&w, nrd_xstrdup(o->build.v[i]));
    }
    int status = nrd_tool_build(w.n, w.v);
    words_fini(&w);
    return status ? nrd_errorf(NRD_ERR_INTERNAL, "building the engine of '%s' ended with status %d",
                               o->path, status)
                  : NULL;
}

/* Makes whatever is missing between PATH and a repository. */
static nrd_error *prepare(const options *o, char **out_repo)
{
    nrd_error *err = NULL;
    char *engine = NULL, *tokenizer = NULL, *repo = NULL, *tokenizer_dir = NULL;

    if (!nrd_path_exists(o->path)) {
        return nrd_errorf(NRD_ERR_NOT_FOUND, "'%s' does not exist", o->path);
    }
    if (nrd_path_is_dir(o->path) && is_repository(o->path)) {
        if (o->served_names) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "--served-model-name: a repository tells the name itself, "
                              "as the parameter served_model_name in %s/tensorrt_llm/config.pbtxt", o->path);
        }
        *out_repo = nrd_xstrdup(o->path);
        return NULL;
    }
    if (nrd_path_is_dir(o->path) && is_engine(o->path)) {
        engine = nrd_xstrdup(o->path);
    } else {
        engine = cache_entry("engines", o->path, o);
        if (!is_engine(engine)) {
            err = build_engine(o, engine);
        }
    }
    repo = cache_entry("repositories", o->path, o);
    tokenizer_dir = cache_entry("tokenizers", o->path, o);
    if (!err) {
        err = find_tokenizer(o->path, o, tokenizer_dir, &tokenizer);
    }
    if (!err) {
        char *name = nrd_repo_model_name(o->path);
        err = nrd_repo_write(repo, &(nrd_repo_options){.engine_dir = engine,
                                                       .tokenizer_dir = tokenizer,
                                                       .served_names = o->served_names ? o->served_names : name,
                                                       .lists = o->sets,
                                                       .n_lists = o->n_sets});
        free(name);
    }
    if (!err) {
        *out_repo = repo;
        repo = NULL;
    }
    free(repo);
    free(tokenizer_dir);
    free(tokenizer);
    free(engine);
    return err;
}

/* Prints a command that works once the server is up, then becomes the server. */
static nrd_error *become_server(options *o, const char *repo)
{
    char *dir = nrd_path_exe_dir(), *program = nrd_path_join(dir, "tritonserver");
    const char *port = "8000";
    words w = {0};

    add_word(&w, nrd_xstrdup(program));
    add_word(&w, nrd_xasprintf("--model-repository=%s", repo));
    add_word(&w, nrd_xstrdup("--restart-on-failure=true")); /* what follows may say false */
    for (int i = 0; i < o->server.n; i++) {
        if (nrd_str_has_prefix(o->server.v[i], "--http-port=")) {
            port = o->server.v[i] + strlen("--http-port=");
        } else if (!strcmp(o->server.v[i], "--http-port") && i + 1 < o->server.n) {
            port = o->server.v[i + 1];
        }
        add_word(&w, nrd_xstrdup(o->server.v[i]));
    }
    fprintf(stderr,
            "Serving %s\nOnce it is ready:\n  curl -X POST localhost:%s/v2/models/ensemble/generate -d "
            "'{\"text_input\": \"What is machine learning?\", \"max_tokens\": 20}'\n",
            o->path, port);
    fflush(NULL);
    execv(program, w.v);
    nrd_error *err = nrd_errorf(NRD_ERR_NOT_FOUND, "cannot start '%s': %s (run 'make server')", program,
                                strerror(errno));
    words_fini(&w);
    free(program);
    free(dir);
    return err;
}

int nrd_tool_serve(int argc, char **argv)
{
    options *o = nrd_xcalloc(1, sizeof *o);
    char *repo = NULL;

    for (int i = 1; i < argc; i++) {
        const char *value = NULL;
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) {
            fputs(help, stdout);
            free(o);
            return 0;
        }
        if (nrd_tool_option(argc, argv, &i, "--tokenizer_dir", &value)) {
            o->tokenizer_dir = value;
        } else if (nrd_tool_option(argc, argv, &i, "--served_model_name", &value) && value) {
            o->served_names = value;
        } else if (nrd_tool_option(argc, argv, &i, "--set", &value) && value && o->n_sets < MAX_WORDS) {
            o->sets[o->n_sets++] = value;
        } else if (nrd_tool_option(argc, argv, &i, "--build", &value) && value) {
            add_word(&o->build, nrd_xstrdup(value));
        } else if (!o->path && argv[i][0] != '-' &&
                   (o->server.n == 0 || strchr(o->server.v[o->server.n - 1], '='))) {
            o->path = argv[i];
        } else {
            add_word(&o->server, nrd_xstrdup(argv[i]));
        }
    }
    nrd_error *err = o->path ? check_installation()
                             : nrd_errorf(NRD_ERR_INVALID_ARG, "PATH is missing (see --help)");
    if (!err) {
        err = prepare(o, &repo);
    }
    if (!err) {
        err = become_server(o, repo);
    }
    fprintf(stderr, "nereid: %s\n", nrd_error_message(err));
    nrd_error_free(err);
    free(repo);
    words_fini(&o->build);
    words_fini(&o->server);
    free(o);
    return 1;
}
