# SPDX-License-Identifier: Apache-2.0
"""Lets every call of the server's own code fail, one after the other; `make torture` runs it.

    torture.py [--cases infer-json,generate] [--kinds alloc,read] [--most N] [--seconds S] [--for-ever]

--most N: each of the first N, then in growing steps. Prints a row for each case and kind."""
import argparse
import fnmatch
import pathlib
import sys
import tempfile
import time

import torture_cases as cases
import harness


def row(case, kind, r, begin):
    print(f"{case.name:20} {kind:8} {r.last:6} {r.n_run:6} {r.n_answered:9} {r.n_refused:8} "
          f"{time.monotonic() - begin:6.1f} {'' if r.complete else 'and more'}", flush=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--cases", default="*")
    p.add_argument("--kinds", default="alloc,read,write,mmap,thread,open,accept,epoll,process,look")
    p.add_argument("--most", type=int, default=10 ** 9)
    p.add_argument("--seconds", type=float)
    p.add_argument("--for-ever", action="store_true")
    p.add_argument("--first", type=int, default=1)
    p.add_argument("--go-on", action="store_true", help="a new server after each fault, and on")
    o = p.parse_args()
    patterns = o.cases.split(",")
    chosen = [c for c in cases.all_cases(harness.has_grpc())
              if any(fnmatch.fnmatch(c.name, x) for x in patterns)]
    broken = []
    with tempfile.TemporaryDirectory(prefix="torture-") as folder:
        folder = pathlib.Path(folder)
        repository = cases.make_repository(folder)
        print(f"{'case':20} {'kind':8} {'to n':>6} {'runs':>6} {'answered':>9} {'refused':>8} {'s':>6}", flush=True)
        for case in chosen:
            def start():
                return harness.Server(folder, repository, *cases.options(case.models), *case.args)
            if case.ends:
                for kind in o.kinds.split(","):
                    begin = time.monotonic()
                    r = harness.torture_end(case, start, kind, o.most, o.seconds, first=o.first,
                                            log=lambda text: print(text[:3000], flush=True))
                    broken += r.broken
                    row(case, kind, r, begin)
                continue
            server = start()
            for kind in o.kinds.split(","):
                begin = time.monotonic()
                r, server = harness.torture(
                    case, start, kind, o.most, o.for_ever, o.seconds, server=server, first=o.first,
                    log=lambda text: print(text[:3000], flush=True), stop_at_first=not o.go_on)
                broken += r.broken
                row(case, kind, r, begin)
                if not server.is_alive() or r.broken:
                    server.stop()
                    server = start()
            log, code = server.log_path, server.stop()
            if code != 0:
                broken.append(f"{case.name}: the server's end: {code}: {log.read_text()[-3000:]}")
                print(broken[-1], flush=True)
    print(f"{len(broken)} broken")
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())
