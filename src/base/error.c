/* SPDX-License-Identifier: Apache-2.0 */
#include "base/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Only the functions of this file know the layout. Where errors cross shared objects, both sides
 * call the functions of one of them: libnereid.so exports its own, device plug-ins are given
 * the program's. */
struct nrd_error {
    nrd_error_code code;
    int is_static;
    char *message; /* owned; the static object points at a literal */
    char *field;   /* owned; NULL: none */
    const char *reason;
};

static struct nrd_error no_memory = {NRD_ERR_NO_MEMORY, 1, (char *)"out of memory", NULL, NULL};

nrd_error *nrd_error_no_memory(void)
{
    return &no_memory;
}

nrd_error *nrd_errorv(nrd_error_code code, const char *fmt, va_list args)
{
    nrd_error *err = malloc(sizeof *err);
    char *message = NULL;

    if (!err || vasprintf(&message, fmt, args) < 0) {
        free(err);
        return &no_memory;
    }
    err->code = code;
    err->is_static = 0;
    err->message = message;
    err->field = NULL;
    err->reason = NULL;
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
    char *message = NULL;
    va_list args;

    if (!err || err->is_static) {
        return err;
    }
    va_start(args, fmt);
    int n = vasprintf(&context, fmt, args);
    va_end(args);
    if (n < 0) {
        return err;
    }
    if (asprintf(&message, "%s: %s", context, err->message) >= 0) {
        free(err->message);
        err->message = message;
    }
    free(context);
    return err;
}

nrd_error *nrd_error_at(nrd_error *err, const char *field)
{
    if (err && !err->is_static && !err->field) {
        err->field = strdup(field); /* without memory: an error without its field */
    }
    return err;
}

nrd_error *nrd_error_because(nrd_error *err, const char *reason)
{
    if (err && !err->is_static) {
        err->reason = reason;
    }
    return err;
}

const char *nrd_error_field(const nrd_error *err)
{
    return err->field;
}

const char *nrd_error_reason(const nrd_error *err)
{
    return err->reason;
}

nrd_error_code nrd_error_get_code(const nrd_error *err)
{
    return err->code;
}

const char *nrd_error_message(const nrd_error *err)
{
    return err->message;
}

void nrd_error_free(nrd_error *err)
{
    if (!err || err->is_static) {
        return;
    }
    free(err->message);
    free(err->field);
    free(err);
}

void nrd_assert_fail(const char *cond, const char *why, const char *file, int line,
                     const char *func)
{
    fprintf(stderr, "nereid: broken invariant in %s (%s:%d): %s -- %s\n", func, file, line, cond,
            why);
    abort();
}
