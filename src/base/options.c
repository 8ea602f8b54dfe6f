/* SPDX-License-Identifier: Apache-2.0
 * Reads a command line with a table of options: finds the row (exact name, unique prefix, alias),
 * takes its value, checks form and range, stores it in the caller's struct. Stops at the first
 * fault and describes it; the programs word it. Used by tritonserver and by every verb of nereid.
 */
#include "base/options.h"

#include "base/env.h"
#include "base/mem.h"
#include "base/str.h"

#include <ctype.h>
#include <string.h>

/* ---- names ---- */

static char plain(char c)
{
    return c == '-' ? '_' : c;
}

/* a[0..n) is b, or the beginning of b. */
static bool same(const char *a, size_t n, const char *b, bool as_prefix)
{
    for (size_t i = 0; i < n; i++) {
        if (plain(a[i]) != plain(b[i]) || !b[i]) {
            return false;
        }
    }
    return as_prefix || b[n] == '\0';
}

static bool is_alias(const char *list, const char *word, size_t n)
{
    for (const char *p = list; p && *p; p += *p == ' ') {
        size_t len = strcspn(p, " ");
        if (len == n && same(word, n, p, true)) {
            return true;
        }
        p += len;
    }
    return false;
}

static bool is_long(const char *word, size_t n)
{
    return n > 2 && word[0] == '-' && word[1] == '-';
}

const nrd_opt *nrd_opts_find(const nrd_opt *rows, size_t n_rows, const char *word, size_t n)
{
    for (size_t i = 0; i < n_rows; i++) {
        if ((is_long(word, n) && same(word + 2, n - 2, rows[i].name, false)) ||
            is_alias(rows[i].alias, word, n)) {
            return &rows[i];
        }
    }
    return NULL;
}

/* As getopt_long takes them. */
static const nrd_opt *find_prefix(const nrd_opt_set *set, const char *word, size_t n, bool *ambiguous)
{
    const nrd_opt *found = NULL;
    for (size_t i = 0; i < set->n && is_long(word, n); i++) {
        if (same(word + 2, n - 2, set->rows[i].name, true)) {
            *ambiguous = found != NULL;
            found = &set->rows[i];
            if (*ambiguous) {
                return NULL;
            }
        }
    }
    return found;
}

int nrd_opts_distance(const char *a, size_t na, const char *b)
{
    enum { MAX = 64 };
    int d[3][MAX + 1]; /* rows of the table: two before, before, this one */
    size_t nb = strlen(b);

    na = na > MAX ? MAX : na;
    nb = nb > MAX ? MAX : nb;
    for (size_t j = 0; j <= nb; j++) {
        d[1][j] = (int)j;
    }
    for (size_t i = 1; i <= na; i++) {
        d[2][0] = (int)i;
        for (size_t j = 1; j <= nb; j++) {
            const char x = plain(a[i - 1]), y = plain(b[j - 1]);
            int best = d[1][j - 1] + (x != y);
            best = d[1][j] + 1 < best ? d[1][j] + 1 : best;
            best = d[2][j - 1] + 1 < best ? d[2][j - 1] + 1 : best;
            if (i > 1 && j > 1 && x == plain(b[j - 2]) && plain(a[i - 2]) == y) {
                best = d[0][j - 2] + 1 < best ? d[0][j - 2] + 1 : best;
            }
            d[2][j] = best;
        }
        memcpy(d[0], d[1], sizeof d[0]);
        memcpy(d[1], d[2], sizeof d[1]);
    }
    return d[1][nb];
}

const nrd_opt *nrd_opts_nearest(const nrd_opt *rows, size_t n_rows, const char *word, size_t n)
{
    const nrd_opt *best = NULL;
    while (n > 0 && *word == '-') {
        word++;
        n--;
    }
    int limit = n < 4 ? 1 : n < 8 ? 2 : 3;
    for (size_t i = 0; i < n_rows; i++) {
        int d = rows[i].state == NRD_OPT_USED && rows[i].help
                    ? nrd_opts_distance(word, n, rows[i].name)
                    : INT32_MAX;
        if (d <= limit) {
            limit = d - 1;
            best = &rows[i];
        }
    }
    return best;
}

/* ---- values ---- */

bool nrd_opt_needs_value(const nrd_opt *row)
{
    return row->state == NRD_OPT_USED && nrd_opt_may_have_value(row) && row->form != NRD_OPT_SWITCH &&
           row->form != NRD_OPT_WORD;
}

