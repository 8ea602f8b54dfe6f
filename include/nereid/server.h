/* SPDX-License-Identifier: Apache-2.0
 * nereid/server.h - what libtritonserver.so offers beyond Triton's C API.
 *
 * Purpose   A backend reports that a model has failed while it served, and the program around the
 *           server can ask for such models. A backend names inputs that clients may send and that
 *           it does not use. A caller that keeps metadata of a model asks whether it is still
 *           valid.
 * Owner     Any thread; all return at once.
 * ABI       A backend or program that must also run with other builds of libtritonserver.so
 *           declares these functions weak (#pragma weak) and calls none that is NULL.
 */
#ifndef NEREID_SERVER_H
#define NEREID_SERVER_H

#include "triton/core/tritonbackend.h"

#include <stdbool.h>
#include <stdint.h>

#define NRD_SERVER_API __attribute__((visibility("default")))

/* The model is no longer ready, with this reason (copied) in the repository index and in the errors of
 * requests to come. Its running requests are answered by the backend as always; when they are, the
 * model is finalized, and it may be loaded again. The call has no effect when a newer copy of the
 * model has already replaced this one. */
NRD_SERVER_API void nrd_backend_model_failed(TRITONBACKEND_Model *model, const char *reason);

/* Requests may carry an input of this name (copied) and type although the model's configuration does
 * not have it: it is dropped instead of refused. In TRITONBACKEND_ModelInitialize only, else
 * INVALID_ARG. */
NRD_SERVER_API TRITONSERVER_Error *nrd_backend_ignore_input(TRITONBACKEND_Model *model,
                                                            const char *name,
                                                            TRITONSERVER_DataType datatype);

/* Whether a model failed that way and has neither been loaded again nor unloaded. */
NRD_SERVER_API bool nrd_server_has_failed(TRITONSERVER_Server *server);

/* Which load of a model a request for this version (-1: the newest) would run on: a number that no
 * other load of this process has. 0: no version of it is ready. */
NRD_SERVER_API uint64_t nrd_server_load_number(TRITONSERVER_Server *server, const char *model,
                                               int64_t version);

/* The Triton release whose interfaces these are: what clients are told and check. */
#define NRD_TRITON_VERSION "2.51.0"

/* A TRITONSERVER_MetricFormat: the metrics as JSON, with the recent values of histograms (see
 * nrd_metrics_json in base/metric.h). Another core refuses the number, which no published version
 * has. */
#define NRD_METRIC_FORMAT_JSON 0x4e52

#endif
