/* SPDX-License-Identifier: Apache-2.0
 * Signatures beside the examples that Amazon publishes ("Authenticating requests: using the Authorization
 * header", GET object and GET bucket). */
#include "cloud/sign.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#define EMPTY "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

static void check(const nrd_sign_request *r, const char *signature)
{
    nrd_str out = {0};
    nrd_error *err = nrd_sign_aws(&out, r, "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "us-east-1",
                                  "20130524T000000Z");
    assert_null(err);
    const char *at = strstr(nrd_str_cstr(&out), "Signature=");
    assert_non_null(at);
    assert_string_equal(at + 10, signature);
    nrd_str_fini(&out);
}

static void test_getting_an_object_is_signed_as_published(void **state)
{
    const nrd_sign_field fields[] = {
        {"range", "bytes=0-9"}, {"x-amz-content-sha256", EMPTY}, {"x-amz-date", "20130524T000000Z"}};
    (void)state;
    check(&(nrd_sign_request){.host = "examplebucket.s3.amazonaws.com", .path = "/test.txt", .fields = fields, .n_fields = 3},
          "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
}

static void test_listing_a_bucket_is_signed_as_published(void **state)
{
    const nrd_sign_field fields[] = {{"x-amz-content-sha256", EMPTY}, {"x-amz-date", "20130524T000000Z"}};
    const nrd_sign_field query[] = {{"max-keys", "2"}, {"prefix", "J"}};
    (void)state;
    check(&(nrd_sign_request){.host = "examplebucket.s3.amazonaws.com", .path = "/", .query = query, .n_query = 2,
                              .fields = fields, .n_fields = 2},
          "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}

static void test_all_but_plain_characters_are_escaped(void **state)
{
    nrd_str out = {0};
    (void)state;
    nrd_sign_escape(&out, "a/b c+~\xc3\xa4%", true);
    assert_string_equal(nrd_str_cstr(&out), "a/b%20c%2B~%C3%A4%25");
    nrd_str_clear(&out);
    nrd_sign_escape(&out, "a/b", false);
    assert_string_equal(nrd_str_cstr(&out), "a%2Fb");
    nrd_str_fini(&out);
}

static void test_keys_that_are_none_are_errors(void **state)
{
    const nrd_sign_request r = {.host = "h", .path = "/"};
    static const char *const keys[] = {"", "a", "abc=d", "!!!!"};
    nrd_str out = {0};
    (void)state;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        nrd_error *err = nrd_sign_azure(&out, &r, "account", keys[i]);
        assert_non_null(err);
        nrd_error_free(err);
    }
    nrd_error *err = nrd_sign_token(&out, "me", "-----BEGIN PRIVATE KEY-----\nAAAA\n", "a", "s", 0);
    assert_non_null(err);
    nrd_error_free(err);
    nrd_str_fini(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_getting_an_object_is_signed_as_published),
        cmocka_unit_test(test_listing_a_bucket_is_signed_as_published),
        cmocka_unit_test(test_all_but_plain_characters_are_escaped),
        cmocka_unit_test(test_keys_that_are_none_are_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
