"""Reads what `tensorscope export RUN --to tracker -o DIR` wrote, as rows; prints them as CSV.
usage: read_tracker.py DIR"""
import csv, json, pathlib, struct, sys

NONE = dict.fromkeys("layer_id attention_head expert_id expert_rank routing_score file".split(), 2**16 - 1)
NONE["file_offset"] = 2**64 - 1

def read(folder):
    folder = pathlib.Path(folder)
    about = json.loads((folder / "trace_metadata.json").read_text("utf-8"))
    fields = [field["name"] for field in about["record"]["fields"]]
    names = [line.split(",", 1)[1] for line in (folder / "tensor_names.txt").open(encoding="utf-8", newline="\n")]
    for record in struct.iter_unpack("<4Q3I8H4B", (folder / "tensor_access.bin").read_bytes()):
        row = {field: None if NONE.get(field) == value else value for field, value in zip(fields, record)}
        yield row | {"tensor": names[row["tensor_idx"]].rstrip("\n"), "op": about["operations"][str(row["operation"])]}

if __name__ == "__main__":
    rows = list(read(sys.argv[1]))
    csv.writer(sys.stdout, lineterminator="\n").writerows([rows[0].keys() if rows else [], *(r.values() for r in rows)])
