/* SPDX-License-Identifier: Apache-2.0
 * nereid pull: models by name into the cache. */
#include "tools/tools.h"

#include "base/json.h"
#include "base/str.h"
#include "hub/pull.h"

#include <stdio.h>
#include <stdlib.h>

static const char usage[] =
    "Usage: nereid pull NAME [options]\n"
    "NAME is ORG/NAME[:QUANT][@REVISION] of the hub (huggingface.co), hf:ORG/NAME, ORG/NAME/FILE.gguf, or\n"
    "https://HOST/FILE.gguf. Prints the path. Only the files that the model needs are fetched, into the cache\n"
    "that huggingface_hub uses too. HF_TOKEN, HF_ENDPOINT, HF_HOME, HF_HUB_CACHE and HF_HUB_OFFLINE count.\n";

typedef struct options {
    bool quiet, json;
} options;

#define OPT(...) NRD_OPT_ROW(options, __VA_ARGS__)
static const nrd_opt rows[] = {
    OPT(FLAG, "quiet", "-q", quiet, NULL, NULL, "no progress"),
    OPT(FLAG, "json", NULL, json, NULL, NULL, "print an object instead of the path"),
};
const nrd_tool_table nrd_pull_table = NRD_TOOL_TABLE("pull", usage, rows, 1);

static nrd_error *pull(const char *name, const options *o, char **out_path)
{
    nrd_hub_settings s = {0};
    nrd_hub_id id;

    NRD_TRY(nrd_hub_settings_read(&s));
    nrd_error *err = nrd_hub_id_parse(&id, name, s.endpoint);
    err = err ? err : nrd_hub_pull(&s, &id, o->quiet, NULL, out_path);
    nrd_hub_settings_fini(&s);
    return err;
}

int nrd_tool_pull(int argc, char **argv)
{
    options o = {.quiet = false};
    const char *name[1] = {NULL};
    char *path = NULL;
    int status = nrd_tool_parse(&nrd_pull_table, argc, argv, &o, name, NULL);

    if (status >= 0) {
        return status;
    }
    if (!name[0]) {
        fputs("nereid pull: NAME is missing (see --help)\n", stderr);
        return 2;
    }
    nrd_error *err = pull(name[0], &o, &path);
    if (!err && o.json) {
        nrd_str out = {0};
        nrd_str_puts(&out, "{\"name\": ");
        nrd_json_put_cstr(&out, name[0]);
        nrd_str_puts(&out, ", \"path\": ");
        nrd_json_put_cstr(&out, path);
        nrd_str_putc(&out, '}');
        puts(nrd_str_cstr(&out));
        nrd_str_fini(&out);
    } else if (!err) {
        puts(path);
    }
    free(path);
    return nrd_tool_finish("pull", err);
}
