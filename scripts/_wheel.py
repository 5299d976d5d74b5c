"""Whether a wheel holds the files of the package under version control, and nothing else. Used by scripts/release."""

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def differences(wheel: str) -> list[str]:
    """One line for each file that is missing in the wheel, or that should not be there."""
    listed = subprocess.run(["git", "ls-files", "src/twolayer"], cwd=ROOT, capture_output=True, text=True, check=True)
    wanted = {line.removeprefix("src/") for line in listed.stdout.splitlines()}
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    lines = [f"{name} is missing" for name in sorted(wanted - packed)]
    return lines + [f"{name} is not a file of the package" for name in sorted(packed - wanted)]


if __name__ == "__main__":
    found = differences(sys.argv[1])
    print("\n".join(found), end="\n" if found else "", file=sys.stderr)
    sys.exit(bool(found))
