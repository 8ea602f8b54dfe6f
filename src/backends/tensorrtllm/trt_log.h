/* SPDX-License-Identifier: Apache-2.0
 * backends/tensorrtllm/trt_log.h - lines as TensorRT-LLM's logger writes them.
 *
 * Purpose   "[TensorRT-LLM][WARNING] text" in the server's log, for those who look for these lines. Which
 *           of them come, the environment says: TLLM_LOG_LEVEL is TRACE, DEBUG, INFO, WARNING or ERROR.
 *           Without it INFO and above come, and DEBUG with --log-verbose=1. A word that is none of these
 *           counts as not given, with one warning.
 * Owner     Any thread.
 */
#ifndef NRD_BACKENDS_TENSORRTLLM_TRT_LOG_H
#define NRD_BACKENDS_TENSORRTLLM_TRT_LOG_H

#include "base/log.h"

typedef enum { TRT_ERROR, TRT_WARNING, TRT_INFO, TRT_DEBUG } trt_level; /* as nrd_exec_config.log has them */

/* Whether lines of a level come, and as what the server's log has them. */
bool nrd_trt_log_wants(trt_level level, nrd_log_level *out);

/* TRT_LOG(WARNING, "text %d", n) */
#define TRT_LOG(level, ...)                                                                         \
    do {                                                                                            \
        nrd_log_level as_;                                                                          \
        if (nrd_trt_log_wants(TRT_##level, &as_)) {                                                 \
            nrd_log_write(as_, __FILE__, __LINE__, "[TensorRT-LLM][" #level "] " __VA_ARGS__);      \
        }                                                                                           \
    } while (0)

#endif
