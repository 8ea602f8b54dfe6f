/* SPDX-License-Identifier: Apache-2.0
 * nereid serve of several models: each gets a repository whose models have names of their own; then one server with all
 * of them and a file that names them. */
#include "tools/remembered.h"
#include "tools/repo.h"
#include "tools/report.h"
#include "tools/serve_internal.h"
#include "tools/several.h"
#include "tools/template.h"

#include "base/cache_entry.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/made_from.h"
#include "base/mem.h"
#include "device/device.h"
#include "hub/pull.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

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
    char *engine = NULL, *tokenizer = NULL, *tokenizer_dir = nrd_serve_cache_entry("tokenizers", m->path, o);
    char *folder = nrd_repo_folder_name(m->name);
    const char *lists[NRD_SERVE_MAX_WORDS + 1];
    char tokens_list[64];
    int64_t tokens = 0;
    size_t n_lists = 0;
    nrd_error *err = given_tokens(o, &tokens);

    err = err ? err : nrd_serve_find_engine(o, &engine);
    err = err ? err : nrd_serve_find_tokenizer(o, m->path, tokenizer_dir, &tokenizer);
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
        (void)nrd_cache_entry_hold(m->repo);
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
    char *plain = nrd_serve_cache_entry("repositories", m->path, o);
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
        if (nrd_serve_is_repository(s->models[k].path)) {
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
    NRD_TRY(nrd_error_wrap(nrd_serve_is_repository(m->path) ? nrd_several_prepare_repository(m, dev, memory)
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

static nrd_error *become_server_of_several(const nrd_serve_options *o, const nrd_options *server, const nrd_several *s,
                                           const nrd_several *pulled, const char *file, const nrd_device_info *info)
{
    char *dir = nrd_path_exe_dir(), *program = nrd_path_join(dir, "tritonserver");
    nrd_str summary = {0}, names = {0};
    nrd_serve_words w = {0};
    nrd_error *err = NULL;

    nrd_serve_put_summary_of_several(&summary, o, server, s, pulled, info);
    NRD_TRY_GOTO(nrd_serve_begin_words(&w, program, &summary), err, done);
    NRD_TRY_GOTO(nrd_serve_add_word(&w, nrd_xstrdup("--model-control-mode=explicit")), err, done);
    NRD_TRY_GOTO(nrd_serve_add_word(&w, nrd_xasprintf("--models-file=%s", file)), err, done);
    for (size_t i = 0; i < s->n; i++) {
        NRD_TRY_GOTO(nrd_serve_add_word(&w, nrd_xasprintf("--model-repository=%s", s->models[i].repo)), err, done);
        nrd_str_printf(&names, "%s%s", i ? ", " : "", s->models[i].name);
    }
    err = nrd_serve_run_server(o, &w, program, nrd_str_cstr(&names));
done:
    nrd_serve_words_fini(&w);
    nrd_str_fini(&summary);
    nrd_str_fini(&names);
    free(program);
    free(dir);
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

nrd_error *nrd_serve_several(nrd_serve_options *o, const nrd_options *server)
{
    nrd_several *s = nrd_xcalloc(2, sizeof *s), *pulled = s + 1;
    nrd_device_info info;
    nrd_device *dev = NULL;
    char *file = NULL;
    nrd_error *err = find_models(o, s);

    err = err ? err : nrd_serve_open_device(o, &dev);
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
