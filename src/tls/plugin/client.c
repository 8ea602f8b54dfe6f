/* SPDX-License-Identifier: Apache-2.0 */
#include "tls/plugin/plugin.h"

#include <event2/bufferevent.h>
#include <event2/bufferevent_ssl.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdio.h>

static SSL_CTX *client_context(const char *ca, char *why, size_t n)
{
    SSL_CTX *c = SSL_CTX_new(TLS_client_method());

    if (!c || SSL_CTX_set_min_proto_version(c, TLS1_2_VERSION) != 1) {
        nrd_tls_why(why, n, "OpenSSL cannot be set up", NULL);
    } else if ((ca ? SSL_CTX_load_verify_locations(c, ca, NULL) : SSL_CTX_set_default_verify_paths(c)) != 1) {
        nrd_tls_why(why, n, "no certificates in", ca ? ca : "the system's folder");
    } else {
        SSL_CTX_set_verify(c, SSL_VERIFY_PEER, NULL);
        return c;
    }
    SSL_CTX_free(c);
    return NULL;
}

/* The name or address that the certificate must have. */
static bool expect_host(SSL *s, const char *host)
{
    X509_VERIFY_PARAM *param = SSL_get0_param(s);
    if (X509_VERIFY_PARAM_set1_ip_asc(param, host) == 1) {
        return true;
    }
    ERR_clear_error(); /* no address, then a name */
    return X509_VERIFY_PARAM_set1_host(param, host, 0) == 1 && SSL_set_tlsext_host_name(s, host) == 1;
}

struct bufferevent *nrd_tls_client_new(struct event_base *base, const char *host, const char *ca, char *why,
                                       size_t why_n)
{
    struct bufferevent *bev = NULL;
    ERR_clear_error();
    SSL_CTX *c = client_context(ca, why, why_n);
    SSL *s = c ? SSL_new(c) : NULL; /* counts the context */

    SSL_CTX_free(c);
    if (c && (!s || !expect_host(s, host))) {
        nrd_tls_why(why, why_n, "no TLS connection to", host);
    } else if (s) {
        bev = bufferevent_openssl_socket_new(base, -1, s, BUFFEREVENT_SSL_CONNECTING, BEV_OPT_CLOSE_ON_FREE);
        if (bev) {
            bufferevent_openssl_set_allow_dirty_shutdown(bev, 1); /* the length of the answer is known */
            return bev; /* owns s */
        }
        nrd_tls_why(why, why_n, "no memory for a TLS connection to", host);
    }
    SSL_free(s);
    return NULL;
}

void nrd_tls_client_why(struct bufferevent *bev, char *why, size_t why_n)
{
    SSL *s = bufferevent_openssl_get_ssl(bev);
    const long verify = s ? SSL_get_verify_result(s) : X509_V_OK;
    const unsigned long code = bufferevent_get_openssl_error(bev);

    why[0] = '\0';
    if (verify != X509_V_OK) {
        snprintf(why, why_n, "the server's certificate: %s", X509_verify_cert_error_string(verify));
    } else if (code) {
        const char *reason = ERR_reason_error_string(code);
        snprintf(why, why_n, "TLS: %s", reason ? reason : "unknown reason");
    }
}
