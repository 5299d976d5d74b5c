"""A sweep on a Slurm cluster: pip install 'twolayer[cluster]' dask-jobqueue, then run this on a login node.

Each job is one worker. Kubernetes (dask-kubernetes), PBS and the others are the same with another class of cluster, and
a scheduler that is running already needs only its address: tl.sweep(..., scheduler="tcp://host:8786").
"""

import os

from dask_jobqueue import SLURMCluster
from distributed import Client

import twolayer as tl

if __name__ == "__main__":
    workers = int(os.environ.get("WORKERS", "2"))
    cluster = SLURMCluster(
        cores=1,  # of one job; compiled code uses all that the job has
        processes=1,
        memory="2GB",
        walltime="01:00:00",
        # Jobs share the compiled programs where the cache is on a shared file system.
        job_script_prologue=["export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1"],
        scheduler_options={"dashboard_address": ":0"},  # any free port, since others may use this login node
    )
    print(cluster.job_script())
    cluster.scale(jobs=workers)
    problem = tl.Problem(tl.PhaseRetrieval(), tl.Student(1, "square"), tl.Gaussian(100))
    training = tl.SGD(0.05, constraint=tl.Sphere())
    with Client(cluster) as client:
        client.wait_for_workers(workers)
        result = tl.sweep(
            problem,
            training,
            "OverlapSGD",
            over={"training.learning_rate": "log:0.01:0.08:8", "problem.inputs.d": [30, 100, 300]},
            until=4.0,
            save=2,
            replicas=64,
            risk_threshold=1.0,
            stop_at_threshold=True,
            scheduler=client,
            out="results/slurm-sweep",
        )
    print(tl.summary(result))
    print(result.crossing_time.mean("replica").to_pandas())
