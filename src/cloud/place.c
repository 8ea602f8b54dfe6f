/* SPDX-License-Identifier: Apache-2.0 */
#include "cloud/place.h"

#include "base/env.h"
#include "base/file.h"
#include "base/json.h"
#include "base/str.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ADDRESS = 4096, MAX_FILE = 1 << 20 };

static const char *const schemes[] = {"s3://", "gs://", "as://"};

/* ---- where ---- */

static nrd_error *bad(const nrd_cloud_place *p, const char *why)
{
    return nrd_errorf(NRD_ERR_INVALID_ARG, "model repository '%s': %s", p->address, why);
}

static nrd_error *set_part(char **field, const char *text, size_t n)
{
    char *copy = strndup(text, n);
    if (!copy) {
        return nrd_error_no_memory();
    }
    free(*field);
    *field = copy;
    return NULL;
}

static nrd_error *set(char **field, const char *text)
{
    return set_part(field, text, strlen(text));
}

/* Cuts what stands before the next slash; more than one slash count as one. */
static nrd_error *cut(char **field, const char **rest)
{
    const size_t n = strcspn(*rest, "/");
    NRD_TRY(set_part(field, *rest, n));
    *rest += n;
    *rest += strspn(*rest, "/");
    return NULL;
}

static nrd_error *set_prefix(nrd_cloud_place *p, const char *rest)
{
    nrd_str text = {0};
    while (*rest) {
        const size_t n = strcspn(rest, "/");
        nrd_str_append(&text, rest, n);
        nrd_str_putc(&text, '/');
        rest += n;
        rest += strspn(rest, "/");
    }
    nrd_error *err = nrd_str_error(&text);
    err = err ? err : set(&p->prefix, nrd_str_cstr(&text));
    nrd_str_fini(&text);
    return err;
}

/* "https://host:port/root" -> origin, host and root. */
static nrd_error *set_origin(nrd_cloud_place *p, const char *url)
{
    const char *after = nrd_str_has_prefix(url, "https://")  ? url + 8
                        : nrd_str_has_prefix(url, "http://") ? url + 7
                                                             : NULL;
    if (!after || !after[strspn(after, "/")]) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "model repository '%s': '%s' is no address of a store, which begins with "
                          "http:// or https://", p->address, url);
    }
    const size_t n = strcspn(after, "/");
    size_t n_root = strlen(after + n);
    while (n_root > 0 && after[n + n_root - 1] == '/') {
        n_root--;
    }
    NRD_TRY(set_part(&p->host, after, n));
    NRD_TRY(set_part(&p->origin, url, (size_t)(after - url) + n));
    return set_part(&p->root, after + n, n_root);
}

/* The origin that is made of these two. */
static nrd_error *set_origin_of(nrd_cloud_place *p, const char *form, const char *part)
{
    const char *at = strchr(form, '*');
    nrd_str url = {0};
    nrd_str_append(&url, form, (size_t)(at - form));
    nrd_str_puts(&url, part);
    nrd_str_puts(&url, at + 1);
    nrd_error *err = nrd_str_error(&url);
    err = err ? err : set_origin(p, nrd_str_cstr(&url));
    nrd_str_fini(&url);
    return err;
}

/* HOST:PORT at the beginning: a store of one's own. */
static bool names_host(const char *text)
{
    const size_t n = strcspn(text, "/");
    const char *colon = memchr(text, ':', n);
    return colon && colon > text && colon + 1 < text + n &&
           strspn(colon + 1, "0123456789") == (size_t)(text + n - colon - 1);
}

static nrd_error *read_s3(nrd_cloud_place *p, const char *rest)
{
    static const char https[] = "https://", http[] = "http://";
    const char *scheme = nrd_str_has_prefix(rest, https) ? https : http;
    const bool has_scheme = nrd_str_has_prefix(rest, scheme);
    const char *after = has_scheme ? rest + strlen(scheme) : rest;
    after += strspn(after, "/");

    if (has_scheme || names_host(after)) {
        if (!names_host(after)) {
            return bad(p, "a store of one's own is named as HOST:PORT");
        }
        NRD_TRY(cut(&p->host, &after));
        NRD_TRY(set_origin_of(p, scheme == https ? "https://*" : "http://*", p->host));
    }
    NRD_TRY(cut(&p->bucket, &after));
    return set_prefix(p, after);
}

