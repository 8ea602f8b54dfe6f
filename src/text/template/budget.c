/* SPDX-License-Identifier: Apache-2.0
 * What a rendering may take, and how it ends early. Each node costs a step of a budget and each value memory of a budget, so
 * that the template of a downloaded model can neither run for ever nor fill the memory. */
#include "text/template/internal.h"

#include <stdarg.h>

void nrd_template_fail(nrd_template_run *r, nrd_error_code code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    r->err = nrd_error_wrap(nrd_errorv(code, fmt, ap), "template line %d", r->line);
    va_end(ap);
    longjmp(r->jmp, 1);
}

void nrd_template_fail_undef(nrd_template_run *r, nrd_template_val v)
{
    if (v.flag == UNDEF_ATTR) {
        nrd_template_fail(r, NRD_ERR_INVALID_ARG, "the object has no attribute '%.*s'", (int)v.n,
                          v.s);
    }
    if (v.flag == UNDEF_UNSAFE) {
        nrd_template_fail(r, NRD_ERR_INVALID_ARG, "access to attribute '%.*s' is unsafe", (int)v.n,
                          v.s);
    }
    nrd_template_fail(r, NRD_ERR_INVALID_ARG, v.flag == UNDEF_NAME ? "'%.*s' is undefined" : "%.*s",
                      (int)v.n, v.s);
}

void *nrd_template_alloc(nrd_template_run *r, size_t n)
{
    void *p = NULL;
    if (n <= r->max_memory && r->memory <= r->max_memory - n) {
        r->memory += n + 16;
        p = nrd_arena_alloc(&r->arena, n);
    }
    if (!p) {
        nrd_template_fail(r, NRD_ERR_INVALID_ARG,
                          "the template takes more than %zu bytes of memory", r->max_memory);
    }
    return p;
}

void nrd_template_step(nrd_template_run *r, uint64_t n)
{
    r->steps += n;
    if (r->steps > r->max_steps) {
        nrd_template_fail(r, NRD_ERR_INVALID_ARG, "the template takes more than %llu steps",
                          (unsigned long long)r->max_steps);
    }
}
