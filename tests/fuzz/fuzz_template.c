/* SPDX-License-Identifier: Apache-2.0
 * Input: a template, a NUL byte, JSON variables. Compiling and rendering end with a text or an error,
 * within small limits, and twice with the same result. */
#include "base/json.h"
#include "text/template/template.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const nrd_template_limits limits = {20000, 1 << 20, 1 << 18};
    static const char fixed[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"h\\u00e9 <b>\"},"
                                "{\"role\":\"x\",\"n\":[1,2.5,null,true]}],\"tools\":null,\"x\":3}";
    const uint8_t *nul = memchr(data, 0, size);
    size_t n = nul ? (size_t)(nul - data) : size;
    nrd_json_doc *vars = NULL, *given = NULL;
    nrd_template *t = NULL;
    nrd_str a = {0}, b = {0};
    nrd_error *err = nrd_json_parse(&vars, fixed, sizeof fixed - 1, NULL), *again;

    if (nul) {
        nrd_error_free(nrd_json_parse(&given, (const char *)nul + 1, size - n - 1, NULL));
    }
    const nrd_json *root = nrd_json_root(given && nrd_json_is(nrd_json_root(given), NRD_JSON_OBJECT)
                                             ? given : vars);
    if (!err && !(err = nrd_template_compile(&t, (const char *)data, n))) {
        err = nrd_template_render(t, root, 1721999109, &limits, &a);
        again = nrd_template_render(t, root, 1721999109, &limits, &b);
        if (!err != !again || a.len != b.len || (a.len && memcmp(a.data, b.data, a.len))) {
            abort();
        }
        nrd_error_free(again);
    }
    nrd_error_free(err);
    nrd_template_free(t);
    nrd_json_doc_free(vars);
    nrd_json_doc_free(given);
    nrd_str_fini(&a);
    nrd_str_fini(&b);
    return 0;
}
