/* SPDX-License-Identifier: Apache-2.0 */
#include "device/plugin/plugin.h"

#include "base/error.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

const char nrd_device_plugin_id[] = NRD_DEVICE_ID;

static const nrd_device_host *_Atomic program;

void nrd_plugin_host(const nrd_device_host *host)
{
    program = host;
}

nrd_error *nrd_error_no_memory(void)
{
    return program->error_no_memory();
}

nrd_error *nrd_errorv(nrd_error_code code, const char *fmt, va_list args)
{
    char *message = NULL;
    if (vasprintf(&message, fmt, args) < 0) {
        return nrd_error_no_memory();
    }
    nrd_error *err = program->error_new((int)code, message);
    free(message);
    return err;
}

nrd_error *nrd_errorf(nrd_error_code code, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    nrd_error *err = nrd_errorv(code, fmt, args);
    va_end(args);
    return err;
}

nrd_error *nrd_error_wrap(nrd_error *err, const char *fmt, ...)
{
    char *context = NULL;
    va_list args;

    if (!err || nrd_error_get_code(err) == NRD_ERR_NO_MEMORY) {
        return err;
    }
    va_start(args, fmt);
    int n = vasprintf(&context, fmt, args);
    va_end(args);
    if (n < 0) {
        return err;
    }
    nrd_error *out = nrd_errorf(nrd_error_get_code(err), "%s: %s", context, nrd_error_message(err));
    nrd_error_free(err);
    free(context);
    return out;
}

nrd_error_code nrd_error_get_code(const nrd_error *err)
{
    return (nrd_error_code)program->error_code(err);
}

const char *nrd_error_message(const nrd_error *err)
{
    return program->error_message(err);
}

void nrd_error_free(nrd_error *err)
{
    if (err) {
        program->error_free(err);
    }
}

void nrd_assert_fail(const char *cond, const char *why, const char *file, int line, const char *func)
{
    fprintf(stderr, "nereid: broken invariant in %s (%s:%d): %s -- %s\n", func, file, line, cond, why);
    abort();
}
