/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/remembered.h"

#include "base/mem.h"
#include "base/str.h"
#include "hub/served.h"
#include "tools/repo.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

nrd_error *nrd_remembered_add(nrd_several_model *m, const char *id)
{
    nrd_hub_settings s = {0};

    if (!m->name || !nrd_str_has_prefix(id, "hf:") || strcmp(id + strlen("hf:"), m->name) != 0) {
        return NULL;
    }
    nrd_error *err = nrd_hub_settings_read(&s);
    err = err ? err : nrd_hub_served_add(&s, m->name, &m->fetched, &m->record);
    nrd_hub_settings_fini(&s);
    return err;
}

/* A folder of the repository can have one model only. */
static bool is_taken(const nrd_several *s, const char *name)
{
    char *folder = nrd_repo_folder_name(name);
    bool found = false;
    for (size_t i = 0; i < s->n && !found; i++) {
        char *other = nrd_repo_folder_name(s->models[i].name);
        found = !strcmp(folder, other);
        free(other);
    }
    free(folder);
    return found;
}

void nrd_remembered_read(nrd_several *out, const nrd_several *named)
{
    nrd_hub_settings s = {0};
    nrd_hub_served_list all = {0};

    nrd_error *err = nrd_hub_settings_read(&s);
    if (!err) {
        nrd_hub_served_read(&all, &s);
    }
    for (size_t i = 0; i < all.n; i++) {
        const nrd_hub_served *e = &all.v[i];
        if (is_taken(named, e->name) || is_taken(out, e->name)) {
            continue;
        }
        if (out->n == NRD_SEVERAL_MAX) {
            fprintf(stderr, "nereid serve: %d models that were pulled are served, not the others\n", (int)NRD_SEVERAL_MAX);
            break;
        }
        out->models[out->n++] = (nrd_several_model){.name = nrd_xstrdup(e->name), .path = nrd_xstrdup(e->path),
                                                    .record = nrd_xstrdup(e->record), .fetched = e->fetched};
    }
    nrd_error_free(err); /* an address of the hub that cannot be: no model of it was pulled */
    nrd_hub_served_fini(&all);
    nrd_hub_settings_fini(&s);
}
