/* SPDX-License-Identifier: Apache-2.0
 * nereid prune: what was not used for long, out of the caches. */
#include "tools/made.h"
#include "tools/model_facts.h"
#include "tools/tools.h"

#include "base/cache_entry.h"
#include "base/env.h"
#include "base/json.h"
#include "base/mem.h"
#include "hub/inventory.h"
#include "hub/remove.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>

static const char usage[] =
    "Usage: nereid prune [options]\n"
    "Removes what was not used for 30 days: models that nereid has fetched, and the engines, tokenizers and\n"
    "repositories that it made ($NEREID_CACHE), but for those that a program uses (nereid ps, nereid list --made).\n";

#define DAY ((int64_t)24 * 3600)
#define DEFAULT_AGE (30 * DAY)

typedef struct options {
    int64_t older_secs;  /* -1: no age */
    int64_t max_bytes;   /* -1: no size */
    bool all, dry_run, yes, json, has_age;
} options;

/* A number and a unit of the list; false: neither. */
static bool parse_unit(const char *text, const char *const *units, const int64_t *factors, size_t n, int64_t *out)
{
    const size_t digits = strspn(text, "0123456789");
    char number[20];
    long long v = 0;

    snprintf(number, sizeof number, "%.*s", (int)(digits < 19 ? digits : 19), text);
    if (digits > 12 || !nrd_parse_i64(number, &v)) {
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        if (!strcasecmp(text + digits, units[i])) {
            return !__builtin_mul_overflow((int64_t)v, factors[i], out);
        }
    }
    return false;
}

static nrd_error *on_age(void *values, const char *name, const char *value)
{
    static const char *const units[] = {"d", "h", "w", "m", "s"};
    static const int64_t factors[] = {DAY, 3600, 7 * DAY, 60, 1};
    options *o = values;
    o->has_age = true;
    return parse_unit(value, units, factors, sizeof factors / sizeof *factors, &o->older_secs)
               ? NULL : nrd_errorf(NRD_ERR_INVALID_ARG, "--%s: expected a number with w, d, h, m or s, as 30d, got '%s'", name,
                                   value);
}

static nrd_error *on_size(void *values, const char *name, const char *value)
{
    options *o = values;
    char *own = nrd_or_end(nrd_env_cache_dir());
    uint64_t bytes = 0;
    nrd_error *err = nrd_cache_read_size(value, own, &bytes);

    free(own);
    o->max_bytes = bytes < INT64_MAX ? (int64_t)bytes : INT64_MAX;
    return nrd_error_wrap(err, "--%s", name);
}

#define OPT(...) NRD_OPT_ROW(options, __VA_ARGS__)
#define CALLS(name_, parse_, arg_, def_, help_)                                                    \
    {.name = name_, .form = NRD_OPT_CUSTOM, .parse = parse_, .arg = arg_, .help = help_, .def = def_}
static const nrd_opt rows[] = {
    CALLS("older_than", on_age, "TIME", "30d, or any age with --max-size", "what was not used for so long: 30d, 12h, 2w"),
    CALLS("max_size", on_size, "SIZE", NULL, "what was not used longest, until all of it takes at most so much: 50GB"),
    OPT(FLAG, "all", NULL, all, NULL, NULL, "models of the cache that others have fetched too"),
    OPT(FLAG, "dry_run", "-n", dry_run, NULL, NULL, "only say what would go"),
    OPT(FLAG, "yes", "-y", yes, NULL, NULL, "do not ask"),
    OPT(FLAG, "json", NULL, json, NULL, NULL, "print an object: what goes, and bytes"),
};
const nrd_tool_table nrd_prune_table = NRD_TOOL_TABLE("prune", usage, rows, 0);

/* ---- what there is ---- */

typedef struct item {
    char *name, *path;          /* owned */
    const nrd_hub_entry *entry; /* of a model; else a folder */
    uint64_t bytes;
    time_t used;
    bool goes;
} item;

typedef struct items {
    item *v;
    size_t n, cap;
} items;

static void add(items *all, item i)
{
    if (all->n == all->cap) {
        all->cap = all->cap ? 2 * all->cap : 16;
        all->v = nrd_xrealloc(all->v, all->cap * sizeof *all->v);
    }
    all->v[all->n++] = i;
}

static int by_use(const void *a, const void *b)
{
    const item *x = a, *y = b;
    return (x->used > y->used) - (x->used < y->used);
}

/* What a program uses, or a running server may open again, stays. */
static void keep_used(items *all)
{
    nrd_str in_use = {0};
    size_t n = 0;

    nrd_cache_in_use(&in_use);
    for (size_t i = 0; i < all->n; i++) {
        item it = all->v[i];
        if (nrd_cache_is_in_use(&in_use, it.path)) {
            free(it.name);
            free(it.path);
        } else {
            all->v[n++] = it;
        }
    }
    all->n = n;
    nrd_str_fini(&in_use);
}

