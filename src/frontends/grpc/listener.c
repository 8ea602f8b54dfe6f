/* SPDX-License-Identifier: Apache-2.0 */
#include "frontends/grpc/listener.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

typedef int listen_function(int fd, int n);

static _Thread_local int replacement = -1; /* for the next socket of this thread that listens */

__attribute__((visibility("default"))) listen_function listen;

int listen(int fd, int n)
{
    static _Atomic(listen_function *) found;
    if (replacement >= 0) {
        const int by = replacement;
        replacement = -1;
        return dup3(by, fd, O_CLOEXEC) < 0 ? -1 : 0;
    }
    listen_function *next = atomic_load(&found);
    if (!next) {
        *(void **)&next = dlsym(RTLD_NEXT, "listen");
        atomic_store(&found, next);
    }
    return next(fd, n);
}

nrd_error *nrd_grpc_add_listener(grpc_server *server, int listening, grpc_server_credentials *creds)
{
    const int flags = fcntl(listening, F_GETFL), on = 1;

    if (flags < 0 || fcntl(listening, F_SETFL, flags | O_NONBLOCK) != 0) {
        return nrd_errorf(NRD_ERR_UNAVAILABLE, "descriptor %d: %s", listening, strerror(errno));
    }
    /* As the library sets its own; connections inherit it. */
    (void)setsockopt(listening, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    replacement = listening;
    const int port = grpc_server_add_http2_port(server, "127.0.0.1:0", creds);
    const bool replaced = replacement < 0;
    replacement = -1;
    if (port <= 0 || !replaced) {
        return nrd_errorf(NRD_ERR_UNAVAILABLE,
                          "descriptor %d: the gRPC library cannot listen on it", listening);
    }
    return NULL;
}
