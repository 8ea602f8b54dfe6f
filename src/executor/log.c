/* SPDX-License-Identifier: Apache-2.0
 * What an executor has to say: to its owner's function, or the process's log. */
#include "executor/internal.h"

#include "base/log.h"

#include <stdio.h>

void nrd_exec_log(const nrd_exec *x, int level, const char *fmt, ...)
{
    char line[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    if (x->cfg.log) {
        x->cfg.log(x->cfg.log_user, level, line);
    } else if (level == 0) {
        NRD_LOG_ERROR("%s", line);
    } else if (level == 1) {
        NRD_LOG_WARN("%s", line);
    } else {
        NRD_LOG_VERBOSE(level - 1, "%s", line);
    }
}
