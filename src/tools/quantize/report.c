/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/quantize/report.h"

#include "base/file.h"
#include "base/json.h"
#include "base/str.h"

#include <stdlib.h>
#include <string.h>

void nrd_qreport_note(nrd_str *out, const nrd_qresult *r)
{
    nrd_str_puts(out, "{\"modules\": [");
    for (size_t i = 0; i < r->n; i++) {
        nrd_str_puts(out, i ? ", {\"name\": " : "{\"name\": ");
        nrd_json_put_cstr(out, r->modules[i].module->name);
        nrd_str_puts(out, ", \"error\": ");
        nrd_json_put_float(out, (float)r->modules[i].error);
        nrd_str_printf(out, ", \"bits\": %d%s}", r->modules[i].grid.bits, r->modules[i].keeps_inputs ? ", \"input_bits\": 16" : "");
    }
    nrd_str_putc(out, ']');
    for (int32_t i = 0; r->cache_scales && i < 2 * r->n_cache_heads; i++) {
        const int32_t head = i % r->n_cache_heads;
        nrd_str_puts(out, head > 0 ? ", " : i > 0 ? "], \"v_scale\": [" : ", \"k_scale\": [");
        nrd_json_put_float(out, r->cache_scales[i]);
    }
    nrd_str_puts(out, r->cache_scales ? "]" : "");
    nrd_str_putc(out, '}');
}

static void put_number(nrd_str *out, const char *key, double v)
{
    nrd_str_printf(out, ",\n  \"%s\": ", key);
    nrd_json_put_float(out, (float)v);
}

static void put_measured(nrd_str *out, const nrd_qmeasure *m)
{
    if (m) {
        put_number(out, "evaluation_tokens", (double)m->n);
        put_number(out, "perplexity_before", nrd_qmeasure_perplexity(m, false));
        put_number(out, "perplexity_after", nrd_qmeasure_perplexity(m, true));
        put_number(out, "kl_divergence", m->divergence / (double)m->n);
        put_number(out, "same_best_token", (double)m->n_same / (double)m->n);
    }
}

static double bits_of(const nrd_qreport *r, uint64_t bytes)
{
    return r->n_weights > 0 ? 8 * (double)bytes / (double)r->n_weights : 0;
}

static void put_kept(nrd_str *out, const nrd_qkept *kept, size_t n)
{
    nrd_str_puts(out, ",\n  \"kept\": [");
    for (size_t i = 0; i < n; i++) {
        nrd_str_puts(out, i ? ",\n    {\"name\": " : "\n    {\"name\": ");
        nrd_json_put_cstr(out, kept[i].name);
        nrd_str_printf(out, ", \"bits\": %d, \"reason\": ", kept[i].bits);
        nrd_json_put_cstr(out, kept[i].why);
        nrd_str_putc(out, '}');
    }
    nrd_str_puts(out, n ? "\n  ]" : "]");
}

static nrd_error *put_json(nrd_str *out, const nrd_qreport *r, const nrd_qfolder *f, int32_t n_layers)
{
    nrd_error *err = NULL;
    nrd_qkept *kept = NULL;
    size_t n_kept = 0;

    const char *note;

    NRD_TRY_GOTO(nrd_qfolder_kept(f, r->why_left, &kept, &n_kept), err, done);
    nrd_str_puts(out, "{\n  \"model\": ");
    nrd_json_put_cstr(out, r->model);
    nrd_str_printf(out, ",\n  \"qformat\": \"%s\",\n  \"settings\": %s,\n  \"bytes_before\": %llu,\n  \"bytes_after\": %llu",
                   r->qformat, r->settings, (unsigned long long)r->bytes_before, (unsigned long long)r->bytes_after);
    put_number(out, "bits_per_weight_before", bits_of(r, r->bytes_before));
    put_number(out, "bits_per_weight_after", bits_of(r, r->bytes_after));
    if (r->token_bytes_after > 0) {
        nrd_str_printf(out, ",\n  \"token_bytes_before\": %llu,\n  \"token_bytes_after\": %llu",
                       (unsigned long long)r->token_bytes_before, (unsigned long long)r->token_bytes_after);
        put_number(out, "expected_speedup", (double)r->token_bytes_before / (double)r->token_bytes_after);
    }
    put_number(out, "calibration_tokens", (double)r->calibration_tokens);
    put_number(out, "seconds", r->seconds);
    put_measured(out, r->measured);
    put_kept(out, kept, n_kept);
    nrd_str_puts(out, ",\n  \"layers\": [");
    for (int32_t i = 0; i <= n_layers; i++) { /* what belongs to none is last */
        const int32_t layer = i < n_layers ? i : -1;
        if (nrd_qfolder_has(f, layer, &note)) {
            nrd_str_printf(out, "%s\n    {\"layer\": %d, %s", i ? "," : "", layer, note + 1);
        }
    }
    nrd_str_puts(out, "\n  ]\n}\n");
done:
    free(kept);
    return err;
}

