/* SPDX-License-Identifier: Apache-2.0
 * nereid_faulty.so: the CPU as a device whose steps, and whose opening, fail while a file exists that the
 * environment variable NEREID_TEST_FAULT names; whose memory is all taken while a file exists that
 * NEREID_TEST_NO_MEMORY names; whose steps do not end in rank 0 while one exists that NEREID_TEST_HANG names (a
 * named pipe: which wait for its writer); whose products take the time that NEREID_TEST_PACE_US says (FIXED,EACH_ROW); which lacks every mode that a
 * device may lack; which has no library for sums over ranks. With NEREID_TEST_ONE_DEVICE there is only the first; with NEREID_TEST_NO_DRIVER none;
 * with NEREID_TEST_APART the host does not share its memory, as it does not share a GPU's. Built as nereid_stale.so it is one of another version. */
#include "base/env.h"
#include "base/error.h"
#include "base/file.h"
#include "device/device.h"
#include "device/plugin/plugin.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static nrd_device_ops ops;
static bool is_first; /* rank 0's, or the only one */
static nrd_error *(*real_alloc)(nrd_device *dev, void **out, nrd_mem_kind kind, size_t bytes,
                                const char *pool_name);
static nrd_error *(*real_linear)(nrd_stream *s, const nrd_linear_args *a);
static void (*real_info)(nrd_device *dev, nrd_device_info *out);
static nrd_error *(*real_comm_open)(nrd_device *dev, const nrd_comm_config *config, nrd_comm **out);

static nrd_error *fault(void)
{
    const char *file = nrd_env("NEREID_TEST_FAULT", NULL);
    return file && nrd_path_exists(file)
               ? nrd_errorf(NRD_ERR_INTERNAL, "faulty: the device fell off the bus")
               : NULL;
}

static nrd_error *alloc(nrd_device *dev, void **out, nrd_mem_kind kind, size_t bytes,
                        const char *pool_name)
{
    const char *file = nrd_env("NEREID_TEST_NO_MEMORY", NULL);
    return file && nrd_path_exists(file) ? nrd_error_no_memory()
                                         : real_alloc(dev, out, kind, bytes, pool_name);
}

static void hang(void)
{
    const struct timespec pause = {0, 10000000};
    const char *file = nrd_env("NEREID_TEST_HANG", NULL);
    struct stat st;

    if (is_first && file && stat(file, &st) == 0 && S_ISFIFO(st.st_mode)) {
        const int fd = open(file, O_RDONLY | O_CLOEXEC); /* until somebody writes there */
        if (fd >= 0) {
            close(fd);
        }
        return;
    }
    while (is_first && file && nrd_path_exists(file)) {
        nanosleep(&pause, NULL);
    }
}

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* A product ends so many microseconds after it began, and so many more for each row. */
static void pace(int64_t began_ns, int64_t rows)
{
    long long fixed = 0, each = 0;

    if (sscanf(nrd_env("NEREID_TEST_PACE_US", ""), "%lld,%lld", &fixed, &each) != 2) {
        return;
    }
    const int64_t end = began_ns + (fixed + each * rows) * 1000;
    const struct timespec until = {end / 1000000000, end % 1000000000};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR) {
    }
}

static nrd_error *linear(nrd_stream *s, const nrd_linear_args *a)
{
    const int64_t began = now_ns();

    hang();
    nrd_error *err = fault();
    err = err ? err : real_linear(s, a);
    pace(began, a->n_tokens);
    return err;
}

static void get_info(nrd_device *dev, nrd_device_info *out)
{
    real_info(dev, out);
    out->host_is_device = out->host_is_device && !nrd_env("NEREID_TEST_APART", NULL);
}

static nrd_error *comm_open(nrd_device *dev, const nrd_comm_config *config, nrd_comm **out)
{
    *out = NULL;
    return config->by_library ? nrd_errorf(NRD_ERR_UNSUPPORTED, "faulty: there is no library for sums over ranks")
                              : real_comm_open(dev, config, out);
}

nrd_error *nrd_device_plugin(const nrd_device_host *host, const nrd_device_config *config,
                             nrd_device **out)
{
    *out = NULL;
    nrd_plugin_host(host);
    nrd_error *err = fault();
    if (!err && nrd_env("NEREID_TEST_NO_DRIVER", NULL)) {
        err = nrd_errorf(NRD_ERR_NOT_FOUND, "faulty: no driver on this machine; use device \"cpu\"");
    }
    if (!err && config->device_id > 0 && nrd_env("NEREID_TEST_ONE_DEVICE", NULL)) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "faulty: device %d asked for, there is one", config->device_id);
    }
    if (!err) {
        err = nrd_cpu_open(out, config);
    }
    if (!err) {
        is_first = config->share == 0;
        ops = *(*out)->ops;
        real_linear = ops.linear;
        ops.linear = linear;
        real_alloc = ops.alloc;
        ops.alloc = alloc;
        real_info = ops.get_info;
        ops.get_info = get_info;
        real_comm_open = ops.comm_open;
        ops.comm_open = comm_open;
        ops.has_feature = NULL;
        (*out)->ops = &ops;
    }
    return err;
}
