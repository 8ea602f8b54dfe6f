/* SPDX-License-Identifier: Apache-2.0 */
#include "frontends/passed_sockets.h"

#include "base/env.h"
#include "base/str.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { FIRST = 3, N_PROTOCOLS = 3 };

/* What a passed socket is for, and where the options keep it. */
typedef struct listener {
    const char *name, *allow_option;
    bool allowed;
    int *socket;
    char **address;
    int64_t *port;
} listener;

static void list_protocols(listener out[N_PROTOCOLS], nrd_options *o)
{
    out[0] = (listener){"http",          "--allow-http",   o->allow_http,
                        &o->http_socket, &o->http_address, &o->http_port};
    out[1] = (listener){"grpc",          "--allow-grpc",   o->allow_grpc,
                        &o->grpc_socket, &o->grpc_address, &o->grpc_port};
    out[2] = (listener){"metrics",          "--allow-metrics",   o->allow_metrics,
                        &o->metrics_socket, &o->metrics_address, &o->metrics_port};
}

static nrd_error *count_passed(int *out)
{
    const char *pid = nrd_env("LISTEN_PID", ""), *fds = nrd_env("LISTEN_FDS", "");
    long long process, n;

    *out = 0;
    if (!nrd_parse_i64(pid, &process) || process != getpid()) {
        return NULL; /* for a parent of ours, or for nobody */
    }
    if (!nrd_parse_i64(fds, &n) || n < 0 || n > N_PROTOCOLS) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "LISTEN_FDS: expected the number of sockets that are passed, 0 to %d "
                          "(http, grpc, metrics), got '%s'",
                          N_PROTOCOLS, fds);
    }
    *out = (int)n;
    return NULL;
}

static bool is_at(int fd, int option, int expected)
{
    int value = 0;
    socklen_t n = sizeof value;
    return getsockopt(fd, SOL_SOCKET, option, &value, &n) == 0 && value == expected;
}

/* Address and port of a listening socket, into what the options hold. */
static nrd_error *take(const listener *l, int fd)
{
    struct sockaddr_storage a;
    socklen_t n = sizeof a;
    char host[NI_MAXHOST], port[NI_MAXSERV];
    long long number;

    if (!l->allowed) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "descriptor %d is a socket for %s, and %s=false", fd,
                          l->name, l->allow_option);
    }
    if (!is_at(fd, SO_TYPE, SOCK_STREAM) || !is_at(fd, SO_ACCEPTCONN, 1)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "descriptor %d (%s): expected a stream socket that listens", fd, l->name);
    }
    if (getsockname(fd, (struct sockaddr *)&a, &n) != 0 ||
        (a.ss_family != AF_INET && a.ss_family != AF_INET6) ||
        getnameinfo((struct sockaddr *)&a, n, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0 ||
        !nrd_parse_i64(port, &number)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "descriptor %d (%s): expected a socket at an IPv4 or IPv6 address", fd,
                          l->name);
    }
    char *address = strdup(host);
    if (!address) {
        return nrd_error_no_memory();
    }
    free(*l->address);
    *l->address = address;
    *l->port = number;
    *l->socket = fd;
    return NULL;
}

/* A protocol's name; NULL in *out: the socket has none. */
static nrd_error *find_named(listener *protocols, const char *name, size_t n, int fd,
                             listener **out)
{
    static const char unit[] = ".socket";
    const size_t n_unit = sizeof unit - 1;

    *out = NULL;
    for (int i = 0; i < N_PROTOCOLS; i++) {
        if (strlen(protocols[i].name) == n && memcmp(protocols[i].name, name, n) == 0) {
            *out = &protocols[i];
        }
    }
    if (*out && *(*out)->socket) {
        return nrd_errorf(
            NRD_ERR_INVALID_ARG,
            "LISTEN_FDNAMES: descriptors %d and %d are both named '%s'; expected one socket for it",
            *(*out)->socket, fd, (*out)->name);
    }
    const bool is_unit = n > n_unit && memcmp(name + n - n_unit, unit, n_unit) == 0;
    const bool is_unknown = n == 7 && memcmp(name, "unknown", n) == 0;
    if (!*out && n > 0 && !is_unit && !is_unknown) {
        return nrd_errorf(
            NRD_ERR_INVALID_ARG,
            "LISTEN_FDNAMES: descriptor %d: expected http, grpc or metrics, got '%.*s'", fd,
            (int)(n < 64 ? n : 64), name);
    }
    return NULL;
}

/* Twice over the names: those that say what they are for, then the others. */
static nrd_error *assign(nrd_options *o, int n_fds, bool named)
{
    listener protocols[N_PROTOCOLS];
    const char *name = nrd_env("LISTEN_FDNAMES", "");

    list_protocols(protocols, o);
    for (int fd = FIRST; fd < FIRST + n_fds; fd++) {
        const size_t n = strcspn(name, ":");
        listener *l;
        if (named) {
            NRD_TRY(find_named(protocols, name, n, fd, &l));
            NRD_TRY(l ? take(l, fd) : NULL);
        } else if (fd != o->http_socket && fd != o->grpc_socket && fd != o->metrics_socket) {
            for (l = protocols; *l->socket; l++) { /* there are no more sockets than protocols */
            }
            NRD_TRY(take(l, fd));
        }
        name += name[n] ? n + 1 : n;
    }
    return NULL;
}

nrd_error *nrd_passed_sockets_take(nrd_options *o)
{
    int n;
    NRD_TRY(count_passed(&n));
    NRD_TRY(assign(o, n, true));
    return assign(o, n, false);
}

void nrd_passed_sockets_inherit(const nrd_options *o, bool yes)
{
    const int fds[N_PROTOCOLS] = {o->http_socket, o->grpc_socket, o->metrics_socket};
    for (int i = 0; i < N_PROTOCOLS; i++) {
        if (fds[i]) {
            (void)fcntl(fds[i], F_SETFD, yes ? 0 : FD_CLOEXEC);
        }
    }
}
