/* SPDX-License-Identifier: Apache-2.0
 * Finds or makes the engine folder for what the user named. An engine is used as it is; anything
 * else is built into the cache under a key of the file and the device, or, when small, into a
 * temporary folder. Called by run, chat, eval and bench; the options that open the executor are
 * read here too. */
#include "tools/model_path.h"

#include "base/dtype.h"
#include "base/env.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/leftovers.h"
#include "base/mem.h"
#include "base/str.h"
#include "device/device.h"
#include "model/build.h"
#include "model/engine_file.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool has_file(const char *dir, const char *name)
{
    char *file = nrd_path_join(dir, name);
    bool found = nrd_path_exists(file);
    free(file);
    return found;
}

static bool is_engine(const char *path)
{
    return has_file(path, "rank0.engine") && has_file(path, "config.json");
}

/* Size of a file, or of the files in a folder. */
static uint64_t size_of(const char *path)
{
    struct stat st;
    char **names = NULL;
    size_t n = 0;
    uint64_t sum = 0;

    if (stat(path, &st) != 0) {
        return 0;
    }
    if (!S_ISDIR(st.st_mode)) {
        return (uint64_t)st.st_size;
    }
    nrd_error_free(nrd_dir_list(&names, &n, path));
    for (size_t i = 0; i < n; i++) {
        char *file = nrd_path_join(path, names[i]);
        if (stat(file, &st) == 0 && S_ISREG(st.st_mode)) {
            sum += (uint64_t)st.st_size;
        }
        free(file);
    }
    nrd_names_free(names, n);
    return sum;
}

const char *nrd_build_layouts(const char *device)
{
    bool any = !device || !*device || !strcmp(device, "auto");
    bool cpu = any ? access("/dev/nvidiactl", F_OK) != 0 : !strcmp(device, "cpu");
    return cpu ? "cpu" : "rows";
}

nrd_error *nrd_tool_check_device(const char *name)
{
    nrd_device *dev = NULL;
    if (!name || !*name || !strcmp(name, "auto") || !strcmp(name, "cpu")) {
        return NULL;
    }
    NRD_TRY(nrd_device_open(&dev, name, NULL));
    dev->ops->close(dev);
    return NULL;
}

static char *cache_entry(const char *path, const char *layouts, int32_t tp_size)
{
    struct stat st = {0};
    char *cache = nrd_env_cache_dir(), *real = realpath(path, NULL);
    const char *name = real ? real : path;
    uint64_t h = nrd_hash_bytes(3, NRD_VERSION, strlen(NRD_VERSION));

    h = nrd_hash_bytes(h, name, strlen(name));
    h = nrd_hash_bytes(h, layouts, strlen(layouts));
    h = nrd_hash_u64(h, (uint64_t)tp_size);
    if (stat(name, &st) == 0) {
        h = nrd_hash_u64(h, size_of(name));
        h = nrd_hash_u64(h,
                         (uint64_t)st.st_mtim.tv_sec * 1000000000u + (uint64_t)st.st_mtim.tv_nsec);
    }
    char *entry = nrd_xasprintf("%s/engines/%s-%012llx", cache, nrd_path_base(name),
                                (unsigned long long)(h & 0xffffffffffffu));
    free(cache);
    free(real);
    return entry;
}

/* A signal removes the folder too, with the files that building makes in it. */
static void note_folder(const char *dir, int32_t tp_size, void (*note)(const char *path))
{
    note(dir);
    for (int32_t i = -1; i < (tp_size > 1 ? tp_size : 1); i++) {
        char *file = i < 0 ? nrd_path_join(dir, "config.json") : nrd_xasprintf("%s/rank%d.engine", dir, i);
        note(file);
        free(file);
    }
}

static nrd_error *build(const char *path, const char *layouts, int32_t tp_size, const char *out_dir)
{
    nrd_error *err = NULL;
    nrd_source *src = NULL;
    nrd_build_stats stats = {0};
    nrd_build_options b = {.device_name = "", .plan.tp_size = tp_size};

    if (!strcmp(layouts, "cpu")) {
        b.device_name = layouts;
        NRD_TRY_GOTO(nrd_device_open(&b.dev, layouts, NULL), err, done);
    }
    NRD_TRY_GOTO(nrd_source_open(&src, path), err, done);
    nrd_build_limits_init(&b.limits, nrd_source_spec(src));
    b.limits.use_paged_context_fmha = true;
    b.limits.max_input_len = b.limits.max_seq_len;
    b.limits.max_beam_width = 8; /* costs nothing until an executor allows it */
    err = nrd_build_folder(src, &b, out_dir, &stats);
done:
    nrd_str_fini(&stats.notes);
    nrd_source_close(src);
    if (b.dev) {
        b.dev->ops->close(b.dev);
    }
    return err;
}

