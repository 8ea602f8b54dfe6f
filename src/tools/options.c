/* SPDX-License-Identifier: Apache-2.0
 * What the verbs of `nereid` share around the option tables of base/options.h: help, error messages
 * with a suggestion, the end of a verb with its exit code, sizes for people. Called first by each
 * verb. */
#include "tools/tools.h"

#include "base/dtype.h"
#include "base/file.h"
#include "base/json.h"
#include "base/str.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const nrd_tool_table *current; /* of the verb that runs */

/* As it is typed: `nereid bench serve` has a table of its own. */
static const char *typed(const nrd_tool_table *t)
{
    return strcmp(t->verb, "bench_serve") == 0 ? "bench serve" : t->verb;
}

static void put_name(nrd_str *out, const nrd_opt *o)
{
    nrd_str_puts(out, "--");
    for (const char *c = o->name; *c; c++) {
        nrd_str_putc(out, *c == '_' ? '-' : *c);
    }
}

static void say_ignored(const nrd_opt *o)
{
    fprintf(stderr, "nereid %s: --%s has no effect%s%s\n", typed(current), o->name, o->help ? ": " : "",
            o->help ? o->help : "");
}

static void print_help(const nrd_tool_table *t)
{
    int column = 0;
    bool any = false;

    printf("%s\nOptions (hyphens and underscores in names mean the same):\n", t->usage);
    for (size_t i = 0; i < t->n_rows; i++) {
        const nrd_opt *o = &t->rows[i];
        nrd_str left = {0};
        if (!o->help || o->state != NRD_OPT_USED) {
            continue;
        }
        put_name(&left, o);
        nrd_str_printf(&left, "%s%s%s%s", o->alias ? ", " : "", o->alias ? o->alias : "",
                       o->arg ? " " : "", o->arg ? o->arg : "");
        printf("  %-38s %s%s%s%s\n", nrd_str_cstr(&left), o->help, o->def ? " (" : "",
               o->def ? o->def : "", o->def ? ")" : "");
        nrd_str_fini(&left);
    }
    for (size_t i = 0; i < t->n_rows; i++) {
        if (t->rows[i].state == NRD_OPT_NO_EFFECT) {
            printf("%s", any ? "" : "\nAccepted without effect:\n ");
            if (column > 70) {
                printf("\n ");
                column = 0;
            }
            column += printf(" --%s", t->rows[i].name);
            any = true;
        }
    }
    printf(any ? "\n" : "");
}

/* help: where all options are told. */
static void put_fault(nrd_str *out, const nrd_opt_fault *f, const char *help)
{
    const int n = (int)f->n_word;
    switch (f->kind) {
    case NRD_OPT_STRAY_WORD:
        nrd_str_printf(out, "unexpected word '%s' (see %s)", f->word, help);
        break;
    case NRD_OPT_VALUE_MISSING:
        nrd_str_printf(out, "%.*s needs %s", n, f->word, nrd_opt_expected(f->row));
        break;
    case NRD_OPT_VALUE_EXTRA:
        nrd_str_printf(out, "%.*s takes no value", n, f->word);
        break;
    case NRD_OPT_VALUE_WRONG:
        nrd_str_printf(out, "%.*s: '%s' is not %s", n, f->word, f->value, nrd_opt_expected(f->row));
        break;
    case NRD_OPT_VALUE_RANGE:
        nrd_str_printf(out, "%.*s: %s is not between %lld and %lld", n, f->word, f->value,
                       (long long)(f->row->max ? f->row->min : INT32_MIN),
                       (long long)(f->row->max ? f->row->max : INT32_MAX));
        break;
    case NRD_OPT_TWICE:
        nrd_str_printf(out, "%.*s is given twice", n, f->word);
        break;
    case NRD_OPT_NOT_SUPPORTED:
        nrd_str_printf(out, "--%s is not supported: %s", f->row->name, f->row->help);
        break;
    case NRD_OPT_FAILED:
        nrd_str_printf(out, "%.*s: %s", n, f->word, nrd_error_message(f->error));
        break;
    default:
        nrd_str_printf(out, "unknown option %.*s", n, f->word);
        if (f->nearest) {
            nrd_str_puts(out, "; did you mean ");
            put_name(out, f->nearest);
        }
        nrd_str_printf(out, " (see %s)", help);
        break;
    }
}

