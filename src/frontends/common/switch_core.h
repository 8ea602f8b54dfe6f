/* SPDX-License-Identifier: Apache-2.0
 * frontends/common/switch_core.h - the switcher (switcher.h) of a server: its models from a file, its loads
 * from the core.
 *
 * Purpose   --models-file names a JSON text, which `nereid serve A B` writes:
 *           {"memory_bytes": 8000000000, "models": [{"name": "A", "load": "A", "parts": ["A.tensorrt_llm"],
 *             "memory_bytes": 300000000, "file_bytes": 98000000}, …]}
 *           memory_bytes of all: what models may take together (--model-memory-gb overrules it). name: what
 *           clients say; load: the model of the repository that is loaded for it, with the steps of an
 *           ensemble; parts: other models that come and go with it, whose names mean it too; memory_bytes: what
 *           it is expected to take; file_bytes: of its weights. "pull": the words of the process that gets one
 *           more (puller.h); without it clients cannot pull. "pulled": what such processes have made before (puller.h),
 *           which is there from the start, and loaded when it is asked for.
 *           The server runs with --model-control-mode=explicit, and nobody else loads these models.
 * Owner     main.c.
 * Errors    NOT_FOUND, INVALID_ARG: the file, its member and the limit.
 */
#ifndef NRD_FRONTENDS_COMMON_SWITCH_CORE_H
#define NRD_FRONTENDS_COMMON_SWITCH_CORE_H

#include "frontends/common/puller.h"
#include "frontends/common/switcher.h"
#include "frontends/options.h"
#include "triton/core/tritonserver.h"

/* Borrows both until the switcher is freed. *out NULL: no file is named. Loads what is pinned and, with
 * --preload, as much of the rest as fits, in the order of the file. *out_puller NULL: clients may not pull; else it
 * is freed before the switcher. */
nrd_error *nrd_switch_core_new(nrd_switcher **out, nrd_puller **out_puller, TRITONSERVER_Server *core,
                               const nrd_options *o) NRD_MUST_USE;

#endif
