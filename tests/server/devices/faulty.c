/* nereid_faulty.so: the CPU as a device whose steps, and whose opening, fail while a file exists that the
 * environment variable NEREID_TEST_FAULT names. Built as nereid_stale.so it is one of another version. */
#include "base/env.h"
#include "base/error.h"
#include "base/file.h"
#include "device/device.h"
#include "nereid/device_layout.h"

static nrd_device_ops ops;
static nrd_error *(*real_linear)(nrd_stream *s, const nrd_linear_args *a);

static nrd_error *fault(void)
{
    const char *file = nrd_env("NEREID_TEST_FAULT", NULL);
    return file && nrd_path_exists(file)
               ? nrd_errorf(NRD_ERR_INTERNAL, "faulty: the device fell off the bus")
               : NULL;
}

static nrd_error *linear(nrd_stream *s, const nrd_linear_args *a)
{
    nrd_error *err = fault();
    return err ? err : real_linear(s, a);
}

nrd_error *nrd_device_plugin(const nrd_device_config *config, nrd_device **out);

__attribute__((visibility("default"))) nrd_error *nrd_device_plugin(const nrd_device_config *config,
                                                                    nrd_device **out)
{
    *out = NULL;
    nrd_error *err = fault();
    if (!err) {
        err = nrd_cpu_open(out, config);
    }
    if (!err) {
        ops = *(*out)->ops;
        real_linear = ops.linear;
        ops.linear = linear;
        (*out)->ops = &ops;
    }
    return err;
}

uint64_t nrd_device_plugin_layout(void)
{
    return nrd_device_layout() + (NRD_TEST_STALE ? 1 : 0);
}
