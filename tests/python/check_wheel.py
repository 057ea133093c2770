#!/usr/bin/env python3
"""Reads a wheel back with Python's own zipfile, as pip does.

usage: check_wheel.py WHEEL

Every file unpacks to what its checksum says, every file is in RECORD with its hash and
size, and nothing else is; programs may be executed, other files not.

Needs nothing but Python. Exit code 1 when anything is wrong.
"""

import base64
import csv
import hashlib
import io
import sys
import zipfile


def main() -> int:
    wrong = []
    with zipfile.ZipFile(sys.argv[1]) as wheel:
        damaged = wheel.testzip()
        if damaged:
            wrong.append(f"{damaged}: checksum")
        names = wheel.namelist()
        record = next(name for name in names if name.endswith(".dist-info/RECORD"))
        rows = list(csv.reader(io.StringIO(wheel.read(record).decode())))
        if sorted(row[0] for row in rows) != sorted(names):
            wrong.append("RECORD lists other files than there are")
        for name, digest, size in rows:
            content = wheel.read(name)
            hashed = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            if name != record and (digest, size) != (f"sha256={hashed}", str(len(content))):
                wrong.append(f"{name}: RECORD says {digest} and {size}, it is {hashed} and {len(content)}")
        for file in wheel.infolist():
            mode = 0o755 if "/scripts/" in file.filename else 0o644
            if file.external_attr >> 16 & 0o777 != mode:
                wrong.append(f"{file.filename}: permissions")
    for line in wrong:
        print(line)
    print(f"{len(names)} files, {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
