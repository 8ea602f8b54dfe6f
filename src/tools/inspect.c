/* SPDX-License-Identifier: Apache-2.0
 * nereid inspect PATH: what a file or folder is, and what is in it. */
#include "tools/tools.h"

#include "base/file.h"
#include "tools/inspect.h"

#include <stdio.h>
#include <stdlib.h>

static const char usage[] =
    "Usage: nereid inspect PATH [options]\n\n"
    "PATH is a checkpoint, Hugging Face or engine folder, a GGUF file, a tokenizer, a model\n"
    "repository or one model of it (a folder with config.pbtxt).\n";

static bool is_engine(const char *path)
{
    char *file = nrd_path_join(path, "rank0.engine");
    bool yes = nrd_path_exists(file);
    free(file);
    return yes;
}

static nrd_error *inspect(const char *path, const nrd_inspect_options *o)
{
    if (!nrd_path_exists(path)) {
        return nrd_errorf(NRD_ERR_NOT_FOUND, "'%s' does not exist", path);
    }
    if (nrd_path_is_dir(path) && is_engine(path)) {
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
    if (model && tokenizer) { /* neither: the reason for the model says more */
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
    if (!path[0]) {
        fprintf(stderr, "nereid inspect: PATH is missing (see --help)\n");
        return 2;
    }
    return nrd_tool_finish("inspect", inspect(path[0], &o));
}
