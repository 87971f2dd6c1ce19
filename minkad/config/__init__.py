"""minkad's configuration: a YAML file and the environment in, a checked `Config` out."""

from minkad.config.config_files import load, variable
from minkad.config.effective import RELOADABLE, apply_reload, describe, diff
from minkad.config.schema import Config

__all__ = ["RELOADABLE", "Config", "apply_reload", "describe", "diff", "load", "variable"]
