/* SPDX-License-Identifier: Apache-2.0
 * config.pbtxt and its JSON form: whatever is accepted as text must print as JSON that reads back
 * to the same JSON. The sources are included because the core is no room that the fuzz programs
 * link. */
#include "core/config/pbfield.c"
#include "core/config/pbjson.c"
#include "core/config/pbtext.c"
#include "model_config.pb-c.c"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const ProtobufCMessageDescriptor *type = &inference__model_config__descriptor;
    ProtobufCMessage *msg = NULL, *back = NULL;
    nrd_json_doc *doc = NULL;
    nrd_str json = {0}, again = {0};
    nrd_error *err = nrd_pbtext_parse(&msg, type, (const char *)data, n);

    if (!err) {
        nrd_pbjson_put(&json, msg);
        protobuf_c_message_free_unpacked(msg, NULL);
        err = nrd_json_parse(&doc, json.data, json.len, NULL);
    } else { /* the same bytes as JSON */
        nrd_error_free(err);
        err = nrd_json_parse(&doc, (const char *)data, n, NULL);
    }
    if (!err) {
        err = nrd_pbjson_parse(&back, type, nrd_json_root(doc));
    }
    if (!err) {
        nrd_pbjson_put(&again, back);
        protobuf_c_message_free_unpacked(back, NULL);
        /* Invalid UTF-8 is replaced, infinities become null: such text need not come back. */
        if (json.len && !strstr(json.data, "null") && !strstr(json.data, "\xef\xbf\xbd") &&
            (again.len != json.len || memcmp(again.data, json.data, json.len) != 0)) {
            abort();
        }
    }
    nrd_error_free(err);
    nrd_json_doc_free(doc);
    nrd_str_fini(&json);
    nrd_str_fini(&again);
    return 0;
}
