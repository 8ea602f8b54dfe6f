/* SPDX-License-Identifier: Apache-2.0 */
#include "cloud/sign.h"

#include "base/json.h"
#include "base/mem.h"

#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/pem.h>
#include <string.h>

enum { SHA256_BYTES = 32, MAX_KEY = 4096 };

static void put_hex(nrd_str *out, const unsigned char *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        nrd_str_printf(out, "%02x", p[i]);
    }
}

void nrd_sign_escape(nrd_str *out, const char *text, bool keep_slash)
{
    for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
        const bool plain = (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9') ||
                           strchr("-._~", *p) || (keep_slash && *p == '/');
        if (plain) {
            nrd_str_putc(out, (char)*p);
        } else {
            nrd_str_printf(out, "%%%02X", *p);
        }
    }
}

void nrd_sign_query(nrd_str *out, const nrd_sign_request *r)
{
    for (size_t i = 0; i < r->n_query; i++) {
        nrd_str_puts(out, i ? "&" : "");
        nrd_sign_escape(out, r->query[i].name, false);
        nrd_str_putc(out, '=');
        nrd_sign_escape(out, r->query[i].value, false);
    }
}

static void hmac(unsigned char out[SHA256_BYTES], const void *key, size_t n_key, const char *text)
{
    unsigned n = 0;
    (void)HMAC(EVP_sha256(), key, (int)n_key, (const unsigned char *)text, strlen(text), out, &n);
}

/* ---- AWS ---- */

static void put_names(nrd_str *out, const nrd_sign_request *r)
{
    nrd_str_puts(out, "host");
    for (size_t i = 0; i < r->n_fields; i++) {
        nrd_str_printf(out, ";%s", r->fields[i].name);
    }
}

/* `host` stands before all other headers that are used: if-match, range, x-amz-… */
static void put_canonical(nrd_str *out, const nrd_sign_request *r)
{
    nrd_str_printf(out, "GET\n%s\n", r->path);
    nrd_sign_query(out, r);
    nrd_str_printf(out, "\nhost:%s\n", r->host);
    for (size_t i = 0; i < r->n_fields; i++) {
        nrd_str_printf(out, "%s:%s\n", r->fields[i].name, r->fields[i].value);
    }
    nrd_str_putc(out, '\n');
    put_names(out, r);
    nrd_str_putc(out, '\n');
    for (size_t i = 0; i < r->n_fields; i++) {
        if (strcmp(r->fields[i].name, "x-amz-content-sha256") == 0) {
            nrd_str_puts(out, r->fields[i].value);
        }
    }
}

nrd_error *nrd_sign_aws(nrd_str *out, const nrd_sign_request *r, const char *key_id, const char *secret,
                        const char *region, const char *date)
{
    nrd_str text = {0}, first = {0};
    unsigned char hash[SHA256_BYTES], key[SHA256_BYTES];
    char day[9] = "";

    memcpy(day, date, strnlen(date, 8));
    put_canonical(&text, r);
    nrd_error *err = nrd_str_error(&text);
    if (err || EVP_Digest(text.data, text.len, hash, NULL, EVP_sha256(), NULL) != 1) {
        nrd_str_fini(&text);
        return err ? err : nrd_errorf(NRD_ERR_INTERNAL, "OpenSSL has no SHA-256");
    }
    nrd_str_clear(&text);
    nrd_str_printf(&text, "AWS4-HMAC-SHA256\n%s\n%s/%s/s3/aws4_request\n", date, day, region);
    put_hex(&text, hash, sizeof hash);
    nrd_str_printf(&first, "AWS4%s", secret);
    hmac(key, nrd_str_cstr(&first), first.len, day);
    hmac(hash, key, sizeof key, region);
    hmac(key, hash, sizeof hash, "s3");
    hmac(hash, key, sizeof key, "aws4_request");
    hmac(key, hash, sizeof hash, nrd_str_cstr(&text));
    nrd_str_printf(out, "AWS4-HMAC-SHA256 Credential=%s/%s/%s/s3/aws4_request,SignedHeaders=", key_id, day, region);
    put_names(out, r);
    nrd_str_puts(out, ",Signature=");
    put_hex(out, key, sizeof key);
    err = nrd_str_error(&text);
    err = err ? err : nrd_str_error(&first);
    nrd_str_fini(&text);
    nrd_str_fini(&first);
    return err ? err : nrd_str_error(out);
}

/* ---- Azure ---- */

static const char *field(const nrd_sign_request *r, const char *name)
{
    for (size_t i = 0; i < r->n_fields; i++) {
        if (strcmp(r->fields[i].name, name) == 0) {
            return r->fields[i].value;
        }
    }
    return "";
}

