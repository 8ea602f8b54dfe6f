/* SPDX-License-Identifier: Apache-2.0 */
#include "device/device.h"

#include "base/env.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

#include <ctype.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NAME = 64 }; /* of a device */

/* Folder of the shared object or program that this code lies in. */
static nrd_error *own_dir(char **out)
{
    Dl_info info;
    static const char here = 0;

    if (dladdr(&here, &info) && info.dli_fname && strchr(info.dli_fname, '/')) {
        return nrd_path_make_dir(out, info.dli_fname);
    }
    return nrd_path_make_exe_dir(out);
}

/* ---- what plug-ins are given ---- */

static nrd_error *error_new(int code, const char *message)
{
    return nrd_errorf((nrd_error_code)code, "%s", message);
}

static int error_code(const nrd_error *err)
{
    return (int)nrd_error_get_code(err);
}

static const nrd_device_host host = {
    .error_new = error_new,
    .error_no_memory = nrd_error_no_memory,
    .error_code = error_code,
    .error_message = nrd_error_message,
    .error_free = nrd_error_free,
};

/* ---- opening ---- */

const char *nrd_device_id(void)
{
    return NRD_DEVICE_ID;
}

/* Beside us, in lib/ next to bin/ (the tools are linked statically), where the user says. *out NULL: nowhere. */
static nrd_error *find_plugin(char **out, const char *dir, const char *file, const char *extra)
{
    char beside[MAX_NAME + 32];
    const struct {
        const char *dir, *file;
    } places[] = {{dir, file}, {dir, beside}, {extra, file}};

    snprintf(beside, sizeof beside, "../lib/%s", file);
    *out = NULL;
    for (size_t i = 0; i < sizeof places / sizeof places[0] && places[i].dir; i++) {
        NRD_TRY(nrd_path_make(out, places[i].dir, places[i].file));
        if (nrd_path_exists(*out)) {
            return NULL;
        }
        free(*out);
        *out = NULL;
    }
    return NULL;
}

/* *is_there: whether there is such a plug-in, whatever came of it. */
static nrd_error *open_plugin(nrd_device **out, bool *is_there, const char *name, const nrd_device_config *config)
{
    char file[MAX_NAME + 16], *dir = NULL, *path = NULL;
    const char *extra = nrd_env("NEREID_DEVICE_DIR", NULL);
    nrd_error *err = NULL;
    void *lib = NULL;

    snprintf(file, sizeof file, "nereid_%s.so", name);
    NRD_TRY_GOTO(own_dir(&dir), err, done);
    NRD_TRY_GOTO(find_plugin(&path, dir, file, extra), err, done);
    *is_there = path != NULL;
    if (!path) {
        err = nrd_errorf(NRD_ERR_NOT_FOUND,
                         "device \"%s\": known are cpu and what has a plug-in; %s is neither in %s nor in "
                         "%s/../lib%s%s%s. 'make CUDA=1' builds the one for cuda; or use \"cpu\"",
                         name, file, dir, dir, extra ? " nor in NEREID_DEVICE_DIR (" : "",
                         extra ? extra : "", extra ? ")" : "; NEREID_DEVICE_DIR names another folder");
        goto done;
    }
    lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!lib) {
        err = nrd_errorf(NRD_ERR_UNSUPPORTED, "device \"%s\": %s; use \"cpu\"", name, dlerror());
        goto done;
    }
    const char *id = dlsym(lib, NRD_DEVICE_ID_SYMBOL);
    if (!id || strcmp(id, NRD_DEVICE_ID) != 0) {
        err = nrd_errorf(NRD_ERR_UNSUPPORTED, "device \"%s\": %s was built for another version of nereid; build "
                                              "it again or use \"cpu\"", name, path);
        goto done;
    }
    nrd_device_plugin_fn open_device;
    void *symbol = dlsym(lib, NRD_DEVICE_PLUGIN_SYMBOL);
    memcpy(&open_device, &symbol, sizeof open_device); /* ISO C has no cast from object to function */
    if (!open_device) {
        err = nrd_errorf(NRD_ERR_UNSUPPORTED, "device \"%s\": %s has no symbol %s", name, path,
                         NRD_DEVICE_PLUGIN_SYMBOL);
        goto done;
    }
    err = open_device(&host, config, out);
done:
    if (err && lib) {
        dlclose(lib); /* an opened device keeps its library for the life of the process */
    }
    free(dir);
    free(path);
    return err;
}

static bool is_name(const char *s)
{
    size_t n = 0;

    for (; s[n]; n++) {
        if (!isalnum((unsigned char)s[n]) && s[n] != '_') {
            return false;
        }
    }
    return n > 0 && n < MAX_NAME;
}

nrd_error *nrd_device_open_as(nrd_device **out, const char **out_name, const char *name, const nrd_device_config *config)
{
    nrd_device_config none = {0};
    bool is_there = false;

    *out = NULL;
    *out_name = name;
    if (!config) {
        config = &none;
    }
    if (!name || !*name || strcmp(name, "auto") == 0) {
        nrd_error *err = open_plugin(out, &is_there, "cuda", config);
        *out_name = err ? "cpu" : "cuda";
        if (!err) {
            return NULL;
        }
        if (nrd_error_get_code(err) != NRD_ERR_NOT_FOUND) {
            NRD_LOG_WARN("the CPU is used: %s", nrd_error_message(err));
        } else if (is_there) { /* no driver: as usual where a build goes to several machines */
            NRD_LOG_INFO("the CPU is used: %s", nrd_error_message(err));
        }
        nrd_error_free(err);
        return nrd_cpu_open(out, config);
    }
    if (strcmp(name, "cpu") == 0) {
        return nrd_cpu_open(out, config);
    }
    if (!is_name(name)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "device \"%s\": a name has letters, digits and _ only", name);
    }
    return open_plugin(out, &is_there, name, config);
}

nrd_error *nrd_device_open(nrd_device **out, const char *name, const nrd_device_config *config)
{
    const char *opened;
    return nrd_device_open_as(out, &opened, name, config);
}
