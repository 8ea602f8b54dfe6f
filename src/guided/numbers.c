/* SPDX-License-Identifier: Apache-2.0
 * Numbers between two bounds, as JSON writes them. */
#include "guided/internal.h"

#include "base/number.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

expr *nrd_guided_digits(builder *b, int32_t min, int32_t max)
{
    return nrd_guided_repeat(b, nrd_guided_byte_range(b, '0', '9'), min, max);
}

static expr *digit(builder *b, char c)
{
    return nrd_guided_byte_range(b, (uint8_t)c, (uint8_t)c);
}

/* ---- whole numbers ---- */

/* Numbers of exactly n digits from lo to hi. */
static expr *digits_between(builder *b, const char *lo, const char *hi, size_t n)
{
    expr *seq = nrd_guided_seq(b), *alt = nrd_guided_alt(b);
    size_t same = 0;
    while (same < n && lo[same] == hi[same]) {
        nrd_guided_add(b, seq, nrd_guided_byte_range(b, (uint8_t)lo[same], (uint8_t)lo[same]));
        same++;
    }
    if (same == n || b->err) {
        return seq;
    }
    bool lo_full = true, hi_full = true;
    for (size_t i = same + 1; i < n; i++) {
        lo_full = lo_full && lo[i] == '0';
        hi_full = hi_full && hi[i] == '9';
    }
    char from = lo_full ? lo[same] : (char)(lo[same] + 1), to = hi_full ? hi[same] : (char)(hi[same] - 1);
    char nines[24], zeros[24];
    memset(nines, '9', sizeof nines);
    memset(zeros, '0', sizeof zeros);
    if (!lo_full) {
        expr *s = nrd_guided_seq(b);
        nrd_guided_add(b, s, nrd_guided_byte_range(b, (uint8_t)lo[same], (uint8_t)lo[same]));
        nrd_guided_add(b, s, digits_between(b, lo + same + 1, nines, n - same - 1));
        nrd_guided_add(b, alt, s);
    }
    if (from <= to) {
        expr *s = nrd_guided_seq(b);
        int32_t rest = (int32_t)(n - same - 1);
        nrd_guided_add(b, s, nrd_guided_byte_range(b, (uint8_t)from, (uint8_t)to));
        nrd_guided_add(b, s, nrd_guided_digits(b, rest, rest));
        nrd_guided_add(b, alt, s);
    }
    if (!hi_full) {
        expr *s = nrd_guided_seq(b);
        nrd_guided_add(b, s, nrd_guided_byte_range(b, (uint8_t)hi[same], (uint8_t)hi[same]));
        nrd_guided_add(b, s, digits_between(b, zeros, hi + same + 1, n - same - 1));
        nrd_guided_add(b, alt, s);
    }
    nrd_guided_add(b, seq, alt);
    return seq;
}

static expr *natural_between(builder *b, int64_t lo, int64_t hi)
{
    expr *alt = nrd_guided_alt(b);
    char x[24], y[24];
    while (lo <= hi && !b->err) {
        int n = snprintf(x, sizeof x, "%lld", (long long)lo);
        int64_t top = 9;
        for (int i = 1; i < n; i++) {
            top = top > (INT64_MAX - 9) / 10 ? INT64_MAX : top * 10 + 9;
        }
        int64_t end = hi < top ? hi : top;
        snprintf(y, sizeof y, "%lld", (long long)end);
        nrd_guided_add(b, alt, digits_between(b, x, y, (size_t)n));
        if (end == INT64_MAX) {
            break;
        }
        lo = end + 1;
    }
    return alt;
}

