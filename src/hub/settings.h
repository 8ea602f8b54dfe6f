/* SPDX-License-Identifier: Apache-2.0
 * hub/settings.h - what the environment says about the hub, in the words of huggingface_hub.
 *
 * Purpose   HF_ENDPOINT, HF_TOKEN (else the file that HF_TOKEN_PATH names, else $HF_HOME/token), HF_HUB_OFFLINE,
 *           HF_HUB_CACHE, HF_HOME, HF_HUB_DOWNLOAD_TIMEOUT (seconds without a byte), SSL_CERT_FILE.
 * Owner     Read once, then read-only.
 * Errors    INVALID_ARG: the endpoint is neither https:// nor http:// of this machine.
 */
#ifndef NRD_HUB_SETTINGS_H
#define NRD_HUB_SETTINGS_H

#include "base/error.h"

#include <stdbool.h>

typedef struct nrd_hub_settings { /* all owned */
    char *endpoint; /* without a slash at the end */
    char *token;    /* "": none */
    char *cache;    /* shared with huggingface_hub: models--ORG--NAME folders */
    char *own;      /* $NEREID_CACHE: files of other addresses, and what was pulled when */
    char *ca_file;  /* "": as the system says */
    long stall_secs;
    bool is_offline;
} nrd_hub_settings;

nrd_error *nrd_hub_settings_read(nrd_hub_settings *out) NRD_MUST_USE;
void nrd_hub_settings_fini(nrd_hub_settings *s); /* safe on a zeroed struct */

/* Is the host of an http(s) address this machine? */
bool nrd_hub_is_loopback(const char *url);

#endif
