/* SPDX-License-Identifier: Apache-2.0 */
#include "cloud/place.h"

#include "base/env.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
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

static void set(char **field, char *owned)
{
    free(*field);
    *field = owned;
}

/* Cuts what stands before the next slash; more than one slash count as one. */
static char *cut(const char **rest)
{
    const size_t n = strcspn(*rest, "/");
    char *part = nrd_xstrndup(*rest, n);
    *rest += n;
    *rest += strspn(*rest, "/");
    return part;
}

static void set_prefix(nrd_cloud_place *p, const char *rest)
{
    nrd_str text = {0};
    while (*rest) {
        char *part = cut(&rest);
        nrd_str_printf(&text, "%s/", part);
        free(part);
    }
    set(&p->prefix, nrd_xstrdup(nrd_str_cstr(&text)));
    nrd_str_fini(&text);
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
    set(&p->host, nrd_xstrndup(after, n));
    set(&p->origin, nrd_xstrndup(url, (size_t)(after - url) + n));
    set(&p->root, nrd_xstrndup(after + n, n_root));
    return NULL;
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
    const char *scheme = nrd_str_has_prefix(rest, "https://") ? "https://" : "http://";
    const bool has_scheme = nrd_str_has_prefix(rest, scheme);
    const char *after = has_scheme ? rest + strlen(scheme) : rest;
    after += strspn(after, "/");

    if (has_scheme || names_host(after)) {
        if (!names_host(after)) {
            return bad(p, "a store of one's own is named as HOST:PORT");
        }
        char *host = cut(&after), *url = nrd_xasprintf("%s%s", scheme, host);
        nrd_error *err = set_origin(p, url);
        free(host);
        free(url);
        NRD_TRY(err);
    }
    set(&p->bucket, cut(&after));
    set_prefix(p, after);
    return NULL;
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
            char *account = cut(&rest), *dot = strstr(account, ".blob.core.windows.net");
            if (dot) {
                *dot = '\0';
            }
            set(&p->key_id, account);
            if (!account[0]) {
                return bad(p, "expected as://ACCOUNT/CONTAINER/PATH");
            }
        }
        set(&p->bucket, cut(&rest));
        set_prefix(p, rest);
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

/* NAME of [section] in one of AWS's files; owned, NULL: it is not there. */
static char *find_in_ini(const char *text, const char *section, const char *name)
{
    bool inside = false;
    char *found = NULL;

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
            found = nrd_xstrndup(value, (size_t)(end - value));
        }
    }
    return found;
}

static void take_from_ini(char **field, const char *text, const char *section, const char *name)
{
    char *value = (*field)[0] ? NULL : find_in_ini(text, section, name);
    if (value) {
        set(field, value);
    }
}

/* Fills what is still empty from ~/.aws, as `aws configure` writes it. */
static nrd_error *read_aws_files(nrd_cloud_place *p, const char *profile, bool with_keys)
{
    char *home = nrd_path_join(nrd_env("HOME", "/"), ".aws");
    char *section = strcmp(profile, "default") == 0 ? nrd_xstrdup("default") : nrd_xasprintf("profile %s", profile);
    const struct {
        const char *variable, *file, *section;
    } files[] = {{"AWS_SHARED_CREDENTIALS_FILE", "credentials", profile}, {"AWS_CONFIG_FILE", "config", section}};
    nrd_error *err = NULL;

    for (size_t i = 0; i < 2 && !err; i++) {
        char *usual = nrd_path_join(home, files[i].file), *text = NULL;
        const char *path = nrd_env(files[i].variable, usual);
        size_t n = 0;
        if (nrd_path_exists(path)) {
            err = nrd_file_read(&text, &n, path, MAX_FILE);
        }
        if (text) {
            if (with_keys) {
                take_from_ini(&p->key_id, text, files[i].section, "aws_access_key_id");
                take_from_ini(&p->secret, text, files[i].section, "aws_secret_access_key");
                take_from_ini(&p->session, text, files[i].section, "aws_session_token");
            }
            take_from_ini(&p->region, text, files[i].section, "region");
        }
        free(text);
        free(usual);
    }
    free(section);
    free(home);
    return err;
}

static void take(char **field, const nrd_json *o, const char *key, const char *variable)
{
    set(field, nrd_xstrdup(o ? nrd_json_get_str(o, key, "") : nrd_env(variable, "")));
}

