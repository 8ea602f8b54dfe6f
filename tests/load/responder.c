/* SPDX-License-Identifier: Apache-2.0
 * A server that costs next to nothing: what a load generator can do at best is measured against it.
 *
 *   responder [EVENTS]     0: answers {"text_output":"x"}; else streams of so many events
 *
 * One thread, keep-alive. Prints its port. Ends with its standard input. */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MAX_FDS = 65536, HEAD = 1 << 16 };

static struct {
    char *head; /* of the request that comes in parts */
    size_t n, body_left;
} conns[MAX_FDS];
static char answer[1 << 20];
static size_t n_answer;

static void make_answer(int n_events)
{
    static const char plain[] = "{\"text_output\":\"x\"}",
                      event[] = "data: {\"text_output\":\"x\"}\n\n";
    char *p = answer;
    if (n_events == 0) {
        p += snprintf(
            p, 400,
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
            sizeof plain - 1, plain);
    } else {
        p += snprintf(p, 400,
                      "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: "
                      "chunked\r\n\r\n");
        for (int i = 0; i < n_events && p < answer + sizeof answer - 200; i++) {
            p += snprintf(p, 200, "%zx\r\n%s\r\n", sizeof event - 1, event);
        }
        p += snprintf(p, 100, "0\r\n\r\n");
    }
    n_answer = (size_t)(p - answer);
}

/* Bytes of a request; an answer for each that is complete. */
static int take(int fd, const char *p, size_t n)
{
    while (n > 0) {
        if (conns[fd].body_left > 0) {
            const size_t k = n < conns[fd].body_left ? n : conns[fd].body_left;
            conns[fd].body_left -= k;
            p += k;
            n -= k;
        } else {
            if (conns[fd].n + 1 >= HEAD) {
                return -1;
            }
            conns[fd].head[conns[fd].n++] = *p++;
            conns[fd].head[conns[fd].n] = '\0';
            n--;
            if (conns[fd].n < 4 || memcmp(conns[fd].head + conns[fd].n - 4, "\r\n\r\n", 4) != 0) {
                continue;
            }
            const char *length = strstr(conns[fd].head, "Content-Length: ");
            conns[fd].body_left = length ? strtoul(length + 16, NULL, 10) : 0;
            conns[fd].n = 0;
        }
        if (conns[fd].body_left == 0 &&
            send(fd, answer, n_answer, MSG_NOSIGNAL) != (ssize_t)n_answer) {
            return -1;
        }
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    struct epoll_event e = {.events = EPOLLIN}, events[256];
    socklen_t n_a = sizeof a;
    static char buf[1 << 16];
    const int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0), epoll = epoll_create1(0);

    make_answer(argc > 1 ? (int)strtol(argv[1], NULL, 10) : 0);
    if (listener < 0 || epoll < 0 || bind(listener, (struct sockaddr *)&a, sizeof a) ||
        listen(listener, 4096) || getsockname(listener, (struct sockaddr *)&a, &n_a)) {
        perror("responder");
        return 1;
    }
    printf("%d\n", ntohs(a.sin_port));
    fflush(stdout);
    e.data.fd = listener;
    epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &e);
    e.data.fd = 0; /* standard input: whoever started this is gone when it ends */
    epoll_ctl(epoll, EPOLL_CTL_ADD, 0, &e);
    for (;;) {
        const int n = epoll_wait(epoll, events, 256, -1);
        for (int i = 0; i < n; i++) {
            const int fd = events[i].data.fd;
            if (fd == 0) {
                if (read(0, buf, sizeof buf) <= 0) {
                    return 0;
                }
                continue;
            }
            if (fd == listener) {
                const int c = accept(listener, NULL, NULL);
                if (c >= MAX_FDS) {
                    close(c);
                } else if (c >= 0) {
                    setsockopt(c, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                    conns[c].n = conns[c].body_left = 0;
                    conns[c].head = conns[c].head ? conns[c].head : malloc(HEAD);
                    e.data.fd = c;
                    if (!conns[c].head || epoll_ctl(epoll, EPOLL_CTL_ADD, c, &e)) {
                        return 1;
                    }
                }
                continue;
            }
            const ssize_t got = recv(fd, buf, sizeof buf, MSG_DONTWAIT);
            if (got <= 0 || take(fd, buf, (size_t)got) != 0) {
                close(fd);
            }
        }
    }
}
