/* SPDX-License-Identifier: Apache-2.0 */
#include "executor/ranks/handover.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

typedef struct outcome {
    int32_t code; /* nrd_error_code; -1: started */
    char text[256];
} outcome;

typedef union control {
    char room[CMSG_SPACE(2 * sizeof(int))];
    struct cmsghdr align;
} control;

bool nrd_rank_hand(int sock, int32_t rank, int segment_fd, int socket_fd)
{
    control c = {{0}};
    const int fds[2] = {segment_fd, socket_fd};
    struct iovec part = {&rank, sizeof rank};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = c.room, .msg_controllen = sizeof c.room};
    struct cmsghdr *head = CMSG_FIRSTHDR(&m);

    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof fds);
    memcpy(CMSG_DATA(head), fds, sizeof fds);
    return sendmsg(sock, &m, MSG_NOSIGNAL) == (ssize_t)sizeof rank;
}

bool nrd_rank_take(int sock, int32_t *rank, int fds[2])
{
    control c;
    struct iovec part = {rank, sizeof *rank};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = c.room, .msg_controllen = sizeof c.room};
    const struct cmsghdr *head;

    fds[0] = fds[1] = -1;
    if (recvmsg(sock, &m, MSG_CMSG_CLOEXEC) != (ssize_t)sizeof *rank || !(head = CMSG_FIRSTHDR(&m)) ||
        head->cmsg_type != SCM_RIGHTS || head->cmsg_len != CMSG_LEN(2 * sizeof(int))) {
        return false;
    }
    memcpy(fds, CMSG_DATA(head), 2 * sizeof(int));
    return true;
}

bool nrd_rank_say(int sock, nrd_error *err)
{
    outcome out = {.code = -1};

    if (err) {
        out.code = (int32_t)nrd_error_get_code(err);
        snprintf(out.text, sizeof out.text, "%s", nrd_error_message(err));
        nrd_error_free(err);
    }
    return send(sock, &out, sizeof out, MSG_NOSIGNAL) == (ssize_t)sizeof out;
}

nrd_error *nrd_rank_hear(int sock, const char *gone)
{
    outcome out;

    if (recv(sock, &out, sizeof out, 0) != (ssize_t)sizeof out) {
        return nrd_errorf(NRD_ERR_UNAVAILABLE, "%s", gone);
    }
    out.text[sizeof out.text - 1] = '\0';
    return out.code < 0 ? NULL : nrd_errorf((nrd_error_code)out.code, "%s", out.text);
}

pid_t nrd_rank_peer(int sock)
{
    struct ucred who;
    socklen_t n = sizeof who;
    return getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &who, &n) == 0 && who.uid == getuid() ? who.pid : 0;
}