static nrd_error *read_where(nrd_cloud_place *p)
{
    const char *rest = p->address + 5;

    if (strlen(p->address) > MAX_ADDRESS) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "the address of a model repository may have %d characters, not %zu",
                          (int)MAX_ADDRESS, strlen(p->address));
    }
    for (const unsigned char *c = (const unsigned char *)p->address; *c; c++) {
        if (*c < ' ' || *c == 127) { /* the names of models may hold all others */
            return bad(p, "control characters have no place in an address");
        }
    }
    if (p->kind == NRD_CLOUD_S3) {
        NRD_TRY(read_s3(p, rest));
    } else {
        rest += strspn(rest, "/");
        if (p->kind == NRD_CLOUD_AZURE) {
            NRD_TRY(cut(&p->key_id, &rest));
            char *dot = strstr(p->key_id, ".blob.core.windows.net");
            if (dot) {
                *dot = '\0';
            }
            if (!p->key_id[0]) {
                return bad(p, "expected as://ACCOUNT/CONTAINER/PATH");
            }
        }
        NRD_TRY(cut(&p->bucket, &rest));
        NRD_TRY(set_prefix(p, rest));
    }
    if (!p->bucket[0]) {
        return bad(p, "No bucket name found in path");
    }
    if (strstr(p->prefix, "/../") || nrd_str_has_prefix(p->prefix, "../") || strcmp(p->bucket, "..") == 0) {
        return bad(p, "'..' has no place in an address");
    }
    return NULL;
}

/* ---- as whom: S3 ---- */

/* NAME of [section] in one of AWS's files; borrows, with its length. NULL: it is not there. */
static const char *find_in_ini(const char *text, const char *section, const char *name, size_t *out_n)
{
    bool inside = false;
    const char *found = NULL;

    for (const char *line = text; line && *line && !found; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        const char *p = line + strspn(line, " \t");
        const size_t n = strcspn(p, "\r\n");
        if (*p == '[') {
            const size_t len = strlen(section);
            inside = n > len + 1 && strncmp(p + 1, section, len) == 0 && p[len + 1] == ']';
            continue;
        }
        const char *eq = memchr(p, '=', n);
        if (!inside || !eq || *p == '#' || *p == ';') {
            continue;
        }
        size_t n_name = (size_t)(eq - p);
        while (n_name > 0 && isspace((unsigned char)p[n_name - 1])) {
            n_name--;
        }
        if (n_name == strlen(name) && strncmp(p, name, n_name) == 0) {
            const char *value = eq + 1, *end = p + n;
            while (value < end && isspace((unsigned char)*value)) {
                value++;
            }
            while (end > value && isspace((unsigned char)end[-1])) {
                end--;
            }
            found = value;
            *out_n = (size_t)(end - value);
        }
    }
    return found;
}

static nrd_error *take_from_ini(char **field, const char *text, const char *section, const char *name)
{
    size_t n = 0;
    const char *value = (*field)[0] ? NULL : find_in_ini(text, section, name, &n);
    return value ? set_part(field, value, n) : NULL;
}

/* What an AWS file has of what is still empty. */
static nrd_error *take_all_from_ini(nrd_cloud_place *p, const char *text, const char *section, bool with_keys)
{
    if (with_keys) {
        NRD_TRY(take_from_ini(&p->key_id, text, section, "aws_access_key_id"));
        NRD_TRY(take_from_ini(&p->secret, text, section, "aws_secret_access_key"));
        NRD_TRY(take_from_ini(&p->session, text, section, "aws_session_token"));
    }
    return take_from_ini(&p->region, text, section, "region");
}

/* Fills what is still empty from ~/.aws, as `aws configure` writes it. */
static nrd_error *read_aws_files(nrd_cloud_place *p, const char *profile, bool with_keys)
{
    nrd_str section = {0};
    nrd_str_printf(&section, strcmp(profile, "default") == 0 ? "%s" : "profile %s", profile);
    nrd_error *err = nrd_str_error(&section);
    const struct {
        const char *variable, *file, *section;
    } files[] = {{"AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials", profile},
                 {"AWS_CONFIG_FILE", ".aws/config", nrd_str_cstr(&section)}};

    for (size_t i = 0; i < 2 && !err; i++) {
        char *usual = NULL, *text = NULL;
        size_t n = 0;
        err = nrd_path_make(&usual, nrd_env("HOME", "/"), files[i].file);
        const char *path = err ? NULL : nrd_env(files[i].variable, usual);
        if (path && nrd_path_exists(path)) {
            err = nrd_file_read(&text, &n, path, MAX_FILE);
        }
        if (text) {
            err = take_all_from_ini(p, text, files[i].section, with_keys);
        }
        free(text);
        free(usual);
    }
    nrd_str_fini(&section);
    return err;
}

