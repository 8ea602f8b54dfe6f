/* SPDX-License-Identifier: Apache-2.0
 * tools/old_layout.h - engine folders as the builders of TensorRT-LLM v0.5 to v0.8 left them.
 *
 * Purpose   Gives a finished engine folder their names: gpt_float16_tp2_rank0.engine, and in config.json the
 *           objects builder_config and plugin_config beside what this engine needs (model/engine.h opens both).
 * Owner     The main thread.
 * Errors    INTERNAL with the path and the system's reason.
 */
#ifndef NRD_TOOLS_OLD_LAYOUT_H
#define NRD_TOOLS_OLD_LAYOUT_H

#include "base/error.h"

/* `max_output_len`: as the builder was given it. */
nrd_error *nrd_old_layout(const char *engine_dir, int max_output_len) NRD_MUST_USE;

#endif
