#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Starts tritonserver in the background, with the options that the guides of all releases give, and returns.

The ranks of a divided model are processes under mpirun (--world_size N); without mpirun, or with --no-mpi, the server
starts them by itself, and one command is enough.
"""
import argparse
import glob
import os
import shlex
import shutil
import subprocess
import sys

sys.dont_write_bytecode = True  # an installed tree stays as it was installed
sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
import nereid_programs  # noqa: E402

SERVER = "tritonserver"


def arguments(words=None):
    p = argparse.ArgumentParser(description="Starts tritonserver in the background.")

    def add(name, *short, **more):
        other = name.replace("_", "-") if "_" in name else name.replace("-", "_")
        p.add_argument("--" + name, *(["--" + other] if other != name else []), *short,
                       dest=name.replace("-", "_"), **more)

    add("world_size", type=int, default=1, metavar="N", help="ranks: tensor times pipeline parallel size (1)")
    add("tritonserver", metavar="PATH", help="the server's program (the one of this tree, else on the search path)")
    add("model_repo", metavar="DIR", default=os.path.join(nereid_programs.ROOT, "all_models", "gpt"),
        help="the model repository")
    add("grpc_port", default="8001", metavar="PORT", help="8001")
    add("http_port", default="8000", metavar="PORT", help="8000")
    add("metrics_port", default="8002", metavar="PORT", help="8002")
    add("force", "-f", action="store_true", help="start also where a server runs")
    add("log", action="store_true", help="rank 0 writes a verbose log")
    add("log-file", default="triton_log.txt", metavar="FILE", help="triton_log.txt")
    add("tensorrt_llm_model_name", default="tensorrt_llm", metavar="NAME[,NAME…]",
        help="the models that the ranks behind the first load")
    add("multi-model", action="store_true", help="several models of tensorrt_llm, each with ranks of its own")
    add("disable-spawn-processes", action="store_true",
        help="with --multi-model: mpirun starts all ranks, the server none")
    add("multimodal_gpu0_cuda_mem_pool_bytes", type=int, default=0, metavar="N",
        help="CUDA memory pool of device 0 in rank 0")
    add("oversubscribe", action="store_true", help="handed to mpirun")
    add("no-mpi", action="store_true", help="start the server without mpirun")
    add("trtllm_llmapi_launch", action="store_true", help="no effect: the server starts the ranks of all_models/llmapi")
    add("exit_timeout", type=int, metavar="S", help="seconds that the server waits for requests when it ends")
    args = p.parse_args(words)
    if args.trtllm_llmapi_launch:
        print("launch_triton_server.py: --trtllm_llmapi_launch has no effect: the model starts its ranks by itself", file=sys.stderr)
        args.world_size = 1
    if args.world_size < 1:
        p.error(f"--world_size {args.world_size}: at least 1 rank is needed")
    if args.multi_model and args.world_size != 1 and not args.disable_spawn_processes:
        p.error("--multi-model starts the ranks of its models by itself: --world_size must be 1, or "
                "--disable-spawn-processes given")
    return args


def running(name=SERVER):
    """Ids of processes of that name that compute at this moment, as `pgrep -r R` finds them."""
    found = []
    for pid in sorted(int(p) for p in os.listdir("/proc") if p.isdigit()):
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as f:
                text = f.read()
        except OSError:  # it has ended
            continue
        comm, _, rest = text.partition("(")[2].rpartition(")")
        if name in comm and rest.split()[0] == "R" and pid != os.getpid():
            found.append(pid)
    return found


def newer_than(version, limit):
    """Of release numbers like 24.06; what is none is not newer."""
    try:
        return [int(x) for x in version.split(".")] > [int(x) for x in limit.split(".")]
    except ValueError:
        return False


def number_of_gpus():
    try:
        out = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, check=False).stdout
    except OSError:
        return 0
    return len(out.splitlines())


def rank_options(args, rank):
    """What rank `rank` is given, in the order of the published launcher."""
    words = [f"--model-repository={args.model_repo}"]
    if args.log and rank == 0:
        words += ["--log-verbose=3", f"--log-file={args.log_file}"]
    if rank != 0:
        words += ["--model-control-mode=explicit"]
        words += [f"--load-model={name}" for name in args.tensorrt_llm_model_name.split(",")]
    elif args.multimodal_gpu0_cuda_mem_pool_bytes:
        words += [f"--cuda-memory-pool-byte-size=0:{args.multimodal_gpu0_cuda_mem_pool_bytes}"]
    if (args.multi_model and not args.disable_spawn_processes
            and newer_than(os.environ.get("NVIDIA_TRITON_SERVER_VERSION", ""), "24.06")):
        words += ["--pinned-memory-pool-byte-size=0", "--enable-peer-access=false"]
        words += [f"--cuda-memory-pool-byte-size={i}:0" for i in range(number_of_gpus())]
    if args.exit_timeout is not None:
        words += [f"--exit-timeout-secs={args.exit_timeout}"]
    words += [f"--grpc-port={args.grpc_port}", f"--http-port={args.http_port}", f"--metrics-port={args.metrics_port}"]
    # A model of all_models/llmapi reads what its configuration leaves open in its model.yaml.
    if not glob.glob(os.path.join(glob.escape(args.model_repo), "*", "*", "model.yaml")):
        words += ["--disable-auto-complete-config"]
    return words + [f"--backend-config=python,shm-region-prefix-name=prefix{rank}_"]


def mpi_command(args, server):
    words = ["mpirun", "--allow-run-as-root"] + (["--oversubscribe"] if args.oversubscribe else [])
    for rank in range(args.world_size):
        words += ["-n", "1", server, *rank_options(args, rank), ":"]
    return words


def main():
    args = arguments()
    server = args.tritonserver or nereid_programs.find(SERVER) or f"/opt/tritonserver/bin/{SERVER}"
    if shutil.which(server) is None:
        sys.exit(f"launch_triton_server.py: there is no program '{server}' (--tritonserver names another)")
    pids = " ".join(str(p) for p in running())
    if pids:
        message = f"tritonserver process(es) already found with PID(s): {pids}.\n\tUse `kill {pids}` to stop them."
        if not args.force:
            raise RuntimeError(message + " Or use --force.")
        print(message, file=sys.stderr)
    command = mpi_command(args, server)
    if args.no_mpi or shutil.which("mpirun") is None:
        if args.world_size > 1:
            print("launch_triton_server.py: without mpirun the server starts the ranks of its models by itself; with it "
                  "this would run:\n  " + shlex.join(command), file=sys.stderr)
        command = [server, *rank_options(args, 0)]
    env = dict(os.environ)
    if args.multi_model:
        env["TRTLLM_ORCHESTRATOR"] = "1"
        env["TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES"] = "0" if args.disable_spawn_processes else "1"
    subprocess.Popen(command, env=env)  # it goes on when this program has ended


if __name__ == "__main__":
    main()
