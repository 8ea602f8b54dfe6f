/* SPDX-License-Identifier: Apache-2.0
 * nereid completion: scripts for the shells, made from the tables of options. Each completes nereid's verbs, the options of a
 * verb, those of tritonserver, trtllm-build, trtllm-serve and trtllm-bench, and the latter's commands; what is no option is left to the
 * shell, which completes files.
 *
 * Sources: bash(1), "Programmable Completion"; zshcompsys(1); fish's complete(1). */
#include "tools/programs.h"

#include <stdio.h>
#include <string.h>

#define PROGRAMS "nereid tritonserver trtllm-build trtllm-serve trtllm-bench"

static const char completion_usage[] =
    "Usage: nereid completion bash|zsh|fish\n"
    "Prints what makes the shell complete verbs and options of nereid, tritonserver,\n"
    "trtllm-build, trtllm-serve and trtllm-bench, for example\n"
    "  source <(nereid completion bash)     # also zsh, behind compinit\n"
    "  nereid completion fish | source\n"
    "  nereid completion bash > ~/.local/share/bash-completion/completions/nereid\n"
    "  nereid completion fish > ~/.config/fish/completions/nereid.fish\n"
    "  nereid completion zsh > \"${fpath[1]}/_nereid\"\n";
const nrd_tool_table nrd_completion_table = {
    .verb = "completion", .usage = completion_usage, .rows = NULL, .n_rows = 0, .max_words = 1};

/* Inside single quotes, which bash and zsh end for a quote of the text, and fish escapes. One line. */
static void put_text(nrd_str *out, const char *text, bool fish)
{
    for (const char *c = text; *c; c++) {
        if (*c == '\'') {
            nrd_str_puts(out, fish ? "\\'" : "'\\''");
        } else {
            nrd_str_puts(out, fish && *c == '\\' ? "\\" : "");
            nrd_str_putc(out, *c == '\n' ? ' ' : *c);
        }
    }
}

typedef void put_option(nrd_str *out, const char *verb, const nrd_opt *o);

static void each_row(nrd_str *out, const char *verb, const nrd_tool_table *t, put_option *put)
{
    for (size_t k = 0; k < t->n_rows; k++) {
        if (t->rows[k].state == NRD_OPT_USED && t->rows[k].help) {
            put(out, verb, &t->rows[k]);
        }
    }
}

/* The options of a program. nereid serve hands what it does not know to the server. */
static void each_option(nrd_str *out, const nrd_tool_table *t, put_option *put)
{
    nrd_tool_table other;
    const char *summary;
    each_row(out, t->verb, t, put);
    for (size_t i = 0; !strcmp(t->verb, "serve") && nrd_tool_program_at(i, &other, &summary); i++) {
        if (nrd_tool_is_server(&other)) {
            each_row(out, t->verb, &other, put);
        }
    }
}

/* ---- bash ---- */

static void put_bash_option(nrd_str *out, const char *verb, const nrd_opt *o)
{
    (void)verb;
    nrd_str_putc(out, ' ');
    nrd_tool_put_option(out, o);
}

static void put_bash(nrd_str *out)
{
    nrd_tool_table t;
    const char *summary;
    nrd_str_puts(
        out,
        "_nereid() {\n"
        "  local cur=${COMP_WORDS[COMP_CWORD]} verb words=\n"
        "  COMPREPLY=()\n"
        "  case ${COMP_WORDS[0]##*/} in\n"
        "  tritonserver) verb=tritonserver ;;\n"
        "  trtllm-build) verb=build ;;\n"
        "  trtllm-serve) verb=serve ;;\n"
        "  trtllm-bench) verb=trtllm_bench ;;\n"
        "  *) verb=${COMP_WORDS[1]//-/_}\n"
        "    [ \"$verb ${COMP_WORDS[2]}\" != 'bench serve' ] || verb=bench_serve\n"
        "    [ \"$COMP_CWORD\" -ne 1 ] && [ \"$verb $COMP_CWORD\" != 'help 2' ] || verb=verbs ;;\n"
        "  esac\n"
        "  case $verb in\n"
        "  verbs) words='help version");
    for (size_t i = 0; nrd_tool_program_at(i, &t, &summary) && !nrd_tool_is_server(&t); i++) {
        nrd_str_printf(out, " %s", t.verb);
    }
    nrd_str_puts(out, "' ;;\n");
    for (size_t i = 0; nrd_tool_program_at(i, &t, &summary); i++) {
        nrd_str_printf(out, "  %s) words='", t.verb);
        each_option(out, &t, put_bash_option);
        nrd_str_puts(out, "' ;;\n");
    }
    nrd_str_puts(out, "  trtllm_bench) words='");
    each_row(out, "trtllm_bench", &nrd_trtllm_bench_table, put_bash_option);
    nrd_str_puts(out, "'\n"
                      "    [[ $cur == -* || ${COMP_WORDS[COMP_CWORD-1]} == -* ]] || words='" NRD_TRTLLM_BENCH_COMMANDS "' verb=verbs ;;\n"
                      "  esac\n"
                      "  case $verb$cur in verbs* | \"$verb\"-*) COMPREPLY=($(compgen -W "
                      "\"$words\" -- \"$cur\")) ;; esac\n"
                      "}\n"
                      "complete -o default -F _nereid " PROGRAMS "\n");
}

/* ---- zsh ---- */

