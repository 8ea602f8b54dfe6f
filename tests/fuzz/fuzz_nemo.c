/* SPDX-License-Identifier: Apache-2.0
 * Any bytes as a .nemo archive, and as a text in YAML: what is given away lies in the archive, what YAML becomes is JSON. */
#include "base/json.h"
#include "formats/nemo.h"
#include "formats/yaml.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void must_be_json(const nrd_str *text)
{
    nrd_json_doc *doc = NULL;
    nrd_error *err = nrd_json_parse(&doc, nrd_str_cstr(text), text->len, NULL);

    if (err && !strstr(nrd_error_message(err), "UTF-8") && !strstr(nrd_error_message(err), "ncoding")) {
        abort();
    }
    nrd_error_free(err);
    nrd_json_doc_free(doc);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    nrd_nemo *f = NULL;
    nrd_str text = {0};
    volatile size_t sum = 0;
    nrd_error *err = nrd_yaml_to_json(&text, (const char *)data, n);

    if (!err) {
        must_be_json(&text);
    }
    nrd_error_free(err);
    nrd_str_clear(&text);
    err = nrd_nemo_open_memory(&f, data, n);
    if (!err) {
        nrd_nemo_config_json(f, &text);
        must_be_json(&text);
        for (size_t i = 0; i < nrd_nemo_n(f); i++) {
            const nrd_torch_tensor *t = nrd_nemo_at(f, i);
            sum += strlen(t->name);
            for (size_t k = 0; k < t->data_bytes; k++) {
                sum += ((const uint8_t *)t->data)[k];
            }
        }
    }
    nrd_error_free(err);
    nrd_nemo_close(f);
    nrd_str_fini(&text);
    (void)sum;
    return 0;
}