bool nrd_opt_may_have_value(const nrd_opt *row)
{
    return row->form != NRD_OPT_FLAG && row->form != NRD_OPT_CALL;
}

const char *nrd_opt_expected(const nrd_opt *row)
{
    switch (row->form) {
    case NRD_OPT_INT:
    case NRD_OPT_I64:
        return "a whole number";
    case NRD_OPT_NUM:
        return "a number";
    case NRD_OPT_BOOL:
        return "true or false";
    case NRD_OPT_SWITCH:
        return "enable or disable";
    default:
        return "a value";
    }
}

static bool is_one_of(const char *text, const char *const *words)
{
    for (; *words; words++) {
        if (!strcasecmp(text, *words)) {
            return true;
        }
    }
    return false;
}

/* wide: a switch's further words too. */
static bool read_bool(const char *text, bool wide, bool *out)
{
    static const char *const on[] = {"true", "on", "1", NULL}, *const off[] = {"false", "off", "0", NULL};
    static const char *const more_on[] = {"enable", "yes", "auto", NULL},
                             *const more_off[] = {"disable", "no", NULL};

    if (is_one_of(text, on) || (wide && is_one_of(text, more_on))) {
        *out = true;
    } else if (is_one_of(text, off) || (wide && is_one_of(text, more_off))) {
        *out = false;
    } else {
        return false;
    }
    return true;
}

static nrd_opt_fault_kind read_int(const nrd_opt *row, const char *text, long long *out)
{
    const bool is_int = row->form == NRD_OPT_INT, bare = row->min == 0 && row->max == 0;
    const int64_t min = !bare ? row->min : is_int ? INT32_MIN : INT64_MIN;
    const int64_t max = !bare ? row->max : is_int ? INT32_MAX : INT64_MAX;

    if (!nrd_parse_i64(text, out)) {
        return NRD_OPT_VALUE_WRONG;
    }
    return *out < min || *out > max ? NRD_OPT_VALUE_RANGE : NRD_OPT_FINE;
}

static nrd_opt_fault_kind read_num(const nrd_opt *row, const char *text, double *out)
{
    double d;
    if (!nrd_parse_f64(text, &d)) {
        return NRD_OPT_VALUE_WRONG;
    }
    if (!(row->min == 0 && row->max == 0) && !(d >= (double)row->min && d <= (double)row->max)) {
        return NRD_OPT_VALUE_RANGE;
    }
    *out = d;
    return NRD_OPT_FINE;
}

static nrd_opt_fault_kind store(const nrd_opt *row, void *values, const char *text, nrd_error **err)
{
    void *field = (char *)values + row->offset;
    long long i = 0;
    nrd_opt_fault_kind kind = NRD_OPT_FINE;

    switch (row->form) {
    case NRD_OPT_FLAG:
        *(bool *)field = true;
        return NRD_OPT_FINE;
    case NRD_OPT_BOOL:
        return read_bool(text, false, field) ? NRD_OPT_FINE : NRD_OPT_VALUE_WRONG;
    case NRD_OPT_SWITCH:
        return read_bool(text ? text : "enable", true, field) ? NRD_OPT_FINE : NRD_OPT_VALUE_WRONG;
    case NRD_OPT_STR:
    case NRD_OPT_WORD:
        *(const char **)field = text ? text : "enable";
        return NRD_OPT_FINE;
    case NRD_OPT_OWNED:
        free(*(char **)field);
        *(char **)field = nrd_xstrdup(text);
        return NRD_OPT_FINE;
    case NRD_OPT_INT:
        kind = read_int(row, text, &i);
        *(int32_t *)field = kind == NRD_OPT_FINE ? (int32_t)i : *(int32_t *)field;
        return kind;
    case NRD_OPT_I64:
        kind = read_int(row, text, &i);
        *(int64_t *)field = kind == NRD_OPT_FINE ? (int64_t)i : *(int64_t *)field;
        return kind;
    case NRD_OPT_NUM:
        return read_num(row, text, field);
    case NRD_OPT_CUSTOM:
    case NRD_OPT_CALL:
        *err = row->parse(values, row->name, text);
        return *err ? NRD_OPT_FAILED : NRD_OPT_FINE;
    }
    return NRD_OPT_FINE;
}

/* ---- reading ---- */

