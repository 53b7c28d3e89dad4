"""Configuration: traits, whose help is the manual, read once into frozen `Options`.

Precedence: flag > environment ``JUPYTER_AICLUSTER_NAME`` > ``jupyter_aicluster_config.py|json`` on the Jupyter config path
(user, environment prefix, system).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path

from jupyter_core.paths import jupyter_config_path
from traitlets import Enum, Float, Integer, TraitError, Unicode
from traitlets.config import Config, Configurable
from traitlets.config.loader import ConfigFileNotFound, JSONFileConfigLoader, PyFileConfigLoader

from jupyter_aicluster.errors import UsageError
from jupyter_aicluster.options import DEFAULT_HOME, Options

FILE = "jupyter_aicluster_config"
ENV = "JUPYTER_AICLUSTER_"


class AICluster(Configurable):
    """Section ``c.AICluster`` of a configuration file."""

    home = Unicode(str(DEFAULT_HOME), help="Folder of records and run folders; every node of a cluster must see it.").tag(config=True)
    backend = Unicode("auto", help="Who grants GPUs when no --backend is given: auto, local, slurm or kubernetes.").tag(config=True)
    time_s = Float(3600.0, min=1, help="Time limit of a job where neither -t nor its partition says one.").tag(config=True)
    up_time_s = Float(8 * 3600.0, min=1, help="The same for `%gpujob up`.").tag(config=True)
    keep_s = Float(1800.0, min=1, help="A held cluster goes back when nothing has used it for so long.").tag(config=True)
    hold_s = Float(600.0, min=0, help="So long the GPUs of a failed or interrupted cell wait for another try; 0 = not at all.").tag(
        config=True
    )
    lease_s = Float(600.0, min=10, help="So long GPUs that do nothing are held after the last client has gone.").tag(config=True)
    retries = Integer(2, min=0, help="So often a job starts again when a node falls (--retries). Clusters that are kept: 0.").tag(
        config=True
    )
    connect_timeout_s = Float(120.0, min=1, help="From the grant until every node program must have reported.").tag(config=True)
    join_timeout_s = Float(180.0, min=1, help="From then until every node must have joined the Ray cluster.").tag(config=True)
    max_ship_bytes = Integer(2_000_000_000, min=0, help="Inputs of a cell above this size are refused (--max-ship).").tag(config=True)
    max_output_bytes = Integer(256_000_000, min=0, help="Outputs of a cell above this size stay on the cluster.").tag(config=True)
    gpu_kind = Enum(["auto", "real", "simulated"], "auto", help="Local backend: real GPUs, simulated ones, or what there is.").tag(
        config=True
    )
    simulated_gpus = Integer(16, min=1, help="Local backend: how many simulated GPUs this machine has.").tag(config=True)
    display = Enum(
        ["auto", "text", "none"],
        "auto",
        help="What a cell shows of its cluster: receipt and card in a notebook, lines of text, or nothing "
        "(then its outputs are those of its code alone, the same in every run: for nbval).",
    ).tag(config=True)

    def options(self) -> Options:
        values = {item.name: getattr(self, item.name) for item in fields(Options)}
        return Options(**values | {"home": Path(self.home).expanduser()})


def load(environ: Mapping[str, str], folders: Iterable[str]) -> Options:
    """Options from the files in ``folders`` (the first one wins) and the environment. Raises `UsageError` for a value that cannot be.

    Configuration files in Python are run, as Jupyter does with its own.
    """
    config = Config()
    for folder in reversed(list(folders)):
        for loader in (JSONFileConfigLoader(f"{FILE}.json", path=folder), PyFileConfigLoader(f"{FILE}.py", path=folder)):
            try:
                config.merge(loader.load_config())
            except ConfigFileNotFound:
                continue
            except Exception as error:  # boundary: a configuration file may raise anything
                raise UsageError(
                    f"the configuration file {loader.full_filename} cannot be read",
                    evidence=f"{type(error).__name__}: {error}",
                    hint="mend that file",
                ) from error
    section = config["AICluster"]
    for name, trait in AICluster.class_traits(config=True).items():
        text = environ.get(ENV + name.upper())
        if text is not None:
            try:
                section[name] = trait.from_string(text)
            except (TraitError, ValueError) as error:
                raise UsageError(f"{ENV + name.upper()}={text!r} cannot be: {trait.help}", hint="correct or unset it") from error
    try:
        return AICluster(config=config).options()
    except TraitError as error:
        raise UsageError("a configured value cannot be", evidence=str(error), hint=f"look in {FILE}.py and at {ENV}*") from error


@functools.cache
def options() -> Options:
    """This process's options, read at first use."""
    return load(os.environ, jupyter_config_path())
