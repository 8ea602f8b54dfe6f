/* SPDX-License-Identifier: Apache-2.0 */
#include "frontends/common/message.h"

#include "frontends/common/error.h"

nrd_error *nrd_from_message(nrd_json_doc **out, TRITONSERVER_Error *e, TRITONSERVER_Message *m)
{
    const char *text;
    size_t n;

    *out = NULL;
    nrd_error *err = nrd_from_triton(e);
    if (!err) {
        err = nrd_from_triton(TRITONSERVER_MessageSerializeToJson(m, &text, &n));
    }
    if (!err) {
        err = nrd_json_parse(out, text, n, NULL);
    }
    if (m) {
        nrd_error_free(nrd_from_triton(TRITONSERVER_MessageDelete(m)));
    }
    return err;
}
