/* SPDX-License-Identifier: Apache-2.0
 * Steps of nereid serve that one model and several share: the place in the cache, the engine, the tokenizer, the device,
 * and the end, where this process becomes the server. */
#include "tools/model_path.h"
#include "tools/repo.h"
#include "tools/serve_internal.h"
#include "tools/template.h"
#include "tools/tools.h"

#include "base/cache_entry.h"
#include "base/env.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/made_from.h"
#include "base/mem.h"
#include "device/device.h"
#include "model/engine.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool nrd_serve_is_repository(const char *path)
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

/* The name shows the model, the hash tells the path, its date and size, the options and our version apart. */
char *nrd_serve_cache_entry(const char *kind, const char *path, const nrd_serve_options *o)
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
    return nrd_tool_build_below(argc, argv);
}

nrd_error *nrd_serve_find_engine(nrd_serve_options *o, char **out)
{
    if (nrd_path_is_dir(o->path) && nrd_engine_is_folder(o->path)) {
        *out = nrd_xstrdup(o->path);
        return NULL;
    }
    o->asked.needs_tokenizer = true;
    o->asked.tokenizer_dir = o->tokenizer_dir;
    if (o->build.n == 0) {
        return nrd_model_path_keep(out, o->path, NULL, o->asked);
    }
    *out = nrd_serve_cache_entry("engines", o->path, o);
    return nrd_model_path_make(*out, o->path, o->asked, build_engine, o);
}

nrd_error *nrd_serve_find_tokenizer(const nrd_serve_options *o, const char *path, const char *made, char **out)
{
    NRD_TRY(nrd_repo_tokenizer(path, o->tokenizer_dir, o->template, made, out));
    (void)nrd_cache_entry_hold(made);
    return strcmp(*out, made) != 0 ? NULL : nrd_made_from_write(made, path);
}

/* The value of a --set; NULL: none. Borrows. */
static const char *set_value(const nrd_template_values *given, const char *name)
{
    const char *v = nrd_template_get(given, name);
    return v && v[0] ? v : NULL;
}

nrd_error *nrd_serve_open_device(const nrd_serve_options *o, nrd_device **out)
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

nrd_error *nrd_serve_begin_words(nrd_serve_words *w, const char *program, const nrd_str *summary)
{
    NRD_TRY(nrd_serve_add_word(w, nrd_xstrdup(program)));
    NRD_TRY(nrd_serve_add_word(w, nrd_xstrdup("--restart-on-failure=true"))); /* both may be overruled */
    NRD_TRY(nrd_serve_add_word(w, nrd_xstrdup("--log-tables=false")));
    return nrd_serve_add_word(w, nrd_xasprintf("--ready-message=%s", nrd_str_cstr(summary)));
}

nrd_error *nrd_serve_run_server(const nrd_serve_options *o, nrd_serve_words *w, const char *program, const char *what)
{
    for (int i = 0; i < o->server.n; i++) {
        NRD_TRY(nrd_serve_add_word(w, nrd_xstrdup(o->server.v[i])));
    }
    fprintf(stderr, "Serving %s\n", what);
    fflush(NULL);
    nrd_cache_entries_pass_on();
    execv(program, w->v);
    return nrd_errorf(NRD_ERR_NOT_FOUND, "cannot start '%s': %s", program, strerror(errno));
}
