/* SPDX-License-Identifier: Apache-2.0
 * Finds or makes the engine folder for what the user named. An engine is used as it is; anything
 * else is built into the cache under a key of the file and the device, or, when small, into a
 * temporary folder. Called by run, chat, eval, bench and the module for Python. */
#include "executor/model_path.h"

#include "base/dtype.h"
#include "base/cache_entry.h"
#include "base/env.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/leftovers.h"
#include "base/log.h"
#include "base/made_from.h"
#include "base/mem.h"
#include "base/parts.h"
#include "base/str.h"
#include "base/unfinished.h"
#include "device/device.h"
#include "model/build.h"
#include "model/engine_file.h"
#include "model/mmproj.h"
#include "model/vision.h"
#include "text/shared.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static nrd_error *size_of_parts(uint64_t *out, const char *path, size_t n_parts, size_t at)
{
    struct stat st;
    for (size_t i = 1; i <= n_parts; i++) {
        char *part = nrd_part_name(path, at, i);
        if (!part) {
            return nrd_error_no_memory();
        }
        *out += stat(part, &st) == 0 ? (uint64_t)st.st_size : 0;
        free(part);
    }
    return NULL;
}

/* Size of a file with its other parts, or of the files in a folder; 0: nothing is there. It is part of a name in
 * the cache: without memory for a look at a file there is no name. */
static nrd_error *size_of(uint64_t *out, const char *path)
{
    struct stat st;
    char **names = NULL;
    size_t n = 0, at = 0;
    nrd_error *err = NULL;

    *out = 0;
    if (stat(path, &st) != 0) {
        return NULL;
    }
    if (!S_ISDIR(st.st_mode)) {
        const size_t parts = nrd_parts_of_name(path, &at);
        if (parts > 1) {
            return size_of_parts(out, path, parts, at);
        }
        *out = (uint64_t)st.st_size;
        return NULL;
    }
    NRD_TRY(nrd_dir_list(&names, &n, path));
    for (size_t i = 0; i < n && !err; i++) {
        char *file = NULL;
        err = nrd_path_make(&file, path, names[i]);
        if (!err && stat(file, &st) == 0 && S_ISREG(st.st_mode)) {
            *out += (uint64_t)st.st_size;
        }
        free(file);
    }
    nrd_names_free(names, n);
    return err;
}

const char *nrd_build_layouts(const char *device)
{
    bool any = !device || !*device || !strcmp(device, "auto");
    bool cpu = any ? access("/dev/nvidiactl", F_OK) != 0 : !strcmp(device, "cpu");
    return cpu ? "cpu" : "rows";
}

nrd_error *nrd_model_path_check_device(const char *name)
{
    nrd_device *dev = NULL;
    if (!name || !*name || !strcmp(name, "auto") || !strcmp(name, "cpu")) {
        return NULL;
    }
    NRD_TRY(nrd_device_open(&dev, name, NULL));
    dev->ops->close(dev);
    return NULL;
}

/* Before anything is built. Of files that are no model that is the error, and not what else they lack. */
static nrd_error *check_tokenizer(const char *path, const nrd_engine_asked *asked)
{
    nrd_text *text = NULL;
    nrd_source *src = NULL;
    nrd_error *err = asked->needs_tokenizer ? nrd_text_open(&text, asked->tokenizer_dir ? asked->tokenizer_dir : path) : NULL;
    nrd_error *worse = err ? nrd_source_open(&src, path) : NULL;

    nrd_text_close(text);
    nrd_source_close(src);
    if (worse) {
        nrd_error_free(err);
        return worse;
    }
    return nrd_error_wrap(err, "no tokenizer (name one with --tokenizer_dir)");
}

static int32_t n_or_1(int32_t n)
{
    return n > 1 ? n : 1;
}

