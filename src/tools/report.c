/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/report.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "hub/cache.h"
#include "hub/pull.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TELL_NS 200000000u

/* Frees it. */
static void put_line(nrd_str *line)
{
    nrd_str_putc(line, '\n');
    fputs(nrd_str_cstr(line), stdout);
    fflush(stdout); /* the reader waits for it */
    nrd_str_fini(line);
}

void nrd_report_status(const char *text)
{
    nrd_str line = {0};
    nrd_str_puts(&line, "{\"status\":");
    nrd_json_put_cstr(&line, text);
    nrd_str_putc(&line, '}');
    put_line(&line);
}

void nrd_report_model(const nrd_several_model *m)
{
    nrd_str line = {0};
    nrd_several_put_made(&line, m);
    put_line(&line);
}

int nrd_report_end(nrd_error *err)
{
    nrd_str line = {0};
    const int status = err ? 1 : 0;
    if (err) {
        nrd_str_puts(&line, "{\"error\":");
        nrd_json_put_cstr(&line, nrd_error_message(err));
        nrd_str_printf(&line, ",\"code\":%d}", (int)nrd_error_get_code(err));
        put_line(&line);
    }
    nrd_error_free(err);
    return status;
}

/* ---- a model's files ---- */

typedef struct watching {
    uint64_t told_ns;
} watching;

/* Small files have no digest that clients know, and no bar. */
static void on_file(void *user, const nrd_hub_file *f, uint64_t done)
{
    watching *w = user;
    const uint64_t now = nrd_now_ns();
    const bool ends = done == 0 || done == f->size;
    nrd_str line = {0};

    if ((!f->is_lfs && done > 0) || (!ends && now - w->told_ns < TELL_NS)) {
        return;
    }
    w->told_ns = now;
    if (!f->is_lfs) {
        nrd_str_puts(&line, "{\"status\":\"pulling ");
        nrd_str text = {0};
        nrd_json_put_cstr(&text, f->path);
        nrd_str_append(&line, text.data + 1, text.len - 2); /* without the quotes */
        nrd_str_fini(&text);
        nrd_str_puts(&line, "\"}");
    } else {
        nrd_str_printf(&line, "{\"status\":\"pulling %.12s\",\"digest\":\"sha256:%s\",\"total\":%llu,\"completed\":%llu}", f->hash,
                       f->hash, (unsigned long long)f->size, (unsigned long long)done);
    }
    put_line(&line);
}

static nrd_error *pull(const nrd_hub_settings *s, const char *text, char **out_path, bool *out_fetched)
{
    watching w = {.told_ns = 0};
    const nrd_hub_watch watch = {.file = on_file, .user = &w};
    nrd_hub_id id;

    NRD_TRY(nrd_hub_id_parse(&id, text, s->endpoint));
    char *cached = nrd_hub_cached(s, &id);
    *out_fetched = !cached;
    if (cached && s->is_offline) {
        *out_path = cached;
        return NULL;
    }
    free(cached);
    nrd_report_status("pulling manifest");
    return nrd_hub_pull(s, &id, true, &watch, out_path);
}

nrd_error *nrd_report_resolve(const char *text, char **out_path, bool *out_fetched)
{
    nrd_hub_settings s = {0};

    *out_fetched = false;
    if (nrd_path_exists(text) || !nrd_hub_id_is(text)) {
        return nrd_hub_resolve(text, out_path);
    }
    *out_path = NULL;
    nrd_error *err = nrd_hub_settings_read(&s);
    err = err ? err : pull(&s, text, out_path, out_fetched);
    nrd_hub_settings_fini(&s);
    return err;
}
