/* SPDX-License-Identifier: Apache-2.0 */
#include "core/metrics.h"

#include "base/metric.h"

#include <pthread.h>

static nrd_metrics *registry;
static pthread_once_t registry_once = PTHREAD_ONCE_INIT;

static void make_registry(void)
{
    registry = nrd_metrics_new(); /* lives as long as the process: custom metrics have no server */
}

nrd_metrics *nrd_core_metrics(void)
{
    pthread_once(&registry_once, make_registry);
    return registry;
}
