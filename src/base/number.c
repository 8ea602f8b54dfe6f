/* SPDX-License-Identifier: Apache-2.0 */
#include "base/number.h"

#include <locale.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static locale_t c_locale; /* lives as long as the process */

static void make(void)
{
    c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    NRD_ASSERT(c_locale, "the locale C is part of the C library and takes no memory");
}

double nrd_number_read(const char *text, char **end)
{
    pthread_once(&once, make);
    return strtod_l(text, end, c_locale);
}

int nrd_number_print(char *buf, size_t size, const char *fmt, ...)
{
    va_list args;
    pthread_once(&once, make);
    const locale_t before = uselocale(c_locale); /* of this thread */
    va_start(args, fmt);
    const int n = vsnprintf(buf, size, fmt, args);
    va_end(args);
    uselocale(before);
    return n;
}
