# SPDX-License-Identifier: Apache-2.0
"""Model repositories in S3, GCS and Azure: who is asked how, what is copied, and what goes wrong."""
import json
import pathlib
import random
import subprocess
import threading

import pytest

from clouds import ACCOUNT, ACCOUNT_KEY, KEY_ID, REGION, SECRET, Cloud, Tokens
from triton_server import BUILD, IDENTITY, infer_body, wait_until

pytestmark = pytest.mark.skipif("no-cloud" in subprocess.run([BUILD / "bin/nereid", "--version"], capture_output=True,
                                                             text=True).stdout, reason="the build is without libcurl")
VARIABLES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_DEFAULT_REGION", "AWS_REGION",
             "AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "GOOGLE_APPLICATION_CREDENTIALS",
             "GS_ACCESS_KEY_ID", "GS_SECRET_ACCESS_KEY", "AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_KEY",
             "AZURE_STORAGE_CONNECTION_STRING", "AZURE_STORAGE_AUTH_TYPE", "TRITON_CLOUD_CREDENTIAL_PATH", "http_proxy",
             "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")


def config(name, **kwargs):
    return IDENTITY.format(name=name, dtype="TYPE_INT32", count=1, extra=kwargs.get("extra", "")).encode()


def repository(*names, prefix="some/models/"):
    """Objects of a repository with these models."""
    return {f"{prefix}{n}/{rest}": data for n in names
            for rest, data in (("config.pbtxt", config(n)), ("1/weights.bin", b"w" * 100), ("1/", b""))}


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    for v in VARIABLES:
        monkeypatch.delenv(v, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:1")
    monkeypatch.setenv("NEREID_CLOUD_STALL_SECS", "2")
    for v in ("AWS", "GCS", "AZURE"):
        (tmp_path / "copies").mkdir(exist_ok=True)
        monkeypatch.setenv(f"TRITON_{v}_MOUNT_DIRECTORY", str(tmp_path / "copies"))


@pytest.fixture
def copies(tmp_path):
    return lambda: sorted((tmp_path / "copies").iterdir())


@pytest.fixture
def cloud():
    made = []

    def make(*args, **kwargs):
        made.append(Cloud(*args, **kwargs))
        return made[-1]
    yield make
    for c in made:
        c.close()


@pytest.fixture
def keys(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)


def where(cloud, path="some/models"):
    return f"s3://127.0.0.1:{cloud.port}/bucket/{path}"


def answers(server, *names):
    for n in names:
        assert server.call("POST", f"/v2/models/{n}/infer", infer_body([4, 5])).json()["outputs"][0]["data"] == [4, 5]


def refuse(launch, address, words, *args):
    s = launch(address, *args)
    assert s.wait(60) == 1
    for w in [words] if isinstance(words, str) else words:
        assert w in s.log(), s.log()
    assert SECRET not in s.log() and ACCOUNT_KEY not in s.log()
    return s


# ---- the three kinds, and as whom they are asked ----

def test_s3_with_keys_of_the_environment(cloud, keys, launch, copies):
    c = cloud(repository("one", "two", "three", "four", "näme +&%~"))
    s = launch(where(c)).wait_ready()
    answers(s, "one", "two", "three", "four")
    assert s.call("GET", "/v2/models/n%C3%A4me%20%2B%26%25~/ready").status == 200
    assert not c.refused and any("continuation-token" in r["query"] for r in c.lists())
    assert all(r["if-match"] for r in c.gets())
    assert len(copies()) == 5 and all(p.stat().st_mode & 0o777 == 0o700 for p in copies())
    assert s.stop() == 0
    assert copies() == []


def test_a_session_token_is_signed(cloud, keys, launch, monkeypatch):
    c = cloud(repository("one"), session="to/ken==")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "to/ken==")
    answers(launch(where(c)).wait_ready(), "one")