static nrd_error *take(char **field, const nrd_json *o, const char *key, const char *variable)
{
    return set(field, o ? nrd_json_get_str(o, key, "") : nrd_env(variable, ""));
}

static nrd_error *read_s3_user(nrd_cloud_place *p, const nrd_json *o)
{
    const char *profile = o ? nrd_json_get_str(o, "profile", "") : nrd_env("AWS_PROFILE", "");
    const char *endpoint = nrd_env("AWS_ENDPOINT_URL_S3", nrd_env("AWS_ENDPOINT_URL", NULL));

    NRD_TRY(take(&p->key_id, o, "key_id", "AWS_ACCESS_KEY_ID"));
    NRD_TRY(take(&p->secret, o, "secret_key", "AWS_SECRET_ACCESS_KEY"));
    NRD_TRY(take(&p->session, o, "session_token", "AWS_SESSION_TOKEN"));
    NRD_TRY(take(&p->region, o, "region", "AWS_DEFAULT_REGION"));
    if (!p->region[0] && !o) {
        NRD_TRY(set(&p->region, nrd_env("AWS_REGION", "")));
    }
    const bool has_keys = p->key_id[0] && p->secret[0];
    if (!has_keys) {
        p->key_id[0] = p->secret[0] = p->session[0] = '\0';
    }
    NRD_TRY(read_aws_files(p, profile[0] ? profile : "default", !has_keys));
    if (profile[0] && !has_keys && !p->key_id[0]) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "model repository '%s': the profile '%s' has no keys in AWS's files",
                          p->address, profile);
    }
    if (!p->region[0]) {
        NRD_TRY(set(&p->region, "us-east-1"));
    }
    if (p->origin[0]) {
        return NULL;
    }
    return endpoint ? set_origin(p, endpoint) : set_origin_of(p, "https://s3.*.amazonaws.com", p->region);
}

/* ---- as whom: Google, Azure ---- */

static nrd_error *read_gcs_user(nrd_cloud_place *p, const nrd_json *v)
{
    const bool is_keys = nrd_json_is(v, NRD_JSON_OBJECT);

    if (is_keys) {
        NRD_TRY(take(&p->key_id, v, "key_id", NULL));
        NRD_TRY(take(&p->secret, v, "secret_key", NULL));
    } else if (v) {
        NRD_TRY(set(&p->credentials, nrd_json_str(v, "")));
    } else {
        NRD_TRY(take(&p->credentials, NULL, NULL, "GOOGLE_APPLICATION_CREDENTIALS"));
        if (!p->credentials[0]) {
            NRD_TRY(take(&p->key_id, NULL, NULL, "GS_ACCESS_KEY_ID"));
            NRD_TRY(take(&p->secret, NULL, NULL, "GS_SECRET_ACCESS_KEY"));
        }
    }
    NRD_TRY(set(&p->region, "auto"));
    return set_origin(p, nrd_env("CLOUD_STORAGE_EMULATOR_ENDPOINT", "https://storage.googleapis.com"));
}

/* NAME=VALUE; of a connection string. Borrows, with its length; NULL: it is not there. */
static const char *find_in_string(const char *text, const char *name, size_t *out_n)
{
    for (const char *p = text; *p; p += strcspn(p, ";"), p += *p == ';') {
        const size_t n = strlen(name);
        if (strncmp(p, name, n) == 0 && p[n] == '=') {
            *out_n = strcspn(p + n + 1, ";");
            return p + n + 1;
        }
    }
    return NULL;
}

