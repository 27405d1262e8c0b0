"""A night as a DAG of Airflow; put it in its folder of DAGs, and bigfs in the home of its user."""

from datetime import datetime
from pathlib import Path

from airflow import DAG
from airflow.operators.bash import BashOperator

with DAG(
    "bigfs_nightly",
    schedule="0 1 * * *",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
):
    # The date is that of the night, also when the task is cleared and runs again another day.
    BashOperator(
        task_id="select",
        bash_command="deploy/again.sh pipelines/nightly.yaml --set date={{ ds }}",
        cwd=f"{{{{ var.value.get('bigfs', '{Path.home() / 'bigfs'}') }}}}",
        append_env=True,
        retries=0,
    )
