/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/made.h"

#include "base/file.h"
#include "base/json.h"
#include "base/leftovers.h"
#include "base/mem.h"
#include "base/running.h"
#include "hub/remove.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_CONFIG = 1 << 20 };

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

/* The repositories of a server with their configurations, which name engines and tokenizers. */
static void on_server(void *user, long pid, const char *json)
{
    nrd_str *in_use = user;
    nrd_json_doc *doc = NULL;
    nrd_error *err = nrd_json_parse(&doc, json, strlen(json), NULL);
    const nrd_json *all = err ? NULL : nrd_json_get(nrd_json_root(doc), "repositories");

    (void)pid;
    for (size_t i = 0; i < nrd_json_len(all); i++) {
        const char *repo = nrd_json_str(nrd_json_at(all, i), "");
        char **names = NULL;
        size_t n = 0;
        nrd_str_printf(in_use, "%s\n", repo);
        nrd_error_free(nrd_dir_list(&names, &n, repo));
        for (size_t k = 0; k < n; k++) {
            char *path = nrd_xasprintf("%s/%s/config.pbtxt", repo, names[k]), *text = NULL;
            size_t len = 0;
            nrd_error_free(nrd_file_read(&text, &len, path, MAX_CONFIG));
            nrd_str_puts(in_use, text ? text : "");
            free(text);
            free(path);
        }
        nrd_names_free(names, n);
    }
    nrd_error_free(err);
    nrd_json_doc_free(doc);
}

void nrd_made_in_use(nrd_str *out)
{
    nrd_running_each(on_server, out);
}

bool nrd_made_is_used(const nrd_str *in_use, const char *path)
{
    char *real = realpath(path, NULL);
    const bool is_used = strstr(nrd_str_cstr(in_use), real ? real : path);
    free(real);
    return is_used;
}
