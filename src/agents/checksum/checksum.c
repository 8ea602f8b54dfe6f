/* SPDX-License-Identifier: Apache-2.0
 * checksum - a repository agent that loads a model only if its files are what they should be.
 *
 * Parameters in the model's configuration: "MD5:<file below the model's folder>" with the sum in
 * hexadecimal as value, one for each file. */
#include "agents/checksum/md5.h"

#include "backends/util/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "triton/core/tritonrepoagent.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* A path that stays below the folder it is joined to. */
static bool stays_below(const char *p)
{
    if (*p == '/' || *p == '\0') {
        return false;
    }
    for (; p; p = strchr(p, '/') ? strchr(p, '/') + 1 : NULL) {
        if (strncmp(p, "..", 2) == 0 && (p[2] == '/' || p[2] == '\0')) {
            return false;
        }
    }
    return true;
}

static TRITONSERVER_Error *sum_file(char out[NRD_MD5_TEXT], const char *folder, const char *file)
{
    char *path = NULL;
    nrd_error *err = nrd_path_make(&path, folder, file);
    FILE *f = err ? NULL : fopen(path, "rbe");
    const int why = errno;
    unsigned char block[1 << 14];
    nrd_md5 sum;
    size_t n;

    free(path);
    if (err) {
        return nrd_tb_error(err);
    }
    if (!f) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG,
                             "failed to open text file for read %s: %s", file, strerror(why));
    }
    nrd_md5_init(&sum);
    while ((n = fread(block, 1, sizeof block, f)) > 0) {
        nrd_md5_update(&sum, block, n);
    }
    const bool bad = ferror(f) != 0;
    fclose(f);
    if (bad) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "cannot read %s", file);
    }
    nrd_md5_text(&sum, out);
    return NULL;
}

static TRITONSERVER_Error *check(const char *folder, const char *key, const char *expected)
{
    const char *colon = strchr(key, ':');
    char sum[NRD_MD5_TEXT];

    if (!colon) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "failed to parse key: %s", key);
    }
    if (colon - key != 3 || strncasecmp(key, "md5", 3) != 0) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_UNSUPPORTED, "Unsupported checksum algorithm: %.*s",
                             (int)(colon - key), key);
    }
    if (!stays_below(colon + 1)) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG,
                             "the path of '%s' must stay within the model's folder", key);
    }
    NRD_TB_TRY(sum_file(sum, folder, colon + 1));
    if (strcmp(sum, expected) != 0) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG,
                             "Mismatched MD5 hash for file %s, expect: %s, got: %s", colon + 1,
                             expected, sum);
    }
    return NULL;
}

TRITONSERVER_Error *TRITONREPOAGENT_ModelAction(TRITONREPOAGENT_Agent *agent,
                                                TRITONREPOAGENT_AgentModel *model,
                                                const TRITONREPOAGENT_ActionType action_type)
{
    TRITONREPOAGENT_ArtifactType kind;
    const char *folder;
    uint32_t n = 0;

    if (action_type != TRITONREPOAGENT_ACTION_LOAD) {
        return NULL;
    }
    NRD_TB_TRY(TRITONREPOAGENT_ModelRepositoryLocation(agent, model, &kind, &folder));
    if (kind != TRITONREPOAGENT_ARTIFACT_FILESYSTEM) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_UNSUPPORTED, "Unsupported filesystem: %d",
                             (int)kind);
    }
    NRD_TB_TRY(TRITONREPOAGENT_ModelParameterCount(agent, model, &n));
    for (uint32_t i = 0; i < n; i++) {
        const char *key = NULL, *value = NULL;
        NRD_TB_TRY(TRITONREPOAGENT_ModelParameter(agent, model, i, &key, &value));
        NRD_TB_TRY(check(folder, key, value));
    }
    return NULL;
}
