/* SPDX-License-Identifier: Apache-2.0
 * config.pbtxt as the tools read it: every field has a name, a line of the text, and a value or
 * fields; no nesting above the limit. The source is included because the tools are no room that the
 * fuzz programs link. */
#include "tools/pbtree.c"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void check(const nrd_pbtree *message, int n_lines, int depth)
{
    for (size_t i = 0; i < message->n_fields; i++) {
        const nrd_pbtree *f = &message->fields[i];
        if (!*f->name || f->line < 1 || f->line > n_lines || depth > NRD_PBTREE_MAX_DEPTH ||
            (f->value && f->n_fields) || nrd_pbtree_count(message, f->name) == 0) {
            abort();
        }
        check(f, n_lines, depth + 1);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    nrd_pbtree tree = {0};
    int n_lines = 1;
    nrd_error *err = read_text(&tree, "x", (const char *)data, n);

    for (size_t i = 0; i < n; i++) {
        n_lines += data[i] == '\n';
    }
    if (err && strncmp(nrd_error_message(err), "x:", 2) != 0) {
        abort();
    }
    check(&tree, n_lines, 0);
    nrd_pbtree_fini(&tree);
    nrd_error_free(err);
    return 0;
}
