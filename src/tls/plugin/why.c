/* SPDX-License-Identifier: Apache-2.0 */
#include "tls/plugin/plugin.h"

#include <openssl/err.h>
#include <stdio.h>

void nrd_tls_why(char *why, size_t n, const char *what, const char *path)
{
    char text[200] = "";
    const unsigned long code = ERR_get_error();

    if (code) {
        const char *reason = ERR_reason_error_string(code);
        snprintf(text, sizeof text, ": %s", reason ? reason : "unknown reason");
    }
    snprintf(why, n, "%s%s%s%s%s", what, path ? " '" : "", path ? path : "", path ? "'" : "", text);
    ERR_clear_error();
}
