/* SPDX-License-Identifier: Apache-2.0
 * backends/python/sandbox.h - what stub processes may not ask of the kernel.
 *
 * Purpose   --backend-config=python,sandbox=true: no new privileges, a list of refused system calls, and
 *           a /tmp of their own where the server may mount one. It is no container: files, network and
 *           other processes' signals stay as the server's user has them.
 * Owner     Any thread.
 * Errors    A kernel without seccomp filters; the reason as text.
 */
#ifndef NRD_BACKENDS_PYTHON_SANDBOX_H
#define NRD_BACKENDS_PYTHON_SANDBOX_H

#include <stdbool.h>
#include <stddef.h>

/* Runs start(arg) on a thread that is in the sandbox, and so are the processes that it starts. false, why
 * in why[0..n): start was not called. has_tmp: they shall see an empty /tmp if the server may mount. */
bool nrd_py_sandbox_run(void (*start)(void *arg), void *arg, bool has_tmp, char *why, size_t n);

#endif
