/* SPDX-License-Identifier: Apache-2.0 */
#include "caches/redis/link.h"

#include "base/clock.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <hiredis/hiredis.h>
#include <limits.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { REPLY_OVERHEAD = 1024 }; /* of a value: its length, and the head that we put before it */

struct nrd_redis_link {
    const nrd_redis_options *o;
    int fd;
    SSL *ssl; /* NULL: no TLS */
    redisReader *reader;
};

static nrd_error *gone(const nrd_redis_options *o, const char *why)
{
    return nrd_errorf(NRD_ERR_UNAVAILABLE, "Redis (%s:%s): %s", o->host, o->port, why);
}

static const char *tls_reason(void)
{
    const unsigned long code = ERR_get_error();
    const char *text = code ? ERR_reason_error_string(code) : NULL;
    ERR_clear_error();
    return text ? text : "the connection ended";
}

/* ---- TLS ---- */

static nrd_error *bad_file(const char *setting, const char *path)
{
    return nrd_errorf(NRD_ERR_INVALID_ARG, "redis cache: '%s': cannot use '%s': %s", setting, path, tls_reason());
}

nrd_error *nrd_redis_tls_new(SSL_CTX **out, const nrd_redis_options *o)
{
    nrd_error *err = NULL;

    *out = NULL;
    if (!o->tls) {
        return NULL;
    }
    ERR_clear_error();
    SSL_CTX *c = SSL_CTX_new(TLS_client_method());
    const bool own_ca = o->cacert[0] || o->cacert_dir[0];
    if (!c || SSL_CTX_set_min_proto_version(c, TLS1_2_VERSION) != 1) {
        err = nrd_errorf(NRD_ERR_INTERNAL, "redis cache: OpenSSL cannot be set up: %s", tls_reason());
    } else if (own_ca ? SSL_CTX_load_verify_locations(c, o->cacert[0] ? o->cacert : NULL,
                                                      o->cacert_dir[0] ? o->cacert_dir : NULL) != 1
                      : SSL_CTX_set_default_verify_paths(c) != 1) {
        err = bad_file(o->cacert[0] ? "cacert" : "cacert_dir", o->cacert[0] ? o->cacert : o->cacert_dir);
    } else if (o->cert[0] && SSL_CTX_use_certificate_chain_file(c, o->cert) != 1) {
        err = bad_file("cert", o->cert);
    } else if (o->key[0] && SSL_CTX_use_PrivateKey_file(c, o->key, SSL_FILETYPE_PEM) != 1) {
        err = bad_file("key", o->key);
    }
    if (err) {
        SSL_CTX_free(c);
        return err;
    }
    SSL_CTX_set_verify(c, SSL_VERIFY_PEER, NULL);
    SSL_CTX_set_mode(c, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    *out = c;
    return NULL;
}

void nrd_redis_tls_free(SSL_CTX *tls)
{
    SSL_CTX_free(tls);
}

/* ---- waiting ---- */

/* false: the deadline is over. */
static bool wait_for(int fd, short events, uint64_t deadline_ns)
{
    for (;;) {
        const uint64_t now = nrd_now_ns();
        if (now >= deadline_ns) {
            return false;
        }
        struct pollfd p = {.fd = fd, .events = events};
        const uint64_t ms = (deadline_ns - now + 999999u) / 1000000u;
        const int n = poll(&p, 1, ms > INT_MAX ? INT_MAX : (int)ms);
        if (n > 0 || (n < 0 && errno != EINTR)) {
            return true;
        }
    }
}

/* What a result of OpenSSL that is not positive means: the direction to wait for, or 0 with why. */
static short tls_wants(const SSL *s, int result, const char **why)
{
    const int e = SSL_get_error(s, result);
    *why = e == SSL_ERROR_ZERO_RETURN ? "the server closed the connection" : NULL;
    if (e == SSL_ERROR_WANT_READ || e == SSL_ERROR_WANT_WRITE) {
        return e == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT;
    }
    *why = *why ? *why : tls_reason();
    return 0;
}

static nrd_error *too_late(const nrd_redis_options *o)
{
    return gone(o, "no answer within the time limit");
}

static nrd_error *send_all(nrd_redis_link *l, const char *data, size_t n, uint64_t deadline_ns)
{
    while (n > 0) {
        short wants = POLLOUT;
        const char *why = NULL;
        ssize_t sent;
        if (l->ssl) {
            ERR_clear_error();
            sent = SSL_write(l->ssl, data, n > INT_MAX ? INT_MAX : (int)n);
            wants = sent > 0 ? 0 : tls_wants(l->ssl, (int)sent, &why);
        } else {
            sent = send(l->fd, data, n, MSG_NOSIGNAL);
            why = sent < 0 && errno != EAGAIN && errno != EINTR ? strerror(errno) : NULL;
        }
        if (sent > 0) {
            data += sent;
            n -= (size_t)sent;
        } else if (why) {
            return gone(l->o, why);
        } else if (!wait_for(l->fd, wants, deadline_ns)) {
            return too_late(l->o);
        }
    }
    return NULL;
}

static nrd_error *receive_some(nrd_redis_link *l, char *to, size_t room, size_t *out_n, uint64_t deadline_ns)
{
    for (;;) {
        short wants = POLLIN;
        const char *why = NULL;
        ssize_t n;
        if (l->ssl) {
            ERR_clear_error();
            n = SSL_read(l->ssl, to, (int)room);
            wants = n > 0 ? 0 : tls_wants(l->ssl, (int)n, &why);
        } else {
            n = recv(l->fd, to, room, 0);
            why = n == 0                                          ? "the server closed the connection"
                  : n < 0 && errno != EAGAIN && errno != EINTR ? strerror(errno)
                                                                  : NULL;
        }
        if (n > 0) {
            *out_n = (size_t)n;
            return NULL;
        }
        if (why) {
            return gone(l->o, why);
        }
        if (!wait_for(l->fd, wants, deadline_ns)) {
            return too_late(l->o);
        }
    }
}

/* ---- commands ---- */

nrd_error *nrd_redis_link_call(redisReply **out, nrd_redis_link *l, int n, const char **words, const size_t *sizes,
                               uint64_t deadline_ns)
{
    char *command = NULL, piece[16384];
    void *reply = NULL;
    size_t total = 0;
    nrd_error *err = NULL;

    *out = NULL;
    const long long size = redisFormatCommandArgv(&command, n, words, sizes);
    if (size < 0) {
        return nrd_error_no_memory();
    }
    err = send_all(l, command, (size_t)size, deadline_ns);
    redisFreeCommand(command);
    while (!err && !reply) {
        size_t got = 0;
        err = receive_some(l, piece, sizeof piece, &got, deadline_ns);
        /* No command of ours has a list as its reply; hiredis makes room for as many rows as one announces. */
        if (!err && total == 0 && piece[0] == '*') {
            err = gone(l->o, "a reply of another kind than the command has");
        }
        total += got;
        if (!err && total > l->o->max_value_bytes + REPLY_OVERHEAD) {
            err = gone(l->o, "the reply is larger than 'max_value_size'");
        } else if (!err && (redisReaderFeed(l->reader, piece, got) != REDIS_OK ||
                            redisReaderGetReply(l->reader, &reply) != REDIS_OK)) {
            err = gone(l->o, l->reader->errstr);
        }
    }
    if (!err && ((redisReply *)reply)->type == REDIS_REPLY_ERROR) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "Redis (%s:%s): %s", l->o->host, l->o->port, ((redisReply *)reply)->str);
    }
    if (err) {
        freeReplyObject(reply);
        return err;
    }
    *out = reply;
    return NULL;
}