/* The path without links; where there is none, the path as it was given. */
static nrd_error *without_links(char **out, const char *path)
{
    errno = 0;
    *out = realpath(path, NULL);
    if (!*out && errno != ENOMEM) {
        *out = strdup(path);
    }
    return *out ? NULL : nrd_error_no_memory();
}

char *nrd_model_path_label(const char *path)
{
    const bool is_dir = nrd_path_is_dir(path);
    char *real = NULL, *snapshots = NULL, *repo = NULL, *label = NULL;
    nrd_error *err = NULL;

    if (is_dir) { /* a file may be a link to a name that says nothing */
        NRD_TRY_GOTO(without_links(&real, path), err, done);
    }
    NRD_TRY_GOTO(nrd_path_make_dir(&snapshots, real ? real : path), err, done);
    NRD_TRY_GOTO(nrd_path_make_dir(&repo, snapshots), err, done);
    const bool is_hub = is_dir && !strcmp(nrd_path_base(snapshots), "snapshots");
    label = strdup(nrd_path_base(is_hub ? repo : real ? real : path));
done:
    nrd_error_free(err);
    free(real);
    free(snapshots);
    free(repo);
    return label;
}

nrd_error *nrd_model_path_hash_mmproj(uint64_t *h, const char *mmproj, const char *path)
{
    struct stat st = {0};
    char *file = NULL, *real = NULL;
    nrd_error *err = NULL;

    NRD_TRY(nrd_mmproj_find(&file, mmproj, path));
    if (file) {
        NRD_TRY_GOTO(without_links(&real, file), err, done);
        *h = nrd_hash_bytes(*h, real, strlen(real));
    }
    if (file && stat(real, &st) == 0) {
        *h = nrd_hash_u64(*h, (uint64_t)st.st_size);
        *h = nrd_hash_u64(*h, (uint64_t)st.st_mtim.tv_sec * 1000000000u + (uint64_t)st.st_mtim.tv_nsec);
    }
done:
    free(real);
    free(file);
    return err;
}

/* The folder of the engine in the cache: the name shows the model, the hash tells what it is made of apart. */
static nrd_error *cache_entry(char **out, const char *path, const char *layouts, nrd_engine_asked asked)
{
    struct stat st = {0};
    nrd_str name = {0};
    nrd_error *err = NULL;
    uint64_t size = 0, h = nrd_hash_bytes(4, NRD_VERSION, strlen(NRD_VERSION));
    char *cache = nrd_env_cache_dir(), *label = nrd_model_path_label(path), *real = NULL;

    *out = NULL;
    if (!cache || !label) {
        err = nrd_error_no_memory();
        goto done;
    }
    NRD_TRY_GOTO(without_links(&real, path), err, done);
    h = nrd_hash_bytes(h, real, strlen(real));
    h = nrd_hash_bytes(h, layouts, strlen(layouts));
    h = nrd_hash_u64(h, (uint64_t)n_or_1(asked.tp_size));
    h = nrd_hash_u64(h, (uint64_t)n_or_1(asked.pp_size));
    h = nrd_hash_u64(h, (uint64_t)n_or_1(asked.moe_ep_size));
    NRD_TRY_GOTO(nrd_model_path_hash_mmproj(&h, asked.mmproj, path), err, done);
    if (stat(real, &st) == 0) {
        NRD_TRY_GOTO(size_of(&size, path), err, done);
        h = nrd_hash_u64(h, size);
        h = nrd_hash_u64(h,
                         (uint64_t)st.st_mtim.tv_sec * 1000000000u + (uint64_t)st.st_mtim.tv_nsec);
    }
    nrd_str_printf(&name, "%s/engines/%s-%012llx", cache, label, (unsigned long long)(h & 0xffffffffffffu));
    *out = nrd_str_steal(&name);
    err = *out ? NULL : nrd_error_no_memory();
done:
    nrd_str_fini(&name);
    free(label);
    free(cache);
    free(real);
    return err;
}

/* What becomes an engine. */
typedef struct wanted {
    const char *path, *layouts;
    nrd_engine_asked asked;
} wanted;