/* An engine has the ranks that it was built for. */
static nrd_error *check_ranks(const char *engine, int32_t tp_size)
{
    char *last = nrd_xasprintf("rank%d.engine", tp_size - 1), *more = nrd_xasprintf("rank%d.engine", tp_size);
    bool same = tp_size <= 0 || (has_file(engine, last) && !has_file(engine, more));
    free(last);
    free(more);
    return same ? NULL : nrd_errorf(NRD_ERR_INVALID_ARG, "--tp-size %d: '%s' was built for another number of "
                                    "ranks; build it again with --tp-size %d", tp_size, engine, tp_size);
}

/* Builds beside the final place and renames: several processes may do so at once. */
static nrd_error *build_cached(const char *path, const char *layouts, int32_t tp_size, const char *entry)
{
    char *dir = nrd_path_dir(entry), *tmp = nrd_xasprintf("%s.tmp.%ld", entry, (long)getpid());
    nrd_error *err = nrd_mkdirs(dir);
    nrd_leftovers_sweep(dir);
    note_folder(tmp, tp_size, nrd_leftover_note);
    if (!err) {
        err = build(path, layouts, tp_size, tmp);
    }
    if (!err && rename(tmp, entry) != 0 && !is_engine(entry)) {
        err = nrd_errorf(NRD_ERR_INTERNAL, "cannot rename '%s' to '%s'", tmp, entry);
    }
    if (nrd_path_is_dir(tmp)) {
        nrd_folder_remove(tmp);
    }
    note_folder(tmp, tp_size, nrd_leftover_forget);
    free(dir);
    free(tmp);
    return err;
}

nrd_error *nrd_model_path_open(nrd_model_path *out, const char *path, const char *device, int32_t tp_size)
{
    const char *layouts = nrd_build_layouts(device);
    nrd_error *err = NULL;

    *out = (nrd_model_path){0};
    if (!nrd_path_exists(path)) {
        return nrd_errorf(NRD_ERR_NOT_FOUND, "'%s' does not exist", path);
    }
    if (nrd_path_is_dir(path) && is_engine(path)) {
        NRD_TRY(check_ranks(path, tp_size));
        out->tokenizer = nrd_xstrdup(path);
        out->engine = nrd_xstrdup(path);
        return NULL;
    }
    NRD_TRY(nrd_tool_check_device(device)); /* packing weights for it may take minutes */
    out->tokenizer = nrd_xstrdup(path);
    if (size_of(path) < NRD_SMALL_MODEL_BYTES) {
        out->engine = nrd_xasprintf("%s/nereid-engine-XXXXXX", nrd_env("TMPDIR", "/tmp"));
        if (!mkdtemp(out->engine)) {
            err = nrd_errorf(NRD_ERR_INTERNAL, "cannot make a folder '%s'", out->engine);
        } else {
            out->is_temporary = true;
            out->tp_size = tp_size;
            note_folder(out->engine, tp_size, nrd_leftover_note);
            err = build(path, layouts, tp_size, out->engine);
        }
    } else {
        out->engine = cache_entry(path, layouts, tp_size);
        if (!is_engine(out->engine)) {
            err = build_cached(path, layouts, tp_size, out->engine);
        }
    }
    if (err) {
        nrd_model_path_close(out);
    }
    return err;
}

void nrd_model_path_close(nrd_model_path *m)
{
    if (m->is_temporary) {
        nrd_folder_remove(m->engine);
        note_folder(m->engine, m->tp_size, nrd_leftover_forget);
    }
    free(m->engine);
    free(m->tokenizer);
    *m = (nrd_model_path){0};
}

static nrd_error *parse_type(const char *option, const char *text, nrd_dtype *out)
{
    if (text && strcmp(text, "auto") != 0 && strcmp(text, "native") != 0 &&
        !nrd_dtype_parse(text, out)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: '%s' is no known element type", option, text);
    }
    return NULL;
}

nrd_error *nrd_exec_options_apply(const nrd_exec_options *o, nrd_exec_config *c)
{
    c->device = o->device;
    c->cpu_isa = o->isa;
    c->n_threads = o->threads;
    c->max_num_tokens = o->max_num_tokens;
    c->max_batch_size = o->max_batch_size;
    c->kv_cache_free_mem_fraction = o->kv_fraction;
    c->cuda_graph_mode = !o->no_cuda_graphs;
    c->no_overlap = o->no_overlap;
    if (o->lora_dir) { /* one adapter, of any rank */
        c->enable_lora = true;
        c->lora_cache_max_adapter_size = NRD_LORA_MAX_RANK;
        c->lora_cache_host_memory_bytes = UINT64_MAX / 2;
    }
    if (o->device_id > 0) {
        c->device_ids = &o->device_id;
        c->n_device_ids = 1;
    }
    NRD_TRY(parse_type("--compute_dtype", o->compute_dtype, &c->compute_dtype));
    return parse_type("--kv_dtype", o->kv_dtype, &c->kv_dtype);
}

nrd_error *nrd_exec_options_adapter(const nrd_exec_options *o, nrd_exec *x, uint64_t *out_id)
{
    *out_id = 0;
    if (!o->lora_dir) {
        return NULL;
    }
    nrd_error *err = nrd_exec_lora_load(x, 1, o->lora_dir);
    *out_id = err ? 0 : 1;
    return err;
}