/* 'name:what it is', as _describe reads it. */
static void put_zsh_option(nrd_str *out, const char *verb, const nrd_opt *o)
{
    (void)verb;
    nrd_str_puts(out, " '");
    nrd_tool_put_option(out, o);
    nrd_str_putc(out, ':');
    put_text(out, o->help, false);
    nrd_str_putc(out, '\'');
}

/* As a file _nereid in $fpath it is run at the first completion, and has to complete at once. */
static void put_zsh(nrd_str *out)
{
    nrd_tool_table t;
    const char *summary;
    nrd_str_puts(
        out, "#compdef " PROGRAMS "\n"
             "_nereid() {\n"
             "  local verb\n"
             "  local -a rows\n"
             "  case ${words[1]:t} in\n"
             "  tritonserver) verb=tritonserver ;;\n"
             "  trtllm-build) verb=build ;;\n"
             "  trtllm-serve) verb=serve ;;\n"
             "  trtllm-bench) verb=trtllm_bench ;;\n"
             "  *) verb=${words[2]//-/_}\n"
             "    [[ \"$verb ${words[3]}\" != 'bench serve' ]] || verb=bench_serve\n"
             "    (( CURRENT != 2 )) && [[ \"$verb $CURRENT\" != 'help 3' ]] || verb=verbs ;;\n"
             "  esac\n"
             "  case $verb in\n"
             "  verbs) rows=('help:options of a verb' 'version:version and what this build has'");
    for (size_t i = 0; nrd_tool_program_at(i, &t, &summary) && !nrd_tool_is_server(&t); i++) {
        nrd_str_printf(out, " '%s:", t.verb);
        put_text(out, summary, false);
        nrd_str_putc(out, '\'');
    }
    nrd_str_puts(out, ") ;;\n");
    for (size_t i = 0; nrd_tool_program_at(i, &t, &summary); i++) {
        nrd_str_printf(out, "  %s) rows=(", t.verb);
        each_option(out, &t, put_zsh_option);
        nrd_str_puts(out, ") ;;\n");
    }
    nrd_str_puts(out, "  trtllm_bench) rows=(");
    each_row(out, "trtllm_bench", &nrd_trtllm_bench_table, put_zsh_option);
    nrd_str_puts(out, ")\n"
                      "    [[ $PREFIX == -* || ${words[CURRENT-1]} == -* ]] || { rows=(" NRD_TRTLLM_BENCH_COMMANDS "); verb=verbs } ;;\n"
                      "  esac\n"
                      "  case $verb$PREFIX in\n"
                      "  verbs*) _describe verb rows ;;\n"
                      "  \"$verb\"-*) _describe -o option rows ;;\n"
                      "  *) _files ;;\n"
                      "  esac\n"
                      "}\n"
                      "if [[ $funcstack[1] == _nereid ]]; then\n"
                      "  _nereid \"$@\"\n"
                      "else\n"
                      "  compdef _nereid " PROGRAMS "\n"
                      "fi\n");
}

/* ---- fish ---- */

static void put_fish_option(nrd_str *out, const char *verb, const nrd_opt *o)
{
    nrd_str name = {0};
    nrd_tool_put_option(&name, o);
    if (strcmp(verb, "tritonserver") && strcmp(verb, nrd_trtllm_bench_table.verb)) {
        nrd_str_printf(out, "complete -c nereid -n '__nereid_verb %s'", verb);
    } else {
        nrd_str_printf(out, "complete -c %s", verb);
    }
    nrd_str_printf(out, " -l %s%s -d '", nrd_str_cstr(&name) + 2,
                   nrd_opt_needs_value(o) ? " -r" : "");
    put_text(out, o->help, true);
    nrd_str_puts(out, "'\n");
    nrd_str_fini(&name);
}

static void put_fish(nrd_str *out)
{
    nrd_tool_table t;
    const char *summary;
    /* Whether the verb is the one asked for; with nothing: whether there is none yet. */
    nrd_str_puts(out, "function __nereid_verb\n"
                      "  set -l words (commandline -opc)\n"
                      "  set -l verb (string replace -a - _ -- $words[2])\n"
                      "  test \"$words[2..3]\" = 'bench serve'; and set verb bench_serve\n"
                      "  test \"$verb\" = \"$argv\"\n"
                      "end\n"
                      "complete -c trtllm-build -w 'nereid build'\n"
                      "complete -c trtllm-serve -w 'nereid serve'\n");
    for (int after_help = 0; after_help < 2; after_help++) {
        const char *when = after_help ? "'__nereid_verb help'" : "__nereid_verb";
        nrd_str_printf(
            out,
            "complete -c nereid -n %s -f -a help -d 'options of a verb'\n"
            "complete -c nereid -n %s -f -a version -d 'version and what this build has'\n",
            when, when);
        for (size_t i = 0; nrd_tool_program_at(i, &t, &summary) && !nrd_tool_is_server(&t); i++) {
            nrd_str_printf(out, "complete -c nereid -n %s -f -a %s -d '", when, t.verb);
            put_text(out, summary, true);
            nrd_str_puts(out, "'\n");
        }
    }
    for (size_t i = 0; nrd_tool_program_at(i, &t, &summary); i++) {
        each_option(out, &t, put_fish_option);
    }
    each_row(out, nrd_trtllm_bench_table.verb, &nrd_trtllm_bench_table, put_fish_option);
    nrd_str_puts(out, "complete -c trtllm-bench -a '" NRD_TRTLLM_BENCH_COMMANDS "' -d 'a command of it'\n");
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
