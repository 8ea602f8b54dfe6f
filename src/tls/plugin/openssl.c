/* SPDX-License-Identifier: Apache-2.0
 * The server's side of nereid_tls.so, on OpenSSL: contexts from files, connections over sockets that
 * do not block.
 *
 * TLS 1.2 and 1.3, forward secrecy and authenticated ciphers only, no renegotiation, no compression;
 * ALPN answers http/1.1 and refuses clients that offer protocols without it. */
#include "tls/plugin/plugin.h"

#include <errno.h>
#include <limits.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <string.h>

/* For TLS 1.2; those of 1.3 are all fine. */
#define CIPHERS "ECDHE+AESGCM:ECDHE+CHACHA20:!aNULL:!eNULL"

static int choose_protocol(SSL *ssl, const unsigned char **out, unsigned char *out_n, const unsigned char *in,
                           unsigned in_n, void *arg)
{
    static const unsigned char ours[] = "\x08http/1.1\x08http/1.0";
    unsigned char *found;
    (void)ssl;
    (void)arg;
    if (SSL_select_next_proto(&found, out_n, ours, sizeof ours - 1, in, in_n) != OPENSSL_NPN_NEGOTIATED) {
        return SSL_TLSEXT_ERR_ALERT_FATAL; /* RFC 7301 3.2 */
    }
    *out = found;
    return SSL_TLSEXT_ERR_OK;
}

/* Nobody is there to type a passphrase. */
static int no_passphrase(char *buf, int size, int rwflag, void *arg)
{
    (void)buf;
    (void)size;
    (void)rwflag;
    (void)arg;
    return -1;
}

static bool ask_clients(SSL_CTX *c, const char *ca, char *why, size_t n)
{
    STACK_OF(X509_NAME) *names = SSL_load_client_CA_file(ca);

    if (!names || SSL_CTX_load_verify_locations(c, ca, NULL) != 1) {
        nrd_tls_why(why, n, "no certificates of clients' signers in", ca);
        sk_X509_NAME_pop_free(names, X509_NAME_free);
        return false;
    }
    SSL_CTX_set_client_CA_list(c, names); /* takes them */
    SSL_CTX_set_verify(c, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    return true;
}

static void *context_new(const char *cert, const char *key, const char *client_ca, char *why, size_t n)
{
    static const unsigned char id[] = "nereid";
    ERR_clear_error();
    SSL_CTX *c = SSL_CTX_new(TLS_server_method());

    if (!c || SSL_CTX_set_min_proto_version(c, TLS1_2_VERSION) != 1 ||
        SSL_CTX_set_cipher_list(c, CIPHERS) != 1) {
        nrd_tls_why(why, n, "OpenSSL cannot be set up", NULL);
        goto fail;
    }
    SSL_CTX_set_options(c, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_CIPHER_SERVER_PREFERENCE);
    /* What was not taken at once comes again from another place of memory. Idle connections keep no
     * buffers. */
    SSL_CTX_set_mode(c, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                            SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_alpn_select_cb(c, choose_protocol, NULL);
    SSL_CTX_set_default_passwd_cb(c, no_passphrase);
    (void)SSL_CTX_set_session_id_context(c, id, sizeof id - 1);
    if (SSL_CTX_use_certificate_chain_file(c, cert) != 1) {
        nrd_tls_why(why, n, "no certificate in", cert);
        goto fail;
    }
    if (SSL_CTX_use_PrivateKey_file(c, key, SSL_FILETYPE_PEM) != 1) {
        nrd_tls_why(why, n, "no private key (without passphrase) for this certificate in", key);
        goto fail;
    }
    if (SSL_CTX_check_private_key(c) != 1) {
        nrd_tls_why(why, n, "the private key does not belong to the certificate, key", key);
        goto fail;
    }
    if (client_ca && !ask_clients(c, client_ca, why, n)) {
        goto fail;
    }
    return c;

fail:
    SSL_CTX_free(c);
    return NULL;
}

static void context_free(void *context)
{
    SSL_CTX_free(context);
}

static void *conn_new(void *context, int fd)
{
    SSL *s = SSL_new(context);
    if (s && SSL_set_fd(s, fd) != 1) {
        SSL_free(s);
        s = NULL;
    }
    if (s) {
        SSL_set_accept_state(s);
    } else {
        ERR_clear_error();
    }
    return s;
}

static void conn_free(void *conn, bool say_end)
{
    ERR_clear_error();
    if (say_end && SSL_is_init_finished(conn)) {
        (void)SSL_shutdown(conn); /* says nothing after an error of TLS */
    }
    SSL_free(conn);
    ERR_clear_error();
}

/* What a result that is not positive means. */
static nrd_tls_status status_of(SSL *s, int result)
{
    const int error = SSL_get_error(s, result);
    nrd_tls_status status = NRD_TLS_FAILED;

    if (error == SSL_ERROR_WANT_READ) {
        status = NRD_TLS_WANT_READ;
    } else if (error == SSL_ERROR_WANT_WRITE) {
        status = NRD_TLS_WANT_WRITE;
    } else if (error == SSL_ERROR_ZERO_RETURN) {
        status = NRD_TLS_END;
    } else {
        SSL_set_quiet_shutdown(s, 1);
    }
    ERR_clear_error();
    return status;
}

static int handshake(void *conn)
{
    ERR_clear_error();
    const int r = SSL_do_handshake(conn);
    return r == 1 ? 1 : (int)status_of(conn, r);
}

static ssize_t read_some(void *conn, void *to, size_t n)
{
    ERR_clear_error();
    const int r = SSL_read(conn, to, n > INT_MAX ? INT_MAX : (int)n);
    return r > 0 ? r : (ssize_t)status_of(conn, r);
}

static ssize_t write_some(void *conn, const void *from, size_t n)
{
    ERR_clear_error();
    const int r = SSL_write(conn, from, n > INT_MAX ? INT_MAX : (int)n);
    return r > 0 ? r : (ssize_t)status_of(conn, r);
}

static bool has_pending(void *conn)
{
    return SSL_pending(conn) > 0;
}

__attribute__((visibility("default"))) const nrd_tls_ops nrd_tls_ops_1 = {
    .context_new = context_new,
    .context_free = context_free,
    .conn_new = conn_new,
    .conn_free = conn_free,
    .handshake = handshake,
    .read = read_some,
    .write = write_some,
    .has_pending = has_pending,
    .client_new = nrd_tls_client_new,
    .client_why = nrd_tls_client_why,
};
