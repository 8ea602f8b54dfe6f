#include "tools/tools.h"

#include "base/dtype.h"
#include "base/str.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* Equal up to '-' and '_', over the n bytes of `a`. */
static bool same_name(const char *a, size_t n, const char *b)
{
    if (!b || strlen(b) != n) {
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        char x = a[i] == '_' ? '-' : a[i], y = b[i] == '_' ? '-' : b[i];
        if (x != y) {
            return false;
        }
    }
    return true;
}

static const nrd_opt *find(const nrd_opt *opts, size_t n, const char *name, size_t len)
{
    for (size_t i = 0; i < n; i++) {
        if (same_name(name, len, opts[i].name) || same_name(name, len, opts[i].alias)) {
            return &opts[i];
        }
    }
    return NULL;
}

/* "-5" and "-0.5" are values, "-tp" is an option. */
static bool is_option(const char *s)
{
    return s[0] == '-' && s[1] && !isdigit((unsigned char)s[1]) && s[1] != '.';
}

static bool parse_switch(const char *text, bool *out)
{
    static const char *const on[] = {"enable", "true", "yes", "on", "1", "auto", NULL};
    static const char *const off[] = {"disable", "false", "no", "off", "0", NULL};
    for (int i = 0; on[i]; i++) {
        if (!strcasecmp(text, on[i])) {
            *out = true;
            return true;
        }
    }
    for (int i = 0; off[i]; i++) {
        if (!strcasecmp(text, off[i])) {
            *out = false;
            return true;
        }
    }
    return false;
}

static bool store(const nrd_opt *o, const char *text)
{
    long long i;

    switch (o->kind) {
    case NRD_OPT_STR:
    case NRD_OPT_WORD:
        *(const char **)o->value = text ? text : "enable";
        return true;
    case NRD_OPT_INT:
        if (!nrd_parse_i64(text, &i) || i < INT32_MIN || i > INT32_MAX) {
            return false;
        }
        *(int32_t *)o->value = (int32_t)i;
        return true;
    case NRD_OPT_NUM:
        return nrd_parse_f64(text, o->value);
    case NRD_OPT_FLAG:
        *(bool *)o->value = true;
        return true;
    case NRD_OPT_SWITCH:
        return parse_switch(text ? text : "enable", o->value);
    case NRD_OPT_IGNORED:
    case NRD_OPT_REFUSED:
        break;
    }
    return true;
}

static const char *expected(nrd_opt_kind kind)
{
    return kind == NRD_OPT_INT      ? "a whole number"
           : kind == NRD_OPT_NUM    ? "a number"
           : kind == NRD_OPT_SWITCH ? "enable or disable"
                                    : "a value";
}

static void print_help(const char *usage, const nrd_opt *opts, size_t n)
{
    printf("%s\nOptions (hyphens and underscores in names mean the same):\n", usage);
    for (size_t i = 0; i < n; i++) {
        char left[96];
        const nrd_opt *o = &opts[i];
        if (!o->help || o->kind == NRD_OPT_IGNORED || o->kind == NRD_OPT_REFUSED) {
            continue;
        }
        snprintf(left, sizeof left, "%s%s%s%s%s", o->name, o->alias ? ", " : "",
                 o->alias ? o->alias : "", o->arg ? " " : "", o->arg ? o->arg : "");
        printf("  %-38s %s\n", left, o->help);
    }
    bool first = true;
    int column = 0;
    for (size_t i = 0; i < n; i++) {
        if (opts[i].kind != NRD_OPT_IGNORED) {
            continue;
        }
        if (first) {
            printf("\nAccepted without effect:\n ");
            first = false;
        }
        if (column > 70) {
            printf("\n ");
            column = 0;
        }
        column += printf(" %s", opts[i].name);
    }
    printf(first ? "" : "\n");
}

