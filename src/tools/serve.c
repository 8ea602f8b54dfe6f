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
#include "tools/installation.h"
#include "tools/model_path.h"
#include "tools/ports.h"
#include "tools/remembered.h"
#include "tools/repo.h"
#include "tools/report.h"
#include "tools/serve_internal.h"
#include "tools/template.h"
#include "tools/tools.h"

#include "base/env.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/made_from.h"
#include "base/mem.h"
#include "device/device.h"
#include "hub/pull.h"
#include "model/engine.h"
#include "nereid/ranks.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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
static char *cache_entry(const char *kind, const char *path, const nrd_serve_options *o)
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
    nrd_serve_options *o = user;
    char tp[32], pp[32], ep[32];
    char *argv[NRD_SERVE_MAX_WORDS + 13] = {"build", o->path, "--output_dir", (char *)(uintptr_t)dir, tp, pp, ep,
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
static nrd_error *find_engine(nrd_serve_options *o, char **out)
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
static nrd_error *find_tokenizer(const nrd_serve_options *o, const char *path, const char *made, char **out)
{
    nrd_error *err = nrd_repo_tokenizer(path, o->tokenizer_dir, o->template, made, out);
    return err || strcmp(*out, made) != 0 ? err : nrd_made_from_write(made, path);
}

/* Makes whatever is missing between PATH and a repository. *out_engine, *out_tokenizer: NULL where a repository
 * was given. All owned by the caller. */
static nrd_error *prepare(nrd_serve_options *o, char **out_repo, char **out_engine, char **out_tokenizer)
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
        *out_tokenizer = tokenizer;
        repo = engine = tokenizer = NULL;
    }
    free(repo);
    free(tokenizer_dir);
    free(tokenizer);
    free(engine);
    return err;
}

/* ---- several models ---- */

/* max_tokens_in_paged_kv_cache of --set; 0: not given. */
static nrd_error *given_tokens(const nrd_serve_options *o, int64_t *out)
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

static nrd_error *prepare_model(nrd_serve_options *o, nrd_several_model *m, nrd_device *dev, uint64_t memory)
{
    char *engine = NULL, *tokenizer = NULL, *tokenizer_dir = cache_entry("tokenizers", m->path, o);
    char *folder = nrd_repo_folder_name(m->name);
    const char *lists[NRD_SERVE_MAX_WORDS + 1];
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
static char *several_entry(const nrd_serve_options *o, const nrd_several_model *m, uint64_t all)
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

/* Each template belongs to a model that is there. */
static nrd_error *check_templates(const nrd_serve_options *o, const nrd_several *s)
{
    for (size_t i = 0; i < o->n_templates; i++) {
        const char *name = o->templates[i].model;
        size_t k = 0;
        while (k < s->n && strcmp(s->models[k].name, name) != 0) {
            k++;
        }
        if (k == s->n) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "--chat-template: no model is called '%s'; the first is '%s'", name, s->models[0].name);
        }
        if (is_repository(s->models[k].path)) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "--chat-template: '%s' is a repository, which has its tokenizer's, the file "
                              "chat_template.jinja in the folder that the parameter tokenizer_dir names", name);
        }
    }
    return NULL;
}

/* Paths of everything that was named. */
static nrd_error *find_models(nrd_serve_options *o, nrd_several *s)
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
    NRD_TRY(nrd_several_check_names(s));
    return check_templates(o, s);
}

