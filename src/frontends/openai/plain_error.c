/* SPDX-License-Identifier: Apache-2.0
 * What a model says of a request that failed, without the words that are for the readers of /v2. */
#include "frontends/openai/internal.h"

#include <stdio.h>
#include <string.h>

/* Behind `begin` and the next `end`; NULL: they are not there. */
static const char *behind(const char *text, const char *begin, const char *end)
{
    const char *found = strstr(text, begin); /* an ensemble's name may stand before */

    found = found ? strstr(found + strlen(begin), end) : NULL;
    return found ? found + strlen(end) : NULL;
}

nrd_error *nrd_oai_plain_error(nrd_error *err, const char *guide)
{
    static const char of_guide[] = "guided_decoding_guide: "; /* clients of these APIs do not send a field of this name */
    const char *text = err ? nrd_error_message(err) : "";
    const char *why = behind(text, "Executor failed process requestId ", " due to the following error: ");
    int n = 0, most = 0;

    why = why ? why : behind(text, "Encountered error for requestId ", ": ");
    if (!why) {
        return err;
    }
    nrd_error *plain;
    if (strncmp(why, of_guide, sizeof of_guide - 1) == 0 && guide) {
        plain = nrd_oai_errorf(nrd_error_get_code(err), guide, "%s", why + sizeof of_guide - 1);
    } else if (sscanf(why, "Prompt length (%d) exceeds maximum input length (%d)", &n, &most) == 2) {
        plain = nrd_errorf(nrd_error_get_code(err), "The prompt has %d tokens; the model takes at most %d.", n, most);
    } else {
        plain = nrd_errorf(nrd_error_get_code(err), "%s", why);
    }
    nrd_error_free(err);
    return plain;
}
