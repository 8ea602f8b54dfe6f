/* SPDX-License-Identifier: Apache-2.0
 * Names of the models of a server that has several. */
#include "frontends/openai/internal.h"

#include <string.h>

nrd_switch_model *nrd_oai_switch_model(nrd_openai *o, const char *name)
{
    static const char latest[] = ":latest";
    nrd_switcher *s = o->api->front->switcher;
    nrd_switch_model *m = s ? nrd_switcher_find(s, name) : NULL;
    if (s && !m && nrd_str_has_suffix(name, latest)) {
        char *bare = strndup(name, strlen(name) - (sizeof latest - 1));
        m = bare ? nrd_switcher_find(s, bare) : NULL;
        free(bare);
    }
    return m;
}

bool nrd_oai_takes_any_name(const nrd_openai *o, const nrd_http_request *req)
{
    int key;
    return req && !o->api->options->strict_model_names && !o->api->options->allow_lora_loading && !o->api->front->puller &&
           !nrd_http_is_local(req, &key);
}

nrd_switch_model *nrd_oai_switch_asked(nrd_openai *o, const nrd_http_request *req, const char *name)
{
    nrd_switch_model *m = nrd_oai_switch_model(o, name);
    nrd_switcher *s = o->api->front->switcher;
    return m || !s || !nrd_oai_takes_any_name(o, req) ? m : nrd_switcher_only(s);
}

nrd_error *nrd_oai_no_such_model(nrd_openai *o, const char *name)
{
    nrd_switcher *s = o->api->front->switcher;
    nrd_str names = {0};
    for (nrd_switch_model *m = nrd_switcher_next(s, NULL); m; m = nrd_switcher_next(s, m)) {
        nrd_str_printf(&names, "%s`%s`", names.len ? ", " : "", nrd_switch_name(m));
    }
    nrd_error *err = nrd_errorf(NRD_ERR_NOT_FOUND, "The model `%.200s` does not exist; this server has %s.", name, nrd_str_cstr(&names));
    nrd_str_fini(&names);
    return err;
}
