/* SPDX-License-Identifier: Apache-2.0
 * frontends/common/registry.h - the core's metrics as a document.
 *
 * Purpose   What shows metrics in a form of its own, as the page and the names of other servers, looks them up here.
 * Owner     Any thread; a document is its reader's.
 * Units     Whatever the family's name says (base/metric.h).
 * Errors    Those of the core. A server without metrics is none: the document is NULL, in which nothing is found.
 * Lifetime  Series and labels are borrowed from the document.
 */
#ifndef NRD_FRONTENDS_COMMON_REGISTRY_H
#define NRD_FRONTENDS_COMMON_REGISTRY_H

#include "base/error.h"
#include "base/json.h"
#include "base/str.h"
#include "frontends/common/models.h"
#include "triton/core/tritonserver.h"

typedef struct nrd_registry_label {
    const char *name, *value;
} nrd_registry_label;

/* *out: {"family":[series, ...], ...} as base/metric.h writes it; NULL where the server has no metrics, or a core has none in
 * this form. The caller frees it. */
nrd_error *nrd_registry_read(nrd_json_doc **out, TRITONSERVER_Server *server) NRD_MUST_USE;
/* The first series of a family that has all of the labels; NULL: none. */
const nrd_json *nrd_registry_series(const nrd_json *metrics, const char *family, const nrd_registry_label *want, size_t n);
/* Of a counter or gauge; 0 for NULL. */
double nrd_registry_value(const nrd_json *series);

/* Appends the first name under which /v1 offers the model, else its own. */
void nrd_registry_put_name(nrd_str *out, nrd_models *models, const char *model);

#endif