def test_aws_s_own_files_and_address(cloud, launch, monkeypatch, tmp_path):
    c = cloud(repository("one", prefix=""))
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/credentials").write_text(
        f"[default]\naws_access_key_id=other\naws_secret_access_key = other\n[mine]\naws_access_key_id={KEY_ID}\n"
        f" aws_secret_access_key =  {SECRET} \n")
    (tmp_path / ".aws/config").write_text(f"[default]\nregion=other\n# remark\n[profile mine]\nregion = {REGION}\n")
    monkeypatch.setenv("AWS_PROFILE", "mine")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{c.port}")
    answers(launch("s3://bucket").wait_ready(), "one")
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    refuse(launch, "s3://bucket", "the profile 'nobody' has no keys in AWS's files")


def test_nobody_s_requests_are_not_signed(cloud, launch):
    answers(launch(where(cloud(repository("one"), keys=None))).wait_ready(), "one")


@pytest.fixture
def tokens(tmp_path):
    t = Tokens(tmp_path, "the-token")
    yield t
    t.close()


@pytest.fixture
def gcs(cloud, monkeypatch):
    def make(*args, **kwargs):
        c = cloud(*args, **kwargs)
        monkeypatch.setenv("CLOUD_STORAGE_EMULATOR_ENDPOINT", f"http://127.0.0.1:{c.port}")
        return c
    return make


@pytest.mark.parametrize("kind", ["account", "user"])
def test_gcs_with_a_credentials_file(gcs, tokens, launch, monkeypatch, tmp_path, kind):
    gcs(repository("one", "two"), token="the-token")
    (tmp_path / "cred.json").write_text(json.dumps(getattr(tokens, kind)))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "cred.json"))
    answers(launch("gs://bucket/some/models").wait_ready(), "one", "two")
    assert len(tokens.asked) == 1  # one token for all


def test_gcs_as_the_machine_as_nobody_and_with_hmac_keys(gcs, tokens, launch, monkeypatch):
    monkeypatch.setenv("GCE_METADATA_HOST", tokens.host)
    gcs(repository("one"), token="the-token")
    answers(launch("gs://bucket/some/models").wait_ready(), "one")
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:1")
    gcs(repository("one"), keys=None)
    answers(launch("gs://bucket/some/models").wait_ready(), "one")
    monkeypatch.setenv("GS_ACCESS_KEY_ID", KEY_ID)
    monkeypatch.setenv("GS_SECRET_ACCESS_KEY", SECRET)
    gcs(repository("one"), region="auto")
    answers(launch("gs://bucket/some/models").wait_ready(), "one")


def test_gcs_credentials_that_are_wrong(gcs, tokens, launch, monkeypatch, tmp_path):
    gcs(repository("one"), token="the-token")
    path = tmp_path / "cred.json"
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    refuse(launch, "gs://bucket", "cred.json")
    for text, words in (("{", "Google's credentials"), ('{"type":"other"}', "must be service_account or authorized_user"),
                        (json.dumps(tokens.account | {"private_key": "x"}), "the private key of the service account"),
                        (json.dumps(tokens.user | {"refresh_token": "x"}), "invalid_grant: another user"),
                        (json.dumps(tokens.user | {"token_uri": "http://127.0.0.1:1/"}), "no access token from")):
        path.write_text(text)
        assert "PRIVATE KEY" not in refuse(launch, "gs://bucket", words).log()


def azure_string(c):
    return f"AccountName={ACCOUNT};AccountKey={ACCOUNT_KEY};BlobEndpoint=http://127.0.0.1:{c.port}/{ACCOUNT}"


def test_azure_with_a_shared_key(cloud, launch, monkeypatch):
    c = cloud(repository("one", "two", "spaced out"), "azure", page=2, keys=(ACCOUNT, ACCOUNT_KEY))
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", azure_string(c))
    s = launch(f"as://{ACCOUNT}/bucket/some/models").wait_ready()
    answers(s, "one", "two")
    assert any("marker" in r["query"] for r in c.lists()) and not c.refused
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", azure_string(c).replace(ACCOUNT_KEY, "AAAA" + ACCOUNT_KEY))
    refuse(launch, f"as://{ACCOUNT}/bucket/some/models", "HTTP status 403 AuthenticationFailed")
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", azure_string(c).replace(ACCOUNT_KEY, "not base64"))
    refuse(launch, f"as://{ACCOUNT}/bucket/some/models", "is not base64")
    monkeypatch.setenv("AZURE_STORAGE_AUTH_TYPE", "managed_identity")
    refuse(launch, f"as://{ACCOUNT}/bucket/some/models", "auth_type 'managed_identity' is not supported")


