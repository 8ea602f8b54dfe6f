/* SPDX-License-Identifier: Apache-2.0 */
#include "hub/open.h"

#include "base/plugin.h"

#include <stddef.h>

static nrd_plugin plugin =
    NRD_PLUGIN(.file = "nereid_hub.so", .symbol = NRD_HUB_SYMBOL, .need = "downloads need",
               .built_with = "libcurl4-openssl-dev and libssl-dev");

nrd_error *nrd_hub_open(const nrd_hub_ops **out)
{
    const void *table = NULL;
    nrd_error *err = nrd_plugin_open(&plugin, &table);
    *out = table;
    return err;
}
