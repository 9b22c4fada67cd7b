"""MLflow as a logging hook, for the extra ``mlflow``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from speedtronic.metrics.extras import check_extra
from speedtronic.metrics.records import find_scalars


class MlflowHook:
    """Sends the numbers of every event to an MLflow run, opened with the first event.

    Args:
        experiment: MLflow experiment, made when missing.
        name: Shown name of the run; MLflow invents one when None.
        tracking_uri: Server or ``sqlite:///mlflow.db``; MLflow's own default when None.
        run_id: An existing run to continue.
        settings: Logged as the run's parameters.

    Raises:
        MissingExtraError: The package mlflow is not installed.
    """

    def __init__(
        self,
        *,
        experiment: str = "speedtronic",
        name: str | None = None,
        tracking_uri: str | None = None,
        run_id: str | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        check_extra("mlflow", feature="MLflow")
        self._experiment = experiment
        self._name = name
        self._tracking_uri = tracking_uri
        self._run_id = run_id
        self._settings = dict(settings or {})
        self._client: Any = None

    def on_event(self, event: str, payload: Mapping[str, Any]) -> None:
        """Send the numbers of an event at its step."""
        if self._client is None:
            self._open()
        for tag, value in find_scalars(event, payload).items():
            group, _, name = tag.partition("/")
            # In MLflow's file store `lr` and `lr/decayed` would be a file and a folder of one name.
            key = f"{group}/{name.replace('/', '.')}"
            self._client.log_metric(self._run_id, key, value, step=payload.get("step", 0))

    def close(self) -> None:
        """Mark the MLflow run as finished."""
        if self._client is not None:
            self._client.set_terminated(self._run_id)
            self._client = None

    def _open(self) -> None:
        # The client has no process-wide current run, unlike mlflow.start_run.
        from mlflow import MlflowClient

        client = MlflowClient(tracking_uri=self._tracking_uri)
        if self._run_id is None:
            experiment = client.get_experiment_by_name(self._experiment)
            experiment_id = (
                client.create_experiment(self._experiment)
                if experiment is None
                else experiment.experiment_id
            )
            run = client.create_run(experiment_id, run_name=self._name)
            self._run_id = run.info.run_id
            for name, value in self._settings.items():
                client.log_param(self._run_id, name, value)
        self._client = client
