/* SPDX-License-Identifier: Apache-2.0 */
#include "frontends/ports.h"

#include <errno.h>
#include <netdb.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

typedef struct service {
    const char *name, *option, *address_option, *address;
    int64_t port;
    bool opens; /* a port that nobody else may have */
} service;

/* An errno; 0: it can be had. Bound and not listened on: who connects meanwhile is refused as before. */
static int try_bind(const struct addrinfo *a)
{
    const int on = 1, fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
    int failed = fd < 0 ? errno : 0;

    if (fd >= 0) {
        (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        failed = bind(fd, a->ai_addr, a->ai_addrlen) != 0 ? errno : 0;
        close(fd);
    }
    return failed;
}

static nrd_error *check(const service *s, const char *address_option)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV}, *found = NULL;
    char number[24];
    int failed = 0;

    snprintf(number, sizeof number, "%lld", (long long)s->port);
    const int unknown = getaddrinfo(s->address, number, &hints, &found);
    address_option = address_option ? address_option : s->address_option;
    if (unknown != 0 && !strcmp(s->name, "GRPC")) {
        return NULL; /* gRPC has forms of its own, for example [::1] */
    }
    if (unknown != 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "address '%s': %s; choose another with %s", s->address, gai_strerror(unknown),
                          address_option);
    }
    for (const struct addrinfo *a = found; a && s->port > 0; a = a->ai_next) { /* the first that can be had serves */
        failed = try_bind(a);
        if (failed == 0) {
            break;
        }
    }
    freeaddrinfo(found);
    if (failed == EADDRNOTAVAIL) {
        return nrd_errorf(NRD_ERR_UNAVAILABLE, "%s is no address of this machine; choose another with %s", s->address, address_option);
    }
    if (failed == EADDRINUSE) { /* Triton's words, and what helps */
        return nrd_errorf(NRD_ERR_UNAVAILABLE, "failed to start %s service: Socket '%s:%lld' already in use; choose another port with %s",
                          s->name, s->address, (long long)s->port, s->option);
    }
    return failed ? nrd_errorf(NRD_ERR_UNAVAILABLE, "failed to start %s service: Socket '%s:%lld': %s; choose another port with %s",
                               s->name, s->address, (long long)s->port, strerror(failed), s->option)
                  : NULL;
}

nrd_error *nrd_ports_check(const nrd_options *o, const char *address_option)
{
#ifdef NRD_HAVE_GRPC
    const bool has_grpc = o->allow_grpc;
#else
    const bool has_grpc = false;
#endif
    const service all[] = {
        {"HTTP", "--http-port", "--http-address", o->http_address, o->http_port, o->allow_http && !o->http_socket && !o->reuse_http_port},
        {"GRPC", "--grpc-port", "--grpc-address", o->grpc_address, o->grpc_port, has_grpc && !o->grpc_socket && !o->reuse_grpc_port},
        {"Metrics", "--metrics-port", "--metrics-address", o->metrics_address, o->metrics_port, o->allow_metrics && !o->metrics_socket},
        {"OpenAI", "--openai-port", "--http-address", o->http_address, o->openai_port,
         o->allow_openai && o->openai_port > 0 && !o->reuse_http_port},
        {"Sagemaker", "--sagemaker-port", "--http-address", o->http_address, o->sagemaker_port, o->allow_sagemaker},
        {"Vertex AI", "--vertex-ai-port", "--http-address", o->http_address, o->vertex_port, o->allow_vertex},
    };
    nrd_error *err = NULL;

    for (size_t i = 0; i < sizeof all / sizeof *all && !err; i++) {
        err = all[i].opens ? check(&all[i], address_option) : NULL;
    }
    return err;
}