/* ---- the page ---- */

static const char style[] =
    "<style>body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:60em;padding:0 1em;color:#222}"
    "table{border-collapse:collapse}td,th{padding:.15em .8em;text-align:right;border-bottom:1px solid #ddd}"
    "td:first-child,th:first-child{text-align:left}.bar{display:inline-block;height:.8em;background:#4878a8}"
    "details{margin:1em 0}details td{text-align:left;overflow-wrap:anywhere}@media(prefers-color-scheme:dark){body{background:#181818;color:#ddd}td,th{border-color:#444}}</style>";

static void put_escaped(nrd_str *out, const char *s)
{
    for (; *s; s++) {
        const char *as = *s == '<' ? "&lt;" : *s == '>' ? "&gt;" : *s == '&' ? "&amp;" : *s == '"' ? "&quot;" : NULL;
        if (as) {
            nrd_str_puts(out, as);
        } else {
            nrd_str_putc(out, *s);
        }
    }
}

static void put_row(nrd_str *out, const char *what, const char *format, double before, double after)
{
    nrd_str_printf(out, "<tr><td>%s</td><td>", what);
    nrd_str_printf(out, format, before);
    nrd_str_puts(out, "</td><td>");
    nrd_str_printf(out, format, after);
    nrd_str_printf(out, "</td><td>%+.2f&nbsp;%%</td></tr>", before > 0 ? (after / before - 1) * 100 : 0.0);
}

static void put_modules(nrd_str *out, const nrd_json *modules, double most)
{
    for (size_t i = 0; i < nrd_json_len(modules); i++) {
        const nrd_json *m = nrd_json_at(modules, i);
        const double e = nrd_json_get_num(m, "error", 0);
        nrd_str_puts(out, "<tr><td>");
        put_escaped(out, nrd_json_get_str(m, "name", ""));
        nrd_str_printf(out, "</td><td>%lld</td><td>%.3g&nbsp;%%</td><td style=\"text-align:left\"><span class=\"bar\" "
                       "style=\"width:%.1fem\"></span></td></tr>\n", (long long)nrd_json_get_int(m, "bits", 0), 100 * e,
                       most > 0 ? 15 * e / most : 0.0);
    }
}

static void put_layers(nrd_str *out, const nrd_json *layers)
{
    double most = 0;
    for (size_t i = 0; i < nrd_json_len(layers); i++) {
        const nrd_json *modules = nrd_json_get(nrd_json_at(layers, i), "modules");
        for (size_t k = 0; k < nrd_json_len(modules); k++) {
            const double e = nrd_json_get_num(nrd_json_at(modules, k), "error", 0);
            most = e > most ? e : most;
        }
    }
    for (size_t i = 0; i < nrd_json_len(layers); i++) {
        put_modules(out, nrd_json_get(nrd_json_at(layers, i), "modules"), most);
    }
}

static void put_kept_rows(nrd_str *out, const nrd_json *kept)
{
    if (nrd_json_len(kept) == 0) {
        return;
    }
    nrd_str_puts(out, "<h2>What stays</h2><table><tr><th>module</th><th>bits</th><th>reason</th></tr>\n");
    for (size_t i = 0; i < nrd_json_len(kept); i++) {
        const nrd_json *one = nrd_json_at(kept, i);
        nrd_str_puts(out, "<tr><td>");
        put_escaped(out, nrd_json_get_str(one, "name", ""));
        nrd_str_printf(out, "</td><td>%lld</td><td style=\"text-align:left\">", (long long)nrd_json_get_int(one, "bits", 0));
        put_escaped(out, nrd_json_get_str(one, "reason", ""));
        nrd_str_puts(out, "</td></tr>\n");
    }
    nrd_str_puts(out, "</table>");
}

