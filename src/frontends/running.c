/* SPDX-License-Identifier: Apache-2.0 */
#include "frontends/running.h"

#include "base/json.h"
#include "base/running.h"
#include "base/str.h"
#include "frontends/common/error.h"

#include <stdlib.h>

static void put_address(nrd_str *out, const char *name, const char *scheme, const char *host, int port)
{
    if (port > 0) {
        nrd_str address = {0};
        nrd_str_puts(&address, scheme);
        nrd_str_put_host(&address, host);
        nrd_str_printf(&address, ":%d", port);
        nrd_str_printf(out, ", \"%s\": ", name);
        nrd_json_put_cstr(out, nrd_str_cstr(&address));
        nrd_str_fini(&address);
    }
}

static void put_models(nrd_str *out, TRITONSERVER_Server *server)
{
    TRITONSERVER_Message *index = NULL;
    nrd_json_doc *doc = NULL;
    const char *text = NULL;
    size_t n = 0;
    nrd_error *err = nrd_from_triton(TRITONSERVER_ServerModelIndex(server, TRITONSERVER_INDEX_FLAG_READY, &index));

    err = err ? err : nrd_from_triton(TRITONSERVER_MessageSerializeToJson(index, &text, &n));
    err = err ? err : nrd_json_parse(&doc, text, n, NULL);
    const nrd_json *root = err ? NULL : nrd_json_root(doc);
    nrd_str_puts(out, ", \"models\": [");
    for (size_t i = 0; i < nrd_json_len(root); i++) {
        nrd_str_puts(out, i ? ", " : "");
        nrd_json_put_cstr(out, nrd_json_get_str(nrd_json_at(root, i), "name", ""));
    }
    nrd_str_putc(out, ']');
    nrd_error_free(err);
    nrd_json_doc_free(doc);
    if (index) {
        nrd_error_free(nrd_from_triton(TRITONSERVER_MessageDelete(index)));
    }
}

static void put_repositories(nrd_str *out, const nrd_options *o)
{
    nrd_str_puts(out, ", \"repositories\": [");
    for (size_t i = 0; i < o->repositories.n; i++) {
        const char *name = o->repositories.items[i].name;
        char *whole = realpath(name, NULL); /* who reads it is in another folder */
        nrd_str_puts(out, i ? ", " : "");
        nrd_json_put_cstr(out, whole ? whole : name);
        free(whole);
    }
    nrd_str_putc(out, ']');
}

void nrd_running_announce(TRITONSERVER_Server *server, const nrd_options *o, const nrd_running_facts *facts)
{
    nrd_str out = {0};
    const bool tls = o->http_use_ssl || o->http_use_ssl_mutual;

    nrd_str_printf(&out, "{\"started\": %lld, \"state\": \"%s\"", (long long)facts->started, facts->drains ? "draining" : "serving");
    put_address(&out, "http", tls ? "https://" : "http://", o->http_address, facts->http);
    put_address(&out, "grpc", "", o->grpc_address, facts->grpc);
    put_address(&out, "metrics", o->metrics_use_ssl ? "https://" : "http://", o->metrics_address, facts->metrics);
    put_repositories(&out, o);
    put_models(&out, server);
    nrd_str_puts(&out, o->models_file[0] ? ", \"switches\": true" : "");
    nrd_str_putc(&out, '}');
    nrd_error *err = nrd_str_error(&out);
    if (!err) {
        nrd_running_tell(nrd_str_cstr(&out));
    }
    nrd_error_free(err);
    nrd_str_fini(&out);
}
