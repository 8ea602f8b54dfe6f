/* SPDX-License-Identifier: Apache-2.0
 * tools/bench_profile.h - where the time of steps goes, beside what the device could do.
 *
 * Purpose   The tables of `nereid bench hw` and `nereid bench … --profile`. The floor of an
 *           operation is the longer of two times: its bytes at the device's reading rate, its
 *           arithmetic at the device's rate for that width.
 */
#ifndef NRD_TOOLS_BENCH_PROFILE_H
#define NRD_TOOLS_BENCH_PROFILE_H

#include "base/error.h"
#include "base/str.h"
#include "nereid/device.h"
#include "tools/model_path.h"

/* Measures the device that the options name, with one thread and with all; `j`: an open object. */
nrd_error *nrd_bench_hw(const nrd_exec_options *o, nrd_str *j) NRD_MUST_USE;

/* The limits of that device: zeros where it does not measure them. */
nrd_error *nrd_bench_limits(const nrd_exec_options *o, nrd_device_limits *out) NRD_MUST_USE;

enum { NRD_BENCH_MAX_SPANS = 1 << 18 };

/* Writes the spans that the engine kept as Chrome trace events: host, steps, operations. */
nrd_error *nrd_bench_trace(nrd_exec *x, const char *path) NRD_MUST_USE;

/* Prints the profile of the engine so far and adds a member "profile" to `j`. */
nrd_error *nrd_bench_profile(nrd_exec *x, const nrd_device_limits *limits, nrd_str *j) NRD_MUST_USE;

#endif
