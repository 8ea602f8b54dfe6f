/* SPDX-License-Identifier: Apache-2.0
 * nereid options, nereid completion: what the tables of options hold, for people and programs. */
#include "tools/describe.h"

#include "base/json.h"
#include "frontends/options_table.h"

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

static const char completion_usage[] =
    "Usage: nereid completion bash|zsh|fish\n"
    "Prints what makes the shell complete verbs and options of nereid and tritonserver, for example\n"
    "  nereid completion bash > ~/.local/share/bash-completion/completions/nereid\n"
    "  nereid completion fish > ~/.config/fish/completions/nereid.fish\n"
    "  nereid completion zsh > \"${fpath[1]}/_nereid\"\n";
const nrd_tool_table nrd_completion_table = {
    .verb = "completion", .usage = completion_usage, .rows = NULL, .n_rows = 0, .max_words = 1};

/* ---- programs: the verbs, then the server ---- */

static nrd_tool_table server_table(void)
{
    return (nrd_tool_table){.verb = "tritonserver", .rows = nrd_option_rows, .n_rows = nrd_option_n_rows};
}

bool nrd_tool_program_at(size_t i, nrd_tool_table *out, const char **out_summary)
{
    const nrd_tool_table *table = NULL;
    const char *before = NULL;
    if (nrd_tool_verb(i, out_summary, &table)) {
        *out = *table;
        return true;
    }
    *out = server_table();
    *out_summary = "the server: the options of Triton Inference Server 2.51, and ours";
    return i == 0 || nrd_tool_verb(i - 1, &before, &table) != NULL;
}

bool nrd_tool_is_server(const nrd_tool_table *t)
{
    return t->rows == nrd_option_rows;
}

static const char *state_name(const nrd_opt *o)
{
    return o->state == NRD_OPT_USED ? "used" : o->state == NRD_OPT_NO_EFFECT ? "no effect" : "refused";
}

void nrd_tool_put_option(nrd_str *out, const nrd_opt *o)
{
    nrd_str_puts(out, "--");
    for (const char *c = o->name; *c; c++) {
        nrd_str_putc(out, *c == '_' ? '-' : *c);
    }
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

/* ---- completion ---- */

static void put_words(nrd_str *out, const nrd_tool_table *t)
{
    bool first = true;
    for (size_t k = 0; k < t->n_rows; k++) {
        if (t->rows[k].state == NRD_OPT_USED && t->rows[k].help) {
            nrd_str_puts(out, first ? "" : " ");
            nrd_tool_put_option(out, &t->rows[k]);
            first = false;
        }
    }
}

/* For zsh too, whose bashcompinit reads it. */
static void put_bash(nrd_str *out)
{
    nrd_tool_table t;
    const char *summary;
    nrd_str_puts(out, "_nereid() {\n  local cur=${COMP_WORDS[COMP_CWORD]} words=\n  COMPREPLY=()\n"
                      "  case ${COMP_WORDS[0]##*/} in\n  tritonserver) set -- tritonserver ;;\n"
                      "  *) set -- \"${COMP_WORDS[1]}\" ;;\n  esac\n"
                      "  if [ \"$1\" != tritonserver ] && [ \"$COMP_CWORD\" -eq 1 ]; then\n    words='help version");
    for (size_t i = 0; nrd_tool_program_at(i, &t, &summary); i++) {
        nrd_str_printf(out, nrd_tool_is_server(&t) ? "" : " %s", t.verb);
    }
    nrd_str_puts(out, "'\n  else\n    case $1 in\n");
    for (size_t i = 0; nrd_tool_program_at(i, &t, &summary); i++) {
        nrd_str_printf(out, "    %s) words='", t.verb);
        put_words(out, &t);
        if (!strcmp(t.verb, "serve")) {
            const nrd_tool_table server = server_table();
            nrd_str_putc(out, ' ');
            put_words(out, &server);
        }
        nrd_str_puts(out, "' ;;\n");
    }
    nrd_str_puts(out, "    esac\n    case $cur in -*) ;; *) words= ;; esac\n  fi\n"
                      "  COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
                      "}\ncomplete -o default -F _nereid nereid tritonserver\n");
}

static void put_zsh(nrd_str *out)
{
    nrd_str_puts(out, "#compdef nereid tritonserver\nautoload -Uz bashcompinit && bashcompinit\n");
    put_bash(out);
}

/* 'text' with its quotes escaped, for fish. */
static void put_quoted(nrd_str *out, const char *text)
{
    nrd_str_putc(out, '\'');
    for (const char *c = text; *c; c++) {
        nrd_str_puts(out, *c == '\'' || *c == '\\' ? "\\" : "");
        nrd_str_putc(out, *c);
    }
    nrd_str_putc(out, '\'');
}

static void put_fish(nrd_str *out)
{
    nrd_tool_table t;
    const char *summary;
    for (size_t i = 0; nrd_tool_program_at(i, &t, &summary); i++) {
        const bool server = nrd_tool_is_server(&t);
        if (!server) {
            nrd_str_printf(out, "complete -c nereid -n __fish_use_subcommand -a %s -d ", t.verb);
            put_quoted(out, summary);
            nrd_str_putc(out, '\n');
        }
        for (size_t k = 0; k < t.n_rows; k++) {
            const nrd_opt *o = &t.rows[k];
            nrd_str name = {0};
            if (o->state != NRD_OPT_USED || !o->help) {
                continue;
            }
            nrd_tool_put_option(&name, o);
            if (server) {
                nrd_str_puts(out, "complete -c tritonserver");
            } else {
                nrd_str_printf(out, "complete -c nereid -n '__fish_seen_subcommand_from %s'", t.verb);
            }
            nrd_str_printf(out, " -l %s%s -d ", nrd_str_cstr(&name) + 2, nrd_opt_needs_value(o) ? " -r" : "");
            put_quoted(out, o->help);
            nrd_str_putc(out, '\n');
            nrd_str_fini(&name);
        }
    }
}

int nrd_tool_completion(int argc, char **argv)
{
    static const struct {
        const char *shell;
        void (*put)(nrd_str *out);
    } shells[] = {{"bash", put_bash}, {"zsh", put_zsh}, {"fish", put_fish}};
    const char *shell = "";
    nrd_str out = {0};
    int status = nrd_tool_parse(&nrd_completion_table, argc, argv, NULL, &shell, NULL);

    if (status >= 0) {
        return status;
    }
    for (size_t i = 0; i < sizeof shells / sizeof *shells; i++) {
        if (!strcmp(shell, shells[i].shell)) {
            shells[i].put(&out);
            fwrite(out.data, 1, out.len, stdout);
            nrd_str_fini(&out);
            return fflush(stdout) ? 1 : 0;
        }
    }
    fprintf(stderr, "nereid completion: bash, zsh or fish is needed, got '%s'\n", shell);
    return 2;
}
