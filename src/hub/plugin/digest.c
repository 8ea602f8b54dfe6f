/* SPDX-License-Identifier: Apache-2.0 */
#include "hub/plugin/digest.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>

struct nrd_hub_digest {
    EVP_MD_CTX *ctx; /* NULL: nothing is computed */
};

static nrd_error *broken(void)
{
    return nrd_errorf(NRD_ERR_INTERNAL, "OpenSSL cannot compute the hash of a file");
}

nrd_error *nrd_hub_digest_new(nrd_hub_digest **out, nrd_hub_hash_kind kind, uint64_t size)
{
    char head[40];
    nrd_error *err = NULL;
    nrd_hub_digest *d = calloc(1, sizeof *d);

    *out = NULL;
    if (!d) {
        return nrd_error_no_memory();
    }
    if (kind != NRD_HUB_HASH_NONE) {
        d->ctx = EVP_MD_CTX_new();
        const EVP_MD *md = kind == NRD_HUB_HASH_SHA256 ? EVP_sha256() : EVP_sha1();
        err = d->ctx && EVP_DigestInit_ex(d->ctx, md, NULL) == 1 ? NULL : broken();
    }
    if (!err && kind == NRD_HUB_HASH_GIT) {
        const int n = snprintf(head, sizeof head, "blob %llu", (unsigned long long)size);
        err = nrd_hub_digest_add(d, head, (size_t)n + 1);
    }
    if (err) {
        nrd_hub_digest_free(d);
        return err;
    }
    *out = d;
    return NULL;
}

void nrd_hub_digest_free(nrd_hub_digest *d)
{
    if (d) {
        EVP_MD_CTX_free(d->ctx);
        free(d);
    }
}

nrd_error *nrd_hub_digest_add(nrd_hub_digest *d, const void *data, size_t n)
{
    return !d->ctx || EVP_DigestUpdate(d->ctx, data, n) == 1 ? NULL : broken();
}

nrd_error *nrd_hub_digest_end(nrd_hub_digest *d, char out_hex[65])
{
    unsigned char hash[EVP_MAX_MD_SIZE];
    unsigned n = 0;

    out_hex[0] = '\0';
    if (d->ctx && EVP_DigestFinal_ex(d->ctx, hash, &n) != 1) {
        return broken();
    }
    for (unsigned i = 0; i < n && i < 32; i++) {
        snprintf(out_hex + 2 * i, 3, "%02x", hash[i]);
    }
    return NULL;
}
