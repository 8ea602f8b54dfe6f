#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds the server with the options of Triton's build.py: they choose the parts (docs/build.md), `make` builds them into build/.

What is in every build, as logging, statistics, traces and metrics, has nothing to switch. No container is built: deploy/docker has
files for that."""
import argparse
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.realpath(__file__))
# Parts by what the options call them; None: in every build.
ENDPOINTS = {"http": None, "grpc": "grpc", "sagemaker": None, "vertex-ai": None}
FILESYSTEMS = {"gcs": "cloud", "s3": "cloud", "azure_storage": "cloud"}
BACKENDS = {"ensemble": None, "identity": None, "tensorrtllm": None, "python": "python"}
CACHES = {"local": None, "redis": "redis"}
AGENTS = {"checksum": None}
UNNAMED = ("tls", "hub", "image", "sound")  # parts that the original has no option for: built where their libraries are
ALWAYS = ("enable-logging", "enable-stats", "enable-tracing", "enable-metrics", "enable-gpu-metrics", "enable-cpu-metrics", "enable-nvtx")
CONTAINER = ("no-container-interactive", "no-container-pull", "no-container-build", "no-container-source", "container-memory", "image",
             "container-prebuild-command", "use-user-docker-config")
NO_EFFECT = {"build-id": 1, "build-sha": 1, "build-dir": 1, "cmake-dir": 1, "tmp-dir": 1, "library-paths": 1, "version": 1, "upstream-container-version": 1,
             "container-version": 1, "target-platform": 1, "target-machine": 1, "github-organization": 1, "repo-tag": 1, "min-compute-capability": 1,
             "override-core-cmake-arg": 1, "extra-core-cmake-arg": 1, "override-backend-cmake-arg": 1, "extra-backend-cmake-arg": 1, "release-version": 1,
             "triton-container-version": 1, "rhel-py-version": 1, "default-repo-tag": 1, "no-core-build": 0, "no-force-clone": 0}


def arguments():
    p = argparse.ArgumentParser(description=__doc__, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("-q", "--quiet", action="store_true", help="only errors")
    p.add_argument("-v", "--verbose", action="store_true", help="the compiler's lines")
    p.add_argument("--dryrun", action="store_true", help="print what would run")
    p.add_argument("-j", "--build-parallel", type=int, default=os.cpu_count(), help="compilers at a time")
    p.add_argument("--build-type", default="Release", help="Release, RelWithDebInfo or Debug")
    p.add_argument("--install-dir", help="copy the build there")
    p.add_argument("--enable-all", action="store_true", help="every part whose library is there, as `make` alone")
    p.add_argument("--enable-gpu", action="store_true", help="the CUDA plug-in")
    for name, known in (("endpoint", ENDPOINTS), ("filesystem", FILESYSTEMS), ("backend", BACKENDS), ("cache", CACHES), ("repoagent", AGENTS)):
        p.add_argument(f"--{name}", action="append", default=[], metavar="NAME", help=", ".join(known))
    for name in ALWAYS:
        p.add_argument(f"--{name}", action="store_true", help=argparse.SUPPRESS)
    for name in CONTAINER:
        p.add_argument(f"--{name}", nargs="?", const=True, action="append", help=argparse.SUPPRESS)
    for name, n in NO_EFFECT.items():
        p.add_argument(f"--{name}", **({"action": "append"} if n else {"action": "store_true"}), help=argparse.SUPPRESS)
    args = p.parse_args()
    for name in NO_EFFECT:
        if getattr(args, name.replace("-", "_")):
            print(f"build.py: --{name} has no effect", file=sys.stderr)
    if args.image or not (args.no_container_build or args.dryrun):
        print("build.py: no container is built (deploy/docker has files for that)", file=sys.stderr)
    if args.build_type not in ("Release", "RelWithDebInfo", "Debug"):
        p.error(f"--build-type is Release, RelWithDebInfo or Debug, not '{args.build_type}'")
    if args.build_parallel < 1:
        p.error("--build-parallel must be above 0")
    return p, args


def chosen(p, args):
    """The parts that options name. A tag, as in python:r25.01, says which release of a repository; here is one."""
    parts = {"cpu", *(["cuda"] if args.enable_gpu else [])}
    for name, known in (("endpoint", ENDPOINTS), ("filesystem", FILESYSTEMS), ("backend", BACKENDS), ("cache", CACHES), ("repoagent", AGENTS)):
        for word in getattr(args, name):
            word = word.partition(":")[0]
            if word not in known:
                p.error(f"--{name}={word}: there is none here; there are {', '.join(known)}"
                        + (". One that was compiled for Triton is put into the folder of --backend-directory" if name == "backend" else ""))
            parts.add(known[word] or "cpu")
    return parts


def there():
    """The parts whose libraries this machine has."""
    words = ["make", "-s", "--no-print-directory", "--eval", "say-features: ; @echo $(features_in)", "say-features"]
    return subprocess.run(words, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.split()


def main():
    p, args = arguments()
    words = ["make", f"-j{args.build_parallel}"]
    if not args.enable_all:
        parts = chosen(p, args)
        parts |= set(UNNAMED) & set(there())
        words.append(f"FEATURES={' '.join(sorted(parts))}")
    if args.enable_gpu:
        words.append("CUDA=1")
    if args.verbose:
        words.append("V=1")
    if args.quiet:
        words.append("-s")
    if args.build_type != "Release":
        words.append("CFLAGS=-g")
    lines = [words] + ([[*words, "install", f"PREFIX={os.path.abspath(args.install_dir)}"]] if args.install_dir else [])
    for line in lines:
        if args.dryrun or not args.quiet:
            print(" ".join(f"'{w}'" if " " in w else w for w in line), flush=True)
        if not args.dryrun:
            status = subprocess.run(line, cwd=ROOT, check=False).returncode
            if status != 0:
                sys.exit(status)


if __name__ == "__main__":
    main()
