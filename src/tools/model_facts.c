/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/model_facts.h"

#include "base/dtype.h"
#include "base/file.h"
#include "model/source.h"
#include "model/spec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_README = 1 << 20 };

/* "license: X" between the two "---" at the beginning of README.md. */
static void read_licence(char out[64], const char *dir)
{
    char *path = nrd_path_join(dir, "README.md"), *text = NULL;
    size_t n = 0;

    nrd_error_free(nrd_file_read(&text, &n, path, MAX_README));
    char *end = text && !strncmp(text, "---\n", 4) ? strstr(text + 4, "\n---") : NULL;
    if (end) {
        *end = '\0';
        const char *line = strstr(text, "\nlicense:");
        line = line ? line + strlen("\nlicense:") : "";
        line += strspn(line, " \t\"'");
        snprintf(out, 64, "%.*s", (int)strcspn(line, "\r\n\"'"), line);
    }
    free(text);
    free(path);
}

static void keep_plain(char *text)
{
    for (char *c = text; *c; c++) {
        *c = *c >= 0x20 && *c < 0x7f ? *c : '?';
    }
}

void nrd_model_facts_read(nrd_model_facts *out, const char *path, const char *dir)
{
    uint64_t bytes[NRD_DTYPE_COUNT_] = {0};
    nrd_dtype most = NRD_DTYPE_NONE;
    nrd_source *s = NULL;
    nrd_error *err = nrd_source_open(&s, path);

    *out = (nrd_model_facts){.parameters = 0};
    for (int32_t r = 0; !err && r < nrd_source_n_ranks(s); r++) {
        for (size_t i = 0; i < nrd_source_n_tensors(s, r); i++) {
            const nrd_src_tensor *t = nrd_source_tensor_at(s, r, i);
            const nrd_dtype type = (unsigned)t->dtype < NRD_DTYPE_COUNT_ ? t->dtype : NRD_DTYPE_NONE;
            out->parameters += nrd_src_tensor_numbers(t);
            bytes[type] += t->data_bytes;
            most = bytes[type] > bytes[most] ? type : most;
        }
    }
    if (!err) {
        snprintf(out->type, sizeof out->type, "%s", most == NRD_DTYPE_NONE ? "" : nrd_dtype_name(most));
        snprintf(out->family, sizeof out->family, "%s", nrd_source_spec(s)->architecture);
        nrd_source_licence(s, out->licence, sizeof out->licence);
    }
    if (!out->licence[0] && dir) {
        read_licence(out->licence, dir);
    }
    keep_plain(out->licence);
    keep_plain(out->family);
    nrd_error_free(err);
    nrd_source_close(s);
}

const char *nrd_human_count(uint64_t n, char out[32])
{
    static const char units[] = " KMBT";
    double v = (double)n;
    size_t u = 0;
    while (v >= 999.5 && u + 2 < sizeof units) {
        v /= 1000;
        u++;
    }
    snprintf(out, 32, u ? "%.3g %c" : "%.0f", v, units[u]);
    return n ? out : "-";
}

const char *nrd_human_time(time_t t, char out[40])
{
    struct tm when;
    out[0] = '\0';
    if (localtime_r(&t, &when)) {
        strftime(out, 40, "%Y-%m-%d %H:%M", &when);
    }
    return out;
}

void nrd_json_put_time(nrd_str *out, time_t t)
{
    char text[40] = "";
    struct tm when;
    if (gmtime_r(&t, &when)) {
        strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &when);
    }
    nrd_str_printf(out, "\"%s\"", text);
}