def test_the_longest_beginning_in_the_file_of_credentials_counts(cloud, launch, monkeypatch, tmp_path):
    c = cloud(repository("one"))
    good = {"key_id": KEY_ID, "secret_key": SECRET, "region": REGION, "session_token": "", "profile": ""}
    bad = good | {"secret_key": "another"}
    path = tmp_path / "clouds.json"
    monkeypatch.setenv("TRITON_CLOUD_CREDENTIAL_PATH", str(path))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "from the environment")
    path.write_text(json.dumps({"s3": {where(c, ""): good, "": bad, where(c, "someone"): bad}, "gs": {"": "x"}}))
    answers(launch(where(c)).wait_ready(), "one")
    path.write_text(json.dumps({"s3": {where(c): bad, "": good}}))
    refuse(launch, where(c), "HTTP status 403 SignatureDoesNotMatch: the signature is another")
    path.write_text(json.dumps({"s3": {"s3://other": good}}))
    refuse(launch, where(c), "no credential in")
    path.write_text("{")
    refuse(launch, where(c), "TRITON_CLOUD_CREDENTIAL_PATH")


# ---- copies ----

BIG = random.Random(7).randbytes((40 << 20) + 12345)


def copied(tmp_path, end="1/big.bin"):
    (found,) = (tmp_path / "copies").glob(f"*/{end}")
    return found.read_bytes()


def test_large_objects_come_in_pieces_and_go_on_where_they_broke(cloud, keys, launch, tmp_path):
    name = "some/models/one/1/big.bin"
    c = cloud(repository("one") | {name: BIG})
    for cut in (0, 1, 1000, 3 << 20, 5 << 20):
        c.fault(name, cut=cut)
    c.fault(name, status=503, code="SlowDown")
    c.fault(name, status=500)
    c.fault(name, short=100000)
    s = launch(where(c)).wait_ready()
    answers(s, "one")
    assert copied(tmp_path) == BIG
    ranges = [tuple(int(x) for x in r["range"].split("=")[1].split("-")) for r in c.gets(name)]
    assert len(ranges) == 3 + 8 and not c.faults
    assert {f for f, _ in ranges} >= {0, 16 << 20, 32 << 20}
    assert sum(first % (16 << 20) > 0 for first, _ in ranges) >= 4  # not from the beginning again


@pytest.mark.parametrize("fault,words", [
    ({"status": 403, "code": "AccessDenied", "message": "Access Denied"}, "HTTP status 403 AccessDenied: Access Denied"),
    ({"status": 412, "code": "PreconditionFailed"}, "it was changed while it was copied"),
    ({"long": b"more"}, "sends more bytes than it was asked for"),
    ({"whole": True, "object": "2"}, "sends more bytes than it was asked for"),
    ({"content-range": "bytes 5-104/105"}, "sends another part"),
    ({"times": 99, "short": 0}, "sent 0 of 100 bytes"),
    ({"times": 99, "cut": 0}, "weights.bin"),
    ({"times": 99, "status": 500}, "HTTP status 500 InternalError"),
    ({"times": 99, "wait": None}, "weights.bin"),
])
def test_copies_that_fail_name_the_object(cloud, keys, launch, copies, fault, words):
    name = "some/models/one/1/weights.bin"
    c = cloud(repository("one", "two"))
    release = threading.Event()
    fault = dict(fault)
    if "wait" in fault:
        fault["wait"] = release
    if fault.pop("object", None):
        c.objects[name] = b"w" * (17 << 20)
        c.sizes[name] = 17 << 20
    c.fault(name, fault.pop("times", 1), **fault)
    s = launch(where(c), "--exit-on-error=false").wait_ready()
    answers(s, "two")
    log = s.log()
    assert words in log and ("one/1/weights.bin" in log or "'1/weights.bin'" in log), log
    assert s.call("GET", "/v2/models/one/ready").status != 200
    assert len(copies()) == 1
    release.set()


