/* SPDX-License-Identifier: Apache-2.0
 * core/metrics.h - the process's registry of metrics. Any thread. */
#ifndef NRD_CORE_METRICS_H
#define NRD_CORE_METRICS_H

#include "base/metric.h"

nrd_metrics *nrd_core_metrics(void); /* the process's registry */

#endif