static nrd_opt_fault read_line(const nrd_tool_table *table, bool has_help, int argc, char **argv, void *values,
                               const char **words, size_t *out_n)
{
    const nrd_opt_set set = {.rows = table->rows, .n = table->n_rows, .max_words = table->max_words,
                             .has_help = has_help, .ignored = say_ignored};
    current = table;
    return nrd_opts_read(&set, values, argc, argv, words, out_n);
}

int nrd_tool_parse(const nrd_tool_table *table, int argc, char **argv, void *values, const char **words,
                   size_t *out_n)
{
    nrd_str text = {0};
    nrd_opt_fault f = read_line(table, true, argc, argv, values, words, out_n);
    if (f.kind == NRD_OPT_FINE) {
        return -1;
    }
    if (f.kind == NRD_OPT_HELP) {
        print_help(table);
        return 0;
    }
    put_fault(&text, &f, "--help");
    fprintf(stderr, "nereid %s: %s\n", typed(table), nrd_str_cstr(&text));
    nrd_str_fini(&text);
    nrd_error_free(f.error);
    return 2;
}

nrd_error *nrd_tool_read(const nrd_tool_table *table, int argc, char **argv, void *values, const char **words)
{
    nrd_str text = {0};
    char help[64];
    nrd_opt_fault f = read_line(table, false, argc, argv, values, words, NULL);
    if (f.kind == NRD_OPT_FINE) {
        return NULL;
    }
    snprintf(help, sizeof help, "nereid %s --help", typed(table));
    put_fault(&text, &f, help);
    nrd_error *err = nrd_errorf(NRD_ERR_INVALID_ARG, "%s", nrd_str_cstr(&text));
    nrd_str_fini(&text);
    nrd_error_free(f.error);
    return err;
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

nrd_error *nrd_tool_confirm(bool *out_yes, const char *question)
{
    char answer[16] = "";

    *out_yes = false;
    if (!isatty(STDIN_FILENO)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s? Nobody is at the terminal to answer: add --yes", question);
    }
    fprintf(stderr, "%s? [y/N] ", question);
    *out_yes = fgets(answer, sizeof answer, stdin) && (answer[0] == 'y' || answer[0] == 'Y');
    return NULL;
}

void nrd_tool_print_made(const char *dir, const char *architecture, uint64_t n_weights, uint64_t bytes, double seconds)
{
    nrd_str out = {0};

    nrd_str_puts(&out, "{\"output_dir\": ");
    nrd_json_put_cstr(&out, dir);
    nrd_str_puts(&out, ", \"architecture\": ");
    nrd_json_put_cstr(&out, architecture);
    nrd_str_printf(&out, ", \"weights\": %llu, \"bytes\": %llu, \"seconds\": ", (unsigned long long)n_weights, (unsigned long long)bytes);
    nrd_json_put_double(&out, seconds);
    printf("%s}\n", nrd_str_cstr(&out));
    nrd_str_fini(&out);
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

nrd_error *nrd_tool_parse_sharding(int32_t dim, bool *out_by_columns)
{
    *out_by_columns = dim == 1;
    return dim == 0 || dim == 1
               ? NULL
               : nrd_errorf(
                     NRD_ERR_INVALID_ARG,
                     "--embedding_sharding_dim is %d, expected 0 (by tokens) or 1 (by columns)",
                     dim);
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
                          "q4_0, q4_1, q5_0, q5_1, q8_0, q8_1, q2_k, q3_k, q4_k, q5_k, q6_k, iq4_nl, iq4_xs, mxfp4", word);
    }
    return NULL;
}

nrd_error *nrd_tool_parse_dtype(const char *option, const char *word, nrd_dtype *out)
{
    *out = NRD_DTYPE_NONE;
    if (!word || !strcmp(word, "auto") || !strcmp(word, "native") || nrd_dtype_parse(word, out)) {
        return NULL;
    }
    return nrd_errorf(NRD_ERR_INVALID_ARG, "--%s: '%s' is no known element type; known are auto, float32, float16, bfloat16, fp8, int8", option,
                      word);
}
