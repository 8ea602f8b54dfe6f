/* SPDX-License-Identifier: Apache-2.0
 * The answers that end a request, also where there is no memory for one. */
#include "backends/util/util.h"

void nrd_tb_send_error(TRITONBACKEND_Request *request, TRITONSERVER_Error *err)
{
    TRITONBACKEND_Response *response = NULL;
    TRITONSERVER_Error *failure = TRITONBACKEND_ResponseNew(&response, request);
    if (!failure) {
        failure = TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, err);
    }
    nrd_tb_log_error(failure, "cannot send an error response");
    TRITONSERVER_ErrorDelete(err);
}

void nrd_tb_release(TRITONBACKEND_Request *request)
{
    nrd_tb_log_error(TRITONBACKEND_RequestRelease(request, TRITONSERVER_REQUEST_RELEASE_ALL), "cannot release a request");
}

void nrd_tb_refuse(TRITONBACKEND_Request *request, TRITONSERVER_Error *err)
{
    nrd_tb_send_error(request, err);
    nrd_tb_release(request);
}

void nrd_tb_send_last(TRITONBACKEND_ResponseFactory *factory, TRITONSERVER_Error *err)
{
    TRITONBACKEND_Response *response = NULL;
    TRITONSERVER_Error *failure = TRITONBACKEND_ResponseNewFromFactory(&response, factory);
    if (!failure) {
        failure = TRITONBACKEND_ResponseSend(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, err);
    } else {
        nrd_tb_log_error(failure, "cannot make the last response, only its flag is sent");
        failure = TRITONBACKEND_ResponseFactorySendFlags(factory, TRITONSERVER_RESPONSE_COMPLETE_FINAL);
    }
    nrd_tb_log_error(failure, "cannot send the last response");
    TRITONSERVER_ErrorDelete(err);
}
