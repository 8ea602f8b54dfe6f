/* SPDX-License-Identifier: Apache-2.0
 * What a model says of a request that failed, without the words that are for the readers of /v2. */
#include "frontends/openai/internal.h"

#include <stdio.h>
#include <string.h>

nrd_error *nrd_oai_plain_error(nrd_error *err)
{
    static const char due[] = " due to the following error: ", begin[] = "Executor failed process requestId ";
    const char *text = err ? nrd_error_message(err) : "", *found = strstr(text, begin);
    int n = 0, most = 0;

    found = found ? strstr(found, due) : NULL; /* an ensemble's name may stand before */
    if (!found) {
        return err;
    }
    text = found + sizeof due - 1;
    nrd_error *plain =
        sscanf(text, "Prompt length (%d) exceeds maximum input length (%d)", &n, &most) == 2
            ? nrd_errorf(nrd_error_get_code(err),
                         "The prompt has %d tokens; the model takes at most %d.", n, most)
            : nrd_errorf(nrd_error_get_code(err), "%s", text);
    nrd_error_free(err);
    return plain;
}
