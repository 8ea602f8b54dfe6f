/* SPDX-License-Identifier: Apache-2.0
 * cloud/http.h - net/http.h with what the environment says about stores: AWS_CA_BUNDLE, and
 * NEREID_CLOUD_STALL_SECS (1 to 3600) for answers from which nothing comes. */
#ifndef NRD_CLOUD_HTTP_H
#define NRD_CLOUD_HTTP_H

#include "net/http.h"

/* As nrd_http_do. */
nrd_error *nrd_cloud_http_do(nrd_http_handle *h, nrd_http_ask ask, nrd_http_reply *reply) NRD_MUST_USE;

#endif
