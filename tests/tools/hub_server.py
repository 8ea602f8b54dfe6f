# SPDX-License-Identifier: Apache-2.0
"""A hub of models on this machine: descriptions, trees in pages, files, large ones on a second port, and every
way to go wrong that a test asks for."""
import functools
import hashlib
import http.server
import json
import random
import re
import threading
import time
import urllib.parse

LFS_FROM = 4096  # bytes
BIG = random.Random(5).randbytes((21 << 20) + 4321)  # six pieces


@functools.lru_cache
def git_hash(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


@functools.lru_cache
def sha256(data):
    return hashlib.sha256(data).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def send(self, status, body=b"", **fields):
        self.send_response(status)
        for k, v in fields.items():
            self.send_header(k.replace("_", "-"), str(v))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_data(self, data, etag):
        """With ranges, and cut off, slowed or changed as the hub is told to."""
        hub, first, status, fields = self.server.hub, 0, 200, {"ETag": f'"{etag}"'}
        if self.headers.get("If-Match", f'"{etag}"') != f'"{etag}"':
            return self.send(412)
        m = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if m and hub.ranges:
            first, last = int(m[1]), min(int(m[2]), len(data) - 1)
            fields["Content-Range"] = f"bytes {first}-{last}/{hub.total or len(data)}"
            data, status = data[first:last + 1], 206
        if hub.corrupt:
            data = bytes(b ^ 1 for b in data)
        with hub.lock:
            cut = hub.cuts > 0 and len(data) > hub.cut_after
            hub.cuts -= cut
            hub.sent.append((self.path, first, len(data)))
        if cut:
            self.send_response(status)
            for k, v in fields.items():
                self.send_header(k, v)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[:hub.cut_after])
            self.close_connection = True
            return None
        if hub.delay:
            time.sleep(hub.delay)
        return self.send(status, data + hub.extra, **fields)

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        hub, url = self.server.hub, urllib.parse.urlsplit(self.path)
        with hub.lock:
            hub.asked.append((self.server.name, self.path, self.headers.get("Authorization")))
            busy = hub.busy > 0
            hub.busy -= busy
        if busy:
            return self.send(429, b"slow down", Retry_After=hub.retry_after)
        if self.server.name == "cdn":
            return self.large(url)
        path = urllib.parse.unquote(url.path)
        m = re.fullmatch(r"/api/models/(.+?)/(revision|tree)/(.+)", path)
        if m:
            return self.api(url, *m.groups())
        m = re.fullmatch(r"/(.+?)/resolve/([^/]+)/(.+)", path)
        if m:
            return self.resolve(*m.groups())
        if path in hub.plain:
            return self.send_data(hub.plain[path], git_hash(hub.plain[path]))
        return self.send(404)

    def refused(self, repo):
        hub = self.server.hub
        if repo in hub.refusals:
            status, code = hub.refusals[repo]
            self.send(status, b"{}", X_Error_Code=code, X_Error_Message=f"no {repo}\x07 for you")
        elif repo not in hub.repos:
            self.send(404 if self.headers.get("Authorization") else 401, b"{}", X_Error_Code="RepoNotFound")
        else:
            return False
        return True

    def api(self, url, repo, what, rev):
        hub = self.server.hub
        if self.refused(repo):
            return None
        if rev not in ("main", "v1", "v1.0", hub.commit(repo)):
            return self.send(404, b"{}", X_Error_Code="RevisionNotFound")
        if what == "revision":
            return self.send(200, json.dumps({"id": repo, "sha": hub.commit(repo)}).encode())
        entries = [hub.entry(p, d) for p, d in hub.repos[repo].items()]
        at = int(dict(urllib.parse.parse_qsl(url.query)).get("cursor", 0))
        fields = {}
        if at + hub.page < len(entries):
            fields["Link"] = f'<{hub.next_host or hub.url}{url.path}?recursive=true&cursor={at + hub.page}>; rel="next"'
        return self.send(200, json.dumps(entries[at:at + hub.page]).encode(), **fields)

    def resolve(self, repo, rev, path):
        hub = self.server.hub
        if self.refused(repo):
            return None
        if rev not in ("main", "v1", hub.commit(repo)) or path not in hub.repos[repo]:
            return self.send(404, b"{}", X_Error_Code="EntryNotFound")
        data = hub.repos[repo][path]
        if len(data) < LFS_FROM:
            return self.send(200, data, ETag=f'"{git_hash(data)}"', X_Repo_Commit=hub.commit(repo)) if not hub.ranges \
                else self.head_or_data(data, repo)
        where = hub.redirect or f"{hub.cdn_url}/{sha256(data)}?signature={hub.signature}"
        return self.send(302, b"moved", Location=where, X_Linked_Etag=f'"{sha256(data)}"', X_Linked_Size=len(data),
                         X_Repo_Commit=hub.commit(repo), ETag=f'"{sha256(data)}"')

    def head_or_data(self, data, repo):
        if self.command == "HEAD":
            return self.send(200, data, ETag=f'"{git_hash(data)}"', X_Repo_Commit=self.server.hub.commit(repo))
        return self.send_data(data, git_hash(data))

    def large(self, url):
        hub = self.server.hub
        if url.query != f"signature={hub.signature}":
            return self.send(403, b"expired")
        with hub.lock:
            hub.served += 1
            if hub.expires and hub.served % hub.expires == 0:
                hub.signature += 1
        for files in hub.repos.values():
            for data in files.values():
                if sha256(data) == url.path[1:]:
                    return self.send_data(data, sha256(data))
        return self.send(404)


class Hub:
    def __init__(self, repos):
        self.repos, self.plain, self.refusals = repos, {}, {}
        self.lock, self.asked, self.sent = threading.Lock(), [], []
        self.page, self.next_host, self.redirect = 3, "", ""
        self.ranges, self.corrupt, self.extra, self.total = True, False, b"", 0
        self.cuts, self.cut_after, self.delay = 0, 1000, 0
        self.busy, self.retry_after = 0, 0
        self.signature, self.expires, self.served = 0, 0, 0
        self.lies = {}  # path -> what the tree says of it instead
        self.servers = []
        for name in ("hub", "cdn"):
            s = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
            s.daemon_threads, s.hub, s.name = True, self, name
            threading.Thread(target=s.serve_forever, args=(0.02,), daemon=True).start()
            self.servers.append(s)
        self.url, self.cdn_url = (f"http://127.0.0.1:{s.server_address[1]}" for s in self.servers)

    def commit(self, repo):
        return hashlib.sha1(repr(sorted((p, sha256(d)) for p, d in self.repos[repo].items())).encode()).hexdigest()

    def entry(self, path, data):
        if len(data) < LFS_FROM:
            e = {"type": "file", "path": path, "size": len(data), "oid": git_hash(data)}
        else:
            pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize %d\n" % (
                sha256(data).encode(), len(data))
            e = {"type": "file", "path": path, "size": len(data), "oid": git_hash(pointer),
                 "lfs": {"oid": sha256(data), "size": len(data), "pointerSize": len(pointer)}}
        return e | self.lies.get(path, {})

    def files_asked(self):
        return {urllib.parse.unquote(p.split("/resolve/")[1].split("/", 1)[1]) for _, p, _ in self.asked
                if "/resolve/" in p}

    def close(self):
        for s in self.servers:
            s.shutdown()
            s.server_close()
