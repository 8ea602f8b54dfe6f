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
 * Several, or NAME=PATH: serve_several.c.
 */
#include "tools/installation.h"
#include "tools/repo.h"
#include "tools/report.h"
#include "tools/serve_internal.h"
#include "tools/tools.h"

#include "base/cache_entry.h"
#include "base/file.h"
#include "base/made_from.h"
#include "base/mem.h"
#include "device/device.h"
#include "frontends/passed_sockets.h"
#include "frontends/ports.h"
#include "hub/pull.h"
#include "nereid/ranks.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

/* Makes whatever is missing between PATH and a repository. *out_engine, *out_tokenizer: NULL where a repository
 * was given. All owned by the caller. */
static nrd_error *prepare(nrd_serve_options *o, char **out_repo, char **out_engine, char **out_tokenizer)
{
    nrd_error *err = NULL;
    char *engine = NULL, *tokenizer = NULL, *repo = NULL, *tokenizer_dir = NULL;

    if (nrd_serve_is_repository(o->path)) {
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
    err = nrd_serve_find_engine(o, &engine);
    repo = nrd_serve_cache_entry("repositories", o->path, o);
    tokenizer_dir = nrd_serve_cache_entry("tokenizers", o->path, o);
    if (!err) {
        err = nrd_serve_find_tokenizer(o, o->path, tokenizer_dir, &tokenizer);
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
        (void)nrd_cache_entry_hold(repo);
        *out_repo = repo;
        *out_engine = engine;
        *out_tokenizer = tokenizer;
        repo = engine = tokenizer = NULL;
    }
    free(repo);
    free(tokenizer_dir);
    free(tokenizer);
    free(engine);
    return err;
}

/* A name becomes the path of what was pulled. */
static nrd_error *find_model(nrd_serve_options *o)
{
    char *path = NULL;
    NRD_TRY(nrd_hub_resolve(o->path, &path));
    free(o->path);
    o->path = path;
    return NULL;
}

/* Information about it. A repository names its own device. */
static nrd_error *ask_device(const nrd_serve_options *o, nrd_device_info *out)
{
    nrd_device *dev = NULL;

    memset(out, 0, sizeof *out);
    if (nrd_serve_is_repository(o->path)) {
        return NULL;
    }
    NRD_TRY(nrd_serve_open_device(o, &dev));
    dev->ops->get_info(dev, out);
    dev->ops->close(dev);
    return NULL;
}

static nrd_error *become_server(const nrd_serve_options *o, const nrd_options *server, const char *repo,
                                const char *engine, const char *tokenizer, const nrd_device_info *info)
{
    char *dir = nrd_path_exe_dir(), *program = nrd_path_join(dir, "tritonserver");
    nrd_str summary = {0};
    nrd_serve_words w = {0};
    nrd_error *err = NULL;

    nrd_serve_put_summary(&summary, o, server, engine, tokenizer, info);
    NRD_TRY_GOTO(nrd_serve_begin_words(&w, program, &summary), err, done);
    NRD_TRY_GOTO(nrd_serve_add_word(&w, nrd_xasprintf("--model-repository=%s", repo)), err, done);
    err = nrd_serve_run_server(o, &w, program, o->path);
done:
    nrd_serve_words_fini(&w);
    nrd_str_fini(&summary);
    free(program);
    free(dir);
    return err;
}

static nrd_error *serve_one(nrd_serve_options *o, const nrd_options *server)
{
    nrd_device_info info;
    char *repo = NULL, *engine = NULL, *tokenizer = NULL;
    nrd_error *err = find_model(o);

    err = err ? err : ask_device(o, &info);
    err = err ? err : prepare(o, &repo, &engine, &tokenizer);
    err = err ? err : become_server(o, server, repo, engine, tokenizer, &info);
    free(tokenizer);
    free(repo);
    free(engine);
    return err;
}

int nrd_tool_serve(int argc, char **argv)
{
    nrd_serve_options *o = nrd_xcalloc(1, sizeof *o);
    nrd_options server;

    nrd_options_init(&server);
    int status = nrd_serve_read_options(o, &server, argc, argv);
    if (status < 0) {
        nrd_ranks_enter_above_0(); /* rank 0 becomes the server */
        nrd_error *err = nrd_tool_check_installation();
        if (!err && !o->prepare_only) {
            err = nrd_passed_sockets_take(&server);
            err = err ? err : nrd_ports_check(&server, "--host");
        }
        err = err ? err : o->switches ? nrd_serve_several(o, &server) : serve_one(o, &server);
        status = o->prepare_only ? nrd_report_end(err) : nrd_tool_finish("serve", err);
    }
    nrd_options_fini(&server);
    nrd_serve_words_fini(&o->build);
    nrd_serve_words_fini(&o->own_sets);
    nrd_str_fini(&o->adapters);
    free(o->record);
    free(o->template);
    for (size_t i = 0; i < o->n_templates; i++) {
        free(o->templates[i].model);
        free(o->templates[i].text);
    }
    free(o->path);
    nrd_serve_words_fini(&o->server);
    nrd_serve_words_fini(&o->line);
    free(o);
    return status;
}

int nrd_tool_trtllm_serve(int argc, char **argv)
{
    const char *word = argc > 1 ? argv[1] : "";
    const bool is_serve = !strcmp(word, "serve"); /* the command that stands for itself when it is left out */

    if (!strcmp(word, "disaggregated") || !strcmp(word, "disaggregated_mpi_worker")) {
        fprintf(stderr, "trtllm-serve %s: not supported; one server has both models here (docs/disaggregated.md)\n", word);
        return 2;
    }
    if (!strcmp(word, "mm_embedding_serve")) {
        fprintf(stderr, "trtllm-serve %s: not supported; a model computes its pictures itself (docs/vision.md)\n", word);
        return 2;
    }
    char *made = NULL;
    for (int i = 1; i < argc && !made; i++) { /* a newer name; nereid's --config has another form */
        if (!strcmp(argv[i], "--config") || nrd_str_has_prefix(argv[i], "--config=")) {
            argv[i] = made = nrd_xasprintf("--extra_llm_api_options%s", argv[i] + strlen("--config"));
        }
    }
    const int status = nrd_tool_serve(argc - is_serve, argv + is_serve);
    free(made);
    return status;
}
