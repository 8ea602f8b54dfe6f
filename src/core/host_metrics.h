/* SPDX-License-Identifier: Apache-2.0
 * core/host_metrics.h - figures of the machine (CPU, memory) and of the memory pool.
 *
 * Owner     The server; updated by its housekeeping thread alone.
 */
#ifndef NRD_CORE_HOST_METRICS_H
#define NRD_CORE_HOST_METRICS_H

#include "base/error.h"

#include <stdbool.h>

typedef struct nrd_host_metrics nrd_host_metrics; /* CPU and pool figures of the machine */
nrd_error *nrd_host_metrics_new(nrd_host_metrics **out, bool with_cpu) NRD_MUST_USE;
void nrd_host_metrics_update(nrd_host_metrics *h);
void nrd_host_metrics_free(nrd_host_metrics *h);

#endif