nrd_error *nrd_sign_azure(nrd_str *out, const nrd_sign_request *r, const char *account, const char *base64_key)
{
    unsigned char key[MAX_KEY], sum[SHA256_BYTES], text64[64];
    const size_t n_text = strlen(base64_key);
    nrd_str text = {0};

    if (n_text == 0 || n_text % 4 != 0 || n_text > MAX_KEY) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "the key of the account '%s' is not base64", account);
    }
    int n_key = EVP_DecodeBlock(key, (const unsigned char *)base64_key, (int)n_text);
    if (n_key < 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "the key of the account '%s' is not base64", account);
    }
    n_key -= (base64_key[n_text - 1] == '=') + (base64_key[n_text - 2] == '=');
    /* Encoding, language, length, MD5, type, date, if-modified-since: all empty for a GET. */
    nrd_str_printf(&text, "GET\n\n\n\n\n\n\n\n%s\n\n\n%s\n", field(r, "if-match"), field(r, "range"));
    for (size_t i = 0; i < r->n_fields; i++) {
        if (nrd_str_has_prefix(r->fields[i].name, "x-ms-")) {
            nrd_str_printf(&text, "%s:%s\n", r->fields[i].name, r->fields[i].value);
        }
    }
    nrd_str_printf(&text, "/%s%s", account, r->path);
    for (size_t i = 0; i < r->n_query; i++) {
        nrd_str_printf(&text, "\n%s:%s", r->query[i].name, r->query[i].value);
    }
    hmac(sum, key, (size_t)n_key, nrd_str_cstr(&text));
    (void)EVP_EncodeBlock(text64, sum, sizeof sum);
    nrd_str_printf(out, "SharedKey %s:%s", account, (const char *)text64);
    nrd_error *err = nrd_str_error(&text);
    nrd_str_fini(&text);
    OPENSSL_cleanse(key, sizeof key);
    return err ? err : nrd_str_error(out);
}

/* ---- Google ---- */

static nrd_error *put_base64url(nrd_str *out, const void *data, size_t n)
{
    unsigned char *text = malloc(n / 3 * 4 + 8);
    if (!text) {
        return nrd_error_no_memory();
    }
    int len = EVP_EncodeBlock(text, data, (int)n);
    while (len > 0 && text[len - 1] == '=') {
        len--;
    }
    for (int i = 0; i < len; i++) {
        nrd_str_putc(out, text[i] == '+' ? '-' : text[i] == '/' ? '_' : (char)text[i]);
    }
    free(text);
    return nrd_str_error(out);
}

static nrd_error *sign_rsa(nrd_str *out, const char *pem, const char *text, size_t n)
{
    unsigned char sum[1024]; /* RSA of 8192 bits */
    size_t n_sum = sizeof sum;
    BIO *bio = BIO_new_mem_buf(pem, -1);
    EVP_PKEY *key = bio ? PEM_read_bio_PrivateKey(bio, NULL, NULL, (void *)(uintptr_t)"") : NULL;
    EVP_MD_CTX *md = key ? EVP_MD_CTX_new() : NULL;
    const bool ok = md && EVP_PKEY_base_id(key) == EVP_PKEY_RSA && (size_t)EVP_PKEY_size(key) <= sizeof sum &&
                    EVP_DigestSignInit(md, NULL, EVP_sha256(), NULL, key) == 1 &&
                    EVP_DigestSign(md, sum, &n_sum, (const unsigned char *)text, n) == 1;
    EVP_MD_CTX_free(md);
    EVP_PKEY_free(key);
    BIO_free(bio);
    ERR_clear_error();
    return ok ? put_base64url(out, sum, n_sum)
              : nrd_errorf(NRD_ERR_INVALID_ARG, "the private key of the service account cannot be used");
}

nrd_error *nrd_sign_token(nrd_str *out, const char *email, const char *pem_key, const char *audience,
                          const char *scope, time_t now)
{
    static const char head[] = "{\"alg\":\"RS256\",\"typ\":\"JWT\"}";
    nrd_str claim = {0}, text = {0};
    nrd_error *err = NULL;

    nrd_str_puts(&claim, "{\"iss\":");
    nrd_json_put_cstr(&claim, email);
    nrd_str_puts(&claim, ",\"scope\":");
    nrd_json_put_cstr(&claim, scope);
    nrd_str_puts(&claim, ",\"aud\":");
    nrd_json_put_cstr(&claim, audience);
    nrd_str_printf(&claim, ",\"iat\":%lld,\"exp\":%lld}", (long long)now, (long long)now + 3600);
    NRD_TRY_GOTO(nrd_str_error(&claim), err, done);
    NRD_TRY_GOTO(put_base64url(&text, head, sizeof head - 1), err, done);
    nrd_str_putc(&text, '.');
    NRD_TRY_GOTO(put_base64url(&text, claim.data, claim.len), err, done);
    nrd_str_printf(out, "%s.", nrd_str_cstr(&text));
    err = sign_rsa(out, pem_key, text.data, text.len);
done:
    nrd_str_fini(&claim);
    nrd_str_fini(&text);
    return err;
}
