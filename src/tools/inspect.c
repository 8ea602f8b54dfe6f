/* SPDX-License-Identifier: Apache-2.0
 * nereid inspect PATH: what a file or folder is, and what is in it. */
#include "tools/tools.h"

#include "base/file.h"
#include "model/engine.h"
#include "tools/inspect.h"

#include <stdio.h>
#include <stdlib.h>

static const char usage[] =
    "Usage: nereid inspect PATH [options]     what a file or folder is\n"
    "       nereid inspect --families         which families of models can be run\n\n"
    "PATH is a checkpoint, Hugging Face or engine folder, a GGUF file, a tokenizer, a model\n"
    "repository or one model of it (a folder with config.pbtxt).\n";

nrd_error *nrd_inspect(const char *path, const nrd_inspect_options *o)
{
    if (!nrd_path_exists(path)) {
        return nrd_path_missing(path);
    }
    if (nrd_path_is_dir(path) && nrd_engine_has_rank(path, 0)) {
        return nrd_inspect_engine(path, o);
    }
    if (nrd_inspect_is_served_model(path)) {
        return nrd_inspect_served_model(path, o);
    }
    if (nrd_inspect_is_repository(path)) {
        return nrd_inspect_repository(path, o);
    }
    nrd_error *model = nrd_inspect_source(path, o);
    nrd_error *tokenizer = nrd_inspect_tokenizer(path);
    const bool is_refused = model && nrd_path_is_dir(path) && nrd_error_get_code(model) != NRD_ERR_NOT_FOUND; /* not a tokenizer alone */
    if (model && (tokenizer || is_refused)) { /* neither: the reason for the model says more */
        nrd_error_free(tokenizer);
        return model;
    }
    nrd_error_free(model);
    nrd_error_free(tokenizer);
    return NULL;
}

#define OPT(...) NRD_OPT_ROW(nrd_inspect_options, __VA_ARGS__)
static const nrd_opt rows[] = {
    OPT(FLAG, "tensors", "-t", tensors, NULL, NULL, "a line for every tensor"),
    OPT(FLAG, "verify", NULL, verify, NULL, NULL, "check the checksums of an engine's weights"),
    OPT(FLAG, "families", NULL, families, NULL, NULL, "the families of models and what works with each"),
    OPT(FLAG, "json", NULL, json, NULL, NULL, "print an object"),
    OPT(INT, "rank", NULL, rank, "N", "0", "which rank's tensors"),
};
const nrd_tool_table nrd_inspect_table = NRD_TOOL_TABLE("inspect", usage, rows, 1);

int nrd_tool_inspect(int argc, char **argv)
{
    nrd_inspect_options o = {0};
    const char *path[1] = {NULL};
    size_t n = 0;
    int status = nrd_tool_parse(&nrd_inspect_table, argc, argv, &o, path, &n);
    if (status >= 0) {
        return status;
    }
    if (o.families && o.json) {
        fprintf(stderr, "nereid inspect: --json is of a PATH, not of --families\n");
        return 2;
    }
    if (o.families) {
        nrd_inspect_families();
        return 0;
    }
    if (!path[0]) {
        fprintf(stderr, "nereid inspect: PATH is missing (see --help)\n");
        return 2;
    }
    return nrd_tool_finish("inspect", o.json ? nrd_inspect_json(path[0], &o) : nrd_inspect(path[0], &o));
}