static nrd_error *read_azure_user(nrd_cloud_place *p, const nrd_json *o)
{
    const char *string = o ? "" : nrd_env("AZURE_STORAGE_CONNECTION_STRING", "");
    const char *type = o ? nrd_json_get_str(o, "auth_type", "") : nrd_env("AZURE_STORAGE_AUTH_TYPE", "");
    const char *account = o ? nrd_json_get_str(o, "account_str", "") : nrd_env("AZURE_STORAGE_ACCOUNT", "");
    size_t n_account = strlen(account), n_secret = 0, n_url = 0;
    const char *endpoint = find_in_string(string, "BlobEndpoint", &n_url);
    const char *other = find_in_string(string, "AccountName", &n_account);

    NRD_TRY(take(&p->secret, o, "account_key", "AZURE_STORAGE_KEY"));
    if (other) {
        account = other;
        other = find_in_string(string, "AccountKey", &n_secret);
        NRD_TRY(set_part(&p->secret, other ? other : "", n_secret));
    }
    if (n_account > 0) { /* it counts more than the one in the address, as in Triton */
        NRD_TRY(set_part(&p->key_id, account, n_account));
    }
    if (type[0] && strcmp(type, "key") != 0) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "model repository '%s': auth_type '%s' is not supported, only key",
                          p->address, type);
    }
    if (!endpoint) {
        return set_origin_of(p, "https://*.blob.core.windows.net", p->key_id);
    }
    char *url = strndup(endpoint, n_url);
    nrd_error *err = url ? set_origin(p, url) : nrd_error_no_memory();
    free(url);
    return err;
}

/* ---- the file of credentials ---- */

static nrd_error *read_user(nrd_cloud_place *p, const nrd_json *v)
{
    return p->kind == NRD_CLOUD_S3    ? read_s3_user(p, v)
           : p->kind == NRD_CLOUD_GCS ? read_gcs_user(p, v)
                                      : read_azure_user(p, v);
}

static nrd_error *read_credentials(nrd_cloud_place *p)
{
    static const char *const names[] = {"s3", "gs", "as"};
    const char *path = nrd_env("TRITON_CLOUD_CREDENTIAL_PATH", NULL);
    const nrd_json_limits limits = {.max_bytes = MAX_FILE, .max_depth = 8};
    nrd_json_doc *doc = NULL;
    const nrd_json *best = NULL;

    if (!path) {
        return read_user(p, NULL);
    }
    NRD_TRY(nrd_error_wrap(nrd_json_parse_file(&doc, path, &limits), "TRITON_CLOUD_CREDENTIAL_PATH"));
    const nrd_json *all = nrd_json_get(nrd_json_root(doc), names[p->kind]);
    for (size_t i = 0; i < nrd_json_len(all) && nrd_json_is(all, NRD_JSON_OBJECT); i++) {
        const nrd_json *one = &all->child[i];
        if (nrd_str_has_prefix(p->address, one->key) && (!best || one->key_len > best->key_len)) {
            best = one;
        }
    }
    nrd_error *err = best ? read_user(p, best)
                          : nrd_errorf(NRD_ERR_INVALID_ARG,
                                       "model repository '%s': no credential in '%s' is for it (\"%s\")", p->address,
                                       path, names[p->kind]);
    nrd_json_doc_free(doc);
    return err;
}

nrd_error *nrd_cloud_place_new(nrd_cloud_place **out, const char *address)
{
    *out = NULL;
    nrd_cloud_place *p = calloc(1, sizeof *p);
    if (!p) {
        return nrd_error_no_memory();
    }
    char **texts[] = {&p->origin, &p->host, &p->root, &p->bucket, &p->prefix, &p->region, &p->key_id, &p->secret,
                      &p->session, &p->credentials};

    nrd_error *err = set(&p->address, address);
    for (size_t i = 0; i < sizeof texts / sizeof *texts && !err; i++) {
        err = set(texts[i], "");
    }
    while (p->kind < NRD_CLOUD_AZURE && !nrd_str_has_prefix(address, schemes[p->kind])) {
        p->kind++;
    }
    if (!err) {
        err = nrd_str_has_prefix(address, schemes[p->kind]) ? read_where(p) : bad(p, "unknown kind of store");
    }
    err = err ? err : read_credentials(p);
    if (err) {
        nrd_cloud_place_free(p);
        return err;
    }
    *out = p;
    return NULL;
}

void nrd_cloud_place_free(nrd_cloud_place *p)
{
    if (!p) {
        return;
    }
    char *texts[] = {p->address, p->origin, p->host,   p->root,    p->bucket,     p->prefix,
                     p->region,  p->key_id, p->secret, p->session, p->credentials};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        free(texts[i]);
    }
    free(p);
}
