/* SPDX-License-Identifier: Apache-2.0
 * Forms with files: the first line is the Content-Type, the rest the body. What is read does not depend on how it is cut;
 * names have no control characters; begin, data and end come in order; the data is no longer than the body. */
#include "base/str.h"
#include "frontends/openai/multipart.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

typedef struct told {
    nrd_str text;
    size_t n_data;
    bool open;
} told;

static void check_name(const char *s)
{
    if (strlen(s) >= NRD_MULTIPART_NAME) {
        abort();
    }
    for (; *s; s++) {
        if ((unsigned char)*s < ' ' || *s == 0x7f) {
            abort();
        }
    }
}

static nrd_error *on_begin(void *arg, const char *name, const char *filename)
{
    told *t = arg;
    if (t->open) {
        abort();
    }
    t->open = true;
    check_name(name);
    check_name(filename ? filename : "");
    nrd_str_printf(&t->text, "%s\n%s\n", name, filename ? filename : "\1");
    return NULL;
}

static nrd_error *on_data(void *arg, const char *data, size_t n)
{
    told *t = arg;
    if (!t->open || n == 0) {
        abort();
    }
    t->n_data += n;
    nrd_str_append(&t->text, data, n);
    return NULL;
}

static nrd_error *on_end(void *arg)
{
    told *t = arg;
    if (!t->open) {
        abort();
    }
    t->open = false;
    nrd_str_putc(&t->text, '\n');
    return NULL;
}

static nrd_error *read_all(const char *type, size_t n_type, const char *body, size_t n, size_t piece, told *t)
{
    const nrd_multipart_reader reader = {on_begin, on_data, on_end, t};
    nrd_multipart m;

    NRD_TRY(nrd_multipart_init(&m, type, n_type, &reader));
    for (size_t at = 0; at < n; at += piece) {
        NRD_TRY(nrd_multipart_feed(&m, body + at, n - at < piece ? n - at : piece));
    }
    return nrd_multipart_end(&m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const char *type = (const char *)data, *eol = n ? memchr(data, '\n', n) : NULL;
    const size_t n_type = eol ? (size_t)(eol - type) : n, n_body = eol ? n - n_type - 1 : 0;
    const size_t pieces[] = {n_body + 1, 1, 3, 17};
    told first = {.n_data = 0};
    bool ok = false;

    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        told t = {.n_data = 0};
        nrd_error *err = read_all(type, n_type, eol ? eol + 1 : "", n_body, pieces[i], i ? &t : &first);
        if (i == 0) {
            ok = !err;
        } else if (ok != !err || first.n_data != t.n_data || first.text.len != t.text.len ||
                   (t.text.len > 0 && memcmp(first.text.data, t.text.data, t.text.len) != 0)) {
            abort();
        }
        if (first.n_data > n_body || (!err && (i ? t : first).open)) {
            abort();
        }
        nrd_error_free(err);
        nrd_str_fini(&t.text);
    }
    nrd_str_fini(&first.text);
    return 0;
}
