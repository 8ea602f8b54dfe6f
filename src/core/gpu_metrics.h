/* SPDX-License-Identifier: Apache-2.0
 * core/gpu_metrics.h - figures of GPUs.
 *
 * Owner     The server; updated by its housekeeping thread alone.
 */
#ifndef NRD_CORE_GPU_METRICS_H
#define NRD_CORE_GPU_METRICS_H

#include "base/error.h"

typedef struct nrd_gpu_metrics nrd_gpu_metrics; /* figures of GPUs, gpu_metrics.c */
nrd_error *nrd_gpu_metrics_new(nrd_gpu_metrics **out) NRD_MUST_USE; /* fine without any GPU */
void nrd_gpu_metrics_update(nrd_gpu_metrics *g);                    /* NULL is fine */
void nrd_gpu_metrics_free(nrd_gpu_metrics *g);

#endif
