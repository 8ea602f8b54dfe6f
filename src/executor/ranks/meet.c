/* SPDX-License-Identifier: Apache-2.0 */
#include "executor/ranks/meet.h"

#include "base/env.h"
#include "executor/ranks/spawn.h"
#include "executor/ranks/wire.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { POD_PORT = 8003, SLURM_PORTS = 20000, N_SLURM_PORTS = 10000, CONNECT_MS = 2000 };

/* Set by rank 0 for itself: a server that starts again as the same process is found where it was. */
#define AGAIN "NEREID_RANKS_AGAIN"

static nrd_error *set_key(nrd_card *card, const char *key)
{
    if (strlen(key) >= sizeof card->key) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "NEREID_RANKS_KEY has %zu characters, the limit is %zu", strlen(key),
                          sizeof card->key - 1);
    }
    snprintf(card->key, sizeof card->key, "%s", key);
    return NULL;
}

/* HOST, HOST:PORT or [HOST]:PORT. */
static nrd_error *read_address(const char *text, uint16_t port, nrd_card *card)
{
    const char *colon = strrchr(text, ':'), *end = text + strlen(text);
    const bool in_brackets = *text == '[';

    if (in_brackets) {
        end = strchr(text, ']');
        colon = end && end[1] == ':' ? end + 1 : NULL;
        text++;
    } else if (colon && strchr(text, ':') == colon) {
        end = colon;
    } else {
        colon = NULL; /* an IPv6 number */
    }
    const long number = colon ? strtol(colon + 1, NULL, 10) : port;
    if (!end || end == text || end - text >= NRD_TCP_ADDRESS || number < 1 || number > 65535) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "NEREID_RANKS_ADDRESS: expected HOST:PORT of rank 0, got '%s'", text);
    }
    card->n = 1;
    card->port = (uint16_t)number;
    snprintf(card->address[0], NRD_TCP_ADDRESS, "%.*s", (int)(end - text), text);
    return NULL;
}

/* What other hosts may reach. */
static nrd_error *own_addresses(nrd_card *card)
{
    struct ifaddrs *list = NULL;

    if (getifaddrs(&list) != 0) {
        return nrd_errorf(NRD_ERR_UNAVAILABLE, "no list of this host's addresses: %s", strerror(errno));
    }
    for (const struct ifaddrs *at = list; at && card->n < NRD_CARD_ADDRESSES; at = at->ifa_next) {
        const int family = at->ifa_addr ? at->ifa_addr->sa_family : AF_UNSPEC;
        const bool is_up = (at->ifa_flags & IFF_UP) && !(at->ifa_flags & IFF_LOOPBACK);
        if (is_up && (family == AF_INET || family == AF_INET6) &&
            getnameinfo(at->ifa_addr, family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6),
                        card->address[card->n], NRD_TCP_ADDRESS, NULL, 0, NI_NUMERICHOST) == 0 &&
            !strchr(card->address[card->n], '%')) { /* link-local: only its own interface reaches it */
            card->n++;
        }
    }
    freeifaddrs(list);
    return card->n > 0 ? NULL : nrd_errorf(NRD_ERR_UNAVAILABLE, "this host has no address but its own loopback");
}

static nrd_error *random_key(nrd_card *card)
{
    uint8_t bytes[(NRD_CARD_KEY - 1) / 2];

    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes) {
        return nrd_errorf(NRD_ERR_UNAVAILABLE, "no random numbers: %s", strerror(errno));
    }
    for (size_t i = 0; i < sizeof bytes; i++) {
        snprintf(card->key + 2 * i, 3, "%02x", bytes[i]);
    }
    return NULL;
}

