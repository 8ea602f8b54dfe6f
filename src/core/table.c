/* SPDX-License-Identifier: Apache-2.0 */
#include "core/table.h"

#include "base/error.h"
#include "base/str.h"

#include <string.h>
#include <unistd.h>

enum { MAX_COLUMNS = 8, CELL_WIDTH = 80 }; /* longer cells are wrapped on a terminal */

static void put_rule(nrd_str *out, const size_t *width, size_t n_cols)
{
    for (size_t c = 0; c < n_cols; c++) {
        nrd_str_putc(out, '+');
        for (size_t i = 0; i < width[c] + 2; i++) {
            nrd_str_putc(out, '-');
        }
    }
    nrd_str_puts(out, "+\n");
}

/* A file keeps whole cells on one line, so that programs can read the tables. */
static size_t line_len(const char *s)
{
    size_t n = strcspn(s, "\n");
    if (!isatty(STDERR_FILENO)) {
        return n;
    }
    return n < CELL_WIDTH ? n : CELL_WIDTH;
}

static void put_row(nrd_str *out, const char *const *cells, const size_t *width, size_t n_cols)
{
    const char *rest[MAX_COLUMNS];
    bool more = true;

    memcpy(rest, cells, n_cols * sizeof *rest);
    for (bool first = true; more || first; first = false) {
        more = false;
        for (size_t c = 0; c < n_cols; c++) {
            size_t n = line_len(rest[c]);
            nrd_str_puts(out, "| ");
            nrd_str_append(out, rest[c], n);
            for (size_t i = n; i < width[c] + 1; i++) {
                nrd_str_putc(out, ' ');
            }
            rest[c] += n;
            rest[c] += *rest[c] == '\n';
            more = more || *rest[c];
        }
        nrd_str_puts(out, "|\n");
    }
}

void nrd_table_put(nrd_str *out, const char *const *cells, size_t n_rows, size_t n_cols)
{
    size_t width[MAX_COLUMNS] = {0};

    NRD_ASSERT(n_cols <= MAX_COLUMNS, "tables of the log are narrow");
    for (size_t i = 0; i < n_rows * n_cols; i++) {
        for (const char *p = cells[i]; *p;) {
            size_t n = line_len(p);
            width[i % n_cols] = n > width[i % n_cols] ? n : width[i % n_cols];
            p += n;
            p += *p == '\n';
        }
    }
    put_rule(out, width, n_cols);
    for (size_t r = 0; r < n_rows; r++) {
        put_row(out, cells + r * n_cols, width, n_cols);
        if (r == 0) {
            put_rule(out, width, n_cols);
        }
    }
    put_rule(out, width, n_cols);
}
