# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for S3, Google Cloud Storage (XML) and Azure Blob Storage on the loopback address. They check every
signature by their own arithmetic, and do wrong on demand."""
import base64
import hashlib
import hmac
import http.server
import json
import pathlib
import subprocess
import threading
import urllib.parse
from xml.sax.saxutils import escape

KEY_ID, SECRET, REGION = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "eu-test-1"
ACCOUNT, ACCOUNT_KEY = "testaccount", base64.b64encode(b"0123456789abcdef0123456789abcdef").decode()


def quote(text, safe="-_.~"):
    return urllib.parse.quote(text, safe=safe)


class Cloud:
    """objects: {name: bytes} of one bucket or container called `bucket`."""

    def __init__(self, objects, kind="s3", page=3, keys=(KEY_ID, SECRET), region=REGION, token=None, session=None):
        self.objects, self.kind, self.page, self.keys = dict(objects), kind, page, keys
        self.region, self.token, self.session = region, token, session
        self.requests, self.refused, self.faults, self.lock = [], [], [], threading.Lock()
        self.etags = {}    # name: what is listed in place of the content's
        self.sizes = {}    # name: a size that is listed in place of the true one
        self.answer = None  # takes the place of every list
        handler = type("Handler", (Handler,), {"cloud": self})
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def etag(self, name):
        return self.etags.get(name, hashlib.md5(self.objects[name]).hexdigest())

    def gets(self, name=None):
        return [r for r in self.requests if r["object"] and (name is None or r["object"] == name)]

    def lists(self):
        return [r for r in self.requests if not r["object"]]

    def fault(self, object, times=1, **what):
        """The next `times` gets of the object go wrong."""
        self.faults += [dict(what, object=object) for _ in range(times)]

    def take_fault(self, name):
        with self.lock:
            for i, f in enumerate(self.faults):
                if f["object"] in (name, "*"):
                    return self.faults.pop(i)
        return {}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    # ---- signatures ----

    def why_refused(self, path, query):
        c, f = self.cloud, self.headers
        given = f.get("authorization", "")
        if c.token:
            return None if given == f"Bearer {c.token}" else "a bearer token was expected"
        if not c.keys:
            return None if not given else "nobody should sign"
        if c.kind == "azure":
            return None if given == self.azure(path, query) else "AuthenticationFailed"
        return None if given == self.aws(path, query, given) else "SignatureDoesNotMatch"

    def aws(self, path, query, given):
        c, f = self.cloud, self.headers
        if "SignedHeaders=" not in given or "x-amz-date" not in f:
            return "a signature"
        names = given.split("SignedHeaders=")[1].split(",")[0].split(";")
        must = ["host", "x-amz-content-sha256", "x-amz-date"] + (["x-amz-security-token"] if c.session else [])
        if names != sorted(names) or any(n not in names for n in must) or f.get("x-amz-security-token") != c.session:
            return "other headers"
        canonical = "\n".join(["GET", quote(path, "/-_.~"),
                               "&".join(f"{quote(k)}={quote(v)}" for k, v in sorted(query)),
                               "".join(f"{n}:{f[n].strip()}\n" for n in names), ";".join(names),
                               f["x-amz-content-sha256"]])
        day, key = f["x-amz-date"][:8], ("AWS4" + c.keys[1]).encode()
        scope = f"{day}/{c.region}/s3/aws4_request"
        for word in (day, c.region, "s3", "aws4_request"):
            key = hmac.new(key, word.encode(), "sha256").digest()
        text = "\n".join(["AWS4-HMAC-SHA256", f["x-amz-date"], scope, hashlib.sha256(canonical.encode()).hexdigest()])
        return (f"AWS4-HMAC-SHA256 Credential={c.keys[0]}/{scope},SignedHeaders={';'.join(names)},"
                f"Signature={hmac.new(key, text.encode(), 'sha256').hexdigest()}")

    def azure(self, path, query):
        c, f = self.cloud, self.headers
        own = "".join(f"{n.lower()}:{f[n].strip()}\n" for n in sorted(f, key=str.lower) if n.lower().startswith("x-ms-"))
        text = "\n".join(["GET", "", "", "", "", "", "", "", f.get("if-match", ""), "", "", f.get("range", ""), own])
        text += f"/{c.keys[0]}{self.path.split('?')[0]}" + "".join(f"\n{k}:{v}" for k, v in sorted(query))
        mac = hmac.new(base64.b64decode(c.keys[1]), text.encode(), "sha256").digest()
        return f"SharedKey {c.keys[0]}:{base64.b64encode(mac).decode()}"

    # ---- answers ----

    def send(self, status, body=b"", fields=None, length=None):
        self.send_response(status)
        for k, v in (fields or {}).items():
            self.send_header(k, v)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        self.wfile.write(body)

    def error(self, status, code, message="why", more="", fields=None):
        self.send(status, f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message>{more}</Error>".encode(),
                  fields)

    def do_GET(self):
        c = self.cloud
        raw, _, query = self.path.partition("?")
        path, query = urllib.parse.unquote(raw), urllib.parse.parse_qsl(query, keep_blank_values=True)
        parts = path[1:].split("/", 2 if c.kind == "azure" else 1)
        parts = parts[1:] if c.kind == "azure" and parts[0] == ACCOUNT else parts
        name = parts[1] if len(parts) > 1 else ""
        with c.lock:
            c.requests.append({"object": name, "query": dict(query), "range": self.headers.get("range"),
                               "if-match": self.headers.get("if-match"), "raw": self.path})
        if why := self.why_refused(path, query):
            c.refused.append(why)
            return self.error(403, why, "the signature is another")
        if parts[0] != "bucket":
            return self.error(404, "ContainerNotFound" if c.kind == "azure" else "NoSuchBucket", "no such bucket")
        return self.get(name) if name else self.list(dict(query))

    def list(self, query):
        c = self.cloud
        if c.answer is not None:
            return self.send(200, c.answer(query) if callable(c.answer) else c.answer)
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        after = query.get("marker" if c.kind == "azure" else "continuation-token", "")
        found = {}
        for name in sorted(c.objects):
            if name.startswith(prefix):
                rest = name[len(prefix):]
                if delimiter and delimiter in rest:
                    found[prefix + rest.split(delimiter)[0] + delimiter] = None
                else:
                    found[name] = name
        keys = [k for k in sorted(found) if k > after]
        more, keys = len(keys) > c.page, keys[:c.page]
        items = []
        for k in keys:
            etag, size = (c.etag(k), c.sizes.get(k, len(c.objects[k]))) if found[k] else ("", 0)
            if c.kind == "azure":
                items.append(f"<Blob><Name>{escape(k)}</Name><Properties><Content-Length>{size}</Content-Length>"
                             f"<Etag>{etag}</Etag></Properties></Blob>" if found[k]
                             else f"<BlobPrefix><Name>{escape(k)}</Name></BlobPrefix>")
            else:
                items.append(f"<Contents><Key>{escape(k)}</Key><Size>{size}</Size><ETag>&quot;{etag}&quot;</ETag></Contents>"
                             if found[k] else f"<CommonPrefixes><Prefix>{escape(k)}</Prefix></CommonPrefixes>")
        if c.kind == "azure":
            text = f"<EnumerationResults><Prefix>{escape(prefix)}</Prefix><Blobs>{''.join(items)}</Blobs>" \
                   f"<NextMarker>{escape(keys[-1]) if more else ''}</NextMarker></EnumerationResults>"
        else:
            text = f"<ListBucketResult><Name>bucket</Name><Prefix>{escape(prefix)}</Prefix>" \
                   f"<IsTruncated>{str(more).lower()}</IsTruncated>{''.join(items)}" + \
                   (f"<NextContinuationToken>{escape(keys[-1])}</NextContinuationToken>" if more else "") + \
                   "</ListBucketResult>"
        self.send(200, b"<?xml version='1.0' encoding='UTF-8'?>" + text.encode())

    def get(self, name):
        c = self.cloud
        fault = c.take_fault(name)
        if fault.get("status"):
            return self.error(fault["status"], fault.get("code", "InternalError"), fault.get("message", "later"),
                              fault.get("more", ""), fault.get("fields"))
        if name not in c.objects:
            return self.error(404, "NoSuchKey", "no such object")
        data = c.objects[name]
        if self.headers.get("if-match") not in (None, f'"{c.etag(name)}"'):
            return self.error(412, "PreconditionFailed", "another ETag")
        first, last = 0, len(data) - 1
        if self.headers.get("range"):
            first, last = (int(x) for x in self.headers["range"].split("=")[1].split("-"))
        body = data[first:last + 1]
        fields = {"Content-Range": fault.get("content-range") or f"bytes {first}-{first + len(body) - 1}/{len(data)}"}
        if "wait" in fault:
            fault["wait"].wait(60)
        if fault.get("whole"):
            return self.send(200, data)
        if "cut" in fault:  # the length is right, then the connection ends
            self.send(206, body[:fault["cut"]], fields, len(body))
            self.close_connection = True
            return None
        if "short" in fault:  # says that this is all
            return self.send(206, body[:fault["short"]], fields)
        if "long" in fault:
            return self.send(206, body + fault["long"], fields)
        return self.send(206, body, fields)


class Tokens:
    """Google's server of access tokens: checks who asks, and gives `token`."""

    def __init__(self, folder, token):
        self.token, self.asked = token, []
        key = pathlib.Path(folder) / "service.key"
        subprocess.run(["openssl", "genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048", "-out", str(key)],
                       check=True, capture_output=True)
        self.public = pathlib.Path(folder) / "service.pub"
        subprocess.run(["openssl", "pkey", "-in", str(key), "-pubout", "-out", str(self.public)], check=True)
        outer = self

        class TokenHandler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *args):
                pass

            def reply(self, status, body):
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def do_GET(self):  # the metadata server of a machine
                good = self.path == "/computeMetadata/v1/instance/service-accounts/default/token" and \
                    self.headers.get("Metadata-Flavor") == "Google"
                outer.asked.append("machine")
                self.reply(200 if good and outer.token else 404, {"access_token": outer.token, "expires_in": 3600})

            def do_POST(self):
                form = dict(urllib.parse.parse_qsl(self.rfile.read(int(self.headers["Content-Length"])).decode()))
                outer.asked.append(form)
                why = outer.check(form)
                self.reply(*((400, {"error": "invalid_grant", "error_description": why}) if why
                             else (200, {"access_token": outer.token, "expires_in": 3600})))
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), TokenHandler)
        self.server.daemon_threads = True
        self.host = f"127.0.0.1:{self.server.server_address[1]}"
        self.uri = f"http://{self.host}/token"
        self.account = {"type": "service_account", "client_email": "me@test", "private_key": key.read_text(),
                        "token_uri": self.uri}
        self.user = {"type": "authorized_user", "client_id": "id", "client_secret": "se cret&", "refresh_token": "re/fresh",
                     "token_uri": self.uri}
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def check(self, form):
        if form.get("grant_type") == "refresh_token":
            return None if (form["client_id"], form["client_secret"], form["refresh_token"]) == ("id", "se cret&", "re/fresh") \
                else "another user"
        head, claim, sign = form["assertion"].split(".")

        def decode(x):
            return base64.urlsafe_b64decode(x + "=" * (-len(x) % 4))
        (self.public.parent / "sign").write_bytes(decode(sign))
        (self.public.parent / "text").write_bytes(f"{head}.{claim}".encode())
        good = subprocess.run(["openssl", "dgst", "-sha256", "-verify", str(self.public), "-signature",
                               str(self.public.parent / "sign"), str(self.public.parent / "text")], capture_output=True)
        claim = json.loads(decode(claim))
        if good.returncode or json.loads(decode(head)) != {"alg": "RS256", "typ": "JWT"}:
            return "the signature is another"
        return None if claim["iss"] == "me@test" and claim["aud"] == self.uri and claim["exp"] - claim["iat"] == 3600 \
            and claim["scope"].endswith("devstorage.read_only") else "another claim"
