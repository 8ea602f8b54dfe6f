/* SPDX-License-Identifier: Apache-2.0
 * frontends/http/load_report.h - how full the KV cache is, told beside an answer to who asks.
 *
 * Purpose   A header line "endpoint-load-metrics", in the form of ORCA (Open Request Cost Aggregation), by which gateways choose
 *           among servers. Asked for with the header "endpoint-load-metrics-format: json" or "text", as with Triton.
 * Owner     The request's loop thread.
 * Units     kv_cache_utilization: used blocks of all blocks, 0 to 1. max_token_capacity: tokens that all blocks hold.
 */
#ifndef NRD_FRONTENDS_HTTP_LOAD_REPORT_H
#define NRD_FRONTENDS_HTTP_LOAD_REPORT_H

#include "base/str.h"
#include "frontends/http/api.h"

/* Appends the line with its CRLF; nothing where it was not asked for, in another form, or no model here has a KV cache. Several models
 * that have one count together. */
void nrd_http_put_load(nrd_str *out, const nrd_http_api *api, const nrd_http_request *req);

#endif
