/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/ports.h"

#include "frontends/passed_sockets.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static nrd_error *check_port(const char *option, const char *address, int64_t port)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV}, *found;
    char number[16];
    nrd_error *err = NULL;
    const int on = 1;

    snprintf(number, sizeof number, "%lld", (long long)port);
    const int unknown = getaddrinfo(address, number, &hints, &found);
    if (unknown != 0 && strcmp(option, "--grpc-port") == 0) {
        return NULL; /* gRPC has forms of its own, for example [::1] */
    }
    if (unknown != 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "address '%s': %s; choose another with --host", address, gai_strerror(unknown));
    }
    if (port == 0) {
        freeaddrinfo(found);
        return NULL; /* any free port */
    }
    int fd = socket(found->ai_family, found->ai_socktype | SOCK_CLOEXEC, 0);
    if (fd >= 0) {
        (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (bind(fd, found->ai_addr, found->ai_addrlen) != 0 || listen(fd, 1) != 0) {
            err = errno == EADDRNOTAVAIL
                      ? nrd_errorf(NRD_ERR_UNAVAILABLE, "%s is no address of this machine; choose another with --host", address)
                      : nrd_errorf(NRD_ERR_UNAVAILABLE, "%s:%lld: %s; choose another port with %s", address, (long long)port,
                                   strerror(errno), option);
        }
        close(fd);
    }
    freeaddrinfo(found);
    return err;
}

nrd_error *nrd_ports_check(nrd_options *s)
{
    NRD_TRY(nrd_passed_sockets_take(s));
    if (s->allow_http && !s->http_socket && !s->reuse_http_port) {
        NRD_TRY(check_port("--http-port", s->http_address, s->http_port));
    }
    if (s->allow_grpc && !s->grpc_socket && !s->reuse_grpc_port) {
        NRD_TRY(check_port("--grpc-port", s->grpc_address, s->grpc_port));
    }
    if (s->allow_metrics && !s->metrics_socket) {
        NRD_TRY(check_port("--metrics-port", s->metrics_address, s->metrics_port));
    }
    return s->openai_port > 0 ? check_port("--openai-port", s->http_address, s->openai_port) : NULL;
}
