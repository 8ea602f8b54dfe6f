/* SPDX-License-Identifier: Apache-2.0 */
#include "frontends/common/header_pattern.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>
#ifdef NRD_HAVE_PCRE2
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#else
#include <regex.h>
#endif

#ifdef NRD_HAVE_PCRE2

struct nrd_header_pattern {
    pcre2_code *code;
    pcre2_match_context *limits; /* read only while matching */
};

static nrd_error *compile(nrd_header_pattern *p, const char *option, const char *expression)
{
    /* An expression comes from the operator, names come from clients: work for each is bounded. */
    enum { MAX_STEPS = 100000 };
    int code;
    size_t at;

    p->code = pcre2_compile((PCRE2_SPTR)expression, PCRE2_ZERO_TERMINATED, PCRE2_CASELESS, &code,
                            &at, NULL);
    if (!p->code) {
        PCRE2_UCHAR text[128];
        pcre2_get_error_message(code, text, sizeof text);
        return nrd_errorf(NRD_ERR_INVALID_ARG, "--%s '%s': %s at offset %zu", option, expression,
                          (const char *)text, at);
    }
    p->limits = pcre2_match_context_create(NULL);
    if (!p->limits) {
        return nrd_error_no_memory();
    }
    pcre2_set_match_limit(p->limits, MAX_STEPS);
    return NULL;
}

bool nrd_header_pattern_matches(const nrd_header_pattern *p, const char *name, size_t n)
{
    pcre2_match_data *m = p ? pcre2_match_data_create(1, NULL) : NULL;
    const int rc = m ? pcre2_match(p->code, (PCRE2_SPTR)name, n, 0, 0, m, p->limits) : -1;

    pcre2_match_data_free(m);
    return rc >= 0;
}

void nrd_header_pattern_free(nrd_header_pattern *p)
{
    if (p) {
        pcre2_match_context_free(p->limits);
        pcre2_code_free(p->code);
        free(p);
    }
}

#else

struct nrd_header_pattern {
    regex_t code;
    bool is_compiled;
};

static nrd_error *compile(nrd_header_pattern *p, const char *option, const char *expression)
{
    const bool both = strncmp(expression, "(?i)", 4) == 0,
               exact = strncmp(expression, "(?-i)", 5) == 0;
    const char *rest = expression + (both ? 4 : exact ? 5 : 0);
    const int rc = regcomp(&p->code, rest, REG_EXTENDED | REG_NOSUB | (exact ? 0 : REG_ICASE));

    if (rc != 0) {
        char text[128];
        regerror(rc, &p->code, text, sizeof text);
        return nrd_errorf(NRD_ERR_INVALID_ARG, "--%s '%s': %s", option, expression, text);
    }
    p->is_compiled = true;
    return NULL;
}

bool nrd_header_pattern_matches(const nrd_header_pattern *p, const char *name, size_t n)
{
    char text[256];

    if (!p || n >= sizeof text) {
        return false;
    }
    memcpy(text, name, n);
    text[n] = '\0';
    return regexec(&p->code, text, 0, NULL, 0) == 0;
}

void nrd_header_pattern_free(nrd_header_pattern *p)
{
    if (p) {
        if (p->is_compiled) {
            regfree(&p->code);
        }
        free(p);
    }
}

#endif

nrd_error *nrd_header_pattern_new(nrd_header_pattern **out, const char *option,
                                  const char *expression)
{
    nrd_header_pattern *p = NULL;
    nrd_error *err = NULL;

    *out = NULL;
    if (expression[0] == '\0') {
        return NULL;
    }
    NRD_NEW_GOTO(p, 1, err, fail);
    NRD_TRY_GOTO(compile(p, option, expression), err, fail);
    *out = p;
    return NULL;

fail:
    nrd_header_pattern_free(p);
    return err;
}
