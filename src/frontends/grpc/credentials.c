/* SPDX-License-Identifier: Apache-2.0 */
#include "frontends/grpc/credentials.h"

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MAX_PEM (1u << 20)
enum { CERT, KEY, ROOT, N_FILES };

struct nrd_grpc_certs {
    const char *files[N_FILES]; /* borrows; NULL: none */
    pthread_mutex_t mu;
    struct stat seen[N_FILES]; /* guarded by mu */
    bool read_once;            /* guarded by mu */
};

static bool has_changed(nrd_grpc_certs *c)
{
    bool changed = !c->read_once;
    for (int i = 0; i < N_FILES; i++) {
        struct stat now = {0};
        if (c->files[i]) {
            (void)stat(c->files[i], &now);
        }
        const struct stat *old = &c->seen[i];
        changed = changed || now.st_ino != old->st_ino || now.st_size != old->st_size ||
                  now.st_mtim.tv_sec != old->st_mtim.tv_sec || now.st_mtim.tv_nsec != old->st_mtim.tv_nsec;
        c->seen[i] = now;
    }
    c->read_once = true;
    return changed;
}

static nrd_error *read_config(const nrd_grpc_certs *c, grpc_ssl_server_certificate_config **out)
{
    char *pem[N_FILES] = {NULL};
    nrd_error *err = NULL;

    for (int i = 0; i < N_FILES && !err; i++) {
        size_t n = 0;
        err = c->files[i] ? nrd_file_read(&pem[i], &n, c->files[i], MAX_PEM) : NULL;
    }
    if (!err) {
        const grpc_ssl_pem_key_cert_pair pair = {pem[KEY], pem[CERT]};
        /* gRPC wants certificates of signers also where it asks no client for one. Copies all. */
        *out = grpc_ssl_server_certificate_config_create(pem[ROOT] ? pem[ROOT] : pem[CERT], &pair, 1);
    }
    for (int i = 0; i < N_FILES; i++) {
        free(pem[i]);
    }
    return err;
}

/* Called by gRPC at the start and for each new connection. After FAIL, and when the new files cannot be
 * used, connections get the certificate of before. */
static grpc_ssl_certificate_config_reload_status fetch(void *user, grpc_ssl_server_certificate_config **out)
{
    nrd_grpc_certs *c = user;

    pthread_mutex_lock(&c->mu);
    const bool first = !c->read_once, changed = has_changed(c);
    pthread_mutex_unlock(&c->mu);
    if (!changed) {
        return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    }
    nrd_error *err = read_config(c, out);
    if (err) {
        NRD_LOG_ERROR("gRPC keeps its certificate: %s", nrd_error_message(err));
        nrd_error_free(err);
        return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_FAIL;
    }
    if (!first) {
        NRD_LOG_INFO("gRPC has read its certificate again");
    }
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
}

nrd_error *nrd_grpc_certs_new(nrd_grpc_certs **out, const nrd_options *o, grpc_server_credentials **out_creds)
{
    nrd_error *err = NULL;
    grpc_ssl_server_certificate_config *config = NULL;
    nrd_grpc_certs *c = NULL;

    *out = NULL;
    if (!o->grpc_use_ssl && !o->grpc_use_ssl_mutual) {
        *out_creds = grpc_insecure_server_credentials_create();
        return NULL;
    }
    if (!o->grpc_server_cert[0] || !o->grpc_server_key[0] || (o->grpc_use_ssl_mutual && !o->grpc_root_cert[0])) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "--grpc-use-ssl needs --grpc-server-cert and --grpc-server-key, "
                          "--grpc-use-ssl-mutual also --grpc-root-cert");
    }
    NRD_NEW_GOTO(c, 1, err, fail);
    pthread_mutex_init(&c->mu, NULL);
    c->files[CERT] = o->grpc_server_cert;
    c->files[KEY] = o->grpc_server_key;
    c->files[ROOT] = o->grpc_root_cert[0] ? o->grpc_root_cert : NULL;
    NRD_TRY_GOTO(read_config(c, &config), err, fail); /* so that a missing file ends the start */
    grpc_ssl_server_certificate_config_destroy(config);
    *out_creds = grpc_ssl_server_credentials_create_with_options(
        grpc_ssl_server_credentials_create_options_using_config_fetcher(
            o->grpc_use_ssl_mutual ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                                   : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE,
            fetch, c));
    if (!*out_creds) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "the certificates of gRPC are not usable");
        goto fail;
    }
    *out = c;
    return NULL;

fail:
    nrd_grpc_certs_free(c);
    return err;
}

void nrd_grpc_certs_free(nrd_grpc_certs *c)
{
    if (c) {
        pthread_mutex_destroy(&c->mu);
        free(c);
    }
}
