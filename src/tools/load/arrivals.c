/* SPDX-License-Identifier: Apache-2.0
 * Times of requests: see arrivals.h. */
#include "tools/load/arrivals.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"

#include <string.h>

enum { MAX_LINES = 10000000, MAX_BYTES = 1 << 30 };

static nrd_error *read_line(nrd_arrival *out, const char *line, size_t n)
{
    nrd_json_doc *doc = NULL;
    NRD_TRY(nrd_json_parse(&doc, line, n, NULL));
    const nrd_json *root = nrd_json_root(doc), *ms = nrd_json_get(root, "timestamp");
    nrd_error *err = NULL;

    if (nrd_json_is_number(root)) {
        out->at_s = nrd_json_num(root, 0);
    } else if (nrd_json_is_number(ms)) {
        out->at_s = nrd_json_num(ms, 0) / 1e3;
        out->n_in = (int32_t)nrd_json_get_int(root, "input_length", 0);
        out->n_out = (int32_t)nrd_json_get_int(root, "output_length", 0);
    } else {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "expected seconds, or {\"timestamp\": milliseconds}");
    }
    if (!err && (!isfinite(out->at_s) || out->at_s < 0 || out->n_in < 0 || out->n_out < 0)) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "times and lengths must not be negative");
    }
    nrd_json_doc_free(doc);
    return err;
}

nrd_error *nrd_arrivals_read(nrd_arrivals *a, const char *path, double speed)
{
    char *text = NULL;
    size_t n = 0, line_no = 0, cap = 0;
    NRD_TRY(nrd_file_read(&text, &n, path, MAX_BYTES));
    nrd_error *err = NULL;
    double first = 0, last = 0;

    for (char *p = text; p < text + n && !err;) {
        char *end = memchr(p, '\n', (size_t)(text + n - p));
        end = end ? end : text + n;
        line_no++;
        if (strspn(p, " \t\r") < (size_t)(end - p)) {
            nrd_arrival row = {0};
            err = a->n_trace < MAX_LINES
                      ? read_line(&row, p, (size_t)(end - p))
                      : nrd_errorf(NRD_ERR_INVALID_ARG, "more than %d lines", MAX_LINES);
            first = a->n_trace == 0 ? row.at_s : first;
            if (!err && row.at_s < last) {
                err = nrd_errorf(NRD_ERR_INVALID_ARG, "%g s comes after %g s", row.at_s, last);
            }
            last = row.at_s;
            row.at_s = (row.at_s - first) / speed;
            if (!err) {
                if (a->n_trace == cap) {
                    cap = cap ? 2 * cap : 256;
                    a->trace = nrd_xrealloc(a->trace, cap * sizeof *a->trace);
                }
                a->trace[a->n_trace++] = row;
            }
        }
        p = end + 1;
    }
    free(text);
    if (err) {
        return nrd_error_wrap(err, "%s: line %zu", path, line_no);
    }
    return a->n_trace > 0 ? NULL : nrd_errorf(NRD_ERR_INVALID_ARG, "%s: no arrivals", path);
}

void nrd_arrivals_start(nrd_arrivals *a, uint64_t seed)
{
    a->random.state = seed;
    a->i_trace = 0;
    a->last_s = 0;
}

double nrd_arrivals_next(nrd_arrivals *a)
{
    if (a->trace) {
        return a->i_trace < a->n_trace ? a->trace[a->i_trace++].at_s : (double)INFINITY;
    }
    const double now = a->last_s;
    a->last_s += a->is_constant ? 1 / a->rate : -log(nrd_random_unit(&a->random)) / a->rate;
    return now;
}

void nrd_arrivals_fini(nrd_arrivals *a)
{
    free(a->trace);
    a->trace = NULL;
}