/* A model that generates without its MTP layer does so where the layer cannot be read. */
static void build_mtp(const wanted *w, const nrd_source *src, const nrd_build_options *b, nrd_build_stats *stats, const char *out_dir)
{
    nrd_error *err = nrd_build_mtp(src, b, out_dir, stats);
    if (err) {
        NRD_LOG_WARN("%s: without its MTP layer: %s", w->path, nrd_error_message(err));
        nrd_error_free(err);
    }
}

/* What the build notes, one thing a line: what of the model was left out, so that it may not be what its files say. */
static void warn_of(const char *path, const nrd_str *notes)
{
    for (const char *at = nrd_str_cstr(notes); *at;) {
        const int n = (int)strcspn(at, "\n");
        NRD_LOG_WARN("%s: %.*s", path, n, at);
        at += n + (at[n] == '\n');
    }
}

static nrd_error *build(void *user, const char *out_dir)
{
    const wanted *w = user;
    nrd_error *err = NULL;
    nrd_source *src = NULL;
    nrd_build_stats stats = {0};
    nrd_build_options b = {.device_name = "", .plan.tp_size = w->asked.tp_size, .plan.pp_size = w->asked.pp_size,
                           .plan.moe_ep_size = w->asked.moe_ep_size, .plan.mmproj = w->asked.mmproj,
                           .plan.keep_packed = strcmp(w->layouts, "cpu") != 0};

    if (!strcmp(w->layouts, "cpu")) {
        b.device_name = w->layouts;
        NRD_TRY_GOTO(nrd_device_open(&b.dev, w->layouts, NULL), err, done);
    }
    NRD_TRY_GOTO(nrd_source_open(&src, w->path), err, done);
    nrd_build_limits_init(&b.limits, nrd_source_spec(src));
    b.limits.use_paged_context_fmha = true;
    b.limits.max_input_len = b.limits.max_seq_len;
    b.limits.max_beam_width = 8; /* costs nothing until an executor allows it */
    NRD_TRY_GOTO(nrd_build_folder(src, &b, out_dir, &stats), err, done);
    build_mtp(w, src, &b, &stats, out_dir);
    warn_of(w->path, &stats.notes);
done:
    nrd_str_fini(&stats.notes);
    nrd_source_close(src);
    if (b.dev) {
        b.dev->ops->close(b.dev);
    }
    return err;
}

/* An engine has the ranks that it was built for. 0 of a number: what it has. */
static nrd_error *check_asked(const char *engine, nrd_engine_asked asked)
{
    nrd_json_limits limits = {.max_bytes = NRD_SMALL_MODEL_BYTES};
    nrd_json_doc *config = NULL;
    nrd_error *err = NULL;
    char *path = NULL;

    if (asked.mmproj && strcmp(asked.mmproj, "none") != 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "--mmproj is for GGUF files, and '%s' is an engine, which has the tower that it was built with",
                          engine);
    }
    if (asked.tp_size > 0 || asked.pp_size > 0 || asked.moe_ep_size > 0) {
        NRD_TRY(nrd_path_make(&path, engine, "config.json"));
        err = nrd_error_wrap(nrd_json_parse_file(&config, path, &limits), "%s", path);
    }
    if (config) {
        const nrd_json *mapping = nrd_json_get(nrd_json_get(nrd_json_root(config), "pretrained_config"), "mapping");
        const int32_t tp = (int32_t)nrd_json_get_int(mapping, "tp_size", 1),
                      pp = (int32_t)nrd_json_get_int(mapping, "pp_size", 1),
                      ep = (int32_t)nrd_json_get_int(mapping, "moe_ep_size", 1);
        if (!err && asked.moe_ep_size > 0 && asked.moe_ep_size != ep) {
            err = nrd_errorf(NRD_ERR_INVALID_ARG, "--moe-ep-size %d: '%s' was built for moe_ep_size %d; leave the option out, or "
                             "build it again with it", asked.moe_ep_size, engine, ep);
        }
        if (!err && ((asked.tp_size > 0 && asked.tp_size != tp) || (asked.pp_size > 0 && asked.pp_size != pp))) {
            err = nrd_errorf(NRD_ERR_INVALID_ARG,
                             "--tp-size %d --pp-size %d: '%s' was built for another number of ranks (tp_size %d, "
                             "pp_size %d); leave the options out, or build it again with them",
                             asked.tp_size > 0 ? asked.tp_size : tp, asked.pp_size > 0 ? asked.pp_size : pp, engine,
                             tp, pp);
        }
    }
    nrd_json_doc_free(config);
    free(path);
    return err;
}

