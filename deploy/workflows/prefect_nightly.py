"""A night as a flow of Prefect: python deploy/workflows/prefect_nightly.py serves it."""

import subprocess

from prefect import flow


@flow(name="bigfs-nightly")
def night(pipeline: str = "pipelines/nightly.yaml") -> int:
    """Run the pipeline; it fails with the code of the command."""
    return subprocess.run(["deploy/again.sh", pipeline], check=True).returncode


if __name__ == "__main__":
    night.serve(name="nightly", cron="0 1 * * *", limit=1)
