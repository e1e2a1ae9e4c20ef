"""Start a command on every machine of a run that isolaw executes under Ray. ::

    run = ["python", "on_ray.py", "bash", "-c", "exec torchrun --node-rank=$NODE_RANK … \"$@\"", "trl", …]

isolaw starts this script once, on the first machine, and has reserved a bundle of the placement group
``ISOLAW_PLACEMENT_GROUP`` on each. A command finds the number of its machine in ``NODE_RANK``. All commands
end if this script does.
"""

import os
import subprocess
import sys

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

OWN = ("CUDA_VISIBLE_DEVICES", "RAY_")  # variables of each process


def start(words: list[str], variables: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start the command, which ends with this process."""
    return subprocess.Popen(["setpriv", "--pdeathsig", "TERM", *words], env={**os.environ, **variables})


@ray.remote(max_retries=0)
def there(words: list[str], folder: str, variables: dict[str, str]) -> int:
    """Run the command on another machine, and return its exit status."""
    os.chdir(folder)
    return start(words, variables).wait()


def main(words: list[str]) -> int:
    """Run the command everywhere, and return the first bad exit status."""
    ray.init(namespace=os.environ["RAY_NAMESPACE"], log_to_driver=True)
    group = ray.util.get_placement_group(os.environ["ISOLAW_PLACEMENT_GROUP"])
    variables = {name: value for name, value in os.environ.items() if not name.startswith(OWN)}
    others = []
    for number, bundle in enumerate(group.bundle_specs):
        if number:  # isolaw's own task occupies the first bundle
            place = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=number)
            needs = {"num_cpus": bundle.get("CPU", 0), "num_gpus": bundle.get("GPU", 0)}
            options = there.options(**needs, scheduling_strategy=place)
            others.append(options.remote(words, os.getcwd(), variables | {"NODE_RANK": str(number)}))
    here = start(words, {"NODE_RANK": "0"})
    while others:
        ended, others = ray.wait(others, timeout=1)
        for status in ray.get(ended):
            if status:
                here.terminate()
                return status
        if here.poll():
            break
    return here.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
