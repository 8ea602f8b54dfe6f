/* SPDX-License-Identifier: Apache-2.0 */
#include "hub/refusal.h"

#include <stdio.h>
#include <string.h>

static nrd_error *not_there(const nrd_hub_settings *s, const nrd_hub_id *id)
{
    return s->token[0] ? nrd_errorf(NRD_ERR_NOT_FOUND, "%s has no model '%s', or this token may not see it: check the name "
                                    "and HF_TOKEN", s->endpoint, id->repo)
                       : nrd_errorf(NRD_ERR_NOT_FOUND, "%s has no model '%s', or it is private: check the name, or set "
                                    "HF_TOKEN", s->endpoint, id->repo);
}

static nrd_error *gated(const nrd_hub_settings *s, const nrd_hub_id *id)
{
    return nrd_errorf(NRD_ERR_UNAVAILABLE, "'%s' is gated: accept its terms at %s/%s and set HF_TOKEN to a token of %s",
                      id->repo, s->endpoint, id->repo, s->token[0] ? "that account" : "your account");
}

static nrd_error *slow_down(const nrd_hub_settings *s, const nrd_hub_reply *r)
{
    char wait[64] = "";
    if (r->wait_secs > 0) {
        snprintf(wait, sizeof wait, " %ld seconds", r->wait_secs);
    }
    return nrd_errorf(NRD_ERR_UNAVAILABLE, "%s asks to wait%s (HTTP status 429): try again then%s", s->endpoint, wait,
                      s->token[0] ? "" : ", or set HF_TOKEN, which has a higher limit");
}

static nrd_error *of_repo(const nrd_hub_settings *s, const nrd_hub_id *id, const nrd_hub_reply *r,
                          const nrd_hub_fault *fault)
{
    if (!strcmp(r->code, "GatedRepo")) {
        return gated(s, id);
    }
    if (!strcmp(r->code, "RevisionNotFound")) {
        return nrd_errorf(NRD_ERR_NOT_FOUND, "'%s' has no revision '%s': see %s/%s/tree/main", id->repo, id->rev,
                          s->endpoint, id->repo);
    }
    if (r->status == 404 || !strcmp(r->code, "RepoNotFound") || (r->status == 401 && !s->token[0])) {
        return not_there(s, id);
    }
    if (r->status == 401) {
        return nrd_errorf(NRD_ERR_UNAVAILABLE, "%s does not take the token (HTTP status 401): make one at %s/settings/tokens "
                          "and set HF_TOKEN", s->endpoint, s->endpoint);
    }
    if (r->status == 403) {
        return nrd_errorf(NRD_ERR_UNAVAILABLE, "%s refuses '%s' (HTTP status 403%s%s): accept its terms at %s/%s and set "
                          "HF_TOKEN", s->endpoint, id->repo, r->message[0] ? ": " : "", r->message, s->endpoint, id->repo);
    }
    return nrd_errorf((nrd_error_code)fault->code, "%s", fault->text);
}

nrd_error *nrd_hub_refusal(const nrd_hub_settings *s, const nrd_hub_id *id, const char *file,
                           const nrd_hub_reply *r, const nrd_hub_fault *fault)
{
    if (!fault->code) {
        return NULL;
    }
    if (r->status == 429) {
        return slow_down(s, r);
    }
    const char *host = id->url[0] ? id->url : s->endpoint;
    nrd_error *err = NULL;
    if (r->status >= 400 && r->status < 500 && !id->url[0]) {
        err = of_repo(s, id, r, fault);
    } else if (fault->code == NRD_ERR_UNAVAILABLE) {
        err = nrd_errorf(NRD_ERR_UNAVAILABLE, "%s: %s; try again: what has come is kept", host, fault->text);
    } else {
        err = nrd_errorf((nrd_error_code)fault->code, "%s: %s", host, fault->text);
    }
    return file ? nrd_error_wrap(err, "%s", file) : err;
}
