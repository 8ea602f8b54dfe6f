/* SPDX-License-Identifier: Apache-2.0
 * nereid_cloud.so from outside: the table of cloud/plugin.h. */
#include "cloud/plugin.h"

#include "base/env.h"
#include "base/str.h"
#include "cloud/copy.h"
#include "cloud/list.h"
#include "cloud/store.h"

#include <stdio.h>

static void tell(nrd_cloud_fault *fault, nrd_error *err)
{
    fault->code = err ? (int)nrd_error_get_code(err) : 0;
    snprintf(fault->text, sizeof fault->text, "%s", err ? nrd_error_message(err) : "");
    nrd_error_free(err);
}

static void list(const char *address, bool only_folders, nrd_cloud_visit visit, void *user, nrd_cloud_fault *fault)
{
    nrd_cloud_store *s = NULL;
    nrd_error *err = nrd_cloud_store_new(&s, address);

    err = err ? err : nrd_cloud_list(s, only_folders, visit, user);
    nrd_cloud_store_free(s);
    tell(fault, err);
}

static void folders(const char *address, nrd_cloud_visit visit, void *user, nrd_cloud_fault *fault)
{
    list(address, true, visit, user, fault);
}

static void objects(const char *address, nrd_cloud_visit visit, void *user, nrd_cloud_fault *fault)
{
    list(address, false, visit, user, fault);
}

static void copy(const char *address, const nrd_cloud_file *files, size_t n, nrd_cloud_fault *fault)
{
    nrd_cloud_store *s = NULL;
    nrd_error *err = nrd_cloud_store_new(&s, address);

    err = err ? err : nrd_cloud_copy(s, files, n);
    nrd_cloud_store_free(s);
    tell(fault, err);
}

static const char *mount_dir(const char *address)
{
    return nrd_env(nrd_str_has_prefix(address, "s3://")   ? "TRITON_AWS_MOUNT_DIRECTORY"
                   : nrd_str_has_prefix(address, "gs://") ? "TRITON_GCS_MOUNT_DIRECTORY"
                                                          : "TRITON_AZURE_MOUNT_DIRECTORY",
                   NULL);
}

__attribute__((visibility("default"))) const nrd_cloud_ops nrd_cloud_ops_1 = {
    .folders = folders,
    .objects = objects,
    .copy = copy,
    .mount_dir = mount_dir,
};
