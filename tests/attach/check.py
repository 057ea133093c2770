"""Records programs that nobody rebuilt, and compares them with themselves.

    python check.py --tensorscope PROGRAM --models DIR [--node] [--python PYTHON] [--server SECONDS]

For each program: the same output and exit code with and without us, no line on
standard error that is not `tensorscope:`, every token in the trace, nothing lost.

A prebuilt program that dies of a signal by itself (it uses instructions that this
processor announces and traps on, say) cannot be tested here: that is counted and
shown, and is no failure. One that we compiled has no such excuse.

    --node           node-llama-cpp, as it chooses its kernels itself and again without its
                     AVX-512 and AMX kernels; `npm install` was done in this folder
    --python PYTHON  an interpreter that has llama-cpp-python[server]
    --dense-only     llama.cpp before 2024-04 knows experts as tensors of their own only
    --server SECONDS four clients stream from its server for so long
    --sql PROGRAM    reads the runs, if another than --tensorscope
    --scratch DIR    for the second node-llama-cpp; on the file system of this folder
"""

import argparse
import csv
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
# Kernels of a ggml with one library for each kind of processor that need AVX-512 or AMX.
WIDE_KERNELS = ("skylakex", "cannonlake", "cascadelake", "icelake", "cooperlake", "zen4", "sapphirerapids")
PASSED, FAILED, UNTESTED = [], [], []


def passed(case, what):
    PASSED.append(case)
    print(f"ok     {case}: {what}", flush=True)


def fail(case, what):
    FAILED.append(case)
    print(f"FAILED {case}: {what}", flush=True)


def untested(case, what):
    UNTESTED.append(case)
    print(f"NOT TESTED {case}: {what}", flush=True)


def death(returncode):
    """The name of the signal that a program died of, also as a shell reports it."""
    number = -returncode if returncode < 0 else returncode - 128
    try:
        return signal.Signals(number).name
    except ValueError:
        return None


def is_testable(case, plain, is_prebuilt):
    """Whether the program, run without us, lived; says so where it did not."""
    died_of = death(plain.returncode)
    if died_of is None:
        return True
    what = f"it died with {died_of} before we were loaded: {plain.stderr[-200:]!r}"
    if is_prebuilt:
        untested(case, what)
    else:
        fail(case, what)
    return False


def query(args, run, sql):
    command = [args.sql or args.tensorscope, "sql", run, sql, "--format", "csv"]
    out = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    return list(csv.DictReader(out.stdout.splitlines()))


def compare(args, case, command, folder, expected_code=0, flags=(), is_prebuilt=False):
    """Runs the command twice; the run directory, or None."""
    run = folder / case
    plain = subprocess.run(command, capture_output=True)
    if not is_testable(case, plain, is_prebuilt):
        return None
    recorded = subprocess.run(
        [args.tensorscope, "record", "-o", run, *flags, "--", *command], capture_output=True
    )
    ours = [line for line in recorded.stderr.splitlines() if line.startswith(b"tensorscope:")]
    theirs = [line for line in recorded.stderr.splitlines() if not line.startswith(b"tensorscope:")]
    if plain.returncode != expected_code:
        return fail(case, f"it fails without us: {plain.returncode} {plain.stderr[-500:]!r}")
    if not plain.stdout:
        return fail(case, "it prints nothing without us")
    if recorded.returncode != plain.returncode:
        return fail(case, f"exit code {recorded.returncode} instead of {plain.returncode}: {ours}")
    if recorded.stdout != plain.stdout:
        return fail(case, f"{recorded.stdout!r} instead of {plain.stdout!r}")
    if len(theirs) != len(plain.stderr.splitlines()):
        return fail(case, f"standard error differs: {theirs}")
    if not (run / "metadata.json").exists():
        return fail(case, f"there is no run: {ours}")
    metadata = json.loads((run / "metadata.json").read_text())
    if metadata["status"] != "complete" or metadata["statistics"]["lost_evaluations"]:
        return fail(case, f"the trace is {metadata['status']}: {metadata['stopped_reason']}")
    flagged = query(args, run, "SELECT count(*) AS n FROM evals WHERE flags <> 0")
    if flagged[0]["n"] != "0":
        return fail(case, f"{flagged[0]['n']} evaluations are flagged")
    passed(case, ours[-1].decode() if ours else "")
    return run, json.loads(plain.stdout)


def tokens(args, run):
    """Tokens of each context in the order of their evaluation."""
    rows = query(
        args,
        run,
        "SELECT e.context, t.token_id FROM tokens t JOIN evals e ON e.eval = t.eval ORDER BY e.begin_nanos, t.token",
    )
    by_context = {}
    for row in rows:
        by_context.setdefault(row["context"], []).append(int(row["token_id"]))
    return list(by_context.values())