expr *nrd_guided_integer_between(builder *b, num_bound low, num_bound high)
{
    const int64_t limit = 999999999999999999;
    double lo = low.open ? floor(low.at) + 1 : ceil(low.at);
    double hi = high.open ? ceil(high.at) - 1 : floor(high.at);
    if (lo > hi || lo > (double)limit || hi < -(double)limit) {
        nrd_guided_fail(b, NRD_ERR_INVALID_ARG, "schema: no whole number lies between the bounds");
        return NULL;
    }
    int64_t from = lo < -(double)limit ? -limit : (int64_t)lo,
            to = hi > (double)limit ? limit : (int64_t)hi;
    expr *alt = nrd_guided_alt(b);
    if (from < 0) {
        expr *seq = nrd_guided_word(b, "-");
        nrd_guided_add(b, seq, natural_between(b, to < 0 ? -to : 1, -from));
        nrd_guided_add(b, alt, seq);
    }
    if (to >= 0) {
        nrd_guided_add(b, alt, natural_between(b, from > 0 ? from : 0, to));
    }
    return alt;
}

/* ---- multiples ---- */

enum { MAX_LISTED = 4096 };

/* Rule i: digits behind those of a number whose remainder is i, up to one without a remainder. */
static expr *any_multiple(builder *b, int32_t m, bool negative)
{
    uint32_t *rest = calloc((size_t)m, sizeof *rest);
    if (!rest) {
        nrd_guided_no_memory(b);
        return NULL;
    }
    expr *seq = nrd_guided_seq(b), *first = nrd_guided_alt(b);
    for (int32_t i = 0; i < m; i++) {
        rest[i] = nrd_guided_new_rule(b);
    }
    for (int32_t i = 0; i < m && !b->err; i++) {
        expr *alt = nrd_guided_alt(b);
        if (i == 0) {
            nrd_guided_add(b, alt, nrd_guided_empty(b));
        }
        for (int32_t d = 0; d < 10; d++) {
            expr *more = nrd_guided_seq(b);
            nrd_guided_add(b, more, digit(b, (char)('0' + d)));
            nrd_guided_add(b, more, nrd_guided_rule_ref(b, rest[(10 * i + d) % m]));
            nrd_guided_add(b, alt, more);
        }
        nrd_guided_define(b, rest[i], alt);
    }
    nrd_guided_add(b, first, digit(b, '0'));
    for (int32_t d = 1; d < 10; d++) {
        expr *more = nrd_guided_seq(b);
        nrd_guided_add(b, more, digit(b, (char)('0' + d)));
        nrd_guided_add(b, more, nrd_guided_rule_ref(b, rest[d % m]));
        nrd_guided_add(b, first, more);
    }
    if (negative) {
        nrd_guided_add(b, seq, nrd_guided_repeat(b, digit(b, '-'), 0, 1));
    }
    nrd_guided_add(b, seq, first);
    free(rest);
    return seq;
}

expr *nrd_guided_multiples(builder *b, int32_t m, num_bound lo, num_bound hi)
{
    const double least = (lo.open ? floor(lo.at / m) + 1 : ceil(lo.at / m)) * m;
    const double most = (hi.open ? ceil(hi.at / m) - 1 : floor(hi.at / m)) * m;
    if (isinf(hi.at) && (isinf(lo.at) || least == 0)) {
        return any_multiple(b, m, isinf(lo.at));
    }
    if (isinf(lo.at) || isinf(hi.at) || (most - least) / m >= MAX_LISTED || fabs(least) > 1e15) {
        nrd_guided_fail(b, NRD_ERR_UNSUPPORTED,
                        "schema: 'multipleOf' beside these bounds is not supported");
        return NULL;
    }
    if (least > most) {
        nrd_guided_fail(b, NRD_ERR_INVALID_ARG, "schema: no multiple of %d lies between the bounds",
                        m);
        return NULL;
    }
    expr *alt = nrd_guided_alt(b);
    for (int64_t x = (int64_t)least; x <= (int64_t)most && !b->err; x += m) {
        char text[24];
        int n = snprintf(text, sizeof text, "%lld", (long long)x);
        nrd_guided_add(b, alt, nrd_guided_text(b, text, (size_t)n));
    }
    return alt;
}

/* ---- numbers with a fraction ---- */

