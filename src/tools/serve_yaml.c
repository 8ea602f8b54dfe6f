/* SPDX-License-Identifier: Apache-2.0
 * One value of the files of serve_file.c and serve_llm_api.c. */
#include "tools/serve_internal.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

char *nrd_serve_yaml_value(const char *s)
{
    const size_t n = strlen(s);
    nrd_str out = {0};
    const char quote = n > 0 && (*s == '"' || *s == '\'') ? *s : '\0';
    bool is_closed = !quote;

    for (size_t i = quote ? 1 : 0; i < n && !(quote && is_closed); i++) {
        const bool doubled = quote && i + 1 < n && (quote == '"' ? s[i] == '\\' : s[i] == '\'' && s[i + 1] == '\'');
        if (!quote && s[i] == '#' && (i == 0 || s[i - 1] == ' ' || s[i - 1] == '\t')) {
            break;
        }
        if (quote && !doubled && s[i] == quote) {
            is_closed = true;
            continue;
        }
        i += doubled;
        nrd_str_putc(&out, s[i]);
    }
    while (!quote && out.len > 0 && strchr(" \t", out.data[out.len - 1])) {
        out.data[--out.len] = '\0';
    }
    char *text = is_closed ? nrd_xstrdup(nrd_str_cstr(&out)) : NULL;
    nrd_str_fini(&out);
    return text;
}
