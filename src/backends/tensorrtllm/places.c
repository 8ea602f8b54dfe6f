/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/tensorrtllm/places.h"

#include "backends/util/error.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

int32_t nrd_llm_instance_number(const char *name)
{
    const char *last = strrchr(name, '_');
    const long n = last ? strtol(last + 1, NULL, 10) : 0;
    return n > 0 && n < INT32_MAX ? (int32_t)n : 0;
}

/* Where list number `wanted` begins; NULL: there are fewer. *out_n: how many there are. */
static const char *find_list(const char *text, int32_t wanted, int32_t *out_n)
{
    const char *found = wanted == 0 ? text : NULL;
    *out_n = 1;
    for (const char *p = text; (p = strchr(p, ';')) != NULL; p++) {
        if (*out_n == wanted) {
            found = p + 1;
        }
        ++*out_n;
    }
    return found;
}

static TRITONSERVER_Error *not_numbers(const char *key, const char *text)
{
    if (strstr(text, "MIG-") || strstr(text, "GPU-")) {
        return nrd_tb_errorf(
            TRITONSERVER_ERROR_INVALID_ARG,
            "%s '%s': GPUs and MIG slices have numbers here, those of CUDA: name them by UUID in "
            "CUDA_VISIBLE_DEVICES, and its first one is 0",
            key, text);
    }
    return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG,
                         "%s '%s': expected numbers from 0 on with ',' between them, at most %d, and ';' between the "
                         "lists of instances",
                         key, text, NRD_LLM_MAX_PLACES);
}

TRITONSERVER_Error *nrd_llm_place_list(const char *key, const char *text, int32_t instance, int32_t *out, int32_t *out_n)
{
    int32_t n_lists;

    *out_n = 0;
    if (!text || !*text) {
        return NULL;
    }
    const bool shared = !strchr(text, ';');
    const char *p = find_list(text, shared ? 0 : instance, &n_lists);
    if (!p) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "%s '%s' has %d lists, but instance number %d needs one of its "
                             "own (numbers begin at 0)", key, text, n_lists, instance);
    }
    for (;;) {
        char *end = NULL;
        const long v = strtol(p, &end, 10);
        if (end == p || v < 0 || v > INT32_MAX || *out_n == NRD_LLM_MAX_PLACES) {
            return not_numbers(key, text);
        }
        out[(*out_n)++] = (int32_t)v;
        p = end + strspn(end, " ");
        if (*p != ',') {
            break;
        }
        p++;
    }
    return *p == '\0' || *p == ';' ? NULL : not_numbers(key, text);
}
