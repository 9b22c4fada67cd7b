"""TensorBoard event files, written without torch and without a thread.

The files hold scalars at their true steps, texts, and the hyperparameters with the run they belong
to. ``torch.utils.tensorboard`` is not used: importing it costs seconds and its ``add_hparams`` puts
the hyperparameters into a run of their own.
"""

from __future__ import annotations

import itertools
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from speedtronic.metrics.records import find_scalars

_file_numbers = itertools.count()


class TensorBoardHook:
    """Writes the numbers of every event, the sample of an evaluation, and at the end ``hparams``.

    Args:
        folder: Where the event file goes, made with the first event. Earlier files stay: a resumed
            run goes on in the same folder.
        purge_step: TensorBoard hides what earlier files say about this step and later ones.
        hparams: Settings, nested or flat, shown beside the last losses; written at ``train_end``.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        purge_step: int | None = None,
        hparams: Mapping[str, Any] | None = None,
    ) -> None:
        self._folder = Path(folder)
        self._purge_step = purge_step
        self._hparams = _flatten(hparams or {})
        self._file: _EventFile | None = None
        self._started_at_s = time.time()
        self._step = 0

    def on_event(self, event: str, payload: Mapping[str, Any]) -> None:
        """Write what an event says; a run that is killed loses nothing of it."""
        self._step = payload.get("step", self._step)
        file = self._open()
        for tag, value in find_scalars(event, payload).items():
            file.add_scalar(tag, value, step=self._step)
        for key, value in payload.items():
            if event == "eval" and isinstance(value, str):
                file.add_text(f"{event}/{key}", value, step=self._step)
        if event == "train_end" and self._hparams:
            file.add_hparams(self._hparams, started_at_s=self._started_at_s)
        file.flush()

    def close(self) -> None:
        """Close the file. A later event starts another one in the same folder."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> _EventFile:
        if self._file is None:
            self._file = _EventFile(self._folder)
            if self._purge_step is not None:
                self._file.purge(self._purge_step)
                self._purge_step = None
        return self._file


class _EventFile:
    """One file of TensorBoard's records."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        folder.mkdir(parents=True, exist_ok=True)
        name = (
            f"events.out.tfevents.{time.time_ns() // 1_000_000_000:010}.{socket.gethostname()}"
            f".{os.getpid()}.{next(_file_numbers)}"
        )
        self._stream: IO[bytes] = (folder / name).open("xb")
        self._writer = RecordWriter(self._stream)
        self._write(Event(file_version="brain.Event:2"))

    def purge(self, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        self._write(Event(step=step, session_log=SessionLog(status=SessionLog.START)))

    def add_scalar(self, tag: str, value: float, *, step: int) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        self._add(Summary.Value(tag=tag, simple_value=value), step=step)

    def add_text(self, tag: str, text: str, *, step: int) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.types_pb2 import DT_STRING
        from tensorboard.plugins.text.metadata import create_summary_metadata

        # Shown as Markdown: an indented block keeps line breaks and shows every character.
        block = "\n".join(f"    {line}" for line in text.split("\n"))
        tensor = TensorProto(dtype=DT_STRING, string_val=[block.encode("utf-8", "replace")])
        metadata = create_summary_metadata(display_name=tag, description="")
        self._add(Summary.Value(tag=tag, tensor=tensor, metadata=metadata), step=step)

    def add_hparams(self, hparams: Mapping[str, Any], *, started_at_s: float) -> None:
        from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2

        experiment = api_pb2.Experiment(
            hparam_infos=[api_pb2.HParamInfo(name=name) for name in hparams],
            metric_infos=[
                api_pb2.MetricInfo(name=api_pb2.MetricName(tag=tag))
                for tag in ("train/loss", "eval/loss")
            ],
        )
        start = plugin_data_pb2.SessionStartInfo(start_time_secs=started_at_s)
        for name, value in hparams.items():
            _set_value(start.hparams[name], value)
        end = plugin_data_pb2.SessionEndInfo(
            status=api_pb2.STATUS_SUCCESS, end_time_secs=time.time()
        )
        for tag, content in (
            (metadata.EXPERIMENT_TAG, {"experiment": experiment}),
            (metadata.SESSION_START_INFO_TAG, {"session_start_info": start}),
            (metadata.SESSION_END_INFO_TAG, {"session_end_info": end}),
        ):
            self._add_metadata(tag, plugin_data_pb2.HParamsPluginData(**content))

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._stream.close()

    def _add_metadata(self, tag: str, content: Any) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.hparams import metadata

        value = Summary.Value(
            tag=tag,
            metadata=metadata.create_summary_metadata(content),
            tensor=metadata.NULL_TENSOR,
        )
        self._add(value, step=0)

    def _add(self, value: Any, *, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        self._write(Event(step=step, summary=Summary(value=[value])))

    def _write(self, event: Any) -> None:
        event.wall_time = time.time()
        self._writer.write(event.SerializeToString())


def _flatten(settings: Mapping[str, Any], *, prefix: str = "") -> dict[str, bool | float | str]:
    """Return nested settings under dotted names, as the three kinds of value TensorBoard knows."""
    flat: dict[str, bool | float | str] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, prefix=f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value if isinstance(value, (bool, int, float)) else str(value)
    return flat


def _set_value(target: Any, value: bool | float | str) -> None:  # noqa: FBT001 - a setting's value
    if isinstance(value, bool):
        target.bool_value = value
    elif isinstance(value, (int, float)):
        target.number_value = value
    else:
        target.string_value = value
