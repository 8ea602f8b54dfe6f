/* SPDX-License-Identifier: Apache-2.0
 * nereid list and nereid show: the models of the cache. */
#include "tools/tools.h"

#include "base/cache_entry.h"
#include "base/file.h"
#include "base/json.h"
#include "base/made_from.h"
#include "base/mem.h"
#include "hub/cache.h"
#include "hub/inventory.h"
#include "text/tokenizer.h"
#include "tools/inspect.h"
#include "tools/made.h"
#include "tools/model_facts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- list ---- */

static const char list_usage[] =
    "Usage: nereid list [options]\n"
    "The models of the cache, which is huggingface_hub's too, and files of other addresses.\n";

typedef struct list_options {
    bool made, json;
} list_options;

static const nrd_opt list_rows[] = {
    NRD_OPT_ROW(list_options, FLAG, "made", NULL, made, NULL, NULL,
                "the engines, tokenizers and repositories that were made of them: last use, source, and whether a program uses them"),
    NRD_OPT_ROW(list_options, FLAG, "json", NULL, json, NULL, NULL, "print a list of objects"),
};
const nrd_tool_table nrd_list_table = NRD_TOOL_TABLE("list", list_usage, list_rows, 0);

static void put_entry(nrd_str *out, const nrd_hub_entry *e, const nrd_model_facts *f)
{
    nrd_str_puts(out, "{\"name\": ");
    nrd_json_put_cstr(out, e->name);
    nrd_str_puts(out, ", \"path\": ");
    nrd_json_put_cstr(out, e->path);
    nrd_str_printf(out, ", \"bytes\": %llu, \"type\": ", (unsigned long long)e->bytes);
    nrd_json_put_cstr(out, f->type);
    nrd_str_puts(out, ", \"family\": ");
    nrd_json_put_cstr(out, f->family);
    nrd_str_printf(out, ", \"parameters\": %llu, \"licence\": ", (unsigned long long)f->parameters);
    nrd_json_put_cstr(out, f->licence);
    nrd_str_puts(out, ", \"modified\": ");
    nrd_json_put_time(out, e->modified);
    nrd_str_puts(out, ", \"used\": ");
    nrd_json_put_time(out, e->used);
    nrd_str_printf(out, ", \"is_ours\": %s}", e->is_ours ? "true" : "false");
}

static void print_list(const nrd_hub_inventory *all)
{
    size_t width = strlen("NAME");
    for (size_t i = 0; i < all->n; i++) {
        width = strlen(all->v[i].name) > width ? strlen(all->v[i].name) : width;
    }
    printf("%-*s  %10s  %-8s  %10s  %s\n", (int)width, "NAME", "SIZE", "TYPE", "PARAMETERS", "MODIFIED");
    for (size_t i = 0; i < all->n; i++) {
        const nrd_hub_entry *e = &all->v[i];
        nrd_model_facts f;
        char size[32], count[32], when[40];
        nrd_model_facts_read(&f, e->path, NULL);
        printf("%-*s  %10s  %-8s  %10s  %s\n", (int)width, e->name, nrd_human_bytes(e->bytes, size),
               f.type[0] ? f.type : "-", nrd_human_count(f.parameters, count), nrd_human_time(e->modified, when));
    }
}

static char *folder_of(const char *path)
{
    return nrd_path_is_dir(path) ? nrd_xstrdup(path) : nrd_path_dir(path);
}

static void print_list_json(const nrd_hub_inventory *all)
{
    nrd_str out = {0};
    nrd_str_putc(&out, '[');
    for (size_t i = 0; i < all->n; i++) {
        nrd_model_facts f;
        char *dir = folder_of(all->v[i].path);
        nrd_model_facts_read(&f, all->v[i].path, dir);
        nrd_str_puts(&out, i ? ",\n " : "");
        put_entry(&out, &all->v[i], &f);
        free(dir);
    }
    nrd_str_puts(&out, "]");
    puts(nrd_str_cstr(&out));
    nrd_str_fini(&out);
}

