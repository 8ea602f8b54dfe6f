/* SPDX-License-Identifier: Apache-2.0 */
#include "base/parts.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

size_t nrd_parts_of_name(const char *name, size_t *out_at)
{
    static const char form[] = "-00000-of-00000.gguf";
    const size_t n = strlen(name), m = sizeof form - 1;
    if (n < m) {
        return 0;
    }
    const char *p = name + n - m;
    for (size_t i = 0; i < m; i++) {
        if (form[i] == '0' ? !isdigit((unsigned char)p[i]) : tolower((unsigned char)p[i]) != form[i]) {
            return 0;
        }
    }
    *out_at = n - m;
    return (size_t)strtoul(p + 10, NULL, 10);
}

char *nrd_part_name(const char *name, size_t at, size_t i)
{
    char *part = strdup(name), number[32];
    snprintf(number, sizeof number, "%05zu", i);
    if (part) {
        memcpy(part + at + 1, number, 5);
    }
    return part;
}
