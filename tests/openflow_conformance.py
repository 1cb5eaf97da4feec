"""The switch conformance tests of os-ken: openflow_conformance.py PORT FOLDER TARGET TESTER, where FOLDER is one of theirs or a file in it, and
the others are numbers of switches, which connect to PORT."""

import os
import sys

import os_ken
from os_ken import cfg
from os_ken.base import app_manager
from os_ken.lib import hub
from os_ken import log
from os_ken.tests.switch import tester  # noqa: F401 (its options)

if __name__ == "__main__":
    port, folder, target, against = sys.argv[1:]
    folder = os.path.join(os.path.dirname(os_ken.__file__), "tests", "switch", "of13", folder)
    options = ["--ofp-tcp-listen-port", port, "--ofp-listen-host", "127.0.0.1", "--test-switch-dir", folder]
    for name, number in (("target", target), ("tester", against)):
        options += [f"--test-switch-{name}", f"{int(number):016x}", f"--test-switch-{name}-version", "openflow13"]
    log.early_init_log()
    cfg.CONF(project="os_ken", args=options)
    log.init_log()
    app_manager.AppManager.run_apps(["os_ken.tests.switch.tester"])
    hub.kill