/* A number and its text stay one to one while it has at most 15 digits: those before the point (of the
 * bounds, at least) and those behind it. */
enum { MAX_FRACTION = 12, SHORT_FRACTION = 6 };
#define MAX_WITH_LONG_FRACTION 1e3
#define MAX_WITH_FRACTION 1e9

/* Not below 0. */
typedef struct decimal {
    int64_t whole;
    char fraction[MAX_FRACTION + 1]; /* all n digits of it */
    bool open;                       /* itself is outside */
} decimal;

typedef struct fraction_range {
    builder *b;
    const char *lo, *hi;
    bool lo_open, hi_open;
    int n;
} fraction_range;

static bool is_zero(const char *digits)
{
    return strspn(digits, "0") == strlen(digits);
}

/* What may follow the first i digits; at_lo, at_hi: these are those of the bound. NULL: nothing. */
static expr *fraction_rest(const fraction_range *f, int i, bool at_lo, bool at_hi)
{
    builder *b = f->b;
    if (at_lo && !f->lo_open && is_zero(f->lo + i)) {
        at_lo = false; /* every digit keeps it */
    }
    bool may_end = i > 0 && !at_lo && !(at_hi && f->hi_open && is_zero(f->hi + i));
    if (!at_lo && !at_hi) {
        return nrd_guided_digits(b, i > 0 ? 0 : 1, f->n - i);
    }
    if (i == f->n) {
        return may_end ? nrd_guided_empty(b) : NULL;
    }
    char from = at_lo ? f->lo[i] : '0', to = at_hi ? f->hi[i] : '9';
    expr *alt = nrd_guided_alt(b);
    bool any = may_end;
    if (may_end) {
        nrd_guided_add(b, alt, nrd_guided_empty(b));
    }
    for (char c = from; c <= to; c++) {
        bool lo_here = at_lo && c == from, hi_here = at_hi && c == to;
        char last = c;
        if (!lo_here && !hi_here) { /* all between at once */
            last = at_hi ? (char)(to - 1) : to;
        }
        expr *rest = fraction_rest(f, i + 1, lo_here, hi_here);
        if (rest) {
            expr *seq = nrd_guided_seq(b);
            nrd_guided_add(b, seq, nrd_guided_byte_range(b, (uint8_t)c, (uint8_t)last));
            nrd_guided_add(b, seq, rest);
            nrd_guided_add(b, alt, seq);
            any = true;
        }
        c = last;
    }
    return any ? alt : NULL;
}

/* `whole` with what may follow it; *any: there is something. */
static void add_with_fraction(builder *b, expr *alt, int64_t whole, const fraction_range *f, bool alone,
                              bool *any)
{
    char text[24];
    expr *rest = fraction_rest(f, 0, f->lo != NULL, f->hi != NULL);
    int n = snprintf(text, sizeof text, "%lld", (long long)whole);
    if (alone) {
        nrd_guided_add(b, alt, nrd_guided_text(b, text, (size_t)n));
        *any = true;
    }
    if (rest) {
        expr *seq = nrd_guided_text(b, text, (size_t)n);
        nrd_guided_add(b, seq, digit(b, '.'));
        nrd_guided_add(b, seq, rest);
        nrd_guided_add(b, alt, seq);
        *any = true;
    }
}