/* An engine that an earlier release made does not say of what: it is told when it is used again, so that it can go with its
 * model. */
static nrd_error *use_made(const char *entry, const char *path)
{
    char *model = nrd_made_from_read(entry);
    nrd_error *err = model ? NULL : nrd_made_from_write(entry, path);

    free(model);
    (void)utimensat(AT_FDCWD, entry, NULL, 0);
    return err;
}

/* Makes the engine in folder `tmp` and gives it its name. */
static nrd_error *make_beside(const char *entry, const char *tmp, const char *path, nrd_engine_maker *make, void *user)
{
    nrd_unfinished_note(tmp); /* a signal removes it too */
    nrd_error *err = make(user, tmp);
    if (!err) {
        err = nrd_made_from_write(tmp, path);
    }
    if (!err && rename(tmp, entry) != 0 && !nrd_engine_is_folder(entry)) {
        err = nrd_errorf(NRD_ERR_INTERNAL, "cannot rename '%s' to '%s'", tmp, entry);
    }
    if (nrd_path_is_dir(tmp)) {
        nrd_dir_remove(tmp);
    }
    nrd_unfinished_forget(tmp);
    return err;
}

/* It may be removed between two looks at it, by who makes room; not once it is held. */
static bool find_made(const char *entry, const char *path)
{
    const bool is_there = nrd_engine_is_folder(entry) && nrd_cache_entry_hold(entry);

    if (is_there) {
        nrd_error_free(use_made(entry, path)); /* where the cache cannot be written it is used as it is */
    }
    return is_there;
}

nrd_error *nrd_model_path_make(const char *entry, const char *path, nrd_engine_asked asked, nrd_engine_maker *make, void *user)
{
    nrd_error *err = NULL;
    nrd_str tmp = {0};
    char *dir = NULL;
    uint64_t size = 0;

    if (find_made(entry, path)) {
        return NULL;
    }
    NRD_TRY_GOTO(check_tokenizer(path, &asked), err, done);
    NRD_TRY_GOTO(nrd_path_make_dir(&dir, entry), err, done);
    NRD_TRY_GOTO(nrd_mkdirs(dir), err, done);
    nrd_leftovers_sweep(dir);
    NRD_TRY_GOTO(size_of(&size, path), err, done);
    const uint64_t most = nrd_cache_max_bytes(dir);
    nrd_cache_trim(dir, most, size); /* an engine takes about as much as its model */
    nrd_str_printf(&tmp, "%s.tmp.%ld", entry, (long)getpid());
    NRD_TRY_GOTO(nrd_str_error(&tmp), err, done);
    NRD_TRY_GOTO(make_beside(entry, tmp.data, path, make, user), err, done);
    if (!nrd_cache_entry_hold(entry)) {
        err = nrd_errorf(NRD_ERR_UNAVAILABLE, "'%s' was removed as soon as it was made: try again", entry);
        goto done;
    }
    nrd_cache_trim(dir, most, 0);
done:
    nrd_str_fini(&tmp);
    free(dir);
    return err;
}

