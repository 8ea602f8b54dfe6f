/* SPDX-License-Identifier: Apache-2.0
 * The tables of options of all programs: of the verbs, then of the server. */
#include "tools/programs.h"

#include "frontends/options_table.h"

static const nrd_tool_verb *verbs; /* set once, by main() */
static size_t n_verbs;

void nrd_tool_verbs_are(const nrd_tool_verb *all, size_t n)
{
    verbs = all;
    n_verbs = n;
}

static nrd_tool_table server_table(void)
{
    return (nrd_tool_table){.verb = "tritonserver", .rows = nrd_option_rows, .n_rows = nrd_option_n_rows};
}

bool nrd_tool_program_at(size_t i, nrd_tool_table *out, const char **out_summary)
{
    if (i < n_verbs) {
        *out = *verbs[i].options;
        *out_summary = verbs[i].summary;
        return true;
    }
    *out = server_table();
    *out_summary = "the server: the options of Triton Inference Server 2.51, and ours";
    return i == n_verbs;
}

bool nrd_tool_is_server(const nrd_tool_table *t)
{
    return t->rows == nrd_option_rows;
}

void nrd_tool_put_option(nrd_str *out, const nrd_opt *o)
{
    nrd_str_puts(out, "--");
    for (const char *c = o->name; *c; c++) {
        nrd_str_putc(out, *c == '_' ? '-' : *c);
    }
}
