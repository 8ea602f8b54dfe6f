/* SPDX-License-Identifier: Apache-2.0
 * Manual pages from the tables of options: nereid(1), nereid-VERB(1), tritonserver(1); see man-pages(7). */
#include "tools/man.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "tools/programs.h"

#include <string.h>

/* Text as it is: what troff takes for a command gets a zero-width character before it, letters past ASCII
 * get their number. */
static void put_text(nrd_str *out, const char *text)
{
    const char *end = text ? text + strlen(text) : NULL;
    bool begin = true;
    for (const char *c = text; c < end;) {
        uint32_t cp = 0;
        c += nrd_utf8_next(c, (size_t)(end - c), &cp);
        nrd_str_puts(out, begin && (cp == '.' || cp == '\'') ? "\\&" : "");
        if (cp == '\\' || cp == '-') {
            nrd_str_puts(out, cp == '-' ? "\\-" : "\\e");
        } else if (cp < 0x80) {
            nrd_str_putc(out, (char)cp);
        } else {
            nrd_str_printf(out, "\\[u%04X]", (unsigned)cp);
        }
        begin = cp == '\n';
    }
}

static void put_head(nrd_str *out, const char *page, const char *summary)
{
    nrd_str_printf(out, ".TH \"%s\" 1 \"\" \"Nereid %s\" \"Nereid\"\n.SH NAME\n", page, NRD_VERSION);
    put_text(out, page);
    nrd_str_puts(out, " \\- ");
    put_text(out, summary);
    nrd_str_putc(out, '\n');
}

static void put_rows(nrd_str *out, const nrd_tool_table *t)
{
    bool any = false;
    for (size_t i = 0; i < t->n_rows; i++) {
        const nrd_opt *o = &t->rows[i];
        nrd_str name = {0};
        if (o->state != NRD_OPT_USED || !o->help) {
            continue;
        }
        nrd_str_puts(out, any ? "" : ".SH OPTIONS\nHyphens and underscores in names mean the same.\n");
        any = true;
        nrd_tool_put_option(&name, o);
        nrd_str_puts(out, ".TP\n.B ");
        put_text(out, nrd_str_cstr(&name));
        if (o->alias) {
            nrd_str_puts(out, ", ");
            put_text(out, o->alias);
        }
        if (o->arg && o->arg[0]) {
            nrd_str_puts(out, " \\fI");
            put_text(out, o->arg);
            nrd_str_puts(out, "\\fR");
        }
        nrd_str_putc(out, '\n');
        put_text(out, o->help);
        if (o->def) {
            nrd_str_puts(out, " (default: ");
            put_text(out, o->def);
            nrd_str_putc(out, ')');
        }
        nrd_str_putc(out, '\n');
        nrd_str_fini(&name);
    }
}

static nrd_error *write_page(const char *dir, const char *page, const nrd_str *text)
{
    char *file = nrd_xasprintf("%s/%s.1", dir, page);
    nrd_error *err = nrd_file_write(file, text->data, text->len);
    free(file);
    return err;
}

static nrd_error *write_program(const char *dir, const nrd_tool_table *t, const char *summary, bool server)
{
    char *page = server ? nrd_xstrdup(t->verb) : nrd_xasprintf("nereid-%s", t->verb);
    nrd_str out = {0};

    put_head(&out, page, summary);
    nrd_str_puts(&out, ".SH SYNOPSIS\n");
    if (server) {
        nrd_str_puts(&out, ".B tritonserver\n\\-\\-model\\-repository=\\fIDIR\\fR [options]\n");
    } else {
        nrd_str_puts(&out, ".nf\n");
        put_text(&out, t->usage);
        nrd_str_puts(&out, ".fi\n");
    }
    put_rows(&out, t);
    nrd_str_puts(&out, ".SH SEE ALSO\n.BR nereid (1)\n");
    nrd_error *err = write_page(dir, page, &out);
    nrd_str_fini(&out);
    free(page);
    return err;
}

nrd_error *nrd_tool_write_man(const char *dir)
{
    nrd_tool_table t;
    const char *summary;
    nrd_str index = {0};
    nrd_error *err = nrd_mkdirs(dir);

    put_head(&index, "nereid", "language models: convert, build, run, serve, measure");
    nrd_str_puts(&index, ".SH SYNOPSIS\n.B nereid\n\\fIVERB\\fR [arguments]\n.SH VERBS\n");
    for (size_t i = 0; !err && nrd_tool_program_at(i, &t, &summary); i++) {
        const bool server = nrd_tool_is_server(&t);
        if (!server) {
            nrd_str_printf(&index, ".TP\n.BR nereid\\-%s (1)\n", t.verb);
            put_text(&index, summary);
            nrd_str_putc(&index, '\n');
        }
        err = write_program(dir, &t, summary, server);
    }
    nrd_str_puts(&index, ".SH ENVIRONMENT\n.TP\n.B NEREID_CACHE\nwhere models and engines are kept "
                         "(default: ~/.cache/nereid)\n.TP\n.B NEREID_CACHE_MAX_SIZE\nwhat its engines may take together: 50GB, "
                         "10%, 0 for no limit (default: 25% of the disk); without 0 older ones also go where the disk is nearly full\n.SH SEE ALSO\n.BR tritonserver (1)\n");
    if (!err) {
        err = write_page(dir, "nereid", &index);
    }
    nrd_str_fini(&index);
    return err;
}
