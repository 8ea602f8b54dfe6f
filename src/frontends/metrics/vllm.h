/* SPDX-License-Identifier: Apache-2.0
 * frontends/metrics/vllm.h - what is counted of language models, under vLLM's names.
 *
 * Purpose   Dashboards and routers that were made for vLLM find their series. Nothing is counted for them alone.
 * Owner     Stateless; any thread.
 * Units     Seconds and tokens, as the names say.
 * Errors    Those of the core.
 * Source    vLLM's page "Production Metrics" as of November 2026; docs/metrics.md has the table.
 */
#ifndef NRD_FRONTENDS_METRICS_VLLM_H
#define NRD_FRONTENDS_METRICS_VLLM_H

#include "base/error.h"
#include "base/str.h"
#include "frontends/common/models.h"
#include "triton/core/tritonserver.h"

/* Appends the families of all language models in the Prometheus text form; nothing where there is none. */
nrd_error *nrd_vllm_put_metrics(nrd_str *out, TRITONSERVER_Server *server, nrd_models *models) NRD_MUST_USE;

#endif