def test_what_is_listed_must_be_what_is_there(cloud, keys, launch, copies):
    name = "some/models/one/1/weights.bin"
    c = cloud(repository("one", "two"))
    for size in (99, 101, 1 << 40):
        c.sizes[name] = size
        s = launch(where(c), "--exit-on-error=false").wait_ready()
        answers(s, "two")
        assert s.call("GET", "/v2/models/one/ready").status != 200
        assert len(copies()) == 1
        s.stop()


@pytest.mark.parametrize("evil", ["../../../../escaped", "1/../../escaped", "1//x", "/abs", "1/./x", "1/\x7fx", "1/..",
                                  "x" * 300, "a/" * 600 + "b"])
def test_names_that_leave_the_folder_are_refused(cloud, keys, launch, copies, tmp_path, evil):
    c = cloud(repository("one", "two") | {"some/models/one/" + evil: b"evil"})
    s = launch(where(c), "--exit-on-error=false").wait_ready()
    answers(s, "two")
    assert s.call("GET", "/v2/models/one/ready").status != 200
    assert "is no path of a file within the model's folder" in s.log()
    assert not list(tmp_path.rglob("escaped")) and len(copies()) == 1


def test_a_file_that_is_a_folder_too_is_refused(cloud, keys, launch):
    c = cloud(repository("one", "two") | {"some/models/one/1/weights.bin/more": b"x"})
    s = launch(where(c), "--exit-on-error=false").wait_ready()
    answers(s, "two")
    assert s.call("GET", "/v2/models/one/ready").status != 200


# ---- lists that are wrong, stores that are not there ----

@pytest.mark.parametrize("answer,words", [
    (b"no xml", "is no XML"),
    (b"<a><b></a>", "is no XML"),
    (b"<!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>", "has a document type"),
    (b"<L><Contents><Key>other/x</Key><Size>1</Size></Contents></L>", "lists 'other/x', which is not below"),
    (b"<L><Contents><Key>some/models/x</Key><Size>-1</Size></Contents></L>", "with a size of '-1'"),
    (b"<L><Contents><Key>some/models/x</Key><Size>99999999999999999999</Size></Contents></L>", "with a size of"),
    (b"<L><IsTruncated>true</IsTruncated></L>", "does not go on"),
    (b"<L><IsTruncated>true</IsTruncated><NextContinuationToken>x</NextContinuationToken></L>", "does not go on"),
    (b"<L><Contents><Key>" + b"x" * 9000 + b"</Key></Contents></L>", "longer than 8192 bytes"),
    (b"<L>" + b" " * (33 << 20) + b"</L>", "larger than"),
])
def test_lists_that_are_wrong(cloud, keys, launch, answer, words):
    c = cloud({})
    c.answer = answer
    refuse(launch, where(c), words)


def test_more_objects_than_the_limit(cloud, keys, launch):
    """limits: REMOTE_OBJECTS"""
    c = cloud({})
    item = "<Contents><Key>some/models/one/{}</Key><Size>1</Size><ETag>x</ETag></Contents>"

    def answer(query):
        at = int(query.get("continuation-token", "0"))
        if "delimiter" in query:
            return b"<L><CommonPrefixes><Prefix>some/models/one/</Prefix></CommonPrefixes></L>"
        return ("<L>" + "".join(item.format(at + i) for i in range(40000)) + "<IsTruncated>true</IsTruncated>"
                f"<NextContinuationToken>{at + 40000}</NextContinuationToken></L>").encode()
    c.answer = answer
    s = launch(where(c), "--exit-on-error=false").wait_ready()
    assert "more than 100000 objects" in s.log()


