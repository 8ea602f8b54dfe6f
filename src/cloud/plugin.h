/* SPDX-License-Identifier: Apache-2.0
 * cloud/plugin.h - what nereid_cloud.so does for the model repository.
 *
 * Purpose   Listing and copying what lies in S3 (and what speaks its protocol), Google Cloud Storage and
 *           Azure Blob Storage. The server is not linked with libcurl, expat and OpenSSL: who has no
 *           repository there needs none of them. This table is what stands between.
 * Owner     Any thread; calls return when all is done.
 * Errors    A code as in base/error.h and a text that names the object; the two sides share no error
 *           objects. INVALID_ARG: the address, the credentials' file or a name; NOT_FOUND: the bucket or
 *           the object; UNAVAILABLE: the store did not answer, or not completely; INTERNAL: it refuses.
 * Units     Sizes in bytes.
 */
#ifndef NRD_CLOUD_PLUGIN_H
#define NRD_CLOUD_PLUGIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct nrd_cloud_fault {
    int code; /* 0: none */
    char text[1024];
} nrd_cloud_fault;

/* `name`: below the address that was listed, without a slash before it. `etag`: changes with the content.
 * false: no more, which is not a fault. */
typedef bool (*nrd_cloud_visit)(void *user, const char *name, uint64_t size, const char *etag);

/* A file to be copied: all borrowed. */
typedef struct nrd_cloud_file {
    const char *name; /* as listed */
    const char *etag;
    const char *path; /* of the local file, which must not exist; its folder must */
    uint64_t size;
} nrd_cloud_file;

typedef struct nrd_cloud_ops {
    /* Names of the folders at an address (s3://, gs://, as://). */
    void (*folders)(const char *address, nrd_cloud_visit visit, void *user, nrd_cloud_fault *fault);
    /* Every object below an address, at any depth. */
    void (*objects)(const char *address, nrd_cloud_visit visit, void *user, nrd_cloud_fault *fault);
    /* Copies objects below an address, pieces of them at the same time; what breaks off goes on where it
     * broke. An object that is not any more what was listed is a fault. */
    void (*copy)(const char *address, const nrd_cloud_file *files, size_t n, nrd_cloud_fault *fault);
    /* The folder for copies that the environment names for this kind of store, or NULL. */
    const char *(*mount_dir)(const char *address);
} nrd_cloud_ops;

/* The one symbol of the plug-in; changes its name with the table. */
#define NRD_CLOUD_SYMBOL "nrd_cloud_ops_1"

#endif
