/* SPDX-License-Identifier: Apache-2.0
 * Addresses of stores that are read while memory ends. */
#include "unit/no_memory.h"

#include "cloud/place.h"

static nrd_error *read_place(void *user)
{
    nrd_cloud_place *p = NULL;
    nrd_error *err = nrd_cloud_place_new(&p, user);
    if (!err) {
        assert_string_equal(p->bucket, "bucket");
        assert_string_equal(p->prefix, "a/b/");
        assert_non_null(p->host[0] ? p->host : NULL);
    } else {
        assert_null(p);
    }
    nrd_cloud_place_free(p);
    return err;
}

static void test_each_kind(void **state)
{
    static const char *const addresses[] = {"s3://bucket/a//b", "s3://https://localhost:9000/bucket/a/b/", "gs://bucket/a/b",
                                            "as://account.blob.core.windows.net/bucket/a/b"};
    (void)state;
    setenv("AWS_CONFIG_FILE", "/nowhere", 1);
    setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere", 1);
    unsetenv("TRITON_CLOUD_CREDENTIAL_PATH");
    for (size_t i = 0; i < sizeof addresses / sizeof addresses[0]; i++) {
        assert_true(each_allocation_fails(read_place, (void *)(uintptr_t)addresses[i]) > 12);
    }
}

static void test_a_connection_string_names_account_key_and_endpoint(void **state)
{
    nrd_cloud_place *p = NULL;
    (void)state;
    setenv("AZURE_STORAGE_CONNECTION_STRING",
           "AccountName=other;AccountKey=c2VjcmV0;BlobEndpoint=http://localhost:10000/other", 1);
    assert_null(nrd_cloud_place_new(&p, "as://account/bucket/a"));
    assert_string_equal(p->key_id, "other");
    assert_string_equal(p->secret, "c2VjcmV0");
    assert_string_equal(p->origin, "http://localhost:10000");
    assert_string_equal(p->root, "/other");
    nrd_cloud_place_free(p);
    unsetenv("AZURE_STORAGE_CONNECTION_STRING");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_kind),
        cmocka_unit_test(test_a_connection_string_names_account_key_and_endpoint),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
