/* SPDX-License-Identifier: Apache-2.0
 * tools/load/client.h - requests to one server, any number at a time, from one thread, whatever carries them.
 *
 * Purpose   What the driver of a load needs of HTTP and of gRPC.
 * Owner     One thread: everything is called by it, callbacks come within wait and post.
 * Errors    Of opening: the URL, the address, TLS. Of a request: `end` with a reason.
 * Lifetime  open/free. A body is borrowed until `end`.
 */
#ifndef NRD_TOOLS_LOAD_CLIENT_H
#define NRD_TOOLS_LOAD_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The status of an answer, as HTTP has it; gRPC's OK and INVALID_ARGUMENT are these too. */
enum { NRD_CLIENT_FINE = 200, NRD_CLIENT_REFUSED = 400 };

typedef struct nrd_client_config {
    const char *url;     /* "localhost:8000", "http://host:port/prefix", "https://…" */
    const char *path;    /* behind the URL's own; of gRPC: the method */
    const char *headers; /* "Name: value" lines with \r\n behind each, or "" */
    const char *ca_cert; /* of https; NULL: the system's */
    double timeout_s;    /* nothing came for so long: the request has failed */
    bool gets;           /* HTTP: GET, of bodies that are empty */
    bool streams;        /* gRPC: requests go over streams that are kept, and end with their last answer */
    /* data: an event of a stream, else the body; of gRPC a message. Borrows. */
    void (*piece)(void *tag, int status, const char *data, size_t n);
    void (*end)(void *tag, int status, const char *why); /* why NULL: all of the answer came */
} nrd_client_config;

typedef struct nrd_client_ops {
    /* The strings of the configuration are copied. False: `why` says what is wrong. */
    bool (*open)(void **out, const nrd_client_config *c, char *why, size_t n_why);
    void (*free)(void *client); /* without `end` of what is under way */
    void (*post)(void *client, void *tag, const char *body, size_t n);
    /* Serves connections until something has happened, or until that time (base/clock.h). */
    void (*wait)(void *client, uint64_t until_ns);
    size_t (*connections)(const void *client); /* opened so far */
} nrd_client_ops;

#endif