/* What was made of models, in $NEREID_CACHE. */
static void list_made(const char *own, bool json)
{
    nrd_made_list all;
    nrd_str in_use = {0}, out = {0};
    char *engines = nrd_path_join(own, "engines"), size[32], when[40];
    const uint64_t most = nrd_cache_max_bytes(engines);
    uint64_t sum = 0;

    nrd_made_list_read(&all, own);
    nrd_cache_in_use(&in_use);
    if (!json && all.n > 0) {
        printf("%-60s  %10s  %-16s  %-6s  %s\n", "NAME", "SIZE", "LAST USED", "IN USE", "MADE FROM");
    }
    for (size_t i = 0; i < all.n; i++) {
        const nrd_made *m = &all.v[i];
        const bool is_used = nrd_cache_is_in_use(&in_use, m->path);
        char *model = nrd_made_from_read(m->path);
        sum += nrd_str_has_prefix(m->name, "engines/") ? m->bytes : 0;
        if (json) {
            nrd_str_puts(&out, i ? ",\n {\"name\": " : "{\"name\": ");
            nrd_json_put_cstr(&out, m->name);
            nrd_str_puts(&out, ", \"path\": ");
            nrd_json_put_cstr(&out, m->path);
            nrd_str_printf(&out, ", \"bytes\": %llu, \"used\": ", (unsigned long long)m->bytes);
            nrd_json_put_time(&out, m->used);
            nrd_str_printf(&out, ", \"in_use\": %s, \"made_from\": ", is_used ? "true" : "false");
            nrd_json_put_cstr(&out, model ? model : "");
            nrd_str_putc(&out, '}');
        } else {
            printf("%-60s  %10s  %-16s  %-6s  %s\n", m->name, nrd_human_bytes(m->bytes, size), nrd_human_time(m->used, when),
                   is_used ? "yes" : "no", model ? model : "-");
        }
        free(model);
    }
    if (json) {
        printf("[%s]\n", nrd_str_cstr(&out));
    } else {
        char limit[32];
        fprintf(stderr, "engines take %s of at most %s (" NRD_CACHE_MAX_SIZE ")\n", nrd_human_bytes(sum, size),
                most == UINT64_MAX ? "any size" : nrd_human_bytes(most, limit));
    }
    nrd_str_fini(&in_use);
    nrd_str_fini(&out);
    nrd_made_list_fini(&all);
    free(engines);
}

int nrd_tool_list(int argc, char **argv)
{
    list_options o = {.json = false};
    nrd_hub_settings s = {0};
    nrd_hub_inventory all;
    int status = nrd_tool_parse(&nrd_list_table, argc, argv, &o, NULL, NULL);

    if (status >= 0) {
        return status;
    }
    nrd_error *err = nrd_hub_settings_read(&s);
    if (!err && o.made) {
        list_made(s.own, o.json);
    } else if (!err) {
        nrd_hub_inventory_read(&all, &s);
        if (o.json) {
            print_list_json(&all);
        } else if (all.n > 0) {
            print_list(&all);
        } else {
            fprintf(stderr, "no models in '%s' (nereid pull ORG/NAME fetches one)\n", s.cache);
        }
        nrd_hub_inventory_fini(&all);
    }
    nrd_hub_settings_fini(&s);
    return nrd_tool_finish("list", err);
}

/* ---- show ---- */

static const char show_usage[] =
    "Usage: nereid show NAME [options]\n"
    "What a model of the cache, or one at a path, is: what nereid inspect says, its licence, its chat template.\n";

typedef struct show_options {
    bool json, template;
} show_options;

static const nrd_opt show_rows[] = {
    NRD_OPT_ROW(show_options, FLAG, "template", NULL, template, NULL, NULL, "print only its chat template"),
    NRD_OPT_ROW(show_options, FLAG, "json", NULL, json, NULL, NULL, "print an object"),
};
const nrd_tool_table nrd_show_table = NRD_TOOL_TABLE("show", show_usage, show_rows, 1);

