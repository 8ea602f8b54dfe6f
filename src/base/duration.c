/* SPDX-License-Identifier: Apache-2.0 */
#include "base/duration.h"

#include "base/str.h"

#include <string.h>

uint64_t nrd_duration_of(double seconds)
{
    return seconds >= 0 && seconds < 1e9 ? (uint64_t)(seconds * 1e9) : NRD_DURATION_FOREVER;
}

/* A number and its unit at *p, in seconds; below 0: it is none. */
static double next_part(const char **p, bool bare)
{
    static const struct {
        const char *name;
        double seconds;
    } units[] = {{"ns", 1e-9}, {"us", 1e-6}, {"ms", 1e-3}, {"s", 1}, {"m", 60}, {"h", 3600}};
    char digits[32];
    const size_t n = strspn(*p, "0123456789.");
    double v = 0;

    if (n == 0 || n >= sizeof digits) {
        return -1;
    }
    memcpy(digits, *p, n);
    digits[n] = '\0';
    if (!nrd_parse_f64(digits, &v)) {
        return -1;
    }
    const char *unit = *p + n;
    const size_t unit_n = strcspn(unit, "0123456789.");
    *p = unit + unit_n;
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        if (unit_n == strlen(units[i].name) && !memcmp(unit, units[i].name, unit_n)) {
            return v * units[i].seconds;
        }
    }
    return unit_n == 0 && bare ? v : -1;
}

bool nrd_parse_duration(const char *text, uint64_t *out_ns)
{
    const bool negative = text[0] == '-';
    const char *p = text + (negative || text[0] == '+'), *begin = p;
    double sum = 0;

    do {
        const double part = next_part(&p, p == begin);
        if (part < 0) {
            return false;
        }
        sum += part;
    } while (*p);
    *out_ns = negative && sum > 0 ? NRD_DURATION_FOREVER : nrd_duration_of(sum);
    return true;
}