/* Rank 0 before the others know of it. */
static nrd_error *open_listener(nrd_card *card, int *listener)
{
    const char *again = nrd_env(AGAIN, NULL);
    char text[64];

    if (again && strlen(again) > NRD_CARD_KEY - 1) {
        card->port = (uint16_t)strtoul(again, NULL, 10);
        const char *key = strchr(again, ' ');
        snprintf(card->key, sizeof card->key, "%s", key ? key + 1 : "");
    }
    NRD_TRY(nrd_tcp_listen(&card->port, listener));
    if (!card->key[0]) {
        NRD_TRY(random_key(card));
    }
    snprintf(text, sizeof text, "%u %s", card->port, card->key);
    setenv(AGAIN, text, 1);
    return NULL;
}

/* Through Open MPI: rank 0 gives its card, the others get it. */
static nrd_error *by_mpi(const nrd_place *p, nrd_card *card, int *listener)
{
    const bool knows = p->rank == 0 && nrd_env(AGAIN, NULL);
    int pair[2], status = 0;
    pid_t pid;

    if (p->rank == 0) {
        NRD_TRY(open_listener(card, listener));
        if (knows) {
            return NULL;
        }
        NRD_TRY(own_addresses(card));
    }
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
        return nrd_errorf(NRD_ERR_UNAVAILABLE, "no socket: %s", strerror(errno));
    }
    pair[1] = nrd_worker_move_up(pair[1]);
    nrd_error *err = nrd_meet_spawn(pair[1], &pid);
    close(pair[1]);
    if (!err) {
        const bool told = nrd_tcp_send(pair[0], card, sizeof *card) && nrd_tcp_receive(pair[0], card, sizeof *card);
        (void)waitpid(pid, &status, 0);
        err = told ? NULL
                   : nrd_errorf(NRD_ERR_UNAVAILABLE, "ranks on several hosts could not meet through Open MPI (see above); "
                                "NEREID_RANKS_ADDRESS=HOST:PORT of rank 0, in the environment of all, does without it");
    }
    close(pair[0]);
    nrd_wire_mend_card(card);
    return err;
}

static nrd_error *from_environment(const nrd_place *p, nrd_card *card)
{
    const char *given = nrd_env("NEREID_RANKS_ADDRESS", NULL), *nodes = nrd_env("SLURM_STEP_NODELIST", nrd_env("SLURM_NODELIST", NULL));

    NRD_TRY(set_key(card, nrd_env("NEREID_RANKS_KEY", "")));
    if (given) {
        return read_address(given, 0, card);
    }
    if (p->is_pod) {
        return read_address(nrd_env("LWS_LEADER_ADDRESS", ""), POD_PORT, card);
    }
    if (nodes && nrd_place_first_node(nodes, card->address[0], NRD_TCP_ADDRESS)) {
        card->n = 1;
        card->port = (uint16_t)(SLURM_PORTS + nrd_place_number("SLURM_JOB_ID", 0) % N_SLURM_PORTS);
        return NULL;
    }
    return nrd_errorf(NRD_ERR_UNSUPPORTED, "the ranks are on several hosts, and this launcher does not say where rank 0 is: set "
                      "NEREID_RANKS_ADDRESS=HOST:PORT of rank 0 in the environment of all");
}

nrd_error *nrd_meet(const nrd_place *p, nrd_card *card, int *listener)
{
    *card = (nrd_card){0};
    *listener = -1;
    if (p->by_mpi && !nrd_env("NEREID_RANKS_ADDRESS", NULL)) {
        return by_mpi(p, card, listener);
    }
    NRD_TRY(from_environment(p, card));
    return p->rank == 0 ? nrd_tcp_listen(&card->port, listener) : NULL;
}

nrd_error *nrd_meet_connect(const nrd_card *card, int *out)
{
    nrd_error *err = nrd_errorf(NRD_ERR_UNAVAILABLE, "rank 0 has no address");

    for (int32_t i = 0; i < card->n && err; i++) {
        nrd_error_free(err);
        err = nrd_tcp_connect(card->address[i], card->port, CONNECT_MS, out);
    }
    return err;
}