static expr *decimals_between(builder *b, const decimal *lo, const decimal *hi, int n, bool *any)
{
    expr *alt = nrd_guided_alt(b);
    fraction_range f = {b, lo->fraction, hi->fraction, lo->open, hi->open, n};
    bool lo_alone = is_zero(lo->fraction) && !lo->open, hi_alone = !is_zero(hi->fraction) || !hi->open;
    if (lo->whole == hi->whole) {
        add_with_fraction(b, alt, lo->whole, &f, lo_alone && hi_alone, any);
        return alt;
    }
    if (lo->whole > hi->whole) {
        return alt;
    }
    f.hi = NULL;
    add_with_fraction(b, alt, lo->whole, &f, lo_alone, any);
    if (lo->whole + 1 < hi->whole) {
        expr *seq = nrd_guided_seq(b), *fraction = nrd_guided_seq(b);
        nrd_guided_add(b, seq, natural_between(b, lo->whole + 1, hi->whole - 1));
        nrd_guided_add(b, fraction, digit(b, '.'));
        nrd_guided_add(b, fraction, nrd_guided_digits(b, 1, n));
        nrd_guided_add(b, seq, nrd_guided_repeat(b, fraction, 0, 1));
        nrd_guided_add(b, alt, seq);
        *any = true;
    }
    f.lo = NULL;
    f.hi = hi->fraction;
    add_with_fraction(b, alt, hi->whole, &f, hi_alone, any);
    return alt;
}

/* x >= 0 to n digits behind the point, rounded to the side that the range lies on. */
static decimal to_decimal(num_bound x, int n, bool up)
{
    decimal d = {.open = x.open};
    double whole = floor(x.at), scale = pow(10, n);
    char text[40];
    int64_t steps = (int64_t)llround((x.at - whole) * scale);

    snprintf(text, sizeof text, "%.0f.%0*lld", whole, n, (long long)steps);
    if (nrd_number_read(text, NULL) != x.at && steps < (int64_t)scale) { /* no such decimal: a neighbour inside */
        steps = (int64_t)(up ? ceil((x.at - whole) * scale) : floor((x.at - whole) * scale));
        d.open = false;
    }
    if (steps >= (int64_t)scale) {
        whole += 1;
        steps = 0;
    }
    d.whole = (int64_t)whole;
    snprintf(text, sizeof text, "%0*lld", n, (long long)steps);
    memcpy(d.fraction, text, (size_t)n);
    return d;
}

expr *nrd_guided_number_between(builder *b, num_bound lo, num_bound hi, int max_fraction)
{
    double low = isinf(lo.at) ? 0 : fabs(lo.at), high = isinf(hi.at) ? 0 : fabs(hi.at);
    double largest = low > high ? low : high;
    int n = largest < MAX_WITH_LONG_FRACTION && !isinf(lo.at) && !isinf(hi.at) ? MAX_FRACTION
                                                                                 : SHORT_FRACTION;
    expr *alt = nrd_guided_alt(b);
    bool any = false;

    n = max_fraction > 0 && max_fraction < n ? max_fraction : n;
    if (largest >= MAX_WITH_FRACTION) {
        return nrd_guided_integer_between(b, lo, hi);
    }
    lo = isinf(lo.at) ? (num_bound){-(MAX_WITH_FRACTION - 1), false} : lo;
    hi = isinf(hi.at) ? (num_bound){MAX_WITH_FRACTION - 1, false} : hi;
    if (lo.at < 0) { /* without "-0", so that a range has one way to write it */
        num_bound from = hi.at < 0 ? (num_bound){-hi.at, hi.open} : (num_bound){0, true};
        num_bound to = {-lo.at, lo.open};
        decimal x = to_decimal(from, n, true), y = to_decimal(to, n, false);
        bool some = false;
        expr *seq = nrd_guided_word(b, "-"), *range = decimals_between(b, &x, &y, n, &some);
        if (some) {
            nrd_guided_add(b, seq, range);
            nrd_guided_add(b, alt, seq);
            any = true;
        }
    }
    if (hi.at >= 0) {
        decimal x = to_decimal(lo.at < 0 ? (num_bound){0, false} : lo, n, true),
                y = to_decimal(hi, n, false);
        bool some = false;
        expr *range = decimals_between(b, &x, &y, n, &some);
        if (some) {
            nrd_guided_add(b, alt, range);
            any = true;
        }
    }
    if (!any) {
        nrd_guided_fail(b, NRD_ERR_INVALID_ARG, "schema: no number of %d digits behind the point lies between the "
                                       "bounds", n);
    }
    return alt;
}