int nrd_opts_parse(int argc, char **argv, const char *usage, const nrd_opt *opts, size_t n_opts,
                   const char **positional, size_t max_positional, size_t *out_n)
{
    size_t n_pos = 0;

    for (int i = 1; i < argc; i++) {
        const char *a = argv[i], *equals = strchr(a, '='), *value = NULL;
        if (!strcmp(a, "--help") || !strcmp(a, "-h")) {
            print_help(usage, opts, n_opts);
            return 0;
        }
        if (!is_option(a)) {
            if (n_pos == max_positional) {
                fprintf(stderr, "nereid %s: unexpected word '%s' (see --help)\n", argv[0], a);
                return 2;
            }
            positional[n_pos++] = a;
            continue;
        }
        size_t len = equals ? (size_t)(equals - a) : strlen(a);
        const nrd_opt *o = find(opts, n_opts, a, len);
        if (!o) {
            fprintf(stderr, "nereid %s: unknown option %.*s (see --help)\n", argv[0], (int)len, a);
            return 2;
        }
        bool optional = o->kind == NRD_OPT_SWITCH || o->kind == NRD_OPT_WORD ||
                        o->kind == NRD_OPT_IGNORED || o->kind == NRD_OPT_REFUSED;
        if (equals) {
            value = equals + 1;
        } else if (o->kind != NRD_OPT_FLAG && i + 1 < argc &&
                   (!optional || !is_option(argv[i + 1]))) {
            value = argv[++i];
        }
        if (o->kind == NRD_OPT_REFUSED) {
            fprintf(stderr, "nereid %s: %s is not supported: %s\n", argv[0], o->name, o->help);
            return 2;
        }
        if (o->kind == NRD_OPT_IGNORED) {
            fprintf(stderr, "nereid %s: %s has no effect%s%s\n", argv[0], o->name,
                    o->help ? ": " : "", o->help ? o->help : "");
            continue;
        }
        if (!value && !optional && o->kind != NRD_OPT_FLAG) {
            fprintf(stderr, "nereid %s: %s needs %s\n", argv[0], o->name, expected(o->kind));
            return 2;
        }
        if (!store(o, value)) {
            fprintf(stderr, "nereid %s: %s: '%s' is not %s\n", argv[0], o->name, value,
                    expected(o->kind));
            return 2;
        }
    }
    if (out_n) {
        *out_n = n_pos;
    }
    return -1;
}

const char *nrd_human_bytes(uint64_t n, char out[32])
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB"};
    double v = (double)n;
    int u = 0;
    while (v >= 1000 && u < 4) {
        v /= 1000;
        u++;
    }
    snprintf(out, 32, u ? "%.1f %s" : "%.0f %s", v, units[u]);
    return out;
}

int nrd_tool_finish(const char *verb, nrd_error *err)
{
    if (!err) {
        return 0;
    }
    fprintf(stderr, "nereid %s: %s\n", verb, nrd_error_message(err));
    nrd_error_free(err);
    return 1;
}

nrd_error *nrd_tool_parse_quant(const char *word, nrd_dtype *out)
{
    static const struct {
        const char *name;
        nrd_dtype dtype;
    } words[] = {
        {"auto", NRD_DTYPE_NONE},   {"none", NRD_DTYPE_NONE},    {"full_prec", NRD_DTYPE_NONE},
        {"int8_wo", NRD_DTYPE_I8},  {"int4_wo", NRD_DTYPE_Q4_0}, {"int4", NRD_DTYPE_Q4_0},
    };

    *out = NRD_DTYPE_NONE;
    if (!word) {
        return NULL;
    }
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (!strcasecmp(word, words[i].name)) {
            *out = words[i].dtype;
            return NULL;
        }
    }
    bool known = nrd_dtype_parse(word, out);
    bool weights = nrd_dtype_is_quant(*out) || *out == NRD_DTYPE_I8 || *out == NRD_DTYPE_F8_E4M3 ||
                   *out == NRD_DTYPE_F32 || *out == NRD_DTYPE_F16 || *out == NRD_DTYPE_BF16;
    if (!known || !weights) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "quantization '%s' is not supported; known: int8, "
                          "int4, fp8, int8_wo, int4_wo, full_prec, float32, float16, bfloat16, "
                          "q4_0, q4_1, q5_0, q5_1, q8_0, q2_k, q3_k, q4_k, q5_k, q6_k", word);
    }
    return NULL;
}
