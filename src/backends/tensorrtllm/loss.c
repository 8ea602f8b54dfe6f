/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/tensorrtllm/llm.h"

#pragma weak nrd_backend_model_failed /* in this server only */

TRITONSERVER_Error *nrd_llm_error(nrd_error *err)
{
    if (!err) {
        return NULL;
    }
    TRITONSERVER_Error *out = TRITONSERVER_ErrorNew((TRITONSERVER_Error_Code)nrd_exec_error_code(err),
                                                    nrd_exec_error_message(err));
    nrd_exec_error_free(err);
    return out;
}

void nrd_llm_note_loss(nrd_llm_instance *inst)
{
    TRITONBACKEND_Model *model = NULL;
    nrd_error *err = nrd_exec_health(inst->exec);

    if (err && nrd_backend_model_failed) {
        nrd_tb_log_error(TRITONBACKEND_ModelInstanceModel(inst->triton, &model), "a lost engine");
        nrd_backend_model_failed(model, nrd_exec_error_message(err));
    }
    nrd_exec_error_free(err);
}
