/* SPDX-License-Identifier: Apache-2.0
 * The header traceparent (W3C Trace Context). What is valid has version 00, ids in lower-case hex that are not all 0, which
 * the spans then have; without a valid one they have ids of their own. */
#include "frontends/common/otel_spans.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool holds)
{
    if (!holds) {
        abort();
    }
}

static bool is_id(const char *text, size_t n)
{
    return strlen(text) == n && strspn(text, "0123456789abcdef") == n && strspn(text, "0") < n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data;
    const bool valid = nrd_otel_is_traceparent(text, size);
    nrd_otel_spans s;
    nrd_str out = {0};

    must(nrd_otel_spans_init(&s, size ? text : NULL, size, 1));
    must(is_id(s.trace_id, 32));
    must(!valid || (size >= 55 && memcmp(s.trace_id, text + 3, 32) == 0 && memcmp(s.parent_id, text + 36, 16) == 0));
    must(valid ? is_id(s.parent_id, 16) : s.parent_id[0] == '\0');
    must(nrd_otel_spans_write(&s, 2, &out) >= 1);
    nrd_otel_spans_fini(&s);
    nrd_str_fini(&out);
    return 0;
}
