/* SPDX-License-Identifier: Apache-2.0
 * A model's configuration as a load order brings it: JSON text of the parameter `config`. What is
 * accepted and made uniform has names and positive sizes, and prints as JSON that is accepted again. */
#include "core/config/config.h"
#include "core/config/pbjson.h"
#include "core/context.h"

#include "base/str.h"
#include "json_swap.h"

#include <stdio.h>

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static nrd_error *complete(nrd_config *cfg)
{
    NRD_TRY(nrd_config_normalize(cfg));
    NRD_TRY(nrd_config_validate(cfg));
    NRD_TRY(nrd_config_normalize_groups(cfg, NULL, 0));
    NRD_TRY(nrd_config_validate_groups(cfg));
    return nrd_config_validate_io(cfg);
}

static void check(const nrd_config *cfg)
{
    if (strcmp(cfg->name, "m") != 0 || cfg->max_batch_size < 0 || cfg->n_input > 65536) {
        abort();
    }
    for (size_t i = 0; i < cfg->n_input; i++) {
        if (!cfg->input[i]->name[0] || cfg->input[i]->data_type == INFERENCE__DATA_TYPE__TYPE_INVALID) {
            abort();
        }
    }
    for (size_t i = 0; i < cfg->n_instance_group; i++) {
        if (cfg->instance_group[i]->count < 1) {
            abort();
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    nrd_context ctx = {0};
    nrd_config *cfg = NULL, *again = NULL;
    nrd_str json = {0};
    char *text = size < 65536 ? strndup((const char *)data, size) : NULL;
    nrd_error *err = text ? nrd_config_load(&cfg, &ctx, "m", "/nonexistent", text) : NULL;

    if (cfg && !(err = complete(cfg))) {
        check(cfg);
        nrd_pbjson_put(&json, &cfg->base);
        /* Text that is no UTF-8 is replaced, infinities become null. */
        if (!strstr(nrd_str_cstr(&json), "null") && !strstr(nrd_str_cstr(&json), "\xef\xbf\xbd")) {
            nrd_error *wrong = nrd_config_load(&again, &ctx, "m", "/nonexistent", nrd_str_cstr(&json));
            if (wrong || (wrong = complete(again)) != NULL) {
                fprintf(stderr, "%s\n%s\n", nrd_error_message(wrong), nrd_str_cstr(&json));
                abort();
            }
        }
    }
    nrd_error_free(err);
    if (cfg) {
        inference__model_config__free_unpacked(cfg, NULL);
    }
    if (again) {
        inference__model_config__free_unpacked(again, NULL);
    }
    nrd_str_fini(&json);
    free(text);
    return 0;
}