@pytest.mark.parametrize("address,words", [
    ("s3://", "No bucket name"), ("s3://bucket/../x", "'..' has no place"), ("s3://https://host/bucket", "HOST:PORT"),
    ("s3://bu\x01cket/x", "have no place in an address"), ("as://account", "No bucket name"),
    ("s3://127.0.0.1:1/bucket/models", "'models/' in 'bucket'"), ("s3://nowhere.invalid:80/bucket", "nowhere.invalid"),
    ("s3://https://127.0.0.1:1/bucket", "in 'bucket'"),
])
def test_addresses_that_lead_nowhere(launch, address, words):
    refuse(launch, address, words)


def test_a_bucket_that_is_not_there_and_one_elsewhere(cloud, keys, launch, monkeypatch):
    c = cloud(repository("one"))
    refuse(launch, where(c).replace("bucket", "other-bucket"), "HTTP status 404 NoSuchBucket: no such bucket")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-other-1")
    c.region = "us-other-1"
    answers(launch(where(c)).wait_ready(), "one")
    c.list_error = True
    monkeypatch.setattr(type(c), "etag", lambda self, name: "x")
    c.answer = None
    handler = c.server.RequestHandlerClass
    monkeypatch.setattr(handler, "list", lambda self, query: self.error(
        301, "PermanentRedirect", "elsewhere", fields={"x-amz-bucket-region": "eu-west-9", "Location": "http://127.0.0.1:1/"}))
    refuse(launch, where(c), "HTTP status 301 PermanentRedirect: elsewhere; the bucket is in region eu-west-9")


# ---- life ----

def test_copies_live_as_long_as_their_model(cloud, keys, launch, copies):
    c = cloud(repository("one", "two"))
    s = launch(where(c), "--model-control-mode=explicit", "--load-model=one").wait_ready()
    answers(s, "one")
    assert len(copies()) == 1
    assert s.call("POST", "/v2/repository/models/two/load", {}).status == 200
    answers(s, "two")
    assert len(copies()) == 2
    assert s.call("POST", "/v2/repository/models/one/unload", {}).status == 200
    wait_until(lambda: len(copies()) == 1)
    c.objects["some/models/two/1/weights.bin"] = b"others"
    assert s.call("POST", "/v2/repository/models/two/load", {}).status == 200
    wait_until(lambda: len(copies()) == 1 and (copies()[0] / "1/weights.bin").read_bytes() == b"others")
    reply = s.call("POST", "/v2/repository/models/three/load", {})
    assert reply.status == 500 and "failed to poll from model repository" in reply.error()
    index = {m["name"] for m in s.call("POST", "/v2/repository/index", {}).json()}
    assert index == {"one", "two"}


def test_polling_notices_what_changes(cloud, keys, launch, copies):
    c = cloud(repository("one", "two"))
    s = launch(where(c), "--model-control-mode=poll", "--repository-poll-secs=1").wait_ready()
    answers(s, "one", "two")
    before = len(c.gets())
    c.objects["some/models/one/1/weights.bin"] = b"W" * 100  # same size, another ETag
    wait_until(lambda: s.log().count("successfully loaded 'one'") == 2)
    assert all("models/one/" in r["object"] for r in c.gets()[before:])
    c.objects |= repository("three")
    wait_until(lambda: "successfully loaded 'three'" in s.log())
    for name in [n for n in c.objects if "models/two/" in n]:
        del c.objects[name]
    wait_until(lambda: "successfully unloaded 'two'" in s.log())
    wait_until(lambda: len(copies()) == 2)
    keys_, c.keys = c.keys, ("other", "key")  # the store refuses for a while: all goes on
    wait_until(lambda: "403" in s.log())
    answers(s, "one", "three")
    c.keys = keys_
    c.objects["some/models/three/1/weights.bin"] = b"new"
    wait_until(lambda: s.log().count("successfully loaded 'three'") == 2)


def test_repositories_are_registered_by_address(cloud, keys, launch, tmp_path):
    c = cloud(repository("one"))
    (tmp_path / "empty").mkdir()
    s = launch(tmp_path / "empty", "--model-control-mode=explicit").wait_ready()
    s.stop()
    both = launch(tmp_path / "empty", f"--model-repository={where(c)}").wait_ready()
    answers(both, "one")
    assert pathlib.Path(BUILD / "lib/nereid_cloud.so").exists()
