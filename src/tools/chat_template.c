/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/chat_template.h"

#include "base/file.h"
#include "base/mem.h"
#include "text/template/chat.h"

enum { MAX_BYTES = 1 << 20 };

nrd_error *nrd_tool_chat_template(const char *file_or_name, char **out)
{
    const char *text = nrd_chat_template_named(file_or_name);
    size_t n;

    *out = NULL;
    if (text) {
        *out = nrd_xstrdup(text);
        return NULL;
    }
    if (!nrd_path_exists(file_or_name)) {
        return nrd_errorf(NRD_ERR_NOT_FOUND, "'%s' is no file, and no name: " NRD_CHAT_TEMPLATE_NAMES, file_or_name);
    }
    return nrd_file_read(out, &n, file_or_name, MAX_BYTES);
}
