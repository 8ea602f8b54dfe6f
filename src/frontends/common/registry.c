/* SPDX-License-Identifier: Apache-2.0 */
#include "frontends/common/registry.h"

#include "frontends/common/error.h"
#include "nereid/server.h"

#include <string.h>

nrd_error *nrd_registry_read(nrd_json_doc **out, TRITONSERVER_Server *server)
{
    TRITONSERVER_Metrics *metrics = NULL;
    const char *text;
    size_t n;

    *out = NULL;
    nrd_error *err = nrd_from_triton(TRITONSERVER_ServerMetrics(server, &metrics));
    if (!err) {
        err = nrd_from_triton(TRITONSERVER_MetricsFormatted(
            metrics, (TRITONSERVER_MetricFormat)NRD_METRIC_FORMAT_JSON, &text, &n));
    }
    if (!err) {
        err = nrd_json_parse(out, text, n, NULL);
    } else if (nrd_error_get_code(err) == NRD_ERR_UNSUPPORTED ||
               nrd_error_get_code(err) == NRD_ERR_INVALID_ARG) {
        nrd_error_free(err);
        err = NULL;
    }
    if (metrics) {
        nrd_error_free(nrd_from_triton(TRITONSERVER_MetricsDelete(metrics)));
    }
    return err;
}

const nrd_json *nrd_registry_series(const nrd_json *metrics, const char *family, const nrd_registry_label *want, size_t n)
{
    const nrd_json *list = nrd_json_get(metrics, family);
    for (size_t i = 0; i < nrd_json_len(list); i++) {
        const nrd_json *have = nrd_json_get(&list->child[i], "labels");
        size_t same = 0;
        while (same < n &&
               !strcmp(nrd_json_get_str(have, want[same].name, ""), want[same].value)) {
            same++;
        }
        if (same == n) {
            return &list->child[i];
        }
    }
    return NULL;
}

double nrd_registry_value(const nrd_json *series)
{
    return nrd_json_get_num(series, "value", 0);
}

void nrd_registry_put_name(nrd_str *out, nrd_models *models, const char *model)
{
    const nrd_model_info *info = NULL;
    nrd_error_free(nrd_models_get(models, model, -1, &info)); /* it may have gone since */
    const nrd_json *p = nrd_json_get(info ? info->config : NULL, "parameters");
    const char *names = nrd_json_get_str(nrd_json_get(p, "served_model_name"), "string_value", "");
    size_t n = strncmp(names, "${", 2) ? strcspn(names, ",") : 0;

    nrd_str_append(out, n ? names : model, n ? n : strlen(model));
    nrd_model_info_unref(info);
}
