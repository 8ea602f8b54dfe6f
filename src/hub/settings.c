/* SPDX-License-Identifier: Apache-2.0 */
#include "hub/settings.h"

#include "base/env.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"

#include <string.h>
#include <strings.h>

#define HUB "https://huggingface.co"
enum { STALL_SECS = 30, MAX_STALL_SECS = 3600, MAX_TOKEN = 4096 };

static bool is_true(const char *name)
{
    static const char *const words[] = {"1", "ON", "YES", "TRUE"};
    const char *v = nrd_env(name, "");
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (!strcasecmp(v, words[i])) {
            return true;
        }
    }
    return false;
}

/* "~/x" is below the home folder. */
static char *whole(const char *path)
{
    return nrd_str_has_prefix(path, "~/") ? nrd_path_join(nrd_env("HOME", "/tmp"), path + 2) : nrd_xstrdup(path);
}

static char *home(void)
{
    const char *dir = nrd_env("HF_HOME", NULL), *xdg = nrd_env("XDG_CACHE_HOME", NULL);
    if (dir) {
        return whole(dir);
    }
    return xdg ? nrd_path_join(xdg, "huggingface") : nrd_path_join(nrd_env("HOME", "/tmp"), ".cache/huggingface");
}

/* A token stands in a head: what does not fit there is none. */
static char *read_token(const char *home_dir)
{
    const char *given = nrd_env("HF_TOKEN", nrd_env("HUGGING_FACE_HUB_TOKEN", NULL));
    const char *named = nrd_env("HF_TOKEN_PATH", NULL);
    char *text = NULL, *path = named ? whole(named) : nrd_path_join(home_dir, "token");
    size_t n = 0;

    if (given) {
        text = nrd_xstrdup(given);
    } else {
        nrd_error_free(nrd_file_read(&text, &n, path, MAX_TOKEN)); /* most people have none */
    }
    free(path);
    text = text ? text : nrd_xstrdup("");
    n = strspn(text, " \t\r\n");
    memmove(text, text + n, strlen(text + n) + 1);
    text[strcspn(text, " \t\r\n")] = '\0';
    return text;
}

bool nrd_hub_is_loopback(const char *url)
{
    static const char *const hosts[] = {"localhost", "127.0.0.1", "[::1]"};
    const char *host = strstr(url, "://");
    host = host ? host + 3 : url;
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++) {
        const size_t n = strlen(hosts[i]);
        if (!strncasecmp(host, hosts[i], n) && (host[n] == '\0' || host[n] == '/' || host[n] == ':')) {
            return true;
        }
    }
    return false;
}

static nrd_error *check_endpoint(const char *url)
{
    const bool is_http = nrd_str_has_prefix(url, "http://");
    if (!is_http && !nrd_str_has_prefix(url, "https://")) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "HF_ENDPOINT: expected https://HOST, got '%s'", url);
    }
    if (strpbrk(url, "@ \t\r\n?#\"\\")) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "HF_ENDPOINT: expected https://HOST[/PATH] without name, password and "
                          "blanks (a token goes into HF_TOKEN)");
    }
    if (is_http && !nrd_hub_is_loopback(url)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "HF_ENDPOINT: '%s' is not encrypted: use https:// (http:// is only for "
                          "this machine)", url);
    }
    return NULL;
}

nrd_error *nrd_hub_settings_read(nrd_hub_settings *out)
{
    char *dir = home();
    const char *cache = nrd_env("HF_HUB_CACHE", nrd_env("HUGGINGFACE_HUB_CACHE", NULL));
    long long secs = 0;

    *out = (nrd_hub_settings){.endpoint = nrd_xstrdup(nrd_env("HF_ENDPOINT", HUB)), .token = read_token(dir),
                              .cache = cache ? whole(cache) : nrd_path_join(dir, "hub"), .own = nrd_or_end(nrd_env_cache_dir()),
                              .ca_file = nrd_xstrdup(nrd_env("SSL_CERT_FILE", nrd_env("REQUESTS_CA_BUNDLE", ""))),
                              .stall_secs = STALL_SECS, .is_offline = is_true("HF_HUB_OFFLINE")};
    free(dir);
    for (size_t n = strlen(out->endpoint); n > 0 && out->endpoint[n - 1] == '/'; n--) {
        out->endpoint[n - 1] = '\0';
    }
    if (nrd_parse_i64(nrd_env("HF_HUB_DOWNLOAD_TIMEOUT", ""), &secs) && secs > 0 && secs <= MAX_STALL_SECS) {
        out->stall_secs = (long)secs;
    }
    nrd_error *err = check_endpoint(out->endpoint);
    if (err) {
        nrd_hub_settings_fini(out);
    }
    return err;
}

void nrd_hub_settings_fini(nrd_hub_settings *s)
{
    free(s->endpoint);
    free(s->token);
    free(s->cache);
    free(s->own);
    free(s->ca_file);
    *s = (nrd_hub_settings){0};
}
