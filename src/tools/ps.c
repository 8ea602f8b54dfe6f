/* SPDX-License-Identifier: Apache-2.0
 * nereid ps: this user's servers on this machine. */
#include "tools/tools.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/running.h"
#include "tools/model_facts.h"
#include "tools/pbtree.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "Usage: nereid ps [options]\n"
    "The servers that this user runs on this machine (nereid serve, tritonserver) and their models; of several\n"
    "models those that are not in memory now stand in parentheses. One that was told to end is draining until what\n"
    "is under way is answered.\n";

typedef struct options {
    bool json;
} options;

static const nrd_opt rows[] = {
    NRD_OPT_ROW(options, FLAG, "json", NULL, json, NULL, NULL, "print a list of objects"),
};
const nrd_tool_table nrd_ps_table = NRD_TOOL_TABLE("ps", usage, rows, 0);

typedef struct listing {
    bool json;
    size_t n;
    nrd_str out;
} listing;

/* Whether the model is in memory; told by servers whose models come and go. */
static bool is_loaded(const nrd_json *server, const char *model)
{
    const nrd_json *models = nrd_json_get(server, "models");
    bool found = !nrd_json_get_bool(server, "switches", false);
    for (size_t i = 0; i < nrd_json_len(models) && !found; i++) {
        found = !strcmp(nrd_json_str(nrd_json_at(models, i), ""), model);
    }
    return found;
}

/* The parameter served_model_name of a configuration: what clients of /v1 say. */
static void put_served_name(nrd_str *out, const char *config, bool loaded)
{
    nrd_pbtree tree = {0};
    nrd_error *err = nrd_pbtree_read(&tree, config);
    const nrd_pbtree *p = NULL;

    while (!err && (p = nrd_pbtree_next(&tree, "parameters", p)) != NULL) {
        const char *key = nrd_pbtree_value(p, "key"), *value = nrd_pbtree_value(nrd_pbtree_next(p, "value", NULL), "string_value");
        if (key && value && !strcmp(key, "served_model_name") && *value && strncmp(value, "${", 2) != 0) {
            nrd_str_printf(out, loaded ? "%s%s" : "%s(%s)", out->len ? "," : "", value);
        }
    }
    nrd_error_free(err);
    nrd_pbtree_fini(&tree);
}

/* The names of /v1 that the repositories give; else those of the models that were ready at the start. */
static void put_models(nrd_str *out, const nrd_json *server)
{
    const nrd_json *repositories = nrd_json_get(server, "repositories"), *models = nrd_json_get(server, "models");

    for (size_t i = 0; i < nrd_json_len(repositories); i++) {
        const char *repo = nrd_json_str(nrd_json_at(repositories, i), "");
        char **names = NULL;
        size_t n = 0;
        nrd_error_free(nrd_dir_list(&names, &n, repo));
        for (size_t k = 0; k < n; k++) {
            char *config = nrd_xasprintf("%s/%s/config.pbtxt", repo, names[k]);
            if (nrd_path_exists(config)) {
                put_served_name(out, config, is_loaded(server, names[k]));
            }
            free(config);
        }
        nrd_names_free(names, n);
    }
    for (size_t i = 0; i < nrd_json_len(models) && out->len == 0; i++) {
        nrd_str_printf(out, "%s%s", i ? "," : "", nrd_json_str(nrd_json_at(models, i), ""));
    }
}

static void put_json(nrd_str *out, long pid, const char *models, const nrd_json *server, uint64_t memory)
{
    static const char *const addresses[] = {"http", "grpc", "metrics"};

    nrd_str_printf(out, "{\"pid\": %ld, \"models\": ", pid);
    nrd_json_put_cstr(out, models);
    for (size_t i = 0; i < sizeof addresses / sizeof *addresses; i++) {
        const char *a = nrd_json_get_str(server, addresses[i], NULL);
        nrd_str_printf(out, ", \"%s\": ", addresses[i]);
        if (a) {
            nrd_json_put_cstr(out, a);
        } else {
            nrd_str_puts(out, "null");
        }
    }
    nrd_str_puts(out, ", \"state\": ");
    nrd_json_put_cstr(out, nrd_json_get_str(server, "state", "serving"));
    nrd_str_printf(out, ", \"memory_bytes\": %llu, \"started\": ", (unsigned long long)memory);
    nrd_json_put_time(out, (time_t)nrd_json_get_int(server, "started", 0));
    nrd_str_puts(out, ", \"repositories\": ");
    const nrd_json *repositories = nrd_json_get(server, "repositories");
    if (repositories) {
        nrd_json_put(out, repositories, -1);
    } else {
        nrd_str_puts(out, "[]");
    }
    nrd_str_putc(out, '}');
}

static void on_server(void *user, long pid, const char *json)
{
    listing *l = user;
    nrd_json_doc *doc = NULL;
    nrd_str models = {0};
    char size[32], when[40];

    nrd_error *err = nrd_json_parse(&doc, json, strlen(json), NULL);
    if (!err) {
        const nrd_json *server = nrd_json_root(doc);
        put_models(&models, server);
        if (l->json) {
            nrd_str_puts(&l->out, l->n ? ",\n " : "");
            put_json(&l->out, pid, nrd_str_cstr(&models), server, nrd_running_memory(pid));
        } else {
            nrd_str_printf(&l->out, "%-8ld  %-40s  %-28s  %-8s  %10s  %s\n", pid, models.len ? nrd_str_cstr(&models) : "-",
                           nrd_json_get_str(server, "http", "-"), nrd_json_get_str(server, "state", "serving"),
                           nrd_human_bytes(nrd_running_memory(pid), size),
                           nrd_human_time((time_t)nrd_json_get_int(server, "started", 0), when));
        }
        l->n++;
    }
    nrd_error_free(err); /* of another version */
    nrd_str_fini(&models);
    nrd_json_doc_free(doc);
}

int nrd_tool_ps(int argc, char **argv)
{
    options o = {.json = false};
    int status = nrd_tool_parse(&nrd_ps_table, argc, argv, &o, NULL, NULL);

    if (status >= 0) {
        return status;
    }
    listing l = {.json = o.json};
    nrd_running_each(on_server, &l);
    if (o.json) {
        printf("[%s]\n", nrd_str_cstr(&l.out));
    } else if (l.n > 0) {
        printf("%-8s  %-40s  %-28s  %-8s  %10s  %s\n%s", "PID", "MODELS", "HTTP", "STATE", "MEMORY", "SINCE", nrd_str_cstr(&l.out));
    } else {
        fputs("no server of this user is running on this machine (nereid serve PATH starts one)\n", stderr);
    }
    nrd_str_fini(&l.out);
    return 0;
}
