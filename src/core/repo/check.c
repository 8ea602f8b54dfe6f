/* SPDX-License-Identifier: Apache-2.0
 * What a request to load or unload must keep to. */
#include "core/context.h"
#include "core/repo/internal.h"

#include "base/error.h"
#include "triton/core/tritonserver.h"

#include <string.h>

nrd_error *nrd_repo_check_explicit(nrd_repo *r)
{
    if (r->ctx->opt.control_mode != TRITONSERVER_MODEL_CONTROL_EXPLICIT) {
        return nrd_errorf(NRD_ERR_UNAVAILABLE,
                          "explicit model load / unload is not allowed if polling is enabled");
    }
    return NULL;
}

nrd_error *nrd_repo_check_name(const char *name)
{
    if (!name || name[0] == '\0') {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "Model name cannot be empty. Please enter a valid name to deploy.");
    }
    if (strcmp(name, "..") == 0 || strcmp(name, ".") == 0 || strchr(name, '/')) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "invalid model name '%s', model name must not contain path traversal "
                          "characters",
                          name);
    }
    return NULL;
}
