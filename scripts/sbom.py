#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""sbom.py BUILD VERSION: what the programs and libraries under BUILD are linked with, as SPDX 2.3 in JSON on the
standard output.

Read from the files themselves (their NEEDED entries), so that it says what this build has, not what could be in it.
Names, versions and licences are those of Debian's packages, where dpkg knows the library; else its name alone. The date
is SOURCE_DATE_EPOCH, else that of the commit, else that of debian/changelog: equal builds have equal lists.
"""
import datetime
import email.utils
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
# Short names of Debian's copyright files that SPDX writes otherwise. What is not here is
# NOASSERTION: the copyright file decides.
SPDX = {"expat": "MIT", "mit": "MIT", "bsd-2-clause": "BSD-2-Clause", "bsd-3-clause": "BSD-3-Clause", "apache-2.0": "Apache-2.0",
        "zlib": "Zlib", "curl": "curl", "gpl-2": "GPL-2.0-only", "gpl-2+": "GPL-2.0-or-later", "lgpl-2.1": "LGPL-2.1-only",
        "lgpl-2.1+": "LGPL-2.1-or-later", "gpl-3": "GPL-3.0-only", "gpl-3+": "GPL-3.0-or-later", "psf-2": "PSF-2.0"}


def output(*words):
    """What a program says, as far as it comes; "" where it is not there."""
    try:
        return subprocess.run(words, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"}).stdout
    except FileNotFoundError:
        return ""


def linked(build):
    """{library: sorted names of what needs it}, without our own."""
    files = [p for folder in ("bin", "lib", "backends", "caches", "repoagents", "python") for p in sorted((build / folder).rglob("*"))
             if p.is_file() and not p.is_symlink() and p.open("rb").read(4) == b"\x7fELF"]
    if not files:
        sys.exit(f"sbom.py: nothing is built in '{build}'; run `make`")
    needs = {}
    for part in output("readelf", "-d", *map(str, files)).split("\nFile: ")[len(files) > 1:]:
        path, _, text = part.partition("\n") if len(files) > 1 else (str(files[0]), "", part)
        for name in re.findall(r"\(NEEDED\).*\[(.*)\]", text):
            needs.setdefault(name, set()).add(os.path.basename(path))
    own = {f.name for f in files}
    return {name: sorted(users) for name, users in sorted(needs.items()) if name not in own}


def packages_of(libraries):
    """{library: Debian's name of its package}, of those that the loader's cache and dpkg know. dpkg's lists name a file by
    one of several paths: /lib is /usr/lib."""
    paths = {}
    ldconfig = shutil.which("ldconfig") or "/sbin/ldconfig"
    for name, path in re.findall(r"^\s+(\S+) .* => (\S+)$", output(ldconfig, "-p"), re.M):
        if name in libraries:
            for p in (path, "/usr" + path, path.removeprefix("/usr"), os.path.realpath(path)):
                paths.setdefault(p, name)
    found = {}
    for package, path in re.findall(r"^([^:,\s]+)[^ ]*: (\S+)$", output("dpkg-query", "-S", *paths), re.M) if paths else ():
        found.setdefault(paths.get(path), package)
    return found


def licence(package):
    """That of `Files: *` in Debian's copyright file, as SPDX writes it."""
    try:
        text = pathlib.Path(f"/usr/share/doc/{package}/copyright").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "NOASSERTION"
    whole = re.search(r"^Files: \*\s*$(.*?)(?=^\s*$)", text, re.M | re.S)
    name = whole and re.search(r"^License: *(\S+) *$", whole[1], re.M)
    return SPDX.get(name[1].lower(), "NOASSERTION") if name else "NOASSERTION"


def system():
    found = re.search(r"^ID=\"?([^\"\n]+)", output("cat", "/etc/os-release"), re.M)
    return found[1] if found else "linux"


def entry(name, **more):
    return {"SPDXID": "SPDXRef-Package-" + re.sub(r"[^A-Za-z0-9.-]", "-", name), "name": name, "downloadLocation": "NOASSERTION",
            "filesAnalyzed": False, "licenseConcluded": "NOASSERTION", "licenseDeclared": "NOASSERTION",
            "copyrightText": "NOASSERTION", **more}


def dependencies(build):
    """Entries of packages; a package that holds several of the libraries has one."""
    needs = linked(build)
    package_of, by_package = packages_of(needs), {}
    for library, users in needs.items():
        by_package.setdefault(package_of.get(library), {})[library] = users
    out = [entry(library, comment="needed by " + ", ".join(users)) for library, users in by_package.pop(None, {}).items()]
    known = output("dpkg-query", "-W", "-f", "${Package} ${Version} ${Architecture}\n", *by_package) if by_package else ""
    versions = {name: (version, arch) for name, version, arch in re.findall(r"^(\S+) (\S+) (\S+)$", known, re.M)}
    for package, libraries in by_package.items():
        version, arch = versions[package]
        users = sorted({u for names in libraries.values() for u in names})
        out.append(entry(package, versionInfo=version, licenseDeclared=licence(package),
                         comment=f"{', '.join(libraries)}; needed by {', '.join(users)}",
                         externalRefs=[{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
                                        "referenceLocator": f"pkg:deb/{system()}/{package}@{version}?arch={arch}"}]))
    return sorted(out, key=lambda e: e["name"])


def created():
    seconds = os.environ.get("SOURCE_DATE_EPOCH") or output("git", "-C", str(ROOT), "log", "-1", "--format=%ct").strip()
    if not seconds:
        line = re.search(r"^ -- .*>  (.*)$", (ROOT / "debian/changelog").read_text(encoding="utf-8"), re.M)
        seconds = email.utils.parsedate_to_datetime(line[1]).timestamp()
    return datetime.datetime.fromtimestamp(int(seconds), datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def main():
    build, version = pathlib.Path(sys.argv[1]), sys.argv[2]
    own = entry("nereid", versionInfo=version, licenseConcluded="Apache-2.0", licenseDeclared="Apache-2.0",
                primaryPackagePurpose="APPLICATION")
    others = dependencies(build)
    relations = [("SPDXRef-DOCUMENT", "DESCRIBES", own)] + [(own["SPDXID"], "DYNAMIC_LINK", other) for other in others]
    document = {
        "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": f"nereid-{version}",
        "creationInfo": {"created": created(), "creators": [f"Tool: nereid-sbom-{version}"]},
        "packages": [own, *others],
        "relationships": [{"spdxElementId": a, "relationshipType": kind, "relatedSpdxElement": b["SPDXID"]} for a, kind, b in relations]}
    # the specification wants a name that no other list has
    digest = hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
    document["documentNamespace"] = f"https://spdx.org/spdxdocs/nereid-{version}-{digest[:32]}"
    json.dump(document, sys.stdout, indent=2, ensure_ascii=False)
    print()


if __name__ == "__main__":
    main()
