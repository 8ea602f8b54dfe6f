/* SPDX-License-Identifier: Apache-2.0
 * nereid options: what the tables of options hold, for people and programs. */
#include "base/json.h"
#include "tools/man.h"
#include "tools/programs.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

typedef struct options {
    bool markdown, json;
    const char *man;
} options;

static const char options_usage[] =
    "Usage: nereid options [--markdown | --json | --man DIR]\n"
    "Lists every option of the verbs and of tritonserver. docs/options.md is made with --markdown.\n";

#define OPT(...) NRD_OPT_ROW(options, __VA_ARGS__)
static const nrd_opt options_rows[] = {
    OPT(FLAG, "markdown", NULL, markdown, NULL, NULL, "tables for documentation"),
    OPT(FLAG, "json", NULL, json, NULL, NULL, "one JSON document"),
    OPT(STR, "man", NULL, man, "DIR", NULL, "writes the manual pages of all programs there"),
};
const nrd_tool_table nrd_options_table = NRD_TOOL_TABLE("options", options_usage, options_rows, 0);

static const char *state_name(const nrd_opt *o)
{
    return o->state == NRD_OPT_USED ? "used" : o->state == NRD_OPT_NO_EFFECT ? "no effect" : "refused";
}

/* ---- Markdown ---- */

static void put_cell(nrd_str *out, const char *text)
{
    for (const char *c = text ? text : ""; *c; c++) {
        nrd_str_puts(out, *c == '|' ? "\\" : "");
        nrd_str_puts(out, *c == '<' ? "&lt;" : "");
        if (*c != '<') {
            nrd_str_putc(out, *c);
        }
    }
}

static void put_markdown_row(nrd_str *out, const nrd_opt *o, bool server)
{
    const bool has_value = o->arg && o->arg[0];
    nrd_str_puts(out, "| `");
    nrd_tool_put_option(out, o);
    nrd_str_puts(out, has_value ? server ? " <" : " " : "");
    for (const char *c = has_value ? o->arg : ""; *c; c++) {
        nrd_str_printf(out, *c == '|' ? "\\%c" : "%c", *c); /* a bar ends a cell in code too */
    }
    nrd_str_puts(out, has_value && server ? ">`" : "`");
    for (const char *p = o->alias; p && *p; p += *p == ' ') {
        size_t n = strcspn(p, " ");
        nrd_str_printf(out, ", `%.*s`", (int)n, p);
        p += n;
    }
    nrd_str_puts(out, " | ");
    put_cell(out, o->def);
    nrd_str_puts(out, " | ");
    put_cell(out, o->help);
    nrd_str_puts(out, " |\n");
}

static void put_list(nrd_str *out, const nrd_tool_table *t, nrd_opt_state state, const char *heading)
{
    bool any = false;
    for (size_t i = 0; i < t->n_rows; i++) {
        const nrd_opt *o = &t->rows[i];
        if (o->state == state) {
            nrd_str_printf(out, "%s`", any ? ", " : heading);
            nrd_tool_put_option(out, o);
            nrd_str_putc(out, '`');
            if (o->help) {
                nrd_str_puts(out, " (");
                put_cell(out, o->help);
                nrd_str_putc(out, ')');
            }
            any = true;
        }
    }
    nrd_str_puts(out, any ? ".\n" : "");
}

static void put_markdown(nrd_str *out)
{
    nrd_tool_table t;
    const char *summary;
    nrd_str_puts(out, "# Options\n\nMade by `nereid options --markdown`; a test compares. In names, `-` and `_` "
                      "mean the same. `nereid help VERB` and `tritonserver --help` print the same tables.\n");
    for (size_t i = 0; nrd_tool_program_at(i, &t, &summary); i++) {
        const bool server = nrd_tool_is_server(&t);
        bool head = false;
        nrd_str_printf(out, "\n## `%s%s`\n\n%c%s.\n", server ? "" : "nereid ", t.verb,
                       toupper((unsigned char)summary[0]), summary + 1);
        for (size_t k = 0; k < t.n_rows; k++) {
            const nrd_opt *o = &t.rows[k];
            if (o->state == NRD_OPT_USED && o->help) {
                nrd_str_puts(out, head ? "" : "\n| option | default | |\n|---|---|---|\n");
                head = true;
                put_markdown_row(out, o, server);
            }
        }
        put_list(out, &t, NRD_OPT_NO_EFFECT, "\nAccepted without effect: ");
        put_list(out, &t, NRD_OPT_REFUSED, "\nRefused: ");
    }
}

