/* SPDX-License-Identifier: Apache-2.0
 * tls/plugin.h - what nereid_tls.so does for the programs.
 *
 * Purpose   The programs are not linked with OpenSSL: who wants no TLS needs none of it. This table is
 *           what stands between; tls.c opens the plug-in, openssl.c is its inside.
 * Owner     Any thread may use different connections; one connection has one thread at a time.
 *           Contexts may be shared.
 * Errors    A reason as text in why[0..why_n), always terminated: the two sides share no error objects.
 */
#ifndef NRD_TLS_PLUGIN_H
#define NRD_TLS_PLUGIN_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

typedef enum {
    NRD_TLS_FAILED = -3,
    NRD_TLS_WANT_WRITE = -2, /* call again when the socket takes bytes */
    NRD_TLS_WANT_READ = -1,  /* call again when bytes have come */
    NRD_TLS_END = 0,         /* the other side has said that nothing follows */
} nrd_tls_status;

struct event_base;
struct bufferevent;

typedef struct nrd_tls_ops {
    /* Of a server. Paths of PEM files; client_ca NULL: clients bring no certificate. NULL: why. */
    void *(*context_new)(const char *cert, const char *key, const char *client_ca, char *why, size_t why_n);
    void (*context_free)(void *context); /* connections keep what they need of it */

    void *(*conn_new)(void *context, int fd); /* borrows fd; NULL: no memory */
    /* say_end: tells the other side that nothing follows, where that can be told at once. */
    void (*conn_free)(void *conn, bool say_end);
    int (*handshake)(void *conn); /* 1: done; else a status */
    /* Bytes read or written, or a status. What write did not take must come again unchanged first. */
    ssize_t (*read)(void *conn, void *to, size_t n);
    ssize_t (*write)(void *conn, const void *from, size_t n);
    bool (*has_pending)(void *conn); /* bytes that the socket will not tell of any more */

    /* Of a client: a connection that checks the server's name and certificate, against ca where it is
     * not NULL, else the system's certificates. NULL: why. The event loop's library owns it. */
    struct bufferevent *(*client_new)(struct event_base *base, const char *host, const char *ca, char *why,
                                      size_t why_n);
    /* Why the handshake or the reading of a client's connection failed; "" where TLS is not the cause. */
    void (*client_why)(struct bufferevent *bev, char *why, size_t why_n);
} nrd_tls_ops;

/* The one symbol of the plug-in; changes its name with the table. */
#define NRD_TLS_SYMBOL "nrd_tls_ops_1"

#endif
