# SPDX-License-Identifier: Apache-2.0
"""The scripts that the guides hand to Slurm, and ours, under an sbatch and an srun that start the tasks here (`make slurm-check`
has a real Slurm). Ports are free ones; two tasks where a guide has eight."""
import pytest

from guide import ROOT
from test_guides import QUESTION, check

# The job runs behind the command, in the folder that it was sent from.
SBATCH = """#!/bin/bash
[[ $1 == --ntasks=* ]] && { tasks=${1#*=}; shift; } || tasks=$(sed -n 's/^#SBATCH --ntasks-per-node=//p' "$1")
SLURM_JOB_ID=$$ SLURM_NTASKS=$tasks bash "$@" &
echo "Submitted batch job $$" >&2
"""
SRUN = """#!/bin/bash
while [[ $1 == -* ]]; do
    [[ $1 == *=* ]] || shift
    shift
done
for ((i = 0; i < SLURM_NTASKS; i++)); do
    SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=$SLURM_NTASKS SLURM_PROCID=$i SLURM_LOCALID=$i "$@" &
done
wait
"""
# As v0.5 to v0.19 have them, without the lines of accounts and clocks; ports are appended.
SUB = """#!/bin/bash
#SBATCH -o logs/tensorrt_llm.out
#SBATCH -e logs/tensorrt_llm.error
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=2
#SBATCH --time=00:30:00

srun --mpi=pmix \\
    --container-image triton_trt_llm \\
    --container-mounts /path/to/tensorrtllm_backend:/tensorrtllm_backend \\
    --container-workdir /tensorrtllm_backend \\
    --output logs/tensorrt_llm_%t.out \\
    bash tensorrt_llm_triton.sh $*
"""
SCRIPT = """TRITONSERVER="tritonserver"
MODEL_REPO="triton_model_repo"

${TRITONSERVER} --model-repository=${MODEL_REPO} --disable-auto-complete-config --backend-config=python,shm-region-prefix-name=prefix${SLURM_PROCID}_ $*
"""


@pytest.fixture
def cluster(guide, models):
    """A guide with a repository of two ranks and the programs of Slurm."""
    (guide.folder / "bin").mkdir()
    for name, text in (("sbatch", SBATCH), ("srun", SRUN)):
        (guide.folder / "bin" / name).write_text(text)
        (guide.folder / "bin" / name).chmod(0o755)
    guide.env["PATH"] = f"{guide.folder}/bin:{guide.env['PATH']}"
    guide.type(f"""
        trtllm-build --checkpoint_dir {models['llama']} --tp_size 2 --output_dir engine
        nereid repo --engine_dir engine --tokenizer_dir {models['llama']} --output_dir triton_model_repo --set decoupled_mode:False
    """)
    return guide


def test_readme_of_v0_5_to_v0_19(cluster):
    (cluster.folder / "tensorrt_llm_triton.sub").write_text(SUB)
    (cluster.folder / "tensorrt_llm_triton.sh").write_text(SCRIPT)
    cluster.launch("sbatch tensorrt_llm_triton.sub", force="")
    check(cluster.generate(QUESTION))


def test_launch_triton_server_py_under_srun(cluster):
    """v0.13 on: `srun --mpi pmix launch_triton_server.py --oversubscribe`, here in a job with one task."""
    (cluster.folder / "job").write_text("srun --mpi pmix scripts/launch_triton_server.py --world_size 2 --oversubscribe "
                                        "--model_repo triton_model_repo $*\n")
    cluster.launch("sbatch --ntasks=1 job")
    check(cluster.generate(QUESTION))


def test_our_own_script(cluster):
    (cluster.folder / "deploy").symlink_to(ROOT / "deploy")
    cluster.launch("sbatch --ntasks=2 deploy/slurm/nereid.sub triton_model_repo", force="")
    check(cluster.generate(QUESTION))
