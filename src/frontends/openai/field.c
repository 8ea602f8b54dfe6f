/* SPDX-License-Identifier: Apache-2.0
 * What every reader of bodies needs of one field. */
#include "frontends/openai/internal.h"

#include "nereid/llm_tensors.h"

#include <math.h>

nrd_error *nrd_oai_errorf(nrd_error_code code, const char *field, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    nrd_error *err = nrd_errorv(code, fmt, args);
    va_end(args);
    return nrd_error_at(nrd_error_wrap(err, "%s", field), field);
}

nrd_error *nrd_oai_get_bool(const nrd_json *root, const char *name, bool *out)
{
    const nrd_json *v = nrd_json_get(root, name);
    if (!v || v->type == NRD_JSON_NULL) {
        return NULL;
    }
    if (v->type != NRD_JSON_BOOL) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, name, "must be true or false");
    }
    *out = v->boolean;
    return NULL;
}

nrd_error *nrd_oai_check_object(const nrd_json *v, const char *field)
{
    return nrd_oai_given(v) && v->type != NRD_JSON_OBJECT ? nrd_oai_errorf(NRD_ERR_INVALID_ARG, field, "must be an object") : NULL;
}

nrd_error *nrd_oai_check_string(const nrd_json *v, const char *field)
{
    return nrd_oai_given(v) && v->type != NRD_JSON_STRING ? nrd_oai_errorf(NRD_ERR_INVALID_ARG, field, "must be a string") : NULL;
}

nrd_error *nrd_oai_check_prompt(const nrd_oai_model *m, size_t n, const char *field)
{
    return nrd_error_because(nrd_error_at(nrd_prompt_limit_check(m->tokenizer, n), field), NRD_LLM_PROMPT_TOO_LONG);
}

nrd_error *nrd_oai_get_num(const nrd_json *root, const char *name, double low, double high, double *out)
{
    const nrd_json *v = nrd_json_get(root, name);
    if (!v || v->type == NRD_JSON_NULL) {
        return NULL;
    }
    double x = nrd_json_num(v, NAN);
    if (!nrd_json_is_number(v) || !(x >= low && x <= high)) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, name, "must be a number from %g to %g", low, high);
    }
    *out = x;
    return NULL;
}

nrd_error *nrd_oai_get_int(const nrd_json *root, const char *name, int64_t low, int64_t high, int64_t *out)
{
    const nrd_json *v = nrd_json_get(root, name);
    if (!v || v->type == NRD_JSON_NULL) {
        return NULL;
    }
    if (v->type != NRD_JSON_INT || v->i < low || v->i > high) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, name, "must be a whole number from %lld to %lld",
                              (long long)low, (long long)high);
    }
    *out = v->i;
    return NULL;
}
