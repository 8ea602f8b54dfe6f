/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/made.h"

#include "base/cache_entry.h"
#include "base/file.h"
#include "base/leftovers.h"
#include "base/mem.h"
#include "hub/remove.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static void add_kind(nrd_made_list *all, const char *own, const char *kind)
{
    char *dir = nrd_path_join(own, kind), **names = NULL;
    size_t n = 0;

    nrd_leftovers_sweep(dir);
    nrd_error_free(nrd_dir_list(&names, &n, dir));
    for (size_t i = 0; i < n; i++) {
        struct stat st;
        char *path = nrd_path_join(dir, names[i]);
        if (strstr(names[i], ".tmp.") || lstat(path, &st) != 0 || !S_ISDIR(st.st_mode)) {
            free(path);
            continue;
        }
        if (all->n == all->cap) {
            all->cap = all->cap ? 2 * all->cap : 16;
            all->v = nrd_xrealloc(all->v, all->cap * sizeof *all->v);
        }
        all->v[all->n++] = (nrd_made){.name = nrd_xasprintf("%s/%s", kind, names[i]), .path = path,
                                      .bytes = nrd_hub_tree_bytes(path), .used = st.st_mtime};
    }
    nrd_names_free(names, n);
    free(dir);
}

void nrd_made_list_read(nrd_made_list *out, const char *own)
{
    static const char *const kinds[] = {"engines", "repositories", "tokenizers"};

    *out = (nrd_made_list){0};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        add_kind(out, own, kinds[i]);
    }
}

void nrd_made_list_fini(nrd_made_list *all)
{
    for (size_t i = 0; i < all->n; i++) {
        free(all->v[i].name);
        free(all->v[i].path);
    }
    free(all->v);
    *all = (nrd_made_list){0};
}

nrd_error *nrd_made_remove(const char *path)
{
    char *taken = nrd_cache_entry_take(path);
    nrd_error *err = taken ? nrd_hub_remove_tree(taken) : nrd_path_exists(path)
                   ? nrd_errorf(NRD_ERR_UNAVAILABLE, "cannot remove '%s': a program uses it, or it cannot be renamed", path) : NULL;

    free(taken);
    return err;
}
