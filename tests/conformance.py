"""Run the Array API standard's own test suite on minigrad, against the list of failures that are expected.

    python tests/conformance.py PATH [--backend NAME] [--examples N]

PATH is a checkout of data-apis/array-api-tests (with its submodule), at commit 55fcc60 for the lists beside this file:
conformance/BACKEND.txt, each line the end of a test's name and, after `#`, the reason why it fails. The exit status is
1 where another test fails, and also where one of the list passes: then the line has to go. Where a reason begins with
``sometimes`` the test fails for some numbers alone, and which it draws depends on the code that it tests, too.

PyTorch lacks most operations for uint16, uint32 and uint64: these are left out there, as array-api-compat's tests do.

With ``--plain NAMESPACE`` (``array_api_compat.torch``) it runs on that instead of minigrad, and tells what fails there.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

HERE = Path(__file__).parent


def expected_failures(backend: str) -> dict[str, str]:
    """The names of the tests that are expected to fail, with the reason."""
    lines = (HERE / "conformance" / f"{backend}.txt").read_text().splitlines()
    pairs = (line.split("  # ", 1) for line in lines if line and not line.startswith("#"))
    return {name.strip(): reason for name, reason in pairs}


def run(path: Path, backend: str, examples: int, namespace: str = "minigrad") -> dict[str, str]:
    """Each test's name and how it ended: passed, failed or skipped."""
    report = path / f"{namespace}-{backend}.xml"
    command = [sys.executable, "-m", "pytest", "array_api_tests", "-q", "--tb=no", "--disable-warnings"]
    command += [f"--max-examples={examples}", "--disable-deadline", "--derandomize", f"--junit-xml={report}"]
    environment = os.environ | {"ARRAY_API_TESTS_MODULE": namespace, "MINIGRAD_BACKEND": backend}
    environment["ARRAY_API_TESTS_SKIP_DTYPES"] = "uint16,uint32,uint64" if backend == "torch" else ""
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")])
    if subprocess.run(command, cwd=path, env=environment, check=False).returncode not in (0, 1):
        sys.exit(f"{path}: the suite did not run")
    ended = {}
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
        outcome = next((tag for tag in ("failure", "error", "skipped") if case.find(tag) is not None), "passed")
        ended[name] = {"failure": "failed", "error": "failed"}.get(outcome, outcome)
    return ended


def main() -> int:
    parser = argparse.ArgumentParser(description="The standard's own tests, against the list of expected failures.")
    parser.add_argument("path", type=Path, help="a checkout of data-apis/array-api-tests")
    parser.add_argument("--backend", default="numpy", help="numpy, torch or array_api_strict (numpy)")
    parser.add_argument("--examples", type=int, default=20, help="how many examples for each test (20)")
    parser.add_argument("--plain", default="minigrad", metavar="NAMESPACE", help="run on this instead of minigrad")
    options = parser.parse_args()
    expected = expected_failures(options.backend)
    ended = run(options.path.resolve(), options.backend, options.examples, options.plain)
    failed = {name for name, how in ended.items() if how == "failed"}
    unexpected = sorted(failed - expected.keys())
    always = [name for name, reason in expected.items() if not reason.startswith("sometimes")]
    gone = sorted(name for name in always if ended.get(name) != "failed")
    for name in unexpected:
        print(f"fails, but is not expected to: {name}")
    for name in gone:
        print(f"is expected to fail, but {ended.get(name, 'is not there')}: {name}")
    count = {how: sum(other == how for other in ended.values()) for how in ("passed", "failed", "skipped")}
    print(f"{options.plain} on {options.backend}:", ", ".join(f"{number} {how}" for how, number in count.items()))
    return 1 if unexpected or gone else 0


if __name__ == "__main__":
    sys.exit(main())