static void put_settings(nrd_str *out, const nrd_json *settings)
{
    nrd_str value = {0};
    nrd_str_puts(out, "<details><summary>Settings</summary><table>\n");
    for (size_t i = 0; i < nrd_json_len(settings); i++) {
        const nrd_json *v = &settings->child[i];
        nrd_str_clear(&value);
        nrd_json_put(&value, v, -1);
        nrd_str_puts(out, "<tr><td>");
        put_escaped(out, v->key);
        nrd_str_puts(out, "</td><td>");
        put_escaped(out, nrd_json_str(v, nrd_str_cstr(&value)));
        nrd_str_puts(out, "</td></tr>\n");
    }
    nrd_str_puts(out, "</table></details>");
    nrd_str_fini(&value);
}

static void put_page(nrd_str *out, const nrd_qreport *r, const nrd_json *all)
{
    const nrd_qmeasure *m = r->measured;
    nrd_str_puts(out, "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" "
                 "content=\"width=device-width\"><title>");
    put_escaped(out, r->qformat);
    nrd_str_puts(out, ", ");
    put_escaped(out, r->model);
    nrd_str_puts(out, "</title>");
    nrd_str_puts(out, style);
    nrd_str_puts(out, "<h1>");
    put_escaped(out, r->qformat);
    nrd_str_puts(out, "</h1><p>");
    put_escaped(out, r->model);
    nrd_str_printf(out, ", %.1f s", r->seconds);
    if (r->calibration_tokens) {
        nrd_str_printf(out, ", calibrated with %zu tokens", r->calibration_tokens);
    }
    nrd_str_puts(out, "</p><table><tr><th></th><th>before</th><th>after</th><th>change</th></tr>");
    put_row(out, "Megabytes", "%.1f", (double)r->bytes_before / 1e6, (double)r->bytes_after / 1e6);
    put_row(out, "Bits a weight, of all", "%.2f", bits_of(r, r->bytes_before), bits_of(r, r->bytes_after));
    if (r->token_bytes_after > 0) {
        put_row(out, "Megabytes of weights that a token reads", "%.1f", (double)r->token_bytes_before / 1e6,
                (double)r->token_bytes_after / 1e6);
    }
    if (m) {
        put_row(out, "Perplexity", "%.3f", nrd_qmeasure_perplexity(m, false), nrd_qmeasure_perplexity(m, true));
        nrd_str_printf(out, "</table><p>Over %zu tokens: divergence %.4f nats a token; the best token is the same at %.1f %% of "
                       "the positions.</p>", m->n, m->divergence / (double)m->n,
                       100 * (double)m->n_same / (double)m->n);
    } else {
        nrd_str_puts(out, "</table>");
    }
    if (r->token_bytes_after > 0) {
        nrd_str_printf(out, "<p>Expected: the answer of one request comes %.2f times as fast on a device that multiplies these types, "
                       "since reading weights is what takes the time.</p>",
                       (double)r->token_bytes_before / (double)r->token_bytes_after);
    }
    put_settings(out, nrd_json_get(all, "settings"));
    nrd_str_puts(out, "<h2>Errors</h2><p>What each module's results are off by, squared, over their size, squared");
    nrd_str_puts(out, r->calibration_tokens ? ", over the inputs of the calibration.</p>" : ", of its weights.</p>");
    nrd_str_puts(out, "<table><tr><th>module</th><th>bits</th><th>error</th><th></th></tr>\n");
    put_layers(out, nrd_json_get(all, "layers"));
    nrd_str_puts(out, "</table>");
    put_kept_rows(out, nrd_json_get(all, "kept"));
    nrd_str_puts(out, "</html>\n");
}

static nrd_error *write_file(const char *dir, const char *name, const nrd_str *text)
{
    NRD_TRY(nrd_str_error(text));
    char *path = nrd_path_join(dir, name);
    nrd_error *err = nrd_file_write(path, nrd_str_cstr(text), text->len);
    free(path);
    return err;
}

nrd_error *nrd_qreport_write(const nrd_qreport *r, const char *dir, const nrd_qfolder *f, int32_t n_layers)
{
    nrd_error *err = NULL;
    nrd_str json = {0}, page = {0};
    nrd_json_doc *doc = NULL;

    NRD_TRY_GOTO(put_json(&json, r, f, n_layers), err, done);
    NRD_TRY_GOTO(write_file(dir, NRD_QFOLDER_REPORT, &json), err, done);
    NRD_TRY_GOTO(nrd_json_parse(&doc, nrd_str_cstr(&json), json.len, NULL), err, done);
    put_page(&page, r, nrd_json_root(doc));
    err = write_file(dir, "report.html", &page);
done:
    nrd_json_doc_free(doc);
    nrd_str_fini(&json);
    nrd_str_fini(&page);
    return err;
}
