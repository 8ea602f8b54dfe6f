/* SPDX-License-Identifier: Apache-2.0
 * teller - a repository agent for tests: writes every action into the log. Parameter "to": load
 * from that folder instead. "copy": load from a folder of its own with a config.pbtxt and one empty
 * version. "refuse": the name of the action to refuse. */
#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "triton/core/tritonrepoagent.h"

#include <stdlib.h>
#include <string.h>

#define TRY(expr)                                                                                  \
    do {                                                                                           \
        TRITONSERVER_Error *try_err_ = (expr);                                                     \
        if (try_err_) {                                                                            \
            return try_err_;                                                                       \
        }                                                                                          \
    } while (0)

static const char *const names[] = {"LOAD", "LOAD_COMPLETE", "LOAD_FAIL", "UNLOAD",
                                    "UNLOAD_COMPLETE"};

static const char *parameter(TRITONREPOAGENT_Agent *a, TRITONREPOAGENT_AgentModel *m,
                             const char *name)
{
    uint32_t n = 0;
    TRITONSERVER_ErrorDelete(TRITONREPOAGENT_ModelParameterCount(a, m, &n));
    for (uint32_t i = 0; i < n; i++) {
        const char *key = NULL, *value = NULL;
        TRITONSERVER_ErrorDelete(TRITONREPOAGENT_ModelParameter(a, m, i, &key, &value));
        if (key && strcmp(key, name) == 0) {
            return value;
        }
    }
    return NULL;
}

static TRITONSERVER_Error *move(TRITONREPOAGENT_Agent *a, TRITONREPOAGENT_AgentModel *m)
{
    const char *to = parameter(a, m, "to"), *dir = NULL;

    if (to) {
        return TRITONREPOAGENT_ModelRepositoryUpdate(a, m, TRITONREPOAGENT_ARTIFACT_FILESYSTEM, to);
    }
    if (parameter(a, m, "copy")) {
        TRY(TRITONREPOAGENT_ModelRepositoryLocationAcquire(
            a, m, TRITONREPOAGENT_ARTIFACT_FILESYSTEM, &dir));
        char *version = nrd_path_join(dir, "1");
        nrd_error *err = nrd_mkdirs(version);
        free(version);
        if (err) {
            nrd_error_free(err);
            return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "teller: no folder");
        }
        return TRITONREPOAGENT_ModelRepositoryUpdate(a, m, TRITONREPOAGENT_ARTIFACT_FILESYSTEM,
                                                     dir);
    }
    return NULL;
}

TRITONSERVER_Error *TRITONREPOAGENT_ModelAction(TRITONREPOAGENT_Agent *agent,
                                                TRITONREPOAGENT_AgentModel *model,
                                                const TRITONREPOAGENT_ActionType action_type)
{
    const char *dir = NULL, *refuse = parameter(agent, model, "refuse");
    TRITONREPOAGENT_ArtifactType kind;

    if (action_type == TRITONREPOAGENT_ACTION_LOAD) {
        TRY(move(agent, model));
    }
    TRY(TRITONREPOAGENT_ModelRepositoryLocation(agent, model, &kind, &dir));
    char *text = nrd_xasprintf("teller: %s %s", names[action_type], dir);
    TRITONSERVER_ErrorDelete(
        TRITONSERVER_LogMessage(TRITONSERVER_LOG_INFO, __FILE__, __LINE__, text));
    free(text);
    return refuse && strcmp(refuse, names[action_type]) == 0
               ? TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, "teller: refused")
               : NULL;
}
