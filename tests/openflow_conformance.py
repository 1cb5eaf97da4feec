"""The switch conformance tests of os-ken: openflow_conformance.py PORT FILES TARGET TESTER, where FILES is a folder or a file of their tests, below
theirs unless it begins with a slash, and TARGET and TESTER are numbers of switches that connect to PORT."""

import os
import sys

# Its tester waits for what another of its threads says; with threads of the system it does so for ever.
os.environ["OSKEN_HUB_TYPE"] = "eventlet"

import os_ken  # noqa: E402
from os_ken import cfg, log  # noqa: E402
from os_ken.base import app_manager  # noqa: E402
from os_ken.tests.switch import tester  # noqa: E402,F401 (its options)

if __name__ == "__main__":
    port, files, target, against = sys.argv[1:]
    files = os.path.join(os.path.dirname(os_ken.__file__), "tests", "switch", "of13", files)
    options = ["--ofp-tcp-listen-port", port, "--ofp-listen-host", "127.0.0.1", "--test-switch-dir", files]
    for name, number in (("target", target), ("tester", against)):
        options += [f"--test-switch-{name}", f"{int(number):016x}", f"--test-switch-{name}-version", "openflow13"]
    log.early_init_log()
    cfg.CONF(project="os_ken", args=options)
    log.init_log()
    app_manager.AppManager.run_apps(["os_ken.tests.switch.tester"])
