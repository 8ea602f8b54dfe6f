/* SPDX-License-Identifier: Apache-2.0
 * backends/tensorrtllm/request_params.h - the parameters of a request -> fields of an executor request.
 *
 * Purpose   What a request says beside its tensors. Those of front ends and of releases whose repositories do not declare an input
 *           are explained in nereid/llm_tensors.h; the others are
 *           top_logprobs   a number: so many alternatives to each token are reported
 *           logit_bias     a JSON object of token ids and what is added to their logits
 *           deterministic  true or false: the tokens must not depend on what runs beside them
 *           request_type   "context_and_generation", "context_only" or "generation_only"
 *           pooling        "last", "mean", "first" or "model": the answer is the output "embedding" [1, hidden]; "labels":
 *                          "label_logits" [1, labels]
 * Owner     Any thread; keeps nothing.
 * Errors    INVALID_ARG, by the parameter's name. Parameters of other names are other programs' affair.
 */
#ifndef NRD_BACKENDS_TENSORRTLLM_REQUEST_PARAMS_H
#define NRD_BACKENDS_TENSORRTLLM_REQUEST_PARAMS_H

#include "base/mem.h"
#include "nereid/executor.h"
#include "triton/core/tritonbackend.h"

/* After nrd_llm_convert: what is added to logits is laid over what the tensors say. `vocab`: the model's. What `e` points to
 * afterwards lives in `arena` or is borrowed from the request, as *out_adapter_dir (NULL: no adapter is named). */
TRITONSERVER_Error *nrd_llm_read_request_params(TRITONBACKEND_Request *request, int32_t vocab, nrd_arena *arena, nrd_exec_request *e,
                                                const char **out_adapter_dir);

#endif
