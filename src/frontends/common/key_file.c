/* SPDX-License-Identifier: Apache-2.0 */
#include "frontends/common/key_file.h"

#include "base/file.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_KEY_FILE = 1 << 20 };

static const char blanks[] = " \t";

/* A word behind a key; hyphens and underscores are alike. */
static bool read_word(nrd_key_line *line, const char *word, size_t n)
{
    static const char *const names[NRD_KEY_N_LIMITS] = {"rate-limit=", "token-limit=", "max-concurrent="};
    char copy[40];

    if (n >= sizeof copy) {
        return false;
    }
    memcpy(copy, word, n);
    copy[n] = '\0';
    for (char *c = copy; *c; c++) {
        *c = *c == '_' ? '-' : *c;
    }
    for (int i = 0; i < NRD_KEY_N_LIMITS; i++) {
        const size_t n_name = strlen(names[i]);
        if (strncmp(copy, names[i], n_name) == 0) {
            char *end = copy + n_name;
            errno = 0;
            line->limits[i] = *end >= '0' && *end <= '9' ? strtoll(end, &end, 10) : -1;
            return *end == '\0' && errno == 0 && line->limits[i] >= 0 && line->limits[i] <= INT_MAX;
        }
    }
    return false;
}

/* A line that has something before its end. */
static bool read_line(nrd_key_line *line, const char *text, const char *end)
{
    *line = (nrd_key_line){.key = text, .n = strcspn(text, blanks), .limits = {-1, -1, -1}};
    line->n = line->key + line->n > end ? (size_t)(end - text) : line->n;
    for (const char *word = text + line->n; word < end;) {
        const size_t n_blanks = strspn(word, blanks), n = strcspn(word + n_blanks, " \t\r\n");
        if (n > 0 && !read_word(line, word + n_blanks, n)) {
            return false;
        }
        word += n_blanks + n;
    }
    return true;
}

static nrd_error *read_lines(nrd_key_file *f, const char *path, size_t n)
{
    size_t number = 0, n_max = 1;

    for (size_t i = 0; i < n; i++) {
        if (f->text[i] == '\0') {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "--api-key-file '%s' is no text", path);
        }
        n_max += f->text[i] == '\n' || f->text[i] == '\r';
    }
    f->lines = calloc(n_max, sizeof *f->lines);
    if (!f->lines) {
        return nrd_error_no_memory();
    }
    for (const char *at = f->text; at < f->text + n; number++) {
        const char *text = at + strspn(at, blanks), *end = at + strcspn(at, "\r\n");
        at = end + 1 + (end[0] == '\r' && end[1] == '\n');
        if (text >= end || *text == '#') {
            continue;
        }
        if (!read_line(&f->lines[f->n_lines], text, end)) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "--api-key-file '%s', line %zu: behind the key, expected rate-limit=N, token-limit=N "
                              "or max-concurrent=N, N from 0 to %d", path, number + 1, INT_MAX);
        }
        f->n_lines++;
    }
    return f->n_lines > 0 ? NULL : nrd_errorf(NRD_ERR_INVALID_ARG, "--api-key-file '%s' holds no key", path);
}

nrd_error *nrd_key_file_read(nrd_key_file *out, const char *path)
{
    size_t n = 0;

    *out = (nrd_key_file){0};
    nrd_error *err = nrd_error_wrap(nrd_file_read(&out->text, &n, path, MAX_KEY_FILE), "--api-key-file");
    err = err ? err : read_lines(out, path, n);
    if (err) {
        nrd_key_file_fini(out);
    }
    return err;
}

void nrd_key_file_fini(nrd_key_file *f)
{
    free(f->text);
    free(f->lines);
    *f = (nrd_key_file){0};
}