void nrd_redis_reply_free(redisReply *r)
{
    freeReplyObject(r);
}

static nrd_error *say(nrd_redis_link *l, int n, const char **words, uint64_t deadline_ns)
{
    size_t sizes[3];
    redisReply *reply = NULL;

    for (int i = 0; i < n; i++) {
        sizes[i] = strlen(words[i]);
    }
    nrd_error *err = nrd_redis_link_call(&reply, l, n, words, sizes, deadline_ns);
    nrd_redis_reply_free(reply);
    return err;
}

/* ---- opening ---- */

static nrd_error *connect_socket(nrd_redis_link *l, uint64_t deadline_ns)
{
    const struct addrinfo want = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found = NULL;
    const char *why = "no address";
    const int one = 1;
    const int rc = getaddrinfo(l->o->host, l->o->port, &want, &found);

    if (rc != 0) {
        return nrd_errorf(NRD_ERR_UNAVAILABLE, "failed to connect to Redis (%s:%s): %s", l->o->host, l->o->port,
                          gai_strerror(rc));
    }
    for (const struct addrinfo *a = found; a && l->fd < 0; a = a->ai_next) {
        int failed = 0;
        socklen_t n = sizeof failed;
        l->fd = socket(a->ai_family, a->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, a->ai_protocol);
        if (l->fd < 0) {
            why = strerror(errno);
            continue;
        }
        if (connect(l->fd, a->ai_addr, a->ai_addrlen) != 0 && errno != EINPROGRESS) {
            failed = errno;
        } else if (!wait_for(l->fd, POLLOUT, deadline_ns)) {
            failed = ETIMEDOUT;
        } else if (getsockopt(l->fd, SOL_SOCKET, SO_ERROR, &failed, &n) != 0) {
            failed = errno;
        }
        if (failed) {
            why = strerror(failed);
            close(l->fd);
            l->fd = -1;
        }
    }
    freeaddrinfo(found);
    if (l->fd < 0) {
        return nrd_errorf(NRD_ERR_UNAVAILABLE, "failed to connect to Redis (%s:%s): %s", l->o->host, l->o->port, why);
    }
    (void)setsockopt(l->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    (void)setsockopt(l->fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
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

static nrd_error *start_tls(nrd_redis_link *l, SSL_CTX *tls, uint64_t deadline_ns)
{
    const char *why = NULL;

    ERR_clear_error();
    l->ssl = SSL_new(tls);
    if (!l->ssl || SSL_set_fd(l->ssl, l->fd) != 1 || !expect_host(l->ssl, l->o->sni[0] ? l->o->sni : l->o->host)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "Redis (%s:%s): TLS: %s", l->o->host, l->o->port, tls_reason());
    }
    for (;;) {
        const int r = SSL_connect(l->ssl);
        if (r == 1) {
            return NULL;
        }
        const short wants = tls_wants(l->ssl, r, &why);
        const long verify = SSL_get_verify_result(l->ssl);
        if (!wants) {
            return nrd_errorf(NRD_ERR_UNAVAILABLE, "Redis (%s:%s): TLS: %s", l->o->host, l->o->port,
                              verify != X509_V_OK ? X509_verify_cert_error_string(verify) : why);
        }
        if (!wait_for(l->fd, wants, deadline_ns)) {
            return too_late(l->o);
        }
    }
}

static nrd_error *log_in(nrd_redis_link *l, uint64_t deadline_ns)
{
    const nrd_redis_options *o = l->o;
    char number[16];

    if (o->password[0]) {
        const char *with_user[] = {"AUTH", o->user, o->password}, *alone[] = {"AUTH", o->password};
        NRD_TRY(o->user[0] ? say(l, 3, with_user, deadline_ns) : say(l, 2, alone, deadline_ns));
    }
    if (o->db) {
        snprintf(number, sizeof number, "%u", o->db);
        const char *words[] = {"SELECT", number};
        NRD_TRY(say(l, 2, words, deadline_ns));
    }
    const char *words[] = {"PING"};
    return say(l, 1, words, deadline_ns);
}

nrd_error *nrd_redis_link_open(nrd_redis_link **out, const nrd_redis_options *o, SSL_CTX *tls, uint64_t deadline_ns)
{
    nrd_error *err = NULL;
    nrd_redis_link *l = NULL;

    *out = NULL;
    NRD_NEW_GOTO(l, 1, err, fail);
    l->o = o;
    l->fd = -1;
    l->reader = redisReaderCreate();
    if (!l->reader) {
        err = nrd_error_no_memory();
        goto fail;
    }
    NRD_TRY_GOTO(connect_socket(l, deadline_ns), err, fail);
    if (tls) {
        NRD_TRY_GOTO(start_tls(l, tls, deadline_ns), err, fail);
    }
    NRD_TRY_GOTO(log_in(l, deadline_ns), err, fail);
    *out = l;
    return NULL;

fail:
    nrd_redis_link_close(l);
    return err;
}

void nrd_redis_link_close(nrd_redis_link *l)
{
    if (!l) {
        return;
    }
    if (l->ssl) {
        SSL_free(l->ssl);
    }
    if (l->fd >= 0) {
        close(l->fd);
    }
    if (l->reader) {
        redisReaderFree(l->reader);
    }
    free(l);
}

bool nrd_redis_link_is_dead(nrd_redis_link *l)
{
    char byte;
    const char *why = NULL;
    const ssize_t n = recv(l->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);

    if (n > 0 && l->ssl) { /* TLS's own messages, of which one says that nothing follows */
        ERR_clear_error();
        const int r = SSL_peek(l->ssl, &byte, 1);
        return r > 0 || tls_wants(l->ssl, r, &why) == 0;
    }
    /* Nothing was asked, so nothing but the end can come. */
    return n >= 0 || (errno != EAGAIN && errno != EINTR);
}
