/* SPDX-License-Identifier: Apache-2.0
 * Any bytes: parsing ends with a document or an error; what was parsed, written and parsed again is
 * written the same way. */
#include "base/json.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    nrd_json_doc *doc = NULL, *again = NULL;
    nrd_error *err = nrd_json_parse(&doc, (const char *)data, size, NULL);
    if (err) {
        nrd_error_free(err);
        return 0;
    }
    nrd_str first = {0}, second = {0};
    nrd_json_put(&first, nrd_json_root(doc), size % 2 ? -1 : 2);
    err = nrd_json_parse(&again, first.data, first.len, NULL);
    if (err) {
        abort();
    }
    nrd_json_put(&second, nrd_json_root(again), size % 2 ? -1 : 2);
    if (first.len != second.len || memcmp(first.data, second.data, first.len) != 0) {
        abort();
    }
    nrd_str_fini(&first);
    nrd_str_fini(&second);
    nrd_json_doc_free(doc);
    nrd_json_doc_free(again);
    return 0;
}
