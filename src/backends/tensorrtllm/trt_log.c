/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/tensorrtllm/trt_log.h"

#include "base/env.h"

#include <pthread.h>
#include <strings.h>

static const char *const names[] = {[TRT_ERROR] = "ERROR", [TRT_WARNING] = "WARNING", [TRT_INFO] = "INFO", [TRT_DEBUG] = "DEBUG"};
enum { N_NAMES = sizeof names / sizeof *names, NOT_GIVEN = -1 };
static int wanted = NOT_GIVEN;

static void read_wanted(void)
{
    const char *v = nrd_env("TLLM_LOG_LEVEL", NULL);

    for (int i = 0; v && i < N_NAMES; i++) {
        wanted = !strcasecmp(v, names[i]) ? i : wanted;
    }
    if (v && (!strcasecmp(v, "TRACE") || !strcasecmp(v, "VERBOSE"))) {
        wanted = TRT_DEBUG; /* nothing here is below it */
    } else if (v && !strcasecmp(v, "INTERNAL_ERROR")) {
        wanted = TRT_ERROR; /* nor above that */
    }
    if (v && wanted == NOT_GIVEN) {
        NRD_LOG_WARN("[TensorRT-LLM][WARNING] TLLM_LOG_LEVEL '%.40s' is none of TRACE, VERBOSE, DEBUG, INFO, WARNING, ERROR, "
                     "INTERNAL_ERROR: not looked at", v);
    }
}

bool nrd_trt_log_wants(trt_level level, nrd_log_level *out)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    static const nrd_log_level levels[] = {NRD_LOG_LEVEL_ERROR, NRD_LOG_LEVEL_WARNING, NRD_LOG_LEVEL_INFO, NRD_LOG_LEVEL_VERBOSE};

    pthread_once(&once, read_wanted);
    /* A debug line that the environment asks for comes whatever the server's own verbosity is. */
    *out = level == TRT_DEBUG && wanted == TRT_DEBUG ? NRD_LOG_LEVEL_INFO : levels[level];
    return nrd_log_is_enabled(*out) && (wanted == NOT_GIVEN || (int)level <= wanted);
}
