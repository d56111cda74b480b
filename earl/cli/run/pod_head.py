"""The head of a run on Kubernetes, in its Pod: `python -m earl.cli.run.pod_head ORDER`.

    Secret: ORDER ─► slots, tokens and certificates in the run's directory ─► the launch (earl.cli.run.head)
                                                                               │
    its Job makes the Pod again ◄── no code was recorded: it was evicted ◄─────┤
                                                                               └─► the run is over: a code

A Pod that is made again after a run is over ends with the recorded code. So the Job fails if the run has, and
a run whose head was evicted resumes from its last checkpoint.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

from earl.cli.lib.exit_code import INTERRUPTED
from earl.cli.run.detached import LaunchChannel, failure_news
from earl.cli.run.head import HeadOrder, conclude, lead, open_news, report_failure
from earl.config.check import cross_check
from earl.errors import ConfigError, EarlError
from earl.stack.cluster.access import make_secrets
from earl.stack.cluster.folder import ClusterFolder, HeadJob
from earl.stack.cluster.kubernetes.objects import object_name
from earl.stack.cluster.kubernetes.slots import make_slots, pod_address, pods_domain
from earl.stack.cluster.manager import ClusterNode
from earl.stack.cluster.sizes import MOST_GPUS, job_sizes
from earl.stack.run_files import LOGS
from earl.stack.rundir import check_directory, has_run, run_path


def prepare(given: HeadOrder, folder: ClusterFolder) -> None:
    """Makes what the head and the run's Pods need in the run's directory; a head that was made again takes
    what the one before it has left. Raises ConfigError."""
    config = given.order.config
    cross_check(config)  # what a dry run could not: it need not have the claim
    job, directory = folder.job, run_path(config)
    if job is None or job.order != given.name or job.ended or not has_run(directory):
        check_directory(config, resume=given.order.resume)
    try:
        folder.make()
        (directory / LOGS).mkdir(exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"run directory {directory} cannot be written: {str(error.strerror).lower()}",
            f"let user {os.getuid()} (cluster.kubernetes.user) write to the claim",
        ) from None
    name = object_name(config.name)
    cluster = config.cluster.model_dump(mode="json")
    make_slots(folder, job_sizes(config, MOST_GPUS))
    domain = pods_domain(pod_address())
    if not folder.secrets.is_dir():
        make_secrets(folder, [ClusterNode(domain, domain, 0, 0, 0, up=True)])
    folder.keep_job(HeadJob(given.manager, name, cluster=cluster, order=given.name))


def main() -> int:
    logging.getLogger().addHandler(logging.NullHandler())  # until there is a log
    given = HeadOrder.model_validate_json(Path(sys.argv[1]).read_bytes())
    folder = ClusterFolder(run_path(given.order.config))
    job = folder.job
    if job is not None and job.order == given.name and job.ended:
        return job.code
    os.environ.update(given.variables)  # they may name tokens and certificates to use
    try:
        prepare(given, folder)
    except EarlError as error:
        if folder.path.is_dir():
            LaunchChannel(open_news(folder)).send(failure_news(error))
        return report_failure(error)
    try:
        outcome = lead(given, folder)
    except EarlError as error:
        code = report_failure(error)
    else:
        if not outcome.complete and not folder.stop.exists():
            return INTERRUPTED  # its Pod is ended, by a drain of its node for example: another continues
        code = 0  # a run that was stopped has not failed
    conclude(folder, code)
    return code


if __name__ == "__main__":
    sys.exit(main())
