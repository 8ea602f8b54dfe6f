/* SPDX-License-Identifier: Apache-2.0 */
#include "frontends/http/load_report.h"

#include "base/json.h"
#include "frontends/common/registry.h"

#include <string.h>

/* The sum of a kind of blocks over all models, each number times what `per` says of its model (NULL: 1). */
static double blocks(const nrd_json *metrics, const char *kind, const char *per)
{
    static const char family[] = "nv_trt_llm_kv_cache_block_metrics";
    const nrd_json *list = nrd_json_get(metrics, family);
    double sum = 0;

    for (size_t i = 0; i < nrd_json_len(list); i++) {
        const nrd_json *labels = nrd_json_get(&list->child[i], "labels");
        const nrd_registry_label of[] = {{"kv_cache_block_type", per},
                                         {"model", nrd_json_get_str(labels, "model", "")},
                                         {"version", nrd_json_get_str(labels, "version", "")}};
        if (!strcmp(nrd_json_get_str(labels, "kv_cache_block_type", ""), kind)) {
            sum += nrd_registry_value(&list->child[i]) * (per ? nrd_registry_value(nrd_registry_series(metrics, family, of, 3)) : 1);
        }
    }
    return sum;
}

void nrd_http_put_load(nrd_str *out, const nrd_http_api *api, const nrd_http_request *req)
{
    const nrd_view *form = nrd_http_find_field(&req->head, "endpoint-load-metrics-format");
    const bool as_json = form && form->n == 4 && !memcmp(form->p, "json", 4);
    nrd_json_doc *doc = NULL;

    if (!as_json && (!form || form->n != 4 || memcmp(form->p, "text", 4))) {
        return;
    }
    nrd_error_free(nrd_registry_read(&doc, api->server)); /* without metrics there is no line */
    const nrd_json *metrics = doc ? nrd_json_root(doc) : NULL;
    const double max = blocks(metrics, "max", NULL);
    if (max > 0) {
        nrd_str_puts(out, as_json ? "endpoint-load-metrics: JSON {\"named_metrics\":{\"kv_cache_utilization\":"
                                  : "endpoint-load-metrics: TEXT named_metrics.kv_cache_utilization=");
        nrd_json_put_double(out, blocks(metrics, "used", NULL) / max);
        nrd_str_puts(out, as_json ? ",\"max_token_capacity\":" : ", named_metrics.max_token_capacity=");
        nrd_str_printf(out, "%.0f%s\r\n", blocks(metrics, "max", "tokens_per"), as_json ? "}}" : "");
    }
    nrd_json_doc_free(doc);
}
