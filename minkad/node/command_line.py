"""The arguments of minkad, and the run that they ask for."""

import argparse
import asyncio
import faulthandler
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import minka
from minka.errors import MinkaError
from minkad import config as configuration
from minkad.process import signals
from minkad.process.exits import complain, status_of

SWITCH_INTERVAL = 0.0005  # seconds; a thread that comes back from an fsync must get the GIL soon


def run(arguments: Sequence[str] | None = None) -> int:
    """Run minkad with these arguments of the command line. Returns the exit status: 0 after an orderly stop, 1 after a
    failure, 2 for a mistake in the configuration, 3 if the cluster or the data directory refuses the node for good.
    """
    parser = argparse.ArgumentParser(prog="minkad", description="One node of a Minka cluster.")
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="the configuration, in YAML")
    parser.add_argument("--validate-config", action="store_true", help="check it, print what is in force, and exit")
    parser.add_argument("--version", action="version", version=f"minkad {minka.__version__}")
    options = parser.parse_args(arguments)
    try:
        config = configuration.load(options.config, os.environ)
        if options.validate_config and config.certificates is not None:
            from minkad.rpc.credentials import Credentials

            Credentials(config.certificates, config.advertised_hosts)
    except MinkaError as error:
        return complain(error, status_of(error))
    if options.validate_config:
        print("\n".join(configuration.describe(config)))  # noqa: T201  # the requested output
        return 0
    return _run(config, options.config)


def _run(config: configuration.Config, path: Path) -> int:
    # Otherwise gRPC writes lines in its own form for each refused handshake, and for a taken address; INFO in the
    # environment shows them.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    import uvloop

    from minkad.node.daemon import Daemon
    from minkad.process import logs

    faulthandler.enable()  # the log tells what runs when native code crashes
    sys.setswitchinterval(SWITCH_INTERVAL)
    logs.setup(config.log.level, config.log.format, config.node.id)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(Daemon(config, path).run())
    except MinkaError as error:
        return complain(error, status_of(error))
    finally:
        signals.at_end()
    return 0
