/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/installation.h"

#include "base/file.h"

#include <stdlib.h>

static bool has_file(const char *dir, const char *name)
{
    char *file = nrd_path_join(dir, name);
    bool found = nrd_path_exists(file);
    free(file);
    return found;
}

nrd_error *nrd_tool_check_installation(void)
{
    static const char *const parts[] = {"tritonserver", "../share/nereid/all_models/inflight_batcher_llm",
                                        "../backends/tensorrtllm/libtriton_tensorrtllm.so"};
    char *dir = nrd_path_exe_dir();
    nrd_error *err = NULL;

    for (size_t i = 0; !err && i < sizeof parts / sizeof *parts; i++) {
        if (!has_file(dir, parts[i])) {
            err = nrd_errorf(NRD_ERR_NOT_FOUND,
                             "'%s/%s' is missing: to serve, this program needs the folders bin, lib, backends "
                             "and share of its build around it (copy them together, or run 'make')",
                             dir, parts[i]);
        }
    }
    free(dir);
    return err;
}