nrd_error *nrd_model_path_keep(char **out_engine, const char *path, const char *device, nrd_engine_asked asked)
{
    wanted w = {.path = path, .layouts = nrd_build_layouts(device), .asked = asked};

    NRD_TRY(cache_entry(out_engine, path, w.layouts, asked));
    nrd_error *err = nrd_model_path_make(*out_engine, path, asked, build, &w);
    if (err) {
        free(*out_engine);
        *out_engine = NULL;
    }
    return err;
}

/* A small model that is not in the cache. */
static nrd_error *open_temporary(nrd_model_path *out, wanted *w)
{
    nrd_str name = {0};

    NRD_TRY(check_tokenizer(w->path, &w->asked));
    nrd_str_printf(&name, "%s/nereid-engine-XXXXXX", nrd_env("TMPDIR", "/tmp"));
    out->engine = nrd_str_steal(&name);
    nrd_str_fini(&name);
    if (!out->engine) {
        return nrd_error_no_memory();
    }
    nrd_leftovers_sweep_dirs(out->engine);
    NRD_TRY(nrd_leftovers_make_dir(out->engine, &out->lock));
    out->is_temporary = true;
    nrd_unfinished_note(out->engine);
    return build(w, out->engine);
}

/* PATH where it is an engine, or the decoder's in a folder of two as TensorRT-LLM's guides build them: encoder/ and
 * decoder/. *out NULL: it is no engine. Owned by the caller. */
static nrd_error *find_engine(char **out, const char *path)
{
    char *decoder = NULL, *encoder = NULL;
    nrd_error *err = NULL;

    *out = NULL;
    if (!nrd_path_is_dir(path)) {
        return NULL;
    }
    if (nrd_engine_is_folder(path)) {
        NRD_DUP_GOTO(*out, path, err, done);
        return NULL;
    }
    NRD_TRY_GOTO(nrd_path_make(&decoder, path, "decoder"), err, done);
    NRD_TRY_GOTO(nrd_path_make(&encoder, path, "encoder"), err, done);
    if (nrd_engine_is_folder(decoder) && nrd_engine_is_folder(encoder)) {
        *out = decoder;
        decoder = NULL;
    }
done:
    free(decoder);
    free(encoder);
    return err;
}

nrd_error *nrd_model_path_open(nrd_model_path *out, const char *path, const char *device,
                               nrd_engine_asked asked)
{
    wanted w = {.path = path, .layouts = nrd_build_layouts(device), .asked = asked};
    nrd_error *err = NULL;
    uint64_t size = 0;

    *out = (nrd_model_path){0};
    if (!nrd_path_exists(path)) {
        return nrd_errorf(NRD_ERR_NOT_FOUND, "'%s' does not exist", path);
    }
    NRD_TRY(find_engine(&out->engine, path));
    if (out->engine) {
        (void)nrd_cache_entry_hold(out->engine); /* it may be one of the cache */
        NRD_DUP_GOTO(out->tokenizer, out->engine, err, done);
        err = check_asked(out->engine, asked);
        goto done;
    }
    NRD_TRY(nrd_model_path_check_device(device)); /* packing weights for it may take minutes */
    NRD_DUP_GOTO(out->tokenizer, path, err, done);
    NRD_TRY_GOTO(size_of(&size, path), err, done);
    NRD_TRY_GOTO(cache_entry(&out->engine, path, w.layouts, asked), err, done);
    if (size < NRD_SMALL_MODEL_BYTES && !nrd_engine_is_folder(out->engine)) {
        free(out->engine);
        out->engine = NULL;
        err = open_temporary(out, &w);
    } else {
        err = nrd_model_path_make(out->engine, path, asked, build, &w);
    }
done:
    if (err) {
        nrd_model_path_close(out);
    }
    return err;
}

void nrd_model_path_close(nrd_model_path *m)
{
    if (m->is_temporary) {
        nrd_dir_remove(m->engine);
        nrd_unfinished_forget(m->engine);
        if (m->lock >= 0) {
            close(m->lock);
        }
    }
    free(m->engine);
    free(m->tokenizer);
    *m = (nrd_model_path){0};
}