def expect_tokens(args, case, run, expected):
    found = tokens(args, run)
    for sequence in expected:
        if sequence not in found:
            fail(case, f"{sequence} is not in the trace, which has {found}")


def generation(args, case, command, folder, is_prebuilt=False):
    """One sequence: the last token is chosen, but never evaluated."""
    done = compare(args, case, command, folder, is_prebuilt=is_prebuilt)
    if done:
        run, said = done
        expect_tokens(args, case, run, [said["prompt"] + said["generated"][:-1]])


def without_prefix(tokens, before):
    shared = 0
    while shared < min(len(tokens), len(before)) and tokens[shared] == before[shared]:
        shared += 1
    return tokens[shared:]


def audit(args, case, command, is_prebuilt=False):
    """The MMU's answer: recall and precision of every page."""
    if is_prebuilt and not is_testable(case, subprocess.run(command, capture_output=True), True):
        return
    done = subprocess.run([args.tensorscope, "audit", "--json", "--", *command], capture_output=True)
    lines = done.stdout[done.stdout.index(b"{\n") :] if b"{\n" in done.stdout else b"{}"
    found = json.loads(lines)
    if done.returncode != 0 or not found.get("passed"):
        return fail(case, f"audit: {done.returncode} {done.stdout[-500:]!r} {done.stderr[-500:]!r}")
    passed(case, f"recall {found['recall']:.0%}, precision {found['precision']:.0%} of "
           f"{found['touched_pages']} pages in {found['evaluations']} evaluations")


def phases(args, run, context=None):
    """How many tokens of each phase the trace has, of one context or of all."""
    where = "" if context is None else f"WHERE e.context = {context}"
    sql = f"SELECT t.phase, count(*) AS n FROM tokens t JOIN evals e ON e.eval = t.eval {where} GROUP BY t.phase"
    return {row["phase"]: int(row["n"]) for row in query(args, run, sql)}


def phases_of_tokens(args, dense, moe, folder):
    """A phase belongs to a token: prompts and answers of several sequences share batches,
    and guesses are evaluated beside the token that they were guessed from."""
    case = "node-sequences"
    command = ["node", str(HERE / "sequences.mjs"), moe, "40"]
    done = compare(args, case, command, folder, is_prebuilt=True)
    if done:
        run, said = done
        # The last token of each is chosen, but never evaluated.
        expected = {
            "prompt": sum(len(s["prompt"]) for s in said),
            "generate": sum(len(s["generated"]) - 1 for s in said),
        }
        if phases(args, run) != expected:
            fail(case, f"tokens by phase are {phases(args, run)} instead of {expected}")
        together = query(args, run, "SELECT count(*) AS n FROM evals WHERE phase = 'generate' AND tokens > 1")
        if together[0]["n"] == "0":
            fail(case, "no two sequences were evaluated side by side: nothing was tested")
    case = "node-drafting"
    command = ["node", str(HERE / "drafting.mjs"), moe, dense, "16"]
    done = compare(args, case, command, folder, is_prebuilt=True)
    if done:
        run, said = done
        # The first context that has a drafted token is the one that checks them.
        sql = "SELECT DISTINCT e.context FROM tokens t JOIN evals e ON e.eval = t.eval WHERE t.phase = 'draft'"
        contexts = query(args, run, sql)
        found = phases(args, run, contexts[0]["context"]) if contexts else {}
        if len(contexts) != 1:
            fail(case, f"{len(contexts)} contexts check drafted tokens instead of one")
        # Guesses that are evaluated with the prompt, before anything was generated, are of it.
        elif not len(said["prompt"]) <= found["prompt"] <= len(said["prompt"]) + 4:
            fail(case, f"{found['prompt']} tokens are prompt, of {len(said['prompt'])} that there were")
        elif found["generate"] + found["draft"] < len(said["generated"]) - 1:
            fail(case, f"{found} are fewer than the {len(said['generated'])} tokens that were generated")


def without_wide_kernels(folder):
    """node-llama-cpp with the kernels that any AVX2 processor runs, in hard links."""
    shutil.copytree(HERE / "node_modules", folder / "node_modules", symlinks=True, copy_function=os.link)
    shutil.copy(HERE / "node.mjs", folder)
    libraries = [
        path
        for path in folder.glob("node_modules/@node-llama-cpp/*/bins/*/libggml-cpu-*.so")
        if path.stem.removeprefix("libggml-cpu-") in WIDE_KERNELS
    ]
    if not libraries:
        fail("node-narrow", "node-llama-cpp has no library that needs AVX-512: nothing is masked any more")
    for path in libraries:
        path.unlink()
    return folder / "node.mjs"