/* "-5", "-.5" and "-" are words, "-tp" is an option. */
static bool looks_like_option(const char *s)
{
    return s[0] == '-' && s[1] && !isdigit((unsigned char)s[1]) && s[1] != '.';
}

static nrd_opt_fault_kind read_one(const nrd_opt_set *set, void *values, nrd_opt_fault *f)
{
    if (f->row->state == NRD_OPT_REFUSED) {
        return NRD_OPT_NOT_SUPPORTED;
    }
    if (f->row->state == NRD_OPT_NO_EFFECT) {
        if (set->ignored) {
            set->ignored(f->row);
        }
        return NRD_OPT_FINE;
    }
    if (!f->value && nrd_opt_needs_value(f->row)) {
        return NRD_OPT_VALUE_MISSING;
    }
    if (f->value && !nrd_opt_may_have_value(f->row)) {
        return NRD_OPT_VALUE_EXTRA;
    }
    return store(f->row, values, f->value, &f->error);
}

static nrd_opt_fault_kind find_row(const nrd_opt_set *set, nrd_opt_fault *f)
{
    bool ambiguous = false;
    f->row = nrd_opts_find(set->rows, set->n, f->word, f->n_word);
    if (!f->row && set->takes_prefixes) {
        f->row = find_prefix(set, f->word, f->n_word, &ambiguous);
    }
    if (f->row) {
        return NRD_OPT_FINE;
    }
    f->nearest = nrd_opts_nearest(set->rows, set->n, f->word, f->n_word);
    return ambiguous ? NRD_OPT_AMBIGUOUS : NRD_OPT_UNKNOWN;
}

/* The next word is the value where one must come, or where one may and it is no option. */
static const char *take_value(const nrd_opt *row, int argc, char *const *argv, int *i)
{
    const bool must = nrd_opt_needs_value(row);
    const bool may = nrd_opt_may_have_value(row) && *i + 1 < argc && !looks_like_option(argv[*i + 1]);
    return *i + 1 < argc && (must || may) ? argv[++*i] : NULL;
}

static nrd_opt_fault read_environment(const nrd_opt_set *set, void *values, const bool *given)
{
    nrd_opt_fault f = {NRD_OPT_FINE, NULL, NULL, 0, NULL, NULL, NULL};
    for (size_t i = 0; i < set->n && f.kind == NRD_OPT_FINE; i++) {
        const char *value = set->rows[i].env && !given[i] ? nrd_env(set->rows[i].env, NULL) : NULL;
        if (value) {
            f = (nrd_opt_fault){.row = &set->rows[i], .word = set->rows[i].env,
                                .n_word = strlen(set->rows[i].env), .value = value};
            f.kind = read_one(set, values, &f);
        }
    }
    return f;
}

nrd_opt_fault nrd_opts_read(const nrd_opt_set *set, void *values, int argc, char *const *argv,
                            const char **words, size_t *n_words)
{
    nrd_opt_fault f = {NRD_OPT_FINE, NULL, NULL, 0, NULL, NULL, NULL};
    bool *given = nrd_xcalloc(set->n ? set->n : 1, sizeof *given);
    size_t n = 0;

    for (int i = 1; i < argc && f.kind == NRD_OPT_FINE; i++) {
        const char *equals = strchr(argv[i], '=');
        f = (nrd_opt_fault){.word = argv[i], .n_word = strlen(argv[i])};
        if (!looks_like_option(argv[i])) {
            f.kind = n < set->max_words ? NRD_OPT_FINE : NRD_OPT_STRAY_WORD;
            if (f.kind == NRD_OPT_FINE) {
                words[n++] = argv[i];
            }
            continue;
        }
        f.n_word = equals ? (size_t)(equals - argv[i]) : f.n_word;
        f.kind = set->has_help && (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h"))
                     ? NRD_OPT_HELP
                     : find_row(set, &f);
        if (f.kind == NRD_OPT_FINE) {
            const size_t k = (size_t)(f.row - set->rows);
            f.value = equals ? equals + 1 : take_value(f.row, argc, argv, &i);
            f.kind = given[k] && f.row->once ? NRD_OPT_TWICE : read_one(set, values, &f);
            given[k] = true;
        }
    }
    if (f.kind == NRD_OPT_FINE) {
        f = read_environment(set, values, given);
    }
    if (n_words) {
        *n_words = n;
    }
    free(given);
    return f;
}