/* Of the cache, or of a path: then without a name. The caller frees what it holds. */
static nrd_error *find(nrd_hub_entry *out, const nrd_hub_settings *s, const char *name)
{
    nrd_hub_inventory all;
    nrd_hub_id id;

    *out = (nrd_hub_entry){.name = nrd_xstrdup(name)};
    if (nrd_path_exists(name)) {
        out->path = nrd_xstrdup(name);
    } else {
        NRD_TRY(nrd_hub_id_parse(&id, name, s->endpoint));
        out->path = nrd_hub_cached(s, &id);
    }
    if (!out->path) {
        return nrd_errorf(NRD_ERR_NOT_FOUND, "'%s' is not in the cache: nereid pull %s fetches it, nereid list tells what is "
                          "there", name, name);
    }
    nrd_hub_inventory_read(&all, s);
    for (size_t i = 0; i < all.n; i++) {
        if (!strcmp(all.v[i].path, out->path)) {
            out->bytes = all.v[i].bytes;
            out->modified = all.v[i].modified;
            out->used = all.v[i].used;
            out->is_ours = all.v[i].is_ours;
            memcpy(out->commit, all.v[i].commit, sizeof out->commit);
        }
    }
    nrd_hub_inventory_fini(&all);
    return NULL;
}

static void print_json(const nrd_hub_entry *e, const nrd_model_facts *f, const char *template)
{
    nrd_str out = {0};
    put_entry(&out, e, f);
    out.data[--out.len] = '\0'; /* goes on */
    nrd_str_puts(&out, ", \"commit\": ");
    nrd_json_put_cstr(&out, e->commit);
    nrd_str_puts(&out, ", \"template\": ");
    if (template) {
        nrd_json_put_cstr(&out, template);
    } else {
        nrd_str_puts(&out, "null");
    }
    nrd_str_putc(&out, '}');
    puts(nrd_str_cstr(&out));
    nrd_str_fini(&out);
}

static nrd_error *print_show(const nrd_hub_entry *e, const nrd_model_facts *f)
{
    const nrd_inspect_options o = {.rank = 0};
    char size[32], when[40];

    printf("name          %s\n", e->name);
    if (e->bytes) {
        printf("size          %s, %s\n", nrd_human_bytes(e->bytes, size), nrd_human_time(e->modified, when));
    }
    if (e->commit[0]) {
        printf("revision      %s\n", e->commit);
    }
    printf("licence       %s\n", f->licence[0] ? f->licence : "not said");
    return nrd_inspect(e->path, &o);
}

static nrd_error *show(const nrd_hub_entry *e, const show_options *o)
{
    nrd_model_facts f;
    nrd_tokenizer *t = NULL;
    char *dir = folder_of(e->path);
    nrd_error *err = NULL;

    nrd_model_facts_read(&f, e->path, dir);
    free(dir);
    nrd_error *no_tokenizer = o->json || o->template ? nrd_tokenizer_open(&t, e->path) : NULL;
    const char *template = t ? nrd_tokenizer_chat_template(t) : NULL;
    if (o->json) {
        print_json(e, &f, template);
    } else if (!o->template) {
        err = print_show(e, &f);
    } else if (template) {
        puts(template);
    } else {
        err = nrd_errorf(NRD_ERR_NOT_FOUND, "'%s' has no chat template", e->name);
    }
    nrd_error_free(no_tokenizer);
    nrd_tokenizer_close(t);
    return err;
}

int nrd_tool_show(int argc, char **argv)
{
    show_options o = {.json = false};
    nrd_hub_settings s = {0};
    nrd_hub_entry e = {.name = NULL};
    const char *name[1] = {NULL};
    int status = nrd_tool_parse(&nrd_show_table, argc, argv, &o, name, NULL);

    if (status >= 0) {
        return status;
    }
    if (!name[0]) {
        fputs("nereid show: NAME is missing (see --help)\n", stderr);
        return 2;
    }
    nrd_error *err = nrd_hub_settings_read(&s);
    err = err ? err : find(&e, &s, name[0]);
    err = err ? err : show(&e, &o);
    free(e.name);
    free(e.path);
    nrd_hub_settings_fini(&s);
    return nrd_tool_finish("show", err);
}