static nrd_error *read_s3_user(nrd_cloud_place *p, const nrd_json *o)
{
    const char *profile = o ? nrd_json_get_str(o, "profile", "") : nrd_env("AWS_PROFILE", "");
    const char *endpoint = nrd_env("AWS_ENDPOINT_URL_S3", nrd_env("AWS_ENDPOINT_URL", NULL));
    char *url = NULL;

    take(&p->key_id, o, "key_id", "AWS_ACCESS_KEY_ID");
    take(&p->secret, o, "secret_key", "AWS_SECRET_ACCESS_KEY");
    take(&p->session, o, "session_token", "AWS_SESSION_TOKEN");
    take(&p->region, o, "region", "AWS_DEFAULT_REGION");
    if (!p->region[0] && !o) {
        set(&p->region, nrd_xstrdup(nrd_env("AWS_REGION", "")));
    }
    const bool has_keys = p->key_id[0] && p->secret[0];
    if (!has_keys) {
        set(&p->key_id, nrd_xstrdup(""));
        set(&p->secret, nrd_xstrdup(""));
        set(&p->session, nrd_xstrdup(""));
    }
    NRD_TRY(read_aws_files(p, profile[0] ? profile : "default", !has_keys));
    if (profile[0] && !has_keys && !p->key_id[0]) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "model repository '%s': the profile '%s' has no keys in AWS's files",
                          p->address, profile);
    }
    if (!p->region[0]) {
        set(&p->region, nrd_xstrdup("us-east-1"));
    }
    if (p->origin[0]) {
        return NULL;
    }
    url = endpoint ? nrd_xstrdup(endpoint) : nrd_xasprintf("https://s3.%s.amazonaws.com", p->region);
    nrd_error *err = set_origin(p, url);
    free(url);
    return err;
}

/* ---- as whom: Google, Azure ---- */

static nrd_error *read_gcs_user(nrd_cloud_place *p, const nrd_json *v)
{
    const bool is_keys = nrd_json_is(v, NRD_JSON_OBJECT);

    if (is_keys) {
        take(&p->key_id, v, "key_id", NULL);
        take(&p->secret, v, "secret_key", NULL);
    } else if (v) {
        set(&p->credentials, nrd_xstrdup(nrd_json_str(v, "")));
    } else {
        take(&p->credentials, NULL, NULL, "GOOGLE_APPLICATION_CREDENTIALS");
        if (!p->credentials[0]) {
            take(&p->key_id, NULL, NULL, "GS_ACCESS_KEY_ID");
            take(&p->secret, NULL, NULL, "GS_SECRET_ACCESS_KEY");
        }
    }
    set(&p->region, nrd_xstrdup("auto"));
    return set_origin(p, nrd_env("CLOUD_STORAGE_EMULATOR_ENDPOINT", "https://storage.googleapis.com"));
}

/* NAME=VALUE; of a connection string. Owned; NULL: it is not there. */
static char *find_in_string(const char *text, const char *name)
{
    for (const char *p = text; *p; p += strcspn(p, ";"), p += *p == ';') {
        const size_t n = strlen(name);
        if (strncmp(p, name, n) == 0 && p[n] == '=') {
            return nrd_xstrndup(p + n + 1, strcspn(p + n + 1, ";"));
        }
    }
    return NULL;
}

static nrd_error *read_azure_user(nrd_cloud_place *p, const nrd_json *o)
{
    const char *string = o ? "" : nrd_env("AZURE_STORAGE_CONNECTION_STRING", "");
    const char *type = o ? nrd_json_get_str(o, "auth_type", "") : nrd_env("AZURE_STORAGE_AUTH_TYPE", "");
    char *account = nrd_xstrdup(o ? nrd_json_get_str(o, "account_str", "") : nrd_env("AZURE_STORAGE_ACCOUNT", ""));
    char *url = find_in_string(string, "BlobEndpoint"), *other = find_in_string(string, "AccountName");

    take(&p->secret, o, "account_key", "AZURE_STORAGE_KEY");
    if (other) {
        set(&account, other);
        other = find_in_string(string, "AccountKey");
        set(&p->secret, other ? other : nrd_xstrdup(""));
    }
    if (account[0]) { /* it counts more than the one in the address, as in Triton */
        set(&p->key_id, account);
    } else {
        free(account);
    }
    if (type[0] && strcmp(type, "key") != 0) {
        free(url);
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "model repository '%s': auth_type '%s' is not supported, only key",
                          p->address, type);
    }
    url = url ? url : nrd_xasprintf("https://%s.blob.core.windows.net", p->key_id);
    nrd_error *err = set_origin(p, url);
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
    nrd_cloud_place *p = nrd_xcalloc(1, sizeof *p);
    char **texts[] = {&p->origin, &p->host, &p->root, &p->bucket, &p->prefix, &p->region, &p->key_id, &p->secret,
                      &p->session, &p->credentials};

    *out = NULL;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        *texts[i] = nrd_xstrdup("");
    }
    p->address = nrd_xstrdup(address);
    while (p->kind < NRD_CLOUD_AZURE && !nrd_str_has_prefix(address, schemes[p->kind])) {
        p->kind++;
    }
    nrd_error *err = nrd_str_has_prefix(address, schemes[p->kind]) ? read_where(p) : bad(p, "unknown kind of store");
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