def node(args, name, program, dense, moe, folder):
    """A prebuilt program; `name` says which kernels it has."""
    for model in dict.fromkeys((dense, moe)):
        case = f"{name}-{pathlib.Path(model).stem}"
        generation(args, case, ["node", str(program), model, "40"], folder, is_prebuilt=True)
    audit(args, f"audit-{name}", ["node", str(program), moe, "12"], is_prebuilt=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tensorscope", required=True)
    parser.add_argument("--models", required=True, type=pathlib.Path)
    parser.add_argument("--sql")
    parser.add_argument("--node", action="store_true")
    parser.add_argument("--python")
    parser.add_argument("--dense-only", action="store_true")
    parser.add_argument("--server", type=float, default=0)
    parser.add_argument("--scratch", type=pathlib.Path, default=HERE.parents[1] / "target")
    args = parser.parse_args()
    args.tensorscope = str(pathlib.Path(args.tensorscope).resolve())
    args.sql = args.sql and str(pathlib.Path(args.sql).resolve())
    models = args.models.resolve()
    dense, moe = str(models / "shakespeare-dense.gguf"), str(models / "shakespeare-moe.gguf")
    if args.dense_only:
        moe = dense
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        if args.node:
            node(args, "node", HERE / "node.mjs", dense, moe, folder)
            phases_of_tokens(args, dense, moe, folder)
            # Beside `node_modules`, as hard links do not leave a file system.
            with tempfile.TemporaryDirectory(dir=args.scratch) as narrow:
                program = without_wide_kernels(pathlib.Path(narrow))
                node(args, "node-narrow", program, dense, moe, folder)
        if args.python:
            for model in dict.fromkeys((dense, moe)):
                case = f"python-{pathlib.Path(model).stem}"
                generation(args, case, [args.python, str(HERE / "python.py"), model, "40"], folder)
            done = compare(args, "fork", [args.python, str(HERE / "fork.py"), dense], folder, expected_code=5)
            if done:
                run, (before, child, after, code) = done
                # llama-cpp-python keeps the tokens that a prompt shares with the one before.
                first = before[0] + before[1][:-1]
                parent = first + without_prefix(after[0], first) + after[1][:-1]
                expect_tokens(args, "fork", run, [parent, without_prefix(child[0], first) + child[1][:-1]])
            contexts = [args.python, str(HERE / "contexts.py"), dense, moe]
            contexts += ["one-by-one"] if args.dense_only else []
            done = compare(args, "contexts", contexts, folder)
            if done:
                run, said = done
                expect_tokens(args, "contexts", run, [prompt + made[:-1] for prompt, made in said])
        if args.python:
            for model in dict.fromkeys((dense, moe)):
                case = f"audit-{pathlib.Path(model).stem}"
                audit(args, case, [args.python, str(HERE / "python.py"), model, "12"])
            audit(args, "audit-contexts", contexts)
        if args.python and args.server:
            server(args, moe, folder)
    for case in UNTESTED:
        print(f"not tested on this processor: {case}")
    print(f"attach: {len(set(PASSED) - set(FAILED))} passed, {len(set(FAILED))} failed, {len(UNTESTED)} skipped")
    return 1 if FAILED else 0


def server(args, model, folder):
    run = folder / "server"
    responses = {}
    codes = []
    for mode, command in (
        ("plain", [args.python]),
        ("recorded", [args.tensorscope, "record", "-o", run, "--", args.python]),
    ):
        out = folder / f"{mode}.json"
        started = [args.python, HERE / "server.py", model, str(args.server), out, "--", *command]
        codes.append(subprocess.run(started, stderr=subprocess.DEVNULL).returncode)
        if not out.exists():
            return fail("server", f"the {mode} server ended by itself: {codes[-1]}")
        for r in json.loads(out.read_text()):
            responses.setdefault((r["prompt"], r["count"]), set()).add(r["response"])
    differing = [request for request, texts in responses.items() if len(texts) > 1]
    if codes[0] != codes[1]:
        fail("server", f"exit codes {codes}")
    if differing:
        fail("server", f"responses differ for {differing}")
    complete = [args.python, HERE / "complete.py", model, run, folder / "recorded.json", args.sql or args.tensorscope]
    if subprocess.run(complete, stderr=subprocess.DEVNULL).returncode != 0:
        fail("server", "tokens are missing from the trace")
    else:
        passed("server", f"{len(responses)} different requests")


if __name__ == "__main__":
    sys.exit(main())