/* The oldest first. */
static void collect(items *all, const nrd_hub_settings *s, const nrd_hub_inventory *models, const options *o)
{
    nrd_made_list made;

    for (size_t i = 0; i < models->n; i++) {
        const nrd_hub_entry *e = &models->v[i];
        if (e->is_ours || o->all) {
            add(all, (item){.name = nrd_xstrdup(e->name), .path = nrd_xstrdup(e->path), .entry = e, .bytes = e->bytes,
                            .used = e->used});
        }
    }
    nrd_made_list_read(&made, s->own);
    for (size_t i = 0; i < made.n; i++) {
        const nrd_made *m = &made.v[i];
        add(all, (item){.name = nrd_xstrdup(m->name), .path = nrd_xstrdup(m->path), .bytes = m->bytes, .used = m->used});
    }
    nrd_made_list_fini(&made);
    keep_used(all);
    if (all->n > 1) {
        qsort(all->v, all->n, sizeof *all->v, by_use);
    }
}

static void choose(items *all, const options *o)
{
    const time_t now = time(NULL);
    uint64_t stays = 0;

    for (size_t i = 0; i < all->n; i++) {
        item *it = &all->v[i];
        it->goes = o->older_secs >= 0 && now - it->used >= o->older_secs;
        stays += it->goes ? 0 : it->bytes;
    }
    for (size_t i = 0; i < all->n && o->max_bytes >= 0 && stays > (uint64_t)o->max_bytes; i++) {
        if (!all->v[i].goes) {
            all->v[i].goes = true;
            stays -= all->v[i].bytes;
        }
    }
}

/* ---- what goes ---- */

static void print_items(const items *all, const options *o, uint64_t bytes)
{
    nrd_str out = {0};
    char size[32], when[40];

    for (size_t i = 0; i < all->n; i++) {
        const item *it = &all->v[i];
        if (it->goes && o->json) {
            nrd_str_puts(&out, out.len ? ", {\"name\": " : "{\"name\": ");
            nrd_json_put_cstr(&out, it->name);
            nrd_str_printf(&out, ", \"bytes\": %llu, \"used\": ", (unsigned long long)it->bytes);
            nrd_json_put_time(&out, it->used);
            nrd_str_putc(&out, '}');
        } else if (it->goes) {
            printf("%-60s  %10s  last used %s\n", it->name, nrd_human_bytes(it->bytes, size), nrd_human_time(it->used, when));
        }
    }
    if (o->json) {
        printf("{\"removed\": [%s], \"bytes\": %llu, \"dry_run\": %s}\n", nrd_str_cstr(&out), (unsigned long long)bytes,
               o->dry_run ? "true" : "false");
    }
    nrd_str_fini(&out);
}

static nrd_error *remove_items(const items *all, const nrd_hub_settings *s)
{
    for (size_t i = 0; i < all->n; i++) {
        const item *it = &all->v[i];
        if (it->goes) {
            NRD_TRY(it->entry ? nrd_hub_remove_entry(s, it->entry) : nrd_made_remove(it->path));
        }
    }
    return NULL;
}

static nrd_error *prune(const nrd_hub_settings *s, const options *o, const items *all)
{
    uint64_t bytes = 0;
    size_t n = 0;
    char size[32], question[100];
    bool yes = o->yes;
    nrd_error *err = NULL;

    for (size_t i = 0; i < all->n; i++) {
        bytes += all->v[i].goes ? all->v[i].bytes : 0;
        n += all->v[i].goes;
    }
    print_items(all, o, bytes);
    snprintf(question, sizeof question, "Remove these %zu, %s", n, nrd_human_bytes(bytes, size));
    if (n == 0 || o->dry_run) {
        fprintf(stderr, "%s\n", n == 0 ? "nothing to remove" : "nothing was removed (--dry-run)");
        return NULL;
    }
    if (!yes) {
        err = nrd_tool_confirm(&yes, question);
    }
    if (!err && yes) {
        err = remove_items(all, s);
    }
    if (!err && yes && !o->json) {
        printf("removed %zu, %s\n", n, size);
    }
    return err;
}

int nrd_tool_prune(int argc, char **argv)
{
    options o = {.older_secs = -1, .max_bytes = -1};
    nrd_hub_settings s = {0};
    nrd_hub_inventory models;
    items all = {.n = 0};
    int status = nrd_tool_parse(&nrd_prune_table, argc, argv, &o, NULL, NULL);

    if (status >= 0) {
        return status;
    }
    o.older_secs = !o.has_age && o.max_bytes < 0 ? DEFAULT_AGE : o.older_secs;
    nrd_error *err = nrd_hub_settings_read(&s);
    if (!err) {
        nrd_hub_inventory_read(&models, &s);
        collect(&all, &s, &models, &o);
        choose(&all, &o);
        err = prune(&s, &o, &all);
        for (size_t i = 0; i < all.n; i++) {
            free(all.v[i].name);
            free(all.v[i].path);
        }
        free(all.v);
        nrd_hub_inventory_fini(&models);
    }
    nrd_hub_settings_fini(&s);
    return nrd_tool_finish("prune", err);
}
