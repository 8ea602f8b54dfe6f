/* SPDX-License-Identifier: Apache-2.0 */
#include "base/plugin.h"

#include "base/file.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdlib.h>

/* Takes dir always. */
static nrd_error *name_in(char **out, char *dir, const char *folder_in_it, const char *file)
{
    char *folder = NULL;
    nrd_error *err = nrd_path_make(&folder, dir, folder_in_it);

    err = err ? err : nrd_path_make(out, folder, file);
    free(folder);
    free(dir);
    return err;
}

/* Code of a library may be in a program as well: then what is not beside it is in ../lib. */
static nrd_error *find_file(char **out, const nrd_plugin *p)
{
    Dl_info info = {0};
    char *dir = NULL;

    if (p->beside && dladdr(p->beside, &info) && info.dli_fname) {
        NRD_TRY(nrd_path_make_dir(&dir, info.dli_fname));
        NRD_TRY(name_in(out, dir, ".", p->file));
        if (nrd_path_exists(*out)) {
            return NULL;
        }
        free(*out);
        *out = NULL;
    }
    NRD_TRY(nrd_path_make_exe_dir(&dir));
    return name_in(out, dir, "../lib", p->file);
}

static nrd_error *open_file(const nrd_plugin *p, const void **out)
{
    char *path = NULL;
    NRD_TRY(find_file(&path, p));
    void *lib = dlopen(nrd_path_exists(path) ? path : p->file, RTLD_NOW | RTLD_LOCAL);

    free(path);
    if (!lib) {
        const char *why = dlerror();
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s %s, which is built where %s are (%s)", p->need,
                          p->file, p->built_with, why ? why : "no reason given");
    }
    *out = dlsym(lib, p->symbol);
    if (!*out) {
        dlclose(lib);
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s is of another version", p->file);
    }
    return NULL;
}

nrd_error *nrd_plugin_open(nrd_plugin *p, const void **out_table)
{
    nrd_error *err = NULL;
    pthread_mutex_lock(&p->mu);
    if (!p->table) {
        err = open_file(p, &p->table);
    }
    *out_table = p->table;
    pthread_mutex_unlock(&p->mu);
    return err;
}