/* What the server starts to get one more model, with the options of these. */
static nrd_error *pull_words(const nrd_serve_options *o, uint64_t memory, nrd_serve_words *out)
{
    char *dir = nrd_path_exe_dir();
    nrd_error *err = nrd_serve_add_word(out, nrd_path_join(dir, "nereid"));

    free(dir);
    NRD_TRY(err);
    NRD_TRY(nrd_serve_add_word(out, nrd_xstrdup("serve")));
    NRD_TRY(nrd_serve_add_word(out, nrd_xstrdup("--prepare-only")));
    NRD_TRY(nrd_serve_add_word(out, nrd_xasprintf("--model-memory-gb=%.9f", (double)memory / 1e9)));
    NRD_TRY(nrd_serve_add_word(out, nrd_xasprintf("--tp-size=%d", o->asked.tp_size)));
    NRD_TRY(nrd_serve_add_word(out, nrd_xasprintf("--pp-size=%d", o->asked.pp_size)));
    NRD_TRY(nrd_serve_add_word(out, nrd_xasprintf("--moe-ep-size=%d", o->asked.moe_ep_size)));
    for (size_t i = 0; i < o->n_sets; i++) {
        NRD_TRY(nrd_serve_add_word(out, nrd_xasprintf("--set=%s", o->sets[i])));
    }
    for (int i = 0; i < o->build.n; i++) {
        NRD_TRY(nrd_serve_add_word(out, nrd_xasprintf("--build=%s", o->build.v[i])));
    }
    return o->speculative ? nrd_serve_add_word(out, nrd_xasprintf("--speculative-config=%s", o->speculative)) : NULL;
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

static void choose_template(nrd_serve_options *o, const char *model)
{
    if (o->n_templates == 0) {
        return;
    }
    free(o->template);
    o->template = NULL;
    for (size_t i = 0; i < o->n_templates && !o->template; i++) {
        o->template = strcmp(o->templates[i].model, model) == 0 ? nrd_xstrdup(o->templates[i].text) : NULL;
    }
}

static nrd_error *prepare_one_of(nrd_serve_options *o, nrd_several_model *m, uint64_t all, nrd_device *dev, uint64_t memory)
{
    choose_template(o, m->name);
    free(o->path);
    o->path = nrd_xstrdup(m->path);
    m->repo = several_entry(o, m, all);
    NRD_TRY(nrd_error_wrap(is_repository(m->path) ? nrd_several_prepare_repository(m, dev, memory)
                                                  : prepare_model(o, m, dev, memory), "%s", m->name));
    (void)utimensat(AT_FDCWD, m->repo, NULL, 0); /* its date is its last use: nereid prune */
    return NULL;
}

/* Models that clients brought before. One that cannot be made any more does not keep the server from starting. */
static void prepare_pulled(nrd_serve_options *o, nrd_several *pulled, uint64_t chosen, nrd_device *dev, uint64_t memory)
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
static nrd_error *prepare_several(nrd_serve_options *o, nrd_several *s, nrd_several *pulled, const nrd_options *server, nrd_device *dev,
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
    nrd_serve_words pull = {.n = 0};
    nrd_error *err = pull_words(o, s->memory_bytes, &pull);
    err = err ? err : nrd_several_write(s, pulled, *out_file, pull.v, (size_t)pull.n);
    nrd_serve_words_fini(&pull);
    return err;
}

/* ---- before the model is loaded ---- */

/* A name becomes the path of what was pulled. */
static nrd_error *find_model(nrd_serve_options *o)
{
    char *path = NULL;
    NRD_TRY(nrd_hub_resolve(o->path, &path));
    free(o->path);
    o->path = path;
    return NULL;
}

/* The value of a --set; NULL: none. Borrows. */
static const char *set_value(const nrd_template_values *given, const char *name)
{
    const char *v = nrd_template_get(given, name);
    return v && v[0] ? v : NULL;
}

/* The device that the model will use. A missing one is an error here, before an engine is built for it. */
static nrd_error *open_device(const nrd_serve_options *o, nrd_device **out)
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
static nrd_error *ask_device(const nrd_serve_options *o, nrd_device_info *out)
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

/* The words that both forms begin with; the caller ends with run_server. */
static nrd_error *begin_words(nrd_serve_words *w, const char *program, const nrd_str *summary)
{
    NRD_TRY(nrd_serve_add_word(w, nrd_xstrdup(program)));
    NRD_TRY(nrd_serve_add_word(w, nrd_xstrdup("--restart-on-failure=true"))); /* both may be overruled */
    NRD_TRY(nrd_serve_add_word(w, nrd_xstrdup("--log-tables=false")));
    return nrd_serve_add_word(w, nrd_xasprintf("--ready-message=%s", nrd_str_cstr(summary)));
}

/* Comes back with an error only. */
static nrd_error *run_server(const nrd_serve_options *o, nrd_serve_words *w, const char *program, const char *what)
{
    for (int i = 0; i < o->server.n; i++) {
        NRD_TRY(nrd_serve_add_word(w, nrd_xstrdup(o->server.v[i])));
    }
    fprintf(stderr, "Serving %s\n", what);
    fflush(NULL);
    execv(program, w->v);
    return nrd_errorf(NRD_ERR_NOT_FOUND, "cannot start '%s': %s", program, strerror(errno));
}

static nrd_error *become_server_of_several(const nrd_serve_options *o, const nrd_options *server, const nrd_several *s,
                                           const nrd_several *pulled, const char *file, const nrd_device_info *info)
{
    char *dir = nrd_path_exe_dir(), *program = nrd_path_join(dir, "tritonserver");
    nrd_str summary = {0}, names = {0};
    nrd_serve_words w = {0};
    nrd_error *err = NULL;

    nrd_serve_put_summary_of_several(&summary, o, server, s, pulled, info);
    NRD_TRY_GOTO(begin_words(&w, program, &summary), err, done);
    NRD_TRY_GOTO(nrd_serve_add_word(&w, nrd_xstrdup("--model-control-mode=explicit")), err, done);
    NRD_TRY_GOTO(nrd_serve_add_word(&w, nrd_xasprintf("--models-file=%s", file)), err, done);
    for (size_t i = 0; i < s->n; i++) {
        NRD_TRY_GOTO(nrd_serve_add_word(&w, nrd_xasprintf("--model-repository=%s", s->models[i].repo)), err, done);
        nrd_str_printf(&names, "%s%s", i ? ", " : "", s->models[i].name);
    }
    err = run_server(o, &w, program, nrd_str_cstr(&names));
done:
    nrd_serve_words_fini(&w);
    nrd_str_fini(&summary);
    nrd_str_fini(&names);
    free(program);
    free(dir);
    return err;
}

static nrd_error *become_server(const nrd_serve_options *o, const nrd_options *server, const char *repo,
                                const char *engine, const char *tokenizer, const nrd_device_info *info)
{
    char *dir = nrd_path_exe_dir(), *program = nrd_path_join(dir, "tritonserver");
    nrd_str summary = {0};
    nrd_serve_words w = {0};
    nrd_error *err = NULL;

    nrd_serve_put_summary(&summary, o, server, engine, tokenizer, info);
    NRD_TRY_GOTO(begin_words(&w, program, &summary), err, done);
    NRD_TRY_GOTO(nrd_serve_add_word(&w, nrd_xasprintf("--model-repository=%s", repo)), err, done);
    err = run_server(o, &w, program, o->path);
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

/* What was made, for the server that asked for it; the next server finds it too. */
static nrd_error *tell_models(const nrd_serve_options *o, nrd_several *s)
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

static nrd_error *serve_several(nrd_serve_options *o, const nrd_options *server)
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
    nrd_serve_options *o = nrd_xcalloc(1, sizeof *o);
    nrd_options server;

    nrd_options_init(&server);
    int status = nrd_serve_read_options(o, &server, argc, argv);
    if (status < 0) {
        nrd_ranks_enter_above_0(); /* rank 0 becomes the server */
        nrd_error *err = nrd_tool_check_installation();
        err = err || o->prepare_only ? err : nrd_ports_check(&server);
        err = err ? err : o->switches ? serve_several(o, &server) : serve_one(o, &server);
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
    free(o);
    return status;
}
