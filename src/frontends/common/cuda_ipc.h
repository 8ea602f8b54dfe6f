/* SPDX-License-Identifier: Apache-2.0
 * frontends/common/cuda_ipc.h - memory that another process allocated on a GPU, through the CUDA driver.
 *
 * Purpose   What cudaIpcMemHandle_t stands for, mapped here, and copies from and to it. The driver
 *           is loaded at run time, so that the program also starts where there is none.
 * Owner     Any thread; calls block until the copy is done.
 * Errors    UNSUPPORTED: no driver or no GPU; INVALID_ARG: a handle that does not open.
 * Lifetime  open to close; the device's primary context is kept until the process ends.
 * Sources   CUDA driver API: cuIpcOpenMemHandle, cuMemGetAddressRange, cuMemcpy*.
 */
#ifndef NRD_FRONTENDS_COMMON_CUDA_IPC_H
#define NRD_FRONTENDS_COMMON_CUDA_IPC_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NRD_CUDA_HANDLE_BYTES 64 /* sizeof(cudaIpcMemHandle_t) */

bool nrd_cuda_ipc_available(void); /* a driver and at least one GPU */
nrd_error *nrd_cuda_ipc_open(int device, const void *handle, uint64_t *out_address,
                             uint64_t *out_size) NRD_MUST_USE;
void nrd_cuda_ipc_close(int device, uint64_t address);
nrd_error *nrd_cuda_ipc_read(int device, uint64_t from, void *to, size_t n) NRD_MUST_USE;
nrd_error *nrd_cuda_ipc_write(int device, uint64_t to, const void *from, size_t n) NRD_MUST_USE;

#endif