/* ---- JSON ---- */

static void put_member(nrd_str *out, const char *name, const char *value)
{
    if (value && value[0]) {
        nrd_str_printf(out, ",\"%s\":", name);
        nrd_json_put_cstr(out, value);
    }
}

static void put_json_row(nrd_str *out, const nrd_opt *o)
{
    static const char *const types[] = {
        [NRD_OPT_FLAG] = "flag",     [NRD_OPT_BOOL] = "boolean",  [NRD_OPT_SWITCH] = "switch",
        [NRD_OPT_STR] = "string",    [NRD_OPT_WORD] = "string",   [NRD_OPT_OWNED] = "string",
        [NRD_OPT_INT] = "integer",   [NRD_OPT_I64] = "integer",   [NRD_OPT_NUM] = "number",
        [NRD_OPT_CUSTOM] = "string", [NRD_OPT_CALL] = "flag",
    };
    nrd_str_puts(out, "{\"name\":\"");
    nrd_tool_put_option(out, o);
    nrd_str_printf(out, "\",\"type\":\"%s\",\"state\":\"%s\"", types[o->form], state_name(o));
    put_member(out, "group", o->group);
    put_member(out, "aliases", o->alias);
    put_member(out, "value", o->arg);
    put_member(out, "default", o->def);
    put_member(out, "environment", o->env);
    put_member(out, "help", o->help);
    if (o->min != 0 || o->max != 0) {
        nrd_str_printf(out, ",\"min\":%lld,\"max\":%lld", (long long)o->min, (long long)o->max);
    }
    nrd_str_putc(out, '}');
}

static void put_json(nrd_str *out)
{
    nrd_tool_table t;
    const char *summary;
    nrd_str_putc(out, '{');
    for (size_t i = 0; nrd_tool_program_at(i, &t, &summary); i++) {
        nrd_str_printf(out, "%s\"%s\":[", i ? ",\n" : "", t.verb);
        for (size_t k = 0; k < t.n_rows; k++) {
            nrd_str_puts(out, k ? ",\n  " : "\n  ");
            put_json_row(out, &t.rows[k]);
        }
        nrd_str_putc(out, ']');
    }
    nrd_str_puts(out, "}\n");
}

/* ---- plain ---- */

static void put_plain(nrd_str *out)
{
    nrd_tool_table t;
    const char *summary;
    for (size_t i = 0; nrd_tool_program_at(i, &t, &summary); i++) {
        for (size_t k = 0; k < t.n_rows; k++) {
            nrd_str_printf(out, "%s ", t.verb);
            nrd_tool_put_option(out, &t.rows[k]);
            nrd_str_printf(out, "  %s%s%s\n", t.rows[k].state == NRD_OPT_USED ? "" : state_name(&t.rows[k]),
                           t.rows[k].state == NRD_OPT_USED || !t.rows[k].help ? "" : ": ",
                           t.rows[k].help ? t.rows[k].help : "");
        }
    }
}

int nrd_tool_options(int argc, char **argv)
{
    options o = {0};
    nrd_str out = {0};
    int status = nrd_tool_parse(&nrd_options_table, argc, argv, &o, NULL, NULL);

    if (status >= 0) {
        return status;
    }
    if (o.man) {
        return nrd_tool_finish("options", nrd_tool_write_man(o.man));
    }
    if (o.markdown) {
        put_markdown(&out);
    } else if (o.json) {
        put_json(&out);
    } else {
        put_plain(&out);
    }
    fwrite(out.data, 1, out.len, stdout);
    nrd_str_fini(&out);
    return fflush(stdout) ? 1 : 0;
}
